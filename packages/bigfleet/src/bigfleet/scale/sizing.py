"""How many Pods a workload has and how many machines a number of Pods takes (scale.md §4).

The seeder, the runner and the load driver all count with these functions, so that a fleet is never seeded
for other demand than it is given. Shares are exact fractions: a machine more or less would be visible.
"""

import random
from fractions import Fraction
from math import ceil, floor
from typing import Final

from bigfleet.scale.catalogue import Archetype, Catalogue, Size
from bigfleet_base.model import ResourceVector

DEFAULT_DENSITY: Final = 100
"""Pods per machine where an archetype does not say."""

_REPLICA_BANDS: Final = ((55, 1, 5), (30, 6, 25), (12, 26, 100), (3, 101, 400))
"""(weight, fewest, most) replicas of a workload that is no gang; uniform inside a band."""
_SHARED: Final = frozenset({"cpu", "memory", "ephemeral-storage"})
"""Resources that many Pods share on a machine; anything else is a device."""


def draw_replicas(archetype: Archetype, rng: random.Random) -> int:
    """The Pods of one workload."""
    if archetype.gang is not None:
        return rng.randint(*archetype.gang)
    _, fewest, most = rng.choices(_REPLICA_BANDS, [weight for weight, _, _ in _REPLICA_BANDS])[0]
    return rng.randint(fewest, most)


def mean_replicas(archetype: Archetype) -> Fraction:
    """The Pods of a workload on average."""
    if archetype.gang is not None:
        return Fraction(sum(archetype.gang), 2)
    total = sum(weight for weight, _, _ in _REPLICA_BANDS)
    return sum(
        (Fraction(weight, total) * Fraction(fewest + most, 2) for weight, fewest, most in _REPLICA_BANDS),
        Fraction(0),
    )


def pod_shares(catalogue: Catalogue) -> dict[str, Fraction]:
    """The part of all standing Pods that each archetype has, by name; together one."""
    return _normalised(
        {a.name: Fraction(0) if a.burst_only else a.weight * mean_replicas(a) for a in catalogue}
    )


def machine_shares(catalogue: Catalogue, density: int = DEFAULT_DENSITY) -> dict[str, Fraction]:
    """The part of the machines that each archetype needs, by name; together one."""
    pods = pod_shares(catalogue)
    return _normalised({a.name: pods[a.name] / pods_per_machine(a, density) for a in catalogue})


def pods_per_machine(archetype: Archetype, density: int = DEFAULT_DENSITY) -> int:
    """How many Pods of an archetype one of its machines holds."""
    if archetype.pods_per_node is not None:
        return archetype.pods_per_node
    devices = any(size.resources.keys() - _SHARED for size in archetype.sizes)
    return 1 if devices else density


def machine_resources(archetype: Archetype, size: Size, density: int = DEFAULT_DENSITY) -> ResourceVector:
    """A machine made for Pods of one size. Instance types are names only: an m6i.large made for a hundred
    Pods is a hundred Pods large. Devices multiply only where the Pods per node are stated, because without
    that number a Pod with devices has a machine to itself."""
    return size.resources * pods_per_machine(archetype, density)


def gang_floor(archetype: Archetype) -> int:
    """The fewest machines with which the largest gang of an archetype finds room in every zone."""
    if archetype.gang is None or archetype.burst_only:
        return 0
    return archetype.gang[1] * len(archetype.zones)


def effective_machines(catalogue: Catalogue, pods: int, density: int = DEFAULT_DENSITY) -> int:
    """The machines that a number of standing Pods takes."""
    shares = pod_shares(catalogue)
    return sum(ceil(pods * shares[a.name] / pods_per_machine(a, density)) + gang_floor(a) for a in catalogue)


def allocation(catalogue: Catalogue, machines: int, density: int = DEFAULT_DENSITY) -> dict[str, int]:
    """A number of machines split over the archetypes, by name. Gangs are raised to their floor afterwards,
    so a small fleet may come out larger than asked for."""
    split = apportion(machines, machine_shares(catalogue, density))
    return {a.name: max(split[a.name], gang_floor(a)) for a in catalogue}


def apportion(total: int, shares: dict[str, Fraction]) -> dict[str, int]:
    """Whole numbers in proportion to shares, by largest remainder; equal remainders go by position."""
    whole = {name: floor(total * share) for name, share in shares.items()}
    by_remainder = sorted(shares, key=lambda name: whole[name] - total * shares[name])
    for name in by_remainder[: total - sum(whole.values())]:
        whole[name] += 1
    return whole


def _normalised(parts: dict[str, Fraction]) -> dict[str, Fraction]:
    total = sum(parts.values())
    return {name: part / total for name, part in parts.items()}
