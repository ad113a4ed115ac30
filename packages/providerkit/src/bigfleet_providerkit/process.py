"""A provider process put together: store, core, backend, server, probes; started and stopped in order."""

import asyncio
import gc
import random
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from grpc import aio
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from bigfleet_base.telemetry import CONTENT_TYPE, Log, Logs
from bigfleet_base.wire import TlsCredentials, listen
from bigfleet_base.wire.channel import PROVIDER_RECEIVE_BYTES
from bigfleet_base.wire.web import Web, text
from bigfleet_providerkit.backend import Backend, overrides
from bigfleet_providerkit.core import Core
from bigfleet_providerkit.driver import Driver
from bigfleet_providerkit.effects import Event
from bigfleet_providerkit.metrics import Telemetry
from bigfleet_providerkit.runner import Runner
from bigfleet_providerkit.server import INFO_SERVICE, SERVICE, MakeService, Service
from bigfleet_providerkit.settings import Capabilities, Settings
from bigfleet_providerkit.store import MemoryStore, SqliteStore, Store

_NOTICE_S: Final = 0.5
"""Between telling the probes and closing the port, so that nobody is sent to a closed door."""
_RPC_GRACE_S: Final = 5.0


class StartError(Exception):
    """The provider must not serve; the message says why and what to do."""


@dataclass(frozen=True)
class Serving:
    """How a provider is reached, and what it keeps."""

    address: str = "127.0.0.1:0"
    state: Path | None = None
    restored: bool = False
    tls: TlsCredentials | None = None
    insecure: bool = False
    metrics_address: str = ""
    """Empty for none."""
    reflection: bool = False
    shutdown_window: float = 10.0
    """Seconds that backend calls under way get before they are cancelled."""


def capabilities(backend: Backend) -> Capabilities:
    """What the backend can do, from what it overrides; StartError when readiness is left open (§9)."""
    name = type(backend).__name__
    for method in ("create", "configure", "drain"):
        if not overrides(backend, method):
            raise StartError(f"{name} has no {method}()")
    if not backend.readiness and overrides(backend, "node_ready"):
        probe = True
    elif backend.readiness in ("probe", "actuator-blocks"):
        probe = backend.readiness == "probe"
    else:
        raise StartError(
            f'{name} neither has node_ready() nor says readiness = "actuator-blocks"; a machine must not be'
            " Configured before its node is Ready"
        )
    if probe and not overrides(backend, "node_ready"):
        raise StartError(f'{name} says readiness = "probe" and has no node_ready()')
    return Capabilities(
        delete=overrides(backend, "delete"),
        inspect=overrides(backend, "inspect"),
        cleanup=overrides(backend, "cleanup"),
        discover=overrides(backend, "discover"),
        probe=probe,
    )


