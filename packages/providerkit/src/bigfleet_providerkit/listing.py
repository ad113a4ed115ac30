"""List: the published view of the inventory, in the order in which it changed (provider.md §4.1).

One log has an entry for every change, newest last; an entry is stale when its machine has changed since. A
delta is a search and a walk over the entries after the cursor, however many machines there are.
"""

import zlib
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from bigfleet_base.api.v1alpha1 import provider_pb2 as pb
from bigfleet_base.model import CapacityType, MachineState
from bigfleet_providerkit.records import Slot

MAX_TOMBSTONES: Final = 100_000
_CURSOR_SIZE: Final = 8 + 8 + 4
# Fewer matches than this are sorted for a pick; more are met soon enough on a walk through all ids.
_SORTED_PICK: Final = 2_048


class Cursors:
    """Positions as opaque bytes: incarnation, revision, checksum (P-69)."""

    def __init__(self, incarnation: bytes) -> None:
        assert len(incarnation) == 8
        self._incarnation = incarnation

    def write(self, revision: int) -> bytes:
        body = self._incarnation + revision.to_bytes(8, "big")
        return body + zlib.crc32(body).to_bytes(4, "big")

    def read(self, cursor: bytes) -> int | None:
        """The position, or None for anything that this store has not written."""
        if len(cursor) != _CURSOR_SIZE or not cursor.startswith(self._incarnation):
            return None
        if zlib.crc32(cursor[:16]).to_bytes(4, "big") != cursor[16:]:
            return None
        return int.from_bytes(cursor[8:16], "big")


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
        self._cursors = cursors
        self._slots = slots
        self._tombstones = tombstones
        self._dropped = dropped_revision
        self._head = head
        self._ids: dict[MachineState, dict[str, None]] = {state: {} for state in MachineState}
        self._counts: dict[tuple[MachineState, CapacityType], int] = {}
        self._sorted: list[str] | None = None
        self._last_pick = ""
        changes = [(slot.revision, slot.id) for slot in slots.values() if not slot.withheld]
        changes += [(revision, machine_id) for machine_id, revision in tombstones.items()]
        changes.sort()
        self._revisions = [revision for revision, _ in changes]
        self._changed = [machine_id for _, machine_id in changes]
        for slot in slots.values():
            self._enter(slot)

    @property
    def head(self) -> int:
        return self._head

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

    def get(self, machine_id: str) -> Slot | None:
        slot = self._slots.get(machine_id)
        return None if slot is None or slot.withheld else slot

    def publish(self, revision: int, old: Slot | None, new: Slot | None, machine_id: str) -> None:
        """Take over a committed change. ``new`` is None when the machine is gone."""
        if old is not None:
            self._leave(old)
        if new is not None:
            self._enter(new)
        if (old is None) != (new is None):
            self._sorted = None
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

    def overdue_tombstones(self) -> int:
        """The revision up to which tombstones must go to keep their number, or 0 (P-70)."""
        excess = len(self._tombstones) - MAX_TOMBSTONES
        if excess <= 0:
            return 0
        # A tenth at a time, so that the next removals cost nothing.
        revisions = list(self._tombstones.values())
        return revisions[min(len(revisions), excess + MAX_TOMBSTONES // 10) - 1]

    def drop_tombstones(self, revision: int) -> None:
        for machine_id in [i for i, removed in self._tombstones.items() if removed <= revision]:
            del self._tombstones[machine_id]
        self._dropped = max(self._dropped, revision)

    def answer(self, states: frozenset[MachineState], max_results: int, since: bytes) -> Listed:
        """Answer a List; negative caps count as none (P-62)."""
        cap = max_results if max_results > 0 else 0
        position = self._cursors.read(since) if since else None
        # A cursor from before the kept tombstones, or of a store brought back from a backup.
        if position is not None and not self._dropped <= position <= self._head:
            position = None
        if states and position is None:
            return self._filtered(states, cap)
        return self._changes(states, cap, position)

    def _changes(self, states: frozenset[MachineState], cap: int, position: int | None) -> Listed:
        start = 0 if position is None else bisect_right(self._revisions, position)
        slots: list[Slot] = []
        removed: list[str] = []
        beyond: list[str] = []
        for revision, machine_id in zip(self._revisions[start:], self._changed[start:], strict=True):
            slot = self._slots.get(machine_id)
            if slot is not None and slot.revision == revision and not slot.withheld:
                if states and slot.state not in states:
                    continue
                if cap and len(slots) == cap:
                    last = 0 if states else slots[-1].revision
                    return Listed(slots, self._cursors.write(last), full=False, removed=removed)
                slots.append(slot)
            elif position is not None and self._tombstones.get(machine_id) == revision:
                # Removals after the last record that the cap allows belong to the page that covers them:
                # the next one, or this one if no machine follows.
                (beyond if cap and len(slots) == cap else removed).append(machine_id)
        full = position is None and not states
        return Listed(slots, self._cursors.write(self._head), full=full, removed=removed + beyond)

    def _filtered(self, states: frozenset[MachineState], cap: int) -> Listed:
        matching = sum(len(self._ids[state]) for state in states)
        if not cap:
            ids: Iterable[str] = self.in_state(*states)
        else:
            ids = self._pick(states, min(cap, matching), matching)
        slots = [self._slots[machine_id] for machine_id in ids]
        truncated = len(slots) < matching
        return Listed(slots, self._cursors.write(0 if truncated else self._head), full=False)

    def _pick(self, states: frozenset[MachineState], wanted: int, matching: int) -> list[str]:
        """Matches in id order from where the last pick ended, so that successive picks differ (P-68)."""
        if matching <= _SORTED_PICK:
            order = sorted(self.in_state(*states))
        else:
            if self._sorted is None:
                self._sorted = sorted(self._slots)
            order = self._sorted
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
