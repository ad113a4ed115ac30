"""The frames of a session between operator and shard (wire.md §4)."""

from collections.abc import Generator
from dataclasses import dataclass
from typing import Final, TypeAlias, cast

from google.protobuf.message import DecodeError

from bigfleet_base.api.v1alpha1 import provider_pb2
from bigfleet_base.api.v1alpha1 import shard_pb2 as pb
from bigfleet_base.model import MachineState, ResourceVector
from bigfleet_base.model.frames import (
    AvailableCapacity,
    BootstrapRequest,
    Confidence,
    Frame,
    HelloAck,
    NodeState,
    ReclaimInstruction,
    Resync,
    RollupAck,
)
from bigfleet_base.wire.demand import decode_requirements, encode_requirements
from bigfleet_base.wire.fields import MalformedMessageError
from bigfleet_base.wire.quantities import decode_supply, encode_resources
from bigfleet_base.wire.rollups import RawRollup, find_rollup

MAX_ANSWER_BYTES: Final = 16 << 20
"""Of everything but roll-ups: no provider takes a blob that is larger, and it is decoded in one go."""
MAX_ID: Final = 1_024
"""Characters of an id or a node's name. They are recorded and kept, and no real one is half as long."""


@dataclass(frozen=True, slots=True)
class Hello:
    """The first frame of a session."""

    cluster: str
    protocol: str = ""


@dataclass(frozen=True, slots=True)
class BootstrapAnswer:
    """What joins a machine to the cluster, or why the cluster will not have one."""

    request_id: str
    blob: bytes = b""
    ttl_s: int = 0
    error: str = ""


@dataclass(frozen=True, slots=True)
class CordonAck:
    """The nodes of an instruction are cordoned; their drain has begun."""

    instruction_id: str
    nodes_started: int


@dataclass(frozen=True, slots=True)
class ReadinessReport:
    """What the operator sees of a machine's node."""

    machine_id: str
    node_name: str
    ready: bool
    observed_ns: int = 0


OperatorFrame: TypeAlias = Hello | RawRollup | BootstrapAnswer | CordonAck | ReadinessReport


@dataclass(frozen=True, slots=True)
class Stamp:
    """What every acknowledgement tells of the shard; operators may log it and act on nothing of it."""

    shard_epoch: int
    coordinator_term: int = 0


def decode_operator_message(message: bytes) -> Generator[bool, None, OperatorFrame | None]:
    """What an operator says; None for a payload that this version does not know.

    A roll-up stays bytes. Gives way as ``find_rollup`` does; MalformedMessageError when it is no message, or
    an id in it is none.
    """
    rollup = yield from find_rollup(message)
    if rollup is not None:
        return rollup
    if len(message) > MAX_ANSWER_BYTES:
        raise MalformedMessageError(f"{len(message)} bytes, at most {MAX_ANSWER_BYTES} are taken")
    try:
        parsed = pb.OperatorMessage.FromString(message)
    except DecodeError as error:
        raise MalformedMessageError(f"no OperatorMessage: {error}") from None
    match parsed.WhichOneof("payload"):
        case "hello":
            return Hello(parsed.hello.cluster_id, parsed.hello.protocol_version)
        case "bootstrap_response":
            answer = parsed.bootstrap_response
            request_id = _short("request_id", answer.request_id)
            return BootstrapAnswer(request_id, answer.user_data, answer.ttl_seconds, answer.error)
        case "reclaim_ack":
            ack = parsed.reclaim_ack
            return CordonAck(_short("instruction_id", ack.instruction_id), ack.nodes_started)
        case "node_readiness":
            report = parsed.node_readiness
            return ReadinessReport(
                _short("machine_id", report.machine_id),
                _short("node_name", report.node_name),
                report.ready,
                report.observed_unix_nanos,
            )
        case _:
            return None


def encode_operator_message(frame: Hello | BootstrapAnswer | CordonAck | ReadinessReport) -> bytes:
    """A message of an operator; roll-ups are made by ``encode_rollup_message``."""
    match frame:
        case Hello():
            message = pb.OperatorMessage(
                hello=pb.Hello(cluster_id=frame.cluster, protocol_version=frame.protocol)
            )
        case BootstrapAnswer():
            message = pb.OperatorMessage(
                bootstrap_response=pb.BootstrapBlobResponse(
                    request_id=frame.request_id,
                    user_data=frame.blob,
                    ttl_seconds=frame.ttl_s,
                    error=frame.error,
                )
            )
        case CordonAck():
            message = pb.OperatorMessage(
                reclaim_ack=pb.ReclaimAck(
                    instruction_id=frame.instruction_id, nodes_started=frame.nodes_started
                )
            )
        case ReadinessReport():
            message = pb.OperatorMessage(
                node_readiness=pb.NodeReadiness(
                    machine_id=frame.machine_id,
                    node_name=frame.node_name,
                    ready=frame.ready,
                    observed_unix_nanos=frame.observed_ns,
                )
            )
    return message.SerializeToString()


