"""Every check has been seen red: for a provider that does without the very rule it checks."""

import json
import subprocess
import sys
from collections.abc import Mapping

import pytest

from bigfleet_providerkit.calls import Calls
from bigfleet_providerkit.conformance.catalogue import BEHAVIOURS
from bigfleet_providerkit.conformance.outcome import Result, Status
from bigfleet_providerkit.server import Service
from tests.component.conformance.world import command
from tests.support.rules import rule
from tests.wrong_providers.planting import planted
from tests.wrong_providers.registry import WrongProvider, controls, load
from tests.wrong_providers.table import complaints, everything, main, own, without_wrong_provider
from tests.wrong_providers.trial import Trial, try_all

NAME = "a-negative-grace-is-none"
JOBS = 6
"""Most of the time is spent waiting for transitions and timeouts."""
# All of them are tried for the first test that asks; at full size each meets every check.
pytestmark = pytest.mark.timeout(7_200)

Trials = Mapping[str, Trial]


@pytest.fixture(scope="module")
def trials(full_size: bool) -> Trials:
    ids = everything(load()) if full_size else own(load())
    return {trial.name: trial for trial in try_all(ids | own(controls()), JOBS)}


@rule("conformance.3.6.2")
@pytest.mark.parametrize("name", load())
def test_a_wrong_provider_fails_its_own_checks_and_is_never_certified(trials: Trials, name: str) -> None:
    assert complaints(name, trials[name]) == []


@pytest.mark.parametrize("name", controls())
def test_the_same_provider_without_the_mistake_does_not(trials: Trials, name: str) -> None:
    assert complaints(name, trials[name]) == []
    unseen = set(controls()[name].caught_by) - trials[name].results.keys()
    assert not unseen


@rule("conformance.3.6.2")
def test_every_check_has_a_wrong_provider() -> None:
    assert without_wrong_provider() == []


@pytest.mark.parametrize("provider", load().values(), ids=lambda one: one.name)
def test_a_mistake_is_planted_and_taken_out_again(provider: WrongProvider) -> None:
    before = [dict(vars(kind)) for kind in (Calls, Service)]
    with planted(provider.plant):
        pass
    assert [dict(vars(kind)) for kind in (Calls, Service)] == before


def test_a_check_that_stays_green_is_complained_about() -> None:
    certified, green = complaints(NAME, trial("B210", Status.PASSED))
    assert certified == f"{NAME}: the verdict is CERTIFIED, expected FAILED"
    assert green == f"{NAME}: B210 is passed (because). Planted: Drain with a negative grace drains at once."


def test_an_error_or_a_breakdown_is_no_finding() -> None:
    assert complaints(NAME, trial("B210", Status.FAILED)) == []
    assert "B210 is error" in complaints(NAME, trial("B210", Status.ERROR))[0]
    assert complaints(NAME, trial("B210", Status.FAILED, "KeyError('x')")) == [
        f"{NAME}: the kit broke down over the mistake: KeyError('x')"
    ]
    assert complaints(NAME, Trial(NAME, {}, 0.0))[-1] == f"{NAME}: B210 did not run"


def test_a_check_that_fails_without_a_mistake_proves_nothing() -> None:
    assert complaints("unbroken-fake", trial("B210", Status.FAILED)) == [
        "unbroken-fake: B210 is failed with no mistake planted: because"
    ]


def test_the_table_shows_who_is_caught_by_what(capsys: pytest.CaptureFixture[str]) -> None:
    only = ("--only", NAME)
    assert main(only) == 0
    assert f"\nB210    {NAME}\n" in capsys.readouterr().out
    assert main([*only, "--output", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["checks"]["B210"] == [NAME]
    [provider] = document["wrong_providers"]
    assert (provider["breaks"], provider["verdict"]) == (["provider.md §5"], "FAILED")
    with pytest.raises(SystemExit):
        main(["--only", "nobody"])


async def test_the_suite_can_start_a_wrong_provider_itself() -> None:
    served = f"{sys.executable} -m tests.wrong_providers {NAME}"
    options = "--addr {addr} --seed-count {seed_count} --metrics-addr 0 --log-level warn"
    ended = await command("--provider-cmd", f"{served} {options}", "--select", "B210,B208")
    assert ended.status == 1
    assert "B210 failed" in ended.out and "B208 failed" not in ended.out


def test_without_a_name_they_are_listed() -> None:
    program = (sys.executable, "-m", "tests.wrong_providers")
    listed = subprocess.run([*program, "nobody"], capture_output=True, text=True, timeout=60, check=False)
    assert listed.returncode == 2
    for name in load():
        assert f"  {name} " in listed.stderr


def trial(behaviour_id: str, status: Status, *panics: str) -> Trial:
    result = Result(BEHAVIOURS[behaviour_id], status, True, "because")
    return Trial(NAME, {behaviour_id: result}, 0.0, panics)
