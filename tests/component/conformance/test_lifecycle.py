"""Area 1 before providers that are right and fast, or right and slow to hear."""

import asyncio
from typing import Any

from bigfleet_providerkit.conformance.outcome import Status
from bigfleet_providerkit.fake import FakeBackend
from bigfleet_providerkit.fake.knobs import read_knobs
from bigfleet_providerkit.records import Kind
from bigfleet_providerkit.server import Context, Service
from tests.component.conformance.world import certified, served
from tests.support.rules import rule


class HardOfHearing(Service):
    """Takes so long to hear of a call that a transition is over when it does."""

    async def _mutate(self, kind: Kind, request: Any, context: Context, **more: Any) -> bytes:
        await asyncio.sleep(0.05)
        return await super()._mutate(kind, request, context, **more)


def quick(latency: str) -> FakeBackend:
    return FakeBackend(read_knobs([f"latency.configure={latency}", f"latency.drain={latency}"]))


@rule("conformance.X104")
async def test_a_call_that_comes_after_the_transition_is_rightly_accepted() -> None:
    async with served(quick("20ms"), service=HardOfHearing) as address:
        found = (await certified(address, select=("X104",))).result("X104")
    assert (found.status, found.reason) == (
        Status.VACUOUS,
        "the machine settled before the second call could be made",
    )


@rule("conformance.X104", "conformance.B103", "conformance.B104", "conformance.B106")
async def test_transitions_of_milliseconds_fail_nobody() -> None:
    ids = ("X104", "B103", "B104", "B105", "B106", "B109")
    for latency in ("0", "1ms", "3ms"):
        async with served(quick(latency)) as address:
            report = await certified(address, select=ids)
        found = {one: (report.result(one).status, report.result(one).reason) for one in ids}
        assert {status for status, _ in found.values()} <= {Status.PASSED, Status.VACUOUS}, found
