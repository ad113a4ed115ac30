"""Rails between decision and execution, as the shard applies them (shard.md §9)."""

from bigfleet.engine.cycle import CycleInputs
from bigfleet.engine.needs import NeedsTable
from bigfleet.engine.options import Options
from bigfleet.shard.core import events
from bigfleet.shard.core.settings import Settings
from bigfleet.sim.operator import Habits
from bigfleet_base.model import MachineState
from bigfleet_base.model.frames import BootstrapRequest, ReclaimInstruction
from bigfleet_base.telemetry.catalogue import shard as series
from tests.shard.lab import DEPLOYED, MINUTE, Lab, machines, need, serving
from tests.support.rules import rule

S = MachineState
QUIET = Habits(rollup_interval=60 * MINUTE)


@rule("shard.R1")
def test_the_cap_spreads_a_withdrawal_over_intervals() -> None:
    lab = Lab(serving(need("c1", 200), 200), options=DEPLOYED)
    operator = lab.operator("c1", need("c1", 200), habits=QUIET)
    lab.run(15)
    operator.demand(need("c1", 50))
    lab.run(1)
    assert lab.provider.count("Drain") == 10
    assert lab.counter(series.RECLAIMS_CAPPED) > 0
    assert lab.notes.lines("reclaim blast-radius cap engaged")
    for _ in range(10):
        operator.demand(need("c1", 50), need("c1", 0, priority=5))
        lab.run(0.5)
        operator.demand(need("c1", 50))
        lab.run(0.5)
    assert lab.provider.count("Drain") <= 2 * 10 + 1, "however many cycles run"


@rule("shard.R1")
def test_a_small_cluster_loses_one_machine_an_interval() -> None:
    lab = Lab(serving(need("c1", 5), 5), options=DEPLOYED)
    lab.operator("c1", habits=QUIET)
    lab.run(11)
    assert 1 <= lab.provider.count("Drain") <= 2
    lab.run(50)
    assert lab.provider.count("Drain") == 5


@rule("shard.R1")
@rule("shard.E4")
def test_reclaims_that_the_cap_defers_take_no_place_in_the_queue() -> None:
    lab = Lab(
        serving(need("c1", 600), 600) + machines(400, S.IDLE, "i", instance_type="big"), options=DEPLOYED
    )
    shrinking = lab.operator("c1", need("c1", 600), habits=QUIET)
    growing = lab.operator("c2", habits=Habits(rollup_interval=60 * MINUTE, answers=False))
    lab.run(35)
    capacity = lab.core.settings.queue_capacity
    shrinking.demand(need("c1", 100))
    lab.run(2)
    assert lab.counter(series.ACTIONS, "Reclaim") == 30
    assert lab.counter(series.RECLAIMS_CAPPED) == 470
    assert lab.counter(series.ACTIONS_DROPPED) == 0
    lab.run(7)
    assert lab.counter(series.CYCLE_TRIGGER, "drain") == 0, "the cap wakes no cycle"

    growing.demand(need("c2", 400, kind="big"))
    lab.run(2)
    assert lab.counter(series.ACTIONS, "Bootstrap") >= capacity - 30, "the other half is not for Reclaims"
    assert len(lab.notes.lines("reclaim blast-radius cap engaged")) >= 2


@rule("shard.R1")
def test_preemption_is_never_capped() -> None:
    low = need("b", 50, priority=100)
    lab = Lab(serving(low, 50), options=DEPLOYED)
    lab.operator("b", low)
    lab.run(5)
    lab.operator("a", need("a", 50, priority=1_000_000))
    lab.run(3)

    assert lab.provider.count("Drain") == 50


@rule("shard.R3")
def test_paused_decides_and_starts_nothing() -> None:
    lab = Lab(serving(need("c1", 5), 5), options=Options(paused=True))
    lab.operator("c1", need("c1", 1), need("c1", 3, kind="absent"))
    lab.run(35)

    assert not lab.provider.calls
    assert lab.counter(series.ACTIONS_SUPPRESSED, "Reclaim") > 4
    assert lab.gauge(series.ACTUATION_PAUSED) == 1
    assert lab.gauge(series.SHORTFALLS) == 1
    assert lab.notes.lines("actuation paused: decided actions suppressed")
    assert lab.notes.lines_of_audit("action.suppressed")


