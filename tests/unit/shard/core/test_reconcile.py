"""Merging of Lists and Gets (shard.md §5, X8, provider.md P-135 and P-136)."""

import math
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from bigfleet.engine.options import SECOND
from bigfleet.shard.core.effects import Count, GetMachine, Show, WriteAudit, WriteLog
from bigfleet.shard.core.events import Failure, Observed
from bigfleet.shard.core.settings import MINUTE
from bigfleet.shard.provider import FailureKind
from bigfleet_base.model import Preemptor
from bigfleet_base.telemetry.catalogue import shard as series
from tests.support.rules import rule
from tests.unit.shard.core.reconcile_world import (
    CONFIGURED,
    CONFIGURING,
    CREATING,
    DELETING,
    DRAINING,
    FAILED,
    IDLE,
    NOT_FOUND,
    SPECULATIVE,
    UNAVAILABLE,
    World,
    machine,
)

STAMPS: dict[str, Any] = {
    "assigned_priority": 1_000_000,
    "assigned_interruption_penalty": math.inf,
    "assigned_reclamation_penalty": 8.0,
    "assigned_need_fingerprint": "f" * 64,
    "assigned_group": "g",
}
NO_STAMPS: dict[str, Any] = {
    "assigned_priority": 0,
    "assigned_interruption_penalty": 0.0,
    "assigned_reclamation_penalty": 0.0,
    "assigned_need_fingerprint": "",
    "assigned_group": "",
}
JUMP = "provider shows a change that was not asked for; adopted"


def stamps_of(world: World, machine_id: str = "m-1") -> dict[str, object]:
    return {name: getattr(world.machine(machine_id), name) for name in STAMPS}


# In flight


@rule("shard.Q1", "provider.P-135")
def test_list_does_not_touch_a_machine_with_an_operation_and_reads_it_when_that_has_ended() -> None:
    world = World()
    world.list(machine())
    world.busy.add("m-1")
    world.command(machine(state=CONFIGURING, **STAMPS))
    for _ in range(4):
        world.list(machine())
    assert world.machine().state is CONFIGURING
    assert world.gets() == []
    world.release("m-1")
    assert world.gets() == ["m-1"]
    world.answer("m-1", machine(state=CONFIGURED))
    assert world.machine().state is CONFIGURED
    assert stamps_of(world) == STAMPS


@rule("shard.Q1")
def test_list_asked_for_before_the_last_write_of_the_executor_is_read_again_by_get() -> None:
    world = World()
    world.list(machine())
    asked = world.ctx.now
    world.wait(1)
    world.command(machine(state=CONFIGURING))
    world.list(machine(state=FAILED), started=asked)
    assert world.machine().state is CONFIGURING
    assert world.gets() == ["m-1"]


def test_list_asked_for_in_the_moment_of_a_write_is_not_trusted_and_a_get_is() -> None:
    world = World()
    world.list(machine())
    world.command(machine(state=CONFIGURING))
    world.list(machine(state=FAILED), started=world.ctx.now)
    assert world.machine().state is CONFIGURING
    assert world.gets() == ["m-1"]
    world.answer("m-1", machine(state=CONFIGURED))
    assert world.machine().state is CONFIGURED


def test_page_that_is_too_old_breaks_a_row_that_a_later_page_would_have_counted() -> None:
    world = World()
    world.list(machine())
    world.fleet.observe(machine(state=CONFIGURED))
    world.list(machine())
    world.list()
    asked = world.ctx.now
    world.wait(1)
    world.fleet.take_back(machine(state=CONFIGURED))
    world.slice(machine(price_per_hour=2.0), started=asked)
    world.wait(1)
    world.end()
    assert world.machine().state is CONFIGURED
    assert world.gets() == ["m-1"]


def test_get_that_was_overtaken_by_an_operation_is_sent_again_when_that_has_ended() -> None:
    world = World()
    world.list(machine())
    world.command(machine(state=CONFIGURING))
    world.list(machine(), started=world.ctx.now)
    assert world.gets() == ["m-1"]
    asked = world.ctx.now
    world.wait(1)
    world.busy.add("m-1")
    world.answer("m-1", machine(), started=asked)
    assert world.machine().state is CONFIGURING
    assert world.gets() == []
    world.wait(1)
    world.release("m-1")
    assert world.gets() == ["m-1"]