class Provider:
    """One running provider. ``start`` returns when the first List would be complete (P-127)."""

    def __init__(
        self,
        backend: Backend,
        settings: Settings,
        serving: Serving,
        log: Log,
        make_service: MakeService = Service,
    ) -> None:
        self._settings = replace(
            settings, capabilities=capabilities(backend), max_blob_bytes=backend.max_blob_bytes
        )
        self._serving = serving
        self._log = log
        self._telemetry = Telemetry(settings.provider, log)
        self._store: Store = (
            MemoryStore() if serving.state is None else SqliteStore(serving.state, restored=serving.restored)
        )
        if serving.state is None:
            log.warn("no --state: bindings are lost when this process ends; never run production like this")
        self.core = Core(self._settings, self._store.load(), random.Random().random)  # noqa: S311  # jitter
        threads = 2 * sum(self._settings.concurrency.values()) + 4
        self._runner = Runner(
            backend, self._deliver, self._telemetry.substrate, self._telemetry.feed_failed, threads
        )
        self._driver = Driver(
            self.core,
            self._store,
            time.monotonic_ns,
            self._runner.invoke,
            self._runner.cancel,
            self._telemetry.report,
            self._telemetry.wrote,
        )
        self._service = make_service(
            self.core, self._driver, self._telemetry, is_plaintext=serving.tls is None
        )
        self._health = health.aio.HealthServicer()
        self._web = Web(
            {
                "/healthz": lambda: text(200, "ok"),
                "/readyz": lambda: text(200, "ok") if self._is_ready() else text(503, self._why_not_ready()),
                "/metrics": lambda: (200, CONTENT_TYPE, self._telemetry.render(self.core)),
            },
            failed=lambda path, error: log.error("page failed", path=path, err=error),
        )
        self._server: aio.Server | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._stopping = False
        self.address = ""
        self.metrics_port = 0

    async def start(self) -> None:
        """Load, classify, describe, and only then open the port."""
        if self._serving.metrics_address:
            try:
                self.metrics_port = await self._web.start(self._serving.metrics_address)
            except OSError as error:
                raise StartError(
                    f"cannot serve metrics on {self._serving.metrics_address} (--metrics-addr):"
                    f" {error.strerror}; give another address, or 0 for none"
                ) from error
        self.core.start(time.monotonic_ns())
        driving = asyncio.get_running_loop().create_task(self._driver.run())
        self._tasks.append(driving)
        while not self.core.ready:
            if self.core.failure:
                raise StartError(self.core.failure)
            if driving.done():
                driving.result()
            if not self._driver.store_works:
                raise StartError("the store does not take writes; see the log")
            await asyncio.sleep(0.002)
        self.core.listing.ids()  # or the first pick would make everyone wait for it
        # Nothing of the inventory is garbage: spare the collector from walking it again and again.
        gc.collect()
        gc.freeze()
        self._runner.start_feeds()
        self._server, port = listen(
            self._serving.address,
            self._serving.tls,
            insecure=self._serving.insecure,
            receive_bytes=PROVIDER_RECEIVE_BYTES,
        )
        self._service.add_to(self._server)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        if self._serving.reflection:
            from grpc_reflection.v1alpha import reflection

            names = (SERVICE, INFO_SERVICE, health.SERVICE_NAME, reflection.SERVICE_NAME)
            reflection.enable_server_reflection(names, self._server)
        for name in ("", SERVICE):
            await self._health.set(name, health_pb2.HealthCheckResponse.SERVING)
        await self._server.start()
        is_socket = self._serving.address.startswith("unix")
        self.address = self._serving.address if is_socket else f"{_host(self._serving.address)}:{port}"
        self._tasks.append(asyncio.get_running_loop().create_task(self._watch_store()))
        self._log.info(
            "provider started", address=self.address, machines=sum(self.core.listing.counts().values())
        )

    async def crashed(self) -> None:
        """Never returns; raises if the loop around the core has died, after which nothing can be answered."""
        await asyncio.shield(self._tasks[0])

    async def stop(self) -> None:
        """Say so, answer what was taken, give the backend its window, and leave a whole store (P-126)."""
        self._stopping = True
        if self._server is not None:
            await self._health.enter_graceful_shutdown()
            self._driver.refuse()
            await asyncio.sleep(_NOTICE_S)
            self._service.serving = False
            await self._server.stop(_RPC_GRACE_S)
        with suppress(TimeoutError):
            async with asyncio.timeout(self._serving.shutdown_window):
                await self._settled()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._runner.stop()
        self._driver.close()
        self._store.close()
        await self._web.stop()

    async def _settled(self) -> None:
        """Return when the backend has nothing left to do, or when nobody asks it any more."""
        driver = self._tasks[:1]
        while self.core.acting and not any(task.done() for task in driver):  # noqa: ASYNC110  # a core is silent
            await asyncio.sleep(0.01)

    async def _watch_store(self) -> None:
        """Readiness follows the store: a provider that cannot persist must not be sent work (P-123)."""
        status = health_pb2.HealthCheckResponse
        shown = True
        while True:
            await asyncio.sleep(0.2)
            works = self._driver.store_works
            if works != shown:
                shown = works
                for name in ("", SERVICE):
                    await self._health.set(name, status.SERVING if works else status.NOT_SERVING)

    def _deliver(self, event: Event) -> None:
        self._driver.deliver(event)

    def _is_ready(self) -> bool:
        return bool(self.address) and not self._stopping and self._driver.store_works

    def _why_not_ready(self) -> str:
        if self._stopping:
            return "shutting down"
        return "the store does not take writes" if self.address else "the inventory is being described"


@asynccontextmanager
async def serve_in_process(
    backend: Backend,
    settings: Settings | None = None,
    serving: Serving | None = None,
    logs: Logs | None = None,
) -> AsyncIterator[Provider]:
    """A provider inside this process, on a free port of the loopback unless told otherwise."""
    settings = settings or Settings(provider=backend.name or "in-process")
    log = (logs or Logs()).logger("provider", provider=settings.provider)
    provider = Provider(backend, settings, serving or Serving(), log)
    try:
        await provider.start()
        yield provider
    finally:
        await provider.stop()


def _host(address: str) -> str:
    host = address.rpartition(":")[0]
    return host or "127.0.0.1"
