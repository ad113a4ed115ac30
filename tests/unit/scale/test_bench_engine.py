"""The engine's benchmark: its shapes are those of the specification, and a wrong answer has no time."""

import json
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest

from bench import engine, growth, harness, phases, provider, shard
from bench.harness import Result, WrongAnswerError, compare
from bench.shapes import FULL, SHAPES, shape
from bigfleet.scale import RACK_KEY, r6
from bigfleet_base.model import Machine
from tests.oracle import shapes as oracle
from tests.oracle.assign import phase1
from tests.oracle.preempt import phase2
from tests.oracle.reclaim import phase3
from tests.oracle.results import Action
from tests.support.rules import rule

RULES = [pytest.param(name, marks=rule(f"engine.{name}"), id=name) for name in SHAPES]


SPECIFIED = {
    "Realistic_50K": {
        "machines": 60_000,
        "classes": 144,
        "needs": 50_000,
        "needs with Same": 7_500,
        "profiles": 13,
        "Bootstrap": 48_584,
        "unsatisfied": 1_416,
        "unsatisfied Same": 0,
    },
    "Realistic_50K_AllSame": {
        "machines": 60_000,
        "classes": 144,
        "needs": 50_000,
        "needs with Same": 50_000,
        "profiles": 13,
        "Bootstrap": 49_980,
        "unsatisfied": 20,
    },
    "Uber5K_LateRun": {
        "machines": 18_000,
        "classes": 403,
        "needs": 160,
        "needs with Same": 20,
        "profiles": 13,
        "credited": 1_498,
        "Bootstrap": 920,
        "Provision": 11_060,
        "unsatisfied": 158,
        "excess": 3_502,
    },
    "Uber5K_Unaggregated": {
        "machines": 18_000,
        "needs": 250_000,
        "needs with Same": 37_500,
        "profiles": 13,
        "credited": 5_000,
        "Bootstrap": 1_000,
        "Provision": 12_000,
        "unsatisfied": 232_000,
    },
    "Uber50K_BucketSizedBuckets": {
        "machines": 100_000,
        "needs": 20_000,
        "profiles": 1,
        "Bootstrap": 20_000,
        "gangs in rack-mem-0": 12_500,
        "gangs in rack-mem-1": 7_500,
    },
    "Phase2_ScaleInversions": {
        "machines": 100_000,
        "needs": 100,
        "profiles": 5,
        "Preempt": 500,
        "Preempt with 10 s": 500,
        "unresolved": 0,
    },
    "Phase3_HighDemand": {"machines": 500_000, "needs": 150, "profiles": 5, "Reclaim": 333_350},
    "Phase3_M29Shape": {
        "machines": 450_000,
        "needs": 50,
        "profiles": 1,
        "credited": 450_000,
        "unsatisfied": 50,
        "cpu short": 50_000,
        "Reclaim": 0,
    },
}
"""The table of the specification, transcribed by hand."""


def classes(machines: Iterator[Machine]) -> int:
    """Classes by state, as the specification counts them."""
    return len(
        {
            (m.state, m.instance_type, m.zone, m.capacity_type, m.alloc, m.price_per_hour, m.labels[RACK_KEY])
            for m in machines
        }
    )


def decisions(name: str, scale: Fraction) -> list[Action]:
    """What the oracle decides in the phase that the shape times."""
    chosen = shape(name, scale)
    context = oracle.context(chosen.machines(), chosen.needs(), None if chosen.reported else ())
    first = phase1(context)
    match chosen.phase:
        case 1:
            return list(first.actions)
        case 2:
            return list(phase2(context, first).actions)
        case _:
            return list(phase3(context, first.claimed.keys(), set()))


@pytest.mark.parametrize("name", RULES)
def test_the_engine_decides_a_shape_as_the_oracle_does(name: str, full_size: bool) -> None:
    scale = Fraction(1, 20) if full_size else Fraction(1, 200)
    outcome, _ = phases.decide(phases.load(shape(name, scale)))

    assert [(a.kind.value, a.machine_id, a.cluster) for a in outcome.actions] == [
        (a.kind.value, a.machine, a.cluster) for a in decisions(name, scale)
    ]


@pytest.mark.parametrize("name", RULES)
def test_a_shape_has_the_specified_outcome(name: str, full_size: bool) -> None:
    world = phases.load(shape(name, FULL if full_size else Fraction(1, 50)))
    outcome, _ = phases.decide(world)
    phases.check(name, world.shape, phases.count(world, outcome))


@pytest.mark.parametrize(
    ("name", "machines", "distinct"),
    [
        ("Realistic_50K", 60_000, 144),
        ("Realistic_50K_AllSame", 60_000, 144),
        ("Uber5K_LateRun", 18_000, 403),
        ("Uber5K_Unaggregated", 18_000, 403),
        ("Uber50K_BucketSizedBuckets", 100_000, 8),
    ],
)
def test_a_full_size_inventory_has_the_specified_classes(name: str, machines: int, distinct: int) -> None:
    chosen = shape(name)
    assert classes(chosen.machines()) == distinct
    assert sum(1 for _ in chosen.machines()) == machines


