"""Provider records from bytes, each by itself and all of them fast (provider.md P-133).

A fleet has few kinds of machine and serves few Needs, so most of a record repeats. Its *shape* is what the
machine is; its *binding* is the state it is in, where, and for whom; only its id, its host and the text of
its failure are its own. Shapes and bindings are decoded and checked once for all records that have the same
bytes there, which also leaves one object where a hundred thousand equal ones would be.
"""

import math
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError

from bigfleet_base.api.v1alpha1 import provider_pb2 as pb
from bigfleet_base.model import CapacityType, Defect, HostRef, InvalidMachineError, Machine, MachineState
from bigfleet_base.model.resources import ResourceVector
from bigfleet_base.wire.machines import ObservedMachine, decode_machine
from bigfleet_base.wire.metadata import Notes

MAX_SHARED: Final = 16_384
"""Shapes, and bindings, that are remembered; with one more they are learnt anew."""

UNDECODABLE: Final = "undecodable"
STRUCTURAL: Final = Defect.STRUCTURAL.value


@dataclass(frozen=True, slots=True)
class Rejected:
    """A record that is no machine. The last good one stays, and the id counts as seen (shard.md Q3)."""

    machine_id: str
    """Empty when the record does not even tell its id."""
    reason: str
    """A value of the label of the rejection metric."""
    state: str
    message: str


class RecordDecoder:
    """Decodes the records of one provider."""

    def __init__(self) -> None:
        self._shapes: dict[bytes, _Shape] = {}
        self._bindings: dict[_BindingKey, _Binding] = {}

    def decode(self, raw: bytes) -> ObservedMachine | Rejected:
        """One record, or why it is none."""
        try:
            own = _OwnPart.FromString(raw)
        except DecodeError:
            return _undecodable(raw)
        machine_id, state, host, cluster = own.id, own.state, own.host, own.cluster
        provider, ref = host.provider, host.ref
        last_error = own.last_error if state == _FAILED else ""
        key = (state, provider, not ref, cluster, not last_error, *own.shard_metadata[:])
        own.ClearField("id")
        own.ClearField("state")
        own.ClearField("host")
        own.ClearField("cluster")
        own.ClearField("last_error")
        own.ClearField("shard_metadata")
        # All that is left of the record is what the view does not know: the shape.
        shape_key = own.SerializeToString()
        shape, binding = self._shapes.get(shape_key), self._bindings.get(key)
        if shape is None or binding is None or not machine_id:
            return self._decode_whole(raw, key, shape_key, binding.notes if binding else None)
        # A machine of this shape and one with this binding have passed every check, and none of them looks at
        # both together, or at more of a machine's own fields than the key tells.
        like_state, like_provider, like_cluster, assignment, notes = binding
        machine = Machine(
            machine_id, like_state, HostRef(like_provider, ref), like_cluster, *shape, last_error, *assignment
        )
        return ObservedMachine(machine, notes)

    def _decode_whole(
        self, raw: bytes, key: "_BindingKey", shape_key: bytes, notes: Notes | None
    ) -> ObservedMachine | Rejected:
        try:
            record = pb.Machine.FromString(raw)
        except DecodeError:
            return _undecodable(raw)
        try:
            seen = decode_machine(record, notes)
            _check_finite(seen.machine)
        except InvalidMachineError as error:
            return Rejected(record.id, error.defect.value, _state_name(record), str(error))
        if len(raw) <= _MAX_SHARED_BYTES:
            _keep(self._shapes, shape_key, _shape(seen.machine))
            _keep(self._bindings, key, _binding(seen))
        return seen


def peek_id(raw: bytes) -> str:
    """The id of a record, not decoding it when the id is at its head, where every writer puts it; empty when
    it has none or is no record."""
    if len(raw) < 2 or raw[0] != _ID_TAG or raw[1] > 0x7F:
        try:
            return str(_OwnPart.FromString(raw).id)
        except DecodeError:
            return ""
    end = 2 + raw[1]
    try:
        return raw[2:end].decode() if end <= len(raw) else ""
    except UnicodeDecodeError:
        return ""


