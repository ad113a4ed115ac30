"""A fleet whose proportions are given: so many classes, states, gangs, spread and unmet Needs.

Where ``CatalogueFleet`` asks what a known mix of workloads needs, ``MixedFleet`` turns each of those numbers
into a knob, to see what each of them costs.
"""

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from fractions import Fraction
from itertools import islice
from typing import Any, Final, TypeVar

from bigfleet.scale.catalogue import RACK_KEY
from bigfleet.scale.minting import cluster_names, mint
from bigfleet.scale.prices import Listing, PriceBook, Quote
from bigfleet.scale.sizing import apportion
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
from bigfleet_base.model.lifecycle import ATTRIBUTION
from bigfleet_base.model.requirement import INSTANCE_TYPE_KEY, ZONE_KEY

HOSTNAME_KEY: Final = "kubernetes.io/hostname"
PRIORITIES: Final = (0, 100, 1000, 10_000, 1_000_000)

_BOUND: Final = frozenset({MachineState.CONFIGURING, MachineState.CONFIGURED, MachineState.DRAINING})
_QUOTA: Final = frozenset({MachineState.SPECULATIVE, MachineState.CREATING})
_ELASTIC: Final = (CapacityType.ON_DEMAND, CapacityType.SPOT)
_CAPACITY: Final = (CapacityType.BARE_METAL, *_ELASTIC)
_CPU: Final = (8, 16, 32, 64)
_GIB_PER_CPU: Final = (2, 4, 8)
_GIB: Final = 2**30
_PODS: Final = 8
"""Pods that fill one machine: the largest request is an eighth of it."""
_GANG_MACHINES: Final = (2, 8)
_MISSING_TYPE: Final = "none"
_SCARCE: Final = 0
_ABUNDANT: Final = 1
_UNMET_SIZE: Final = 3
"""How much larger than others the Needs are that no machine suits; what is left of the demand leaves the
others some room."""
_OWN_DEMAND: Final = {_SCARCE: 200, _ABUNDANT: 50}
"""Instance types of which there is too little or too much, whatever the demand as a whole: by their number,
the machines asked for in percent of those there are."""


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
    UNMET_GANG = auto()
    """No machine suits it, and it is parked for that."""


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

    Machines come in blocks of one instance type in one zone, and a block serves one Need of one cluster.
    Every block mixes the states, so that a gang finds bound, idle and buyable machines side by side. One
    instance type is scarce and one abundant, so that there is somebody to preempt and something to release.
    """

    machines_total: int
    clusters: int
    needs_per_cluster: int = 100
    demand: int = 100
    """The machines asked for, of all there are."""
    profiles: int = 500
    """Different Needs of the fleet; clusters draw on the same ones, in turn."""
    instance_types: int = 40
    zones: int = 3
    block: int = 50
    racks_per_zone: int | None = 10
    """None: every block is a rack of its own."""
    states: Mapping[MachineState, int] = field(default_factory=_default_states)
    small_gangs: int = 5
    large_gangs: int = 5
    """Too large for one machine; half of the unmet Needs are among them."""
    spread: int = 5
    unmet: int = 3
    """Needs that no machine suits; who asks for the scarce type in vain comes on top."""
    unique_hosts: bool = False
    """Give every machine a price of its own, and a hostname that one Need of the fleet names: no two
    machines are of one class."""
    seed: int = 1

    def __post_init__(self) -> None:
        if sum(self.states.values()) != 100:
            raise ValueError(
                f"the shares of the states are {sum(self.states.values())} % in all, must be 100 %"
            )
        if 2 * self.large_gangs < self.unmet:
            raise ValueError(
                f"half of {self.unmet} % unmet Needs is more than the {self.large_gangs} % large gangs that "
                "they are among"
            )
        if self.small_gangs + self.large_gangs + self.spread + _UNMET_SIZE * self.unmet >= 100:
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
        """All machines, block after block."""
        states = _shuffled(self.states, 100, self._rng("states"))
        width = len(str(self.machines_total - 1))
        quotes = self._quotes()
        served = self._served()
        names = cluster_names(self.clusters)
        turns = -(-self.machines_total // (self.block * self.instance_types))
        for first in range(0, self.machines_total, self.block):
            number = first // self.block
            turn, of_type = divmod(number, self.instance_types)
            zone, rack = self._place(number)
            needs = served[of_type]
            cluster = names[first * self.clusters // self.machines_total]
            stamp: dict[str, str | int | float] = {}
            if needs:
                cluster, stamp = needs[turn * len(needs) // turns]
            shared: dict[str, Any] = {
                "instance_type": _type_name(of_type),
                "zone": zone,
                "labels": {RACK_KEY: rack},
            }
            bound = shared | stamp | {"cluster": cluster}
            created = shared | {key: stamp[key] for key in ATTRIBUTION & stamp.keys()}
            if stamp:
                created["target_cluster"] = cluster
            shape = _shape(of_type)
            for n in range(first, min(first + self.block, self.machines_total)):
                state = states[n % 100]
                # Only what can be bought and given back is ever a quota slot.
                kinds = _ELASTIC if state in _QUOTA else _CAPACITY
                capacity_type = kinds[n % len(kinds)]
                quote = quotes[of_type, capacity_type]
                fields = bound if state in _BOUND else created if state is MachineState.CREATING else shared
                machine_id = f"m-{n:0{width}}"
                price = quote.price_per_hour
                if self.unique_hosts:
                    fields = fields | {"labels": {RACK_KEY: rack, HOSTNAME_KEY: machine_id}}
                    price += (n + 1) * 1e-9
                yield mint(
                    machine_id,
                    state,
                    shape,
                    capacity_type=capacity_type,
                    price_per_hour=price,
                    interruption_probability=quote.interruption_probability,
                    **fields,
                )

    def rollups(self) -> Iterator[tuple[str, list[Need]]]:
        """Each cluster with its demand."""
        needs = self._needs()
        for c, cluster in enumerate(cluster_names(self.clusters)):
            rows = list(islice(needs, self.needs_per_cluster))
            if self.unique_hosts and c == 0:
                rows.append(self._pinned(cluster))
            yield cluster, rows

    def _needs(self) -> Iterator[Need]:
        """The demand of all clusters, one after the other."""
        kinds = self._kinds()
        profiles = [self._profile(p, kind) for p, kind in enumerate(kinds)]
        names = cluster_names(self.clusters)
        sizes = {t: self._sizes(t, mean) for t, mean in self._machines_per_need(kinds).items()}
        rng = self._rng("gangs")
        needs = self.clusters * self.needs_per_cluster
        for n in range(needs):
            p = n % self.profiles
            of_type = p % self.instance_types
            unit = _unit(of_type)
            match kinds[p]:
                case Kind.UNMET | Kind.UNMET_GANG:
                    pods = _PODS * _UNMET_SIZE * self.machines_total * self.demand // (100 * needs)
                case Kind.SMALL_GANG:
                    pods = rng.randint(2, _PODS)
                case Kind.LARGE_GANG:
                    pods = _PODS * rng.randint(*_GANG_MACHINES)
                case _:
                    pods = _PODS * next(sizes[of_type])
            group = "" if profiles[p].same is None else f"gang-{n}"
            yield Need(names[n // self.needs_per_cluster], profiles[p], unit * pods, unit, group)

    def _kinds(self) -> list[Kind]:
        """What each Profile is for."""
        special: dict[Kind, int | Fraction] = {
            Kind.SMALL_GANG: self.small_gangs,
            Kind.LARGE_GANG: self.large_gangs - Fraction(self.unmet, 2),
            Kind.SPREAD: self.spread,
            Kind.UNMET: Fraction(self.unmet, 2),
            Kind.UNMET_GANG: Fraction(self.unmet, 2),
        }
        shares = special | {Kind.PLAIN: 100 - sum(special.values())}
        kinds = _shuffled(shares, self.profiles, self._rng("kinds"))
        if Kind.SPREAD in kinds:
            # The first to get more of the scarce type has to spread it, so that there is something to spread
            # even where there is plenty of all other types.
            where = kinds.index(Kind.SPREAD)
            first = max(range(_SCARCE, self.profiles, self.instance_types), key=self._priority)
            kinds[first], kinds[where] = kinds[where], kinds[first]
        return kinds

    def _profile(self, p: int, kind: Kind) -> Profile:
        number = p % self.instance_types
        unmet = kind in (Kind.UNMET, Kind.UNMET_GANG)
        instance_type = _MISSING_TYPE if unmet else _type_name(number)
        requirements = [Requirement(INSTANCE_TYPE_KEY, Operator.IN, (instance_type,))]
        if kind in (Kind.SMALL_GANG, Kind.LARGE_GANG, Kind.UNMET_GANG):
            requirements.append(Requirement(RACK_KEY, Operator.SAME))
        strict = TopologySpread(ZONE_KEY, WhenUnsatisfiable.DO_NOT_SCHEDULE, 1)
        return Profile(
            tuple(requirements),
            (strict,) if kind is Kind.SPREAD else (),
            self._priority(p),
            penalty.ZERO + p % penalty.PINNED,
            penalty.ZERO + p // 3 % penalty.PINNED,
        )

    def _priority(self, p: int) -> int:
        return PRIORITIES[(p + p // self.instance_types) % len(PRIORITIES)]

    def _machines_per_need(self, kinds: list[Kind]) -> dict[int, int]:
        """The mean of the Needs of each instance type; gangs, whose size is their own, left out."""
        sharing = dict.fromkeys(range(self.instance_types), 0)
        for n in range(self.clusters * self.needs_per_cluster):
            p = n % self.profiles
            if kinds[p] in (Kind.PLAIN, Kind.SPREAD):
                sharing[p % self.instance_types] += 1
        supply = self.machines_total // self.instance_types
        # What the unmet Needs ask for is part of the demand and takes nobody's machines.
        usual = Fraction(self.demand * (100 - _UNMET_SIZE * self.unmet), 100)
        return {
            t: int(supply * _OWN_DEMAND.get(t, usual) / 100 / max(1, count)) for t, count in sharing.items()
        }

    def _sizes(self, of_type: int, mean: int) -> Iterator[int]:
        """Machines per Need. Each second one makes up for the one before, so that all of a type together ask
        for what they are meant to, whoever they are."""
        rng = self._rng(f"sizes/{of_type}")
        while True:
            more = rng.randint(0, mean // 2)
            yield max(1, mean + more)
            yield max(1, mean - more)

    def _served(self) -> list[list[tuple[str, dict[str, str | int | float]]]]:
        """For each instance type the Needs that its machines serve, as (cluster, what Configure has written
        on the machine), by cluster."""
        found: list[list[tuple[str, dict[str, str | int | float]]]] = [[] for _ in range(self.instance_types)]
        kinds = self._kinds()
        for n, need in enumerate(self._needs()):
            p = n % self.profiles
            if kinds[p] in (Kind.PLAIN, Kind.SPREAD):
                profile = need.profile
                stamp: dict[str, str | int | float] = {
                    "assigned_priority": profile.priority,
                    "assigned_interruption_penalty": penalty.bound_dollars(profile.interruption_bucket),
                    "assigned_reclamation_penalty": penalty.bound_dollars(profile.reclamation_bucket),
                    "assigned_need_fingerprint": profile.fingerprint,
                }
                found[p % self.instance_types].append((need.cluster_id, stamp))
        return found

    def _place(self, number: int) -> tuple[str, str]:
        """(zone, rack) of a block."""
        turn, of_type = divmod(number, self.instance_types)
        turn, z = divmod(turn, self.zones)
        zone = f"zone-{z}"
        if self.racks_per_zone is None:
            return zone, f"rack-{number:05}"
        return zone, f"rack-{z}-{(turn + of_type) % self.racks_per_zone}"

    def _quotes(self) -> dict[tuple[int, CapacityType], Quote]:
        prices = self.prices
        return {(t, c): prices.quote(_type_name(t), c) for t in range(self.instance_types) for c in _CAPACITY}

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


def _unit(number: int) -> ResourceVector:
    """What one Pod requests of an instance type."""
    return ResourceVector({name: amount // _PODS for name, amount in _shape(number).items()})


_Thing = TypeVar("_Thing")


def _shuffled(shares: Mapping[_Thing, int | Fraction], count: int, rng: random.Random) -> list[_Thing]:
    """So many things, each as often as its share in percent says."""
    things = list(shares)
    split = apportion(count, {str(n): Fraction(shares[thing]) / 100 for n, thing in enumerate(things)})
    dealt = [thing for n, thing in enumerate(things) for _ in range(split[str(n)])]
    rng.shuffle(dealt)
    return dealt