def test_one_machine_has_one_get_at_a_time() -> None:
    world = World()
    world.list(machine())
    world.command(machine(state=CONFIGURING))
    asked = world.ctx.now
    world.list(machine(), started=asked)
    assert world.gets() == ["m-1"]
    world.wait(1)
    world.list(machine(price_per_hour=2.0), started=asked)
    world.wait(1)
    assert world.gets() == []
    world.answer("m-1", machine(state=CONFIGURING), started=asked)
    world.wait(1)
    assert world.gets() == ["m-1"], "the record that came meanwhile is newer than the first Get may be"


def test_at_most_fifty_machines_a_second_are_read_again() -> None:
    world = World()
    ids = [f"m-{n:03}" for n in range(120)]
    world.list(*(machine(i) for i in ids))
    for machine_id in ids:
        world.command(machine(machine_id, CONFIGURING))
    world.list(*(machine(i) for i in ids), started=world.ctx.now)
    sent = len(world.gets())
    for _ in range(20):
        world.wait(0.1)
        sent += (got := len(world.gets()))
        assert got <= 5
    assert 90 <= sent <= 101
    world.wait(1)
    assert sent + len(world.gets()) == 120


@pytest.mark.parametrize("kind", [k for k in FailureKind if k is not FailureKind.NOT_FOUND])
def test_get_that_fails_is_tried_again_after_the_next_list(kind: FailureKind) -> None:
    world = World()
    world.list(machine())
    world.command(machine(state=CONFIGURING))
    world.list(machine(), started=world.ctx.now)
    assert world.gets() == ["m-1"]
    world.answer("m-1", Failure(kind, "X", "why"))
    world.wait(5)
    assert world.gets() == []
    world.list()
    assert world.gets() == ["m-1"]


@rule("shard.Q2")
def test_what_was_seen_during_an_operation_is_taken_although_the_provider_stumbles_over_the_get() -> None:
    world = World()
    world.list(machine(state=CONFIGURED))
    world.busy.add("m-1")
    world.list(machine(state=FAILED, cluster="a"))
    world.release("m-1")
    assert world.gets() == ["m-1"]
    world.answer("m-1", Failure(FailureKind.FAILED, "INTERNAL", "a hiccup"))
    world.list()
    for machine_id in world.gets():
        world.answer(machine_id, machine(state=FAILED, cluster="a"))
    assert world.state_of("m-1") is FAILED


def test_get_that_nobody_waits_for_any_more_is_not_tried_again() -> None:
    world = World()
    world.list(*(machine(f"m-{n}") for n in range(1, 30)))
    world.command(machine(state=CONFIGURING))
    world.list(machine(), started=world.ctx.now)
    assert world.gets() == ["m-1"]
    world.list(gone=("m-1",))
    assert world.state_of("m-1") is None
    world.answer("m-1", UNAVAILABLE)
    world.list()
    assert world.gets() == []


def test_times_of_writes_are_forgotten_when_no_list_can_be_older() -> None:
    world = World("p", "q")
    world.list(machine(), machine("m-2"), provider="p")
    world.list(provider="q")
    world.command(machine(state=CONFIGURING))
    world.wait(1)
    world.reconcile.state.lists.loops["q"].is_running = True
    world.reconcile.state.lists.loops["q"].asked = world.ctx.now - 5 * SECOND
    world.end(provider="p")
    assert set(world.fleet.state.touched) == {"m-1"}, "q's List, still running, is older than the write"
    world.end(provider="q")
    assert world.fleet.state.touched == {}


# Observed transitions


@rule("shard.Q2", "provider.P-136")
@pytest.mark.parametrize(
    ("before", "after"),
    [
        (CREATING, IDLE),
        (CONFIGURING, CONFIGURED),
        (DRAINING, IDLE),
        (DELETING, SPECULATIVE),
        (CONFIGURED, FAILED),
        (IDLE, FAILED),
        (CREATING, FAILED),
        (FAILED, IDLE),
        (FAILED, SPECULATIVE),
    ],
)
def test_change_in_the_ordinary_course_is_taken_at_once(before: int, after: int) -> None:
    world = World()
    world.list(machine(state=type(IDLE)(before)))
    target = type(IDLE)(after)
    world.wait(10)
    world.slice(machine(state=target, cluster="a" if before == CONFIGURED else ""))
    assert world.machine().state is target
    assert not world.logged(JUMP)
    assert world.took(WriteAudit) == []


