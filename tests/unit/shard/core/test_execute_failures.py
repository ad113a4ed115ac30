"""What follows from a provider call without a good answer (the table of shard.md X4)."""

from dataclasses import replace

import pytest

from bigfleet.engine.cells import NO_CALL, Call
from bigfleet.engine.options import SECOND
from bigfleet.shard.core.effects import (
    Assignment,
    DropBlob,
    GetMachine,
    LogLevel,
)
from bigfleet.shard.core.events import BreakerChanged, BreakerState, CallEnded, Observed
from bigfleet.shard.provider import FailureKind
from bigfleet_base.model import Machine
from bigfleet_base.model.lifecycle import (
    CONFIGURED,
    CONFIGURING,
    CREATING,
    DELETING,
    DRAINING,
    FAILED,
    IDLE,
    SPECULATIVE,
)
from bigfleet_base.telemetry.catalogue import shard as series
from tests.support.rules import rule
from tests.unit.shard.core.execute_world import (
    PROFILE,
    SOURCES,
    World,
    bootstrap,
    provision,
    reclaim,
    record,
)

ASSIGNMENT = Assignment(1000, 4.0, 0.5, PROFILE.fingerprint, "g1")


CONSEQUENCES = [
    (FailureKind.TRANSIENT, "provider_transient", False),
    (FailureKind.FAILED, "provider_error", True),
    (FailureKind.REFUSED, "provider_error", True),
    (FailureKind.NOT_SUPPORTED, "provider_error", True),
    (FailureKind.NOT_FOUND, "inventory_miss", False),
    (FailureKind.BAD_ANSWER, "transition_error", True),
    (FailureKind.FENCED, "fenced", False),
]
KINDS = ["Provision", "Bootstrap", "Reclaim", "Delete"]
BETWEEN = {"Provision": CREATING, "Bootstrap": CONFIGURING, "Reclaim": DRAINING, "Delete": DELETING}
PREFIXES = {"Provision": "create: ", "Bootstrap": "configure: ", "Reclaim": "drain: ", "Delete": "delete: "}
FLAGS = {
    "Provision": Call.CREATE,
    "Bootstrap": Call.CONFIGURE | Call.CREATE,  # and nobody buys what may not be configured
    "Reclaim": Call.DRAIN,
    "Delete": Call.DELETE,
}


VERIFIED = [
    (kind, *row)
    for kind in KINDS
    for row in CONSEQUENCES
    # Taken at its word, and tested by itself.
    if (kind, row[0]) != ("Delete", FailureKind.NOT_SUPPORTED)
]


def source_record(kind: str) -> Machine:
    """What the provider shows when the call had no effect."""
    return record("m1", SOURCES[kind], "c1" if kind == "Reclaim" else "")


@rule("shard.X4", "shard.X7")
@pytest.mark.parametrize(("kind", "failure", "outcome", "held_off"), VERIFIED)
def test_after_an_error_one_get_tells_that_the_call_had_no_effect(
    kind: str, failure: FailureKind, outcome: str, held_off: bool
) -> None:
    world = World()
    call = world.in_call(kind)
    before = world.machine("m1")

    effects = world.fail(call, failure, "CODE")

    assert world.seen(GetMachine, effects) == [GetMachine("default", "m1")]
    assert world.machine("m1") == before, "nothing is known yet"
    assert world.executor.is_busy("m1")
    assert world.executor.in_flight() == 0, "a verification takes no slot"
    assert world.got("m1", source_record(kind))

    assert world.state("m1") is SOURCES[kind]
    assert world.outcomes() == [(kind, outcome)]
    assert world.fleet.sidecar("m1").held_off == (FLAGS[kind] if held_off else NO_CALL)
    assert world.instructions() == [], "an instruction whose drain did not happen is withdrawn"
    [line] = world.logs("action failed")
    assert (line["err"], line["attempt"]) == (f"{PREFIXES[kind]}CODE: why", 1)
    assert line["level"] is (LogLevel.ERROR if failure is FailureKind.REFUSED else LogLevel.WARN)
    assert world.audit("action.result")[0]["err"] == line["err"]
    assert world.released == ["m1"]
    assert world.verified == []
    is_blocked = kind == "Bootstrap" and failure is FailureKind.REFUSED
    assert world.executor.before_cycle() == ({("c1", PROFILE.fingerprint)} if is_blocked else frozenset())


