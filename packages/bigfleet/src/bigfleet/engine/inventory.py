"""The machines of a shard, held so that a cycle never walks them (engine.md §2.5, §4).

Per machine there is its id and the cell it is in. The cell says all that a decision looks at, and what its
machines are like besides; what a machine has of its own stands in columns that hold only those machines that
differ. Records are put together when they are read. What many machines share (labels, products, bindings) is
stored once and counted. Cells and indexes are kept up to date on every change: a cycle reads those.

While a cycle runs the inventory is not written: changes wait in an overlay that readers look into first and
that is merged when the cycle ends, so that a cycle cut into slices decides as if it had run in one piece.
"""

from collections import defaultdict
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from bigfleet.engine.cells import (
    NEVER,
    NO_PAST,
    Arrivals,
    Binding,
    Bound,
    Call,
    Cell,
    CellKey,
    Cells,
    Labels,
    MachineClass,
    Offer,
    Past,
    Pool,
    Product,
    Tally,
    with_cell,
    without_cell,
)
from bigfleet.engine.records import NOTHING, Entry, Kept, Own, Sidecar, kept_of, note
from bigfleet.engine.states import CONFIGURED, CREATING, DRAINING, IDLE
from bigfleet_base.model import CapacityType, Machine, MachineState, Preemptor, ResourceVector
from bigfleet_base.model.lifecycle import IllegalTransitionError, Memory, check, edge, has_edge
from bigfleet_base.model.requirement import INSTANCE_TYPE_KEY, ZONE_KEY, lookup


class UnknownMachineError(KeyError):
    """No machine with this id."""


class DuplicateMachineError(ValueError):
    """A machine with this id exists already."""


Identity = tuple[str, str]
"""A name under which machines are bought for a Need: (fingerprint, group)."""
Owned = Mapping[Identity, Cells]
"""Cells by the Need they are attributed to, within one cluster."""


@dataclass(slots=True)
class Changes:
    """What has happened to the cells since somebody last asked."""

    touched: dict[Cell, None]
    """Cells that got or lost machines, those included that are new or gone, in the order it happened."""
    everything: bool = False
    """Whether the cells were put together anew, so that none is what it was; then none is named."""


