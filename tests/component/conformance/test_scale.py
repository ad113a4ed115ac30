"""Many machines: the fake, localproc at the size of one computer, and targets that have fewer."""

import sys

import pytest

from bigfleet_providerkit.conformance import run
from bigfleet_providerkit.conformance.areas import scale
from bigfleet_providerkit.conformance.catalogue import BEHAVIOURS
from bigfleet_providerkit.conformance.outcome import Status, Verdict
from bigfleet_providerkit.conformance.report import Report
from tests.component.conformance.world import FAKE, Undeletable, certified, served
from tests.support.rules import rule

IDS = [behaviour.id for behaviour in BEHAVIOURS.values() if behaviour.area.number == 11]
LOCALPROC = (
    f"{sys.executable} -m bigfleet_providerkit.examples.localproc --addr {{addr}} --state {{state}}"
    " --root {state}.machines --seed-count {seed_count} --metrics-addr 0 --log-level warn"
)
SMALL = 200


@pytest.fixture(scope="module")
def report(full_size: bool) -> Report:
    if full_size:
        return run(provider_cmd=FAKE, profiles=("scale",))
    return run(provider_cmd=FAKE, profiles=("scale",), scale_seed=SMALL, soak=0.5)


@pytest.mark.parametrize(
    "behaviour_id", [pytest.param(one, marks=rule(f"conformance.{one}")) for one in IDS if one != "X1101"]
)
def test_the_fake_passes(report: Report, behaviour_id: str) -> None:
    result = report.result(behaviour_id)
    assert result.status is Status.PASSED, result.reason


def test_the_fake_is_certified_without_being_asked_for_a_hundred_thousand(report: Report) -> None:
    assert report.verdict is Verdict.CERTIFIED, report.judgement.reasons
    assert report.result("X1101").status is Status.SKIPPED_FIXTURE


@rule("conformance.X1101")
@pytest.mark.timeout(400)
def test_a_hundred_thousand_machines_are_listed_in_time_and_memory(
    monkeypatch: pytest.MonkeyPatch, full_size: bool
) -> None:
    if not full_size:
        monkeypatch.setattr(scale, "MANY", 2_000)
        monkeypatch.setattr(scale, "LISTS", 20)
    result = run(
        provider_cmd=FAKE,
        profiles=("scale",),
        select=("X1101",),
        scale_seed=SMALL,
        hundred_thousand=True,
    ).result("X1101")
    assert result.status is Status.PASSED, result.reason
    assert f"{scale.MANY} machines in" in result.notes[-1]


@rule("conformance.3.6.1")
@pytest.mark.timeout(400)
def test_localproc_is_certified_with_the_machines_of_one_computer(full_size: bool) -> None:
    if full_size:
        report = run(provider_cmd=LOCALPROC, profiles=("scale",), scale_seed=SMALL)
        assert report.verdict is Verdict.CERTIFIED, report.judgement.reasons
        return
    # Sixty processes started at once beside other tests: what that takes says nothing of the provider.
    report = run(
        provider_cmd=LOCALPROC, profiles=("scale",), exclude=("B1106", "X1101"), scale_seed=SMALL, soak=0.5
    )
    assert report.judgement.reasons == ("B1106 not-run",)


async def test_machines_that_cannot_be_deleted_suffice_for_all_ids() -> None:
    async with served(Undeletable(), seeds=SMALL) as address:
        report = await certified(address, profiles=("scale",), scale_seed=SMALL, soak=1.0)
    assert report.verdict is Verdict.CERTIFIED, report.judgement.reasons
    assert report.result("B1105").notes[0].endswith(", 0 went")


async def test_a_target_with_fewer_machines_is_told_so_and_not_blamed() -> None:
    async with served(seeds=70) as address:
        report = await certified(address, profiles=("scale",), select=("B1101",))
    result = report.result("B1101")
    assert result.status is Status.SKIPPED_FIXTURE
    assert "List has 70 machines, expected at least 8000" in result.reason
    assert report.verdict is Verdict.INCOMPLETE


def test_a_provider_that_was_told_how_many_machines_to_have_is_blamed() -> None:
    ten = FAKE.replace("{seed_count}", "10") + " --provider {seed_count}"
    result = run(provider_cmd=ten, profiles=("scale",), select=("B1101",), scale_seed=70).result("B1101")
    assert result.status is Status.FAILED
    assert "expected at least 70, the {seed_count} it was started with" in result.reason