def canonical_record(raw: bytes) -> bytes | None:
    """A record's content in one fixed order, whatever order its writer gave it; None if it is no record."""
    try:
        return pb.Machine.FromString(raw).SerializeToString(deterministic=True)
    except DecodeError:
        return None


class _Shape(NamedTuple):
    """What machines of one kind have in common; in the order in which Machine takes it."""

    instance_type: str
    zone: str
    capacity_type: CapacityType
    resources: ResourceVector
    allocatable: ResourceVector | None
    labels: Any
    price_per_hour: float
    interruption_probability: float


class _Binding(NamedTuple):
    """What machines that serve one Need in one state have in common."""

    state: MachineState
    provider: str
    cluster: str
    assignment: tuple[int, float, float, str, str, str]
    """In the order in which Machine takes it."""
    notes: Notes


_BindingKey: TypeAlias = tuple[int | str | bool | bytes, ...]
_Key = TypeVar("_Key")
_Value = TypeVar("_Value")


def _shape(machine: Machine) -> _Shape:
    return _Shape(
        machine.instance_type,
        machine.zone,
        machine.capacity_type,
        machine.resources,
        machine.allocatable,
        machine.labels,
        machine.price_per_hour,
        machine.interruption_probability,
    )


def _binding(seen: ObservedMachine) -> _Binding:
    machine = seen.machine
    assignment = (
        machine.assigned_priority,
        machine.assigned_interruption_penalty,
        machine.assigned_reclamation_penalty,
        machine.assigned_need_fingerprint,
        machine.assigned_group,
        machine.target_cluster,
    )
    return _Binding(machine.state, machine.host.provider, machine.cluster, assignment, seen.notes)


def _keep(table: dict[_Key, _Value], key: _Key, value: _Value) -> None:
    # All at once: a dict that loses its oldest entry again and again looks for the next one ever longer.
    if len(table) >= MAX_SHARED:
        table.clear()
    table[key] = value


def _check_finite(machine: Machine) -> None:
    if math.isinf(machine.price_per_hour):
        raise InvalidMachineError(
            Defect.PRICE, f"machine {machine.id!r}: price_per_hour is infinite, which no machine costs"
        )


def _undecodable(raw: bytes) -> Rejected:
    return Rejected(peek_id(raw), UNDECODABLE, "", "the record is no Machine message")


def _state_name(record: pb.Machine) -> str:
    try:
        return MachineState(record.state).title
    except ValueError:
        return str(record.state)


def _own_part() -> Any:
    """A view of Machine that knows the fields which are not its shape, and metadata entries as bytes.

    Protobuf carries fields that a message does not know along as they are: decoding through this view leaves
    the maps alone, which are nearly all the work, and gives the shape's bytes back for the asking.
    """
    machine = descriptor_pb2.DescriptorProto()
    pb.Machine.DESCRIPTOR.CopyToProto(machine)
    view = descriptor_pb2.DescriptorProto(name="OwnPart")
    for field in machine.field:
        if field.name == "shard_metadata":
            field.type = field.TYPE_BYTES
            field.ClearField("type_name")
        if field.name in _OWN_FIELDS:
            view.field.append(field)
    file = descriptor_pb2.FileDescriptorProto(
        name="bigfleet/wire/own_part.proto",
        package="bigfleet.wire",
        syntax="proto3",
        dependency=[pb.DESCRIPTOR.name],
        message_type=[view],
    )
    pool = descriptor_pool.Default()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("bigfleet.wire.OwnPart"))


_OWN_FIELDS: Final = ("id", "state", "host", "cluster", "last_error", "shard_metadata")
_OwnPart: Final = _own_part()
_FAILED: Final = int(MachineState.FAILED)
_ID_TAG: Final = pb.Machine.ID_FIELD_NUMBER << 3 | 2
# What repeats is small; a record with megabytes of foreign metadata must not be kept.
_MAX_SHARED_BYTES: Final = 8_192
