"""List: the published view of the inventory, in the order in which it changed (provider.md §4.1).

One log has an entry for every change, newest last; an entry is stale when its machine has changed since. A
delta is a search and a walk over the entries after the cursor, however many machines there are.

A long walk is taken in slices, and machines change between them. Records are values, so every walk under way
is given the old one of each that changes: its answer is the state at the moment it began.
"""

import zlib
from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice, takewhile
from typing import Final, NamedTuple, Self

from bigfleet_base.api.v1alpha1 import provider_pb2 as pb
from bigfleet_base.model import CapacityType, MachineState
from bigfleet_providerkit.records import Slot
from bigfleet_providerkit.work import NANOS

MAX_TOMBSTONES: Final = 100_000
TOMBSTONE_AGE: Final = 24 * 3_600 * NANOS
"""Removals older than this may be forgotten (P-70)."""
_AGE_STEP: Final = TOMBSTONE_AGE // 24
_NUMBER: Final = 8
_CHECKSUM: Final = 4
# Fewer matches than this are sorted for a pick; more are met soon enough on a walk through all ids.
_SORTED_PICK: Final = 8_192


class Place(NamedTuple):
    """How far the holder of a cursor has come."""

    position: int
    """Up to this revision it knows of every change."""
    began: int
    """The position, or the head from when it began with nothing, whichever is later: it has never known what
    was removed before."""


class Cursors:
    """Places as opaque bytes: incarnation, position, beginning if it is later, checksum (P-69)."""

    def __init__(self, incarnation: bytes) -> None:
        assert len(incarnation) == 8
        self._incarnation = incarnation

    def write(self, position: int, began: int = 0) -> bytes:
        numbers = (position, began) if began > position else (position,)
        body = self._incarnation + b"".join(number.to_bytes(_NUMBER, "big") for number in numbers)
        return body + zlib.crc32(body).to_bytes(_CHECKSUM, "big")

    def read(self, cursor: bytes) -> Place | None:
        """The place, or None for anything that this store has not written."""
        body, checksum = cursor[:-_CHECKSUM], cursor[-_CHECKSUM:]
        numbers = body[len(self._incarnation) :]
        if len(numbers) not in (_NUMBER, 2 * _NUMBER) or not body.startswith(self._incarnation):
            return None
        if zlib.crc32(body).to_bytes(_CHECKSUM, "big") != checksum:
            return None
        return Place(int.from_bytes(numbers[:_NUMBER], "big"), int.from_bytes(numbers[-_NUMBER:], "big"))


@dataclass(slots=True)
class Listed:
    """One answer to List."""

    slots: Sequence[Slot]
    revision: bytes
    full: bool
    removed: Sequence[str] = field(default_factory=list)

    def message(self) -> bytes:
        """The MachineList message."""
        return self.part(0, len(self.slots)) + self.tail()

    def part(self, start: int, stop: int) -> bytes:
        """The message's machines from one place to another; messages may be put together from parts."""
        return b"".join([piece for slot in self.slots[start:stop] for piece in (slot.wire, slot.shape.wire)])

    def tail(self) -> bytes:
        """The message without its machines."""
        tail = pb.MachineList(revision=self.revision, full=self.full, removed_ids=self.removed)
        return tail.SerializeToString()


