"""A provider that answers what a test tells it to, and the client under test in front of it."""

import asyncio
import io
import json
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc

from bigfleet.shard.provider import Fence
from bigfleet.shard.provider.client import ProviderClient
from bigfleet.shard.provider.endpoints import Endpoint
from bigfleet.shard.provider.listing import ListEnd, ListSlice
from bigfleet_base.api.ext.v1alpha1 import providerinfo_pb2 as info_pb
from bigfleet_base.api.v1alpha1 import provider_pb2 as pb
from bigfleet_base.telemetry import Logs, Metrics, Role
from bigfleet_base.wire import TlsCredentials, listen
from bigfleet_base.wire.channel import PROVIDER_RECEIVE_BYTES

REQUESTS: dict[str, Any] = {
    "Create": pb.CreateRequest,
    "Configure": pb.ConfigureRequest,
    "Drain": pb.DrainRequest,
    "Delete": pb.DeleteRequest,
    "Get": pb.MachineRef,
    "List": pb.ListFilter,
}
Behaviour = Callable[[Any], bytes | grpc.StatusCode | Awaitable[bytes | grpc.StatusCode]]
SILENT = None
"""OK, without a message."""


@dataclass
class ScriptedProvider:
    """Each call is answered by the next behaviour in its script, the last one staying."""

    scripts: dict[str, list[Any]] = field(default_factory=lambda: defaultdict(list))
    calls: list[tuple[str, Any]] = field(default_factory=list)
    address: str = ""
    says: str = "scripted"
    """What the text of a status begins with."""

    def answer(self, rpc: str, *behaviours: bytes | grpc.StatusCode | Behaviour | None) -> None:
        self.scripts[rpc] = list(behaviours)

    def sent(self, rpc: str) -> list[Any]:
        return [request for name, request in self.calls if name == rpc]

    async def serve(self, rpc: str, request: Any, context: Any) -> bytes | None:
        self.calls.append((rpc, request))
        script = self.scripts[rpc]
        behaviour: Any = grpc.StatusCode.UNIMPLEMENTED
        if script:
            behaviour = script.pop(0) if len(script) > 1 else script[0]
        if callable(behaviour):
            behaviour = behaviour(request)
        if asyncio.iscoroutine(behaviour):
            behaviour = await behaviour
        if isinstance(behaviour, grpc.StatusCode):
            await context.abort(behaviour, f"{self.says} {behaviour.name}")
        assert isinstance(behaviour, bytes | None)
        return behaviour


@asynccontextmanager
async def scripted_provider(port: int = 0) -> AsyncIterator[ScriptedProvider]:
    provider = ScriptedProvider()

    def handler(rpc: str, request: Any) -> Any:
        async def serve(message: Any, context: Any) -> AsyncIterator[bytes]:
            answer = await provider.serve(rpc, message, context)
            if answer is not SILENT:
                yield answer

        # Over the wire a unary call is a stream of one message, which a bad peer may leave out.
        return grpc.unary_stream_rpc_method_handler(serve, request_deserializer=request.FromString)

    server, bound = listen(f"127.0.0.1:{port}", None, receive_bytes=PROVIDER_RECEIVE_BYTES)
    calls = {rpc: handler(rpc, request) for rpc, request in REQUESTS.items()}
    describe = {"Describe": handler("Describe", info_pb.DescribeRequest)}
    server.add_generic_rpc_handlers(
        (
            grpc.method_handlers_generic_handler("bigfleet.v1alpha1.CapacityProvider", calls),
            grpc.method_handlers_generic_handler("bigfleet.ext.v1alpha1.ProviderInfo", describe),
        )
    )
    await server.start()
    provider.address = f"127.0.0.1:{bound}"
    try:
        yield provider
    finally:
        await server.stop(None)


@dataclass
class Bench:
    """A client with everything that a test wants to look at."""

    client: ProviderClient
    metrics: Metrics
    output: io.BytesIO
    fence: Fence

    def log(self, msg: str) -> list[dict[str, Any]]:
        lines = [json.loads(line) for line in self.output.getvalue().splitlines()]
        return [line for line in lines if line["msg"] == msg]

    def value(self, series: str) -> float:
        """A sample by its name and labels as the metrics page writes them."""
        self.client.show_metrics()
        for line in self.metrics.render().decode().splitlines():
            if line.startswith(series + " "):
                return float(line.rpartition(" ")[2])
        raise AssertionError(f"{series} is not on the page")

    async def news(self) -> tuple[list[ListSlice], ListEnd]:
        """One List read to its end."""
        slices: list[ListSlice] = []

        async def merge(news: ListSlice) -> None:
            slices.append(news)

        return slices, await self.client.list(merge)


@asynccontextmanager
async def bench(
    address: str, name: str = "p", tls: TlsCredentials | None = None, **options: Any
) -> AsyncIterator[Bench]:
    metrics, output, fence = Metrics(Role.SHARD), io.BytesIO(), Fence("shard-0", 3)
    log = Logs(output).logger("shard", shard_id="shard-0", shard_epoch=3)
    client = ProviderClient(Endpoint(name, address), fence, tls, metrics, log, **options)
    try:
        yield Bench(client, metrics, output, fence)
    finally:
        await client.close()


def ack(machine: pb.Machine | None, operation_id: str = "op-1") -> bytes:
    return pb.TransitionAck(operation_id=operation_id, machine=machine).SerializeToString()
