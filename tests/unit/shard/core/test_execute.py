"""Operations that nothing stands in the way of (shard.md §6.3, R6)."""

import pytest

from bigfleet.engine.actions import Action
from bigfleet.engine.options import SECOND
from bigfleet.shard.core.effects import (
    Assignment,
    ConfigureMachine,
    CreateMachine,
    DeleteMachine,
    DrainMachine,
    GetMachine,
    LogLevel,
    Observe,
    WriteAudit,
)
from bigfleet.shard.core.events import BreakerChanged, BreakerState
from bigfleet.shard.provider import FailureKind
from bigfleet_base.model import CapacityType, Profile
from bigfleet_base.model.lifecycle import (
    CONFIGURED,
    CONFIGURING,
    CREATING,
    DELETING,
    DRAINING,
    IDLE,
    SPECULATIVE,
)
from bigfleet_base.telemetry.catalogue import shard as series
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


# Provision and Bootstrap


@rule("shard.X1", "shard.X3")
def test_a_provision_stamps_the_need_and_tells_it_to_the_provider() -> None:
    world = World()
    world.add("m1", SPECULATIVE)

    [call] = world.calls(world.enqueue(provision("m1")))

    assert call == CreateMachine(1, "default", "m1", ASSIGNMENT, "c1", 30 * SECOND)
    machine = world.machine("m1")
    assert machine.state is CREATING
    assert (machine.assigned_need_fingerprint, machine.assigned_group) == (PROFILE.fingerprint, "g1")
    assert (machine.cluster, machine.target_cluster) == ("", "c1")
    assert world.fleet.sidecar("m1").seen_start


def test_a_create_that_is_under_way_ends_its_operation_and_keeps_its_stamps() -> None:
    world = World()
    world.add("m1", SPECULATIVE)
    [call] = world.calls(world.enqueue(provision("m1")))

    world.succeed(call, CREATING, price_per_hour=2.0)

    machine = world.machine("m1")
    assert (machine.state, machine.price_per_hour, machine.target_cluster) == (CREATING, 2.0, "c1")
    assert world.outcomes() == [("Provision", "success")]
    assert world.released == ["m1"]
    assert not world.executor.is_busy("m1")


def test_a_create_that_is_done_at_once_goes_on_as_a_bootstrap_of_the_same_operation() -> None:
    world = World()
    world.add("m1", SPECULATIVE)
    [create] = world.calls(world.enqueue(provision("m1")))

    world.succeed(create, IDLE)
    [request] = world.requests()
    [configure] = world.calls(world.answer(request))

    assert isinstance(configure, ConfigureMachine)
    assert configure.op == create.op
    world.succeed(configure, CONFIGURED)
    assert world.state("m1") is CONFIGURED
    assert world.outcomes() == [("Provision", "success")]
    assert len(world.audit("action.emitted")) == len(world.audit("action.result")) == 1


@pytest.mark.parametrize("obstacle", ["session", "breaker", "halt"])
def test_a_bought_machine_that_cannot_be_configured_now_is_a_success(obstacle: str) -> None:
    world = World()
    world.add("m1", SPECULATIVE)
    [create] = world.calls(world.enqueue(provision("m1")))
    match obstacle:
        case "session":
            world.sessions.open.clear()
        case "breaker":
            world.executor.breaker_changed(BreakerChanged("default", BreakerState.OPEN))
        case _:
            world.executor.halt()

    world.succeed(create, IDLE)

    assert world.state("m1") is IDLE
    assert world.machine("m1").assigned_need_fingerprint == PROFILE.fingerprint
    assert world.outcomes() == [("Provision", "success")]