class Inventory:
    """Machines by id, by cell, and by the indexes a cycle needs."""

    def __init__(self) -> None:
        self._rows: dict[str, Cell] = {}
        self._own = Own({}, {}, {}, {}, {})
        self._labels: dict[frozenset[tuple[str, str]], Labels] = {}
        self._products: dict[tuple[object, ...], Product] = {}
        self._bindings = _Bindings()
        self._asked: frozenset[str] = frozenset()
        self._classes: dict[tuple[Offer, frozenset[tuple[str, str]]], MachineClass] = {}
        self._class_numbers = 0
        self._kinds: dict[tuple[str | None, str | None, ResourceVector], int] = {}
        self._cells: dict[tuple[object, ...], Cell] = {}
        self._bound: dict[tuple[str, MachineState], Bound] = {}
        self._by_owner: dict[tuple[str, MachineState], dict[Identity, Cells]] = {}
        self._by_stamp: dict[tuple[str, Identity], Cells] = {}
        self._pools: defaultdict[MachineState, dict[int, Pool]] = defaultdict(dict)
        self._arrivals: defaultdict[MachineState, Arrivals] = defaultdict(Arrivals)
        self._held_off: dict[Pool, Cells] = {}
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
        cell = self._rows.get(machine_id)
        return None if cell is None else self._own.entry(machine_id, cell)

    def cells(self, state: MachineState) -> Iterable[Cell]:
        """The cells of one state, in no particular order."""
        for pool in self._pools[state].values():
            yield from pool.cells.values()

    def cluster_cells(self, cluster: str, state: MachineState) -> Iterator[Cell]:
        """The cells of one state that are bound to one cluster."""
        for _, cells in self.cluster_classes(cluster, state):
            yield from cells.values()

    def cluster_classes(
        self, cluster: str, state: MachineState, types: Collection[str] = ()
    ) -> Iterator[tuple[MachineClass, Cells]]:
        """The same by class, of some instance types or, where none is named, of all."""
        bound = self._bound.get((cluster, state))
        if bound is not None:
            for name in types or bound.classes:
                yield from bound.classes.get(name, {}).items()

    def owned(self, cluster: str, state: MachineState) -> Owned:
        """The cells of one state by the Need of one cluster they are attributed to: of those it has, or,
        where they are bound to nobody yet, of those meant for it."""
        return self._by_owner.get((cluster, state), {})

    def stamped(self, cluster: str, identity: Identity) -> Iterable[Cell]:
        """The cells of machines that drain for a Need."""
        found = self._by_stamp.get((cluster, identity))
        return found.values() if found is not None else ()

    def all_cells(self) -> Collection[Cell]:
        """Every cell."""
        return self._cells.values()

    def cell_count(self) -> int:
        """How many cells there are."""
        return len(self._cells)

    def configured(self) -> dict[str, int]:
        """How many Configured machines each cluster has."""
        return {
            cluster: bound.machines for (cluster, state), bound in self._bound.items() if state is CONFIGURED
        }

    def pools(self, state: MachineState) -> Iterable[Pool]:
        """The cells of one state by class."""
        return self._pools[state].values()

    def held_off(self, pool: Pool) -> Iterable[Cell]:
        """The cells of a pool on which some call is not to be tried."""
        found = self._held_off.get(pool)
        return found.values() if found is not None else ()

    def arrivals(self, state: MachineState) -> Arrivals:
        """The pools of a state in the order they came up."""
        return self._arrivals[state]

    def count(self, state: MachineState, cluster: str | None = None) -> int:
        """How many machines are in a state, in the fleet or in one cluster."""
        if cluster is None:
            return sum(pool.count for pool in self._pools[state].values())
        bound = self._bound.get((cluster, state))
        return 0 if bound is None else bound.machines

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
        """Every machine as it is at this moment, read as the iterator is used. The columns are copied; what
        they point to is replaced, never changed, so that writes in between are not seen."""
        assert self._overlay is None, "between cycles only"
        rows, own = self._rows.copy(), self._own.copy()
        return map(own.entry, rows.keys(), rows.values())

    def tallies(self) -> Mapping[tuple[MachineState, CapacityType, float], Tally]:
        """Machines and their price by state, capacity type and interruption penalty, kept up to date."""
        return self._tallies

    def idle_times(self, cell: Cell) -> list[int]:
        """Since when each machine of a cell is Idle, as the running cycle sees it."""
        clocks, usual = self._own.clocks, cell.since
        times = [
            NEVER if (since := clocks.get(machine_id, usual)) is None else since for machine_id in cell.ids
        ]
        # The machine that was idle longest may have gone since anybody looked.
        cell.idle_from = min(times)
        return times

    def drain_deadline(self, machine_id: str) -> int | None:
        """By when a machine must have drained, as the running cycle sees it."""
        return self._own.deadlines.get(machine_id)

    def state(self, machine_id: str) -> MachineState | None:
        """The state of a machine as it is now; None for one that is not there."""
        if self._overlay is not None and machine_id in self._overlay:
            entry = self._overlay[machine_id]
            return None if entry is None else entry.machine.state
        cell = self._rows.get(machine_id)
        return None if cell is None else cell.state

    def is_not_deletable(self, machine_id: str) -> bool:
        """Whether its provider has no Delete for its capacity type."""
        return self._rows[machine_id].key.past.not_deletable

    def provider(self, machine_id: str) -> str:
        """Which of the shard's providers has it."""
        if self._overlay is not None and machine_id in self._overlay:
            return self.entry(machine_id).sidecar.provider
        cell = self._rows.get(machine_id)
        if cell is None:
            raise UnknownMachineError(machine_id)
        return self._own.product(machine_id, cell).provider

    # Writing

    def insert(self, machine: Machine, now: int, sidecar: Sidecar | None = None) -> None:
        """Add a machine; one that is Idle starts its clock now."""
        check(machine)
        if machine.id in self:
            raise DuplicateMachineError(machine.id)
        kept = NOTHING if sidecar is None else kept_of(sidecar)
        if machine.state is IDLE:
            kept = (now, *kept[1:])
        self._put(machine, kept)

    def apply(
        self,
        machine: Machine,
        now: int,
        *,
        started: bool = False,
        preempted_for: Preemptor | None = None,
        drain_deadline: int | None = None,
    ) -> None:
        """Write a new record of a known machine: a legal edge, or a merge of fields in the same state, which
        is no way to another cluster.

        ``started`` says that this process makes the transition; a drain also says for whom and until when.
        """
        check(machine)
        state, cluster, worth, kept = self._known(machine.id)
        if machine.state is state:
            if machine.cluster != cluster:
                raise IllegalTransitionError(f"machine {machine.id!r} changes clusters without being Idle")
        else:
            idle_since, value, stamp, deadline, _, held_off, provider = kept
            # Only a machine in creation or drain can have been started.
            seen_start = False
            for effect in edge(state, machine.state).memory:
                match effect:
                    case Memory.STAMP_IDLE_SINCE:
                        idle_since = now
                    case Memory.CLEAR_IDLE_SINCE:
                        idle_since, value = None, 0.0
                    case Memory.STAMP_SEEN_START:
                        seen_start = started
                    case Memory.STAMP_DRAIN:
                        stamp, deadline, seen_start = preempted_for, drain_deadline, started
                    case Memory.CLEAR_DRAIN:
                        stamp = deadline = None
                    case Memory.KEEP_RECLAMATION_VALUE:
                        value = worth
                    case Memory.MARK_NOT_DELETABLE:
                        # Of the provider, not of the machine: whoever hears of it says so.
                        pass
            kept = (idle_since, value, stamp, deadline, seen_start, held_off, provider)
        self._put(machine, kept)

    def adopt(self, machine: Machine, now: int, preempted_for: Preemptor | None = None) -> None:
        """Write what a provider shows, or take a call back: over an edge of the table with all it does, or
        over none, which leaves nothing of what was remembered of the state before."""
        known = self.state(machine.id)
        if known is not None and has_edge(known, machine.state):
            self.apply(machine, now, preempted_for=preempted_for)
            return
        check(machine)
        state, _, _, kept = self._known(machine.id)
        if machine.state is not state:
            since = now if machine.state is IDLE else None
            stamp = preempted_for if machine.state is DRAINING else None
            *_, held_off, provider = kept
            kept = (since, 0.0, stamp, None, False, held_off, provider)
        self._put(machine, kept)

    def remove(self, machine_id: str) -> None:
        """Forget a machine."""
        if machine_id not in self:
            raise UnknownMachineError(machine_id)
        if self._overlay is None:
            self._forget(machine_id)
        else:
            self._overlay[machine_id] = None

    def hold_off(self, machine_id: str, calls: Call) -> None:
        """Say which calls are not to be tried on a machine at present."""
        *_, kept = self._known(machine_id)
        kept = (*kept[:5], calls, kept[6])
        if self._overlay is not None:
            self._put(self.entry(machine_id).machine, kept)
        else:
            cell = self._rows[machine_id]
            self._place(machine_id, cell.state, cell.binding, self._own.product(machine_id, cell), kept)

    def mark_not_deletable(self, provider: str, capacity_type: CapacityType) -> None:
        """Say that a provider has no Delete for a capacity type; true for as long as this process lives."""
        if self._overlay is not None:
            self._refused_meanwhile.add((provider, capacity_type))
            return
        self._undeletable.add((provider, capacity_type))
        changed = {
            product
            for product in self._products.values()
            if product.provider == provider and product.machine_class.offer.capacity_type is capacity_type
        }
        for product in changed:
            product.not_deletable = True
        self._regroup(changed)

    def ask(self, keys: Iterable[str]) -> None:
        """Make label keys visible to matching. A key asked for the first time splits the classes of machines
        that have it."""
        assert self._overlay is None, "classes must not change under a running cycle"
        new = frozenset(keys) - self._asked
        if not new:
            return
        self._asked |= new
        changed = {p for p in self._products.values() if not new.isdisjoint(p.labels.values)}
        for product in changed:
            product.machine_class = self._class(product.machine_class.offer, product.labels)
        self._regroup(changed)
        self._changes = Changes({}, everything=True)

    def freeze(self) -> None:
        """Start of a cycle: from here on changes wait."""
        assert self._overlay is None, "a cycle is running"
        self._overlay = {}

    def thaw(self) -> None:
        """End of a cycle: what waited is written, in the order it came."""
        waiting, self._overlay = self._overlay or {}, None
        for machine_id, entry in waiting.items():
            if entry is not None:
                self._put(entry.machine, kept_of(entry.sidecar))
            elif machine_id in self._rows:
                self._forget(machine_id)
        for provider, capacity_type in self._refused_meanwhile:
            self.mark_not_deletable(provider, capacity_type)
        self._refused_meanwhile.clear()

    def _known(self, machine_id: str) -> tuple[MachineState, str, float, Kept]:
        """Of a machine as it is now: its state, its cluster, what it is worth to its tenant, and what is
        remembered."""
        if self._overlay is not None and machine_id in self._overlay:
            entry = self.entry(machine_id)
            machine = entry.machine
            worth = machine.assigned_reclamation_penalty
            return machine.state, machine.cluster, worth, kept_of(entry.sidecar)
        cell = self._rows.get(machine_id)
        if cell is None:
            raise UnknownMachineError(machine_id)
        binding = cell.binding
        return cell.state, binding.cluster, binding.reclamation_penalty, self._own.kept(machine_id, cell)

    def _put(self, machine: Machine, kept: Kept) -> None:
        """Write all of a machine."""
        machine_id, host = machine.id, machine.host
        if self._overlay is not None:
            self._overlay[machine_id] = Entry(machine, Sidecar(*kept))
            return
        _, _, _, deadline, _, _, provider = kept
        binding = (
            machine.cluster,
            machine.assigned_priority,
            machine.assigned_interruption_penalty,
            machine.assigned_reclamation_penalty,
            machine.assigned_need_fingerprint,
            machine.assigned_group,
            machine.target_cluster,
        )
        self._place(machine_id, machine.state, binding, self._product(machine, provider), kept)
        own = self._own
        note(own.deadlines, machine_id, deadline, None)
        note(own.host_refs, machine_id, host.ref, machine_id if host.provider else "")
        note(own.errors, machine_id, machine.last_error, "")

    def _place(
        self, machine_id: str, state: MachineState, binding: tuple[Any, ...], product: Product, kept: Kept
    ) -> None:
        """Bring a machine, known or new, into the cell that is right for it."""
        since, value, stamp, _, seen_start, held_off, _ = kept
        # Found as a plain tuple: equal to a CellKey, and made in a fraction of the time.
        key: tuple[Any, ...] = (
            state,
            product.machine_class.number,
            binding,
            (value, stamp, seen_start, product.not_deletable, held_off),
        )
        cell = self._cells.get(key)
        if cell is None:
            cell = self._new_cell(key, product, since)
        if since is not None and since < cell.idle_from:
            cell.idle_from = since
        own = self._own
        before = self._rows.get(machine_id)
        product.machines += 1
        if before is not None:
            self._give_back(own.product(machine_id, before))
        if cell is not before:
            # The new cell comes first: what the two share must not vanish in between.
            self._rows[machine_id] = cell
            cell.add(machine_id)
            self._count(cell, 1)
            if before is not None:
                self._leave(machine_id, before)
        elif not self._changes.everything:
            self._changes.touched[cell] = None
        note(own.products, machine_id, product, cell.product)
        note(own.clocks, machine_id, since, cell.since)

    def _forget(self, machine_id: str) -> None:
        cell = self._rows.pop(machine_id)
        self._give_back(self._own.product(machine_id, cell))
        self._leave(machine_id, cell)
        for column in self._own.columns():
            column.pop(machine_id, None)

    def _leave(self, machine_id: str, cell: Cell) -> None:
        cell.discard(machine_id)
        self._count(cell, -1)
        if not cell.ids:
            self._drop(cell)

    def _count(self, cell: Cell, by: int) -> None:
        if not self._changes.everything:
            self._changes.touched[cell] = None
        cell.pool.count += by
        cell.bound.machines += by
        cell.tally.machines += by
        cell.tally.nano_dollars += by * cell.machine_class.nano_dollars

    def _regroup(self, changed: set[Product]) -> None:
        """Bring the machines of these products into the cells that are right for them by now, whole cells at
        a time where all their machines are of one product."""
        mixed: set[Cell] = set()
        concerned = {cell: None for cell in self._cells.values() if cell.product in changed}
        for machine_id, product in self._own.products.items():
            mixed.add(cell := self._rows[machine_id])
            if product in changed:
                concerned[cell] = None
        for cell in concerned:
            parts = {cell.product: cell.ids}
            if cell in mixed:
                parts = {}
                for machine_id in cell.ids:
                    parts.setdefault(self._own.product(machine_id, cell), []).append(machine_id)
            staying: list[str] = []
            for product, ids in parts.items():
                past = cell.key.past._replace(not_deletable=product.not_deletable)
                key = CellKey(cell.state, product.machine_class.number, cell.binding, past)
                target = self._cells.get(key)
                if target is cell:
                    staying += ids
                else:
                    self._move(ids, product, cell, target or self._new_cell(key, product, cell.since))
            cell.ids = sorted(staying)
            if not staying:
                self._drop(cell)

    def _move(self, ids: list[str], product: Product, cell: Cell, target: Cell) -> None:
        """Take machines of one product from one cell to another; the ids of the first are the caller's."""
        self._rows.update(dict.fromkeys(ids, target))
        target.ids = sorted(target.ids + ids) if target.ids else ids
        target.idle_from = min(target.idle_from, cell.idle_from)
        self._count(target, len(ids))
        self._count(cell, -len(ids))
        own = self._own
        if product is not target.product or own.products:
            for machine_id in ids:
                note(own.products, machine_id, product, target.product)
        if cell.since != target.since:
            for machine_id in ids:
                note(own.clocks, machine_id, own.clocks.get(machine_id, cell.since), target.since)

    def _new_cell(self, like: tuple[Any, ...], product: Product, since: int | None) -> Cell:
        """The first machine of a cell has come; it says what is usual there."""
        state, number, binding, past = like
        binding = self._bindings.take(Binding(*binding))
        key = CellKey(state, number, binding, NO_PAST if past == NO_PAST else Past(*past))
        stamp, machine_class = key.past.preempted_for, product.machine_class
        pool = self._pools[state].get(machine_class.number)
        if pool is None:
            pool = self._pools[state][machine_class.number] = Pool(machine_class)
            self._arrivals[state].add(pool)
        bound = self._bound.setdefault((binding.cluster, state), Bound())
        tally = self._tallies.setdefault(_tally_key(key, machine_class), Tally())
        cell = self._cells[key] = Cell(key, pool, tally, bound, product, since)
        pool.cells = with_cell(pool.cells, cell)
        if binding.cluster:
            _enter(bound.classes.setdefault(machine_class.offer.instance_type, {}), machine_class, cell)
        if owner := _owner(key):
            _enter(self._by_owner.setdefault((owner, state), {}), binding.identity, cell)
        if stamp is not None:
            _enter(self._by_stamp, _stamp_key(stamp), cell)
        if key.past.held_off:
            _enter(self._held_off, pool, cell)
        return cell

    def _drop(self, cell: Cell) -> None:
        """An empty cell goes, and what was there for it alone."""
        key, state, binding, pool, bound = cell.key, cell.state, cell.binding, cell.pool, cell.bound
        del self._cells[key]
        self._bindings.give_back(binding)
        if binding.cluster:
            name = cell.machine_class.offer.instance_type
            _exit(bound.classes[name], cell.machine_class, cell)
            if not bound.classes[name]:
                del bound.classes[name]
        if not bound.machines:
            del self._bound[binding.cluster, state]
        if not cell.tally.machines:
            del self._tallies[_tally_key(key, cell.machine_class)]
        if owner := _owner(key):
            _exit(self._by_owner[owner, state], binding.identity, cell)
            if not self._by_owner[owner, state]:
                del self._by_owner[owner, state]
        if key.past.preempted_for is not None:
            _exit(self._by_stamp, _stamp_key(key.past.preempted_for), cell)
        if key.past.held_off:
            _exit(self._held_off, pool, cell)
        pool.cells = without_cell(pool.cells, cell)
        if not pool.cells:
            del self._pools[state][key.machine_class]
            self._arrivals[state].trim(len(self._pools[state]))

    def _product(self, machine: Machine, provider: str) -> Product:
        """What a machine is, as one object for all that are alike."""
        host = machine.host
        labels = self._labels.get(frozenset(machine.labels.items()))
        key = (
            labels,
            machine.instance_type,
            machine.zone,
            machine.capacity_type,
            machine.resources,
            machine.allocatable,
            machine.price_per_hour,
            machine.interruption_probability,
            host.provider,
            provider,
        )
        product = self._products.get(key)
        return self._new_product(machine, labels, provider) if product is None else product

    def _new_product(self, machine: Machine, labels: Labels | None, provider: str) -> Product:
        if labels is None:
            labels = Labels(machine.labels)
        offer = Offer(
            machine.instance_type,
            machine.zone,
            machine.capacity_type,
            machine.resources,
            machine.allocatable,
            # One of equal offers stands for all, so that 1 and 1.0 must not differ in print.
            float(machine.price_per_hour),
            float(machine.interruption_probability),
        )
        machine_class = self._class(offer, labels)
        not_deletable = (provider, offer.capacity_type) in self._undeletable
        product = Product(labels, machine.host.provider, provider, machine_class, not_deletable)
        labels.products += 1
        self._labels[labels.items] = labels
        self._products[_product_key(product)] = product
        return product

    def _give_back(self, product: Product) -> None:
        """One machine fewer is of a product."""
        product.machines -= 1
        if not product.machines:
            del self._products[_product_key(product)]
            product.labels.products -= 1
            if not product.labels.products:
                del self._labels[product.labels.items]

    def _class(self, offer: Offer, labels: Labels) -> MachineClass:
        all_asked = self._asked >= labels.values.keys()
        asked = labels.items if all_asked else frozenset(i for i in labels.items if i[0] in self._asked)
        known = self._classes.get((offer, asked))
        if known is None:
            if len(self._classes) > 2 * len(self._rows) + 1000:
                self._forget_unused_classes()
            # Numbers are never used twice, so that what is cached for a class can never meet another one.
            self._class_numbers += 1
            values = labels.values if all_asked else dict(asked)
            kind = self._kind(offer, values)
            known = self._classes[offer, asked] = MachineClass(self._class_numbers, kind, offer, values)
        return known

    def _kind(self, offer: Offer, asked: Mapping[str, str]) -> int:
        name, zone = (
            lookup(key, offer.instance_type, offer.zone, asked) for key in (INSTANCE_TYPE_KEY, ZONE_KEY)
        )
        # Named after the first class of it, so that no number is used twice here either.
        return self._kinds.setdefault((name, zone, offer.alloc), self._class_numbers)

    def _forget_unused_classes(self) -> None:
        used = {product.machine_class for product in self._products.values()}
        self._classes = {key: c for key, c in self._classes.items() if c in used}
        kinds = {machine_class.kind for machine_class in used}
        self._kinds = {key: kind for key, kind in self._kinds.items() if kind in kinds}


