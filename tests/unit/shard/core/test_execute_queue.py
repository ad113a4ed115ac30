"""Who is started when: one operation a machine, N slots, fair queues (shard.md §6.2)."""

from dataclasses import replace

import pytest

from bigfleet.engine.actions import Action
from bigfleet.shard.core.context import Cause
from bigfleet.shard.core.effects import (
    Assignment,
    DeleteMachine,
)
from bigfleet.shard.core.events import BreakerChanged, BreakerState
from bigfleet_base.model.lifecycle import CONFIGURED, CREATING, IDLE, SPECULATIVE
from bigfleet_base.telemetry.catalogue import shard as series
from tests.support.rules import rule
from tests.unit.shard.core.execute_world import (
    PROFILE,
    World,
    bootstrap,
    delete,
    provision,
    reclaim,
    record,
)

ASSIGNMENT = Assignment(1000, 4.0, 0.5, PROFILE.fingerprint, "g1")


@rule("shard.E2")
def test_a_machine_with_an_operation_gets_no_second_one() -> None:
    world = World()
    world.add("m1", IDLE)
    world.enqueue(bootstrap("m1"))
    world.enqueue(bootstrap("m1"))
    assert world.counted(series.ACTIONS_DEDUPED) == 1
    assert world.counted(series.ACTIONS) == 1
    assert len(world.requests()) == 1


@rule("shard.E3")
def test_an_action_whose_machine_has_moved_or_gone_is_not_queued() -> None:
    world = World()
    world.add("m1", CONFIGURED, "c1")
    world.add("m2", IDLE)
    world.enqueue(bootstrap("m1"), provision("m2"), reclaim("m2"), delete("m1"), bootstrap("gone"))
    assert world.counted(series.ACTIONS_DEDUPED) == 5
    assert world.counted(series.ACTIONS) == 0
    assert world.executor.depth() == 0


@rule("shard.E5", "shard.X7")
def test_machines_that_move_between_queue_and_start_are_left_alone() -> None:
    world = World(concurrency=1, clusters=("c1", "c2"))
    world.add("hold", SPECULATIVE)
    for name, state in {"p": SPECULATIVE, "b": IDLE, "b2": IDLE, "d": IDLE, "gone": SPECULATIVE}.items():
        world.add(name, state)
    world.executor.enqueue([provision("hold", "c2")])
    world.settle()
    world.executor.enqueue([provision("p"), bootstrap("b"), bootstrap("b2"), delete("d"), provision("gone")])
    # Reconcile leaves busy machines alone; these writes stand for whatever should not happen and does.
    ours = replace(record("b", CONFIGURED, "c1"), assigned_need_fingerprint=PROFILE.fingerprint)
    for machine in (record("p", IDLE), ours, record("b2", CONFIGURED, "c2"), record("d", SPECULATIVE)):
        world.fleet.observe(machine)
    world.fleet.remove("gone")
    world.settle()
    world.succeed(world.calls()[0], CREATING)

    assert sorted(world.outcomes()) == sorted(
        [
            ("Provision", "success"),
            ("Provision", "stale_state"),
            ("Provision", "inventory_miss"),
            ("Bootstrap", "success"),
            ("Bootstrap", "stale_state"),
            ("Delete", "success"),
        ]
    )
    assert len(world.calls()) == 1


@rule("shard.X7")
@pytest.mark.parametrize("action", [bootstrap("m1", profile=None), provision("m2", profile=None)])
def test_an_action_without_a_profile_starts_nothing(action: Action) -> None:
    world = World()
    world.add("m1", IDLE)
    world.add("m2", SPECULATIVE)
    world.enqueue(action)
    assert world.outcomes() == [(action.kind.value, "missing_profile")]
    assert world.calls() == []


@rule("shard.E1")
def test_no_more_calls_are_in_flight_than_there_are_slots() -> None:
    world = World(concurrency=2)
    for n in range(5):
        world.add(f"m{n}", SPECULATIVE)
    _, second = world.calls(world.enqueue(*[provision(f"m{n}") for n in range(5)]))
    assert (world.executor.in_flight(), world.executor.depth()) == (2, 3)
    [third] = world.calls(world.succeed(second, CREATING))
    assert third.machine_id == "m2"
    assert world.executor.in_flight() == 2


@rule("shard.E1")
def test_a_mute_operator_with_a_long_queue_delays_nobody_else() -> None:
    world = World(concurrency=2)
    for n in range(100):
        world.add(f"a{n:03}", IDLE)
    world.add("b", IDLE)
    world.enqueue(*[bootstrap(f"a{n:03}") for n in range(100)])
    assert len(world.requests("c1")) == 2, "no more requests are out than there are slots"
    world.enqueue(bootstrap("b", "c2"))
    [call] = world.calls(world.answer(world.requests("c2")[0]))
    assert call.machine_id == "b"


@rule("shard.E1")
def test_free_slots_go_round_the_clusters_and_first_in_first_out_inside_each() -> None:
    world = World(concurrency=1)
    for name in ("hold", "a1", "a2", "a3", "b1", "b2"):
        world.add(name, SPECULATIVE)
    world.add("d1", IDLE)
    world.enqueue(provision("hold", "c3"))
    world.enqueue(
        *[provision(n, "c1") for n in ("a1", "a2", "a3")], *[provision(n, "c2") for n in ("b1", "b2")]
    )
    world.enqueue(delete("d1"))
    order = []
    [call] = world.calls()
    while True:
        done = SPECULATIVE if isinstance(call, DeleteMachine) else CREATING
        following = world.calls(world.succeed(call, done))
        if not following:
            break
        [call] = following
        order.append(call.machine_id)
    assert order == ["a1", "b1", "d1", "a2", "b2", "a3"]