class Walk:
    """The entries of the log after a cursor, taken in slices; ``listed`` is the answer when all are.

    To be closed, by ``with``: a walk that nobody ends would keep old records for ever.
    """

    def __init__(
        self,
        listing: "Listing",
        slots: Mapping[str, Slot],
        tombstones: Mapping[str, int],
        states: frozenset[MachineState],
        cap: int,
        since: Place | None,
    ) -> None:
        self._listing = listing
        self._current = slots
        self._tombstones = tombstones
        self._states = states
        self._cap = cap
        self._is_delta = since is not None
        # Lists that only grow at their end or are replaced whole, so that places in them stay what they are.
        self._revisions, self._changed = listing.log
        self._place = 0 if since is None else bisect_right(self._revisions, since.position)
        self._stop = len(self._changed)
        self._head = listing.head
        self._began = self._head if since is None else since.began
        self._before: dict[str, tuple[Slot | None, int | None]] = {}
        self._slots: list[Slot] = []
        self._removed: list[str] = []
        self._beyond: list[str] = []
        self.listed: Listed | None = None

    def keep(self, machine_id: str, slot: Slot | None, tombstone: int | None) -> None:
        """A machine is about to change: this is what it and its tombstone were."""
        self._before.setdefault(machine_id, (slot, tombstone))

    def advance(self, entries: int) -> None:
        """Take up to so many entries more."""
        stop = min(self._place + entries, self._stop)
        revisions, changed = self._revisions[self._place : stop], self._changed[self._place : stop]
        self._place = stop
        states, cap, slots = self._states, self._cap, self._slots
        before, current = self._before, self._current
        for revision, machine_id in zip(revisions, changed, strict=True):
            slot = before[machine_id][0] if machine_id in before else current.get(machine_id)
            if slot is not None and slot.revision == revision and not slot.withheld:
                if states and slot.state not in states:
                    continue
                if cap and len(slots) == cap:
                    position, began = (0, 0) if states else (slots[-1].revision, self._began)
                    self._end(position, self._removed, began, full=False)
                    return
                slots.append(slot)
            elif self._is_delta and self._tombstone(machine_id) == revision:
                # Removals after the last record that the cap allows belong to the page that covers them:
                # the next one, or this one if no machine follows.
                (self._beyond if cap and len(slots) == cap else self._removed).append(machine_id)
        if stop == self._stop:
            full = not self._is_delta and not states
            self._end(self._head, self._removed + self._beyond, full=full)

    def __enter__(self) -> Self:
        self._listing.walks.append(self)
        return self

    def __exit__(self, *_: object) -> None:
        self._listing.walks.remove(self)

    def _tombstone(self, machine_id: str) -> int | None:
        kept = self._before.get(machine_id)
        return self._tombstones.get(machine_id) if kept is None else kept[1]

    def _end(self, position: int, removed: list[str], began: int = 0, *, full: bool) -> None:
        self.listed = Listed(self._slots, self._listing.cursors.write(position, began), full, removed)


