"""When cycles run, and what they may start (shard.md §3)."""

import math
from collections.abc import Generator

import pytest

from bigfleet.engine import cycle as engine_cycle
from bigfleet.shard.core.effects import Effect, KeepRecording, Mark
from bigfleet.shard.core.events import CycleFinished, Event
from bigfleet.sim.operator import Habits, SimOperator
from bigfleet.sim.shard import Trace
from bigfleet.sim.time import VirtualTime
from bigfleet_base.model import MachineState
from bigfleet_base.telemetry.catalogue import shard as series
from tests.shard.lab import DEPLOYED, MINUTE, SECOND, Lab, ScriptedProvider, failure, machines, need, serving
from tests.shard.lab import START as NOW
from tests.support.rules import rule

S = MachineState

FEW = [need("c1", 1, priority=n) for n in range(1, 4)]
"""Of which one more is no upheaval."""


def _cycles(lab: Lab) -> int:
    cycle: int = lab.core.debug_state()["cycle"]
    return cycle


@rule("shard.L1")
def test_many_triggers_in_a_moment_lead_to_at_most_two_cycles() -> None:
    lab = Lab(machines(3))
    lab.run(5)
    before = _cycles(lab)
    for n in range(50):
        lab.operator(f"c{n}", need(f"c{n}", 1))
    lab.run(0.01)

    assert _cycles(lab) - before <= 2


@rule("shard.L2")
def test_changed_rollups_are_served_a_second_apart_and_the_last_one_is_not_lost() -> None:
    lab = Lab(machines(60))
    operator = lab.operator("c1", need("c1", 1), habits=Habits(rollup_interval=MINUTE))
    lab.run(8)
    before = _cycles(lab)
    for n in range(50):
        operator.demand(need("c1", 2 + n))
        lab.run(0.1)

    assert _cycles(lab) - before <= 6
    lab.run(1)
    assert len(lab.ids(S.CONFIGURED, S.CONFIGURING)) == 51


@rule("shard.L2")
def test_a_new_critical_need_fires_one_cycle_inside_the_window() -> None:
    lab = Lab(machines(10))
    operator = lab.operator("c1", need("c1", 1), habits=Habits(rollup_interval=MINUTE))
    lab.run(5)
    operator.demand(need("c1", 2))
    lab.run(0.1)
    opened = _cycles(lab)
    rows = [need("c1", 2)]
    for n in range(3):
        rows.append(need("c1", 1, priority=1_000_000 + n))
        operator.demand(*rows)
        lab.run(0.1)

    assert _cycles(lab) - opened == 1, "one cycle inside the window"
    lab.run(0.55)
    assert _cycles(lab) - opened == 1
    lab.run(0.2)
    assert _cycles(lab) - opened == 2, "and one at its end"
    lab.run(3)
    assert _cycles(lab) - opened == 2


@rule("shard.L2")
def test_a_critical_need_does_not_wait_while_a_cycle_compares_itself_with_a_full_pass() -> None:
    put_off: list[bool] = []

    def heard(_now: int, event: Event, _effects: list[Effect]) -> None:
        if isinstance(event, CycleFinished):
            put_off.append(event.put_off)

    lab, operator = _amid_a_comparison(heard)
    before = list(put_off)
    operator.demand(*FEW, need("c1", 2), need("c1", 1, priority=1_000_000))
    lab.run(0.3)
    assert put_off == [*before, True], "the cycle that was under way"
    lab.run(0.4)
    assert put_off == [*before, True, True], "and the one that serves the Need"
    lab.run(12)
    assert not any(put_off[len(before) + 2 :]) and len(put_off) > len(before) + 2


@pytest.mark.parametrize("is_put_off", [False, True])
def test_a_replay_compares_what_was_compared(is_put_off: bool) -> None:
    lab, _ = _amid_a_comparison()
    lab.core.engine.hurried = not is_put_off
    lab.core.run_out(CycleFinished(put_off=is_put_off))
    assert lab.core.put_off == is_put_off


def test_a_row_costs_its_share_of_the_last_cycles_first_phase() -> None:
    lab, operator = _amid_a_comparison()
    phases = (("phase1", 8_000_000), ("phase2", 5_000_000))
    effects = lab.core.handle(CycleFinished(phases_ns=phases), lab.time.now)
    assert Mark(series.PHASE1_PER_NEED, 0.008 / len(operator.needs)) in effects


def _amid_a_comparison(trace: Trace | None = None) -> tuple[Lab, SimOperator]:
    lab = Lab(machines(10), trace=trace)
    operator = lab.operator("c1", *FEW, habits=Habits(rollup_interval=MINUTE))
    lab.run(15)
    lab.core.engine.full_every = 1
    lab.shard.cycle_duration = SECOND // 4
    lab.provider.answer_delay = SECOND  # or so much changes between two cycles that nothing is compared
    operator.demand(*FEW, need("c1", 2))
    lab.run(0.1)
    assert lab.core.running is not None
    return lab, operator


