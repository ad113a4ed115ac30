"""A shard process put together: started and stopped in order (shard.md §1)."""

import asyncio
import faulthandler
import secrets
import signal
from collections.abc import Coroutine
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from grpc import aio

from bigfleet.shard.core.core import ShardCore
from bigfleet.shard.core.events import CallsAbandoned, Event, ShutdownBegun
from bigfleet.shard.core.settings import Settings
from bigfleet.shard.provider import Fence
from bigfleet.shard.provider.client import ProviderClient
from bigfleet.shard.provider.endpoints import Endpoint
from bigfleet.shard.shell import garbage
from bigfleet.shard.shell.auditlog import AuditLog, AuditLogError
from bigfleet.shard.shell.datadir import DataDir, DataDirError
from bigfleet.shard.shell.driver import Clock, Driver, Recorder
from bigfleet.shard.shell.providers import Providers
from bigfleet.shard.shell.reads import Reads
from bigfleet.shard.shell.recorder import start_recording
from bigfleet.shard.shell.server import add_services
from bigfleet.shard.shell.sessions import Sessions
from bigfleet.shard.shell.web import Pages
from bigfleet_base.telemetry import Logs, Metrics, Role
from bigfleet_base.telemetry.catalogue import process as process_series
from bigfleet_base.telemetry.catalogue import shard as series
from bigfleet_base.wire import Identity, TlsCredentials, TlsFiles, TransportError, bound_address, listen
from bigfleet_base.wire.identity import Role as PeerRole
from bigfleet_base.wire.session import Stamp

START_ERRORS: Final = (DataDirError, AuditLogError, TransportError)
"""What keeps a shard from starting and is somebody's to correct; the messages say how."""


CALLS_GRACE_S: Final = 5.0
"""For provider calls that were sent when the end came (P2)."""
_CORE_GRACE_S: Final = 1.0
_SERVER_GRACE_S: Final = 0.5
_STDERR: Final = 2


@dataclass(frozen=True, slots=True)
class ShardOptions:
    """A shard process as it was asked for."""

    settings: Settings
    """Epoch, seed and domains are filled in at the start."""
    listen: str
    data_dir: Path
    providers: tuple[Endpoint, ...]
    metrics_address: str = ""
    """Empty for none."""
    epoch_floor: int = 0
    incremental: bool = False
    full_interval_ns: int = 600 * 10**9
    audit_log: str = ""
    record_dir: Path | None = None
    record_max_bytes: int = 0
    """0: nothing is recorded."""
    tls: TlsFiles | None = None
    insecure: bool = False
    plain_providers: bool = False
    """The providers are in this process, behind the loopback, where TLS proves nothing."""
    debug_endpoints: bool = False


