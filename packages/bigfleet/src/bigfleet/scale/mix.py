"""A fleet whose proportions are given: so many classes, states, gangs, spread and unmet Needs.

Where ``CatalogueFleet`` asks what a known mix of workloads needs, ``MixedFleet`` turns each of those numbers
into a knob, to see what each of them costs.
"""

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Final, TypeVar

from bigfleet.scale.catalogue import RACK_KEY
from bigfleet.scale.minting import cluster_names, mint
from bigfleet.scale.prices import Listing, PriceBook
from bigfleet_base.model import (
    CapacityType,
    Machine,
    MachineState,
    Need,
    Operator,
    Profile,
    Requirement,
    ResourceVector,
    TopologySpread,
    WhenUnsatisfiable,
    penalty,
)
from bigfleet_base.model.requirement import INSTANCE_TYPE_KEY, ZONE_KEY

HOSTNAME_KEY: Final = "kubernetes.io/hostname"
PRIORITIES: Final = (0, 100, 1000, 10_000, 1_000_000)

_UNBOUND: Final = frozenset(
    {MachineState.SPECULATIVE, MachineState.CREATING, MachineState.IDLE, MachineState.DELETING}
)
_ELASTIC: Final = (CapacityType.ON_DEMAND, CapacityType.SPOT)
_CAPACITY: Final = (CapacityType.BARE_METAL, *_ELASTIC)
_CPU: Final = (8, 16, 32, 64)
_GIB_PER_CPU: Final = (2, 4, 8)
_GIB: Final = 2**30
_PODS: Final = 8
"""Pods that fill one machine: the largest request is an eighth of it."""
_GANG_MACHINES: Final = (2, 8)
_MISSING_TYPE: Final = "none"


class Kind(Enum):
    """What is special about a Need."""

    PLAIN = auto()
    SMALL_GANG = auto()
    """Must stay in one rack and fits one machine: it folds."""
    LARGE_GANG = auto()
    """Must stay in one rack and is too large for one machine."""
    SPREAD = auto()
    """Strictly over the zones."""
    UNMET = auto()
    """No machine suits it."""


