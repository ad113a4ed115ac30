"""Machines that are EC2 instances, from Create to Delete and with everything that EC2 does to them."""

import asyncio
import email
import gzip
import random

import pytest
from grpc import StatusCode, aio

from bigfleet_base.api.v1alpha1 import provider_pb2 as pb
from bigfleet_base.model import MachineState
from bigfleet_providerkit.examples.ec2 import backend
from tests.component.ec2.cloud import Cloud, client
from tests.component.ec2.world import METADATA, NAME, POLL_S, Shard, in_process
from tests.support.eventually import eventually
from tests.support.rules import rule

SPOT = pb.CAPACITY_TYPE_SPOT


@rule("provider.P-01", "provider.P-98", "provider.P-97")
async def test_a_machine_is_one_instance_from_create_to_delete(cloud: Cloud) -> None:
    async with in_process(cloud) as shard:
        machine_id = await shard.slot()
        idle = await shard.idle(machine_id)
        [ref] = cloud.instances("running")
        assert (idle.host.provider, idle.host.ref) == (NAME, ref)
        await shard.configure(machine_id)
        bound = await shard.until(machine_id, MachineState.CONFIGURED)
        assert (bound.host.ref, dict(bound.shard_metadata)) == (ref, METADATA)
        await shard.drain(machine_id)
        await shard.until(machine_id, MachineState.IDLE)
        assert list(cloud.instances("running")) == [ref]
        await shard.delete(machine_id)
        await shard.until(machine_id, MachineState.SPECULATIVE)
        assert not cloud.instances() and not cloud.volumes()


async def test_an_instance_is_of_the_type_zone_and_market_of_its_slot(cloud: Cloud) -> None:
    async with in_process(cloud) as shard:
        for market, lifecycle in ((pb.CAPACITY_TYPE_ON_DEMAND, None), (SPOT, "spot")):
            machine = await shard.idle(await shard.slot(market))
            row = cloud.instances()[machine.host.ref]
            placed = (row["InstanceType"], row["Placement"]["AvailabilityZone"], row.get("InstanceLifecycle"))
            assert placed == (machine.instance_type, machine.zone, lifecycle)
        # Stopped at every Configure and Drain, which EC2 allows for instances of persistent requests only.
        spot = [asked for action, asked in cloud.calls if "InstanceMarketOptions.MarketType" in asked]
        options = "InstanceMarketOptions.SpotOptions"
        assert spot[0][f"{options}.SpotInstanceType"] == "persistent"
        assert spot[0][f"{options}.InstanceInterruptionBehavior"] == "stop"


async def test_the_size_comes_from_ec2s_catalogue(cloud: Cloud) -> None:
    async with in_process(cloud) as shard:
        large = next(row for row in (await shard.machines()).values() if row.instance_type == "m5.large")
    assert dict(large.resources.resources) == {"cpu": "2", "memory": "8Gi", "pods": "110"}
    assert dict(large.allocatable.resources) == {"cpu": "2", "memory": "7372Mi", "pods": "110"}
    assert large.labels["kubernetes.io/arch"] == "amd64"
    assert large.labels["topology.kubernetes.io/region"] == "eu-west-1"


async def test_the_blob_is_in_the_user_data_and_in_no_log(
    cloud: Cloud, capfd: pytest.CaptureFixture[str]
) -> None:
    async with in_process(cloud) as shard:
        bound = await shard.configured(await shard.slot(), blob=b"\0secret-blob")
        parts = email.message_from_bytes(gzip.decompress(cloud.user_data(bound.host.ref))).get_payload()
        assert [part.get_content_type() for part in parts] == ["text/cloud-config", "text/x-shellscript"]  # type: ignore[union-attr]  # a multipart's payload is a list of messages
        logged = "".join(capfd.readouterr())
        assert bound.id in logged and "secret-blob" not in logged


@rule("provider.P-11")
async def test_a_blob_that_user_data_cannot_hold_is_refused_and_nothing_touched(cloud: Cloud) -> None:
    async with in_process(cloud) as shard:
        idle = await shard.idle(await shard.slot())
        most = (await shard.description()).max_blob_bytes
        with pytest.raises(aio.AioRpcError) as refused:
            await shard.configure(idle.id, blob=bytes(most + 1))
        assert refused.value.code() is StatusCode.INVALID_ARGUMENT
        assert await shard.get(idle.id) == idle
        assert cloud.count("StopInstances") == 0
        await shard.configure(idle.id, blob=random.Random(1).randbytes(most))
        await shard.until(idle.id, MachineState.CONFIGURED)


