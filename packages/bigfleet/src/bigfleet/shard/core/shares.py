"""Who gets the places in the queue when there are more actions than places (shard.md E1, E4).

An action that cannot be finished keeps its place for half a minute, and is decided again in the next cycle,
before those that come behind it. So a place goes to the provider that has the fewest, and there to the
cluster that has the fewest: whoever answers nothing takes their own share and nobody else's (P-139).
"""

import heapq
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable
from typing import Final

from bigfleet.engine.actions import Action, ActionKind

Lane = tuple[str, str]
"""Provider and cluster."""


def fair_share(
    actions: list[Action], places: int, lane_of: Callable[[Action], Lane], taken: Iterable[Lane]
) -> list[Action]:
    """As many actions as there are places, in their order; ``taken`` are the lanes of those that have one.
    The kinds take turns, as they do at the limit on actions (engine.md §13.4)."""
    held = Counter(taken)
    by_provider: Counter[str] = Counter()
    for (provider, _), count in held.items():
        by_provider[provider] += count
    lines = {kind: _Line(held) for kind in ActionKind}
    for number, action in enumerate(actions):
        lines[action.kind].add(number, lane_of(action))
    chosen: list[int] = []
    waiting = [line for line in lines.values() if line.begin()]
    while waiting and len(chosen) < places:
        chosen += [line.take(by_provider) for line in waiting[: places - len(chosen)]]
        waiting = [line for line in waiting if line]
    return [actions[number] for number in sorted(chosen)]


class _Line:
    """Actions of one kind, by their numbers."""

    def __init__(self, held: Counter[Lane]) -> None:
        self._held: Final = held
        self._lanes: defaultdict[Lane, deque[int]] = defaultdict(deque)
        self._heaps: dict[str, list[tuple[int, int, str]]] = {}
        """For each provider its clusters: how many places they have, and the first action that waits."""

    def __bool__(self) -> bool:
        return bool(self._heaps)

    def add(self, number: int, lane: Lane) -> None:
        self._lanes[lane].append(number)

    def begin(self) -> bool:
        """All have come; returns whether there are any."""
        for lane, numbers in self._lanes.items():
            provider, cluster = lane
            self._heaps.setdefault(provider, []).append((self._held[lane], numbers[0], cluster))
        for heap in self._heaps.values():
            heapq.heapify(heap)
        return bool(self)

    def take(self, by_provider: Counter[str]) -> int:
        """The action whose turn it is."""
        provider = min(self._heaps, key=lambda name: (by_provider[name], self._heaps[name][0]))
        heap = self._heaps[provider]
        count, number, cluster = heap[0]
        numbers = self._lanes[provider, cluster]
        numbers.popleft()
        if numbers:
            heapq.heapreplace(heap, (count + 1, numbers[0], cluster))
        else:
            heapq.heappop(heap)
        if not heap:
            del self._heaps[provider]
        by_provider[provider] += 1
        return number