@rule("shard.Q2", "shard.R6", "provider.P-136")
def test_any_other_change_is_taken_after_three_lists_and_then_logged_counted_and_audited() -> None:
    world = World()
    world.list(machine(state=CONFIGURED))
    world.list(machine())
    world.list()
    assert world.machine().state is CONFIGURED
    world.effects()
    world.list()
    assert world.machine().state is IDLE
    assert Count(series.RECONCILE_OBSERVED_JUMPS, ("Configured", "Idle")) in world.ctx.effects
    (audited,) = world.took(WriteAudit)
    line = dict(audited.line)
    assert (line["type"], line["machine_id"], line["from"], line["to"], line["cluster"]) == (
        "machine.transition",
        "m-1",
        "Configured",
        "Idle",
        "a",
    )
    assert world.logged(JUMP) == 1


@rule("shard.Q2")
def test_lagging_list_does_not_take_a_machine_out_of_its_cluster() -> None:
    world = World()
    world.list(machine())
    world.command(machine(state=CONFIGURING, **STAMPS))
    world.writes.clear()
    world.list(machine())
    world.list()
    world.list(machine(state=CONFIGURED))
    assert [after.cluster for _, after in world.writes if after is not None] == ["a"]
    assert world.machine().state is CONFIGURED


@rule("shard.Q2", "shard.Q6")
def test_machine_that_three_lists_show_in_another_cluster_is_that_clusters_and_both_are_told() -> None:
    world = World()
    world.list(machine(state=CONFIGURED, **STAMPS))
    world.writes.clear()
    world.list(machine(state=CONFIGURED, cluster="b", assigned_priority=7))
    world.list()
    assert world.writes == []
    world.list()
    ((before, after),) = world.writes
    assert before is not None and after is not None
    assert (before.cluster, after.cluster) == ("a", "b")
    assert stamps_of(world) == {**NO_STAMPS, "assigned_priority": 7}


@rule("shard.Q2")
def test_failure_with_another_clusters_name_on_it_is_not_taken_at_first_sight() -> None:
    world = World()
    world.list(machine(state=CONFIGURED))
    world.list(machine(state=FAILED, cluster="b"))
    assert world.machine().state is CONFIGURED


@rule("shard.Q2")
@pytest.mark.parametrize(
    "breaks",
    ["another place", "our place", "a refused record", "an operation"],
)
def test_observations_of_a_jump_must_be_consecutive(breaks: str) -> None:
    world = World()
    world.list(machine(state=CONFIGURED))
    world.list(machine())
    world.list()
    match breaks:
        case "another place":
            world.list(machine(state=SPECULATIVE))
            world.list(machine())
        case "our place":
            world.list(machine(state=CONFIGURED))
            world.list(machine())
        case "a refused record":
            world.list(rejected=("m-1",))
            world.list()
        case _:
            world.busy.add("m-1")
            world.list()
            world.busy.clear()
            world.list(machine())
    assert world.machine().state is CONFIGURED
    world.list()
    assert world.machine().state is CONFIGURED
    world.list()
    assert world.machine().state is IDLE


def test_failed_list_shows_nothing_by_its_silence() -> None:
    world = World()
    world.list(machine(state=CONFIGURED))
    world.list(machine())
    for _ in range(5):
        world.wait(10)
        world.fail()
    assert world.machine().state is CONFIGURED
    world.list()
    assert world.machine().state is CONFIGURED
    world.list()
    assert world.machine().state is IDLE


@rule("shard.Q2", "shard.X4")
def test_first_record_after_a_lost_answer_is_adopted_whatever_it_says() -> None:
    world = World()
    world.list(machine())
    world.command(machine(state=CONFIGURING, **STAMPS))
    running = world.ctx.now + 1
    world.wait(30)
    world.reconcile.verify("m-1")
    world.list(machine(), started=running)
    assert world.machine().state is CONFIGURING, "that List is older than the verification"
    world.list(machine())
    assert world.machine().state is IDLE
    assert stamps_of(world) == NO_STAMPS
    assert not world.logged(JUMP), "it is the end of an operation, not a surprise"
    world.list(machine(state=CONFIGURED))
    assert world.machine().state is IDLE, "one verification believes one record"


@rule("shard.X4")
def test_machine_under_verification_that_a_delta_does_not_name_is_asked_for() -> None:
    world = World()
    world.list(machine())
    world.command(machine(state=CONFIGURING))
    world.reconcile.verify("m-1")
    world.list(complete=False)
    assert world.gets() == ["m-1"]
    world.answer("m-1", NOT_FOUND)
    assert world.fleet.machine("m-1") is None