def _default_states() -> dict[MachineState, int]:
    return {
        MachineState.CONFIGURED: 60,
        MachineState.IDLE: 20,
        MachineState.SPECULATIVE: 15,
        MachineState.CREATING: 2,
        MachineState.CONFIGURING: 2,
        MachineState.DRAINING: 1,
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class MixedFleet:
    """The knobs, and the fleet they give. Shares are in percent; equal settings give equal fleets.

    A rack holds one instance type in one zone, as racks do, and the racks of a cluster stand together. Every
    rack mixes the states, so that a gang finds bound, idle and buyable machines side by side.
    """

    machines_total: int
    clusters: int
    needs_per_cluster: int = 100
    demand: int = 100
    """The machines asked for, of all there are."""
    instance_types: int = 40
    zones: int = 3
    rack_size: int = 50
    states: Mapping[MachineState, int] = field(default_factory=_default_states)
    small_gangs: int = 5
    large_gangs: int = 5
    spread: int = 5
    unmet: int = 5
    unique_hosts: bool = False
    """Give every machine a price of its own, and a hostname that one Need of the fleet names: no two
    machines are of one class."""
    seed: int = 1

    def __post_init__(self) -> None:
        if sum(self.states.values()) != 100:
            raise ValueError(
                f"the shares of the states are {sum(self.states.values())} % in all, must be 100 %"
            )
        if self.small_gangs + self.large_gangs + self.spread + self.unmet >= 100:
            raise ValueError(
                "gangs, spread and unmet Needs leave no plain ones: together they must be below 100 %"
            )

    @property
    def prices(self) -> PriceBook:
        """On demand by size, with the types differing by up to a half; spot at a quarter to a half of it."""
        return PriceBook(
            {
                _type_name(n): Listing(
                    on_demand=round(0.05 * _CPU[n % len(_CPU)] * (1 + n / (2 * self.instance_types)), 4),
                    spot_factor=0.25 + 0.25 * (n % 5) / 4,
                    spot_probability=0.02 * (1 + n % 7),
                )
                for n in range(self.instance_types)
            }
        )

    def machines(self) -> Iterator[Machine]:
        """All machines, rack after rack."""
        states = _shuffled_hundred(self.states, self._rng("states"))
        prices = self.prices
        names = cluster_names(self.clusters)
        width = len(str(self.machines_total - 1))
        for n in range(self.machines_total):
            rack = n // self.rack_size
            number = rack % self.instance_types
            state = states[n % 100]
            # Only what can be bought and given back is ever a quota slot.
            kinds = _ELASTIC if state in (MachineState.SPECULATIVE, MachineState.CREATING) else _CAPACITY
            capacity_type = kinds[n % len(kinds)]
            quote = prices.quote(_type_name(number), capacity_type)
            cluster = names[n * self.clusters // self.machines_total]
            binding = {} if state in _UNBOUND else _binding(cluster, rack)
            machine_id = f"m-{n:0{width}}"
            labels = {RACK_KEY: f"rack-{rack:05}"}
            price = quote.price_per_hour
            if self.unique_hosts:
                labels[HOSTNAME_KEY] = machine_id
                price += (n + 1) * 1e-9
            yield mint(
                machine_id,
                state,
                _shape(number),
                instance_type=_type_name(number),
                zone=f"zone-{rack // self.instance_types % self.zones}",
                labels=labels,
                capacity_type=capacity_type,
                price_per_hour=price,
                interruption_probability=quote.interruption_probability,
                **binding,
            )

    def rollups(self) -> Iterator[tuple[str, list[Need]]]:
        """Each cluster with its demand."""
        kinds = _shuffled_hundred(
            {
                Kind.SMALL_GANG: self.small_gangs,
                Kind.LARGE_GANG: self.large_gangs,
                Kind.SPREAD: self.spread,
                Kind.UNMET: self.unmet,
                Kind.PLAIN: 100 - self.small_gangs - self.large_gangs - self.spread - self.unmet,
            },
            self._rng("kinds"),
        )
        for c, cluster in enumerate(cluster_names(self.clusters)):
            rng = self._rng(cluster)
            first = c * self.needs_per_cluster
            rows = [
                self._need(cluster, first + k, kinds[(first + k) % 100], rng)
                for k in range(self.needs_per_cluster)
            ]
            if self.unique_hosts and c == 0:
                rows.append(self._pinned(cluster))
            yield cluster, rows

    def _need(self, cluster: str, n: int, kind: Kind, rng: random.Random) -> Need:
        number = n % self.instance_types
        unit = ResourceVector({name: amount // _PODS for name, amount in _shape(number).items()})
        instance_type = _MISSING_TYPE if kind is Kind.UNMET else _type_name(number)
        requirements = [Requirement(INSTANCE_TYPE_KEY, Operator.IN, (instance_type,))]
        spread: tuple[TopologySpread, ...] = ()
        pods = _PODS * self._machines_per_need(rng)
        match kind:
            case Kind.SMALL_GANG:
                pods = rng.randint(2, _PODS)
            case Kind.LARGE_GANG:
                pods = _PODS * rng.randint(*_GANG_MACHINES)
            case Kind.SPREAD:
                spread = (TopologySpread(ZONE_KEY, WhenUnsatisfiable.DO_NOT_SCHEDULE, 1),)
        group = ""
        # Of the unmet ones every second is a gang, so that some are parked.
        if kind in (Kind.SMALL_GANG, Kind.LARGE_GANG) or (kind is Kind.UNMET and n % 2):
            requirements.append(Requirement(RACK_KEY, Operator.SAME))
            group = f"gang-{n}"
        profile = Profile(
            tuple(requirements),
            spread,
            PRIORITIES[n // self.instance_types % len(PRIORITIES)],
            penalty.ZERO + n % penalty.PINNED,
            penalty.ZERO + n // 3 % penalty.PINNED,
        )
        return Need(cluster, profile, unit * pods, unit, group)

    def _machines_per_need(self, rng: random.Random) -> int:
        # Gangs have sizes of their own, so the others share what is asked for.
        sharing = self.clusters * self.needs_per_cluster * (100 - self.small_gangs - self.large_gangs)
        mean = self.machines_total * self.demand // sharing
        return max(1, rng.randint(mean // 2, mean + mean // 2))

    def _pinned(self, cluster: str) -> Need:
        last = f"m-{self.machines_total - 1}"
        unit = ResourceVector(cpu=1000)
        return Need(cluster, Profile((Requirement(HOSTNAME_KEY, Operator.IN, (last,)),)), unit, unit)

    def _rng(self, purpose: str) -> random.Random:
        # Not a secret: a fleet must be the same in every run.
        return random.Random(f"{self.seed}/{purpose}")  # noqa: S311


def _type_name(number: int) -> str:
    return f"type-{number:02}"


def _shape(number: int) -> ResourceVector:
    """The size of an instance type; milli-units."""
    cpu = _CPU[number % len(_CPU)]
    return ResourceVector(cpu=cpu * 1000, memory=cpu * _GIB_PER_CPU[number % len(_GIB_PER_CPU)] * _GIB * 1000)


def _binding(cluster: str, rack: int) -> dict[str, str | int | float]:
    """Whom a machine serves and its protection, one for a whole rack."""
    return {
        "cluster": cluster,
        "assigned_priority": PRIORITIES[rack % len(PRIORITIES)],
        "assigned_interruption_penalty": penalty.bound_dollars(penalty.ZERO + rack % penalty.PINNED),
        "assigned_reclamation_penalty": penalty.bound_dollars(penalty.ZERO + rack // 2 % penalty.PINNED),
    }


_Thing = TypeVar("_Thing")


def _shuffled_hundred(shares: Mapping[_Thing, int], rng: random.Random) -> list[_Thing]:
    """Each thing as often as its share in percent, so that any hundred in a row hold the proportions."""
    hundred = [thing for thing, share in shares.items() for _ in range(share)]
    rng.shuffle(hundred)
    return hundred
