"""Pause, shutdown and the fence (shard.md R3, F4)."""

from bigfleet.shard.core.effects import (
    Assignment,
    DropBlob,
    GetMachine,
    LogLevel,
)
from bigfleet.shard.provider import FailureKind
from bigfleet_base.model.lifecycle import CONFIGURED, CONFIGURING, CREATING, IDLE, SPECULATIVE
from tests.support.rules import rule
from tests.unit.shard.core.execute_world import (
    PROFILE,
    World,
    bootstrap,
    provision,
    reclaim,
    record,
)

ASSIGNMENT = Assignment(1000, 4.0, 0.5, PROFILE.fingerprint, "g1")


@rule("shard.R3")
def test_a_pause_takes_back_what_waits_and_lets_calls_end() -> None:
    world = World(concurrency=5, clusters=("c1", "c2", "c3"))
    for n in range(5):
        world.add(f"call{n}", SPECULATIVE)
        world.add(f"blob{n}", IDLE)
        world.add(f"cordon{n}", CONFIGURED, "c1")
        world.add(f"queued{n}", SPECULATIVE)
        world.add(f"room{n}", IDLE)
    world.enqueue(*[provision(f"call{n}", "c3") for n in range(5)])
    world.enqueue(*[bootstrap(f"blob{n}") for n in range(5)])
    world.enqueue(*[reclaim(f"cordon{n}") for n in range(5)])
    world.enqueue(*[a for n in range(5) for a in (provision(f"queued{n}", "c2"), bootstrap(f"room{n}"))])
    calls = world.calls()
    assert len(calls) == 5
    kept, *_ = world.requests()
    world.answer(kept)

    world.executor.halt()
    effects = world.settle()

    assert world.calls(effects) == []
    assert [e.request_id for e in world.seen(DropBlob, effects)] == [kept.request_id]
    assert world.outboxes.requests == {}
    assert world.outboxes.instructions == {}
    assert {world.state(f"blob{n}") for n in range(5)} == {IDLE}
    assert {world.state(f"cordon{n}") for n in range(5)} == {CONFIGURED}
    assert {world.state(f"queued{n}") for n in range(5)} == {SPECULATIVE}
    assert world.outcomes().count(("Bootstrap", "ctx_canceled")) == 10
    assert world.outcomes().count(("Reclaim", "ctx_canceled")) == 5
    assert world.outcomes().count(("Provision", "ctx_canceled")) == 5
    for call in calls:
        assert world.calls(world.succeed(call, IDLE)) == []
    assert {world.state(f"call{n}") for n in range(5)} == {IDLE}
    assert world.outcomes().count(("Provision", "success")) == 5
    assert world.executor.depth() == world.executor.in_flight() == 0
    assert world.logs("action failed") == []
    assert len(world.audit("action.emitted")) == len(world.audit("action.result")) == 16


@rule("shard.R3")
def test_what_a_cycle_decided_before_the_pause_is_not_started_after_it() -> None:
    world = World()
    world.add("m1", IDLE)
    world.executor.halt()
    world.enqueue(bootstrap("m1"))
    assert world.outcomes() == [("Bootstrap", "ctx_canceled")]
    assert world.state("m1") is IDLE
    world.executor.resume()
    world.enqueue(bootstrap("m1"))
    assert len(world.requests()) == 1


@rule("shard.R3")
def test_a_verification_goes_on_under_a_pause() -> None:
    world = World()
    call = world.in_call("Reclaim")
    world.executor.halt()
    assert len(world.seen(GetMachine, world.fail(call, FailureKind.TRANSIENT))) == 1
    world.got("m1", record("m1", CONFIGURED, "c1"))
    assert world.state("m1") is CONFIGURED


@rule("shard.R6", "shard.X7")
def test_at_the_end_calls_without_an_answer_and_verifications_have_an_outcome_too() -> None:
    world = World()
    failed = world.in_call("Bootstrap")
    world.add("m2", SPECULATIVE)
    world.enqueue(provision("m2"))
    world.fail(failed, FailureKind.TRANSIENT, "UNAVAILABLE")
    world.executor.halt()
    assert world.outcomes() == []

    world.executor.abandon_calls()
    effects = world.settle()

    assert world.outcomes() == [("Bootstrap", "provider_transient"), ("Provision", "ctx_canceled")]
    emitted, results = world.audit("action.emitted"), world.audit("action.result")
    assert [line["op_id"] for line in emitted] == [line["op_id"] for line in results]
    assert world.calls(effects) == [] and world.executor.in_flight() == world.executor.depth() == 0
    assert [world.state("m1"), world.state("m2")] == [CONFIGURING, CREATING], "nobody knows better"


@rule("shard.F4", "shard.X4")
def test_a_fenced_call_stops_the_process_for_good() -> None:
    world = World(concurrency=1)
    call = world.in_call("Provision")
    world.add("m2", IDLE)
    world.add("m3", SPECULATIVE)
    world.enqueue(bootstrap("m2"), provision("m3"))

    effects = world.fail(call, FailureKind.FENCED, "FAILED_PRECONDITION", "stale: Configure blob timeout")

    assert world.executor.fenced
    assert world.calls(effects) == []
    assert world.outboxes.stopped
    assert world.requests() == []
    world.got("m1", record("m1", SPECULATIVE))
    assert world.state("m1") is SPECULATIVE, "it is not marked Failed"
    assert sorted(world.outcomes()) == [
        ("Bootstrap", "ctx_canceled"),
        ("Provision", "ctx_canceled"),
        ("Provision", "fenced"),
    ]
    [line] = world.logs(
        "provider fenced this shard's mutation — zombie-shard incident; do not retry, investigate "
        "duplicate shard identity"
    )
    assert line == {
        "level": LogLevel.ERROR,
        "kind": "Provision",
        "machine": "m1",
        "cluster": "c1",
        "epoch": 7,
        "sequence": 42,
        "err": "FAILED_PRECONDITION: stale: Configure blob timeout",
    }
    assert len(world.audit("fence")) == 1
    world.executor.resume()
    world.enqueue(provision("m3"))
    assert world.calls()[1:] == []


def test_the_fence_call_of_the_start_fences_too() -> None:
    world = World()
    world.executor.fence("Drain", None)
    assert world.executor.fenced
    world.add("m1", SPECULATIVE)
    assert world.calls(world.enqueue(provision("m1"))) == []
