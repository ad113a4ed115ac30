"""The provider to copy, as it is: what a copy starts from must be right."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from grpc import aio

from bigfleet_base.api.v1alpha1 import provider_pb2 as pb
from bigfleet_base.api.v1alpha1 import provider_pb2_grpc as rpc
from bigfleet_base.model import MachineState
from bigfleet_providerkit import Host, Operation, Terminal
from bigfleet_providerkit.examples.template import provider as template
from bigfleet_providerkit.examples.template.provider import MyCloud, ToyCloud
from bigfleet_providerkit.offerings import check_offerings, read_offerings, seed_offerings
from bigfleet_providerkit.process import Serving, serve_in_process
from bigfleet_providerkit.settings import Settings
from bigfleet_providerkit.work import NANOS
from tests.component.localproc.test_localproc import METADATA, configured, idle, until
from tests.component.localproc.world import machines
from tests.support.rules import rule


@asynccontextmanager
async def serving(
    folder: Path, kind: type[MyCloud] = MyCloud
) -> "AsyncIterator[tuple[ToyCloud, rpc.CapacityProviderAsyncStub]]":
    cloud = ToyCloud(folder / "hosts")
    backend = kind(cloud)
    backend.standard_offerings = seed_offerings(3)
    settings = Settings(provider="mycloud", reconcile_interval=NANOS // 10, quarantine=NANOS // 5)
    async with (
        serve_in_process(backend, settings, Serving(state=folder / "state.db")) as provider,
        aio.insecure_channel(provider.address) as channel,
    ):
        yield cloud, rpc.CapacityProviderStub(channel)


def lose_store(folder: Path) -> None:
    for path in folder.glob("state.db*"):
        path.unlink()


@rule("provider.P-01", "provider.P-98", "provider.P-101")
async def test_a_machine_is_one_host_from_create_to_delete(tmp_path: Path) -> None:
    async with serving(tmp_path) as (cloud, stub):
        assert not cloud.find()
        machine = await configured(stub)
        [tags] = cloud.find(machine).values()
        assert tags.keys() == {"machine", "cluster", "metadata", "joined"}
        await stub.Drain(pb.DrainRequest(machine_id=machine))
        await until(stub, machine, MachineState.IDLE)
        assert list(cloud.find().values()) == [{"machine": machine}]
        await stub.Delete(pb.DeleteRequest(machine_id=machine))
        await until(stub, machine, MachineState.SPECULATIVE)
        assert not cloud.find()


@rule("provider.P-120", "provider.P-104")
async def test_a_restart_finds_everything_as_it_was(tmp_path: Path) -> None:
    async with serving(tmp_path) as (_, stub):
        await configured(stub)
        before = await machines(stub)
    async with serving(tmp_path) as (_, stub):
        assert await machines(stub) == before


@rule("provider.P-124")
async def test_a_lost_store_is_recovered_from_the_tags(tmp_path: Path) -> None:
    async with serving(tmp_path) as (_, stub):
        machine = await configured(stub)
        before = await machines(stub)
    lose_store(tmp_path)
    async with serving(tmp_path) as (_, stub):
        assert await machines(stub) == before
        assert dict(before[machine].shard_metadata) == METADATA


@rule("provider.P-124")
async def test_a_host_that_was_joining_when_the_store_was_lost_is_not_free(tmp_path: Path) -> None:
    async with serving(tmp_path) as (cloud, stub):
        machine = await idle(stub)
        [ref] = cloud.find(machine)
    await cloud.tag(ref, {"cluster": "c1", "metadata": "{}"})
    lose_store(tmp_path)
    async with serving(tmp_path) as (_, stub):
        found = await until(stub, machine, MachineState.FAILED)
        assert found.last_error.startswith("host:binding-unknown:")


@rule("ruling.R11")
async def test_a_host_that_vanishes_is_lost_and_its_slot_comes_back(tmp_path: Path) -> None:
    async with serving(tmp_path) as (cloud, stub):
        machine = await configured(stub)
        [ref] = cloud.find(machine)
        await cloud.terminate(ref)
        lost = await until(stub, machine, MachineState.FAILED)
        assert lost.last_error.startswith("host:host-lost:") and lost.cluster == "c1"
        await until(stub, machine, MachineState.SPECULATIVE)
        assert machine == await configured(stub)


class LosesItsAnswer(MyCloud):
    """Makes the host, and fails before it can say which."""

    async def create(self, op: Operation) -> Host:
        await super().create(op)
        raise Terminal("the answer was lost")


@rule("conformance.X703")
async def test_a_create_that_failed_leaves_no_host_behind(tmp_path: Path) -> None:
    async with serving(tmp_path, LosesItsAnswer) as (cloud, stub):
        machine = min(await machines(stub))
        await stub.Create(pb.CreateRequest(machine_id=machine))
        await until(stub, machine, MachineState.FAILED)
        assert len(cloud.find(machine)) == 1
        await until(stub, machine, MachineState.SPECULATIVE)
        assert not cloud.find()


def test_its_offerings_can_be_served() -> None:
    offers = check_offerings(read_offerings(Path(template.__file__).parent / "offerings.json"))
    assert sum(offer.count for offer in offers.values()) == 150
