"""The planted bugs of ``tests/mutants``: the list stays true, and the runner can tell all outcomes apart."""

import json
import subprocess
import sys
from dataclasses import replace

import pytest

from tests.mutants.__main__ import main
from tests.mutants.mutant import DIFFERENTIAL, ROOT, Mutant, StaleMutantError, load, source
from tests.mutants.trial import Outcome, Suite, Workshop

MUTANTS = load()
BY_NAME = {mutant.name: mutant for mutant in MUTANTS}
SAMPLE = ("own-creating-forgotten", "excess-after-victims", "plenty-hides-a-hole")
"""Planted for real in the small tier; the large one plants them all."""


@pytest.fixture(scope="module")
def workshop(tmp_path_factory: pytest.TempPathFactory) -> Workshop:
    """One that gives up soon: what survives a few tests survives here."""
    return Workshop(tmp_path_factory.mktemp("workshop"), Suite("tests/engine/test_spread.py", fleets=5))


@pytest.fixture(scope="module")
def collected() -> frozenset[str]:
    """Every test of the engine and its inventory, by the id pytest gives it."""
    places = ("tests/engine", "tests/unit/engine_inventory")
    listing = subprocess.run(
        [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider", *places],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=100,
        check=True,
    )
    return frozenset(line for line in listing.stdout.splitlines() if "::" in line)


def test_there_are_enough_and_no_two_have_one_name() -> None:
    assert len(MUTANTS) >= 30
    assert len(BY_NAME) == len(MUTANTS)


@pytest.mark.parametrize("mutant", MUTANTS, ids=BY_NAME)
def test_mutation_still_applies(mutant: Mutant) -> None:
    text = source(mutant)
    planted = mutant.planted(text)

    assert planted != text
    compile(planted, mutant.file, "exec")


def test_every_named_test_exists(collected: frozenset[str]) -> None:
    named = {mutant.caught_by for mutant in MUTANTS} - {DIFFERENTIAL}

    assert named <= collected


def test_every_broken_rule_is_one() -> None:
    lists = (ROOT / "tests" / "rules").glob("*.txt")
    rules = {line.split()[0] for path in lists for line in path.read_text(encoding="utf-8").splitlines()}

    assert {rule for mutant in MUTANTS for rule in mutant.breaks} <= rules


@pytest.mark.timeout(3600)
def test_planted_bugs_are_caught_by_the_tests_named(workshop: Workshop, full_size: bool) -> None:
    mutants = MUTANTS if full_size else [BY_NAME[name] for name in SAMPLE]

    assert workshop.unmutated_failure(mutants) == ""
    outcomes = {trial.mutant.name: trial.outcome for trial in workshop.try_all(mutants, jobs=2)}

    assert {name for name, outcome in outcomes.items() if outcome is not Outcome.CAUGHT} == set()
    assert len(outcomes) == len(mutants)


def test_mutation_that_does_not_apply_any_more_says_what_to_do(workshop: Workshop) -> None:
    gone = replace(BY_NAME["own-creating-forgotten"], old="no such text")

    with pytest.raises(StaleMutantError, match=r"occurs 0 times in packages/bigfleet/.*/credit\.py"):
        gone.planted(source(gone))
    assert workshop.try_one(gone).outcome is Outcome.BROKEN


def test_bug_that_another_test_catches_is_told_apart(workshop: Workshop) -> None:
    misnamed = replace(
        BY_NAME["skew-off-by-one"],
        caught_by="tests/engine/test_spread.py::test_lenient_spread_is_never_enforced[engine]",
    )

    trial = workshop.try_one(misnamed)

    assert trial.outcome is Outcome.ELSEWHERE
    assert trial.caught_by == "tests/engine/test_spread.py::test_three_equal_zones_share_evenly[engine]"


def test_change_that_is_no_bug_survives(workshop: Workshop) -> None:
    harmless = replace(
        BY_NAME["skew-off-by-one"],
        new="<= self._skew - 1 + self.lowest",
        caught_by="tests/engine/test_spread.py::test_three_equal_zones_share_evenly[engine]",
    )

    assert workshop.try_one(harmless).outcome is Outcome.SURVIVED


@pytest.mark.parametrize(
    "untriable",
    [
        replace(BY_NAME["skew-off-by-one"], new="<= no_such_name"),
        replace(BY_NAME["skew-off-by-one"], caught_by="tests/engine/test_spread.py::test_no_such_test"),
    ],
    ids=["nonsense", "no such test"],
)
def test_bug_that_cannot_be_tried_does_not_count_as_caught(workshop: Workshop, untriable: Mutant) -> None:
    trial = workshop.try_one(untriable)

    assert trial.outcome is Outcome.BROKEN
    assert trial.detail


def test_unmutated_engine_that_fails_is_reported(workshop: Workshop) -> None:
    # pytest fails over a test that is not there as it would over a red one.
    missing = replace(BY_NAME["skew-off-by-one"], caught_by="tests/engine/test_spread.py::test_no_such_test")

    assert "test_no_such_test" in workshop.unmutated_failure([missing])


def test_command_prints_what_caught_which(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--only", "skew-off-by-one", "--output", "json"]) == 0

    [entry] = json.loads(capsys.readouterr().out)["mutants"]
    assert (entry["outcome"], entry["caught_by"]) == ("caught", BY_NAME["skew-off-by-one"].caught_by)


def test_command_refuses_a_name_it_does_not_know(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--only", "no-such-bug"])

    assert "no mutant is called no-such-bug" in capsys.readouterr().err
