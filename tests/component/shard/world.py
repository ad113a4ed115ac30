"""A shard process in this loop, a provider behind gRPC, and operators that do what a test tells them."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from io import BytesIO
from pathlib import Path
from typing import Any, TypeVar

from grpc import aio

from bigfleet.shard.core.settings import Settings
from bigfleet.shard.provider.endpoints import Endpoint
from bigfleet.shard.shell.process import ShardOptions, ShardProcess
from bigfleet_base.model import CapacityType, Need, Profile, ResourceVector
from bigfleet_base.model.frames import Frame
from bigfleet_base.telemetry import Logs
from bigfleet_base.wire import TlsCredentials, dial
from bigfleet_base.wire.rollups import encode_rollup_message
from bigfleet_base.wire.session import Hello, decode_frame, encode_operator_message
from bigfleet_providerkit.backend import Offering
from bigfleet_providerkit.fake import FakeBackend
from bigfleet_providerkit.fake.server import FakeServer, serve_fake
from tests.shard.lab import DEPLOYED

SESSION = "/bigfleet.v1alpha1.Shard/Session"
INSPECT = "/bigfleet.v1alpha1.ShardRead/InspectNeeds"
SECOND = 10**9
Kind = TypeVar("Kind")

OFFERINGS = [
    Offering(
        "standard-4",
        "zone-a",
        CapacityType.ON_DEMAND,
        20,
        0.2,
        allocatable={"cpu": "4", "memory": "16Gi"},
        resources={"cpu": "4", "memory": "16Gi"},
    )
]


def need(cluster: str = "c1", *, cpus: int = 4, priority: int = 100, group: str = "") -> Need:
    """Demand for machines of the fake: four CPUs each."""
    return Need(
        cluster, Profile(priority=priority), ResourceVector(cpu=1000 * cpus), ResourceVector(cpu=1000), group
    )


@dataclass
class World:
    """What a test has of a running shard."""

    shard: ShardProcess
    provider: FakeServer
    log: BytesIO
    operators: list["Operator"] = field(default_factory=list)

    def operator(self, cluster: str = "c1", tls: TlsCredentials | None = None) -> "Operator":
        """One that has not called yet."""
        operator = Operator(self.shard.address, cluster, tls)
        self.operators.append(operator)
        return operator

    async def inspect(self, request: bytes, tls: TlsCredentials | None = None) -> tuple[list[bytes], str]:
        """What InspectNeeds answers, and the name of its status."""
        channel = dial(self.shard.address, tls)
        answers: aio.UnaryStreamMultiCallable[bytes, bytes] = channel.unary_stream(INSPECT)
        call = answers(request)
        frames = []
        try:
            async with asyncio.timeout(20):
                while isinstance(data := await call.read(), bytes):
                    frames.append(data)
        except aio.AioRpcError:
            pass
        code = await call.code()
        await channel.close()
        return frames, code.name

    def logged(self, msg: str) -> list[dict[str, Any]]:
        """The lines of the shard's log with this message."""
        lines = map(json.loads, self.log.getvalue().splitlines())
        return [line for line in lines if line["msg"] == msg]

    def metric(self, name: str) -> float:
        """The value of one line of the metrics, named with its labels."""
        for line in self.shard.metrics.render().decode().splitlines():
            if line.startswith(f"{name} "):
                return float(line.rpartition(" ")[2])
        raise KeyError(name)


@asynccontextmanager
async def running(
    folder: Path,
    *,
    backend: FakeBackend | None = None,
    settings: dict[str, Any] | None = None,
    **options: Any,
) -> AsyncIterator[World]:
    """A shard with a provider of twenty slots."""
    backend = backend or FakeBackend(offerings=OFFERINGS)
    log = BytesIO()
    async with serve_fake(backend) as provider:
        given = {
            "shard_id": "shard-0",
            "epoch": 0,
            "seed": b"",
            "providers": ("default",),
            "options": replace(DEPLOYED, cycle_interval_ns=SECOND // 2),
            "min_cycle_spacing_ns": SECOND // 20,
            **(settings or {}),
        }
        shard = ShardProcess(
            ShardOptions(
                **{
                    "settings": Settings(**given),
                    "listen": "127.0.0.1:0",
                    "data_dir": folder / "data",
                    "providers": (Endpoint("default", provider.address),),
                    "plain_providers": True,
                    **options,
                }
            ),
            Logs(log, level="debug"),
        )
        world = World(shard, provider, log)
        try:
            await shard.start()
            yield world
        finally:
            for operator in world.operators:
                await operator.close()
            await shard.stop()


class Operator:
    """One stream of one cluster. Frames are kept in the order they came."""

    def __init__(self, address: str, cluster: str, tls: TlsCredentials | None = None) -> None:
        self.cluster = cluster
        self.frames: list[Frame] = []
        self.is_reading = True
        self._channel = dial(address, tls)
        self._call: Any = None
        self._reader: asyncio.Task[None] | None = None
        self._changed = asyncio.Event()
        self._sent = 0

    async def connect(self) -> "Operator":
        """Call and say Hello."""
        await self.call()
        await self.send(encode_operator_message(Hello(self.cluster, "v1alpha1")))
        return self

    async def call(self) -> None:
        """Open the stream and say nothing."""
        self._call = self._channel.stream_stream(SESSION)()
        if self.is_reading:
            await self.begin_reading()

    async def begin_reading(self) -> None:
        self._reader = asyncio.get_running_loop().create_task(self._read())

    async def send(self, message: bytes) -> None:
        await self._call.write(message)

    async def roll_up(self, *needs: Need, cluster: str | None = None) -> int:
        """Send this demand; returns its time, which the acknowledgement names."""
        self._sent += 1
        message = encode_rollup_message(self.cluster if cluster is None else cluster, needs, self._sent)
        await self.send(message)
        return self._sent

    async def until(self, condition: Callable[[Sequence[Frame]], Kind | None], seconds: float = 20) -> Kind:
        """What the condition finds in the frames that have come, as soon as it does."""
        async with asyncio.timeout(seconds):
            while True:
                found = condition(self.frames)
                if found:
                    return found
                self._changed.clear()
                await self._changed.wait()

    async def received(self, kind: type[Kind], number: int = 1, seconds: float = 20) -> Kind:
        """The n-th frame of a kind."""

        def find(frames: Sequence[Frame]) -> Kind | None:
            of_kind = [frame for frame in frames if isinstance(frame, kind)]
            return of_kind[number - 1] if len(of_kind) >= number else None

        return await self.until(find, seconds)

    def of_kind(self, kind: type[Kind]) -> list[Kind]:
        return [frame for frame in self.frames if isinstance(frame, kind)]

    async def status(self, seconds: float = 20) -> tuple[str, str]:
        """How the stream ended: the name of its status, and the text."""
        async with asyncio.timeout(seconds):
            code = await self._call.code()
            return code.name, await self._call.details()

    async def half_close(self) -> None:
        await self._call.done_writing()

    async def hang_up(self) -> None:
        """Lose the connection."""
        self._call.cancel()

    async def close(self) -> None:
        if self._reader is not None:
            self._reader.cancel()
            await asyncio.gather(self._reader, return_exceptions=True)
        await self._channel.close()

    async def _read(self) -> None:
        try:
            while (data := await self._call.read()) is not aio.EOF:
                frame = decode_frame(data)
                if frame is not None:
                    self.frames.append(frame)
                self._changed.set()
        except (aio.AioRpcError, asyncio.CancelledError):
            pass