@rule("shard.E4")
def test_a_full_queue_drops_and_asks_for_a_cycle_when_half_of_it_is_done() -> None:
    world = World(concurrency=1)
    for n in range(1000):
        world.add(f"m{n:04}", SPECULATIVE)
    [call] = world.calls(world.enqueue(*[provision(f"m{n:04}") for n in range(1000)]))
    assert world.executor.depth() == 255
    assert world.counted(series.ACTIONS) == 256
    assert world.counted(series.ACTIONS_DROPPED) == 744
    assert world.executor.free_places() == 1
    while world.executor.depth() > 128:
        [call] = world.calls(world.succeed(call, CREATING))
    assert world.ctx.wakes == []
    [call] = world.calls(world.succeed(call, CREATING))
    assert world.ctx.wakes == [(Cause.DRAIN, False)]
    world.succeed(call, CREATING)
    assert len(world.ctx.wakes) == 1


@rule("shard.E4")
def test_what_the_rails_have_dropped_asks_for_a_cycle_too() -> None:
    world = World()
    world.executor.enqueue([], dropped=7)
    world.settle()
    assert world.counted(series.ACTIONS_DROPPED) == 7
    assert world.ctx.wakes == [(Cause.DRAIN, False)]


@rule("shard.E1")
def test_mute_operators_share_n_operations_until_one_answers_in_time() -> None:
    world = World(concurrency=4)
    for cluster in ("c1", "c2"):
        for n in range(6):
            world.add(f"{cluster}-{n}", IDLE)
    wanted = {cluster: [bootstrap(f"{cluster}-{n}", cluster) for n in range(6)] for cluster in ("c1", "c2")}
    others = [delete("m1"), reclaim("m2", "c1")]
    world.enqueue(wanted["c1"][0])
    [late] = world.requests()
    world.advance(30)
    world.restore()

    assert world.executor.admit(wanted["c1"] + others) == wanted["c1"][:4] + others
    assert world.executor.admit(wanted["c2"]) == wanted["c2"]
    world.enqueue(wanted["c2"][0], wanted["c1"][0])
    world.answer(late)
    world.executor.session_opened("c1")
    assert world.executor.admit(wanted["c1"][1:]) == wanted["c1"][1:4], (
        "too late is no answer, nor is a Hello"
    )
    world.advance(30)
    assert [len(world.executor.admit(wanted[cluster])) for cluster in ("c1", "c2")] == [2, 2]

    world.enqueue(wanted["c1"][0])
    world.answer(world.requests()[0], error="cannot render")
    assert world.executor.admit(wanted["c2"]) == wanted["c2"][:4]
    unblocked = [bootstrap(f"c1-{n}", profile=replace(PROFILE, priority=7)) for n in range(6)]
    assert world.executor.admit(unblocked) == unblocked


@rule("shard.E1")
def test_mute_operators_have_their_turns_however_many_there_are() -> None:
    clusters = [f"c{n}" for n in range(6)]
    world = World(concurrency=2, clusters=clusters)
    for cluster in clusters:
        world.add(cluster, IDLE)
    wanted = [bootstrap(cluster, cluster) for cluster in clusters]
    world.enqueue(*wanted)
    world.advance(30)

    turns = []
    for _ in range(3):
        admitted = world.executor.admit(wanted)
        turns.append([action.machine_id for action in admitted])
        world.enqueue(*admitted)
        assert world.executor.admit(wanted) == [], "together they have no more than N"
        world.advance(30)
    assert turns == [["c0", "c1"], ["c2", "c3"], ["c4", "c5"]]


@rule("shard.X9")
def test_what_is_for_a_cluster_without_a_session_is_told_of_once_and_fills_no_queue() -> None:
    world = World(clusters=("c1", "c2"))
    world.sessions.open.discard("c1")
    wanted = [bootstrap(f"m{n}") for n in range(5)]
    others = [provision("s1"), bootstrap("x1", "c2")]
    assert world.executor.admit([*wanted, *others]) == [wanted[0], *others]


@rule("shard.X4", "provider.P-140")
def test_a_provider_on_trial_begins_one_operation_at_a_time() -> None:
    world = World()
    world.add("m1", SPECULATIVE)
    assert world.executor.held_back() == {}
    world.executor.breaker_changed(BreakerChanged("default", BreakerState.OPEN))
    assert world.executor.held_back() == {"default": 0}
    world.executor.breaker_changed(BreakerChanged("default", BreakerState.TRIAL))
    assert world.executor.held_back() == {"default": 1}
    [call] = world.calls(world.enqueue(provision("m1")))
    assert world.executor.held_back() == {"default": 0}, "until it is known what became of it"
    world.succeed(call, CREATING)
    assert world.executor.held_back() == {"default": 1}
    world.executor.breaker_changed(BreakerChanged("default", BreakerState.CLOSED))
    assert world.executor.held_back() == {}
