"""Faults between a provider and its callers: slow answers, lost calls, a List that lags behind."""

import random
from collections import deque
from dataclasses import dataclass

from bigfleet_base.model import MachineState
from bigfleet_providerkit.core import Core
from bigfleet_providerkit.fake.knobs import Knobs
from bigfleet_providerkit.listing import Cursors, Listed, Listing
from bigfleet_providerkit.records import Slot


@dataclass(frozen=True)
class Crossing:
    """What befalls one call on its way."""

    delay: int
    """Nanoseconds until its answer arrives."""
    is_lost: bool
    """It never reaches the provider; the caller sees UNAVAILABLE."""
    is_answer_lost: bool
    """It does all it asks for, and the caller sees UNAVAILABLE all the same."""


class Boundary:
    """Draws what befalls calls, one after the other."""

    def __init__(self, knobs: Knobs) -> None:
        self._knobs = knobs
        self._rng = random.Random(f"{knobs.seed}/rpc")  # noqa: S311  # a fake's dice

    def cross(self) -> Crossing:
        delay = self._knobs.rpc_latency.draw(self._rng)
        fails = self._rng.random() < self._knobs.rpc_error_rate
        on_the_way_back = self._rng.random() < 0.5
        return Crossing(delay, fails and not on_the_way_back, fails and on_the_way_back)


class LaggingList:
    """The answers to List that a core would have given some time ago."""

    def __init__(self, core: Core, lag: int) -> None:
        self._core = core
        self._lag = lag
        first = core.list_machines(frozenset(), 0, b"")
        self._cursors = Cursors(first.revision[:8])
        self._cursor = first.revision
        self._slots: dict[str, Slot] = {slot.id: slot for slot in first.slots}
        head = self._position(first)
        # Of removals before now nothing is known, so older cursors are not honoured.
        self._listing = Listing(self._cursors, self._slots, {}, head, head)
        self._coming: deque[tuple[int, Listed]] = deque()

    def observe(self, now: int) -> None:
        """Take note of what has changed; to be called whenever something may have."""
        delta = self._core.list_machines(frozenset(), 0, self._cursor)
        if delta.revision != self._cursor:
            self._cursor = delta.revision
            self._coming.append((now, delta))

    def answer(self, states: frozenset[MachineState], max_results: int, since: bytes, now: int) -> Listed:
        """The answer to List as of the lag ago."""
        while self._coming and self._coming[0][0] <= now - self._lag:
            self._apply(self._coming.popleft()[1])
        return self._listing.answer(states, max_results, since)

    def _apply(self, delta: Listed) -> None:
        changes: dict[int, tuple[str, Slot | None]] = {s.revision: (s.id, s) for s in delta.slots}
        # A delta does not say when an id was removed: any revision that no machine of it has will do.
        free = (r for r in range(self._listing.head + 1, self._position(delta) + 1) if r not in changes)
        changes |= {r: (gone, None) for gone, r in zip(delta.removed, list(free), strict=False)}
        for revision, (machine_id, slot) in sorted(changes.items(), key=lambda change: change[0]):
            old = self._slots.pop(machine_id, None)
            if slot is not None:
                self._slots[machine_id] = slot
            self._listing.publish(revision, old, slot, machine_id)

    def _position(self, listed: Listed) -> int:
        place = self._cursors.read(listed.revision)
        assert place is not None
        return place.position
