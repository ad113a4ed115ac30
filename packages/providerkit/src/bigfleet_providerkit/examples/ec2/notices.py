"""Interruption notices, as far as EC2's API has them (P-96).

Spot requests say when their instance is about to be stopped, two minutes ahead. Events are planned days
ahead: the computer below an instance is going to be retired or restarted.
"""

from collections.abc import Mapping
from typing import Any, Final

from bigfleet_providerkit.backend import Interruption
from bigfleet_providerkit.examples.ec2 import tags as tag
from bigfleet_providerkit.examples.ec2.api import Api, filters
from bigfleet_providerkit.examples.ec2.instances import Instances

_MARKED: Final = ("marked-for-stop", "marked-for-termination")
_EVENTS: Final = (
    "instance-reboot",
    "instance-retirement",
    "instance-stop",
    "system-maintenance",
    "system-reboot",
)
_OVER: Final = ("[Completed]", "[Canceled]")


class Notices:
    """Finds notices, each once."""

    def __init__(self, api: Api, instances: Instances, provider: str) -> None:
        self._api = api
        self._instances = instances
        self._provider = provider
        self._known: set[tuple[str, bool]] = set()

    async def fresh(self) -> list[Interruption]:
        """The notices that were not there the last time."""
        found = {**await self._planned(), **await self._marked()}
        fresh = [notice for key, notice in found.items() if key not in self._known]
        self._known = set(found)
        return fresh

    async def _marked(self) -> dict[tuple[str, bool], Interruption]:
        wanted = filters({f"tag:{tag.PROVIDER}": self._provider, "status-code": _MARKED})
        rows = await self._api.pages(
            "describe_spot_instance_requests", "SpotInstanceRequests", Filters=wanted, MaxResults=1_000
        )
        return {
            (row["InstanceId"], True): Interruption(tag.as_dict(row["Tags"])[tag.MACHINE], imminent=True)
            for row in rows
            if row["Status"]["Code"] in _MARKED
        }

    async def _planned(self) -> dict[tuple[str, bool], Interruption]:
        wanted = filters({"event.code": _EVENTS})
        rows = await self._api.pages(
            "describe_instance_status", "InstanceStatuses", Filters=wanted, MaxResults=1_000
        )
        planned = {row["InstanceId"] for row in rows if any(map(_is_ahead, row.get("Events", ())))}
        ours = await self._instances.look() if planned else {}
        return {
            (ref, False): Interruption(ours[ref].machine_id, imminent=False) for ref in planned & ours.keys()
        }


def _is_ahead(event: Mapping[str, Any]) -> bool:
    return event["Code"] in _EVENTS and not event.get("Description", "").startswith(_OVER)