@rule("shard.R3")
def test_a_pause_file_takes_back_what_has_not_been_sent() -> None:
    holding = machines(10, prefix="i")
    lab = Lab([*holding, *serving(need("c2", 10), 10, "d")], concurrency=10)
    lab.provider.hold = lambda rpc, machine_id: rpc == "Drain" and machine_id < "d-0005"
    lab.operator("c1", habits=Habits(answers=False, rollup_interval=60 * MINUTE))
    two = lab.operator("c2", need("c2", 10), habits=Habits(rollup_interval=60 * MINUTE))
    lab.run(15)
    lab.operators["c1"].demand(need("c1", 10))
    lab.run(0.1)
    two.demand(need("c2", 5))
    lab.run(2)
    in_call = [m for _, rpc, m in lab.provider.calls if rpc == "Drain"]
    assert in_call
    two.habits.acks = False
    two.demand(need("c2", 0))
    lab.run(2)
    sent = len(lab.provider.calls)
    waiting_for_cordon = [m for m in lab.ids(S.DRAINING) if m not in in_call]
    assert waiting_for_cordon and lab.ids(S.CONFIGURING)
    lab.shard.submit(events.PauseFile(present=True))
    lab.provider.release()
    lab.run(30)

    assert len(lab.provider.calls) == sent, "no further mutation"
    assert not lab.ids(S.CONFIGURING)
    assert all(lab.state(m) is S.CONFIGURED for m in waiting_for_cordon)
    assert all(two.nodes[m].state is S.CONFIGURED for m in waiting_for_cordon)
    assert all(lab.state(m) is S.IDLE for m in in_call), "calls already sent are applied"
    depths = lab.core.outboxes.depths()
    assert depths["bootstrap"] == 0 and depths["reclaim"] == 0
    lab.shard.submit(events.PauseFile(present=False))
    lab.operators["c1"].habits.answers = True
    lab.run(20)
    assert lab.provider.count("Configure") > 0


@rule("shard.R4")
def test_a_dry_run_tells_what_it_would_do() -> None:
    lab = Lab(machines(3), options=Options(dry_run=True))
    operator = lab.operator("c1", need("c1", 2))
    lab.run(25)

    assert not lab.provider.calls
    assert lab.counter(series.ACTIONS_DRYRUN, "Bootstrap") >= 4
    assert lab.counter(series.ACTIONS_SUPPRESSED, "Bootstrap") == 0
    line = lab.notes.lines("dry-run: would execute action")[0]
    assert (line["kind"], line["cluster"], line["reason"]) == ("Bootstrap", "c1", "phase1.idle")
    assert lab.notes.lines_of_audit("action.dryrun")
    assert not operator.frames(BootstrapRequest) and not operator.frames(ReclaimInstruction)


@rule("shard.R3", "shard.R6")
def test_a_pause_that_ends_during_the_shutdown_starts_nothing() -> None:
    lab = Lab(machines(1, S.SPECULATIVE))
    lab.provider.hold = lambda *_: True
    lab.operator("c1", need("c1", 1))
    lab.run_until(lambda: bool(lab.provider.calls))
    for event in (events.PauseFile(True), events.ShutdownBegun(), events.PauseFile(False)):
        lab.shard.submit(event)
    lab.provider.release()
    lab.run(5)
    assert [line["outcome"] for line in lab.notes.lines_of_audit("action.result")] == ["success"]
    assert lab.core.executor.depth() == 0


@rule("shard.R4")
def test_pause_wins_over_a_dry_run() -> None:
    lab = Lab(machines(3), options=Options(dry_run=True, paused=True))
    lab.operator("c1", need("c1", 2))
    lab.run(15)

    assert lab.counter(series.ACTIONS_DRYRUN, "Bootstrap") == 0
    assert lab.counter(series.ACTIONS_SUPPRESSED, "Bootstrap") > 0


@rule("shard.R5")
def test_the_action_cap_is_worked_off_by_follow_up_cycles() -> None:
    lab = Lab(machines(25), options=Options(max_actions=10))
    lab.operator("c1", need("c1", 25), habits=QUIET)
    executed = []
    for _ in range(4):
        before = lab.provider.count("Configure")
        lab.run(1)
        executed.append(lab.provider.count("Configure") - before)

    assert [n for n in executed if n] == [10, 10, 5]
    assert lab.counter(series.ACTIONS_DEFERRED, "limit") == 15 + 5


@rule("shard.R7")
def test_the_library_has_its_rails_off() -> None:
    for options in (Settings("s", 1, b"", ("p",)).options, CycleInputs(now=0).options):
        assert options.reclaim_cap == 0 and not options.guard

    needs = NeedsTable()
    needs.apply_rollup("c1", [need("c1", 1, group=f"g{n}") for n in range(100)], 0)
    assert needs.apply_rollup("c1", [], 1)


@rule("shard.H1", "shard.H2")
def test_shortfalls_are_summed_aged_once_and_leave_cleanly() -> None:
    lab = Lab(machines(1))
    operator = lab.operator("c1", need("c1", 4), need("c1", 4, group="g"), habits=QUIET)
    lab.run(35)
    [row] = lab.core.reporter.shortfalls
    assert row.deficit["cpu"] == 7000
    assert row.age in (4, 5)
    assert lab.gauge(series.SHORTFALLS) == 1
    assert lab.gauge(series.SHORTFALLS_BY_PRIORITY, "service") == 1
    lines = len(lab.notes.lines("shortfalls detected"))
    assert lines == 1, "on a change of the set, not each cycle"
    lab.run(60)
    assert len(lab.notes.lines("shortfalls detected")) == 2, "and once a minute"

    operator.demand(need("c1", 1))
    lab.run(2)
    assert lab.gauge(series.SHORTFALLS) == 0
    assert all(
        lab.gauge(series.SHORTFALLS_AGED, bucket) == 0 for bucket in ("1-9", "10-59", "60-299", "300+")
    )
    assert lab.notes.observations[series.SHORTFALL_AGE.name,]
    lab.run(70)
    assert len(lab.notes.lines("shortfalls detected")) == 2
