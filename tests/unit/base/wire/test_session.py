"""Frames of a session, both ways."""

import contextlib
import random
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bigfleet_base.api.v1alpha1 import provider_pb2
from bigfleet_base.api.v1alpha1 import shard_pb2 as pb
from bigfleet_base.model import MachineState, Operator, Requirement, ResourceVector
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
from bigfleet_base.wire.fields import MalformedMessageError
from bigfleet_base.wire.rollups import RawRollup, encode_rollup_message
from bigfleet_base.wire.session import (
    MAX_ANSWER_BYTES,
    MAX_ID,
    BootstrapAnswer,
    CordonAck,
    Hello,
    OperatorFrame,
    ReadinessReport,
    Stamp,
    decode_frame,
    decode_operator_message,
    encode_frame,
    encode_operator_message,
)
from tests.support.rules import rule
from tests.unit.base.wire.reading import at_once


def decode(message: bytes) -> OperatorFrame | None:
    return at_once(decode_operator_message(message))


STAMP = Stamp(shard_epoch=7, coordinator_term=3)
REQUIREMENTS = (Requirement("zone", Operator.IN, ("a", "b")), Requirement("gpu", Operator.EXISTS))
NODE = NodeState(
    "m-1",
    "c1",
    MachineState.CONFIGURED,
    "i-0abc",
    "",
    {"topology.kubernetes.io/zone": "a", "node.kubernetes.io/instance-type": "x"},
    ResourceVector(cpu=64_000, memory=2**38 * 1000),
    "node-1",
)
FRAMES: list[Frame] = [
    HelloAck(),
    RollupAck(0),
    RollupAck(-5),
    Resync(),
    BootstrapRequest("r-1", "c1", REQUIREMENTS, "m-1", {"rack": "r1"}),
    ReclaimInstruction("shard-0-7-1", "m-1", 600, 1_000_000),
    NODE,
    *(
        AvailableCapacity("f" * 64, REQUIREMENTS, ResourceVector(cpu=500), 2**31 - 1, level, 0.25)
        for level in Confidence
    ),
]
ANSWERS: list[Hello | BootstrapAnswer | CordonAck | ReadinessReport] = [
    Hello("c1", "v1"),
    BootstrapAnswer("r-1", b"\x00\xffblob", -1, ""),
    BootstrapAnswer("r-1", error="no template"),
    CordonAck("i-1", 0),
    ReadinessReport("m-1", "node-1", True, 5),
]


@pytest.mark.parametrize("frame", FRAMES, ids=repr)
def test_a_frame_survives_the_wire(frame: Frame) -> None:
    assert decode_frame(encode_frame(frame, STAMP)) == frame


@pytest.mark.parametrize("answer", ANSWERS, ids=repr)
def test_an_operators_message_survives_the_wire(
    answer: Hello | BootstrapAnswer | CordonAck | ReadinessReport,
) -> None:
    assert decode(encode_operator_message(answer)) == answer


@pytest.mark.parametrize("frame", [HelloAck(), RollupAck(9), Resync()])
def test_every_acknowledgement_carries_epoch_and_term(frame: Frame) -> None:
    ack = pb.ShardMessage.FromString(encode_frame(frame, STAMP)).ack
    assert (ack.shard_epoch, ack.coordinator_term) == (7, 3)


@rule("ruling.R10")
def test_the_marker_is_an_acknowledgement_that_older_peers_ignore() -> None:
    ack = pb.ShardMessage.FromString(encode_frame(Resync(), STAMP)).ack
    assert ack.echo == "resync" and not ack.HasField("rollup_timestamp_unix_nanos")


def test_a_roll_ups_acknowledgement_names_its_time_also_when_that_is_0() -> None:
    ack = pb.ShardMessage.FromString(encode_frame(RollupAck(0), STAMP)).ack
    assert ack.echo == "rollup" and ack.HasField("rollup_timestamp_unix_nanos")


