"""Needs that an operator cannot serve are left alone, and probed (shard.md X4)."""

from dataclasses import replace

import pytest

from bigfleet.shard.core.blocks import MAX_BLOCKS, Blocks
from bigfleet.shard.core.effects import (
    Assignment,
)
from bigfleet.shard.provider import FailureKind
from bigfleet_base.model import Profile
from bigfleet_base.model.lifecycle import CONFIGURED, CREATING, IDLE, SPECULATIVE
from tests.support.rules import rule
from tests.unit.shard.core.execute_world import (
    PREEMPTOR,
    PROFILE,
    World,
    bootstrap,
    delete,
    preempt,
    provision,
    reclaim,
    record,
)

ASSIGNMENT = Assignment(1000, 4.0, 0.5, PROFILE.fingerprint, "g1")


@rule("shard.X4")
def test_an_operators_error_returns_the_machine_and_blocks_the_need() -> None:
    world = World()
    world.add("m1", IDLE)
    world.enqueue(bootstrap("m1"))
    world.answer(world.requests()[0], error="template: no such field")

    assert world.state("m1") is IDLE
    assert world.machine("m1").assigned_need_fingerprint == ""
    assert world.outcomes() == [("Bootstrap", "unsatisfiable")]
    assert world.executor.before_cycle() == {("c1", PROFILE.fingerprint)}
    [line] = world.logs("action failed")
    assert (line["err"], line["attempt"]) == ("operator: template: no such field", 0), "no call was made"


@rule("shard.X4")
def test_a_blocked_need_is_probed_with_one_action_after_each_pause() -> None:
    world = World()
    for n in range(20):
        world.add(f"m{n:02}", IDLE)
    blocked = ("c1", PROFILE.fingerprint)
    pauses = []
    for attempt in range(6):
        actions = [bootstrap(f"m{n:02}") for n in range(10)]
        admitted = actions if attempt == 0 else world.executor.admit(actions)
        world.enqueue(*admitted[:1])
        assert attempt == 0 or admitted == actions[:1]
        world.answer(world.requests()[0], error="still broken")
        paused = 0
        while blocked in world.executor.before_cycle():
            assert world.executor.admit(actions) == []
            world.advance(60)
            paused += 1
        pauses.append(paused)
    assert pauses == [1, 2, 4, 8, 10, 10]


@rule("shard.X4")
def test_a_need_takes_part_in_one_cycle_at_a_time_until_there_is_a_probe() -> None:
    world = World()
    world.add("m1", IDLE)
    world.enqueue(bootstrap("m1"))
    world.answer(world.requests()[0], error="broken")
    world.advance(60)
    blocked = {("c1", PROFILE.fingerprint)}
    for _ in range(3):
        assert world.executor.before_cycle() == frozenset()
        assert world.executor.admit([]) == []
        world.advance(59)
        assert world.executor.before_cycle() == blocked
        world.advance(1)
    assert world.executor.before_cycle() == frozenset()
    world.enqueue(*world.executor.admit([bootstrap("m1")]))
    world.answer(world.requests()[-1], error="still broken")
    world.advance(119)
    assert world.executor.before_cycle() == blocked
    world.advance(1)
    assert world.executor.before_cycle() == frozenset()


@rule("shard.X4")
def test_a_probe_is_a_bootstrap_or_else_a_provision_and_never_a_preemption() -> None:
    world = World()
    world.add("m1", IDLE)
    world.enqueue(bootstrap("m1"))
    world.answer(world.requests()[0], error="broken")
    other = Profile(priority=5)
    for_us = replace(PREEMPTOR, cluster="c1", need_fingerprint=PROFILE.fingerprint)
    actions = [
        provision("s1"),
        provision("s2"),
        bootstrap("m1"),
        bootstrap("m2"),
        bootstrap("m3", profile=other),
        preempt("m4", "c2", for_us),
        preempt("m5", "c2"),
        reclaim("m6"),
        delete("m7"),
    ]
    unrelated = [actions[4], *actions[6:]]
    assert world.executor.admit(actions) == unrelated
    world.advance(60)
    assert world.executor.admit(actions) == [actions[2], *unrelated]
    assert world.executor.admit(actions[:2] + unrelated) == [actions[0], *unrelated]


