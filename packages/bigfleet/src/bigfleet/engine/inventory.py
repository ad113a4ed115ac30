"""The machines of a shard, held so that a cycle never walks them (engine.md §2.5, §4).

Per machine there is a row in a few columns; what many machines share (offer, labels, binding) is stored once
and counted. Beside the columns stand the cells, kept sorted on every change: a cycle reads those.

While a cycle runs the inventory is not written: changes wait in an overlay that readers look into first and
that is merged when the cycle ends, so that a cycle cut into slices decides as if it had run in one piece.
"""

import bisect
from collections import defaultdict
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from bigfleet.engine.cells import NO_CALL, Binding, Call, Cell, CellKey, MachineClass, Offer, Pool
from bigfleet_base.model import CapacityType, HostRef, Machine, MachineState, Preemptor
from bigfleet_base.model.lifecycle import Memory, check, edge, has_edge


class UnknownMachineError(KeyError):
    """No machine with this id."""


class DuplicateMachineError(ValueError):
    """A machine with this id exists already."""


@dataclass(frozen=True, slots=True)
class Sidecar:
    """What this process remembers beside a machine's record."""

    idle_since: int | None = None
    last_reclamation_value: float = 0.0
    preempted_for: Preemptor | None = None
    drain_deadline: int | None = None
    seen_start: bool = False
    held_off: Call = NO_CALL
    provider: str = ""
    """Which of the shard's providers has it."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One machine as a whole: its record and what is remembered beside it."""

    machine: Machine
    sidecar: Sidecar


@dataclass(slots=True)
class Tally:
    """How many machines, and what they cost an hour together; whole numbers, so that nothing drifts."""

    machines: int = 0
    nano_dollars: int = 0


Identity = tuple[str, str]
"""A name under which machines are bought for a Need: (fingerprint, group)."""
Owned = Mapping[Identity, Mapping[CellKey, Cell]]
"""Cells by the Need they are attributed to, within one cluster."""


@dataclass(slots=True)
class Changes:
    """What has happened to the cells since somebody last asked."""

    touched: dict[Cell, None]
    """Cells that got or lost machines, those included that are new or gone, in the order it happened."""
    everything: bool = False
    """Whether the cells were put together anew, so that none is what it was."""