@rule("shard.L2")
def test_a_critical_need_that_was_there_before_waits_for_the_window() -> None:
    lab = Lab(machines(10))
    critical = need("c1", 1, priority=1_000_000)
    operator = lab.operator("c1", critical, habits=Habits(rollup_interval=MINUTE))
    lab.run(5)
    operator.demand(critical, need("c1", 2))
    lab.run(0.1)
    opened = _cycles(lab)
    operator.demand(need("c1", 3, priority=1_000_000))
    lab.run(0.5)

    assert _cycles(lab) == opened


@rule("shard.L5")
def test_warm_up_cycles_are_not_in_the_histogram() -> None:
    lab = Lab(machines(1), warmup_cycles=2)
    lab.run_until(lambda: _cycles(lab) == 3)
    lab.run(0)

    assert len(lab.notes.observations[series.CYCLE_DURATION.name,]) == 1


@rule("shard.L10")
def test_ages_count_intervals_however_many_cycles_run() -> None:
    lab = Lab(machines(1))
    operator = lab.operator("c1", need("c1", 5), habits=Habits(rollup_interval=MINUTE))
    lab.run(1)
    [start] = lab.core.views.verdicts
    for n in range(60):
        operator.demand(need("c1", 5 + n % 2))
        lab.run(1)

    [verdict] = lab.core.views.verdicts
    assert verdict.age - start.age == 6


@rule("shard.L9")
def test_a_cycle_runs_in_every_interval_even_if_no_list_ends() -> None:
    lab = Lab(machines(1))
    lab.run(1)
    lab.shard.list_duration = 3600 * SECOND
    before = _cycles(lab)
    lab.run(60)

    assert 5 <= _cycles(lab) - before <= 7


@rule("shard.L9")
def test_cycles_go_on_while_a_list_takes_long_and_use_what_was_merged_last() -> None:
    lab = Lab(machines(2))
    lab.run(1)
    lab.shard.list_duration = 4 * SECOND
    lab.run(9.5)
    operator = lab.operator("c1", need("c1", 1))
    lab.run(1.5)

    assert len(lab.ids(S.CONFIGURED)) == 1
    assert operator.nodes


@rule("shard.L9")
def test_nothing_is_started_before_every_provider_has_been_listed() -> None:
    time = VirtualTime(NOW)
    wanted = need("c1", 3)
    up = ScriptedProvider(time, machines(5, S.SPECULATIVE, "a"), "up")
    late = ScriptedProvider(time, serving(wanted, 3, "b"), "late")
    late.list_failure = failure("UNAVAILABLE")
    lab = Lab(providers=[up, late], time=time)
    lab.operator("c1", wanted)
    lab.run(60)
    assert not up.calls and not late.calls
    assert lab.counter(series.ACTIONS_DEFERRED, "provider") > 0
    assert not lab.core.ready()[0]

    late.list_failure = None
    lab.run(120)
    assert not up.accepted, "its bound machines are not bought again"
    assert lab.core.ready()[0]


@rule("shard.L9")
def test_after_five_minutes_the_shard_acts_without_a_provider_that_never_answers() -> None:
    time = VirtualTime(NOW)
    up = ScriptedProvider(time, machines(5, S.IDLE, "a"), "up")
    dead = ScriptedProvider(time, [], "dead")
    dead.down = True
    lab = Lab(providers=[up, dead], time=time)
    lab.operator("c1", need("c1", 2))
    lab.run(299)
    assert not up.calls
    lab.run(30)

    assert up.count("Configure") == 2
    assert not lab.core.ready()[0]
    [line] = lab.notes.lines("provider not listed since start; acting without it")
    assert line["provider"] == "dead"


@rule("shard.L4")
def test_a_failing_list_withholds_what_would_shrink_and_nothing_else() -> None:
    time = VirtualTime(NOW)
    sick = ScriptedProvider(time, serving(need("c1", 4), 4, "a"), "sick")
    sound = ScriptedProvider(time, [*serving(need("c2", 4), 4, "b"), *machines(2, S.IDLE, "idle")], "sound")
    lab = Lab(providers=[sick, sound], time=time)
    one = lab.operator("c1", need("c1", 4))
    two = lab.operator("c2", need("c2", 4))
    lab.run(25)
    sick.list_failure = failure("UNAVAILABLE")
    lab.run(40)
    one.demand(need("c1", 1))
    two.demand(need("c2", 1))
    lab.run(30)
    assert sick.count("Drain") == 0
    assert sound.count("Drain") == 3
    two.demand(need("c2", 3))
    lab.run(15)
    assert sound.count("Configure") == 2, "acquisitions go on"

    sick.list_failure = None
    lab.run(40)
    assert sick.count("Drain") == 3


@rule("shard.L7", "shard.T3")
def test_a_restarted_shard_reclaims_nothing_before_the_first_rollup() -> None:
    lab = Lab(serving(need("c1", 100), 100), options=DEPLOYED)
    lab.run(100)
    assert lab.provider.count("Drain") == 0

    lab.operator("c1")
    lab.run(30)
    assert 0 < lab.provider.count("Drain") <= 20, "reclaims start, under the cap"