@rule("shard.X1", "shard.X3")
def test_a_bootstrap_binds_at_once_and_configures_with_what_it_stamped() -> None:
    world = World()
    world.add("m1", IDLE)

    assert world.calls(world.enqueue(bootstrap("m1"))) == []
    machine = world.machine("m1")
    assert machine.state is CONFIGURING
    assert machine.cluster == "c1"
    assert (
        Assignment(
            machine.assigned_priority,
            machine.assigned_interruption_penalty,
            machine.assigned_reclamation_penalty,
            machine.assigned_need_fingerprint,
            machine.assigned_group,
        )
        == ASSIGNMENT
    )

    [request] = world.requests()
    assert request.requirements == PROFILE.requirements
    assert (request.cluster, request.machine_id) == ("c1", "m1")
    assert request.labels == {
        "rack": "r1",
        "node.kubernetes.io/instance-type": "m1",
        "topology.kubernetes.io/zone": "z1",
    }
    world.advance(2)
    [call] = world.calls(world.answer(request))
    assert call == ConfigureMachine(1, "default", "m1", "c1", request.request_id, ASSIGNMENT, 30 * SECOND)
    assert world.requests() == []
    assert [e.value for e in world.seen(Observe) if e.series is series.REQUEST_BOOTSTRAP] == [2.0]

    world.succeed(call, CONFIGURED)
    assert world.state("m1") is CONFIGURED
    assert world.machine("m1").assigned_priority == 1000
    assert world.outcomes() == [("Bootstrap", "success")]


@rule("shard.X3")
def test_penalties_travel_as_the_bounds_of_their_buckets_infinity_included() -> None:
    world = World(local=True)
    world.add("m1", IDLE)
    [call] = world.calls(world.enqueue(bootstrap("m1", profile=Profile(interruption_bucket=27))))
    assert isinstance(call, ConfigureMachine)
    assert call.assignment.interruption_penalty == float("inf")
    assert world.machine("m1").assigned_interruption_penalty == float("inf")


def test_a_configure_is_accepted_when_the_provider_has_taken_it_and_not_before() -> None:
    world = World()
    world.add("m1", IDLE)
    told: list[bool] = []
    world.fleet.listeners.append(lambda before, after: told.append(world.executor.is_accepted("m1")))

    world.enqueue(bootstrap("m1"))
    assert not world.executor.is_accepted("m1")
    [call] = world.calls(world.answer(world.requests()[0]))
    assert not world.executor.is_accepted("m1")
    world.succeed(call, CONFIGURING)

    assert told == [False, True], "whoever is told of the acceptance must see it"
    assert world.executor.is_accepted("m1")


# Drains


@rule("ruling.R21", "shard.X2")
def test_a_drain_waits_for_the_cordon_and_ends_where_the_provider_says() -> None:
    world = World()
    world.add("m1", CONFIGURED, "c1")
    assert world.calls(world.enqueue(preempt("m1"))) == []
    assert world.state("m1") is DRAINING
    sidecar = world.fleet.sidecar("m1")
    assert sidecar.preempted_for == PREEMPTOR
    assert sidecar.drain_deadline == world.ctx.now + 10 * SECOND
    [instruction] = world.instructions()
    assert (instruction.node, instruction.grace_s, instruction.preemptor_priority) == ("m1", 10, 1_000_000)

    [call] = world.calls(world.ack(instruction.instruction_id))
    assert call == DrainMachine(1, "default", "m1", 10, instruction.instruction_id, PREEMPTOR, 30 * SECOND)
    world.succeed(call, DRAINING)
    assert world.machine("m1").cluster == "c1"
    assert world.machine("m1").assigned_priority == PROFILE.priority
    assert world.outcomes() == [("Preempt", "success")]
    assert world.instructions() == [instruction], "its drain is still under way"


@rule("shard.X2")
def test_a_drain_that_is_done_at_once_clears_the_binding() -> None:
    world = World()
    world.add("m1", CONFIGURED, "c1")
    world.enqueue(reclaim("m1"))
    [call] = world.calls(world.ack(world.instructions()[0].instruction_id))
    world.succeed(call, IDLE)
    assert world.machine("m1") == record("m1", IDLE)
    assert world.fleet.sidecar("m1").last_reclamation_value == 0.5
    assert world.instructions() == []


@rule("ruling.R21")
def test_a_voluntary_reclaim_has_ten_minutes_and_nobody_before_it() -> None:
    world = World()
    world.add("m1", CONFIGURED, "c1")
    world.outboxes.names["m1"] = "node-1"
    world.enqueue(reclaim("m1"))
    [instruction] = world.instructions()
    assert (instruction.node, instruction.grace_s, instruction.preemptor_priority) == ("node-1", 600, 0)


