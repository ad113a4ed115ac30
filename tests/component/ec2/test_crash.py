"""kill -9 of the provider in the middle of EC2's calls, and a store that is lost."""

import random
from pathlib import Path

import pytest

from bigfleet_base.api.v1alpha1 import provider_pb2 as pb
from bigfleet_base.model import MachineState
from tests.component.ec2.cloud import TEMPLATE, Cloud
from tests.component.ec2.world import METADATA, deployed, in_process
from tests.support.eventually import eventually
from tests.support.rules import rule


@rule("provider.P-47", "provider.P-122", "conformance.X1004")
async def test_a_provider_killed_while_it_launches_finds_its_instance(cloud: Cloud, tmp_path: Path) -> None:
    async with deployed(cloud, tmp_path) as deployment:
        shard = await deployment.start()
        machine_id = await shard.slot()
        cloud.hold("RunInstances")
        operation = await shard.create(machine_id)
        # EC2 has launched it, and nobody has heard of it.
        await eventually(lambda: len(cloud.instances()) == 1)
        await deployment.kill()
        shard = await deployment.start()
        idle = await shard.until(machine_id, MachineState.IDLE)
        assert list(cloud.instances()) == [idle.host.ref]
        assert cloud.count("RunInstances") == 2
        assert await shard.create(machine_id) == operation


async def test_an_instance_launched_under_another_configuration_is_found_too(
    cloud: Cloud, tmp_path: Path
) -> None:
    state = tmp_path / "store.db"
    async with in_process(cloud, state=state) as shard:
        machine_id = await shard.slot()
        cloud.hold("RunInstances")
        await shard.create(machine_id)
        await eventually(lambda: len(cloud.instances()) == 1)
    async with in_process(cloud, state=state, template=f"{TEMPLATE}:1") as shard:
        idle = await shard.until(machine_id, MachineState.IDLE)
        assert list(cloud.instances()) == [idle.host.ref]


@rule("provider.P-122", "provider.P-113")
@pytest.mark.parametrize("action", ["DetachVolume", "AttachVolume", "DeleteTags"])
async def test_a_drain_that_was_cut_off_anywhere_comes_to_its_end(
    cloud: Cloud, tmp_path: Path, action: str
) -> None:
    state = tmp_path / "store.db"
    async with in_process(cloud, state=state) as shard:
        bound = await shard.configured(await shard.slot())
        [root] = cloud.volumes()
        done = cloud.count(action)
        cloud.hold(action)
        await shard.drain(bound.id)
        await eventually(lambda: cloud.count(action) > done)
    async with in_process(cloud, state=state) as shard:
        idle = await shard.until(bound.id, MachineState.IDLE)
        assert idle.host.ref == bound.host.ref
        [left] = cloud.volumes()
        assert left["State"] == "in-use" and left["VolumeId"] != root["VolumeId"]
        assert cloud.tags(idle.host.ref)["bigfleet.lucy.sh/cluster"] == ""


@rule("provider.P-124", "conformance.X1003")
async def test_a_lost_store_is_rebuilt_from_the_tags(cloud: Cloud) -> None:
    async with in_process(cloud) as shard:
        idle = await shard.idle(await shard.slot())
        bound = await shard.configured(await shard.slot())
        # More than tags can hold, and of the kind that does not compress.
        metadata = {"key": random.Random(1).randbytes(20_000).hex()}
        large = await shard.configured(await shard.slot(), metadata=metadata)
        cloud.guests_boot = False
        joining = await shard.idle(await shard.slot())
        await shard.configure(joining.id)
        await eventually(lambda: cloud.count("StartInstances") == 3)
    async with in_process(cloud) as shard:
        found = await shard.machines()
        assert len(found) == 12
        assert (found[idle.id].state, found[idle.id].host) == (pb.MACHINE_STATE_IDLE, idle.host)
        recovered = found[bound.id]
        assert (recovered.state, recovered.host) == (pb.MACHINE_STATE_CONFIGURED, bound.host)
        assert (recovered.cluster, dict(recovered.shard_metadata)) == ("c1", METADATA)
        for machine in (large, joining):
            assert found[machine.id].state == pb.MACHINE_STATE_FAILED
            assert found[machine.id].last_error.startswith("host:binding-unknown:")


async def test_an_instance_without_its_tag_is_never_taken_for_idle(cloud: Cloud) -> None:
    async with in_process(cloud) as shard:
        idle = await shard.idle(await shard.slot())
    cloud.untag(idle.host.ref, "bigfleet.lucy.sh/cluster")
    async with in_process(cloud) as shard:
        assert (await shard.get(idle.id)).last_error.startswith("host:binding-unknown:")


async def test_an_instance_of_an_offering_that_is_gone_is_shown(cloud: Cloud) -> None:
    async with in_process(cloud) as shard:
        bound = await shard.configured(await shard.slot(pb.CAPACITY_TYPE_SPOT))
    async with in_process(cloud, seed_count=0) as shard:
        [(machine_id, machine)] = (await shard.machines()).items()
        assert (machine_id, machine.state) == (bound.id, pb.MACHINE_STATE_CONFIGURED)
        assert (machine.host, machine.capacity_type) == (bound.host, pb.CAPACITY_TYPE_SPOT)
