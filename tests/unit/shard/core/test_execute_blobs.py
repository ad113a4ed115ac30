"""How a bootstrap gets its blob (shard.md §7)."""

from dataclasses import replace

import pytest

from bigfleet.engine.options import SECOND
from bigfleet.shard.core.effects import (
    ConfigureMachine,
    CreateMachine,
    DrainMachine,
    DropBlob,
)
from bigfleet.shard.core.events import BootstrapAnswered
from bigfleet_base.model import CapacityType
from bigfleet_base.model.lifecycle import CONFIGURED, CONFIGURING, CREATING, IDLE, SPECULATIVE
from tests.support.rules import rule
from tests.unit.shard.core.execute_world import (
    PROFILE,
    World,
    bootstrap,
    delete,
    preempt,
    provision,
    record,
)


@rule("shard.B5")
def test_every_bootstrap_asks_for_a_blob_of_its_own() -> None:
    world = World()
    world.add("m1", IDLE)
    world.add("m2", IDLE)
    world.enqueue(bootstrap("m1"), bootstrap("m2"))
    first, second = world.requests()
    assert first.request_id != second.request_id
    assert all(len(r.request_id) == 32 and int(r.request_id, 16) for r in (first, second))


def test_request_ids_depend_on_the_seed_and_their_number_alone() -> None:
    def ids() -> list[str]:
        world = World()
        world.add("m1", IDLE)
        world.add("m2", IDLE)
        world.enqueue(bootstrap("m1"), bootstrap("m2"))
        return [r.request_id for r in world.requests()]

    assert ids() == ids()


@rule("shard.X4", "shard.X5")
def test_a_blob_that_does_not_come_in_time_returns_the_machine_and_clears_every_stamp() -> None:
    world = World()
    world.add("m1", IDLE)
    world.enqueue(bootstrap("m1"))
    [request] = world.requests()

    world.advance(29.9)
    assert world.state("m1") is CONFIGURING
    world.advance(0.1)

    assert replace(world.machine("m1"), labels={}) == replace(record("m1", IDLE), labels={})
    assert world.outcomes() == [("Bootstrap", "blob_error")]
    assert world.requests() == []
    assert world.calls() == []
    assert [e.request_id for e in world.seen(DropBlob, world.answer(request))] == [request.request_id]


@rule("shard.X5")
def test_a_late_blob_takes_nothing_from_the_time_of_the_call() -> None:
    world = World()
    world.add("m1", IDLE)
    world.enqueue(bootstrap("m1"))
    world.advance(28)
    [call] = world.calls(world.answer(world.requests()[0]))
    assert call.budget_ns == 30 * SECOND
    world.advance(29)
    world.succeed(call, CONFIGURED)
    assert world.outcomes() == [("Bootstrap", "success")]


@rule("shard.B2")
def test_answers_that_nobody_waits_for_are_dropped_and_repeated_ones_harm_nothing() -> None:
    world = World(concurrency=1)
    world.add("m1", IDLE)
    world.add("m2", IDLE, capacity_type=CapacityType.SPOT)
    world.enqueue(delete("m2"), bootstrap("m1"))
    [request] = world.requests()

    world.executor.answered("c1", BootstrapAnswered(1, "unknown", 0))
    assert [e.request_id for e in world.seen(DropBlob, world.settle())] == ["unknown"]

    assert world.seen(DropBlob, world.answer(request)) == []
    # The Configure waits for the only slot: its blob is needed yet, whatever comes again under its id.
    assert world.seen(DropBlob, world.answer(request)) == []
    world.executor.unasked(BootstrapAnswered(9, request.request_id, 0))
    assert world.seen(DropBlob, world.settle()) == []

    [configure] = world.calls(world.succeed(world.calls()[0], SPECULATIVE))
    assert isinstance(configure, ConfigureMachine)
    assert [e.request_id for e in world.seen(DropBlob, world.answer(request))] == [request.request_id]


@rule("shard.B2")
def test_an_error_that_follows_a_blob_drops_nothing() -> None:
    world = World()
    world.add("m1", IDLE)
    world.enqueue(bootstrap("m1"))
    [request] = world.requests()
    [call] = world.calls(world.answer(request))
    assert world.seen(DropBlob, world.answer(request, error="no")) == []
    world.succeed(call, CONFIGURED)
    assert world.outcomes() == [("Bootstrap", "success")]


