"""The provider in front of a test's EC2: inside this process, or as one of its own."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from grpc import aio

from bigfleet_base.api.ext.v1alpha1 import providerinfo_pb2 as info_pb
from bigfleet_base.api.ext.v1alpha1 import providerinfo_pb2_grpc as info_rpc
from bigfleet_base.api.v1alpha1 import provider_pb2 as pb
from bigfleet_base.api.v1alpha1 import provider_pb2_grpc as rpc
from bigfleet_base.model import MachineState
from bigfleet_providerkit.examples.ec2 import Ec2
from bigfleet_providerkit.examples.ec2.api import Api
from bigfleet_providerkit.examples.ec2.prices import Prices
from bigfleet_providerkit.examples.ec2.quota import Quota
from bigfleet_providerkit.process import Serving, serve_in_process
from bigfleet_providerkit.settings import Settings
from bigfleet_providerkit.work import NANOS
from tests.component.ec2.cloud import PRICES, REGION, TEMPLATE, Cloud
from tests.support.eventually import eventually
from tests.support.parts.process import free_port

NAME = "ec2-test"
METADATA = {"bigfleet.lucy.sh/assigned-group": "a\0b", "key": "värde"}
POLL_S = 0.03


class Shard:
    """Talks to a provider."""

    def __init__(self, channel: aio.Channel) -> None:
        self._stub: rpc.CapacityProviderAsyncStub = rpc.CapacityProviderStub(channel)
        self._info: info_rpc.ProviderInfoAsyncStub = info_rpc.ProviderInfoStub(channel)

    async def description(self) -> info_pb.DescribeResponse:
        """What the provider says of itself."""
        said: info_pb.DescribeResponse = await self._info.Describe(info_pb.DescribeRequest(), timeout=10)
        return said

    async def machines(self) -> dict[str, pb.Machine]:
        listed = await self._stub.List(pb.ListFilter(), timeout=10)
        return {machine.id: machine for machine in listed.machines}

    async def slot(self, capacity_type: int = pb.CAPACITY_TYPE_ON_DEMAND) -> str:
        """The first free one of a kind."""
        free = [
            machine.id
            for machine in (await self.machines()).values()
            if machine.capacity_type == capacity_type and machine.state == pb.MACHINE_STATE_SPECULATIVE
        ]
        return min(free)

    async def get(self, machine_id: str) -> pb.Machine:
        machine: pb.Machine = await self._stub.Get(pb.MachineRef(id=machine_id), timeout=10)
        return machine

    async def shows(self, machine_id: str, wanted: Callable[[pb.Machine], bool]) -> pb.Machine:
        """The machine, once it is as wanted."""
        machine = await self.get(machine_id)
        try:
            async with asyncio.timeout(20):
                while not wanted(machine):
                    await asyncio.sleep(0.01)
                    machine = await self.get(machine_id)
        except TimeoutError:
            raise AssertionError(f"in vain, the machine is {machine}") from None
        return machine

    async def until(self, machine_id: str, state: MachineState) -> pb.Machine:
        """The machine, once it is in the state."""
        return await self.shows(machine_id, lambda machine: MachineState(machine.state) is state)

    async def create(self, machine_id: str) -> str:
        """The operation's id, once it is accepted."""
        return (await self._stub.Create(pb.CreateRequest(machine_id=machine_id), timeout=10)).operation_id

    async def configure(
        self, machine_id: str, blob: bytes = b"secret", metadata: Mapping[str, str] = METADATA
    ) -> str:
        request = pb.ConfigureRequest(
            machine_id=machine_id, cluster_id="c1", bootstrap_blob=blob, shard_metadata=metadata
        )
        return (await self._stub.Configure(request, timeout=10)).operation_id

    async def drain(self, machine_id: str, grace: int = 0) -> str:
        request = pb.DrainRequest(machine_id=machine_id, grace_period_seconds=grace)
        return (await self._stub.Drain(request, timeout=10)).operation_id

    async def delete(self, machine_id: str) -> str:
        return (await self._stub.Delete(pb.DeleteRequest(machine_id=machine_id), timeout=10)).operation_id

    async def idle(self, machine_id: str) -> pb.Machine:
        await self.create(machine_id)
        return await self.until(machine_id, MachineState.IDLE)

    async def configured(self, machine_id: str, **values: Any) -> pb.Machine:
        await self.idle(machine_id)
        await self.configure(machine_id, **values)
        return await self.until(machine_id, MachineState.CONFIGURED)


@asynccontextmanager
async def in_process(
    cloud: Cloud,
    *,
    state: Path | None = None,
    template: str = TEMPLATE,
    seed_count: int = 12,
    subnets: Sequence[str] = (),
    **values: Any,
) -> AsyncIterator[Shard]:
    """A provider inside this process: quick to start, and as real in all that it does.

    Its end cuts off what is under way; without ``state`` its store is lost with it.
    """
    api = Api(REGION, cloud.door())
    given = {"poll": POLL_S, **values}
    prices = Prices(api, None)
    prices.on_demand = PRICES
    backend = Ec2(NAME, api, template, Quota(api, prices, subnets, seed_count), **given)
    settings = Settings(
        provider=NAME,
        reconcile_interval=NANOS // 5,
        quarantine=NANOS // 5,
        capacity_quarantine=NANOS // 5,
        repair_backoff=(NANOS // 5, NANOS // 5),
    )
    async with (
        serve_in_process(backend, settings, Serving(state=state, shutdown_window=0.0)) as provider,
        aio.insecure_channel(provider.address) as channel,
    ):
        yield Shard(channel)


class Deployment:
    """A provider as a process of its own, with its store; ``kill`` is ``kill -9``."""

    def __init__(self, cloud: Cloud, folder: Path) -> None:
        self._cloud = cloud
        self._folder = folder
        self._process: asyncio.subprocess.Process | None = None
        self._channel: aio.Channel | None = None
        (folder / "prices.json").write_text(json.dumps(PRICES))

    async def start(self) -> Shard:
        """Start it, and return when it answers."""
        port = free_port()
        with (self._folder / "log").open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "bigfleet_providerkit.examples.ec2"),
                *("--addr", f"127.0.0.1:{port}", "--metrics-addr", "0", "--provider", NAME),
                *("--state", str(self._folder / "store.db"), "--prices", str(self._folder / "prices.json")),
                *("--region", REGION, "--endpoint-url", self._cloud.door(), "--launch-template", TEMPLATE),
                *("--seed-count", "4", "--poll", "30ms"),
                stdout=log,
                stderr=log,
            )
        await eventually(lambda: self._is_up(), seconds=30)
        self._channel = aio.insecure_channel(f"127.0.0.1:{port}")
        return Shard(self._channel)

    async def kill(self) -> None:
        if self._channel is not None:
            await self._channel.close()
            self._channel = None
        if self._process is not None:
            if self._process.returncode is None:
                self._process.kill()
            await self._process.wait()
            self._process = None
        (self._folder / "log").rename(self._folder / "log.old")

    def _is_up(self) -> bool:
        log = (self._folder / "log").read_text()
        assert self._process is not None and self._process.returncode is None, log[-4_000:]
        return "provider started" in log


@asynccontextmanager
async def deployed(cloud: Cloud, folder: Path) -> AsyncIterator[Deployment]:
    """A deployment of which no process is left afterwards."""
    deployment = Deployment(cloud, folder)
    try:
        yield deployment
    finally:
        await deployment.kill()