@rule("provider.P-113")
async def test_a_drain_leaves_nothing_of_the_cluster_on_the_instance(cloud: Cloud) -> None:
    async with in_process(cloud) as shard:
        idle = await shard.idle(await shard.slot())
        ref = idle.host.ref
        before = cloud.tags(ref)
        await shard.configure(idle.id)
        await shard.until(idle.id, MachineState.CONFIGURED)
        [root] = cloud.volumes()
        # A pod's volume is its cluster's: it stays, but not here.
        ec2 = client(cloud.url)
        pods = ec2.create_volume(AvailabilityZone=root["AvailabilityZone"], Size=1)["VolumeId"]
        client(cloud.moto).attach_volume(VolumeId=pods, InstanceId=ref, Device="/dev/sdf")
        await shard.drain(idle.id)
        await shard.until(idle.id, MachineState.IDLE)
        assert cloud.tags(ref) == before
        assert b"secret" not in cloud.user_data(ref) and len(cloud.user_data(ref)) < 64
        [mapping] = cloud.instances()[ref]["BlockDeviceMappings"]
        assert mapping["Ebs"]["DeleteOnTermination"]
        left = {row["VolumeId"]: row["State"] for row in cloud.volumes()}
        assert left == {mapping["Ebs"]["VolumeId"]: "in-use", pods: "available"}
        assert root["VolumeId"] not in left


@rule("provider.P-110", "provider.P-111")
async def test_a_drain_gives_pods_their_grace_before_it_stops_the_instance(cloud: Cloud) -> None:
    async with in_process(cloud) as shard:
        bound = await shard.configured(await shard.slot())
        stops = cloud.count("StopInstances")
        started = asyncio.get_running_loop().time()
        await shard.drain(bound.id, grace=1)
        await eventually(lambda: cloud.count("StopInstances") > stops)
        assert asyncio.get_running_loop().time() - started >= 1
        await shard.until(bound.id, MachineState.IDLE)


@rule("conformance.B708")
async def test_a_node_that_never_reports_is_not_configured(cloud: Cloud) -> None:
    cloud.guests_boot = False
    async with in_process(cloud) as shard:
        idle = await shard.idle(await shard.slot())
        await shard.configure(idle.id)
        await eventually(lambda: cloud.count("StartInstances") == 1)
        looks = cloud.count("DescribeInstances")
        await eventually(lambda: cloud.count("DescribeInstances") > looks + 3)
        assert (await shard.get(idle.id)).state == pb.MACHINE_STATE_CONFIGURING
        cloud.boot(idle.host.ref)
        await shard.until(idle.id, MachineState.CONFIGURED)


@rule("conformance.X702")
async def test_a_terminated_instance_is_host_lost_and_its_slot_comes_back(cloud: Cloud) -> None:
    async with in_process(cloud) as shard:
        bound = await shard.configured(await shard.slot())
        client(cloud.moto).terminate_instances(InstanceIds=[bound.host.ref])
        lost = await shard.until(bound.id, MachineState.FAILED)
        assert lost.last_error.startswith("host:host-lost:")
        assert (lost.cluster, dict(lost.shard_metadata)) == ("c1", METADATA)
        await shard.until(bound.id, MachineState.SPECULATIVE)
        await shard.configured(bound.id)
        assert len(cloud.instances()) == 1


@rule("provider.P-96", "conformance.X804")
async def test_notices_of_ec2_raise_the_probability_of_interruption(cloud: Cloud) -> None:
    async with in_process(cloud, notice_interval=POLL_S) as shard:
        spot, on_demand = await shard.slot(SPOT), await shard.slot()
        marked, planned = await shard.configured(spot), await shard.configured(on_demand)
        assert 0 < marked.interruption_probability < 0.5 and planned.interruption_probability == 0
        cloud.mark_for_stop(marked.host.ref)
        cloud.plan_retirement(planned.host.ref)
        await shard.shows(spot, lambda machine: machine.interruption_probability == 0.99)
        await shard.shows(on_demand, lambda machine: machine.interruption_probability == 0.5)


