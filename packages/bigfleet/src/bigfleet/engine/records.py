"""What is held of single machines: what this process remembers of them, and what they have of their own.

A cell says what its machines are like; here is what one of them has that the others do not, and how the two
make up its record.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields
from operator import attrgetter
from typing import Any, Final, TypeVar

from bigfleet.engine.cells import NO_CALL, Call, Cell, Product
from bigfleet_base.model import HostRef, Machine, Preemptor


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


Kept = tuple[int | None, float, Preemptor | None, int | None, bool, Call, str]
"""The fields of a Sidecar, in their order: on the way of every write, a tuple is made ten times as fast."""
kept_of: Final[Callable[[Sidecar], Kept]] = attrgetter(*(field.name for field in fields(Sidecar)))
NOTHING: Final = kept_of(Sidecar())


@dataclass(slots=True)
class Own:
    """What machines have of their own, by id: only those that are not as their cell says."""

    products: dict[str, Product]
    clocks: dict[str, int | None]
    """Since when a machine is Idle."""
    deadlines: dict[str, int | None]
    """By when it must have drained."""
    host_refs: dict[str, str]
    """Where it really is; usually the host has the name of the machine."""
    errors: dict[str, str]

    def columns(self) -> tuple[dict[str, Any], ...]:
        return (self.products, self.clocks, self.deadlines, self.host_refs, self.errors)

    def copy(self) -> "Own":
        return Own(*(column.copy() for column in self.columns()))

    def product(self, machine_id: str, cell: Cell) -> Product:
        return self.products.get(machine_id, cell.product)

    def kept(self, machine_id: str, cell: Cell) -> Kept:
        value, stamp, seen_start, _, held_off = cell.key.past
        since, deadline = self.clocks.get(machine_id, cell.since), self.deadlines.get(machine_id)
        return (since, value, stamp, deadline, seen_start, held_off, self.product(machine_id, cell).provider)

    def entry(self, machine_id: str, cell: Cell) -> Entry:
        """All of a machine, put together."""
        product, binding = self.product(machine_id, cell), cell.binding
        offer = product.machine_class.offer
        host = product.host_provider
        machine = Machine(
            id=machine_id,
            state=cell.state,
            host=HostRef(host, self.host_refs.get(machine_id, machine_id if host else "")),
            cluster=binding.cluster,
            instance_type=offer.instance_type,
            zone=offer.zone,
            capacity_type=offer.capacity_type,
            resources=offer.resources,
            allocatable=offer.allocatable,
            labels=product.labels.values,
            price_per_hour=offer.price_per_hour,
            interruption_probability=offer.interruption_probability,
            last_error=self.errors.get(machine_id, ""),
            assigned_priority=binding.priority,
            assigned_interruption_penalty=binding.interruption_penalty,
            assigned_reclamation_penalty=binding.reclamation_penalty,
            assigned_need_fingerprint=binding.fingerprint,
            assigned_group=binding.group,
            target_cluster=binding.target_cluster,
        )
        return Entry(machine, Sidecar(*self.kept(machine_id, cell)))


_Value = TypeVar("_Value")


def note(column: dict[str, _Value], machine_id: str, value: _Value, usual: object) -> None:
    """Keep what is not as usual."""
    if value != usual:
        column[machine_id] = value
    elif column:
        column.pop(machine_id, None)
