"""Machines between provider and shard."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, cast

from bigfleet_base.api.v1alpha1 import provider_pb2 as pb
from bigfleet_base.model import CapacityType, Defect, HostRef, InvalidMachineError, Machine, MachineState
from bigfleet_base.model.lifecycle import check
from bigfleet_base.wire.metadata import Notes, decode_notes
from bigfleet_base.wire.quantities import decode_supply, encode_offer


@dataclass(frozen=True, slots=True)
class ObservedMachine:
    """A provider's record: the machine and, apart from it, the notes found in its metadata."""

    machine: Machine
    notes: Notes


def decode_machine(record: pb.Machine, notes: Notes | None = None) -> ObservedMachine:
    """Read one record, or raise InvalidMachineError with the reason it is counted under.

    A refusal concerns this record alone; its id still counts as seen, so that a bad record never reads as
    a removed machine (wire.md §9). ``notes`` are those of its metadata, from who has read them before.
    """
    if notes is None:
        notes = decode_notes(record.shard_metadata)
    state = _state(record)
    machine = Machine(
        id=record.id,
        state=state,
        host=HostRef(record.host.provider, record.host.ref),
        cluster=record.cluster,
        instance_type=record.instance_type,
        zone=record.zone,
        capacity_type=_capacity_type(record),
        resources=decode_supply(record.resources.resources),
        allocatable=decode_supply(record.allocatable.resources) if record.allocatable.resources else None,
        labels=dict(record.labels),
        price_per_hour=record.price_per_hour,
        interruption_probability=record.interruption_probability,
        last_error=record.last_error if state is MachineState.FAILED else "",
        **_assignment(state, notes),
    )
    check(machine)
    return ObservedMachine(machine, notes)


def encode_machine(machine: Machine, metadata: Mapping[str, str]) -> pb.Machine:
    """A record as a provider publishes it; the metadata map is echoed as it stands."""
    return pb.Machine(
        id=machine.id,
        state=cast("pb.MachineState.ValueType", int(machine.state)),
        host=pb.HostRef(provider=machine.host.provider, ref=machine.host.ref) if machine.host else None,
        instance_type=machine.instance_type,
        zone=machine.zone,
        capacity_type=cast("pb.CapacityType.ValueType", int(machine.capacity_type)),
        price_per_hour=machine.price_per_hour,
        interruption_probability=machine.interruption_probability,
        resources=pb.Resources(resources=encode_offer(machine.resources)),
        labels=machine.labels,
        last_error=machine.last_error,
        allocatable=(
            None if machine.allocatable is None else pb.Resources(resources=encode_offer(machine.allocatable))
        ),
        cluster=machine.cluster,
        shard_metadata=metadata,
    )


def _state(record: pb.Machine) -> MachineState:
    try:
        return MachineState(record.state)
    except ValueError:
        raise InvalidMachineError(
            Defect.STRUCTURAL, f"machine {record.id!r}: {record.state} is not a machine state"
        ) from None


def _capacity_type(record: pb.Machine) -> CapacityType:
    try:
        return CapacityType(record.capacity_type)
    except ValueError:
        raise InvalidMachineError(
            Defect.STRUCTURAL, f"machine {record.id!r}: {record.capacity_type} is not a capacity type"
        ) from None


def _assignment(state: MachineState, notes: Notes) -> dict[str, Any]:
    """The fields that the notes give a machine in this state; where nothing is assigned, old notes that a
    provider failed to clear must not come back to life."""
    return {
        name: value for name in _ASSIGNED_IN.get(state, ()) if (value := getattr(notes, name)) is not None
    }


_ATTRIBUTION: Final = ("assigned_need_fingerprint", "assigned_group")
_BINDING: Final = (
    "assigned_priority",
    "assigned_interruption_penalty",
    "assigned_reclamation_penalty",
    *_ATTRIBUTION,
)
_ASSIGNED_IN: Final = {
    MachineState.CREATING: (*_ATTRIBUTION, "target_cluster"),
    MachineState.CONFIGURING: _BINDING,
    MachineState.CONFIGURED: _BINDING,
    MachineState.DRAINING: _BINDING,
    MachineState.FAILED: _BINDING,
}
