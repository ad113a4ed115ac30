"""The instances as EC2 describes them, which is not always as they are.

A description may lag behind what EC2 has already answered to: an instance that was just launched may not be
there yet, and one that was just started may still be said to be stopped. So nothing is concluded from an
instance that is missing until it has been missing for long.
"""

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from bigfleet_providerkit.errors import NotFound, Retryable
from bigfleet_providerkit.examples.ec2 import tags as tag
from bigfleet_providerkit.examples.ec2.api import Api, filters, forget

ABSENT_S: Final = 300.0
"""How long an instance must be missing from all descriptions before it is taken for gone."""
LIVE: Final = ("pending", "running", "stopping", "stopped")
ENDED: Final = ("shutting-down", "terminated")
_PAGE: Final = 1_000


@dataclass(frozen=True)
class Instance:
    """One instance."""

    id: str
    instance_type: str
    zone: str
    state: str
    reason: str
    """Why it is in this state, if EC2 says so: ``Server.InsufficientInstanceCapacity``."""
    tags: Mapping[str, str]
    spot_request: str
    root_device: str
    volumes: Mapping[str, str]
    """By device."""

    @property
    def machine_id(self) -> str:
        """Empty for an instance that is not ours."""
        return self.tags.get(tag.MACHINE, "")


class Instances:
    """Describes all of a provider's instances at once, for everyone who waits for one of them.

    ``spacing`` is the least time between two looks in seconds: thousands of machines cost no more calls than
    one.
    """

    def __init__(self, api: Api, provider: str, spacing: float) -> None:
        self._api = api
        self._provider = provider
        self._spacing = spacing
        self._turn = asyncio.Lock()
        self._ended_at = 0.0
        self._coming: asyncio.Task[dict[str, Instance]] | None = None
        self._missing: dict[str, float] = {}
        """When each instance that should be there was first looked for in vain."""

    async def look(self) -> Mapping[str, Instance]:
        """The instances that have not ended, as described after this call was made."""
        if self._coming is None:
            self._coming = asyncio.get_running_loop().create_task(self._take())
            self._coming.add_done_callback(forget)
        return await asyncio.shield(self._coming)

    async def get(self, ref: str) -> Instance:
        """An instance, also one that has ended. Retryable while it may yet appear, then NotFound."""
        found = (await self.look()).get(ref) or await self._by_id(ref)
        if found is not None:
            self._missing.pop(ref, None)
            return found
        now = time.monotonic()
        if now - self._missing.setdefault(ref, now) < ABSENT_S:
            raise Retryable(f"EC2 does not know instance {ref}; it may not know it yet")
        raise NotFound(f"EC2 has not known instance {ref} for {ABSENT_S:g} s")

    async def _take(self) -> dict[str, Instance]:
        async with self._turn:
            await asyncio.sleep(self._ended_at + self._spacing - time.monotonic())
            # Whoever comes from here on wants to know what happens from here on.
            self._coming = None
            wanted = {f"tag:{tag.PROVIDER}": self._provider, "instance-state-name": (*LIVE, "shutting-down")}
            try:
                found = await self._describe(Filters=filters(wanted), MaxResults=_PAGE)
            finally:
                self._ended_at = time.monotonic()
            return {instance.id: instance for instance in found}

    async def _by_id(self, ref: str) -> Instance | None:
        try:
            found = await self._describe(InstanceIds=[ref])
        except NotFound:
            return None
        return found[0] if found else None

    async def _describe(self, **parameters: Any) -> list[Instance]:
        reservations = await self._api.pages("describe_instances", "Reservations", **parameters)
        return [_instance(row) for reservation in reservations for row in reservation["Instances"]]


def _instance(row: Mapping[str, Any]) -> Instance:
    return Instance(
        id=row["InstanceId"],
        instance_type=row["InstanceType"],
        zone=row["Placement"]["AvailabilityZone"],
        state=row["State"]["Name"],
        reason=row.get("StateReason", {}).get("Code", ""),
        tags=tag.as_dict(row.get("Tags", ())),
        spot_request=row.get("SpotInstanceRequestId", ""),
        root_device=row.get("RootDeviceName", ""),
        volumes={
            device["DeviceName"]: device["Ebs"]["VolumeId"]
            for device in row.get("BlockDeviceMappings", ())
            if "Ebs" in device
        },
    )