class Inventory:
    """Machines by id, by cell, and by the indexes a cycle needs."""

    def __init__(self) -> None:
        self._rows: dict[str, _Row] = {}
        self._offers: _Interner[Offer] = _Interner()
        self._labels: _Interner[_Labels] = _Interner()
        self._bindings: _Interner[Binding] = _Interner()
        self._asked: frozenset[str] = frozenset()
        self._classes: dict[tuple[Offer, tuple[tuple[str, str], ...]], MachineClass] = {}
        self._class_numbers = 0
        self._cells: dict[CellKey, Cell] = {}
        self._by_state: defaultdict[MachineState, dict[CellKey, Cell]] = defaultdict(dict)
        self._by_cluster: defaultdict[tuple[str, MachineState], dict[MachineClass, dict[CellKey, Cell]]]
        self._by_cluster = defaultdict(dict)
        self._by_owner: defaultdict[tuple[str, MachineState], dict[Identity, dict[CellKey, Cell]]]
        self._by_owner = defaultdict(dict)
        self._by_stamp: defaultdict[tuple[str, Identity], dict[CellKey, Cell]] = defaultdict(dict)
        self._pools: defaultdict[MachineState, dict[int, Pool]] = defaultdict(dict)
        self._arrivals: defaultdict[MachineState, Arrivals] = defaultdict(Arrivals)
        self._held_off: defaultdict[Pool, dict[CellKey, Cell]] = defaultdict(dict)
        self._counts: defaultdict[tuple[str, MachineState], int] = defaultdict(int)
        self._changes = Changes({}, everything=True)
        self._tallies: dict[tuple[MachineState, CapacityType, float], Tally] = {}
        self._overlay: dict[str, Entry | None] | None = None
        self._undeletable: set[tuple[str, CapacityType]] = set()
        self._refused_meanwhile: set[tuple[str, CapacityType]] = set()

    # Reading

    def __len__(self) -> int:
        return len(self._rows)

    def __contains__(self, machine_id: str) -> bool:
        if self._overlay is not None and machine_id in self._overlay:
            return self._overlay[machine_id] is not None
        return machine_id in self._rows

    def __iter__(self) -> Iterator[str]:
        """The ids, in no particular order, without what the overlay adds or takes away."""
        return iter(self._rows)

    def entry(self, machine_id: str) -> Entry:
        """The machine as it is now, a change that waits for the end of the cycle included."""
        entry = self.find(machine_id)
        if entry is None:
            raise UnknownMachineError(machine_id)
        return entry

    def find(self, machine_id: str) -> Entry | None:
        """Like ``entry``; None for a machine that is not there."""
        if self._overlay is not None and machine_id in self._overlay:
            return self._overlay[machine_id]
        row = self._rows.get(machine_id)
        return None if row is None else self._read(row)

    def cells(self, state: MachineState) -> Iterable[Cell]:
        """The cells of one state, in no particular order."""
        return self._by_state[state].values()

    def cluster_cells(self, cluster: str, state: MachineState) -> Iterator[Cell]:
        """The cells of one state that are bound to one cluster."""
        for cells in self._by_cluster.get((cluster, state), {}).values():
            yield from cells.values()

    def cluster_classes(
        self, cluster: str, state: MachineState
    ) -> Mapping[MachineClass, Mapping[CellKey, Cell]]:
        """The same by class."""
        return self._by_cluster.get((cluster, state), {})

    def owned(self, cluster: str, state: MachineState) -> Owned:
        """The cells of one state by the Need of one cluster they are attributed to: of those it has, or,
        where they are bound to nobody yet, of those meant for it."""
        return self._by_owner.get((cluster, state), {})

    def stamped(self, cluster: str, identity: Identity) -> Iterable[Cell]:
        """The cells of machines that drain for a Need."""
        found = self._by_stamp.get((cluster, identity))
        return found.values() if found else ()

    def all_cells(self) -> Collection[Cell]:
        """Every cell."""
        return self._cells.values()

    def cell_count(self) -> int:
        """How many cells there are."""
        return len(self._cells)

    def configured(self) -> dict[str, int]:
        """How many Configured machines each cluster has."""
        return {
            cluster: n for (cluster, state), n in self._counts.items() if state is MachineState.CONFIGURED
        }

    def pools(self, state: MachineState) -> Iterable[Pool]:
        """The cells of one state by class."""
        return self._pools[state].values()

    def held_off(self, pool: Pool) -> Iterable[Cell]:
        """The cells of a pool on which some call is not to be tried."""
        return self._held_off.get(pool, {}).values()

    def arrivals(self, state: MachineState) -> "Arrivals":
        """The pools of a state in the order they came up."""
        return self._arrivals[state]

    def count(self, state: MachineState, cluster: str | None = None) -> int:
        """How many machines are in a state, in the fleet or in one cluster."""
        if cluster is None:
            return sum(pool.count for pool in self._pools[state].values())
        return self._counts.get((cluster, state), 0)

    def take_changes(self) -> Changes:
        """What has happened since this was last called."""
        changes, self._changes = self._changes, Changes({})
        return changes

    @property
    def asked(self) -> frozenset[str]:
        """The label keys that matching can see."""
        return self._asked

    @property
    def undeletable(self) -> frozenset[tuple[str, CapacityType]]:
        """Providers without a Delete, by capacity type."""
        return frozenset(self._undeletable)

    def capture(self) -> Iterator[Entry]:
        """Every machine as it is at this moment, read as the iterator is used: rows are replaced, never
        changed, so that writes in between are not seen."""
        assert self._overlay is None, "between cycles only"
        return map(self._read, list(self._rows.values()))

    def tallies(self) -> Mapping[tuple[MachineState, CapacityType, float], "Tally"]:
        """Machines and their price by state, capacity type and interruption penalty, kept up to date."""
        return self._tallies

    def sidecar(self, machine_id: str) -> Sidecar:
        """What is remembered beside a machine, as the running cycle sees it."""
        return self._rows[machine_id].sidecar

    def state(self, machine_id: str) -> MachineState | None:
        """The state of a machine as it is now; None for one that is not there."""
        if self._overlay is not None and machine_id in self._overlay:
            entry = self._overlay[machine_id]
            return None if entry is None else entry.machine.state
        row = self._rows.get(machine_id)
        return None if row is None else row.cell.state

    def is_not_deletable(self, machine_id: str) -> bool:
        """Whether its provider has no Delete for its capacity type."""
        row = self._rows[machine_id]
        return (row.sidecar.provider, row.offer.capacity_type) in self._undeletable

    # Writing

    def insert(self, machine: Machine, now: int, sidecar: Sidecar | None = None) -> None:
        """Add a machine; one that is Idle starts its clock now."""
        check(machine)
        if machine.id in self:
            raise DuplicateMachineError(machine.id)
        sidecar = sidecar or Sidecar()
        if machine.state is MachineState.IDLE:
            sidecar = replace(sidecar, idle_since=now)
        self._put(machine.id, Entry(machine, sidecar))

    def apply(
        self,
        machine: Machine,
        now: int,
        *,
        started: bool = False,
        preempted_for: Preemptor | None = None,
        drain_deadline: int | None = None,
    ) -> None:
        """Write a new record of a known machine: a legal edge, or a merge of fields in the same state.

        ``started`` says that this process makes the transition; a drain also says for whom and until when.
        """
        check(machine)
        before = self.entry(machine.id)
        sidecar = before.sidecar
        if machine.state is not before.machine.state:
            memory = edge(before.machine.state, machine.state).memory
            sidecar = _remember(sidecar, memory, before.machine, now)
            if Memory.STAMP_SEEN_START in memory or Memory.STAMP_DRAIN in memory:
                sidecar = replace(sidecar, seen_start=started)
            if Memory.STAMP_DRAIN in memory:
                sidecar = replace(sidecar, preempted_for=preempted_for, drain_deadline=drain_deadline)
        self._put(machine.id, Entry(machine, sidecar))

    def adopt(self, machine: Machine, now: int, preempted_for: Preemptor | None = None) -> None:
        """Write what a provider shows, or take a call back: over an edge of the table with all it does, or
        over none, which leaves nothing of what was remembered of the state before."""
        check(machine)
        before = self.entry(machine.id)
        if has_edge(before.machine.state, machine.state):
            self.apply(machine, now, preempted_for=preempted_for)
            return
        sidecar = before.sidecar
        if machine.state is not before.machine.state:
            sidecar = Sidecar(
                idle_since=now if machine.state is MachineState.IDLE else None,
                preempted_for=preempted_for if machine.state is MachineState.DRAINING else None,
                held_off=sidecar.held_off,
                provider=sidecar.provider,
            )
        self._put(machine.id, Entry(machine, sidecar))

    def remove(self, machine_id: str) -> None:
        """Forget a machine."""
        self.entry(machine_id)
        self._put(machine_id, None)

    def hold_off(self, machine_id: str, calls: Call) -> None:
        """Say which calls are not to be tried on a machine at present."""
        entry = self.entry(machine_id)
        self._put(machine_id, Entry(entry.machine, replace(entry.sidecar, held_off=calls)))

    def mark_not_deletable(self, provider: str, capacity_type: CapacityType) -> None:
        """Say that a provider has no Delete for a capacity type; true for as long as this process lives."""
        if self._overlay is not None:
            self._refused_meanwhile.add((provider, capacity_type))
            return
        self._undeletable.add((provider, capacity_type))
        for machine_id in list(self._rows):
            self._put(machine_id, self._read(self._rows[machine_id]))

    def ask(self, keys: Iterable[str]) -> None:
        """Make label keys visible to matching. A key asked for the first time splits the classes anew."""
        assert self._overlay is None, "classes must not change under a running cycle"
        wanted = self._asked.union(keys)
        if wanted == self._asked:
            return
        self._asked = wanted
        self._classes.clear()
        for index in (
            self._cells,
            self._by_state,
            self._by_cluster,
            self._by_owner,
            self._by_stamp,
            self._pools,
            self._arrivals,
            self._held_off,
        ):
            index.clear()
        for machine_id in sorted(self._rows):
            row = self._rows[machine_id]
            row.cell = self._cell(row.cell.state, row.offer, row.labels, row.binding, row.sidecar)
            row.cell.ids.append(machine_id)
            row.cell.pool.count += 1
        self._changes = Changes({}, everything=True)

    def freeze(self) -> None:
        """Start of a cycle: from here on changes wait."""
        assert self._overlay is None, "a cycle is running"
        self._overlay = {}

    def thaw(self) -> None:
        """End of a cycle: what waited is written, in the order it came."""
        waiting, self._overlay = self._overlay or {}, None
        for machine_id, entry in waiting.items():
            self._put(machine_id, entry)
        for provider, capacity_type in self._refused_meanwhile:
            self.mark_not_deletable(provider, capacity_type)
        self._refused_meanwhile.clear()

    def _read(self, row: "_Row") -> Entry:
        offer, binding = row.offer, row.binding
        machine = Machine(
            id=row.id,
            state=row.cell.state,
            host=HostRef(row.host_provider, row.host_ref),
            cluster=binding.cluster,
            instance_type=offer.instance_type,
            zone=offer.zone,
            capacity_type=offer.capacity_type,
            resources=offer.resources,
            allocatable=offer.allocatable,
            labels=row.labels.values,
            price_per_hour=offer.price_per_hour,
            interruption_probability=offer.interruption_probability,
            last_error=row.last_error,
            assigned_priority=binding.priority,
            assigned_interruption_penalty=binding.interruption_penalty,
            assigned_reclamation_penalty=binding.reclamation_penalty,
            assigned_need_fingerprint=binding.fingerprint,
            assigned_group=binding.group,
            target_cluster=binding.target_cluster,
        )
        return Entry(machine, row.sidecar)

    def _put(self, machine_id: str, entry: Entry | None) -> None:
        if self._overlay is not None:
            self._overlay[machine_id] = entry
            return
        known = self._rows.pop(machine_id, None)
        if known is not None:
            self._leave(known)
        if entry is None:
            return
        m = entry.machine
        offer = self._offers.take(
            Offer(
                m.instance_type,
                m.zone,
                m.capacity_type,
                m.resources,
                m.allocatable,
                # One of equal offers stands for all, so that 1 and 1.0 must not differ in print.
                float(m.price_per_hour),
                float(m.interruption_probability),
            )
        )
        labels = self._labels.take(_Labels(m.labels))
        binding = self._bindings.take(
            Binding(
                m.cluster,
                m.assigned_priority,
                m.assigned_interruption_penalty,
                m.assigned_reclamation_penalty,
                m.assigned_need_fingerprint,
                m.assigned_group,
                m.target_cluster,
            )
        )
        cell = self._cell(m.state, offer, labels, binding, entry.sidecar)
        bisect.insort(cell.ids, m.id)
        self._count(cell, 1)
        self._rows[m.id] = _Row(
            m.id, offer, labels, binding, m.host.provider, m.host.ref, m.last_error, entry.sidecar, cell
        )

    def _leave(self, row: "_Row") -> None:
        cell = row.cell
        del cell.ids[bisect.bisect_left(cell.ids, row.id)]
        self._count(cell, -1)
        if not cell.ids:
            self._drop(cell)
        self._offers.give_back(row.offer)
        self._labels.give_back(row.labels)
        self._bindings.give_back(row.binding)

    def _count(self, cell: Cell, by: int) -> None:
        self._changes.touched[cell] = None
        cell.pool.count += by
        bound = (cell.binding.cluster, cell.state)
        self._counts[bound] += by
        if not self._counts[bound]:
            del self._counts[bound]
        offer = cell.machine_class.offer
        key = (cell.state, offer.capacity_type, cell.binding.interruption_penalty)
        tally = self._tallies.get(key)
        if tally is None:
            tally = self._tallies[key] = Tally()
        tally.machines += by
        tally.nano_dollars += by * round(offer.price_per_hour * 1e9)
        if not tally.machines:
            del self._tallies[key]

    def _cell(
        self,
        state: MachineState,
        offer: Offer,
        labels: "_Labels",
        binding: Binding,
        sidecar: Sidecar,
    ) -> Cell:
        machine_class = self._class(offer, labels)
        key = CellKey(
            state=state,
            machine_class=machine_class.number,
            binding=binding,
            last_reclamation_value=sidecar.last_reclamation_value,
            preempted_for=sidecar.preempted_for,
            seen_start=sidecar.seen_start,
            not_deletable=(sidecar.provider, offer.capacity_type) in self._undeletable,
            held_off=sidecar.held_off,
        )
        cell = self._cells.get(key)
        if cell is None:
            cell = self._new_cell(key, machine_class)
        if sidecar.idle_since is not None and sidecar.idle_since < cell.idle_from:
            cell.idle_from = sidecar.idle_since
        return cell

    def _new_cell(self, key: CellKey, machine_class: MachineClass) -> Cell:
        state, binding, stamp = key.state, key.binding, key.preempted_for
        pool = self._pools[state].get(key.machine_class)
        if pool is None:
            pool = self._pools[state][key.machine_class] = Pool(machine_class)
            self._arrivals[state].add(pool)
        cell = self._cells[key] = pool.cells[key] = Cell(key, pool)
        self._by_state[state][key] = cell
        self._by_cluster[binding.cluster, state].setdefault(machine_class, {})[key] = cell
        if key.held_off:
            self._held_off[pool][key] = cell
        owner = _owner(key)
        self._by_owner[owner, state].setdefault(binding.identity, {})[key] = cell
        if stamp is not None:
            self._by_stamp[stamp.cluster, (stamp.need_fingerprint, stamp.group)][key] = cell
        return cell

    def _drop(self, cell: Cell) -> None:
        key, state, binding, stamp = cell.key, cell.state, cell.binding, cell.key.preempted_for
        del self._cells[key], self._by_state[state][key], cell.pool.cells[key]
        bound = (binding.cluster, state)
        _discard(self._by_cluster[bound], cell.machine_class, key)
        if not self._by_cluster[bound]:
            del self._by_cluster[bound]
        owner = (_owner(key), state)
        _discard(self._by_owner[owner], binding.identity, key)
        if not self._by_owner[owner]:
            del self._by_owner[owner]
        if stamp is not None:
            _discard(self._by_stamp, (stamp.cluster, (stamp.need_fingerprint, stamp.group)), key)
        if key.held_off:
            _discard(self._held_off, cell.pool, key)
        if not cell.pool.cells:
            del self._pools[state][key.machine_class]
            self._arrivals[state].trim(len(self._pools[state]))

    def _class(self, offer: Offer, labels: "_Labels") -> MachineClass:
        asked = tuple((key, labels.values[key]) for key in sorted(self._asked & labels.values.keys()))
        known = self._classes.get((offer, asked))
        if known is None:
            if len(self._classes) > 2 * len(self._rows) + 1000:
                self._forget_unused_classes()
            # Numbers are never used twice, so that what is cached for a class can never meet another one.
            self._class_numbers += 1
            known = self._classes[offer, asked] = MachineClass(self._class_numbers, offer, dict(asked))
        return known

    def _forget_unused_classes(self) -> None:
        used = {cell.machine_class.number for cell in self._cells.values()}
        self._classes = {key: c for key, c in self._classes.items() if c.number in used}


