"""The inventory: machine records and what is remembered beside them (§2.5, §3, §4)."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import cached_property
from typing import Final

from bigfleet_base.model import CapacityType, IllegalTransitionError, Machine, MachineState
from bigfleet_base.model.lifecycle import check, edge
from tests.oracle.results import Key, Memory

IDLE: Final = MachineState.IDLE
SPECULATIVE: Final = MachineState.SPECULATIVE
CREATING: Final = MachineState.CREATING
CONFIGURING: Final = MachineState.CONFIGURING
CONFIGURED: Final = MachineState.CONFIGURED
DRAINING: Final = MachineState.DRAINING
DELETING: Final = MachineState.DELETING

_TAKEN_BACK: Final = frozenset({(CREATING, SPECULATIVE), (DRAINING, CONFIGURED)})
"""A call that was not sent or had no effect (shard.md §6.1), beside the edges of the table."""


class World:
    """Machines by id with their sidecars; every write is checked."""

    def __init__(self) -> None:
        self._machines: dict[str, Machine] = {}
        self._memory: dict[str, Memory] = {}
        self._undeletable: set[tuple[str, CapacityType]] = set()

    def insert(self, machine: Machine, now: int, *, preempted_for: Key | None = None) -> None:
        """A machine seen for the first time; ``preempted_for`` when the provider echoed it (§2.5)."""
        if machine.id in self._machines:
            raise ValueError(f"machine {machine.id!r} is known already")
        check(machine)
        self._machines[machine.id] = machine
        self._memory[machine.id] = Memory(
            idle_since=now if machine.state is IDLE else None,
            preempted_for=preempted_for if machine.state is DRAINING else None,
        )

    def apply(
        self,
        machine: Machine,
        now: int,
        *,
        started: bool = False,
        preempted_for: Key | None = None,
        drain_deadline: int | None = None,
        delete_unsupported: bool = False,
        observed: bool = False,
    ) -> None:
        """A new record of a known machine (§3, §4): over an edge, or a merge of fields in one state.

        ``started`` says that this process began the transition, ``observed`` that reconcile adopts what
        the provider says whether or not the table has such an edge (shard.md Q2).
        """
        before = self._machines[machine.id]
        check(machine)
        moved = machine.state is not before.state
        if not observed:
            if moved and (before.state, machine.state) not in _TAKEN_BACK:
                edge(before.state, machine.state)
            if not moved and machine.cluster != before.cluster:
                raise IllegalTransitionError(f"machine {machine.id!r} changes clusters without Idle")
        if moved:
            drained = before.state is DRAINING and machine.state is IDLE
            self._memory[machine.id] = Memory(
                idle_since=now if machine.state is IDLE else None,
                last_reclamation_value=before.assigned_reclamation_penalty if drained else 0.0,
                preempted_for=preempted_for if machine.state is DRAINING else None,
                drain_deadline=drain_deadline if machine.state is DRAINING else None,
                seen_start=started and machine.state in (CREATING, DRAINING),
            )
        if delete_unsupported:
            self._undeletable.add((machine.host.provider, machine.capacity_type))
        self._machines[machine.id] = machine

    def remove(self, machine_id: str) -> None:
        del self._machines[machine_id], self._memory[machine_id]

    def machines(self) -> dict[str, Machine]:
        return dict(self._machines)

    def memory(self, machine_id: str) -> Memory:
        machine = self._machines[machine_id]
        unsupported = (machine.host.provider, machine.capacity_type) in self._undeletable
        return replace(self._memory[machine_id], not_deletable=unsupported)

    def snapshot(self) -> "Snapshot":
        return Snapshot(self.machines(), {i: self.memory(i) for i in self._machines})


class Snapshot:
    """One consistent, unchanging view of the inventory with the orders of §4."""

    def __init__(self, machines: Mapping[str, Machine], memory: Mapping[str, Memory]) -> None:
        self.machines: Final = machines
        self.memory: Final = memory

    @cached_property
    def _by_state(self) -> dict[MachineState, list[Machine]]:
        found: dict[MachineState, list[Machine]] = {state: [] for state in MachineState}
        for machine_id in sorted(self.machines):
            machine = self.machines[machine_id]
            found[machine.state].append(machine)
        return found

    def in_state(self, *states: MachineState) -> list[Machine]:
        """Machines of the states named, state by state, each by id."""
        return [m for state in states for m in self._by_state[state]]

    @cached_property
    def _bound(self) -> dict[tuple[str, MachineState], list[Machine]]:
        found: dict[tuple[str, MachineState], list[Machine]] = {}
        for machine in keep_order(self.in_state(CONFIGURED, CONFIGURING)):
            found.setdefault((machine.cluster, machine.state), []).append(machine)
        return found

    def bound(self, cluster: str, state: MachineState) -> list[Machine]:
        """The cluster's machines in Configured or Configuring, in keep order."""
        return self._bound.get((cluster, state), [])

    @cached_property
    def serving_clusters(self) -> list[str]:
        """Clusters with Configured machines, by id."""
        return sorted(cluster for cluster, state in self._bound if state is CONFIGURED)


def keep_order(machines: Iterable[Machine]) -> list[Machine]:
    """Cheapest first, then the one worth most to its tenant, then by id (§4)."""
    return sorted(machines, key=lambda m: (m.price_per_hour, -m.assigned_reclamation_penalty, m.id))