def test_get_that_finds_nothing_removes_only_a_machine_under_verification() -> None:
    world = World()
    world.list(machine())
    world.command(machine(state=CONFIGURING))
    world.list(machine(), started=world.ctx.now)
    assert world.gets() == ["m-1"]
    world.answer("m-1", NOT_FOUND)
    assert world.machine().state is CONFIGURING


@rule("shard.Q2")
def test_record_read_by_get_is_adopted_at_once_and_a_surprise_is_told() -> None:
    world = World()
    world.list(machine(state=CONFIGURED))
    world.answer("m-1", machine(state=SPECULATIVE))
    assert world.machine().state is SPECULATIVE
    assert Count(series.RECONCILE_OBSERVED_JUMPS, ("Configured", "Speculative")) in world.ctx.effects


# What is assigned


@rule("shard.Q4", "shard.X2", "provider.P-135")
def test_binding_and_assignment_are_cleared_once_when_the_drain_has_ended() -> None:
    world = World()
    world.list(machine(state=CONFIGURED, **STAMPS))
    world.command(machine(state=DRAINING, **STAMPS))
    world.list(machine(state=DRAINING))
    assert world.machine().cluster == "a"
    assert stamps_of(world) == STAMPS
    world.writes.clear()
    world.list(machine())
    world.list()
    ((before, after),) = world.writes
    assert before is not None and before.cluster == "a"
    assert after == world.machine() and after.cluster == ""
    assert stamps_of(world) == NO_STAMPS


@rule("shard.Q4")
def test_assignment_survives_the_end_of_a_configure() -> None:
    world = World()
    world.list(machine())
    world.command(machine(state=CONFIGURING, **STAMPS))
    world.list(machine(state=CONFIGURED))
    assert stamps_of(world) == STAMPS


@rule("shard.Q4")
def test_purchase_keeps_whom_it_was_made_for_until_it_is_configured() -> None:
    world = World()
    world.list(machine(state=SPECULATIVE))
    bought: dict[str, Any] = {
        "assigned_need_fingerprint": "f" * 64,
        "assigned_group": "g",
        "target_cluster": "a",
    }
    world.command(machine(state=CREATING, **bought))
    world.list(machine())
    assert {name: getattr(world.machine(), name) for name in bought} == bought
    world.list(machine(price_per_hour=3.0))
    assert {name: getattr(world.machine(), name) for name in bought} == bought


@rule("shard.Q4")
def test_machine_that_fails_loses_its_assignment_and_keeps_its_cluster() -> None:
    world = World()
    world.list(machine(state=CONFIGURED, **STAMPS))
    world.list(machine(state=FAILED, cluster="a", **STAMPS))
    assert world.machine().cluster == "a"
    assert stamps_of(world) == NO_STAMPS


def test_machine_that_comes_back_from_failure_takes_its_assignment_from_the_record() -> None:
    world = World()
    world.list(machine(state=CONFIGURED, **STAMPS))
    world.list(machine(state=FAILED, cluster="a", **STAMPS))
    for _ in range(3):
        world.list(machine(state=CONFIGURED, **STAMPS))
    assert world.machine().state is CONFIGURED
    assert stamps_of(world) == STAMPS


@rule("shard.Q5", "shard.P3")
def test_fresh_shard_takes_assignment_from_the_records() -> None:
    world = World()
    world.list(machine(state=CONFIGURED, **STAMPS))
    assert stamps_of(world) == STAMPS


@rule("shard.Q5", "ruling.R15")
def test_fresh_shard_knows_whom_machines_in_flight_are_for() -> None:
    world = World()
    preemptor = Preemptor("b", 1_000_000, "e" * 64, "")
    world.list(
        Observed(machine(state=DRAINING, **STAMPS), "s-1-7", preemptor),
        machine("m-2", CREATING, assigned_need_fingerprint="f" * 64, target_cluster="a"),
        Observed(machine("m-3", CONFIGURED), "s-1-8", preemptor),
    )
    sidecar = world.fleet.sidecar("m-1")
    assert (sidecar.preempted_for, sidecar.seen_start, sidecar.drain_deadline) == (preemptor, False, None)
    assert world.outboxes.echoes == [("m-1", "s-1-7")]
    assert world.fleet.sidecar("m-2").seen_start is False
    assert world.machine("m-2").target_cluster == "a"
    assert world.fleet.sidecar("m-3").preempted_for is None


