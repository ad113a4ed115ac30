"""Providers to point the suite at, and the suite as a command."""

import asyncio
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, cast

import grpc
from grpc import aio

from bigfleet_base.api.v1alpha1 import provider_pb2 as pb
from bigfleet_base.model import MachineState
from bigfleet_base.telemetry import Logs
from bigfleet_providerkit import Backend
from bigfleet_providerkit.conformance.options import Options
from bigfleet_providerkit.conformance.report import Report
from bigfleet_providerkit.conformance.runner import Run, Unwatched
from bigfleet_providerkit.fake import FakeBackend
from bigfleet_providerkit.offerings import seed_offerings
from bigfleet_providerkit.process import Provider, Serving
from bigfleet_providerkit.server import SERVICE, Service
from bigfleet_providerkit.settings import Settings

FAKE = (
    f"{sys.executable} -m bigfleet_providerkit.fake --addr {{addr}} --seed-count {{seed_count}}"
    " --metrics-addr 0 --log-level warn"
)


class BaseContract(Service):
    """A provider that knows no extension of ours."""

    def add_to(self, server: aio.Server) -> None:
        super().add_to(cast("aio.Server", _OnlyTheContract(server)))


class _OnlyTheContract:
    def __init__(self, server: aio.Server) -> None:
        self._server = server

    def add_generic_rpc_handlers(self, handlers: Any) -> None:
        kept = [handler for handler in handlers if handler.service_name() == SERVICE]
        self._server.add_generic_rpc_handlers(tuple(kept))


class Undeletable(FakeBackend):
    """A provider of machines that nobody can take away."""

    delete = Backend.delete


@asynccontextmanager
async def served(
    backend: Backend | None = None,
    seeds: int = 32,
    serving: Serving | None = None,
    service: Callable[..., Service] = Service,
) -> AsyncIterator[str]:
    """A fake inside this process; its address."""
    backend = backend or FakeBackend()
    backend.standard_offerings = seed_offerings(seeds)
    log = Logs(level="error").logger("provider", provider="fake")
    provider = Provider(
        backend, Settings(provider="fake"), serving or Serving(shutdown_window=0.0), log, service
    )
    try:
        await provider.start()
        yield provider.address
    finally:
        await provider.stop()


async def certified(target: str, **options: Any) -> Report:
    """A run in this process."""
    return await Run(Options(target=target, **options), Unwatched()).certify()


@dataclass(frozen=True)
class Ended:
    status: int
    out: str
    err: str


async def command(*arguments: str, seconds: float = 60) -> Ended:
    """The suite as a process."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "bigfleet_providerkit.conformance", *arguments),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(seconds):
            out, err = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    return Ended(process.returncode or 0, out.decode(), err.decode())


@asynccontextmanager
async def tcp(answer: bytes) -> AsyncIterator[str]:
    """Something that listens and, to whatever it is told, gives one answer; nothing if it has none."""
    end = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        if not answer:
            await end.wait()
        writer.write(answer)
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        end.set()
        server.close()
        await server.wait_closed()


async def inventory(address: str, *states: MachineState) -> dict[str, int]:
    """Machine id → state, of machines in these states or in any."""
    async with grpc.aio.insecure_channel(address) as channel:
        call = channel.unary_unary(
            f"/{SERVICE}/List", pb.ListFilter.SerializeToString, pb.MachineList.FromString
        )
        listed = await call(pb.ListFilter(states=[int(state) for state in states]))  # type: ignore[misc]  # enums of model have these numbers
        return {machine.id: machine.state for machine in listed.machines}
