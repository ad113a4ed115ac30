"""A shard and its provider as processes, operators that come back, and what all of them leave on disk."""

import asyncio
import contextlib
import json
import signal
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grpc import aio

from bigfleet.scale.operators import ScriptedOperator
from bigfleet_base.api.v1alpha1 import provider_pb2 as pb
from bigfleet_base.api.v1alpha1 import provider_pb2_grpc as rpc
from bigfleet_base.model import Machine, MachineState, Need
from bigfleet_base.wire import dial
from bigfleet_base.wire.machines import decode_machine
from tests.component.shard.ledger import SERVICE
from tests.component.shard.programs import ROOT, ShardProgram, clean_environment
from tests.support.eventually import eventually
from tests.support.parts.process import free_port

S = MachineState
TRANSITIONAL = (S.CREATING, S.CONFIGURING, S.DRAINING, S.DELETING)
START_S = 90.0


@dataclass(frozen=True, slots=True)
class Entry:
    """One mutation that the provider has answered, in the order of its answers."""

    rpc: str
    machine: str
    cluster: str
    shard: str
    epoch: int
    sequence: int
    code: str
    text: str
    operation: str
    state: str
    at: int

    @property
    def is_fence(self) -> bool:
        """Whether it is the call with which a process begins (F6)."""
        return self.machine.startswith("bigfleet-fence-")


