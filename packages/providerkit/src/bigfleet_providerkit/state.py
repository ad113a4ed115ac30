"""The state that survives, changed in batches: staged, written by the shell, then committed or rolled back.

Handlers see staged values, readers committed ones. Whatever else a handler wants to change it hands to
``later``, so that a batch whose write fails leaves nothing behind (P-34, P-123).
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any, Final, Generic, TypeVar

from bigfleet_base.model import MachineState
from bigfleet_base.model.lifecycle import GRID, Presence, edge
from bigfleet_providerkit.effects import (
    Effect,
    Image,
    PutFloor,
    PutMachine,
    PutMark,
    RemoveMachine,
    Report,
    Write,
)
from bigfleet_providerkit.listing import Cursors, Listing
from bigfleet_providerkit.records import Slot, entry

MAX_GHOSTS: Final = 10_000
"""Marks kept for machines that do not exist (P-33)."""
MAX_SHARDS: Final = 100_000
"""Shard ids that are remembered; each has a floor that must never be forgotten."""

K = TypeVar("K")
V = TypeVar("V")
_ABSENT: Final[Any] = object()


class Table(Generic[K, V]):
    """A dict with the changes of one batch on top."""

    def __init__(self, committed: dict[K, V]) -> None:
        self.committed = committed
        self.staged: dict[K, V | None] = {}
        self._undo: list[tuple[K, Any]] = []

    def get(self, key: K) -> V | None:
        return self.staged[key] if key in self.staged else self.committed.get(key)

    def put(self, key: K, value: V | None) -> None:
        self._undo.append((key, self.staged.get(key, _ABSENT)))
        self.staged[key] = value

    @property
    def undo(self) -> list[tuple[K, Any]]:
        """What was staged before each change, oldest first."""
        return self._undo

    def undo_to(self, savepoint: int) -> None:
        while len(self._undo) > savepoint:
            key, before = self._undo.pop()
            if before is _ABSENT:
                del self.staged[key]
            else:
                self.staged[key] = before

    def commit(self) -> None:
        for key, value in self.staged.items():
            if value is None:
                self.committed.pop(key, None)
            else:
                self.committed[key] = value
        self.discard()

    def discard(self) -> None:
        self.staged = {}
        self._undo = []


class Ghosts(Table[tuple[str, str], tuple[int, int]]):
    """Marks of (machine, shard) where the machine does not exist; the longest unused go first."""

    def __init__(self) -> None:
        self._recent: OrderedDict[tuple[str, str], tuple[int, int]] = OrderedDict()
        self._shards: dict[str, set[str]] = {}
        super().__init__(self._recent)

    def shards_of(self, machine_id: str) -> set[str]:
        """The shards that have a mark on a machine that is not there."""
        staged = {shard for ghost, shard in self.staged if ghost == machine_id}
        return staged | self._shards.get(machine_id, set())

    def commit(self) -> None:
        staged = self.staged
        super().commit()
        for key, mark in staged.items():
            if mark is None:
                self._unlink(key)
            else:
                self._recent.move_to_end(key)
                self._shards.setdefault(key[0], set()).add(key[1])
        while len(self._recent) > MAX_GHOSTS:
            key, _ = self._recent.popitem(last=False)
            self._unlink(key)

    def _unlink(self, key: tuple[str, str]) -> None:
        shards = self._shards.get(key[0], set())
        shards.discard(key[1])
        if not shards:
            self._shards.pop(key[0], None)


@dataclass
class _Batch:
    writes: list[Write] = field(default_factory=list)
    effects: list[Effect] = field(default_factory=list)
    reports: list[Report] = field(default_factory=list)
    changes: list[tuple[int, str]] = field(default_factory=list)
    later: list[Callable[[], None]] = field(default_factory=list)

    def parts(self) -> tuple[list[Any], ...]:
        return (self.writes, self.effects, self.reports, self.changes, self.later)


class State:
    """Machines, floors and marks, and the batch under way."""

    def __init__(self, image: Image) -> None:
        self.incarnation: Final = image.incarnation.hex()
        self.slots: Final = Table(image.slots)
        self.floors: Final = Table(image.floors)
        self.ghosts: Final = Ghosts()
        self._tables: tuple[Table[Any, Any], ...] = (self.slots, self.floors, self.ghosts)
        revisions = [slot.revision for slot in image.slots.values()]
        head = max((0, image.dropped_revision, *image.tombstones.values(), *revisions))
        self.listing: Final = Listing(
            Cursors(image.incarnation), image.slots, image.tombstones, image.dropped_revision, head
        )
        self._revision = head
        self._batch = _Batch()

    # ---- what handlers use

    def next_revision(self) -> int:
        """The revision that the next change will have."""
        return self._revision + 1

    def change(self, slot: Slot, **values: Any) -> Slot:
        """Give a machine new values; its revision moves if its record does."""
        changed = slot.but(**values)
        if changed.state is not slot.state:
            edge(slot.state, changed.state)
        return self._put(slot, changed)

    def insert(self, slot: Slot) -> Slot:
        """Put a machine there that has none of the states before it: new, or recovered from its host."""
        before = self.slots.get(slot.id)
        kept = self._put(before, slot)
        if before is None:
            # Marks set while the id was unknown hold for the machine too (P-33).
            for shard in self.ghosts.shards_of(slot.id):
                mark = self.ghosts.get((slot.id, shard))
                if mark is not None:
                    kept = self.mark(slot.id, kept, shard, *mark) or kept
                    self.ghosts.put((slot.id, shard), None)
        return kept

    def remove(self, slot: Slot) -> None:
        """Retire a machine; its marks stay among the ghosts'."""
        self._revision += 1
        self._batch.changes.append((self._revision, slot.id))
        self._batch.writes.append(RemoveMachine(slot.id, self._revision, forget=True))
        self.slots.put(slot.id, None)
        for shard, mark in slot.marks.items():
            self.ghosts.put((slot.id, shard), mark)

    def mark(self, machine_id: str, slot: Slot | None, shard: str, epoch: int, sequence: int) -> Slot | None:
        """Advance the mark of (shard, machine) and the shard's floor (P-34)."""
        floor = self.floors.get(shard)
        if floor is None or epoch > floor:
            self.floors.put(shard, epoch)
            self._batch.writes.append(PutFloor(shard, epoch))
        if slot is None:
            self.ghosts.put((machine_id, shard), (epoch, sequence))
            return None
        marked = slot.but(marks={**slot.marks, shard: (epoch, sequence)})
        self.slots.put(slot.id, marked)
        self._batch.writes.append(PutMark(machine_id, shard, epoch, sequence))
        return marked

    def effect(self, effect: Effect) -> None:
        self._batch.effects.append(effect)

    def report(self, report: Report) -> None:
        self._batch.reports.append(report)

    def later(self, change: Callable[[], None]) -> None:
        """Do this when, and only when, the batch is committed."""
        self._batch.later.append(change)

    # ---- what the core uses

    def write(self, write: Write) -> None:
        self._batch.writes.append(write)

    def writes(self) -> list[Write]:
        return self._batch.writes

    def savepoint(self) -> list[int]:
        return [*map(len, self._batch.parts()), *[len(table.undo) for table in self._tables]]

    def undo_to(self, savepoint: Sequence[int]) -> None:
        parts = self._batch.parts()
        for part, size in zip(parts, savepoint, strict=False):
            del part[size:]
        for table, point in zip(self._tables, savepoint[len(parts) :], strict=True):
            table.undo_to(point)

    def commit(self) -> tuple[list[Effect], list[Report]]:
        """Make the batch the truth, show it to readers, and do what was to be done later."""
        batch, self._batch = self._batch, _Batch()
        last: dict[str, int] = {}
        for revision, machine_id in batch.changes:
            last.pop(machine_id, None)
            last[machine_id] = revision
        before = {machine_id: self.slots.committed.get(machine_id) for machine_id in last}
        for table in self._tables:
            table.commit()
        for machine_id, revision in last.items():
            self.listing.publish(
                revision, before[machine_id], self.slots.committed.get(machine_id), machine_id
            )
        for change in batch.later:
            change()
        return batch.effects, batch.reports

    def rollback(self) -> None:
        self._batch = _Batch()
        for table in self._tables:
            table.discard()

    def _put(self, before: Slot | None, slot: Slot) -> Slot:
        _check(slot)
        wire = entry(slot)
        visible_before = before is not None and not before.withheld
        same = before is not None and (before.wire, before.shape) == (wire, slot.shape)
        # The slot was made for this change and is in no table yet.
        slot.wire = wire
        if slot.withheld == visible_before or not (slot.withheld or same):
            self._revision += 1
            slot.revision = self._revision
            self._batch.changes.append((self._revision, slot.id))
            if slot.withheld:
                self._batch.writes.append(RemoveMachine(slot.id, self._revision, forget=False))
        self.slots.put(slot.id, slot)
        self._batch.writes.append(PutMachine(slot, relisted=not slot.withheld and not visible_before))
        return slot


def _check(slot: Slot) -> None:
    # Defects of the kit, not of its callers: a record like this would be refused by every shard.
    fields = (bool(slot.host), bool(slot.cluster), bool(slot.last_error))
    assert fields in _ALLOWED[slot.state], slot


def _allowed(state: MachineState) -> frozenset[tuple[bool, bool, bool]]:
    choices = {Presence.SET: (True,), Presence.EMPTY: (False,)}
    host, cluster = (choices.get(presence, (True, False)) for presence in GRID[state])
    if state is MachineState.CREATING:
        # A shard tolerates a host here; a provider shows none (provider.md §2).
        host = (False,)
    return frozenset(product(host, cluster, (state is MachineState.FAILED,)))


_ALLOWED: Final = {state: _allowed(state) for state in GRID}
"""Whether a machine may have a host, a cluster, a last error."""
