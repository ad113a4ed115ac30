"""The fake behind gRPC: the kit's server, with faults between it and its callers."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, Final, cast

from bigfleet_base.model import MachineState
from bigfleet_base.telemetry import Log, Logs
from bigfleet_providerkit.core import Core
from bigfleet_providerkit.driver import Driver
from bigfleet_providerkit.effects import Code
from bigfleet_providerkit.fake.backend import FakeBackend
from bigfleet_providerkit.fake.boundary import Boundary, LaggingList
from bigfleet_providerkit.fake.knobs import Knobs
from bigfleet_providerkit.listing import Listed
from bigfleet_providerkit.metrics import Telemetry
from bigfleet_providerkit.process import Provider, Serving
from bigfleet_providerkit.records import Slot
from bigfleet_providerkit.server import Context, Refused, Service
from bigfleet_providerkit.settings import Settings
from bigfleet_providerkit.work import NANOS

_LOOKS: Final = 10
"""How often within its lag a lagging List looks at the machines."""


class FakeServer(Provider):
    """A provider process whose callers are as far away as the knobs say."""

    def __init__(self, backend: FakeBackend, settings: Settings, serving: Serving, log: Log) -> None:
        super().__init__(backend, settings, serving, log)
        knobs = backend.substrate.knobs
        self._reads = _Reads(self.core, knobs.list_stale)
        self._service = _FaultyService(self._reads, self._driver, self._telemetry, knobs)

    async def start(self) -> None:
        await super().start()
        self._tasks.append(asyncio.get_running_loop().create_task(self._reads.watch()))


@asynccontextmanager
async def serve_fake(
    backend: FakeBackend, settings: Settings | None = None, serving: Serving | None = None
) -> AsyncIterator[FakeServer]:
    """A fake inside this process, on a free port of the loopback unless told otherwise."""
    settings = settings or Settings(provider=backend.name)
    log = Logs().logger("provider", provider=settings.provider)
    server = FakeServer(backend, settings, serving or Serving(), log)
    try:
        await server.start()
        yield server
    finally:
        await server.stop()


class _FaultyService(Service):
    def __init__(self, reads: "_Reads", driver: Driver, telemetry: Telemetry, knobs: Knobs) -> None:
        super().__init__(cast("Core", reads), driver, telemetry)
        self._boundary = Boundary(knobs)

    def _handler(
        self, method: str, behaviour: Callable[[Any, Context], Awaitable[bytes]], request: Any
    ) -> Any:
        async def crossed(message: Any, context: Context) -> bytes:
            crossing = self._boundary.cross()
            try:
                if crossing.is_lost:
                    raise Refused(Code.UNAVAILABLE, "the call was lost (rpc.error_rate)")
                answer = await behaviour(message, context)
                if crossing.is_answer_lost:
                    raise Refused(Code.UNAVAILABLE, "the answer was lost (rpc.error_rate)")
                return answer
            finally:
                await asyncio.sleep(crossing.delay / NANOS)

        return super()._handler(method, crossed, request)


class _Reads:
    """What the server reads of a core, with a List that lags."""

    def __init__(self, core: Core, lag: int) -> None:
        self._core = core
        self._lag = lag
        self._lagging: LaggingList | None = None
        self.settings = core.settings

    def get(self, machine_id: str) -> Slot | None:
        return self._core.get(machine_id)

    def list_machines(self, states: frozenset[MachineState], max_results: int, since: bytes) -> Listed:
        if self._lagging is None:
            return self._core.list_machines(states, max_results, since)
        now = time.monotonic_ns()
        self._lagging.observe(now)
        return self._lagging.answer(states, max_results, since, now)

    async def watch(self) -> None:
        """Keep the lagging List going, once there is something to list."""
        if self._lag:
            self._lagging = LaggingList(self._core, self._lag)
            while True:
                await asyncio.sleep(self._lag / _LOOKS / NANOS)
                self._lagging.observe(time.monotonic_ns())
