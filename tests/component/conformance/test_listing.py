"""List, its revisions and its cursors: the fake passes, and what the suite makes of providers with less."""

import pytest

from bigfleet_base.api.v1alpha1 import provider_pb2 as pb
from bigfleet_providerkit.conformance import run
from bigfleet_providerkit.conformance.catalogue import BEHAVIOURS
from bigfleet_providerkit.conformance.outcome import Result, Status
from bigfleet_providerkit.conformance.report import Report
from bigfleet_providerkit.server import Context, Service
from tests.component.conformance.world import FAKE, BaseContract, certified, served
from tests.support.rules import rule

DURABLE_FAKE = f"{FAKE} --state {{state}}"
PRICES_MOVE = "--knob price.walk=0.2 --knob price.interval=200ms"
IDS = [behaviour.id for behaviour in BEHAVIOURS.values() if behaviour.area.number == 9]


class Echo(Service):
    """Capped answers carry the cursor of everything, as the reference's do."""

    async def _list(self, request: pb.ListFilter, context: Context) -> bytes:
        listed = pb.MachineList.FromString(await super()._list(request, context))
        listed.revision = (await self._listed(frozenset(), 0, b"")).revision
        return listed.SerializeToString()


class Frugal(Service):
    """A page has a third of what it might have."""

    async def _list(self, request: pb.ListFilter, context: Context) -> bytes:
        if request.max_results > 0 and not request.states:
            request.max_results = max(1, request.max_results // 3)
        return await super()._list(request, context)


class Forgetful(Service):
    """Neither tombstones nor ``full``, although ProviderInfo says so."""

    async def _list(self, request: pb.ListFilter, context: Context) -> bytes:
        return without_extensions(await super()._list(request, context))


class Plain(BaseContract):
    """The same, and it never said anything else."""

    async def _list(self, request: pb.ListFilter, context: Context) -> bytes:
        return without_extensions(await super()._list(request, context))


def without_extensions(message: bytes) -> bytes:
    listed = pb.MachineList.FromString(message)
    listed.ClearField("full")
    listed.ClearField("removed_ids")
    return listed.SerializeToString()


@pytest.fixture(scope="module")
def report() -> Report:
    return run(
        provider_cmd=DURABLE_FAKE, profiles=("core", "fault", "durable"), select=("B9??", "X9??"), parallel=8
    )


@pytest.mark.parametrize("behaviour_id", [pytest.param(one, marks=rule(f"conformance.{one}")) for one in IDS])
def test_the_fake_passes(report: Report, behaviour_id: str) -> None:
    result = report.result(behaviour_id)
    assert result.status is Status.PASSED, result.reason
    assert not result.notes, "something was left unchecked"


def test_prices_that_move_by_themselves_are_changes_like_others() -> None:
    ids = ("B904", "B905", "B908", "B909")
    moving = run(provider_cmd=f"{FAKE} {PRICES_MOVE}", select=ids)
    for behaviour_id in ids:
        result = moving.result(behaviour_id)
        assert result.status is Status.PASSED, result.reason


async def test_a_cursor_that_skips_what_a_cap_cut_off_is_lenient_at_best() -> None:
    async with served(service=Echo) as address:
        strict = await result(address, "B907")
        lenient = await result(address, "B907", compat=True)
    assert strict.status is Status.FAILED and "cut off by the cap" in strict.reason
    assert lenient.status is Status.PASSED and "cut off by the cap" in lenient.lenient


@rule("conformance.X901", "conformance.B907")
async def test_pages_may_be_smaller_than_their_cap() -> None:
    async with served(service=Frugal, seeds=64) as address:
        for behaviour_id in ("X901", "B907"):
            found = await result(address, behaviour_id)
            assert found.status is Status.PASSED, found.reason


async def test_only_who_promises_tombstones_owes_them() -> None:
    async with served(service=Plain) as address:
        assert await ended(address, "X902") is Status.SKIPPED_CAPABILITY
    async with served(service=Forgetful) as address:
        assert await ended(address, "X902") is Status.FAILED


async def test_a_running_target_is_not_asked_to_lose_machines() -> None:
    async with served() as address:
        found = await result(address, "X902")
    assert found.status is Status.PASSED
    assert found.notes == (
        "no machine was removed: that takes a --provider-cmd with {state} and {seed_count}",
    )


async def result(address: str, behaviour_id: str, *, compat: bool = False) -> Result:
    return (await certified(address, select=(behaviour_id,), compat=compat)).result(behaviour_id)


async def ended(address: str, behaviour_id: str) -> Status:
    return (await result(address, behaviour_id)).status
