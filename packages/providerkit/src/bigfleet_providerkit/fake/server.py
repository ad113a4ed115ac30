"""The fake behind gRPC: the kit's server, with faults between it and its callers."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Final

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
from bigfleet_providerkit.server import Context, Refused, Service
from bigfleet_providerkit.settings import Settings
from bigfleet_providerkit.work import NANOS

_LOOKS: Final = 10
"""How often within its lag a lagging List looks at the machines."""


class FakeServer(Provider):
    """A provider process whose callers are as far away as the knobs say."""

    def __init__(self, backend: FakeBackend, settings: Settings, serving: Serving, log: Log) -> None:
        knobs = backend.substrate.knobs
        self._lag = _Lag(knobs.list_stale)
        super().__init__(backend, settings, serving, log, partial(_FaultyService, knobs, self._lag))

    async def start(self) -> None:
        await super().start()
        self._tasks.append(asyncio.get_running_loop().create_task(self._lag.watch(self.core)))


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
    def __init__(
        self,
        knobs: Knobs,
        lag: "_Lag",
        core: Core,
        driver: Driver,
        telemetry: Telemetry,
        *,
        is_plaintext: bool,
    ) -> None:
        super().__init__(core, driver, telemetry, is_plaintext=is_plaintext)
        self._boundary = Boundary(knobs)
        self._lag = lag

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

    async def _listed(self, states: frozenset[MachineState], max_results: int, since: bytes) -> Listed:
        behind = self._lag.behind
        if behind is None:
            return await super()._listed(states, max_results, since)
        now = time.monotonic_ns()
        behind.observe(now)
        return behind.answer(states, max_results, since, now)


class _Lag:
    """How far List is behind: not at all until there is something to list, or without a lag."""

    def __init__(self, nanos: int) -> None:
        self._nanos = nanos
        self.behind: LaggingList | None = None

    async def watch(self, core: Core) -> None:
        """Note what becomes of the machines."""
        if self._nanos:
            self.behind = LaggingList(core, self._nanos)
            while True:
                await asyncio.sleep(self._nanos / _LOOKS / NANOS)
                self.behind.observe(time.monotonic_ns())
