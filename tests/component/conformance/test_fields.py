"""Area 8 against the fake as a process, and records that a provider must not publish."""

import math
from collections.abc import Callable

import pytest

from bigfleet_base.api.v1alpha1 import provider_pb2 as pb
from bigfleet_base.model import MachineState as S
from bigfleet_providerkit.conformance import run
from bigfleet_providerkit.conformance.areas import fields
from bigfleet_providerkit.conformance.checks import CheckFailed
from bigfleet_providerkit.conformance.outcome import Status
from bigfleet_providerkit.conformance.report import Report
from tests.component.conformance.world import FAKE, certified, served
from tests.support.rules import rule

IDS = (*(f"B80{n}" for n in range(1, 8)), "X801", "X802", "X803")


@pytest.fixture(scope="module")
def report() -> Report:
    return run(provider_cmd=FAKE, profiles=("core", "cloud", "spot"), select=IDS, parallel=8)


@pytest.mark.parametrize("behaviour_id", [pytest.param(one, marks=rule(f"conformance.{one}")) for one in IDS])
def test_the_fake_passes(report: Report, behaviour_id: str) -> None:
    result = report.result(behaviour_id)
    assert result.status is Status.PASSED, result.reason


async def test_without_spot_machines_the_spot_profile_lacks_something() -> None:
    async with served(seeds=1) as address:
        for profile, status in (("core", Status.VACUOUS), ("spot", Status.SKIPPED_FIXTURE)):
            report = await certified(address, profiles=(profile,), select=("B802",), min_slots=1)
            assert report.result("B802").status is status


def _bare_label(machine: pb.Machine) -> None:
    machine.labels["availability-zone"] = "a"


def _no_type(machine: pb.Machine) -> None:
    machine.instance_type = ""


def _unspecified(machine: pb.Machine) -> None:
    machine.state = pb.MACHINE_STATE_UNSPECIFIED


def _no_price(machine: pb.Machine) -> None:
    machine.price_per_hour = math.nan


def _negative(machine: pb.Machine) -> None:
    machine.price_per_hour = -1


def _certain(machine: pb.Machine) -> None:
    machine.interruption_probability = 1.01


def _safe_spot(machine: pb.Machine) -> None:
    machine.capacity_type = pb.CAPACITY_TYPE_SPOT


def _nowhere(machine: pb.Machine) -> None:
    machine.zone = ""


def _hostless(machine: pb.Machine) -> None:
    machine.ClearField("host")


def _bound(machine: pb.Machine) -> None:
    machine.cluster = "c1"


@pytest.mark.parametrize(
    ("look", "spoil", "said"),
    [
        (fields.shape, _bare_label, "has the label ['availability-zone']"),
        (fields.shape, _no_type, "has no instance_type"),
        (fields.shape, _unspecified, "has state UNSPECIFIED"),
        (fields.cost, _no_price, "has price_per_hour nan"),
        (fields.cost, _negative, "has price_per_hour -1.0"),
        (fields.cost, _certain, "expected 0 to 1"),
        (fields.cost, _safe_spot, "is SPOT with interruption_probability 0"),
        (fields.located, _nowhere, "at IDLE has no zone"),
        (fields.placed, _hostless, "at IDLE has no host"),
        (fields.placed, _bound, "at IDLE has cluster 'c1'"),
    ],
)
def test_a_wrong_record_is_told(
    look: Callable[[pb.Machine], None], spoil: Callable[[pb.Machine], None], said: str
) -> None:
    machine = pb.Machine(
        id="m1",
        state=pb.MACHINE_STATE_IDLE,
        instance_type="standard-4",
        zone="a",
        capacity_type=pb.CAPACITY_TYPE_ON_DEMAND,
        price_per_hour=1,
        host=pb.HostRef(provider="p", ref="r"),
    )
    assert machine.state == int(S.IDLE)
    look(machine)
    spoil(machine)
    with pytest.raises(CheckFailed, match=r"m1") as failed:
        look(machine)
    assert said in str(failed.value)


def spot(*probabilities: float) -> list[pb.Machine]:
    return [
        pb.Machine(id=f"m{number}", instance_type="standard-4", interruption_probability=probability)
        for number, probability in enumerate(probabilities)
    ]


@rule("conformance.X803", "provider.P-94")
@pytest.mark.parametrize("declared", [(0.025, 0.125), (0.3, 0.25, 0.25)])
def test_only_figures_of_monthly_reports_are_no_hourly_probabilities(declared: tuple[float, ...]) -> None:
    with pytest.raises(CheckFailed, match=r"1 - \(1 - p\)\^\(1/730\)"):
        fields.hourly(spot(*declared))


@rule("conformance.X803", "provider.P-94")
@pytest.mark.parametrize("declared", [(0.25,), (0.25, 0.25), (0.25, 0.125, 0.05)])
def test_a_probability_may_happen_to_be_a_figure_of_monthly_reports(declared: tuple[float, ...]) -> None:
    assert "m0 (standard-4) has interruption_probability 0.25" in fields.hourly(spot(*declared))
    assert fields.hourly(spot(0.05, 0.00018)) == ""