@rule("ruling.R21", "shard.X5")
def test_a_cordon_is_waited_for_five_seconds_whatever_the_session_does() -> None:
    world = World()
    world.add("m1", CONFIGURED, "c1")
    world.enqueue(reclaim("m1"))
    [instruction] = world.instructions()
    world.sessions.open.clear()
    assert world.calls(world.advance(4.9)) == []
    [call] = world.calls(world.advance(0.1))
    assert isinstance(call, DrainMachine)
    assert world.instructions() == [instruction]
    [line] = world.logs("reclaim not acknowledged; draining")
    assert line == {"level": LogLevel.WARN, "kind": "Reclaim", "machine": "m1", "cluster": "c1"}


@rule("ruling.R21")
@pytest.mark.parametrize("action", [reclaim("m1"), preempt("m1")])
def test_without_a_session_a_drain_does_not_wait_but_leaves_its_instruction(action: Action) -> None:
    world = World(clusters=())
    world.add("m1", CONFIGURED, "c1")
    [call] = world.calls(world.enqueue(action))
    assert isinstance(call, DrainMachine)
    assert len(world.instructions()) == 1
    [line] = world.logs("reclaim fallback: no operator session; PDB-respecting drain skipped")
    assert line["kind"] == action.kind.value


@rule("ruling.R21")
def test_an_acknowledgement_without_a_node_is_one_all_the_same() -> None:
    world = World()
    world.add("m1", CONFIGURED, "c1")
    world.enqueue(reclaim("m1"))
    assert len(world.calls(world.ack(world.instructions()[0].instruction_id, nodes=0))) == 1
    assert len(world.logs("reclaim acknowledged without a node")) == 1


def test_an_acknowledgement_of_another_cluster_or_of_nothing_counts_for_nothing() -> None:
    world = World()
    world.add("m1", CONFIGURED, "c1")
    world.enqueue(reclaim("m1"))
    [instruction] = world.instructions()
    assert world.calls(world.ack(instruction.instruction_id, cluster="c2")) == []
    assert world.calls(world.ack("shard-0-7-99")) == []


# Deletes


def test_a_delete_that_is_done_empties_the_slot_and_counts_as_a_release() -> None:
    world = World()
    world.add("m1", IDLE, assigned_need_fingerprint="f", target_cluster="c1")
    [call] = world.calls(world.enqueue(delete("m1")))
    assert call == DeleteMachine(1, "default", "m1", CapacityType.ON_DEMAND, 30 * SECOND)
    assert world.state("m1") is DELETING
    world.succeed(call, SPECULATIVE)
    assert world.machine("m1") == record("m1", SPECULATIVE)
    assert world.counted(series.IDLE_RELEASES) == 1


def test_a_release_is_counted_however_its_end_is_learnt() -> None:
    world = World()
    world.add("m1", IDLE)
    [call] = world.calls(world.enqueue(delete("m1")))
    world.succeed(call, DELETING)
    assert world.counted(series.IDLE_RELEASES) == 0
    world.fleet.observe(record("m1", SPECULATIVE))
    world.settle()
    assert world.counted(series.IDLE_RELEASES) == 1


@rule("shard.X4", "ruling.R16", "provider.P-142")
def test_a_provider_without_delete_keeps_the_machine_and_is_not_asked_again() -> None:
    world = World(concurrency=1)
    world.add("m1", IDLE)
    world.add("m2", IDLE)
    world.add("m3", IDLE, capacity_type=CapacityType.SPOT)
    [call] = world.calls(world.enqueue(delete("m1"), delete("m2"), delete("m3")))

    [other] = world.calls(world.fail(call, FailureKind.NOT_SUPPORTED, "UNIMPLEMENTED"))

    assert other.machine_id == "m3", "another capacity type may be deletable"
    assert world.state("m1") is world.state("m2") is IDLE
    assert world.outcomes() == [("Delete", "provider_error")] * 2
    assert world.ctx.engine.inventory.is_not_deletable("m2")
    assert world.seen(GetMachine) == []


# The audit log