@rule("shard.X4", "shard.Q4")
@pytest.mark.parametrize("kind", KINDS)
def test_after_an_error_the_record_that_get_finds_is_adopted_at_once(kind: str) -> None:
    world = World()
    call = world.in_call(kind)
    before = world.machine("m1")
    world.fail(call, FailureKind.TRANSIENT)
    world.got("m1", record("m1", BETWEEN[kind], before.cluster))
    assert replace(world.machine("m1"), host=before.host) == before, "with all that was sent still on it"
    assert world.outcomes() == [(kind, "provider_transient")]
    assert len(world.instructions()) == (kind == "Reclaim")


@rule("shard.X4", "shard.Q4")
def test_a_configure_whose_answer_was_lost_keeps_what_was_sent() -> None:
    world = World()
    call = world.in_call("Bootstrap")
    world.fail(call, FailureKind.TRANSIENT)
    world.got("m1", record("m1", CONFIGURED, "c1"))
    machine = world.machine("m1")
    assert machine.state is CONFIGURED
    assert (machine.assigned_priority, machine.assigned_interruption_penalty) == (1000, 4.0)
    assert (machine.assigned_need_fingerprint, machine.assigned_group) == (PROFILE.fingerprint, "g1")


@rule("shard.X4")
def test_a_create_whose_answer_was_lost_keeps_its_purchase() -> None:
    world = World()
    call = world.in_call("Provision")
    world.fail(call, FailureKind.TRANSIENT)
    world.got("m1", record("m1", IDLE))
    assert world.state("m1") is IDLE
    assert world.machine("m1").target_cluster == "c1"
    assert not world.executor.is_busy("m1")


@rule("shard.X4", "shard.Q2")
def test_a_machine_that_is_found_in_another_cluster_is_there() -> None:
    world = World()
    call = world.in_call("Reclaim")
    world.fail(call, FailureKind.TRANSIENT)
    world.got("m1", record("m1", DRAINING, "c2"))
    assert (world.state("m1"), world.machine("m1").cluster) == (DRAINING, "c2")


@rule("shard.X4")
@pytest.mark.parametrize("kind", KINDS)
def test_a_machine_that_cannot_be_verified_keeps_its_state_and_is_handed_on(kind: str) -> None:
    world = World()
    call = world.in_call(kind)
    before = world.machine("m1")
    world.fail(call, FailureKind.TRANSIENT)
    world.got("m1", FailureKind.TRANSIENT)
    assert world.machine("m1") == before
    assert world.verified == world.released == ["m1"]
    assert not world.executor.is_busy("m1")
    assert world.outcomes() == [(kind, "provider_transient")]


@rule("shard.X4")
@pytest.mark.parametrize("kind", KINDS)
def test_a_machine_that_the_provider_does_not_know_is_removed(kind: str) -> None:
    world = World()
    call = world.in_call(kind)
    world.fail(call, FailureKind.NOT_FOUND)
    world.got("m1", FailureKind.NOT_FOUND)
    assert world.fleet.machine("m1") is None
    assert world.outcomes() == [(kind, "inventory_miss")]
    assert world.instructions() == []


def test_a_get_that_was_sent_before_the_failure_verifies_nothing() -> None:
    world = World()
    call = world.in_call("Provision")
    sent = world.ctx.now
    world.advance(1)
    world.fail(call, FailureKind.TRANSIENT)
    assert not world.got("m1", record("m1", SPECULATIVE), started=sent)
    assert world.state("m1") is CREATING
    assert world.got("m1", record("m1", SPECULATIVE))
    assert not world.got("m1", record("m1", SPECULATIVE))