def encode_frame(frame: Frame, stamp: Stamp) -> bytes:
    """A frame as a serialised ShardMessage."""
    match frame:
        case HelloAck():
            message = pb.ShardMessage(ack=_ack("hello", stamp))
        case RollupAck():
            ack = _ack("rollup", stamp)
            ack.rollup_timestamp_unix_nanos = frame.timestamp_ns
            message = pb.ShardMessage(ack=ack)
        case Resync():
            message = pb.ShardMessage(ack=_ack("resync", stamp))
        case BootstrapRequest():
            message = pb.ShardMessage(
                bootstrap_request=pb.BootstrapRequest(
                    request_id=frame.request_id,
                    requirements=encode_requirements(frame.requirements),
                    cluster_id=frame.cluster,
                    machine_id=frame.machine_id,
                    labels=frame.labels,
                )
            )
        case ReclaimInstruction():
            message = pb.ShardMessage(
                reclaim_instruction=pb.ReclaimInstruction(
                    instruction_id=frame.instruction_id,
                    nodes=[frame.node],
                    grace_period_seconds=frame.grace_s,
                    preemptor_priority=frame.preemptor_priority,
                )
            )
        case NodeState():
            message = pb.ShardMessage(
                node_state_update=pb.NodeStateUpdate(
                    supersedes_key=f"{_NODE}{frame.machine_id}",
                    machine_id=frame.machine_id,
                    cluster_id=frame.cluster,
                    state=cast("provider_pb2.MachineState.ValueType", int(frame.state)),
                    node_name=frame.node_name,
                    provider_id=frame.provider_id,
                    last_error=frame.last_error,
                    labels=frame.labels,
                    resources=_resources(frame.resources),
                )
            )
        case AvailableCapacity():
            message = pb.ShardMessage(
                available_capacity=pb.AvailableCapacityUpdate(
                    supersedes_key=f"{_AVAILABLE}{frame.fingerprint}",
                    requirements=encode_requirements(frame.requirements),
                    resources=_resources(frame.resources),
                    available_count=frame.count,
                    confidence=_CONFIDENCE_NUMBER[frame.confidence],
                    cost_per_hour=frame.cost_per_hour,
                )
            )
    return message.SerializeToString()


def decode_frame(data: bytes) -> Frame | None:
    """What a shard says; None for something that this version does not know."""
    message = pb.ShardMessage.FromString(data)
    match message.WhichOneof("payload"):
        case "ack":
            return _decode_ack(message.ack)
        case "bootstrap_request":
            request = message.bootstrap_request
            return BootstrapRequest(
                request.request_id,
                request.cluster_id,
                decode_requirements(request.requirements),
                request.machine_id,
                dict(request.labels),
            )
        case "reclaim_instruction":
            reclaim = message.reclaim_instruction
            return ReclaimInstruction(
                reclaim.instruction_id,
                reclaim.nodes[0] if reclaim.nodes else "",
                reclaim.grace_period_seconds,
                reclaim.preemptor_priority,
            )
        case "node_state_update":
            update = message.node_state_update
            return NodeState(
                update.machine_id,
                update.cluster_id,
                MachineState(update.state),
                update.provider_id,
                update.last_error,
                dict(update.labels),
                decode_supply(update.resources.resources),
                update.node_name,
            )
        case "available_capacity":
            hint = message.available_capacity
            return AvailableCapacity(
                hint.supersedes_key.removeprefix(_AVAILABLE),
                decode_requirements(hint.requirements),
                decode_supply(hint.resources.resources),
                hint.available_count,
                _CONFIDENCES[hint.confidence],
                hint.cost_per_hour,
            )
        case _:
            return None


def _short(field: str, text: str) -> str:
    if len(text) > MAX_ID:
        raise MalformedMessageError(f"{field} has {len(text)} characters, at most {MAX_ID} are taken")
    return text


def _ack(echo: str, stamp: Stamp) -> pb.Acknowledgement:
    return pb.Acknowledgement(
        echo=echo, coordinator_term=stamp.coordinator_term, shard_epoch=stamp.shard_epoch
    )


def _decode_ack(ack: pb.Acknowledgement) -> HelloAck | RollupAck | Resync | None:
    match ack.echo:
        case "hello":
            return HelloAck()
        case "rollup":
            return RollupAck(ack.rollup_timestamp_unix_nanos)
        case "resync":
            return Resync()
        case _:
            return None


def _resources(vector: ResourceVector) -> provider_pb2.Resources:
    return provider_pb2.Resources(resources=encode_resources(vector))


_NODE: Final = "node:"
_AVAILABLE: Final = "available:"
_CONFIDENCE_NUMBER: Final = {
    Confidence.NONE: pb.AvailableCapacityUpdate.CONFIDENCE_NONE,
    Confidence.LOW: pb.AvailableCapacityUpdate.CONFIDENCE_LOW,
    Confidence.MEDIUM: pb.AvailableCapacityUpdate.CONFIDENCE_MEDIUM,
    Confidence.HIGH: pb.AvailableCapacityUpdate.CONFIDENCE_HIGH,
}
_CONFIDENCES: Final = {number: confidence for confidence, number in _CONFIDENCE_NUMBER.items()}