def test_a_node_state_is_written_as_operators_of_the_base_contract_read_it() -> None:
    update = pb.ShardMessage.FromString(encode_frame(NODE, STAMP)).node_state_update
    assert update.supersedes_key == "node:m-1"
    assert update.cluster_id == "c1"
    assert update.state == provider_pb2.MACHINE_STATE_CONFIGURED
    assert dict(update.resources.resources) == {"cpu": "64", "memory": "256Gi"}
    assert dict(update.labels) == dict(NODE.labels)


def test_a_hint_supersedes_the_one_of_its_profile() -> None:
    hint = AvailableCapacity("ab" * 32, (), ResourceVector(), 0, Confidence.NONE, 0.0)
    update = pb.ShardMessage.FromString(encode_frame(hint, STAMP)).available_capacity
    assert update.supersedes_key == "available:" + "ab" * 32
    assert update.confidence == pb.AvailableCapacityUpdate.CONFIDENCE_NONE


def test_an_instruction_names_one_node() -> None:
    message = pb.ShardMessage.FromString(encode_frame(ReclaimInstruction("i", "n", 10, 0), STAMP))
    assert list(message.reclaim_instruction.nodes) == ["n"]


def test_a_roll_up_stays_bytes() -> None:
    assert isinstance(decode(encode_rollup_message("c1", [], 1)), RawRollup)


@pytest.mark.parametrize("data", [b"", b"\xf8\x3f\x01"])
def test_a_message_without_a_known_payload_says_nothing(data: bytes) -> None:
    assert decode(data) is None


@pytest.mark.parametrize("data", [b"\x0a\x05", b"\x0a\x02\x0a\x05", b"\x1a\x03\x0a\x01\xff", b"\xff"])
def test_bytes_that_are_no_message_are_refused(data: bytes) -> None:
    with pytest.raises(MalformedMessageError):
        decode(data)


def test_a_blob_that_no_provider_would_take_is_not_decoded() -> None:
    with pytest.raises(MalformedMessageError, match="bytes, at most"):
        decode(encode_operator_message(BootstrapAnswer("r", b"x" * MAX_ANSWER_BYTES)))


@rule("shard.R8", "shard.S10")
@pytest.mark.parametrize(
    ("field", "said"),
    [
        ("request_id", lambda text: BootstrapAnswer(text, b"blob")),
        ("instruction_id", lambda text: CordonAck(text, 1)),
        ("machine_id", lambda text: ReadinessReport(text, "node-1", True)),
        ("node_name", lambda text: ReadinessReport("m-1", text, True)),
    ],
)
def test_an_id_that_is_too_long_for_one_is_refused_with_its_field(
    field: str, said: Callable[[str], BootstrapAnswer | CordonAck | ReadinessReport]
) -> None:
    longest = said("\N{SNOWMAN}" * MAX_ID)
    assert decode(encode_operator_message(longest)) == longest
    with pytest.raises(MalformedMessageError, match=f"{field} has 1025 characters, at most 1024"):
        decode(encode_operator_message(said("x" * (MAX_ID + 1))))


def test_a_blob_and_an_error_are_no_ids() -> None:
    for answer in (BootstrapAnswer("r", b"x" * 5_000), BootstrapAnswer("r", error="x" * 5_000)):
        assert decode(encode_operator_message(answer)) == answer


@given(st.sampled_from(ANSWERS), st.randoms(use_true_random=False), st.integers(1, 6))
def test_mutated_bytes_are_read_or_refused(
    answer: Hello | BootstrapAnswer | CordonAck | ReadinessReport, rng: random.Random, flips: int
) -> None:
    data = bytearray(encode_operator_message(answer))
    for _ in range(flips):
        where = rng.randrange(len(data) + 1)
        data[where : where + rng.randrange(2)] = bytes([rng.randrange(256)])
    with contextlib.suppress(MalformedMessageError):
        decode(bytes(data))


@given(st.binary(max_size=40))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    with contextlib.suppress(MalformedMessageError):
        decode(data)
