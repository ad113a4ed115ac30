"""The fleets of the engine's benchmark: their proportions, their decisions, a life that can be repeated."""

import json
from collections import Counter
from dataclasses import replace
from fractions import Fraction
from functools import partial
from pathlib import Path

import pytest

from bench import cycles, engine, harness
from bench.adapter import explanation_bytes, full_result, loaded, unexplained
from bench.cycles import Figures, Plan
from bench.fleets import FLEETS, FleetShape, fleet_shape
from bench.harness import WrongAnswerError
from bench.life import INTERVAL, Life, Rate, Weather
from bigfleet.engine.actions import Action
from bigfleet.engine.cycle import CycleInputs
from bigfleet.scale import RACK_KEY, hopeless
from bigfleet_base.model import MachineState, Need
from bigfleet_base.model.lifecycle import check

HUNDREDTH = Fraction(1, 100)
SMALL = {
    name: fleet_shape(name, HUNDREDTH if name not in ("b500k", "b5m") else HUNDREDTH / 10) for name in FLEETS
}
MIXED = [name for name in FLEETS if name not in ("b5k", "b50k", "b500k")]


def needs(shape: FleetShape) -> list[Need]:
    return [need for _, rows in shape.rollups() for need in rows]


@pytest.mark.parametrize("name", FLEETS)
def test_a_fleet_is_the_same_whenever_it_is_made(name: str) -> None:
    shape = SMALL[name]
    assert list(shape.machines()) == list(shape.machines())
    assert list(shape.rollups()) == list(shape.rollups())


@pytest.mark.parametrize("name", FLEETS)
def test_machines_are_valid_and_unique(name: str) -> None:
    ids = set()
    for machine in SMALL[name].machines():
        check(machine)
        ids.add(machine.id)
    assert len(ids) == sum(1 for _ in SMALL[name].machines())


@pytest.mark.parametrize("name", FLEETS)
def test_rows_of_a_roll_up_do_not_merge(name: str) -> None:
    rows = needs(SMALL[name])
    assert len({need.key for need in rows}) == len(rows)


@pytest.mark.parametrize("name", MIXED)
def test_states_stand_in_the_proportions_asked_for(name: str) -> None:
    states = Counter(machine.state for machine in SMALL[name].machines())
    settled = {MachineState.CONFIGURED: 60, MachineState.IDLE: 20, MachineState.SPECULATIVE: 15}
    for state, percent in settled.items():
        assert 100 * states[state] == percent * states.total()


@pytest.mark.parametrize("name", ["b500k-agg", "b500k-agg-1to1", "b500k-racks", "b500k-unique"])
def test_the_500k_demand_is_mixed_as_asked_for(name: str) -> None:
    shape = fleet_shape(name)
    rows = needs(shape)
    plain_rows = [need for need in rows if need.profile.requirements[0].key != "kubernetes.io/hostname"]

    assert len(plain_rows) == 50 * 100
    assert len({need.cluster_id for need in rows}) == 50
    assert {need.profile.interruption_bucket for need in plain_rows} == set(range(1, 28))
    assert {need.profile.reclamation_bucket for need in plain_rows} == set(range(1, 28))
    assert len({need.profile.priority for need in plain_rows}) == 5
    same = [need for need in rows if need.profile.same is not None]
    large = [need for need in same if need.aggregate["cpu"] > 8 * need.min_unit["cpu"]]
    assert len(same) == (1_250 if name == "b500k-racks" else 500)
    assert len(same) - len(large) == 250
    assert sum(need.profile.strict_spread is not None for need in rows) == 250


def test_the_catalogue_fleet_has_the_published_size() -> None:
    shape = fleet_shape("b5k")
    assert sum(1 for _ in shape.machines()) == 24_292 + 60
    assert len(needs(shape)) == pytest.approx(4_800, rel=0.05)


def test_every_machine_of_the_racks_shape_stands_in_a_rack_of_fifty() -> None:
    racks = Counter(machine.labels[RACK_KEY] for machine in SMALL["b500k-racks"].machines())
    assert set(racks.values()) == {50}


@pytest.mark.parametrize("name", ["b5k", "b500k-agg", "b500k-agg-1to1", "b500k-racks"])
def test_every_kind_of_decision_occurs(name: str) -> None:
    figures = Figures()
    cycles.at_rest(SMALL[name], Plan(best=1), figures)
    assert all(figures.counts[kind] > 0 for kind in cycles.EVERY_KIND)


def test_a_count_that_is_not_the_expected_one_is_a_failure_with_both_numbers() -> None:
    shape = replace(SMALL["b5k"], expected={"machines": 7})
    with pytest.raises(WrongAnswerError, match=r"b5k@1/100: machines: expected 7, got 976$"):
        cycles.measure(shape, Plan(best=1))


def test_a_shape_without_a_kind_of_decision_is_a_failure() -> None:
    counts = Counter(dict.fromkeys(cycles.EVERY_KIND, 1)) - Counter({"parked": 1})
    with pytest.raises(WrongAnswerError, match="parked: expected at least 1, got 0"):
        cycles.check(SMALL["b5k"], counts)


def lived(name: str, number: int) -> list[list[Action]]:
    """What is decided in the first steady cycles."""
    world = loaded(SMALL[name])
    life = Life(world)
    life.begin()
    life.settle()
    weather = Weather(life, Rate.steady(world))
    decided = []
    for _ in range(number):
        weather.change()
        decided.append(world.run(CycleInputs(now=life.now)).decided)
        life.start(decided[-1])
        life.now += INTERVAL
    return decided