@rule("shard.X4")
def test_a_probe_that_buys_a_machine_buys_no_second_one_before_the_next_pause_is_over() -> None:
    world = World()
    world.add("m1", IDLE)
    world.add("s1", SPECULATIVE)
    world.add("s2", SPECULATIVE)
    world.enqueue(bootstrap("m1"))
    world.answer(world.requests()[0], error="broken")
    world.advance(60)
    assert world.executor.before_cycle() == frozenset()
    [create] = world.calls(world.enqueue(*world.executor.admit([provision("s1"), provision("s2")])))
    world.succeed(create, CREATING)
    assert world.executor.before_cycle() == {("c1", PROFILE.fingerprint)}
    world.advance(60)
    assert world.executor.before_cycle() == frozenset()


@rule("shard.X4")
@pytest.mark.parametrize("cure", ["blob", "session"])
def test_a_blob_or_a_new_session_ends_a_block(cure: str) -> None:
    world = World()
    world.add("m1", IDLE)
    world.add("m2", IDLE)
    world.enqueue(bootstrap("m1"), bootstrap("m2"))
    first, second = world.requests()
    world.answer(first, error="broken")
    assert world.executor.before_cycle()
    if cure == "blob":
        world.answer(second)
    else:
        world.executor.session_opened("c2")
        assert world.executor.before_cycle()
        world.executor.session_opened("c1")
    assert world.executor.before_cycle() == frozenset()


def test_what_is_queued_for_a_need_that_gets_blocked_is_not_started() -> None:
    world = World(concurrency=1)
    for n in range(3):
        world.add(f"m{n}", IDLE)
        world.add(f"s{n}", SPECULATIVE)
    world.enqueue(*[bootstrap(f"m{n}") for n in range(3)], *[provision(f"s{n}") for n in range(3)])
    [create] = world.calls()
    world.answer(world.requests()[0], error="broken")
    world.succeed(create, CREATING)
    assert len(world.calls()) == 1
    assert len(world.outboxes.ever) == 1
    assert sorted(world.outcomes()) == sorted(
        [("Provision", "success")]
        + [("Bootstrap", "unsatisfiable")] * 3
        + [("Provision", "unsatisfiable")] * 2
    )


def attempt(world: World, *, error: str = "", kind: FailureKind | None = None) -> int:
    """Bootstrap ``m1`` and let it end so; returns for how many minutes the Need is blocked afterwards."""
    world.executor.before_cycle()
    world.enqueue(*world.executor.admit([bootstrap("m1")]))
    calls = world.calls(world.answer(world.requests()[0], error=error))
    for call in calls:
        if kind is None:
            world.succeed(call, CONFIGURED)
            world.fleet.take_back(record("m1", IDLE))
        else:
            world.fail(call, kind)
            world.got("m1", record("m1", IDLE))
    minutes = 0
    while world.executor.before_cycle():
        world.advance(60)
        minutes += 1
    # The machine itself is held off for no longer than ten minutes.
    world.advance(600)
    return minutes


@rule("shard.X4")
def test_a_configured_machine_ends_the_memory_of_failures() -> None:
    world = World()
    world.add("m1", IDLE)
    pauses = [attempt(world, error=error) for error in ("broken", "broken", "", "broken")]
    assert pauses == [1, 2, 0, 1]


@rule("shard.X4")
def test_blobs_that_the_provider_refuses_each_time_are_tried_ever_more_rarely() -> None:
    world = World()
    world.add("m1", IDLE)
    assert [attempt(world, kind=FailureKind.REFUSED) for _ in range(3)] == [1, 2, 4]


@rule("shard.X4")
def test_requests_that_were_out_together_fail_once() -> None:
    world = World(concurrency=5)
    for n in range(5):
        world.add(f"m{n}", IDLE)
    world.enqueue(*[bootstrap(f"m{n}") for n in range(5)])
    first, *rest = world.requests()
    world.answer(first, error="broken")
    world.advance(20)
    for request in rest:
        world.answer(request, error="broken")
    world.advance(40)
    assert world.executor.before_cycle() == frozenset()


def test_blocks_are_bounded_and_those_of_needs_that_are_gone_are_forgotten() -> None:
    world = World()
    blocks = Blocks(world.ctx, world.executor.state.blocks)
    for n in range(MAX_BLOCKS + 7):
        blocks.failed(("c1", f"f{n}"))
    held = world.executor.before_cycle()
    assert len(held) == MAX_BLOCKS
    assert ("c1", "f6") not in held
    assert ("c1", "f7") in held
    world.advance(59 * 60)
    world.executor.before_cycle()
    assert world.executor.state.blocks.count == MAX_BLOCKS
    world.advance(2 * 60)
    world.executor.before_cycle()
    assert world.executor.state.blocks.count == 0
    assert world.executor.state.blocks.clusters == {}