class ShardProcess:
    """One shard, made inside a running loop. Making it takes the lock and the epoch and dials the providers;
    one of ``START_ERRORS`` leaves nothing behind."""

    def __init__(self, options: ShardOptions, logs: Logs) -> None:
        shard_id = options.settings.shard_id
        self._options = options
        self._tls = TlsCredentials(options.tls, Identity(PeerRole.SHARD, shard_id)) if options.tls else None
        with ExitStack() as undo:
            data = DataDir(options.data_dir)
            undo.callback(data.close)
            epoch = data.next_epoch(options.epoch_floor)
            self.settings = replace(
                options.settings, epoch=epoch, seed=secrets.token_bytes(16), domains=data.domains()
            )
            log = self.log = logs.logger("shard", shard_id=shard_id, shard_epoch=epoch)
            self.metrics = Metrics(Role.SHARD)
            self._audit = AuditLog(options.audit_log, self._audit_failed) if options.audit_log else None
            if self._audit is not None:
                undo.callback(self._audit.close)
                log.info("decision audit log enabled", path=options.audit_log)
            clock, fence = Clock(), Fence(shard_id, epoch)
            self.core = ShardCore(self.settings)
            self._recorder = self._start_recording(clock)
            if self._recorder is not None:
                undo.callback(self._recorder.close)
            self.driver = Driver(
                self.core,
                clock,
                self.metrics,
                log,
                is_paused=data.is_paused,
                audit=self._audit,
                recorder=self._recorder,
            )
            self.providers = Providers(
                {endpoint.name: self._client(endpoint, fence, clock, data) for endpoint in options.providers},
                self.driver,
            )
            self._files = undo.pop_all()
        self.sessions = Sessions(self.driver, self.providers, Stamp(epoch), self.metrics, log)
        self.pages = Pages(
            self.core, self.scrape, self.metrics.sketches, log, debug_everywhere=options.debug_endpoints
        )
        self._server: aio.Server | None = None
        self._vital: list[asyncio.Task[Any]] = []
        """The loop around the core, and the gRPC server."""
        self._tasks: list[asyncio.Task[Any]] = []
        self.address = ""
        """Where operators reach it, once it listens."""

    async def start(self) -> None:
        """Listen and begin; the first Lists may still be under way when this returns (S5)."""
        options, settings, log = self._options, self.settings, self.log
        self._server, port = listen(options.listen, self._tls, insecure=options.insecure)
        add_services(self._server, self.sessions, Reads(lambda: self.core.views, log))
        self._vital.append(self._begin(self.driver.run(self.sessions, self.providers)))
        self._begin(self._freeze_when_listed())
        await self._server.start()
        # Not among the tasks that are cancelled: gRPC would take that for the end of its shutdown.
        self._vital.append(asyncio.ensure_future(self._server.wait_for_termination()))
        self.address = bound_address(options.listen, port)
        log.info("listening", addr=self.address)
        if options.metrics_address:
            self._begin(self.pages.serve(options.metrics_address))
        if settings.options.paused:
            log.warn("actuation paused from the start; nothing will be executed")
        log.info(
            "shard started", execute_workers=settings.concurrency, queue_capacity=settings.queue_capacity
        )

    async def crashed(self) -> None:
        """Never returns; raises when a part has died without which there is no shard (P1)."""
        providers = asyncio.ensure_future(self.providers.crashed())
        try:
            done, _ = await asyncio.wait((*self._vital, providers), return_when=asyncio.FIRST_COMPLETED)
        finally:
            providers.cancel()
        for task in done:
            task.result()
        raise RuntimeError("the gRPC server has ended by itself")

    def reopen_audit_log(self) -> None:
        if self._audit is not None:
            self._audit.reopen()

    async def stop(self) -> None:
        """Hand over: what was sent is waited for and applied, then everybody is told (P2)."""
        if self._vital:
            self.pages.stopping = True
            if not self._vital[0].done():
                await self._tell(ShutdownBegun())
                await self.providers.finish(CALLS_GRACE_S)
                await self._tell(CallsAbandoned())
        if self._server is not None:
            await self.sessions.end_all("the shard is shutting down")
            await self._server.stop(_SERVER_GRACE_S)
            await asyncio.gather(*self._vital[1:], return_exceptions=True)
        await self.providers.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.pages.stop()
        self._files.close()
        self.log.info(
            "shard stopped",
            execute_workers=self.settings.concurrency,
            queue_capacity=self.settings.queue_capacity,
        )

    async def _tell(self, event: Event) -> None:
        """Tell the core of the end; one that does not listen any more cannot hold it up."""
        with suppress(TimeoutError):
            async with asyncio.timeout(_CORE_GRACE_S):
                await self.driver.handled(event)

    def _begin(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.append(task)
        return task

    def _start_recording(self, clock: Clock) -> Recorder | None:
        options = self._options
        if options.record_dir is None or not options.record_max_bytes:
            return None
        return start_recording(
            self.core, options.record_dir, options.record_max_bytes, self.metrics, self.log, clock.now()
        )

    def _client(self, endpoint: Endpoint, fence: Fence, clock: Clock, data: DataDir) -> ProviderClient:
        options = self._options
        return ProviderClient(
            endpoint,
            fence,
            None if options.plain_providers else self._tls,
            self.metrics,
            self.log,
            insecure=options.insecure,
            incremental=options.incremental,
            full_interval=options.full_interval_ns,
            call_budget=self.settings.execute_timeout_ns,
            is_halted=lambda: self.core.is_halted() or data.is_paused(),
            now=clock.now,
        )

    def scrape(self) -> bytes:
        """What ``GET /metrics`` answers."""
        self.providers.show_metrics()
        self.metrics.gauge(process_series.TASKS).set(len(asyncio.all_tasks()))
        if self._tls is not None:
            expiry = self._tls.leaf().expiry_unix
            self.metrics.gauge(process_series.CERTIFICATE_EXPIRY, "shard").set(expiry)
        return self.metrics.render()

    async def _freeze_when_listed(self) -> None:
        """Once the fleet is loaded it stays for good."""
        garbage.look_rarely()
        while not self.core.ready()[0]:  # noqa: ASYNC110  # the core calls nobody back
            await asyncio.sleep(0.5)
        garbage.keep_for_good()

    def _audit_failed(self, path: str, error: OSError) -> None:
        self.metrics.counter(series.AUDIT_ERRORS).inc()
        self.log.error("audit write failed", path=path, err=error)


async def run_shard(options: ShardOptions, logs: Logs) -> None:
    """Run until SIGTERM or SIGINT; raises ``START_ERRORS``, or whatever has brought the shard down."""
    shard = ShardProcess(options, logs)
    loop, stopped = asyncio.get_running_loop(), asyncio.Event()

    def stop() -> None:
        shard.log.info("signal received, shutting down")
        stopped.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)
    loop.add_signal_handler(signal.SIGHUP, shard.reopen_audit_log)
    # Not through the loop: it is when the loop stands still that stacks are wanted.
    faulthandler.register(signal.SIGUSR1, file=_STDERR, all_threads=True)
    try:
        await shard.start()
        ends = [asyncio.ensure_future(shard.crashed()), asyncio.ensure_future(stopped.wait())]
        await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        for end in ends:
            end.cancel()
        await asyncio.gather(*ends, return_exceptions=True)
        if not stopped.is_set():
            try:
                ends[0].result()
            except Exception:
                # Who reads the log alone would see an end like any other.
                shard.log.exception("shard failed")
                raise
    finally:
        await shard.stop()
