"""Which classes suit which Needs, asked once and remembered (engine.md §6)."""

import bisect
import math
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from operator import itemgetter
from typing import Final
from weakref import WeakValueDictionary

from bigfleet.engine.cells import Arrivals, MachineClass, Pool
from bigfleet.engine.inventory import Inventory
from bigfleet_base.model import (
    MachineState,
    Operator,
    Profile,
    Requirement,
    ResourceVector,
    effective_cost,
    penalty,
)
from bigfleet_base.model.requirement import INSTANCE_TYPE_KEY, ZONE_KEY

_MOST_FITS: Final = 60_000
"""Answers are kept for so many Profiles and units; they come and go, and the oldest makes room."""

_SORTING: Final = 16
"""As long as one in so many pools is new, putting each in its place is cheaper than sorting."""

CostKey = tuple[float, float]
"""Effective cost for comparing; where both are infinite, the price decides."""


class Matcher:
    """Profile × class, cached across cycles."""

    def __init__(self, inventory: Inventory) -> None:
        self._inventory = inventory
        self._fits: OrderedDict[tuple[str, ResourceVector], Fit] = OrderedDict()
        self._matches: WeakValueDictionary[tuple[tuple[Requirement, ...], ResourceVector], Match] = (
            WeakValueDictionary()
        )

    def fit(self, profile: Profile, unit: ResourceVector) -> "Fit":
        """What suits a Profile with this largest unit."""
        key = (profile.fingerprint, unit)
        fit = self._fits.get(key)
        if fit is None:
            if len(self._fits) >= _MOST_FITS:
                self._fits.popitem(last=False)
            fit = self._fits[key] = Fit(profile, self._match(profile.requirements, unit))
        return fit

    def _match(self, requirements: tuple[Requirement, ...], unit: ResourceVector) -> "Match":
        """The same for all Profiles that ask for the same, whatever they pay."""
        match = self._matches.get((requirements, unit))
        if match is None:
            match = self._matches[requirements, unit] = Match(requirements, unit, self._inventory)
        return match


class Match(dict[MachineClass, bool]):
    """Which classes meet some requirements and cover one largest unit alone, as far as anybody asked, and the
    pools of those that do."""

    __slots__ = (
        "__weakref__",
        "_inventory",
        "_kinds",
        "_most",
        "_of_kind",
        "_of_labels",
        "_pools",
        "_suited",
        "_unit",
        "instance_types",
    )

    def __init__(
        self, requirements: tuple[Requirement, ...], unit: ResourceVector, inventory: Inventory
    ) -> None:
        super().__init__()
        self.instance_types = _instance_types(requirements)
        """The instance types that can suit; none: any."""
        self._of_kind = [r for r in requirements if r.key in (INSTANCE_TYPE_KEY, ZONE_KEY)]
        self._of_labels = [r for r in requirements if r not in self._of_kind]
        self._unit = unit
        self._kinds: dict[int, bool] = {}
        """What a class is as far as its kind says."""
        self._inventory = inventory
        self._most = 0
        self._pools: dict[MachineState, Pools] = {}
        self._suited: dict[tuple[MachineState, float], Suited] = {}

    def __missing__(self, machine_class: MachineClass) -> bool:
        if len(self) >= self._most:
            self._make_room()
        answer = self._kinds.get(machine_class.kind)
        if answer is None:
            answer = self._kinds[machine_class.kind] = machine_class.alloc.covers(self._unit) and _meets(
                machine_class, self._of_kind
            )
        if answer and self._of_labels:
            answer = _meets(machine_class, self._of_labels)
        self[machine_class] = answer
        return answer

    def _make_room(self) -> None:
        self._most = 2 * len(self._inventory) + 1000
        if len(self) >= self._most:
            # Most are of classes that are gone: they come and go with prices.
            self.clear()
            self._kinds.clear()

    def pools(self, state: MachineState) -> "Pools":
        """The pools of a state, as far as they have been looked at."""
        known = self._pools.get(state)
        if known is None:
            known = self._pools[state] = Pools(self._inventory.arrivals(state))
        return known

    def suited(self, state: MachineState, bound: float) -> "Suited":
        """The same for all who lose as much by an interruption."""
        known = self._suited.get((state, bound))
        if known is None:
            known = self._suited[state, bound] = Suited(self.pools(state), bound)
        return known


class Fit:
    """What suits one Profile and covers one largest unit alone."""

    __slots__ = ("_match", "_suited", "bound", "instance_types", "suits")

    def __init__(self, profile: Profile, match: Match) -> None:
        self.bound = penalty.bound_dollars(profile.interruption_bucket)
        """What an interruption costs such a Need."""
        self.instance_types = match.instance_types
        self.suits: Callable[[MachineClass], bool] = match.__getitem__
        """Whether a machine of the class meets the Profile and covers the largest unit alone."""
        self._match = match
        self._suited: dict[MachineState, Suited] = {}

    def cost(self, machine_class: MachineClass) -> float:
        """Effective cost per hour for such a Need."""
        return _cost(machine_class, self.bound)

    def cost_key(self, machine_class: MachineClass) -> CostKey:
        """The cost in the form that is compared."""
        return _cost_key(machine_class, self.bound)

    def pools(self, state: MachineState) -> "Suited":
        """The pools of a state that suit."""
        known = self._suited.get(state)
        if known is None:
            known = self._suited[state] = self._match.suited(state, self.bound)
        known.pools.catch_up(self._match)
        return known