@rule("shard.L7")
def test_the_first_operator_back_is_not_given_what_was_drained_for_another() -> None:
    high, low = need("a", 3, priority=1_000_000), need("b", 3, priority=100)
    lab = Lab([*serving(low, 3), *machines(0)], instant=False)
    lab.operator("b", low)
    lab.run(15)
    lab.operator("a", high)
    lab.run_until(lambda: len(lab.provider.states(S.DRAINING)) == 3)
    for operator in lab.operators.values():
        operator.habits.reconnects = None
    lab.shard.kill()
    lab.shard.restart()
    lab.run(1)
    lab.operators["b"].connect()
    lab.provider.finish()
    lab.run(15)
    assert lab.provider.count("Configure") == 0
    assert lab.counter(series.ACTIONS_DEFERRED, "settling") > 0

    lab.operators["a"].connect()
    lab.run(60)
    lab.provider.finish()
    lab.run(30)
    bound = [seen.machine.cluster for seen in lab.provider.records.values()]
    assert bound == ["a", "a", "a"]
    assert lab.provider.count("Drain") == 3


@rule("shard.L7")
def test_the_wait_for_rollups_is_bounded() -> None:
    lab = Lab([*serving(need("gone", 1), 1, "g"), *machines(2, prefix="m")])
    lab.operator("c1", need("c1", 2))
    lab.run(29)
    assert not lab.provider.calls
    lab.run(12)

    assert lab.provider.count("Configure") == 2


@rule("shard.L8")
def test_an_impossible_gang_stops_acquiring_and_resumes_when_a_rack_is_big_enough() -> None:
    from bigfleet_base.model import Need, Operator, Profile, Requirement, ResourceVector
    from tests.shard.lab import CPU

    rack = "topology.bigfleet/rack"
    gang = Need(
        "c1",
        Profile((Requirement(rack, Operator.SAME, ()),), priority=1000),
        ResourceVector({"cpu": 4000}),
        CPU,
        "g1",
    )
    small = [m for n in range(3) for m in machines(2, S.SPECULATIVE, f"r{n}", labels={rack: f"r{n}"})]
    lab = Lab(small)
    lab.operator("c1", gang)
    lab.run(200)
    early = len(lab.provider.calls)
    lab.run(200)
    assert len(lab.provider.calls) == early, "nothing is bought for it any more"
    for found in machines(4, S.SPECULATIVE, "big", labels={rack: "big"}):
        lab.provider.put(found)
    lab.run(330)

    served = [m for m in lab.ids(S.CONFIGURED) if m.startswith("big")]
    assert len(served) == 4


def test_a_cycle_that_a_full_pass_contradicts_is_counted_told_and_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[Effect] = []
    lab = Lab(machines(3), trace=lambda _now, _event, effects: seen.extend(effects))
    lab.operator("c1", need("c1", 1))
    lab.run(30)
    assert KeepRecording() not in seen
    lab.core.engine.full_every = 1
    monkeypatch.setattr(engine_cycle, "unlike", _difference)
    lab.run(11)

    assert KeepRecording() in seen
    assert lab.notes.counters[series.FULL_PASS_MISMATCHES.name,] >= 1
    assert lab.notes.lines("full pass differs from the incremental cycle; its result is used")[0] == {
        "difference": "action 3: this and that"
    }
    assert lab.ids(S.CONFIGURED)


def _difference(*_: object) -> Generator[int, None, str]:
    yield 1
    return "action 3: this and that"


def test_a_cycle_is_logged_with_its_actions_by_kind_and_its_times_by_phase() -> None:
    lab = Lab(machines(3))
    lab.operator("c1", need("c1", 2))
    lab.run(15)
    lines = lab.notes.lines("cycle")

    assert [line["actions"] for line in lines if line["actions"]] == [{"Bootstrap": 2}]
    assert {"cycle", "needs", "actions", "deferred", "shortfalls", "phases_ms"} == set(lines[0])


def test_machines_of_absurd_prices_are_served_and_counted_like_others() -> None:
    dear = machines(3, prefix="dear", instance_type="gold", price_per_hour=1.7e308)
    lab = Lab([*machines(1), *dear])
    lab.operator("c1", need("c1", 1), need("c1", 1, kind="gold"))
    lab.run_until(lambda: len(lab.ids(S.CONFIGURED)) == 2)

    assert lab.gauge(series.INVENTORY_HOURLY_COST, "Idle", "OnDemand") == math.inf


@pytest.mark.parametrize(
    ("dollars", "label"), [(1e300, "pinned"), (1.7e308, "pinned"), (8_388_607.5, "8388608")]
)
def test_machines_of_absurd_penalties_are_counted_like_others(dollars: float, label: str) -> None:
    held = machines(1, S.CONFIGURED, assigned_priority=7, assigned_interruption_penalty=dollars)
    lab = Lab(held)
    lab.operator("c1", need("c1", 1))
    lab.run(20)

    assert lab.gauge(series.INVENTORY_MACHINES, "Configured", "OnDemand", label) == 1
