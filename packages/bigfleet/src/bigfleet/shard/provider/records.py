"""Provider records from bytes, each by itself (P-133).

A fleet has few kinds of machine and few Needs, so most of a record repeats: what does not belong to the one
machine is decoded once for all records that have the same bytes there, which is three times as fast.
"""

import math
from dataclasses import dataclass
from typing import Final

from google.protobuf.message import DecodeError

from bigfleet_base.api.v1alpha1 import provider_pb2 as pb
from bigfleet_base.model import Defect, HostRef, InvalidMachineError, Machine, MachineState
from bigfleet_base.model.lifecycle import check
from bigfleet_base.wire import ObservedMachine, decode_machine

MAX_TEMPLATES: Final = 16_384

UNDECODABLE: Final = "undecodable"


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
        self._templates: dict[tuple[int, bytes], ObservedMachine] = {}

    def decode(self, raw: bytes) -> ObservedMachine | Rejected:
        """One record, or why it is none."""
        try:
            record = pb.Machine.FromString(raw)
        except DecodeError:
            return Rejected(peek_id(raw), UNDECODABLE, "", "the record is no Machine message")
        try:
            return self._decode(raw, record)
        except InvalidMachineError as error:
            # Decoding takes the record apart; what is wrong is told of the whole.
            record = pb.Machine.FromString(raw)
            return Rejected(record.id, error.defect.value, _state_name(record), str(error))

    def _decode(self, raw: bytes, record: pb.Machine) -> ObservedMachine:
        machine_id, state, host, cluster = record.id, record.state, record.host, record.cluster
        own = HostRef(host.provider, host.ref)
        last_error = record.last_error if state == int(MachineState.FAILED) else ""
        for name in _OWN_FIELDS:
            record.ClearField(name)
        key = (state, record.SerializeToString())
        template = self._templates.get(key)
        if template is None:
            seen = decode_machine(pb.Machine.FromString(raw))
            _check_finite(seen.machine)
            self._keep(key, seen)
            return seen
        like = template.machine
        machine = Machine(
            machine_id,
            like.state,
            own,
            cluster,
            like.instance_type,
            like.zone,
            like.capacity_type,
            like.resources,
            like.allocatable,
            like.labels,
            like.price_per_hour,
            like.interruption_probability,
            last_error,
            like.assigned_priority,
            like.assigned_interruption_penalty,
            like.assigned_reclamation_penalty,
            like.assigned_need_fingerprint,
            like.assigned_group,
            like.target_cluster,
        )
        check(machine)
        return ObservedMachine(machine, template.notes)

    def _keep(self, key: tuple[int, bytes], seen: ObservedMachine) -> None:
        if len(key[1]) > _MAX_TEMPLATE_BYTES:
            return
        if len(self._templates) >= MAX_TEMPLATES:
            del self._templates[next(iter(self._templates))]
        self._templates[key] = seen


def peek_id(raw: bytes) -> str:
    """The id at the head of a record, where every writer puts it; empty when it is not there."""
    if len(raw) < 2 or raw[0] != _ID_TAG or raw[1] > 0x7F:
        return ""
    try:
        return raw[2 : 2 + raw[1]].decode()
    except UnicodeDecodeError:
        return ""


def canonical(raw: bytes) -> bytes:
    """A record's content in one fixed order, whatever order its writer gave it."""
    return pb.Machine.FromString(raw).SerializeToString(deterministic=True)


def _check_finite(machine: Machine) -> None:
    if math.isinf(machine.price_per_hour):
        raise InvalidMachineError(
            Defect.PRICE, f"machine {machine.id!r}: price_per_hour is infinite, which no machine costs"
        )


def _state_name(record: pb.Machine) -> str:
    try:
        return MachineState(record.state).title
    except ValueError:
        return str(record.state)


# What differs between two machines of one kind that serve one Need.
_OWN_FIELDS: Final = ("id", "state", "host", "cluster", "last_error")
_ID_TAG: Final = pb.Machine.ID_FIELD_NUMBER << 3 | 2
# Repeated parts are small; a record with megabytes of foreign metadata must not be kept.
_MAX_TEMPLATE_BYTES: Final = 8_192