class Pools:
    """The pools of one state that suit, in the order they came up, for all that ask for the same.

    It does not know its ``Match``: what refers to each other in a circle stays in memory long after it is
    gone.
    """

    __slots__ = ("_arrivals", "_by_value", "_seen", "_total", "generation", "listed")

    def __init__(self, arrivals: Arrivals) -> None:
        self.generation = arrivals.generation
        """Changes when the list is written anew."""
        self.listed: list[Pool] = []
        """Dead ones are among them."""
        self._arrivals = arrivals
        self._total = 0
        self._seen: dict[str, int] = {}
        self._by_value: dict[str, dict[str, list[Pool]]] = {}

    def catch_up(self, match: Match) -> None:
        """Look at the pools that have come up since."""
        arrivals = self._arrivals
        if self._total == arrivals.total:
            return
        self._total = arrivals.total
        if self.generation != arrivals.generation:
            self.generation = arrivals.generation
            self.listed.clear()
            self._seen.clear()
            self._by_value.clear()
        known = len(self.listed)
        for name in match.instance_types or arrivals.by_type:
            pools = arrivals.by_type.get(name)
            if pools is not None and (seen := self._seen.get(name, 0)) < len(pools):
                self._seen[name] = len(pools)
                self.listed += [pool for pool in pools[seen:] if pool.cells and match[pool.machine_class]]
        for label, found in self._by_value.items():
            _file(found, self.listed[known:], label)

    def by_value(self, label: str) -> Mapping[str, list[Pool]]:
        """As ``Suited.by_value``."""
        found = self._by_value.get(label)
        if found is None:
            found = self._by_value[label] = {}
            _file(found, self.listed, label)
        return found


class Suited:
    """The pools of one state that suit, as those see them who ask for the same and lose as much by an
    interruption."""

    __slots__ = ("_bound", "_generation", "_ordered", "_priced", "pools")

    def __init__(self, pools: Pools, bound: float) -> None:
        self.pools = pools
        self._bound = bound
        self._generation = pools.generation
        self._ordered = 0
        self._priced: list[tuple[CostKey, Pool]] = []

    def cost_key(self, machine_class: MachineClass) -> CostKey:
        """As ``Fit.cost_key``."""
        return _cost_key(machine_class, self._bound)

    def by_value(self, label: str) -> Mapping[str, list[Pool]]:
        """The pools by the value of a label; dead ones are among them."""
        return self.pools.by_value(label)

    def __len__(self) -> int:
        """How many there are at most."""
        return len(self.pools.listed)

    def __iter__(self) -> Iterator[Pool]:
        """In no particular order."""
        return (pool for pool in self.pools.listed if pool.cells)

    def count(self) -> int:
        """How many machines they hold."""
        return sum(pool.count for pool in self.pools.listed)

    def priced(self) -> Iterator[tuple[CostKey, list[Pool]]]:
        """Pools in groups of equal cost, the cheapest first."""
        self._put_in_order()
        group: list[Pool] = []
        last: CostKey | None = None
        for key, pool in self._priced:
            if not pool.cells:
                continue
            if last is not None and key != last:
                yield last, group
                group = []
            last = key
            group.append(pool)
        if last is not None:
            yield last, group

    def _put_in_order(self) -> None:
        listed, priced, bound = self.pools.listed, self._priced, self._bound
        if self._generation != self.pools.generation:
            self._generation = self.pools.generation
            self._ordered = 0
            priced.clear()
        if self._ordered == len(listed):
            return
        new = [(_cost_key(pool.machine_class, bound), pool) for pool in listed[self._ordered :]]
        self._ordered = len(listed)
        if len(new) * _SORTING < len(priced):
            for each in new:
                bisect.insort(priced, each, key=_key)
        else:
            priced += new
            priced.sort(key=_key)


_key: Final = itemgetter(0)


def _cost(machine_class: MachineClass, bound: float) -> float:
    offer = machine_class.offer
    return effective_cost(offer.price_per_hour, offer.interruption_probability, bound)


def _cost_key(machine_class: MachineClass, bound: float) -> CostKey:
    value = _cost(machine_class, bound)
    return (value, machine_class.offer.price_per_hour if value == math.inf else 0.0)


def _file(found: dict[str, list[Pool]], pools: Iterable[Pool], label: str) -> None:
    for pool in pools:
        value = pool.machine_class.lookup(label)
        if value is not None:
            found.setdefault(value, []).append(pool)


def _meets(machine_class: MachineClass, requirements: Iterable[Requirement]) -> bool:
    return all(r.matches(machine_class.lookup(r.key)) for r in requirements)


def _instance_types(requirements: Iterable[Requirement]) -> tuple[str, ...]:
    for requirement in requirements:
        if requirement.key == INSTANCE_TYPE_KEY and requirement.operator is Operator.IN:
            # A machine without a type of its own may have it as a label.
            return tuple(dict.fromkeys((*requirement.values, "")))
    return ()
