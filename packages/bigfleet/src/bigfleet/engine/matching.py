"""Which classes suit which Needs, asked once and remembered (engine.md §6)."""

import bisect
import math
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from typing import Final

from bigfleet.engine.cells import Arrivals, MachineClass, Pool
from bigfleet.engine.inventory import Inventory
from bigfleet_base.model import MachineState, Operator, Profile, ResourceVector, effective_cost, penalty
from bigfleet_base.model.requirement import INSTANCE_TYPE_KEY

_MOST_FITS: Final = 60_000
"""Answers are kept for so many Profiles and units; they come and go, and the oldest makes room."""

_MOST_ANSWERS: Final = 100_000
"""Of one of them: classes come and go with prices."""

CostKey = tuple[float, float]
"""Effective cost for comparing; where both are infinite, the price decides."""


class Matcher:
    """Profile × class, cached across cycles."""

    def __init__(self, inventory: Inventory) -> None:
        self._inventory = inventory
        self._fits: OrderedDict[tuple[str, ResourceVector], Fit] = OrderedDict()

    def fit(self, profile: Profile, unit: ResourceVector) -> "Fit":
        """What suits a Profile with this largest unit."""
        key = (profile.fingerprint, unit)
        fit = self._fits.get(key)
        if fit is None:
            if len(self._fits) >= _MOST_FITS:
                self._fits.popitem(last=False)
            fit = self._fits[key] = Fit(profile, unit, self._inventory)
        return fit


class Fit:
    """What suits one Profile and covers one largest unit alone."""

    __slots__ = ("_answers", "_inventory", "_suited", "bound", "instance_types", "profile", "unit")

    def __init__(self, profile: Profile, unit: ResourceVector, inventory: Inventory) -> None:
        self.profile = profile
        self.unit = unit
        self.bound = penalty.bound_dollars(profile.interruption_bucket)
        """What an interruption costs such a Need."""
        self.instance_types = _instance_types(profile)
        """The instance types that can suit; none: any."""
        self._inventory = inventory
        self._answers: dict[int, bool] = {}
        self._suited: dict[MachineState, Suited] = {}

    def suits(self, machine_class: MachineClass) -> bool:
        """Whether a machine of the class meets the Profile and covers the largest unit alone."""
        answer = self._answers.get(machine_class.number)
        if answer is None:
            if len(self._answers) >= _MOST_ANSWERS:
                self._answers.clear()
            answer = self._answers[machine_class.number] = (
                (not self.instance_types or machine_class.offer.instance_type in self.instance_types)
                and machine_class.alloc.covers(self.unit)
                and all(r.matches(machine_class.lookup(r.key)) for r in self.profile.requirements)
            )
        return answer

    def cost(self, machine_class: MachineClass) -> float:
        """Effective cost per hour for such a Need."""
        offer = machine_class.offer
        return effective_cost(offer.price_per_hour, offer.interruption_probability, self.bound)

    def cost_key(self, machine_class: MachineClass) -> CostKey:
        """The cost in the form that is compared."""
        value = self.cost(machine_class)
        return (value, machine_class.offer.price_per_hour if value == math.inf else 0.0)

    def pools(self, state: MachineState) -> "Suited":
        """The pools of a state that suit."""
        known = self._suited.get(state)
        if known is None:
            known = self._suited[state] = Suited(self._inventory.arrivals(state))
        known.catch_up(self)
        return known


class Suited:
    """The pools of one state that suit one Profile and unit, the cheapest first.

    It does not know its ``Fit``: what refers to each other in a circle stays in memory long after it is gone.
    """

    __slots__ = ("_arrivals", "_by_value", "_generation", "_keys", "_pools", "_seen", "_total")

    def __init__(self, arrivals: Arrivals) -> None:
        self._arrivals = arrivals
        self._generation = -1
        self._total = 0
        self._seen: dict[str, int] = {}
        self._keys: list[CostKey] = []
        self._pools: list[Pool] = []
        self._by_value: dict[str, dict[str, list[Pool]]] = {}

    def catch_up(self, fit: Fit) -> None:
        """Look at the pools that have come up since."""
        arrivals = self._arrivals
        if self._generation != arrivals.generation:
            self._generation = arrivals.generation
            self._total = 0
            self._seen.clear()
            self._keys.clear()
            self._pools.clear()
            self._by_value.clear()
        if self._total == arrivals.total:
            return
        self._total = arrivals.total
        for name in fit.instance_types or arrivals.by_type:
            pools = arrivals.by_type.get(name)
            if pools is not None and (seen := self._seen.get(name, 0)) < len(pools):
                self._seen[name] = len(pools)
                for pool in pools[seen:]:
                    self._look_at(pool, fit)

    def _look_at(self, pool: Pool, fit: Fit) -> None:
        if pool.cells and fit.suits(pool.machine_class):
            key = fit.cost_key(pool.machine_class)
            place = bisect.bisect_right(self._keys, key)
            self._keys.insert(place, key)
            self._pools.insert(place, pool)
            for label, found in self._by_value.items():
                _file(found, pool, label)

    def by_value(self, label: str) -> Mapping[str, list[Pool]]:
        """The pools by the value of a label; dead ones are among them."""
        found = self._by_value.get(label)
        if found is None:
            found = self._by_value[label] = {}
            for pool in self._pools:
                _file(found, pool, label)
        return found

    def __len__(self) -> int:
        """How many there are at most."""
        return len(self._pools)

    def __iter__(self) -> Iterator[Pool]:
        return (pool for pool in self._pools if pool.cells)

    def count(self) -> int:
        """How many machines they hold."""
        return sum(pool.count for pool in self._pools)

    def priced(self) -> Iterator[tuple[CostKey, list[Pool]]]:
        """Pools in groups of equal cost."""
        group: list[Pool] = []
        last: CostKey | None = None
        for key, pool in zip(self._keys, self._pools, strict=True):
            if not pool.cells:
                continue
            if last is not None and key != last:
                yield last, group
                group = []
            last = key
            group.append(pool)
        if last is not None:
            yield last, group


def _file(found: dict[str, list[Pool]], pool: Pool, label: str) -> None:
    value = pool.machine_class.lookup(label)
    if value is not None:
        found.setdefault(value, []).append(pool)


def _instance_types(profile: Profile) -> tuple[str, ...]:
    for requirement in profile.requirements:
        if requirement.key == INSTANCE_TYPE_KEY and requirement.operator is Operator.IN:
            # A machine without a type of its own may have it as a label.
            return (*requirement.values, "")
    return ()