@rule("shard.X4")
@pytest.mark.parametrize("kind", KINDS)
def test_a_call_that_was_not_sent_leaves_the_machine_as_it_was(kind: str) -> None:
    world = World()
    call = world.in_call(kind)
    effects = world.fail(call, FailureKind.NOT_SENT)
    assert world.seen(GetMachine, effects) == []
    expected = world.machine("m1")
    assert (expected.state, expected.target_cluster) == (SOURCES[kind], "")
    assert expected.assigned_need_fingerprint == (PROFILE.fingerprint if kind == "Reclaim" else "")
    assert world.outcomes() == [(kind, "provider_transient")]
    assert world.instructions() == []
    assert world.fleet.sidecar("m1").preempted_for is None


@rule("shard.X4")
def test_an_open_breaker_is_asked_before_the_blob_is() -> None:
    world = World()
    world.executor.breaker_changed(BreakerChanged("default", BreakerState.OPEN))
    machines = [world.add("m1", IDLE), world.add("m2", SPECULATIVE), world.add("m3", CONFIGURED, "c1")]
    world.enqueue(bootstrap("m1"), provision("m2"), reclaim("m3"))
    assert {outcome for _, outcome in world.outcomes()} == {"provider_transient"}
    assert len(world.outcomes()) == 3
    assert [world.machine(m.id) for m in machines] == machines
    assert world.outboxes.ever == []
    assert world.calls() == []

    world.executor.breaker_changed(BreakerChanged("default", BreakerState.CLOSED))
    world.enqueue(bootstrap("m1"))
    assert len(world.requests()) == 1


@rule("shard.X4")
def test_a_breaker_that_opens_during_a_wait_takes_the_operation_back() -> None:
    world = World()
    world.add("m1", IDLE)
    world.add("m2", CONFIGURED, "c1")
    world.enqueue(bootstrap("m1"), reclaim("m2"))
    world.executor.breaker_changed(BreakerChanged("default", BreakerState.OPEN))
    [request], [instruction] = world.requests(), world.instructions()
    assert [e.request_id for e in world.seen(DropBlob, world.answer(request))] == [request.request_id]
    world.ack(instruction.instruction_id)
    assert (world.state("m1"), world.state("m2")) == (IDLE, CONFIGURED)
    assert world.instructions() == []
    assert world.calls() == []
    assert sorted(world.outcomes()) == [
        ("Bootstrap", "provider_transient"),
        ("Reclaim", "provider_transient"),
    ]


