"""The whole suite against the fake: what it says, how long that takes, and that it says the same again."""

import subprocess
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from bigfleet_providerkit.conformance import run
from bigfleet_providerkit.conformance.catalogue import PROFILES
from bigfleet_providerkit.conformance.outcome import Status, Verdict
from bigfleet_providerkit.conformance.report import Report
from tests.component.conformance.world import FAKE
from tests.support.rules import rule

DURABLE_FAKE = f"{FAKE} --state {{state}}"
LIMIT_S = 180
RANDOM = ("B312", "B1201")
SOME = (*RANDOM, "B1205")
# In the small tier a taste of each area and of each lane; the suite then says itself that this is not all.
AREAS = ("B101", "B201", "B303", "B407", "B501", "B801", "B901", "B1205")
LANES = ("B101", "B701", "B1001", "B1101")


@pytest.mark.timeout(2 * LIMIT_S)
def test_core_and_cloud_take_less_than_three_minutes(
    full_size: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    report = run(provider_cmd=DURABLE_FAKE, profiles=("core", "cloud"), select=("*",) if full_size else AREAS)
    show(report, capsys)
    assert report.verdict is (Verdict.CERTIFIED if full_size else Verdict.INCOMPLETE), report.text()
    assert passed(report) >= set(AREAS), report.text()
    assert report.seconds < (LIMIT_S if full_size else LIMIT_S / len(AREAS))


def test_the_make_target_runs_more_than_one_fake_at_a_time() -> None:
    done = subprocess.run(
        ["make", "conformance-self", "ARGS=--select B101,X902"],
        cwd=Path(__file__).parents[3],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert "INCOMPLETE  fake  2/" in done.stdout, done.stdout + done.stderr


@rule("conformance.3.6.3")
@pytest.mark.timeout(4 * LIMIT_S)
def test_the_same_seed_gives_the_same_verdict_and_another_draws_others(full_size: bool) -> None:
    first, second, other = (
        run(
            provider_cmd=DURABLE_FAKE,
            profiles=("core", "cloud"),
            select=("*",) if full_size and seed == 7 else SOME,
            seed=seed,
        )
        for seed in (7, 7, 8)
    )
    assert passed(first) == passed(second)
    assert first.judgement == second.judgement
    assert drawn(first) == drawn(second)
    for behaviour_id in RANDOM:
        assert drawn(first)[behaviour_id] != drawn(other)[behaviour_id]


@rule("conformance.3.6.1")
@pytest.mark.timeout(4 * LIMIT_S)
def test_the_fake_is_certified_in_every_profile(full_size: bool, capsys: pytest.CaptureFixture[str]) -> None:
    if full_size:
        report = run(provider_cmd=DURABLE_FAKE, profiles=PROFILES)
    else:
        quick = f"{DURABLE_FAKE} --quarantine 1s --shutdown-window 0s"
        report = run(provider_cmd=quick, profiles=PROFILES, select=LANES, scale_seed=200)
    show(report, capsys)
    assert report.verdict is (Verdict.CERTIFIED if full_size else Verdict.INCOMPLETE), report.text()
    assert passed(report) >= set(LANES), report.text()
    assert report.left == ()


def passed(report: Report) -> set[str]:
    # What nothing was seen of, because the provider was fast that time, counts as passed.
    good = (Status.PASSED, Status.VACUOUS)
    return {result.behaviour.id for result in report.results if result.status in good}


def drawn(report: Report) -> dict[str, list[Any]]:
    """Epochs and sequence numbers of the ids that draw them by chance, and the answers."""
    return {
        behaviour_id: [
            (call["token"][1:], call["code"])
            for call in report.result(behaviour_id).evidence
            if "token" in call
        ]
        for behaviour_id in RANDOM
    }


def show(report: Report, capsys: pytest.CaptureFixture[str]) -> None:
    """Print seconds and ids by area."""
    seconds: dict[str, float] = defaultdict(float)
    ids: dict[str, int] = defaultdict(int)
    for result in report.results:
        if result.evidence:
            seconds[result.behaviour.area.name] += result.seconds
            ids[result.behaviour.area.name] += 1
    rows = [f"{area:32}{ids[area]:4} ids {seconds[area]:7.1f} s" for area in seconds]
    whole = f"{report.verdict} in {report.seconds:.1f} s, {report.options.parallel} at a time"
    with capsys.disabled():
        print("", *rows, whole, sep="\n")