def test_full_size_demand_has_the_specified_profiles_and_gangs() -> None:
    late, realistic = list(shape("Uber5K_LateRun").needs()), list(shape("Realistic_50K").needs())

    assert len({need.profile for need in late}) == len({need.profile for need in realistic}) == 13
    assert len(realistic) == 50_000
    assert sum(need.profile.same is not None for need in realistic) == 7_500
    assert len(late) == 160
    assert sum(need.profile.same is not None for need in late) == 20
    # Rows are handed over as listed: aggregated, only so many would be left.
    assert len({need.key for need in late}) == 79


def test_r6_weights_are_percentages() -> None:
    assert sum(archetype.weight for archetype in r6.R6) == 100
    idle = Counter(m.labels[RACK_KEY].rpartition("-")[0] for m in r6.idle_by_archetype(1_000))
    assert idle == {f"rack-{archetype.name}": 10 * archetype.weight for archetype in r6.R6}


@pytest.mark.parametrize("name", SHAPES)
def test_a_full_size_shape_expects_what_the_specification_states(name: str) -> None:
    assert SPECIFIED[name].items() <= shape(name).expected.items()


@pytest.mark.parametrize("name", SHAPES)
def test_machine_and_need_counts_are_asserted_at_every_size(name: str) -> None:
    for scale in (FULL, Fraction(1, 3), Fraction(1, 1000)):
        expected = shape(name, scale).expected
        assert expected["machines"] > 0
        assert expected["needs"] > 0


def test_a_wrong_count_is_a_failure_with_both_numbers() -> None:
    chosen = replace(shape("Phase3_M29Shape"), expected={"needs": 50, "credited + excess": 7})

    with pytest.raises(WrongAnswerError, match=r"^M29: credited \+ excess: expected 7, got 450$"):
        phases.check("M29", chosen, Counter({"needs": 50, "credited": 400, "excess": 50}))


def test_a_run_writes_its_figures_and_compares_with_the_baseline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(harness, "HERE", tmp_path)
    arguments = ["--only", "Phase2_ScaleInversions@1/100", "--only", "Uber50K_BucketSizedBuckets@1/1000"]
    arguments += ["--best", "1"]
    assert engine.main([*arguments, "--output", "json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    written = json.loads((tmp_path / "out" / "engine.json").read_text())

    assert printed == written
    assert set(written) == {"calibration_ms", "python_ms", "commit", "python", "cpu", "results"}
    inversions, buckets = written["results"]
    assert inversions["name"] == "Phase2_ScaleInversions@1/100"
    assert inversions["metrics"]["actions"] == inversions["counts"]["Preempt"] == 5
    assert {"phase1_ms", "cycle_ms", "us_per_need", "bytes_per_machine", "classes"} <= set(buckets["metrics"])

    for result in written["results"]:
        result["metrics"]["bytes_per_machine"] /= 2
    (tmp_path / "baselines").mkdir()
    (tmp_path / "baselines" / "engine.json").write_text(json.dumps(written))
    # A dearer figure is told, and fails only a run that was asked to check.
    assert engine.main(arguments) == 0
    assert engine.main([*arguments, "--check"]) == 1
    assert "bytes_per_machine is" in capsys.readouterr().err


def test_times_are_compared_after_dividing_by_the_calibration() -> None:
    def document(calibration: float, milliseconds: float) -> dict[str, object]:
        result = Result("s", {"full_ms": milliseconds, "bytes_per_machine": 100, "actions": 3}, {}, 1)
        return {"calibration_ms": 13, "python_ms": calibration, "results": [result.as_json()]}

    changes = compare(document(50, 300), document(100, 400))
    assert {(change.metric, change.ratio) for change in changes} == {
        ("full_ms", 1.5),
        ("bytes_per_machine", 1.0),
    }
    assert compare(document(50, 300), None) == []


def test_an_older_baseline_is_compared_by_how_quick_its_machine_was_at_sorting() -> None:
    result = Result("s", {"full_ms": 300}, {}, 1).as_json()
    older = {"calibration_ms": 26, "results": [result]}

    [change] = compare({"calibration_ms": 13, "python_ms": 50, "results": [result]}, older)

    assert change.ratio == 2


@pytest.mark.parametrize(
    ("main", "argument"),
    [
        (growth.main, "--machines=0"),
        (growth.main, "--needs=-5"),
        (provider.main, "--size=0"),
        (provider.main, "--repeat=0"),
        (shard.main, "--tries=0"),
    ],
)
def test_of_nothing_no_figure_is_taken(
    main: Callable[[list[str]], int], argument: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main([argument])
    assert ended.value.code == 2 and "is no number of at least 1" in capsys.readouterr().err


def test_too_few_machines_for_the_providers_calls_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        provider.main(["--size=10000", "--size=200"])
    assert ended.value.code == 2 and "--size: the calls take 6000 machines" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("--only=Nothing", "'Nothing' is no shape"),
        ("--scale=2", "'2' is no fraction"),
        ("--scale=x", "'x' is no"),
        ("--best=0", "'0' is no number of at least 1"),
    ],
)
def test_a_wrong_argument_says_what_is_wrong(
    argument: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        engine.main([argument])
    assert message in capsys.readouterr().err
