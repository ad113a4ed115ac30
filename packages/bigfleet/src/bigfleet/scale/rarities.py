"""What a healthy fleet never shows: somebody to preempt, something to release, demand that nothing meets.

A benchmark that lacks one of these leaves a part of the engine out; a few machines and Needs put it back.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Protocol

from bigfleet.scale.catalogue import RACK_KEY, ZONES, resources
from bigfleet.scale.minting import mint
from bigfleet_base.model import (
    CapacityType,
    Machine,
    MachineState,
    Need,
    Operator,
    Profile,
    Requirement,
    TopologySpread,
    WhenUnsatisfiable,
)
from bigfleet_base.model.requirement import INSTANCE_TYPE_KEY, ZONE_KEY

RARE: Final = 20
"""Machines of each rare kind."""
HOPELESS: Final = 10
"""Clusters with a gang that finds no machine."""
_UNIT: Final = resources("1", "1Gi")
_CONTESTED: Final = "rare-contested"
_UNWANTED: Final = "rare-unwanted"
_SPREAD: Final = "rare-spread"
_MISSING: Final = "rare-missing"


class Fleet(Protocol):
    """Machines and demand, the same whenever they are asked for."""

    def machines(self) -> Iterator[Machine]: ...

    def rollups(self) -> Iterator[tuple[str, list[Need]]]: ...


@dataclass(frozen=True, slots=True)
class WithRarities:
    """A fleet of at least two clusters, and beside it: machines that a cluster keeps from a more important
    one, idle ones that nobody wants, others that are wanted in all zones alike, and in each of the first
    clusters a gang that finds no machine."""

    fleet: Fleet

    def machines(self) -> Iterator[Machine]:
        """Those of the fleet, then the rare ones."""
        yield from self.fleet.machines()
        humble, _ = next(self.fleet.rollups())
        profile = _wants(_CONTESTED, 100)
        for n in range(RARE):
            yield _rare(
                f"{_CONTESTED}-{n:02}",
                MachineState.CONFIGURED,
                _CONTESTED,
                cluster=humble,
                assigned_priority=profile.priority,
                assigned_need_fingerprint=profile.fingerprint,
            )
            yield _rare(f"{_UNWANTED}-{n:02}", MachineState.IDLE, _UNWANTED)
            yield _rare(f"{_SPREAD}-{n:02}", MachineState.IDLE, _SPREAD, zone=ZONES[n % len(ZONES)])

    def rollups(self) -> Iterator[tuple[str, list[Need]]]:
        """Those of the fleet, with a few rows more."""
        for number, (cluster, rows) in enumerate(self.fleet.rollups()):
            more = []
            if number == 0:
                more.append(Need(cluster, _wants(_CONTESTED, 100), _UNIT * RARE, _UNIT))
            if number == 1:
                more.append(Need(cluster, _wants(_CONTESTED, 1_000_000), _UNIT * (RARE // 2), _UNIT))
                strict = TopologySpread(ZONE_KEY, WhenUnsatisfiable.DO_NOT_SCHEDULE, 1)
                more.append(Need(cluster, _wants(_SPREAD, 1000, strict), _UNIT * (RARE // 2), _UNIT))
            if number < HOPELESS:
                more.append(hopeless(cluster, number, gang=True))
            yield cluster, rows + more


def hopeless(cluster: str, number: int, *, gang: bool, priority: int = 100) -> Need:
    """Demand that no machine of any fleet here suits; different numbers never merge."""
    requirements = [Requirement(INSTANCE_TYPE_KEY, Operator.IN, (f"{_MISSING}-{number}",))]
    if gang:
        requirements.append(Requirement(RACK_KEY, Operator.SAME))
    group = f"hopeless-{number}" if gang else ""
    return Need(cluster, Profile(tuple(requirements), (), priority), _UNIT * 2, _UNIT, group)


def _wants(instance_type: str, priority: int, *spread: TopologySpread) -> Profile:
    return Profile((Requirement(INSTANCE_TYPE_KEY, Operator.IN, (instance_type,)),), spread, priority)


def _rare(machine_id: str, state: MachineState, instance_type: str, **fields: str | int) -> Machine:
    return mint(
        machine_id,
        state,
        _UNIT,
        instance_type=instance_type,
        capacity_type=CapacityType.ON_DEMAND,
        price_per_hour=1.0,
        interruption_probability=0.05,
        **fields,
    )