@rule("ruling.R15")
def test_drain_that_is_seen_only_by_list_brings_its_preemptor_and_instruction() -> None:
    world = World()
    preemptor = Preemptor("b", 1_000_000, "e" * 64, "")
    world.list(machine(state=CONFIGURED, **STAMPS))
    for _ in range(3):
        world.list(Observed(machine(state=DRAINING), "s-1-7", preemptor))
    assert world.machine().state is DRAINING
    assert stamps_of(world) == STAMPS
    assert world.fleet.sidecar("m-1").preempted_for == preemptor
    assert world.outboxes.echoes == [("m-1", "s-1-7")]


@rule("shard.Q6")
def test_state_learnt_from_a_list_is_written_once() -> None:
    world = World()
    world.list(machine())
    world.command(machine(state=CONFIGURING))
    world.writes.clear()
    world.list(machine(state=CONFIGURED))
    world.list(machine(state=CONFIGURED))
    world.list()
    assert [after.state for _, after in world.writes if after is not None] == [CONFIGURED]


# Facts, refusals, domains


@rule("shard.Q9", "shard.Q11", "provider.P-131")
def test_price_of_an_idle_machine_is_refreshed_and_its_clock_is_not() -> None:
    world = World()
    world.list(machine())
    since = world.fleet.sidecar("m-1").idle_since
    world.list(machine(price_per_hour=2.0, labels={"rack": "r2"}, interruption_probability=0.99))
    assert world.machine().price_per_hour == 2.0
    assert world.machine().interruption_probability == 0.99
    assert world.machine().labels == {"rack": "r2"}
    assert world.fleet.sidecar("m-1").idle_since == since


@rule("shard.Q9")
def test_refresh_keeps_what_is_assigned() -> None:
    world = World()
    world.list(machine(state=CONFIGURED, **STAMPS))
    world.list(machine(state=CONFIGURED, price_per_hour=2.0))
    assert world.machine().price_per_hour == 2.0
    assert stamps_of(world) == STAMPS


def test_record_that_says_nothing_new_is_not_written() -> None:
    world = World()
    world.list(machine())
    world.writes.clear()
    world.list(machine())
    assert world.writes == []


@rule("shard.Q11")
def test_idle_clock_starts_when_idle_is_seen() -> None:
    world = World()
    world.list(machine(state=DRAINING))
    assert world.fleet.sidecar("m-1").idle_since is None
    world.list(machine())
    assert world.fleet.sidecar("m-1").idle_since == world.ctx.now


@rule("shard.Q3", "provider.P-133")
def test_refused_record_leaves_its_machine_as_it_is_and_its_neighbours_alone() -> None:
    world = World()
    world.list(machine(), machine("m-2"))
    for _ in range(5):
        world.list(machine("m-2", FAILED), rejected=("m-1",))
    assert world.machine().state is IDLE
    assert world.machine("m-2").state is FAILED


@rule("shard.Q10")
def test_shard_with_domains_knows_only_machines_inside_them() -> None:
    world = World(domains=(("rack", "r1"), ("topology.kubernetes.io/zone", "zone-b")))
    world.list(
        machine("in-rack", labels={"rack": "r1"}),
        machine("out", labels={"rack": "r2"}),
        machine("bare"),
        machine("in-zone", zone="zone-b"),
    )
    assert sorted(world.ctx.engine.inventory) == ["in-rack", "in-zone"]


@rule("shard.Q10")
def test_machine_that_leaves_the_domains_leaves_the_inventory() -> None:
    world = World(domains=(("rack", "r1"),))
    inside = [machine(f"m-{n}", labels={"rack": "r1"}) for n in range(4)]
    world.list(*inside)
    world.list(replace(inside[0], labels={"rack": "r2"}))
    assert sorted(world.ctx.engine.inventory) == ["m-1", "m-2", "m-3"]
    world.list(*(replace(each, labels={"rack": "r2"}) for each in inside[1:]))
    assert len(world.ctx.engine.inventory) == 3, "all at once looks like a mistake"
    world.list()
    world.list()
    world.wait(1)
    for machine_id in world.gets():
        world.answer(machine_id, machine(machine_id, labels={"rack": "r2"}))
    assert len(world.ctx.engine.inventory) == 0


# Stuck machines