def _owner(key: CellKey) -> str:
    """The cluster whose Need a cell may be attributed to; empty for none."""
    unbound = key.state in (CREATING, IDLE)
    return key.binding.target_cluster if unbound else key.binding.cluster


def _product_key(product: Product) -> tuple[object, ...]:
    """What a product is found by, as ``Inventory._product`` makes it of a machine."""
    offer = product.machine_class.offer
    return (
        product.labels,
        offer.instance_type,
        offer.zone,
        offer.capacity_type,
        offer.resources,
        offer.allocatable,
        offer.price_per_hour,
        offer.interruption_probability,
        product.host_provider,
        product.provider,
    )


def _stamp_key(stamp: Preemptor) -> tuple[str, Identity]:
    return (stamp.cluster, (stamp.need_fingerprint, stamp.group))


def _tally_key(key: CellKey, machine_class: MachineClass) -> tuple[MachineState, CapacityType, float]:
    return (key.state, machine_class.offer.capacity_type, key.binding.interruption_penalty)


_Key = TypeVar("_Key", bound=Hashable)


def _enter(index: dict[_Key, Cells], place: _Key, cell: Cell) -> None:
    """Put a cell into an index."""
    index[place] = with_cell(index.get(place), cell)


def _exit(index: dict[_Key, Cells], place: _Key, cell: Cell) -> None:
    """Take a cell out of an index, and its place with the last one."""
    left = without_cell(index[place], cell)
    if left:
        index[place] = left
    else:
        del index[place]


class _Bindings:
    """Equal bindings as one object, for as long as a cell has it."""

    def __init__(self) -> None:
        self._values: dict[Binding, Binding] = {}
        self._holders: dict[Binding, int] = {}

    def take(self, value: Binding) -> Binding:
        value = self._values.setdefault(value, value)
        self._holders[value] = self._holders.get(value, 0) + 1
        return value

    def give_back(self, value: Binding) -> None:
        self._holders[value] -= 1
        if self._holders[value] == 0:
            del self._values[value], self._holders[value]
