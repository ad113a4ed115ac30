"""Virtual time: what happens next, in an order that never depends on the machine (simulator.md §2)."""

import heapq
from collections.abc import Callable
from enum import IntEnum


class Order(IntEnum):
    """Who goes first when several things happen at one time."""

    PROVIDER = 0
    FAULT = 1
    WORKLOAD = 2
    ROLLUP = 3
    COORDINATOR = 4
    SHARD = 5
    CHECK = 6


class VirtualTime:
    """Nanoseconds from a fixed start, and what is to happen at each."""

    def __init__(self, start: int = 0) -> None:
        self.now = start
        self._agenda: list[tuple[int, Order, int, Callable[[], None]]] = []
        self._entries = 0

    def at(self, time: int, order: Order, happen: Callable[[], None]) -> None:
        """Have something happen, now at the earliest."""
        self._entries += 1
        heapq.heappush(self._agenda, (max(time, self.now), order, self._entries, happen))

    def after(self, delay: int, order: Order, happen: Callable[[], None]) -> None:
        self.at(self.now + delay, order, happen)

    def run_until(self, end: int) -> None:
        """Let everything happen that is due by then."""
        while self._agenda and self._agenda[0][0] <= end:
            self._next()
        self.now = max(self.now, end)

    def run_for(self, duration: int) -> None:
        self.run_until(self.now + duration)

    def run_until_true(self, condition: Callable[[], bool], limit: int) -> bool:
        """Go on until a condition holds; False when it does not within the limit."""
        end = self.now + limit
        while not condition():
            if not self._agenda or self._agenda[0][0] > end:
                self.now = end
                return condition()
            self._next()
        return True

    def _next(self) -> None:
        time, _, _, happen = heapq.heappop(self._agenda)
        self.now = time
        happen()