class Arrivals:
    """Pools in the order they came up, so that who keeps a list of them need only look at the new ones; by
    instance type, because that is what most Profiles ask for."""

    def __init__(self) -> None:
        self.by_type: dict[str, list[Pool]] = {}
        self.total = 0
        """How many have ever come up."""
        self.generation = 0
        """Changes when the lists are written anew without their dead pools."""
        self._listed = 0

    def add(self, pool: Pool) -> None:
        """A pool comes up."""
        self.by_type.setdefault(pool.machine_class.offer.instance_type, []).append(pool)
        self.total += 1
        self._listed += 1

    def trim(self, living: int) -> None:
        """Drop the dead once they are the greater part."""
        if self._listed > 2 * living + 1000:
            kept = {name: [pool for pool in pools if pool.cells] for name, pools in self.by_type.items()}
            self.by_type = {name: pools for name, pools in kept.items() if pools}
            self._listed = sum(map(len, self.by_type.values()))
            self.generation += 1


def _owner(key: CellKey) -> str:
    """The cluster whose Need a cell may be attributed to."""
    unbound = key.state in (MachineState.CREATING, MachineState.IDLE)
    return key.binding.target_cluster if unbound else key.binding.cluster


_Key = TypeVar("_Key", bound=Hashable)


def _discard(index: dict[_Key, dict[CellKey, Cell]], place: _Key, key: CellKey) -> None:
    """Take a cell out of an index, and its place with the last one."""
    del index[place][key]
    if not index[place]:
        del index[place]


