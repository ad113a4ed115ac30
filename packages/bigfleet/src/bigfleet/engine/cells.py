"""Machine classes and cells: the units decisions are made in.

A **class** is what matching and cost see of a machine: its offer and the values of the labels that some
Need asks about. A **cell** is a class together with everything else a decision looks at (state, binding,
attribution, what is remembered of the machine), so that the machines of one cell differ in their ids alone.
Every rule that says "in order of …, then id" therefore takes a prefix of a cell, and taking *n* machines is
arithmetic. A fleet of half a million machines has some thousands of cells.
"""

import bisect
import math
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import IntFlag
from typing import Final, NamedTuple

from bigfleet_base.model import CapacityType, MachineState, Preemptor, ResourceVector
from bigfleet_base.model.requirement import lookup


@dataclass(frozen=True, slots=True)
class Offer:
    """What a provider says of a machine, labels apart."""

    instance_type: str
    zone: str
    capacity_type: CapacityType
    resources: ResourceVector
    allocatable: ResourceVector | None
    price_per_hour: float
    interruption_probability: float

    @property
    def alloc(self) -> ResourceVector:
        """What the machine counts for."""
        return self.resources if self.allocatable is None else self.allocatable


class Binding(NamedTuple):
    """Whom a machine serves, or was bought for, and with which protection."""

    cluster: str = ""
    priority: int = 0
    interruption_penalty: float = 0.0
    reclamation_penalty: float = 0.0
    fingerprint: str = ""
    group: str = ""
    target_cluster: str = ""

    @property
    def identity(self) -> tuple[str, str]:
        """The Need it is attributed to, within its cluster."""
        return (self.fingerprint, self.group)


class Call(IntFlag):
    """The calls that may be held off on a machine."""

    CREATE = 1
    CONFIGURE = 2
    DRAIN = 4
    DELETE = 8


NO_CALL: Final = Call(0)


class MachineClass:
    """Machines that no Need can tell apart by matching or by cost."""

    __slots__ = ("alloc", "asked", "kind", "nano_dollars", "number", "offer")

    def __init__(self, number: int, kind: int, offer: Offer, asked: Mapping[str, str]) -> None:
        self.number = number
        self.kind = kind
        """The same for classes of one size, instance type and zone, as requirements see them."""
        self.offer = offer
        self.asked = asked
        self.alloc = offer.alloc
        self.nano_dollars = _nano_dollars(offer.price_per_hour)
        """The price in whole numbers, so that a sum does not drift."""

    def lookup(self, key: str) -> str | None:
        """The value a requirement on ``key`` sees; only keys that were asked for are known."""
        return lookup(key, self.offer.instance_type, self.offer.zone, self.asked)


def _nano_dollars(price: float) -> int:
    nano_dollars = price * 1e9
    # Any price is a price, one that has no double a billion times as large included.
    return round(nano_dollars) if nano_dollars < math.inf else int(min(price, sys.float_info.max)) * 10**9


class Past(NamedTuple):
    """What a decision looks at of all that is remembered of a machine."""

    last_reclamation_value: float = 0.0
    preempted_for: Preemptor | None = None
    seen_start: bool = False
    not_deletable: bool = False
    held_off: Call = NO_CALL


NO_PAST: Final = Past()
"""What most machines have, as one object."""


class CellKey(NamedTuple):
    """All that a decision can see of a machine but its id and its clocks."""

    state: MachineState
    machine_class: int
    binding: Binding
    past: Past

    @property
    def last_reclamation_value(self) -> float:
        return self.past.last_reclamation_value

    @property
    def preempted_for(self) -> Preemptor | None:
        return self.past.preempted_for

    @property
    def seen_start(self) -> bool:
        return self.past.seen_start

    @property
    def not_deletable(self) -> bool:
        return self.past.not_deletable


class Labels:
    """One set of labels, for all machines that have it."""

    __slots__ = ("items", "products", "values")

    def __init__(self, values: Mapping[str, str]) -> None:
        self.values = values
        self.items = frozenset(values.items())
        """The same in the form they are found by."""
        self.products = 0
        """How many products have it."""


class Product:
    """What a provider offers and says of many machines alike, labels included; a class seen from closer."""

    __slots__ = ("host_provider", "labels", "machine_class", "machines", "not_deletable", "provider")

    def __init__(
        self,
        labels: Labels,
        host_provider: str,
        provider: str,
        machine_class: MachineClass,
        not_deletable: bool,
    ) -> None:
        self.labels = labels
        self.host_provider = host_provider
        self.provider = provider
        self.machine_class = machine_class
        self.not_deletable = not_deletable
        self.machines = 0
        """How many are of it."""


@dataclass(slots=True)
class Tally:
    """How many machines, and what they cost an hour together; whole numbers, so that nothing drifts."""

    machines: int = 0
    nano_dollars: int = 0