def _stuck(world: World) -> dict[tuple[str, ...], float]:
    world.effects()
    world.reconcile.show_gauges()
    (shown,) = [s for s in world.took(Show) if s.series is series.STUCK_TRANSITIONS]
    return {labels: value for labels, value in shown.values if value}


@rule("shard.X8")
def test_machine_that_is_created_for_too_long_is_asked_for_logged_and_shown() -> None:
    world = World()
    world.reconcile.start()
    world.list(machine(state=CREATING))
    world.wait(20 * 60 - 1)
    assert _stuck(world) == {}
    world.wait(61)
    assert world.gets() == ["m-1"]
    assert _stuck(world) == {("Creating",): 1}
    world.answer("m-1", machine(state=CREATING))
    (line,) = world.took(WriteLog)
    assert line.msg == "machine stuck"
    assert dict(line.fields)["timeout_s"] == 1200
    assert world.machine().state is CREATING, "never Failed on our own"
    world.answer("m-1", machine())
    assert _stuck(world) == {}


@rule("shard.X8", "ruling.R17")
def test_stuck_machines_are_asked_for_once_a_minute_and_ten_a_second_in_all() -> None:
    world = World()
    world.reconcile.start()
    ids = [f"m-{n:02}" for n in range(25)]
    world.list(*(machine(i, CREATING) for i in ids))
    world.wait(20 * 60)
    world.gets()
    asked: dict[str, list[int]] = {}
    for _ in range(180):
        world.wait(1)
        got = world.gets()
        assert len(got) <= 10
        for machine_id in got:
            asked.setdefault(machine_id, []).append(world.ctx.now)
            world.answer(machine_id, machine(machine_id, CREATING))
    assert set(asked) == set(ids)
    for times in asked.values():
        assert all(b - a >= MINUTE for a, b in pairwise(times))
        assert len(times) in (2, 3)


@rule("shard.X8")
@pytest.mark.parametrize(
    ("preemptor", "priority", "deadline_s", "budget_s"),
    [
        (None, 0, 120, 120 + 900),
        (None, 0, None, 600 + 900),
        (Preemptor("b", 1_000_000, "e", ""), 0, None, 10 + 900),
        (Preemptor("b", 1_000_000, "e", ""), 1_000_000, None, 600 + 900),
    ],
)
def test_drain_may_take_its_grace_and_fifteen_minutes(
    preemptor: Preemptor | None, priority: int, deadline_s: int | None, budget_s: int
) -> None:
    world = World()
    if deadline_s is None:
        world.list(Observed(machine(state=DRAINING, assigned_priority=priority), "", preemptor))
    else:
        world.list(machine(state=CONFIGURED))
        world.command(machine(state=DRAINING), deadline=world.ctx.now + deadline_s * SECOND)
    world.wait(budget_s)
    assert _stuck(world) == {}
    world.wait(1)
    assert _stuck(world) == {("Draining",): 1}


def test_age_of_the_oldest_transition_is_shown_by_state() -> None:
    world = World()
    world.list(machine(state=CREATING))
    world.list(machine("m-2", CREATING), machine("m-3", CONFIGURING))
    world.wait(5)
    world.effects()
    world.reconcile.show_gauges()
    (shown,) = [s for s in world.took(Show) if s.series is series.INVENTORY_OLDEST_TRANSITION]
    assert dict(shown.values) == {("Creating",): 15.0, ("Configuring",): 5.0}


# Cost


def test_ordinary_records_leave_nothing_behind() -> None:
    world = World()
    world.list(*(machine(f"m-{n:04}", IDLE if n % 2 else CONFIGURED) for n in range(1_000)))
    state = world.reconcile.state.providers["p"]
    assert (state.jumps.seen, state.removals.missing, state.todo) == ({}, {}, [])
    assert (state.rereads.ready, state.rereads.waiting) == ({}, {})
    assert world.reconcile.state.verifying == {}
    assert world.took(GetMachine) == []


def test_list_that_moves_every_machine_is_written_in_slices() -> None:
    world = World()
    ids = [f"m-{n:04}" for n in range(600)]
    world.list(*(machine(i, CONFIGURED) for i in ids))
    world.list(*(machine(i) for i in ids))
    world.list()
    world.wait(10)
    world.writes.clear()
    world.end()
    assert len(world.writes) == 256
    world.wait(0.001)
    assert len(world.writes) == 600
    assert [after.id for _, after in world.writes if after is not None] == ids
