"""Root volumes: a new one for every binding, so that nothing of a cluster is left for the next (P-113)."""

import asyncio
import contextlib
from typing import Any, Final

from bigfleet_providerkit.errors import NotFound, Retryable
from bigfleet_providerkit.examples.ec2 import tags as tag
from bigfleet_providerkit.examples.ec2.api import Api, filters
from bigfleet_providerkit.examples.ec2.instances import Instance, Instances

_KEPT: Final = ("AvailabilityZone", "Encrypted", "KmsKeyId", "Size", "SnapshotId", "VolumeType")
_PROVISIONED: Final = {"Iops": ("gp3", "io1", "io2"), "Throughput": ("gp3",)}
"""What may be said of which types only."""


class Volumes:
    """Changes the volumes of stopped instances."""

    def __init__(self, api: Api, instances: Instances, poll: float) -> None:
        self._api = api
        self._instances = instances
        self._poll = poll

    async def replace_root(self, instance: Instance) -> None:
        """Give a stopped instance a root volume as its image has it, and delete the one it had.

        Other volumes are taken off: those of pods are their cluster's to keep.
        """
        device = instance.root_device
        if old := instance.volumes.get(device):
            fresh = await self._like(old, instance)
            for volume in instance.volumes.values():
                await self._api.call("detach_volume", VolumeId=volume, InstanceId=instance.id)
        else:
            # An earlier run came as far as taking the old one off, and had made the new one before that.
            fresh = await self._made_before(instance.machine_id)
        await self._until_available(fresh)
        await self._api.call("attach_volume", VolumeId=fresh, InstanceId=instance.id, Device=device)
        while (await self._instances.get(instance.id)).volumes.get(device) != fresh:
            pass  # looks have their own pace
        await self._api.call(
            "modify_instance_attribute",
            InstanceId=instance.id,
            BlockDeviceMappings=[{"DeviceName": device, "Ebs": {"DeleteOnTermination": True}}],
        )
        await self.delete_spare(instance.machine_id)

    async def delete_spare(self, machine_id: str) -> None:
        """Delete the machine's volumes that no instance has."""
        for row in await self._of(machine_id):
            if row["State"] == "available":
                await self._delete(row["VolumeId"])

    async def _like(self, old: str, instance: Instance) -> str:
        """A volume from the snapshot that the old one came from."""
        row = (await self._api.pages("describe_volumes", "Volumes", VolumeIds=[old]))[0]
        like = {key: row[key] for key in _KEPT if row.get(key)}
        like |= {
            key: row[key]
            for key, kinds in _PROVISIONED.items()
            if row.get(key) and row["VolumeType"] in kinds
        }
        marks = {key: instance.tags[key] for key in (tag.PROVIDER, tag.MACHINE) if key in instance.tags}
        made = await self._api.call(
            "create_volume",
            # The same again for a run that is cut off before the old one is gone.
            ClientToken=old,
            TagSpecifications=[{"ResourceType": "volume", "Tags": tag.as_list({**marks, tag.REPLACES: old})}],
            **like,
        )
        volume: str = made["VolumeId"]
        return volume

    async def _made_before(self, machine_id: str) -> str:
        made = [row for row in await self._of(machine_id) if tag.REPLACES in tag.as_dict(row["Tags"])]
        if not made:
            raise Retryable(f"the new root volume of {machine_id} is not shown yet")
        newest: str = max(made, key=lambda row: row["CreateTime"])["VolumeId"]
        return newest

    async def _until_available(self, volume: str) -> None:
        while True:
            try:
                rows = await self._api.pages("describe_volumes", "Volumes", VolumeIds=[volume])
            except (NotFound, Retryable):
                rows = []  # just made, or throttled
            if rows and rows[0]["State"] == "available":
                return
            await asyncio.sleep(self._poll)

    async def _of(self, machine_id: str) -> list[Any]:
        wanted = filters({f"tag:{tag.MACHINE}": machine_id})
        return await self._api.pages("describe_volumes", "Volumes", Filters=wanted)

    async def _delete(self, volume: str) -> None:
        with contextlib.suppress(NotFound):
            await self._api.call("delete_volume", VolumeId=volume)
