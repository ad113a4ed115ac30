"""What may be launched: types, zones and markets, how many of each, and how large they are."""

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from bigfleet_base.model import CapacityType
from bigfleet_providerkit.backend import Offering, PriceUpdate
from bigfleet_providerkit.errors import BackendError
from bigfleet_providerkit.examples.ec2.api import Api, filters
from bigfleet_providerkit.examples.ec2.prices import Prices

MARKETS: Final[Mapping[CapacityType, dict[str, Any]]] = {
    CapacityType.ON_DEMAND: {},
    # Only a persistent request's instance can be stopped, which Configure and Drain do.
    CapacityType.SPOT: {
        "InstanceMarketOptions": {
            "MarketType": "spot",
            "SpotOptions": {"SpotInstanceType": "persistent", "InstanceInterruptionBehavior": "stop"},
        }
    },
    CapacityType.RESERVED: {
        "CapacityReservationSpecification": {"CapacityReservationPreference": "capacity-reservations-only"}
    },
}
"""What RunInstances is told of each capacity type."""
_MEMORY_FOR_PODS: Final = 0.9
"""Of an instance's memory; the rest is the hypervisor's, the kernel's and the kubelet's."""
_ARCHITECTURES: Final = {"x86_64": "amd64", "arm64": "arm64"}
_TYPES_PER_CALL: Final = 100


class Quota:
    """The offerings, with prices, sizes and subnets."""

    def __init__(
        self, api: Api, prices: Prices, subnet_ids: Sequence[str] = (), seed_count: int | None = None
    ) -> None:
        self.prices = prices
        self.subnets: Mapping[str, str] = {}
        """By zone; none for the default VPC's."""
        self._api = api
        self._subnet_ids = subnet_ids
        self._seed_count = seed_count
        self._offerings: Sequence[Offering] = ()
        self._floating: Sequence[Offering] = ()
        """Those whose price nobody has fixed."""

    async def offerings(self, given: Sequence[Offering]) -> Sequence[Offering]:
        """The given offerings, or seeds; described once. ValueError for what EC2 cannot serve."""
        if not self._offerings:
            self.subnets = await self._by_zone(self._subnet_ids)
            if self._seed_count is not None:
                zones = self.subnets or await self._zones()
                given = _seeds(self._seed_count, self.prices.on_demand, zones)
            for row in given:
                self._check(row)
            self._floating = [row for row in given if row.price_per_hour is None]
            # Without market prices there are still some to start with; the feed asks again.
            with contextlib.suppress(BackendError):
                await self._ask()
            self._offerings = await self._described([self._priced(row) for row in given])
        return self._offerings

    async def new_prices(self) -> list[PriceUpdate]:
        """The prices as they are now."""
        self.prices.read_again()
        await self._ask()
        keys = [(row.instance_type, row.zone, row.capacity_type) for row in self._floating]
        return [PriceUpdate(*key, price_per_hour=self.prices.of(*key)) for key in keys]

    def _check(self, row: Offering) -> None:
        if row.capacity_type not in MARKETS:
            raise ValueError(f"{row.instance_type} in {row.zone}: EC2 has no {row.capacity_type.name}")
        if self.subnets and row.zone not in self.subnets:
            raise ValueError(f"{row.instance_type} in {row.zone}: no --subnet is in that zone")

    async def _ask(self) -> None:
        await self.prices.ask(
            row.instance_type for row in self._floating if row.capacity_type is CapacityType.SPOT
        )

    def _priced(self, row: Offering) -> Offering:
        if row.price_per_hour is not None:
            return row
        return replace(row, price_per_hour=self.prices.of(row.instance_type, row.zone, row.capacity_type))

    async def _by_zone(self, subnets: Sequence[str]) -> dict[str, str]:
        found: dict[str, str] = {}
        if not subnets:
            return found
        for row in await self._api.pages("describe_subnets", "Subnets", SubnetIds=list(subnets)):
            zone, subnet = row["AvailabilityZone"], row["SubnetId"]
            if zone in found:
                raise ValueError(
                    f"--subnet names {found[zone]} and {subnet}, both in {zone}; one a zone is used"
                )
            found[zone] = subnet
        return found

    async def _zones(self) -> list[str]:
        wanted = filters({"zone-type": "availability-zone", "state": "available"})
        answer = await self._api.call("describe_availability_zones", Filters=wanted)
        return [row["ZoneName"] for row in answer["AvailabilityZones"]]

    async def _described(self, offerings: Sequence[Offering]) -> list[Offering]:
        """The offerings, with what EC2's own catalogue knows of them; what they say themselves stands."""
        catalogue: dict[str, Mapping[str, Any]] = {}
        types = sorted({row.instance_type for row in offerings})
        for start in range(0, len(types), _TYPES_PER_CALL):
            some = types[start : start + _TYPES_PER_CALL]
            for found in await self._api.pages(
                "describe_instance_types", "InstanceTypes", InstanceTypes=some
            ):
                catalogue[found["InstanceType"]] = found
        return [_described(self._api.region, row, catalogue[row.instance_type]) for row in offerings]


def _seeds(count: int, types: Iterable[str], zones: Iterable[str]) -> list[Offering]:
    """``count`` slots over the types, zones and markets, one after the other (``--seed-count``)."""
    rows = [
        Offering(kind, zone, market, 0, None)
        for kind in sorted(types)
        for zone in sorted(zones)
        for market in (CapacityType.ON_DEMAND, CapacityType.SPOT)
    ]
    counts = [len(range(place, count, len(rows))) for place in range(len(rows))]
    return [replace(row, count=share) for row, share in zip(rows, counts, strict=True) if share]


def _described(region: str, row: Offering, found: Mapping[str, Any]) -> Offering:
    mib = found["MemoryInfo"]["SizeInMiB"]
    gpus = sum(
        gpu["Count"] for gpu in found.get("GpuInfo", {}).get("Gpus", ()) if gpu["Manufacturer"] == "NVIDIA"
    )
    size = {"cpu": str(found["VCpuInfo"]["DefaultVCpus"]), "memory": f"{mib}Mi", "pods": "110"}
    size |= {"nvidia.com/gpu": str(gpus)} if gpus else {}
    labels = {"topology.kubernetes.io/region": region, "kubernetes.io/os": "linux"}
    for name in found["ProcessorInfo"]["SupportedArchitectures"]:
        if name in _ARCHITECTURES:
            labels["kubernetes.io/arch"] = _ARCHITECTURES[name]
    return replace(
        row,
        resources=row.resources or size,
        allocatable=row.allocatable or {**size, "memory": f"{int(mib * _MEMORY_FOR_PODS)}Mi"},
        labels={**labels, **row.labels},
    )
