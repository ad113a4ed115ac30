"""Executing under limits, blocks and a clock that stands still (shard.md §6, §9)."""

from collections import Counter
from dataclasses import replace

import pytest

from bigfleet.engine.options import Options
from bigfleet.shard.core import events
from bigfleet.shard.core.outcomes import Outcome
from bigfleet.shard.provider import FailureKind
from bigfleet.shard.recording.checkpoint import capture
from bigfleet.sim.operator import Habits
from bigfleet_base.model import CapacityType, MachineState
from bigfleet_base.model.frames import BootstrapRequest
from bigfleet_base.telemetry.catalogue import Role
from bigfleet_base.telemetry.catalogue import shard as series
from bigfleet_base.telemetry.metrics import Metrics
from tests.shard.lab import DEPLOYED, MINUTE, SECOND, Lab, failure, machines, need, serving
from tests.support.rules import rule

S = MachineState
QUIET = Habits(rollup_interval=60 * MINUTE)


@rule("shard.X6", "shard.X7")
def test_labels_that_nothing_leads_to_are_in_the_scrape_at_zero() -> None:
    scrape = Metrics(Role.SHARD).render().decode()
    kept_for_dashboards = {"transition_raced_to_idle", "other"}
    [_, outcome] = series.ACTION_OUTCOMES.labels

    assert {each.value for each in Outcome} | kept_for_dashboards == set(outcome.values or ())
    for label in kept_for_dashboards:
        assert f'{series.ACTION_OUTCOMES.name}{{kind="Bootstrap",outcome="{label}"}} 0.0' in scrape


@rule("shard.E4")
def test_actions_without_a_place_in_the_queue_are_counted_once_and_follow_without_the_timer() -> None:
    lab = Lab(machines(300), concurrency=1)
    habits = Habits(answers=False, rollup_interval=60 * MINUTE)
    operator = lab.operator("c1", need("c1", 300), habits=habits)
    lab.run_until(lambda: lab.counter(series.ACTIONS, "Bootstrap") > 0)
    assert lab.counter(series.ACTIONS, "Bootstrap") == 256
    assert lab.counter(series.ACTIONS_DROPPED) == 44
    assert lab.core.executor.depth() == 256

    habits.answers = True
    operator.disconnect(come_back_after=0)
    lab.run(5)
    assert len(lab.ids(S.CONFIGURED)) == 300
    assert lab.counter(series.CYCLE_TRIGGER, "drain") >= 1


@rule("shard.R1", "shard.R5")
def test_what_the_action_limit_cuts_is_not_charged_to_the_reclaim_cap() -> None:
    wanted = need("c1", 100)
    lab = Lab(serving(wanted, 100), options=replace(DEPLOYED, max_actions=2))
    operator = lab.operator("c1", wanted, habits=QUIET)
    lab.run(15)
    cycles = lab.core.debug_state()["cycle"]
    operator.demand()
    lab.run(0.1)
    assert lab.provider.count("Drain") == 2
    lab.run(5)

    assert 5 <= lab.provider.count("Drain") <= 2 * (lab.core.debug_state()["cycle"] - cycles)
    lab.run(4.9)
    assert lab.provider.count("Drain") <= 2 * 5 + 1


@rule("shard.R6", "shard.L4", "shard.R5")
def test_a_cycle_that_defers_for_several_reasons_says_so_in_one_line() -> None:
    wanted = need("c1", 4)
    lab = Lab([*serving(wanted, 4), *machines(30, prefix="i")], options=replace(DEPLOYED, max_actions=2))
    operator = lab.operator("c1", wanted, habits=QUIET)
    lab.run(15)
    lab.provider.list_failure = failure("UNAVAILABLE")
    lab.run(40)
    operator.demand(need("c1", 1))
    lab.operator("c2", need("c2", 30), habits=QUIET)
    lab.run(3)

    lines = Counter(line["cycle"] for line in lab.notes.lines_of_audit("action.deferred"))
    assert set(lines.values()) == {1}
    reasons = ("limit", "settling", "outbox", "provider")
    counted = sum(lab.counter(series.ACTIONS_DEFERRED, reason) for reason in reasons)
    assert sum(int(line["count"]) for line in lab.notes.lines_of_audit("action.deferred")) == counted
    assert lab.counter(series.ACTIONS_DEFERRED, "provider") and lab.counter(series.ACTIONS_DEFERRED, "limit")