class Listing:
    """What Get and List see: committed records only, so that a crash never takes back what was read."""

    def __init__(
        self,
        cursors: Cursors,
        slots: Mapping[str, Slot],
        tombstones: dict[str, int],
        dropped_revision: int,
        head: int,
    ) -> None:
        self.cursors: Final = cursors
        self.walks: Final[list[Walk]] = []
        """Those under way."""
        self._slots = slots
        self._tombstones = tombstones
        self._dropped = dropped_revision
        self._head = head
        self._ids: dict[MachineState, dict[str, None]] = {state: {} for state in MachineState}
        self._counts: dict[tuple[MachineState, CapacityType], int] = {}
        self._order: list[str] = []
        """Every id there is and some that were; those added since it was last asked for come last."""
        self._ordered = 0
        self._heads: deque[tuple[int, int]] = deque()
        """When, and what the head was then; hours apart."""
        self._last_pick = ""
        changes = [(slot.revision, slot.id) for slot in slots.values() if not slot.withheld]
        changes += [(revision, machine_id) for machine_id, revision in tombstones.items()]
        changes.sort()
        self._revisions = [revision for revision, _ in changes]
        self._changed = [machine_id for _, machine_id in changes]
        for slot in slots.values():
            self._enter(slot)
        self._order.extend(slots)

    @property
    def head(self) -> int:
        return self._head

    @property
    def log(self) -> tuple[list[int], list[str]]:
        """Revisions, and what changed at each."""
        return self._revisions, self._changed

    @property
    def tombstones(self) -> int:
        return len(self._tombstones)

    def counts(self) -> Mapping[tuple[MachineState, CapacityType], int]:
        """Machines by state and capacity type, the withheld ones left out."""
        return self._counts

    def in_state(self, *states: MachineState) -> Iterable[str]:
        """Ids of the machines in these states."""
        for state in states:
            yield from self._ids[state]

    def ids(self) -> list[str]:
        """Every id in order. The first time it takes long for many; few new ones are soon sorted in."""
        if len(self._order) != self._ordered:
            self._order.sort()
            self._order = [
                machine_id for machine_id in dict.fromkeys(self._order) if machine_id in self._slots
            ]
            self._ordered = len(self._order)
        return self._order

    def get(self, machine_id: str) -> Slot | None:
        slot = self._slots.get(machine_id)
        return None if slot is None or slot.withheld else slot

    def publish(self, revision: int, old: Slot | None, new: Slot | None, machine_id: str) -> None:
        """Take over a committed change. ``new`` is None when the machine is gone."""
        for walk in self.walks:
            walk.keep(machine_id, old, self._tombstones.get(machine_id))
        if old is not None:
            self._leave(old)
        if new is not None:
            self._enter(new)
        # One that was withheld may have come while it was.
        if new is not None and (old is None or old.withheld):
            self._order.append(machine_id)
            if len(self._order) > 2 * len(self._slots) + 1024:
                self._order, self._ordered = list(self._slots), 0
        if revision <= self._head:
            return
        self._head = revision
        self._revisions.append(revision)
        self._changed.append(machine_id)
        if new is None or new.withheld:
            self._tombstones.pop(machine_id, None)
            self._tombstones[machine_id] = revision
        else:
            self._tombstones.pop(machine_id, None)
        if len(self._changed) > 2 * (len(self._slots) + len(self._tombstones)) + 1024:
            self._compact()

    def overdue_tombstones(self, now: int) -> int:
        """The revision up to which tombstones must go, too many or too old, or 0 (P-70)."""
        if not self._tombstones:
            self._heads.clear()
            return 0
        # Those that were there at the start count from then: nobody knows how old they are.
        if not self._heads or now - self._heads[-1][0] >= _AGE_STEP:
            self._heads.append((now, self._head))
        old = 0
        while self._heads and now - self._heads[0][0] >= TOMBSTONE_AGE:
            old = self._heads.popleft()[1]
        revisions = self._tombstones.values()
        excess = len(self._tombstones) - MAX_TOMBSTONES
        if excess > 0:
            # A tenth at a time, so that the next removals cost nothing.
            last = min(len(self._tombstones), excess + MAX_TOMBSTONES // 10)
            old = max(old, next(islice(revisions, last - 1, None)))
        # The highest that is dropped, so that no more cursors go with them than have to.
        return max(takewhile(lambda revision: revision <= old, revisions), default=0)

    def drop_tombstones(self, revision: int) -> None:
        for machine_id in list(takewhile(lambda i: self._tombstones[i] <= revision, self._tombstones)):
            for walk in self.walks:
                walk.keep(machine_id, self._slots.get(machine_id), self._tombstones[machine_id])
            del self._tombstones[machine_id]
        self._dropped = max(self._dropped, revision)

    def answer(self, states: frozenset[MachineState], max_results: int, since: bytes) -> Listed:
        """Answer a List at once; negative caps count as none (P-62)."""
        found = self.ask(states, max_results, since)
        if isinstance(found, Listed):
            return found
        with found:
            while found.listed is None:
                found.advance(len(self._changed))
        return found.listed

    def ask(self, states: frozenset[MachineState], max_results: int, since: bytes) -> "Listed | Walk":
        """The answer to a List, or the walk that leads to it."""
        cap = max_results if max_results > 0 else 0
        place = self.cursors.read(since) if since else None
        # A cursor from before the kept tombstones, or of a store brought back from a backup. Whoever began
        # after a removal with nothing need not be told of it, or no page of theirs would lead to the next.
        if place is not None and not self._dropped <= place.began <= self._head:
            place = None
        if states and place is None:
            return self._filtered(states, cap)
        return Walk(self, self._slots, self._tombstones, states, cap, place)

    def _filtered(self, states: frozenset[MachineState], cap: int) -> Listed:
        matching = sum(len(self._ids[state]) for state in states)
        if not cap:
            ids: Iterable[str] = self.in_state(*states)
        else:
            ids = self._pick(states, min(cap, matching), matching)
        slots = [self._slots[machine_id] for machine_id in ids]
        truncated = len(slots) < matching
        return Listed(slots, self.cursors.write(0 if truncated else self._head), full=False)

    def _pick(self, states: frozenset[MachineState], wanted: int, matching: int) -> list[str]:
        """Matches in id order from where the last pick ended, so that successive picks differ (P-68)."""
        order = sorted(self.in_state(*states)) if matching <= _SORTED_PICK else self.ids()
        start = bisect_right(order, self._last_pick)
        picked: list[str] = []
        pools = [self._ids[state] for state in states]
        for place in range(len(order)):
            if len(picked) == wanted:
                break
            machine_id = order[(start + place) % len(order)]
            if any(machine_id in pool for pool in pools):
                picked.append(machine_id)
        if picked:
            self._last_pick = picked[-1]
        return picked

    def _enter(self, slot: Slot) -> None:
        if not slot.withheld:
            self._ids[slot.state][slot.id] = None
            key = (slot.state, slot.shape.capacity_type)
            self._counts[key] = self._counts.get(key, 0) + 1

    def _leave(self, slot: Slot) -> None:
        if not slot.withheld:
            del self._ids[slot.state][slot.id]
            self._counts[(slot.state, slot.shape.capacity_type)] -= 1

    def _compact(self) -> None:
        kept = [
            (revision, machine_id)
            for revision, machine_id in zip(self._revisions, self._changed, strict=True)
            if self._is_current(revision, machine_id)
        ]
        self._revisions = [revision for revision, _ in kept]
        self._changed = [machine_id for _, machine_id in kept]

    def _is_current(self, revision: int, machine_id: str) -> bool:
        slot = self._slots.get(machine_id)
        if slot is not None and not slot.withheld:
            return slot.revision == revision
        return self._tombstones.get(machine_id) == revision