@rule("shard.R6")
def test_an_action_is_explained_before_its_first_call_and_its_result_follows() -> None:
    world = World()
    world.add("m1", IDLE)
    world.add("m2", CONFIGURED, "c2")
    world.enqueue(
        bootstrap("m1")._replace(runner_up_cost=2.5), preempt("m2", "c2")._replace(victim_score=0.25)
    )
    world.succeed(world.calls(world.answer(world.requests()[0]))[0], CONFIGURING)
    world.succeed(
        world.calls(world.ack(world.instructions("c2")[0].instruction_id, cluster="c2"))[0], DRAINING
    )

    # A drain begins when it is queued, a bootstrap when its cluster has room for its request.
    second, first = world.audit("action.emitted")
    assert {k: v for k, v in first.items() if k not in ("t", "seq", "cycle")} == {
        "shard": "shard-0",
        "type": "action.emitted",
        "machine_id": "m1",
        "cluster": "c1",
        "op_id": "7-1",
        "kind": "Bootstrap",
        "need_fp": PROFILE.fingerprint,
        "group": "g1",
        "priority": 1000,
        "reason": "phase1.idle",
        "cost": 1.5,
        "runner_up_cost": 2.5,
    }
    assert {k: v for k, v in second.items() if k not in ("t", "seq", "cycle")} == {
        "shard": "shard-0",
        "type": "action.emitted",
        "machine_id": "m2",
        "cluster": "c2",
        "op_id": "7-2",
        "kind": "Preempt",
        "need_fp": PREEMPTOR.need_fingerprint,
        "group": "g9",
        "priority": 1_000_000,
        "reason": "phase2.inversion",
        "grace_s": 10,
        "victim_score": 0.25,
    }
    results = world.audit("action.result")
    assert [(line["op_id"], line["outcome"]) for line in results] == [("7-1", "success"), ("7-2", "success")]
    for call in world.calls():
        told = [
            n
            for n, e in enumerate(world.history)
            if isinstance(e, WriteAudit)
            and dict(e.line)["type"] == "action.emitted"
            and dict(e.line)["op_id"] == f"7-{call.op}"
        ]
        assert len(told) == 1
        assert told[0] < world.history.index(call)


@rule("shard.R6")
def test_what_operators_are_asked_and_answer_is_told_too() -> None:
    world = World()
    for n in (1, 2, 3):
        world.add(f"m{n}", IDLE)
        world.add(f"d{n}", CONFIGURED, "c1")
    world.enqueue(bootstrap("m1"), bootstrap("m2"), reclaim("d1"), reclaim("d2"))
    answered, _ = world.requests()
    world.answer(answered, error="broken")
    world.ack(world.instructions()[0].instruction_id)
    world.advance(30)
    world.sessions.open.clear()
    world.enqueue(reclaim("d3"))
    asked = [
        (line["type"], line["machine_id"], line.get("reason", line.get("err", line.get("count"))))
        for line in world.audit()
        if str(line["type"]).startswith(("bootstrap.", "reclaim."))
    ]
    assert asked == [
        ("reclaim.instruction", "d1", None),
        ("reclaim.instruction", "d2", None),
        ("bootstrap.request", "m1", None),
        ("bootstrap.request", "m2", None),
        ("bootstrap.response", "m1", "broken"),
        ("reclaim.ack", "d1", 1),
        ("reclaim.fallback", "d2", "not acknowledged"),
        ("bootstrap.timeout", "m2", None),
        ("reclaim.instruction", "d3", None),
        ("reclaim.fallback", "d3", "no session"),
    ]


@rule("shard.R6")
def test_an_action_that_starts_nothing_is_not_in_the_audit_log() -> None:
    world = World(clusters=())
    world.add("m1", IDLE)
    world.enqueue(bootstrap("m1"), bootstrap("m1"))
    assert world.audit() == []


# A running cycle


def test_answers_that_come_while_a_cycle_runs_are_applied_to_what_it_does_not_see() -> None:
    world = World()
    world.add("m1", IDLE)
    call = None
    world.enqueue(bootstrap("m1"))
    world.ctx.engine.inventory.freeze()
    [call] = world.calls(world.answer(world.requests()[0]))
    world.succeed(call, CONFIGURED)
    assert world.state("m1") is CONFIGURED
    assert world.ctx.engine.inventory.count(CONFIGURED) == 0
    world.ctx.engine.inventory.thaw()
    assert world.ctx.engine.inventory.count(CONFIGURED) == 1