@rule("shard.R6", "shard.R3")
def test_an_intention_names_the_need_it_would_have_served() -> None:
    low, high = need("b", 2, priority=100), need("a", 1, priority=1_000_000)
    lab = Lab([*serving(low, 2)], options=Options(paused=True))
    lab.operator("b", low)
    lab.operator("a", high)
    lab.run(12)
    line = lab.notes.lines_of_audit("action.suppressed")[-1]

    assert (line["kind"], line["cluster"], line["priority"]) == ("Preempt", "b", 1_000_000)
    assert line["need_fp"] == high.profile.fingerprint and line["victim_score"] is not None


@rule("shard.X4")
def test_a_probe_that_finds_no_machine_is_made_when_there_is_one() -> None:
    lab = Lab(machines(1))
    habits = Habits(blob_error="no template", rollup_interval=60 * MINUTE)
    operator = lab.operator("c1", need("c1", 1), habits=habits)
    lab.run(3)
    assert lab.counter(series.ACTION_OUTCOMES, "Bootstrap", "unsatisfiable") == 1
    lab.provider.fail("m-0000")
    lab.run(5 * MINUTE // SECOND)
    assert len(operator.frames(BootstrapRequest)) == 1
    habits.blob_error = ""
    lab.provider.put(machines(1)[0])
    lab.run(75)

    assert len(lab.ids(S.CONFIGURED)) == 1
    assert len(operator.frames(BootstrapRequest)) == 2


@rule("shard.X4")
def test_a_probe_goes_on_with_the_machine_that_it_has_bought() -> None:
    # By the end of the pause a spot machine would have been given back, and each probe would buy another.
    lab = Lab(machines(1, S.SPECULATIVE, capacity_type=CapacityType.SPOT), instant=False)
    habits = Habits(blob_error="no template", rollup_interval=60 * MINUTE)
    operator = lab.operator("c1", need("c1", 1), habits=habits)

    for minute in range(30):
        if minute == 10:
            habits.blob_error = ""
        lab.run(MINUTE // SECOND)
        lab.provider.finish()

    assert lab.ids(S.CONFIGURED) == ["m-0000"]
    assert lab.provider.count("Create") == lab.provider.count("Delete") + 1 <= 5
    assert len(operator.frames(BootstrapRequest)) >= lab.provider.count("Create")


@rule("shard.X4")
def test_a_slot_whose_machine_may_not_be_configured_now_is_not_bought() -> None:
    lab = Lab(machines(3, S.SPECULATIVE, capacity_type=CapacityType.SPOT), instant=False)
    lab.provider.refuse = lambda rpc, _: failure("ABORTED") if rpc == "Configure" else None
    lab.operator("c1", need("c1", 1), habits=QUIET)
    for _ in range(50):
        lab.run(30)
        lab.provider.finish()

    tried = sum(rpc == "Configure" for _, rpc, _ in lab.provider.calls)
    assert tried > 8, "other slots are used meanwhile"
    assert lab.provider.count("Create") <= tried


@rule("shard.X4", "shard.L3")
@pytest.mark.parametrize("is_mended", [True, False])
def test_a_need_that_waits_for_its_probe_keeps_no_machines_from_anybody(is_mended: bool) -> None:
    held = need("d", 4, priority=5000)
    lab = Lab([*machines(1), *serving(held, 4, prefix="d")])
    habits = Habits(blob_error="no template", rollup_interval=60 * MINUTE)
    lab.operator("c1", need("c1", 4), habits=habits)
    donor = lab.operator("d", held, habits=QUIET)
    lab.operator("e", need("e", 2, priority=500), habits=QUIET)
    lab.run(3)
    lab.provider.fail("m-0000")
    lab.run(90)
    if is_mended:
        habits.blob_error = ""
    # What is given up now is all there is for the other two; the blocked one comes first.
    donor.demand()
    lab.run(10 * MINUTE // SECOND)

    served = Counter(lab.machine(i).cluster for i in lab.ids(S.CONFIGURED))
    assert served == ({"c1": 4} if is_mended else {"e": 2})


@rule("shard.L2")
def test_a_clock_that_stands_still_starts_no_second_cycle_and_stops_nothing_for_good() -> None:
    lab = Lab(machines(3))
    operator = lab.operator("c1", need("c1", 1), habits=QUIET)
    lab.run(5)
    before = lab.core.debug_state()["cycle"]
    for n in range(20):
        operator.demand(need("c1", 2 + n % 2))
        lab.shard.submit(events.TimePassed())
        lab.run(0)
    assert lab.core.debug_state()["cycle"] - before <= 1
    lab.core.handle(events.TimePassed(), lab.time.now - MINUTE)
    lab.run(2)

    assert len(lab.ids(S.CONFIGURED)) == 3


def test_demand_that_machines_served_before_has_not_waited_for_one() -> None:
    wanted = need("c1", 2)
    lab = Lab(
        [*serving(wanted, 2), *machines(1, prefix="i"), *machines(1, prefix="l", instance_type="large")]
    )
    operator = lab.operator("c1", wanted, habits=QUIET)
    lab.run(3600)
    operator.demand(need("c1", 3), need("c1", 1, kind="large"))
    lab.run(5)

    assert len(lab.ids(S.CONFIGURED)) == 4
    # Of the two shapes one was served already when this process first heard of it.
    [waited] = lab.notes.observations[series.PROVISIONING_LATENCY.name,]
    assert waited <= 2


@rule("shard.R3", "shard.X7")
def test_a_call_that_a_pause_keeps_from_being_sent_was_cancelled() -> None:
    lab = Lab(machines(2))

    def pause(_rpc: str, _machine: str) -> events.Failure:
        lab.shard.submit(events.PauseFile(present=True))
        return events.Failure(FailureKind.NOT_SENT.value, "CANCELLED", "the file PAUSE has appeared")

    lab.provider.refuse = pause
    lab.operator("c1", need("c1", 1), habits=QUIET)
    lab.run(5)

    assert lab.state("m-0000") is S.IDLE and not lab.provider.gets
    assert lab.counter(series.ACTION_OUTCOMES, "Bootstrap", "ctx_canceled") == 1
    assert lab.counter(series.ACTION_OUTCOMES, "Bootstrap", "provider_transient") == 0


@rule("shard.B3", "shard.R8")
def test_a_blob_that_lives_almost_for_ever_keeps_no_checkpoint_from_being_written() -> None:
    lab = Lab(machines(2), concurrency=1)
    lab.provider.hold = lambda *_: True
    lab.operator("c1", need("c1", 2), habits=Habits(blob_ttl_s=2**63 - 1))
    lab.run(1)
    # One is in the only slot, the other waits for it with its blob.
    assert (lab.core.executor.in_flight(), lab.core.executor.depth()) == (1, 1)
    assert list(capture(lab.core))
    lab.provider.release()
    lab.provider.hold = lambda *_: False
    lab.run(1)
    assert len(lab.ids(S.CONFIGURED)) == 2


@rule("shard.E1", "shard.S10")
def test_an_operator_that_answers_nothing_starves_nobody_and_is_served_when_it_answers_again() -> None:
    lab = Lab([*machines(2_000), *machines(1, prefix="b", instance_type="large")])
    habits = Habits(answers=False)
    mute = lab.operator("c1", need("c1", 2_000), habits=habits)
    lab.run(3)
    assert lab.core.executor.free_places() == 0
    lab.operator("c2", need("c2", 1, priority=100, kind="large"))
    lab.run(40)
    assert lab.state("b-0000") is S.CONFIGURED

    # One that crashes and comes back has not answered by that.
    for _ in range(20):
        mute.disconnect(come_back_after=SECOND)
        lab.run(15)
    assert lab.core.executor.depth() <= lab.core.settings.concurrency

    habits.answers = True
    lab.run(60)
    assert len(lab.ids(S.CONFIGURED)) == 2_001


@rule("shard.E1", "shard.E4")
def test_an_operator_that_answers_slowly_takes_its_own_places_only() -> None:
    lab = Lab([*machines(400), *machines(1, prefix="b", instance_type="large")])
    lab.operator("c1", need("c1", 400), habits=Habits(answer_delay=29 * SECOND))
    lab.operator("c2", need("c2", 1, priority=100, kind="large"))
    lab.run(3)
    assert lab.state("b-0000") is S.CONFIGURED


@rule("shard.X8", "ruling.R17")
def test_every_stuck_machine_has_its_turn_however_many_there_are() -> None:
    stuck = [*machines(650, S.CREATING, prefix="c"), *machines(2, S.DRAINING, prefix="d")]
    lab = Lab(stuck, instant=False)
    lab.run(31 * MINUTE // SECOND)
    assert {line["machine"] for line in lab.notes.lines("machine stuck")} == {m.id for m in stuck}
