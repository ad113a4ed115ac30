"""Machine classes and cells: the units decisions are made in.

A **class** is what matching and cost see of a machine: its offer and the values of the labels that some
Need asks about. A **cell** is a class together with everything else a decision looks at (state, binding,
attribution, what is remembered of the machine), so that the machines of one cell differ in their ids alone.
Every rule that says "in order of …, then id" therefore takes a prefix of a cell, and taking *n* machines is
arithmetic. A fleet of half a million machines has some thousands of cells.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntFlag
from typing import Final

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


@dataclass(frozen=True, slots=True)
class Binding:
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

    __slots__ = ("alloc", "asked", "number", "offer")

    def __init__(self, number: int, offer: Offer, asked: Mapping[str, str]) -> None:
        self.number = number
        self.offer = offer
        self.asked = asked
        self.alloc = offer.alloc

    def lookup(self, key: str) -> str | None:
        """The value a requirement on ``key`` sees; only keys that were asked for are known."""
        return lookup(key, self.offer.instance_type, self.offer.zone, self.asked)


@dataclass(frozen=True, slots=True)
class CellKey:
    """All that a decision can see of a machine but its id and its clocks."""

    state: MachineState
    machine_class: int
    binding: Binding
    last_reclamation_value: float
    preempted_for: Preemptor | None
    seen_start: bool
    not_deletable: bool
    held_off: Call


class Cell:
    """The machines with one key, by id."""

    __slots__ = ("alloc", "binding", "held_off", "idle_from", "ids", "key", "machine_class", "pool", "state")

    def __init__(self, key: CellKey, pool: "Pool") -> None:
        self.key = key
        self.state = key.state
        self.binding = key.binding
        self.held_off = int(key.held_off)
        self.pool = pool
        self.machine_class = pool.machine_class
        self.alloc = pool.machine_class.alloc
        self.ids: list[str] = []
        self.idle_from = 1 << 63
        """Of Idle machines: none has been so since before."""


class Pool:
    """The cells of one state and class; empty ones are dropped, and a pool without cells is dead."""

    __slots__ = ("cells", "count", "machine_class")

    def __init__(self, machine_class: MachineClass) -> None:
        self.machine_class = machine_class
        self.cells: dict[CellKey, Cell] = {}
        self.count = 0
        """How many machines."""