class Bound:
    """What one cluster has in one state."""

    __slots__ = ("classes", "machines")

    def __init__(self) -> None:
        self.machines = 0
        self.classes: dict[str, dict[MachineClass, Cells]] = {}
        """By instance type, because that is what most Profiles ask for."""


class Cell:
    """The machines with one key, by id.

    It also says what most of its machines are like in what no decision looks at; the inventory notes of a
    machine only what differs.
    """

    __slots__ = (
        "_late",
        "alloc",
        "binding",
        "bound",
        "idle_from",
        "ids",
        "key",
        "machine_class",
        "pool",
        "product",
        "since",
        "state",
        "tally",
    )
    ids: list[str]
    """In order. Not there while machines that came late wait to be put in order; reading it does that."""

    def __init__(
        self, key: CellKey, pool: "Pool", tally: Tally, bound: Bound, product: Product, since: int | None
    ) -> None:
        self.key = key
        self.state = key.state
        self.binding = key.binding
        self.pool = pool
        self.machine_class = pool.machine_class
        self.alloc = pool.machine_class.alloc
        self.tally = tally
        self.bound = bound
        self.product = product
        """What its machines are, unless noted otherwise."""
        self.since = since
        """Since when they are Idle, unless noted otherwise."""
        self.ids = []
        self.idle_from = NEVER
        """Of Idle machines: none has been so since before."""
        self._late: tuple[list[str], list[str]] | None = None

    def add(self, machine_id: str) -> None:
        """Put a machine in its place; in a large cell that waits until somebody looks, so that a fleet that
        comes in any order does not move all that is there for each machine."""
        if self._late is not None:
            self._late[1].append(machine_id)
            return
        ids = self.ids
        if not ids or ids[-1] < machine_id:
            if len(ids) < _SMALL:
                self.ids = [*ids, machine_id]
            else:
                ids.append(machine_id)
        elif len(ids) < LARGE:
            bisect.insort(ids, machine_id)
        else:
            self._late = (ids, [machine_id])
            del self.ids

    def discard(self, machine_id: str) -> None:
        """Take a machine out."""
        ids = self.ids
        del ids[bisect.bisect_left(ids, machine_id)]

    def is_held_off(self, call: Call) -> bool:
        """Whether this call may not be made on its machines now."""
        held_off = self.key.past.held_off
        return held_off != 0 and held_off & call != 0

    def values(self) -> "Iterable[Cell]":
        """Itself: a dict of one cell would be larger than the cell (``Cells``)."""
        return (self,)

    def __getattr__(self, name: str) -> list[str]:
        # Asked only when a slot is empty: reading ``ids`` costs nothing extra at other times.
        if name != "ids" or self._late is None:
            raise AttributeError(name)
        (ids, late), self._late = self._late, None
        if len(late) * _SORTING < len(ids):
            for machine_id in late:
                bisect.insort(ids, machine_id)
        else:
            ids += late
            ids.sort()
        self.ids = ids
        return ids


class Pool:
    """The cells of one state and class; empty ones are dropped, and a pool without cells is dead."""

    __slots__ = ("cells", "count", "machine_class")

    def __init__(self, machine_class: MachineClass) -> None:
        self.machine_class = machine_class
        self.cells: Cells = NO_CELLS
        self.count = 0
        """How many machines."""


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


class Few(list[Cell]):
    """More than one cell, and not many."""

    __slots__ = ()

    def values(self) -> "Few":
        return self


Cells = Cell | Few | dict[Cell, Cell]
"""Some cells, read like the values of a dict. Most places have one, which then stands for itself, or a few: a
dict is larger than the cells in it."""


def with_cell(cells: Cells | None, cell: Cell) -> Cells:
    """Those and one more."""
    if not cells:
        return cell
    if isinstance(cells, Cell):
        return Few((cells, cell))
    if isinstance(cells, dict):
        cells[cell] = cell
        return cells
    if len(cells) == _MANY:
        return {each: each for each in (*cells, cell)}
    cells.append(cell)
    return cells


def without_cell(cells: Cells, cell: Cell) -> Cells:
    """Those but one; nothing of them left is false."""
    if isinstance(cells, Cell):
        return NO_CELLS
    if isinstance(cells, dict):
        del cells[cell]
    else:
        cells.remove(cell)
    return cells


_MANY: Final = 32
"""Cells from which on looking for one of them takes too long."""
NO_CELLS: Final[Cells] = {}
LARGE: Final = 4096
"""Ids from which on a machine that comes out of order waits; below, moving the others costs a microsecond."""
_SMALL: Final = 16
"""Ids up to which a list is made anew: one that grows takes half as much again, and most cells are small."""
_SORTING: Final = 64
"""As long as one in so many is late, putting each in its place is cheaper than sorting."""
NEVER: Final = 1 << 63
"""A time that does not come."""