def test_a_fleet_at_rest_has_nothing_to_do_and_no_call_under_way() -> None:
    world = loaded(SMALL["b5k"])
    life = Life(world)
    life.begin()
    life.settle()
    states = {entry.machine.state for entry in world.inventory.capture()}
    assert states == {MachineState.CONFIGURED, MachineState.IDLE, MachineState.SPECULATIVE}
    assert world.run(CycleInputs(now=life.now)).decided == []


def test_a_life_can_be_repeated() -> None:
    first = lived("b5k", 10)
    assert any(first)
    assert first == lived("b5k", 10)


def test_weather_changes_as_much_as_it_says() -> None:
    shape = fleet_shape("b500k-agg-1to1", Fraction(1, 25))
    world = loaded(shape)
    life = Life(world)
    life.begin()
    life.finish()
    before = {entry.machine.id: entry.machine for entry in world.inventory.capture()}
    demand = {need.key: need.aggregate for need in world.needs.snapshot()}
    Weather(life, Rate.steady(world)).change()
    after = {entry.machine.id: entry.machine for entry in world.inventory.capture()}
    moved = [m for m in after.values() if m.state is not before[m.id].state]
    dearer = {m.id for m in after.values() if m.price_per_hour != before[m.id].price_per_hour}
    changed = [need for need in world.needs.snapshot() if demand[need.key] != need.aggregate]

    assert {m.state for m in moved} == {MachineState.FAILED}
    assert len(moved) == len(before) // 1000 // 2
    assert len({(before[m].instance_type, before[m].zone, before[m].capacity_type) for m in dearer}) == 1
    assert len(changed) == len(demand) // 100
    for need in changed:
        was, now = demand[need.key]["cpu"], need.aggregate["cpu"]
        assert abs(now - was) == pytest.approx(was / 10, rel=0.2) or abs(now - was) == need.min_unit["cpu"]


def test_a_cycle_that_decides_otherwise_than_a_full_pass_is_a_failure() -> None:
    world = loaded(SMALL["b5k"])
    inputs = CycleInputs(now=Life(world).now)
    expected = full_result(world, inputs)
    result = world.run(inputs)
    cycles.compare_results("b5k", result, expected)
    for name, wrong in (
        ("decided", replace(result, decided=result.decided[1:])),
        ("verdicts", replace(result, verdicts=result.verdicts[1:])),
        ("shortfalls", replace(result, shortfalls={})),
    ):
        with pytest.raises(WrongAnswerError, match=f"b5k: {name} differ from a full pass"):
            cycles.compare_results("b5k", wrong, expected)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("CycleInputs", partial(CycleInputs, tick=False), "ages that grew"),
        ("UNCHANGED_CYCLES", 3, "expected 10 gangs looked at again, got 0"),
        ("HOLD_NS", 0, "expected 10 releases, got 0"),
    ],
)
def test_an_unchanged_world_in_which_time_stands_still_is_a_failure(
    name: str, value: object, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    life = Life(loaded(SMALL["b5k"]))
    life.begin()
    monkeypatch.setattr(cycles, name, value)
    with pytest.raises(WrongAnswerError, match=message):
        cycles.unchanged(SMALL["b5k"], life, Figures())


def test_a_full_pass_beside_the_engine_leaves_no_trace() -> None:
    world = loaded(SMALL["b5k"])
    first = world.run(CycleInputs(now=10 * INTERVAL))
    full_result(world, CycleInputs(now=11 * INTERVAL))
    second = world.run(CycleInputs(now=11 * INTERVAL))
    gangs = {v.need.key: (v.age, v.parked_age) for v in first.verdicts if v.parked_age}
    assert gangs
    after = {v.need.key: (v.age, v.parked_age) for v in second.verdicts if v.parked_age}
    assert after == {key: (age + 1, parked + 1) for key, (age, parked) in gangs.items()}


def test_without_explanations_the_same_is_decided() -> None:
    world, inputs = loaded(SMALL["b500k-agg-1to1"]), CycleInputs(now=10 * INTERVAL)
    said = full_result(world, inputs)
    with unexplained():
        unsaid = full_result(world, inputs)
    assert unsaid.decided == [action._replace(runner_up_cost=None) for action in said.decided] != said.decided
    assert [v.reason for v in unsaid.verdicts] == [v.reason for v in said.verdicts]
    assert explanation_bytes(said) > explanation_bytes(unsaid)


def test_hopeless_demand_suits_no_machine_and_never_merges() -> None:
    rows = [hopeless("c00", n, gang=n % 2 == 0) for n in range(10)]
    assert len({row.key for row in rows}) == 10
    assert not any(m.matches(row.profile) for m in SMALL["b5k"].machines() for row in rows)


def test_a_run_of_a_fleet_writes_its_figures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(harness, "HERE", tmp_path)
    assert engine.main(["--only", "b5k@1/100", "--best", "1", "--cycles", "1"]) == 0
    [result] = json.loads((tmp_path / "out" / "engine.json").read_text())["results"]
    assert result["name"] == "b5k@1/100"
    assert result["counts"]["machines"] == 976
    wanted = {"full_ms", "steady_ms", "steady_worst_ms", "unchanged_ms", "bytes_per_machine", "us_per_need"}
    wanted |= {"explained_percent", "explanation_bytes_per_need"}
    assert wanted | {"classes", "actions"} <= set(result["metrics"])
    assert "b5k@1/100" in capsys.readouterr().out
