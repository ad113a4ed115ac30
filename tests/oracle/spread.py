"""Strict topology spread: counts by domain and who may take the next machine (§10.5, §11)."""

from collections.abc import Iterable

from bigfleet_base.model import Machine, TopologySpread
from tests.oracle.context import Context
from tests.oracle.results import Row
from tests.oracle.world import CONFIGURED, CONFIGURING, IDLE, SPECULATIVE


def strict_spread(row: Row) -> TopologySpread | None:
    """The entry that binds the Need: none when ``Same`` is present (§10.4)."""
    return None if row.need.profile.same is not None else row.need.profile.strict_spread


class Skew:
    """The Need's machines by domain."""

    def __init__(self, context: Context, row: Row, spread: TopologySpread, claims: Iterable[Machine]) -> None:
        self._key = spread.topology_key
        self._skew = max(1, spread.max_skew)
        cluster = row.need.cluster_id
        pool = [
            *context.snapshot.in_state(IDLE, SPECULATIVE),
            *context.snapshot.bound(cluster, CONFIGURED),
            *context.snapshot.bound(cluster, CONFIGURING),
        ]
        self._counts: dict[str, int] = {}
        for machine in pool:
            value = self.domain(machine)
            if value is not None and context.suits(machine, row.need):
                self._counts[value] = 0
        for machine in claims:
            self.add(machine)

    def domain(self, machine: Machine) -> str | None:
        return machine.lookup(self._key)

    def admits(self, machine: Machine) -> bool:
        """Whether the machine lies in an eligible domain now; one without a value lies in none.

        A domain not listed yet has count 0 and no minimum is below 0, so it is always eligible (§11).
        """
        value = self.domain(machine)
        if value is None:
            return False
        least = min(self._counts.values(), default=0)
        return self._counts.get(value, 0) <= least + self._skew - 1

    def add(self, machine: Machine) -> None:
        value = self.domain(machine)
        if value is not None:
            self._counts[value] = self._counts.get(value, 0) + 1