def test_an_answer_of_another_cluster_counts_for_nothing() -> None:
    world = World()
    world.add("m1", IDLE)
    world.enqueue(bootstrap("m1"))
    [request] = world.requests()
    world.executor.answered("c2", BootstrapAnswered(2, request.request_id, 0))
    assert world.calls(world.settle()) == []
    assert len(world.calls(world.answer(request))) == 1


@rule("shard.B4")
def test_a_request_outlives_its_session() -> None:
    world = World()
    world.add("m1", IDLE)
    world.enqueue(bootstrap("m1"))
    [request] = world.requests()
    world.sessions.open.discard("c1")
    world.advance(3)
    assert world.requests() == [request]
    world.sessions.open.add("c1")
    world.executor.session_opened("c1")
    [call] = world.calls(world.answer(request))
    world.succeed(call, CONFIGURED)
    assert len(world.calls()) == 1


@rule("shard.B3")
def test_a_blob_that_expires_before_its_call_is_fetched_again() -> None:
    world = World(concurrency=1)
    world.add("m1", IDLE)
    world.add("m2", SPECULATIVE)
    [create] = world.calls(world.enqueue(provision("m2"), bootstrap("m1")))
    [first] = world.requests()
    assert world.calls(world.answer(first, ttl_s=6)) == []
    world.advance(10)

    effects = world.succeed(create, CREATING)
    assert world.calls(effects) == []
    assert [e.request_id for e in world.seen(DropBlob, effects)] == [first.request_id]
    [second] = world.requests()
    assert second.request_id != first.request_id
    world.advance(29)
    [call] = world.calls(world.answer(second, ttl_s=20))
    assert isinstance(call, ConfigureMachine)
    assert (call.request_id, call.budget_ns) == (second.request_id, 15 * SECOND)
    world.succeed(call, CONFIGURED)
    assert world.outcomes() == [("Provision", "success"), ("Bootstrap", "success")]


@rule("shard.B3")
@pytest.mark.parametrize("ttl_s", [5, 1, -1])
def test_blobs_that_are_always_too_old_end_the_attempt_and_block_the_need(ttl_s: int) -> None:
    world = World()
    world.add("m1", IDLE)
    world.enqueue(bootstrap("m1"))
    world.answer(world.requests()[0], ttl_s=ttl_s)
    world.answer(world.requests()[0], ttl_s=ttl_s)

    assert world.outcomes() == [("Bootstrap", "blob_expired")]
    assert world.state("m1") is IDLE
    assert len(world.outboxes.ever) == 2
    assert world.executor.before_cycle() == {("c1", PROFILE.fingerprint)}
    world.advance(60)
    assert world.executor.before_cycle() == frozenset()


@rule("shard.B6", "shard.X9")
def test_local_mode_needs_neither_session_nor_blob() -> None:
    world = World(local=True, clusters=())
    world.add("m1", IDLE)
    [call] = world.calls(world.enqueue(bootstrap("m1")))
    assert isinstance(call, ConfigureMachine)
    assert call.request_id == ""
    world.succeed(call, CONFIGURED)
    assert world.state("m1") is CONFIGURED
    assert world.outboxes.ever == []


@rule("shard.X9", "shard.X4")
def test_without_a_session_a_bootstrap_is_skipped_before_any_transition() -> None:
    world = World(clusters=())
    machine = world.add("m1", IDLE)
    world.add("m2", SPECULATIVE)
    world.add("m3", CONFIGURED, "c1")
    calls = world.calls(world.enqueue(bootstrap("m1"), provision("m2"), preempt("m3")))
    assert world.machine("m1") == machine
    assert world.outcomes() == [("Bootstrap", "no_session")]
    assert {type(call) for call in calls} == {CreateMachine, DrainMachine}, "the others go on"


@rule("shard.X5")
def test_a_blob_that_waits_for_a_slot_is_not_overdue() -> None:
    world = World(concurrency=1)
    world.add("m1", IDLE)
    world.add("m2", SPECULATIVE)
    [create] = world.calls(world.enqueue(provision("m2"), bootstrap("m1")))
    world.answer(world.requests()[0])
    world.advance(31)
    [call] = world.calls(world.succeed(create, CREATING))
    assert isinstance(call, ConfigureMachine)
