"""What the fake does with calls that the kit gives up on."""

import asyncio

from bigfleet_base.model import CapacityType
from bigfleet_providerkit.backend import MachineView, Operation
from bigfleet_providerkit.fake import FakeBackend
from bigfleet_providerkit.fake.knobs import read_knobs
from tests.support.eventually import eventually

VIEW = MachineView("m-0", "t", "z", CapacityType.ON_DEMAND, {}, {"cpu": "4"}, "", "", {})


async def test_a_call_that_outlives_its_cancellation_has_settled_it() -> None:
    """Python 3.11.2 ends no timeout while a cancellation is not settled: the call would go on for ever."""
    backend = FakeBackend(read_knobs(["hang.create.rate=1", "late_success=10ms"]))
    call = asyncio.create_task(backend.create(Operation(VIEW, "op", timeout=1.0)))
    await eventually(lambda: bool(backend.substrate.staged()))
    call.cancel()
    async with asyncio.timeout(20):
        host = await call
    assert host.ref and not call.cancelling()