def _remember(sidecar: Sidecar, memory: tuple[Memory, ...], before: Machine, now: int) -> Sidecar:
    """The sidecar after an edge with these effects."""
    for effect in memory:
        match effect:
            case Memory.STAMP_IDLE_SINCE:
                sidecar = replace(sidecar, idle_since=now)
            case Memory.CLEAR_IDLE_SINCE:
                sidecar = replace(sidecar, idle_since=None, last_reclamation_value=0.0)
            case Memory.CLEAR_DRAIN:
                sidecar = replace(sidecar, preempted_for=None, drain_deadline=None)
            case Memory.KEEP_RECLAMATION_VALUE:
                sidecar = replace(sidecar, last_reclamation_value=before.assigned_reclamation_penalty)
            case Memory.STAMP_SEEN_START | Memory.STAMP_DRAIN | Memory.MARK_NOT_DELETABLE:
                # What these need is not in the record; whoever writes says it.
                pass
    # Only a machine in creation or drain can have been started; the edge that starts it says so itself.
    return replace(sidecar, seen_start=False)


@dataclass(slots=True)
class _Row:
    id: str
    offer: Offer
    labels: "_Labels"
    binding: Binding
    host_provider: str
    host_ref: str
    last_error: str
    sidecar: Sidecar
    cell: Cell


class _Labels:
    """A label map that can be compared and shared."""

    __slots__ = ("_hash", "values")

    def __init__(self, values: Mapping[str, str]) -> None:
        self.values = values
        self._hash = hash(frozenset(values.items()))

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Labels) and self.values == other.values


_Value = TypeVar("_Value", bound=Hashable)


class _Interner(Generic[_Value]):
    """Equal values as one object, for as long as somebody holds it."""

    def __init__(self) -> None:
        self._values: dict[_Value, _Value] = {}
        self._holders: dict[_Value, int] = {}

    def take(self, value: _Value) -> _Value:
        value = self._values.setdefault(value, value)
        self._holders[value] = self._holders.get(value, 0) + 1
        return value

    def give_back(self, value: _Value) -> None:
        self._holders[value] -= 1
        if self._holders[value] == 0:
            del self._values[value], self._holders[value]