@rule("shard.X4")
def test_a_slot_whose_create_is_always_refused_is_tried_ever_more_rarely() -> None:
    world = World()
    world.add("m1", SPECULATIVE)
    begun, tried = world.ctx.now, []
    for _ in range(200):
        world.executor.before_cycle()
        if not world.fleet.sidecar("m1").held_off & Call.CREATE:
            [call] = world.calls(world.enqueue(provision("m1")))
            tried.append((world.ctx.now - begun) // SECOND)
            world.fail(call, FailureKind.FAILED, "INTERNAL")
            world.got("m1", record("m1", SPECULATIVE))
        world.advance(10)
    assert tried == [0, 60, 180, 420, 900, 1500]


@rule("shard.X4")
def test_success_ends_the_memory_of_failures() -> None:
    world = World()
    world.add("m1", SPECULATIVE)
    for answer in (None, CREATING, None):
        world.executor.before_cycle()
        [call] = world.calls(world.enqueue(provision("m1")))
        if answer is not None:
            world.succeed(call, answer)
            world.fleet.take_back(record("m1", SPECULATIVE))
        else:
            world.fail(call, FailureKind.FAILED)
            world.got("m1", record("m1", SPECULATIVE))
            world.advance(60)
    world.executor.before_cycle()
    assert world.fleet.sidecar("m1").held_off == NO_CALL, "the second failure was a first one again"


def test_the_memory_of_a_machine_goes_with_it() -> None:
    world = World()
    call = world.in_call("Provision")
    world.fail(call, FailureKind.FAILED)
    world.got("m1", record("m1", SPECULATIVE))
    assert world.executor.state.hold_offs.calls
    world.fleet.remove("m1")
    assert world.executor.state.hold_offs.calls == {}
    world.advance(60)
    world.executor.before_cycle()
    assert world.executor.state.hold_offs.ends == []


@rule("shard.X4")
@pytest.mark.parametrize("kind", KINDS)
def test_failed_is_taken_from_the_providers_record_alone(kind: str) -> None:
    world = World()
    call = world.in_call(kind)
    world.succeed(call, FAILED)
    assert world.state("m1") is FAILED
    assert world.machine("m1").last_error == "it broke"
    assert world.outcomes() == [(kind, "provider_error")]
    assert world.logs("action failed")[0]["err"] == f"{PREFIXES[kind]}it broke"
    assert world.seen(GetMachine) == []
    assert world.instructions() == []


@rule("shard.X4")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("wrong", ["id", "cluster", "cluster of a failure", "source", "invalid"])
def test_an_answer_that_is_none_is_verified(kind: str, wrong: str) -> None:
    world = World()
    call = world.in_call(kind)
    match wrong:
        case "id":
            seen = record("m2", BETWEEN[kind], world.machine("m1").cluster)
        case "cluster":
            seen = record("m1", CONFIGURING, "c7")
        case "cluster of a failure":
            seen = record("m1", FAILED, "c7")
        case "source":
            seen = source_record(kind)
        case _:
            seen = replace(record("m1", BETWEEN[kind], world.machine("m1").cluster), price_per_hour=-1.0)
    world.executor.call_ended(CallEnded(call.op, Observed(seen)))
    effects = world.settle()
    assert world.seen(GetMachine, effects) == [GetMachine("default", "m1")]
    assert world.state("m1") is BETWEEN[kind]
    assert world.counted(series.MACHINES_REJECTED) == 1
    assert world.fleet.sidecar("m1").held_off == FLAGS[kind]
    world.got("m1", source_record(kind))
    assert world.outcomes() == [(kind, "transition_error")]


def test_a_get_that_shows_the_machine_somewhere_else_is_believed() -> None:
    world = World()
    call = world.in_call("Bootstrap")
    world.fail(call, FailureKind.FAILED)
    elsewhere = replace(record("m1", CONFIGURED, "c2"), assigned_priority=5)
    world.got("m1", elsewhere)
    assert world.machine("m1") == elsewhere


def test_a_get_whose_record_is_none_verifies_nothing() -> None:
    world = World()
    call = world.in_call("Provision")
    world.fail(call, FailureKind.TRANSIENT)
    world.got("m1", replace(record("m1", SPECULATIVE), price_per_hour=-1.0))
    assert world.state("m1") is CREATING
    assert world.verified == ["m1"]


@rule("shard.X4")
def test_fifty_configures_survive_a_provider_that_is_down() -> None:
    world = World(concurrency=50)
    names = [f"m{n:02}" for n in range(50)]
    for name in names:
        world.add(name, IDLE)
    world.enqueue(*[bootstrap(name) for name in names])
    for request in world.requests():
        world.answer(request)
    for call in world.calls():
        world.fail(call, FailureKind.TRANSIENT, "UNAVAILABLE")
        world.got(call.machine_id, FailureKind.TRANSIENT)
    assert world.verified == names
    for name in names:
        world.fleet.observe(record(name, IDLE))
    assert world.calls(world.enqueue(*[bootstrap(name) for name in names])) == []
    for request in world.requests():
        [call] = world.calls(world.answer(request))
        world.succeed(call, CONFIGURED)
    assert {world.state(name) for name in names} == {CONFIGURED}
