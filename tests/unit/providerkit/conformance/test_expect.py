"""Failure texts: what was seen, what was expected, and nothing that is the shard's business."""

import pytest
from grpc import StatusCode as Code

from bigfleet_base.api.v1alpha1 import provider_pb2 as pb
from bigfleet_base.model import MachineState as S
from bigfleet_providerkit.conformance import expect
from bigfleet_providerkit.conformance.checks import CheckFailed, Trouble
from bigfleet_providerkit.conformance.client import Ack, Reply
from bigfleet_providerkit.conformance.evidence import Evidence
from bigfleet_providerkit.conformance.tokens import ZERO


def reply(code: Code, operation_id: str = "op-1") -> Ack:
    answer = pb.TransitionAck(operation_id=operation_id) if code is Code.OK else None
    return Reply("Create(m1)", code, "", answer, 0.0)


def test_a_rejection_is_neither_success_nor_the_fence() -> None:
    expect.rejected(reply(Code.ABORTED))
    for code in (Code.OK, Code.FAILED_PRECONDITION):
        with pytest.raises(CheckFailed, match=rf"Create\(m1\) answered {code.name}, expected"):
            expect.rejected(reply(code))


def test_a_provider_that_cannot_be_reached_is_no_finding() -> None:
    with pytest.raises(Trouble, match="nothing was learnt"):
        expect.ok(reply(Code.UNAVAILABLE))
    for code in (Code.UNAVAILABLE, Code.DEADLINE_EXCEEDED, Code.CANCELLED):
        with pytest.raises(Trouble, match="nothing was learnt"):
            expect.answered(reply(code))
    for code in (Code.OK, Code.ABORTED, Code.FAILED_PRECONDITION):
        expect.answered(reply(code))


def test_parallel_calls_are_one_operation() -> None:
    assert expect.one_operation([reply(Code.OK), reply(Code.OK), reply(Code.ABORTED)]) == "op-1"
    with pytest.raises(CheckFailed, match="2 operation ids"):
        expect.one_operation([reply(Code.OK), reply(Code.OK, "op-2")])
    with pytest.raises(CheckFailed, match="without an operation_id"):
        expect.one_operation([reply(Code.OK, "")])
    with pytest.raises(CheckFailed, match="none of 1"):
        expect.one_operation([reply(Code.ABORTED)])


@pytest.mark.parametrize(
    ("got", "said"),
    [
        ({"owner": "hidden-value"}, "1 of 2 metadata keys are missing, 'spot' first"),
        (
            {"owner": "hidden-value", "spot": "x", "more": "x"},
            "1 metadata keys were never sent, 'more' first",
        ),
        ({"owner": "hidden", "spot": "x"}, "the value of metadata key 'owner' changed: 12 characters"),
    ],
)
def test_metadata_that_changed_is_described_without_its_values(got: dict[str, str], said: str) -> None:
    sent = {"owner": "hidden-value", "spot": "x"}
    with pytest.raises(CheckFailed) as failure:
        expect.metadata(pb.Machine(id="m1", state=pb.MACHINE_STATE_CONFIGURED, shard_metadata=got), sent)
    assert said in str(failure.value) and "hidden" not in str(failure.value)


def test_a_state_that_does_not_exist_is_a_finding() -> None:
    machine = pb.Machine(id="m1", state=42)  # type: ignore[arg-type]  # what a wrong provider may send
    with pytest.raises(CheckFailed, match="state 42, which does not exist"):
        expect.in_state(machine, S.IDLE)


def test_evidence_has_codes_states_and_ids_and_counts_what_repeats() -> None:
    evidence = Evidence({})
    machine = pb.Machine(id="m1", state=pb.MACHINE_STATE_CREATING, shard_metadata={"owner": "hidden"})
    for _ in range(3):
        evidence.call("Get", "m1", ZERO, "OK", "", machine, 0.001)
    ack = pb.TransitionAck(operation_id="op-1", machine=machine)
    evidence.call("Create", "m1", ZERO, "OK", "", ack, 0.001)
    polled, created = evidence.entries()
    assert (polled["state"], polled["times"]) == ("CREATING", 3)
    assert (created["call"], created["operation"], created["machine"]) == ("Create", "op-1", "m1")
    assert "hidden" not in repr(evidence.entries())


def test_evidence_of_a_long_check_keeps_both_ends() -> None:
    evidence = Evidence({})
    for n in range(1_000):
        evidence.call("Create", f"m{n}", ZERO, "OK", "", None, 0.001)
    entries = evidence.entries()
    assert len(entries) == 401
    assert (entries[0]["machine"], entries[-1]["machine"]) == ("m0", "m999")
    assert entries[200]["left_out"] == 600
