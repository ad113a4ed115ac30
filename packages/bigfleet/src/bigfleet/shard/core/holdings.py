"""How many machines each provider has, in all and bound to each cluster, kept up to date on every write."""

from dataclasses import dataclass, field

from bigfleet.shard.core.fleet import TRANSITIONAL, Fleet
from bigfleet_base.model import Machine


@dataclass(slots=True)
class HoldingsState:
    machines: dict[str, int] = field(default_factory=dict)
    """By provider."""
    bound: dict[tuple[str, str], int] = field(default_factory=dict)
    """By provider and cluster; no entry for none, so there are no more than bound machines."""


class Holdings:
    """Counts. Machines come by ``insert`` and leave by ``remove``, or, while they are in transition, at the
    word of the operation that is driving them (shard.md X4, NOT_FOUND)."""

    def __init__(self, fleet: Fleet, state: HoldingsState) -> None:
        self._fleet = fleet
        self.state = state
        self._leaving = {machine_id: fleet.provider(machine_id) for machine_id in fleet.state.since}
        """The provider of each machine that may be removed: afterwards the fleet no longer knows it."""

    def insert(self, machine: Machine, provider: str) -> None:
        """A machine was added to the fleet."""
        self.state.machines[provider] = self.state.machines.get(provider, 0) + 1
        self._bind(provider, machine.cluster, 1)
        if machine.state in TRANSITIONAL:
            self._leaving[machine.id] = provider

    def remove(self, machine_id: str) -> None:
        """Take a machine out of the fleet."""
        self._leaving[machine_id] = self._fleet.provider(machine_id)
        self._fleet.remove(machine_id)

    def changed(self, before: Machine | None, after: Machine | None) -> None:
        """A machine was written."""
        if before is None:
            return
        if after is None:
            provider = self._leaving.pop(before.id)
            self.state.machines[provider] -= 1
            self._bind(provider, before.cluster, -1)
            return
        if before.state is after.state and before.cluster == after.cluster:
            return
        provider = self._fleet.provider(after.id)
        self._bind(provider, before.cluster, -1)
        self._bind(provider, after.cluster, 1)
        if after.state in TRANSITIONAL:
            self._leaving[after.id] = provider
        else:
            self._leaving.pop(after.id, None)

    def count(self, provider: str) -> int:
        return self.state.machines.get(provider, 0)

    def has_bound(self, provider: str, cluster: str) -> bool:
        """Whether the cluster has machines at the provider."""
        return (provider, cluster) in self.state.bound

    def _bind(self, provider: str, cluster: str, by: int) -> None:
        if not cluster:
            return
        count = self.state.bound.get((provider, cluster), 0) + by
        if count:
            self.state.bound[provider, cluster] = count
        else:
            del self.state.bound[provider, cluster]
