"""A fleet as a scale profile means it: demand drawn from a catalogue, machines seeded to carry it."""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from itertools import accumulate
from math import gcd
from typing import Final

from bigfleet.scale.catalogue import RACK_KEY, REALISTIC, Archetype, Catalogue, Size
from bigfleet.scale.minting import cluster_names, mint
from bigfleet.scale.prices import TIER_PRICES, PriceBook
from bigfleet.scale.sizing import (
    DEFAULT_DENSITY,
    allocation,
    draw_replicas,
    effective_machines,
    machine_resources,
)
from bigfleet_base.model import CapacityType, Machine, MachineState, Need, aggregate_rows, penalty
from bigfleet_base.model.quantity import NANO

_RACK_SIZE: Final = 50
"""Machines in one physical rack; a gang that asks for more in one rack asks for what does not exist."""


@dataclass(frozen=True, slots=True)
class Workload:
    """One workload object of a cluster."""

    number: int
    archetype: Archetype
    size: Size
    replicas: int
    priority: int
    spread: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogueFleet:
    """Clusters that run a number of Pods, and the machines of the shard that serves them.

    The machines stand in three tiers: Configured for the demand, Idle as headroom, Speculative as quota to
    buy from. Equal settings give equal fleets; a cluster's demand depends on the seed and its name alone.
    """

    pods: int
    clusters: int
    catalogue: Catalogue = REALISTIC
    density: int = DEFAULT_DENSITY
    configured: Fraction = Fraction(1)
    """Configured machines, as a part of those the demand takes."""
    idle: Fraction = Fraction(1, 5)
    speculative: Fraction = Fraction(3)
    spot: int = 0
    """Further Speculative machines of the spot tier."""
    racks_per_zone: int = 10
    prices: PriceBook = TIER_PRICES
    seed: int = 1

    @property
    def effective_machines(self) -> int:
        """The machines that the demand takes."""
        return effective_machines(self.catalogue, self.pods, self.density)

    def machines(self) -> Iterator[Machine]:
        """All machines, tier by tier."""
        effective = self.effective_machines
        bare_metal, on_demand = CapacityType.BARE_METAL, CapacityType.ON_DEMAND
        yield from self._tier("cfg", MachineState.CONFIGURED, bare_metal, int(effective * self.configured))
        yield from self._tier("idle", MachineState.IDLE, bare_metal, int(effective * self.idle))
        yield from self._tier("spec", MachineState.SPECULATIVE, on_demand, int(effective * self.speculative))
        yield from self._tier("spot", MachineState.SPECULATIVE, CapacityType.SPOT, self.spot)

    def rollups(self) -> Iterator[tuple[str, list[Need]]]:
        """Each cluster with its demand as its operator rolls it up: plain workloads by Profile, every gang
        for itself."""
        for cluster in cluster_names(self.clusters):
            yield cluster, aggregate_rows(_needs(cluster, self.workloads(cluster)))

    def workloads(self, cluster: str) -> Iterator[Workload]:
        """What a cluster runs: drawn until its Pods are reached; a gang is never cut short."""
        # Not a secret: two runs must be able to have the same demand.
        rng = random.Random(f"{self.seed}/{cluster}")  # noqa: S311
        standing = [archetype for archetype in self.catalogue if not archetype.burst_only]
        weights = list(accumulate(archetype.weight for archetype in standing))
        left = self.pods // self.clusters
        number = 0
        while left > 0:
            archetype = rng.choices(standing, cum_weights=weights)[0]
            replicas = draw_replicas(archetype, rng)
            if archetype.gang is None:
                replicas = min(replicas, left)
            yield Workload(
                number,
                archetype,
                rng.choices(archetype.sizes, [size.weight for size in archetype.sizes])[0],
                replicas,
                rng.choice(archetype.priorities),
                rng.random() < archetype.spread_chance,
            )
            left -= replicas
            number += 1

    def _tier(
        self, prefix: str, state: MachineState, capacity_type: CapacityType, count: int
    ) -> Iterator[Machine]:
        """Machines of one state, archetype after archetype; bound ones are dealt to the clusters in
        blocks, so that a cluster's machines for its gangs stand together."""
        if count == 0:
            return
        split = allocation(self.catalogue, count, self.density)
        width = len(str(sum(split.values())))
        names = cluster_names(self.clusters)
        number = 0
        for archetype in self.catalogue:
            share = split[archetype.name]
            shapes = [machine_resources(archetype, size, self.density) for size in _cycle(archetype.sizes)]
            for i in range(share):
                instance_type = archetype.instance_types[i % len(archetype.instance_types)]
                zone, rack = self._place(archetype, i)
                quote = self.prices.quote(instance_type, capacity_type)
                bound = state is MachineState.CONFIGURED
                yield mint(
                    f"{prefix}-{number:0{width}}",
                    state,
                    shapes[i % len(shapes)],
                    instance_type=instance_type,
                    zone=zone,
                    labels={RACK_KEY: rack},
                    capacity_type=capacity_type,
                    price_per_hour=quote.price_per_hour,
                    interruption_probability=quote.interruption_probability,
                    cluster=names[i * self.clusters // share] if bound else "",
                    **(_stamps(archetype, i) if bound else {}),
                )
                number += 1

    def _place(self, archetype: Archetype, i: int) -> tuple[str, str]:
        """(zone, rack): machines for gangs fill one rack after another, the others go round."""
        zones = len(archetype.zones)
        turn = i // _RACK_SIZE if archetype.same == RACK_KEY else i // len(archetype.instance_types)
        zone = archetype.zones[turn % zones]
        return zone, f"rack-{zone}-{turn // zones % self.racks_per_zone}"


def _needs(cluster: str, workloads: Iterator[Workload]) -> Iterator[Need]:
    profiles = {}
    for workload in workloads:
        archetype = workload.archetype
        key = (archetype.name, workload.priority, workload.spread)
        if key not in profiles:
            profiles[key] = archetype.profile(workload.priority, same=archetype.same, spread=workload.spread)
        yield Need(
            cluster,
            profiles[key],
            workload.size.resources * workload.replicas,
            workload.size.resources,
            group="" if archetype.gang is None else f"{archetype.name}-{workload.number}",
        )


def _stamps(archetype: Archetype, i: int) -> dict[str, float | int]:
    """The protection that a machine has from the workload it serves, as Configure writes it."""
    return {
        "assigned_priority": archetype.priorities[i % len(archetype.priorities)],
        "assigned_interruption_penalty": _bound(archetype.interruption_penalty),
        "assigned_reclamation_penalty": _bound(archetype.reclamation_penalty),
    }


def _bound(dollars: int) -> float:
    return penalty.bound_dollars(penalty.bucket_for(dollars * NANO))


def _cycle(sizes: tuple[Size, ...]) -> list[Size]:
    """Sizes as often as their weights say, in the fewest turns."""
    divisor = gcd(*(size.weight for size in sizes))
    return [size for size in sizes for _ in range(size.weight // divisor)]
