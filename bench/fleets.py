"""The fleets of scale.md §13.1 as benchmark shapes, in any fraction of their size.

Three come from the catalogue of workloads (``b5k``, ``b50k``, ``b500k``), the others from proportions. A
shape knows how many machines, classes, Needs and actions it has at full size; at any size each kind of
decision occurs in it.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, Final

from bigfleet.scale import CatalogueFleet, Fleet, MixedFleet, WithRarities
from bigfleet_base.model import Machine, Need

FULL: Final = Fraction(1)


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetShape:
    """Machines, demand, and what the first full pass must find."""

    name: str
    fleet: Fleet
    expected: dict[str, int] = field(default_factory=dict)
    """Counts at full size; empty below it, where greedy outcomes do not shrink in proportion."""

    def machines(self) -> Iterator[Machine]:
        """All machines, made one at a time."""
        return self.fleet.machines()

    def rollups(self) -> Iterator[tuple[str, list[Need]]]:
        """Each cluster with its demand."""
        return self.fleet.rollups()


def fleet_shape(name: str, scale: Fraction = FULL) -> FleetShape:
    """A shape by its name, at a fraction of its size."""
    return FleetShape(
        name=name if scale == FULL else f"{name}@{scale}",
        fleet=FLEETS[name](scale),
        expected=_EXPECTED.get(name, {}) if scale == FULL else {},
    )


def _catalogue(clusters: int) -> Callable[[Fraction], Fleet]:
    """Clusters of 25,000 Pods; a fraction has fewer of them."""

    def build(scale: Fraction) -> Fleet:
        fewer = max(2, round(clusters * scale))
        pods = max(2_000, round(clusters * 25_000 * scale / fewer))
        return WithRarities(CatalogueFleet(pods=fewer * pods, clusters=fewer))

    return build


def _mixed(machines: int, clusters: int, needs_per_cluster: int, **knobs: Any) -> Callable[[Fraction], Fleet]:
    """Proportions; a fraction has fewer clusters of full size while there are more than five, and fewer
    instance types, so that as many Needs compete for each."""

    def build(scale: Fraction) -> Fleet:
        fewer = max(5, round(clusters * scale))
        each = min(needs_per_cluster, max(12, round(clusters * needs_per_cluster * scale / fewer)))
        return MixedFleet(
            machines_total=round(machines * scale),
            clusters=fewer,
            needs_per_cluster=each,
            profiles=min(500, fewer * each),
            instance_types=min(40, fewer * each // 12),
            **knobs,
        )

    return build


FLEETS: Final[dict[str, Callable[[Fraction], Fleet]]] = {
    "b5k": _catalogue(20),
    "b50k": _catalogue(200),
    "b500k-agg": _mixed(500_000, 50, 100, demand=10),
    "b500k-agg-1to1": _mixed(500_000, 50, 100),
    "b500k-racks": _mixed(500_000, 50, 100, racks_per_zone=None, large_gangs=20),
    "b500k-unique": _mixed(500_000, 50, 100, unique_hosts=True),
    "b500k": _catalogue(2_000),
    "b5m": _mixed(5_000_000, 500, 20),
}

_EXPECTED: Final[dict[str, dict[str, int]]] = {
    "b5k": {
        "machines": 24_352,
        "classes": 657,
        "needs": 4_588,
        "actions": 1_389,
        "Bootstrap": 975,
        "Provision": 132,
        "Preempt": 10,
        "Reclaim": 242,
        "Delete": 30,
        "unmet": 11,
        "folded": 4_342,
        "spread": 2,
    },
    "b50k": {
        "machines": 239_006,
        "classes": 821,
        "needs": 46_031,
        "actions": 15_596,
        "Bootstrap": 10_459,
        "Provision": 1_916,
        "Preempt": 10,
        "Reclaim": 3_181,
        "Delete": 30,
        "unmet": 11,
        "folded": 43_705,
        "spread": 30,
    },
    "b500k-agg": {
        "machines": 500_000,
        "classes": 3_600,
        "needs": 5_000,
        "actions": 314_676,
        "Bootstrap": 2_020,
        "Provision": 2_000,
        "Preempt": 1_271,
        "Reclaim": 244_053,
        "Delete": 65_332,
        "unmet": 213,
        "folded": 250,
        "spread": 11,
    },
    "b500k-agg-1to1": {
        "machines": 500_000,
        "classes": 3_600,
        "needs": 5_000,
        "actions": 136_560,
        "Bootstrap": 97_000,
        "Provision": 34_701,
        "Preempt": 1_271,
        "Reclaim": 1_587,
        "Delete": 2_001,
        "unmet": 230,
        "folded": 250,
        "spread": 92,
    },
    "b500k-racks": {
        "machines": 500_000,
        "classes": 30_000,
        "needs": 5_000,
        "actions": 140_818,
        "Bootstrap": 96_981,
        "Provision": 38_594,
        "Preempt": 1_299,
        "Reclaim": 1_924,
        "Delete": 2_020,
        "unmet": 512,
        "folded": 250,
        "spread": 127,
    },
    "b500k-unique": {"machines": 500_000, "classes": 500_000, "needs": 5_001},
    "b500k": {
        "machines": 2_385_546,
        "classes": 869,
        "needs": 461_921,
        "actions": 161_446,
        "Bootstrap": 105_156,
        "Provision": 25_685,
        "Preempt": 10,
        "Reclaim": 30_565,
        "Delete": 30,
        "unmet": 11,
        "folded": 438_622,
        "spread": 245,
    },
    "b5m": {
        "machines": 5_000_000,
        "classes": 3_600,
        "needs": 10_000,
        "actions": 1_511_017,
        "Bootstrap": 971_588,
        "Provision": 431_893,
        "Preempt": 23_263,
        "Reclaim": 64_272,
        "Delete": 20_001,
        "unmet": 474,
        "folded": 500,
        "spread": 369,
    },
}
"""What the engine decided when these were recorded; a faster one must decide the same."""