async def test_an_interrupted_spot_instance_is_replaced_and_its_request_with_it(
    cloud: Cloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backend, "SETTLING_S", 0.2)
    async with in_process(cloud) as shard:
        bound = await shard.configured(await shard.slot(SPOT))
        # What EC2 does at the end of the notice.
        client(cloud.moto).stop_instances(InstanceIds=[bound.host.ref])
        lost = await shard.until(bound.id, MachineState.FAILED)
        assert lost.last_error.startswith("host:host-lost:") and "stopped" in lost.last_error
        await shard.until(bound.id, MachineState.SPECULATIVE)
        assert not cloud.instances()
        # A request that outlives its instance launches another one.
        ends = [
            name for name in cloud.actions() if name in ("CancelSpotInstanceRequests", "TerminateInstances")
        ]
        assert ends == ["CancelSpotInstanceRequests", "TerminateInstances"]


@rule("provider.P-80")
async def test_no_capacity_fails_the_create_and_withholds_the_offering(cloud: Cloud) -> None:
    cloud.fail("RunInstances", "InsufficientInstanceCapacity")
    async with in_process(cloud, seed_count=24) as shard:
        machine_id = await shard.slot()
        await shard.create(machine_id)
        failed = await shard.until(machine_id, MachineState.FAILED)
        assert failed.last_error.startswith("create:capacity:")
        assert "InsufficientInstanceCapacity" in failed.last_error
        twin = f"{machine_id.rpartition('-')[0]}-1"
        with pytest.raises(aio.AioRpcError) as withheld:
            await shard.shows(twin, lambda machine: False)
        assert withheld.value.code() is StatusCode.NOT_FOUND
        assert not cloud.instances()


async def test_an_instance_that_cannot_be_started_again_is_given_back(
    cloud: Cloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backend, "SETTLING_S", 0.2)
    async with in_process(cloud) as shard:
        idle = await shard.idle(await shard.slot())
        cloud.fail("StartInstances", "InsufficientInstanceCapacity")
        await shard.configure(idle.id)
        failed = await shard.until(idle.id, MachineState.FAILED)
        assert failed.last_error.startswith("configure:substrate:")
        assert "InsufficientInstanceCapacity" in failed.last_error
        await shard.until(idle.id, MachineState.SPECULATIVE)
        assert not cloud.instances() and not cloud.volumes()


async def test_an_instance_that_ends_while_it_is_launched_fails_the_create(cloud: Cloud) -> None:
    cloud.lag = 40
    async with in_process(cloud) as shard:
        machine_id = await shard.slot()
        await shard.create(machine_id)
        await eventually(lambda: len(cloud.instances()) == 1)
        client(cloud.moto).terminate_instances(InstanceIds=list(cloud.instances()))
        failed = await shard.until(machine_id, MachineState.FAILED)
        assert "ended while it was launched: Client.UserInitiatedShutdown" in failed.last_error
        await shard.until(machine_id, MachineState.SPECULATIVE)


async def test_throttling_delays_and_fails_nothing(cloud: Cloud) -> None:
    async with in_process(cloud) as shard:
        for action in ("RunInstances", "DescribeInstances", "StopInstances", "CreateTags"):
            cloud.fail(action, "RequestLimitExceeded")
        machine_id = await shard.slot()
        await shard.configured(machine_id)
        assert len(cloud.instances()) == 1
        assert cloud.count("RunInstances") == 2


async def test_descriptions_that_lag_behind_are_no_loss(cloud: Cloud) -> None:
    """EC2 shows neither a new instance nor a new state at once, and the provider looks all the time."""
    cloud.lag = 12
    async with in_process(cloud) as shard:
        machine_id = await shard.slot()
        seen = asyncio.get_running_loop().create_task(states(shard, machine_id))
        await shard.configured(machine_id)
        # Several looks still see the instance stopped, as it was before.
        lagged = cloud.lagged
        await eventually(lambda: cloud.lagged > lagged + 4)
        await shard.drain(machine_id)
        await shard.until(machine_id, MachineState.IDLE)
        await shard.delete(machine_id)
        await shard.until(machine_id, MachineState.SPECULATIVE)
        seen.cancel()
        assert MachineState.FAILED not in await seen
        assert not cloud.instances() and cloud.count("RunInstances") == 1


async def states(shard: Shard, machine_id: str) -> set[MachineState]:
    """Every state that was seen until the task is cancelled."""
    seen = set()
    try:
        while True:
            seen.add(MachineState((await shard.get(machine_id)).state))
            await asyncio.sleep(POLL_S)
    except asyncio.CancelledError:
        return seen