class Cluster:
    """An operator whose demand a test sets, and which answers after a moment."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.needs: Sequence[Need] = ()
        self.operator = ScriptedOperator(name, lambda _: self.needs, rollup_interval=0.3, answer_delay=0.1)
        self._task: asyncio.Task[None] | None = None
        self._is_wanted = False

    def connect(self, address: str) -> None:
        self._is_wanted = True
        self._task = asyncio.get_running_loop().create_task(self._hold(address))

    async def disconnect(self) -> None:
        # A session that is ending by itself may take the cancellation for its sender's.
        self._is_wanted = False
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None

    async def _hold(self, address: str) -> None:
        while self._is_wanted:
            async with dial(address, None) as channel:
                with contextlib.suppress(aio.AioRpcError, asyncio.InvalidStateError):
                    await self.operator.session(channel)
            await asyncio.sleep(0.1)


class Deployment:
    """One provider that lives throughout, and one shard after the other on one data dir."""

    def __init__(self, folder: Path, shard_options: Sequence[str]) -> None:
        folder.mkdir(exist_ok=True)
        self.folder = folder
        self.audit_path = folder / "audit"
        self.clusters: dict[str, Cluster] = {}
        self.stub: rpc.CapacityProviderAsyncStub
        self.provider_address = f"127.0.0.1:{free_port()}"
        self._options = (*shard_options, "--audit-log", str(self.audit_path))
        self._shards: list[ShardProgram] = []
        self._provider: subprocess.Popen[bytes] | None = None
        self._channel: aio.Channel | None = None

    # The provider

    async def start_provider(self, offerings: Any, preseed: Any, *options: str) -> None:
        """Start it; returns when it serves."""
        self._spawn_provider(offerings, preseed, options)
        await eventually(self._provider_listens, seconds=START_S)
        self._channel = dial(self.provider_address, None)
        self.stub = rpc.CapacityProviderStub(self._channel)

    def _spawn_provider(self, offerings: Any, preseed: Any, options: Sequence[str]) -> None:
        for name, document in (("offerings", offerings), ("preseed", preseed)):
            (self.folder / f"{name}.json").write_text(json.dumps(document))
        log = self.folder / "provider.log"
        with log.open("wb") as out:
            self._provider = subprocess.Popen(
                [
                    *(sys.executable, "-m", "tests.component.shard.ledger"),
                    *("--addr", self.provider_address, "--metrics-addr", "0"),
                    *("--ledger", str(self.folder / "ledger"), "--state", str(self.folder / "provider.db")),
                    *("--offerings", str(self.folder / "offerings.json")),
                    *("--preseed", str(self.folder / "preseed.json"), *options),
                ],
                cwd=ROOT,
                env=clean_environment(),
                stdout=out,
                stderr=subprocess.STDOUT,
            )

    def _provider_listens(self) -> bool:
        assert self._provider is not None
        assert self._provider.poll() is None, (self.folder / "provider.log").read_text()[-4_000:]
        host, _, port = self.provider_address.partition(":")
        with contextlib.suppress(OSError), socket.create_connection((host, int(port)), 1):
            return True
        return False

    async def machines(self) -> dict[str, Machine]:
        """What the provider lists."""
        listed = await self.stub.List(pb.ListFilter(), timeout=30)
        return {record.id: decode_machine(record).machine for record in listed.machines}

    async def counts(self) -> Counter[tuple[str, str, MachineState]]:
        """Machines by cluster, instance type and state."""
        return Counter((m.cluster, m.instance_type, m.state) for m in (await self.machines()).values())

    async def has(self, expected: Mapping[tuple[str, str, MachineState], int]) -> bool:
        return await self.counts() == expected

    async def in_flight(self) -> int:
        """Operations that the provider has under way."""
        return sum(machine.state in TRANSITIONAL for machine in (await self.machines()).values())

    async def hosts(self) -> dict[str, int]:
        """How many hosts each machine really has."""
        return dict(json.loads(await self._ask("Hosts")))

    async def release(self) -> None:
        """Let the transitions end that wait for it."""
        await self._ask("Release")

    async def _ask(self, method: str) -> bytes:
        assert self._channel is not None
        call: aio.UnaryUnaryMultiCallable[bytes, bytes] = self._channel.unary_unary(f"/{SERVICE}/{method}")
        return await call(b"", timeout=30)

    def ledger(self) -> list[Entry]:
        whole = (self.folder / "ledger").read_bytes().rpartition(b"\n")[0].splitlines()
        return [Entry(**json.loads(line)) for line in whole]

    def accepted(self) -> Counter[str]:
        """Distinct operations that the provider has accepted, by kind."""
        operations = {(entry.rpc, entry.operation) for entry in self.ledger() if entry.code == "OK"}
        return Counter(kind for kind, _ in operations)

    # The shard

    @property
    def shard(self) -> ShardProgram:
        return self._shards[-1]

    def cluster(self, name: str) -> Cluster:
        return self.clusters.setdefault(name, Cluster(name))

    def spawn_shard(self, *options: str, folder: str = "shard") -> ShardProgram:
        """Start a shard and do not wait for it."""
        given = ("--provider-addr", self.provider_address, *self._options, *options)
        self._shards.append(ShardProgram(self.folder / folder, *given))
        return self.shard

    async def start_shard(self, *options: str) -> None:
        """Start a shard; returns when it listens and operators are on their way to it."""
        self.spawn_shard(*options)
        await self.shard_listens()
        self.connect()

    async def shard_listens(self) -> None:
        await asyncio.to_thread(self.shard.wait_for, lambda: bool(self.shard.lines("listening")), START_S)

    def connect(self) -> None:
        for cluster in self.clusters.values():
            cluster.connect(self.shard.address)

    async def disconnect(self) -> None:
        await asyncio.gather(*(cluster.disconnect() for cluster in self.clusters.values()))

    async def kill_shard(self) -> None:
        """kill -9."""
        self.shard.process.kill()
        self.shard.process.wait()
        await self.disconnect()

    async def stop_shard(self) -> int:
        """SIGTERM; returns the exit status."""
        self.shard.signal(signal.SIGTERM)
        status = await asyncio.to_thread(self.shard.ended)
        await self.disconnect()
        return status

    async def page(self, path: str, shard: ShardProgram | None = None) -> tuple[int, str]:
        return await asyncio.to_thread(_get, shard or self.shard, path)

    async def is_ready(self) -> bool:
        return (await self.page("/readyz"))[0] == 200

    async def state(self, shard: ShardProgram | None = None) -> dict[str, Any]:
        """A shard's own view of itself."""
        found: dict[str, Any] = json.loads((await self.page("/debug/state", shard))[1])
        return found

    async def cycles(self, count: int, shard: ShardProgram | None = None) -> None:
        """Wait until so many more have run."""
        begun = (await self.state(shard))["cycle"]

        async def have_run() -> bool:
            return bool((await self.state(shard))["cycle"] > begun + count)

        await until(START_S, have_run)

    def epoch_on_disk(self) -> int:
        path = self.folder / "shard" / "data" / "epoch"
        return int(path.read_text()) if path.exists() else 0

    def segments(self) -> list[Path]:
        """What is kept of the recording, oldest first."""
        return sorted((self.folder / "shard" / "data" / "record").glob("*.rec"))

    def audit(self) -> list[dict[str, Any]]:
        """The lines of all shards; one that a kill has cut off is an error."""
        if not self.audit_path.exists():
            return []
        return [json.loads(line) for line in self.audit_path.read_bytes().splitlines()]

    async def close(self) -> None:
        for shard in self._shards:
            shard.__exit__(None, None, None)
        await self.disconnect()
        if self._channel is not None:
            await self._channel.close()
        if self._provider is not None:
            self._provider.kill()
            self._provider.wait()


@asynccontextmanager
async def deployment(folder: Path, *shard_options: str) -> AsyncIterator[Deployment]:
    """A deployment of which no process is left afterwards."""
    made = Deployment(folder, shard_options)
    try:
        yield made
    finally:
        await made.close()


async def until(seconds: float, condition: Callable[[], Awaitable[bool]]) -> None:
    """Like ``eventually``, for a condition that has to ask somebody."""
    async with asyncio.timeout(seconds):
        while not await condition():  # noqa: ASYNC110  # the condition has no event to wait for
            await asyncio.sleep(0.1)


def _get(shard: ShardProgram, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://{shard.metrics_address}{path}", timeout=20) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()
