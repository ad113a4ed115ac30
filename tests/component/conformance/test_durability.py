"""Area 10 against providers that are killed: the fake, whose hosts end with it, and localproc."""

from pathlib import Path

import pytest

from bigfleet_providerkit.conformance import run
from bigfleet_providerkit.conformance.areas import durability
from bigfleet_providerkit.conformance.outcome import Status, Verdict
from bigfleet_providerkit.conformance.report import Report
from tests.component.conformance.localprocs import agents, localproc_command
from tests.component.conformance.world import FAKE
from tests.support.rules import rule

IDS = (*(f"B100{n}" for n in range(1, 8)), *(f"X100{n}" for n in range(1, 6)))


@pytest.fixture(scope="module")
def report(full_size: bool) -> Report:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(durability, "KILLS", 100 if full_size else 1)
        command = f"{FAKE} --state {{state}} --quarantine 4s"
        return run(provider_cmd=command, profiles=("durable",), select=IDS)


@pytest.mark.timeout(900)  # a kill costs a start, and there are many of them at full size
@pytest.mark.parametrize("behaviour_id", [pytest.param(one, marks=rule(f"conformance.{one}")) for one in IDS])
def test_the_fake_passes(report: Report, behaviour_id: str) -> None:
    result = report.result(behaviour_id)
    assert result.status is Status.PASSED, result.reason


@pytest.mark.timeout(1_800)
@rule("conformance.X1003", "conformance.X1004")
def test_localproc_passes_with_its_hosts_still_there(
    tmp_path: Path, full_size: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Small: a lost store alone, for that is what hosts that outlive their provider are needed for.
    profiles = ("core", "cloud", "fault", "durable") if full_size else ("durable",)
    monkeypatch.setattr(durability, "KILLS", 20)
    with localproc_command(tmp_path) as command:
        report = run(
            provider_cmd=f"{command} --quarantine 4s",
            profiles=profiles,
            select=("*",) if full_size else ("B1006", "X1003"),
            workloads=str(tmp_path),
        )
        assert not agents(tmp_path), "every machine was returned"
    result = report.result("X1003")
    assert result.status is Status.PASSED, result.reason
    assert not result.notes, "its hosts were found again"
    assert report.left == ()
    if full_size:
        assert report.verdict is Verdict.CERTIFIED, report.text()
    else:
        # Failed, and found again without a store, it might be nobody's to end: it was returned before.
        [failed] = {call["machine"] for call in report.result("B1006").evidence if "operation" in call}
        assert ("Delete", failed) in [(call["call"], call.get("machine")) for call in result.evidence]


@rule("conformance.X1005", "conformance.B1001")
def test_a_provider_without_a_store_is_found_out() -> None:
    # It is told where its state is to be, and keeps it in memory.
    forgetful = f"sh -c 'exec {FAKE}' {{state}}"
    report = run(provider_cmd=forgetful, profiles=("durable",), select=("B1001", "B1004", "X1005"))
    assert report.result("B1001").status is report.result("B1004").status is Status.FAILED
    assert "expected FAILED_PRECONDITION" in report.result("B1001").reason
    assert report.result("X1005").status is Status.SKIPPED_FIXTURE
