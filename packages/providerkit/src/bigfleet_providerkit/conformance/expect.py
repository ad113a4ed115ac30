"""What an answer or a record has to be; CheckFailed says what it was instead."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

from grpc import StatusCode as Code

from bigfleet_base.api.v1alpha1 import provider_pb2 as pb
from bigfleet_base.model import MachineState
from bigfleet_providerkit.conformance.checks import CheckFailed, Trouble
from bigfleet_providerkit.conformance.client import Ack, Reply, state_of

T = TypeVar("T")

TRANSITIONAL = frozenset(
    (MachineState.CREATING, MachineState.CONFIGURING, MachineState.DRAINING, MachineState.DELETING)
)
_NO_ANSWER = (Code.UNAVAILABLE, Code.DEADLINE_EXCEEDED, Code.CANCELLED)


def that(holds: object, otherwise: str) -> None:
    """The check fails with this text unless the condition holds."""
    if not holds:
        raise CheckFailed(otherwise)


def ok(reply: Reply[T]) -> T:
    """The answer of a call that must succeed."""
    _require(reply, reply.code is Code.OK, "OK")
    assert reply.answer is not None
    return reply.answer


def operation(reply: Ack) -> str:
    """The operation id of a call that must succeed; it is never empty."""
    operation_id = ok(reply).operation_id
    that(operation_id, f"{reply.call} answered OK without an operation_id")
    return operation_id


def fenced(reply: Reply[Any]) -> None:
    """A stale token, and nothing else, is answered FAILED_PRECONDITION."""
    _require(reply, reply.code is Code.FAILED_PRECONDITION, "FAILED_PRECONDITION, because the token is stale")


def not_fenced(reply: Reply[Any]) -> None:
    """Whatever else is wrong, the token is not stale."""
    _require(
        reply,
        reply.code is not Code.FAILED_PRECONDITION,
        "another code: FAILED_PRECONDITION is for stale tokens",
    )


def rejected(reply: Reply[Any]) -> None:
    """Any code but OK, and FAILED_PRECONDITION is for stale tokens alone."""
    not_fenced(reply)
    _require(reply, reply.code is not Code.OK, "a rejection (any code but OK and FAILED_PRECONDITION)")


def answered(reply: Reply[Any]) -> None:
    """Whatever the answer is, it is the provider's own: what became of the call is known."""
    _require(reply, reply.code not in _NO_ANSWER, "an answer")


def code(reply: Reply[Any], *allowed: Code) -> None:
    """One of these codes."""
    _require(reply, reply.code in allowed, " or ".join(one.name for one in allowed))


def in_state(machine: pb.Machine, *states: MachineState) -> None:
    """The record is in one of these states."""
    wanted = " or ".join(state.name for state in states)
    error = f" (last_error {machine.last_error!r})" if machine.last_error else ""
    state = state_of(machine)
    that(state in states, f"machine {machine.id} is {state.name}{error}, expected {wanted}")


def unbound(machine: pb.Machine) -> None:
    """No cluster and no metadata."""
    that(not machine.cluster, f"{_named(machine)} still has cluster {machine.cluster!r}")
    that(
        not machine.shard_metadata, f"{_named(machine)} still has {len(machine.shard_metadata)} metadata keys"
    )


def bound(machine: pb.Machine, cluster: str) -> None:
    """Bound to this cluster."""
    that(
        machine.cluster == cluster, f"{_named(machine)} has cluster {machine.cluster!r}, expected {cluster!r}"
    )


def metadata(machine: pb.Machine, sent: Mapping[str, str]) -> None:
    """The map came back byte for byte. Values are not shown: they are the shard's business."""
    got = dict(machine.shard_metadata)
    if got == dict(sent):
        return
    where = _named(machine)
    if missing := sorted(sent.keys() - got.keys()):
        raise CheckFailed(
            f"{where}: {len(missing)} of {len(sent)} metadata keys are missing, {missing[0]!r} first"
        )
    if extra := sorted(got.keys() - sent.keys()):
        raise CheckFailed(f"{where}: {len(extra)} metadata keys were never sent, {extra[0]!r} first")
    key = next(key for key in sorted(sent) if sent[key] != got[key])
    raise CheckFailed(
        f"{where}: the value of metadata key {key!r} changed: {len(sent[key])} characters were sent and"
        f" {len(got[key])} came back"
    )


def one_operation(replies: Sequence[Ack]) -> str:
    """Parallel identical calls collapse: at least one succeeds, none is fenced, all have one id."""
    for reply in replies:
        not_fenced(reply)
    found = {operation(reply) for reply in replies if reply.code is Code.OK}
    that(found, f"none of {len(replies)} parallel calls succeeded; {next(iter(replies), 'all were fenced')}")
    that(
        len(found) == 1, f"{len(replies)} identical calls got {len(found)} operation ids: {sorted(found)[:4]}"
    )
    return found.pop()


def once(machines: Iterable[pb.Machine], machine_id: str) -> None:
    """A set has the machine once."""
    times = sum(machine.id == machine_id for machine in machines)
    that(times == 1, f"machine {machine_id} is {times} times in a List that it belongs to, expected once")


def _require(reply: Reply[Any], holds: bool, wanted: str) -> None:
    if holds:
        return
    if reply.code in _NO_ANSWER:
        raise Trouble(f"{reply}, so nothing was learnt; expected {wanted}")
    raise CheckFailed(f"{reply}, expected {wanted}")


def _named(machine: pb.Machine) -> str:
    return f"machine {machine.id} at {state_of(machine).name}"
