"""Every write to the machines goes through here, so that nobody who must hear of one is forgotten."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from bigfleet.engine.options import SECOND
from bigfleet.engine.records import Sidecar
from bigfleet.shard.core.context import Context
from bigfleet_base.model import Machine, MachineState, Preemptor
from bigfleet_base.telemetry.catalogue import shard as series

TRANSITIONAL: Final = frozenset(
    {MachineState.CREATING, MachineState.CONFIGURING, MachineState.DRAINING, MachineState.DELETING}
)

_TIMED: Final = {
    (MachineState.CREATING, MachineState.IDLE): series.PROVISION_PHASE,
    (MachineState.CONFIGURING, MachineState.CONFIGURED): series.CONFIGURE_PHASE,
    (MachineState.DRAINING, MachineState.IDLE): series.DRAIN_PHASE,
}

Listener = Callable[[Machine | None, Machine | None], None]
"""Told of a write with the record before and after it; None where there is none."""


@dataclass(slots=True)
class FleetState:
    since: dict[str, int] = field(default_factory=dict)
    """Of machines in transition: when this process first saw them in that state."""
    touched: dict[str, int] = field(default_factory=dict)
    """When the executor last wrote a machine. An answer to a List that was asked for earlier knows less."""


class Fleet:
    """The machines of the shard, as everybody but the engine sees them."""

    def __init__(self, ctx: Context, state: FleetState) -> None:
        self._ctx = ctx
        self._inventory = ctx.engine.inventory
        self.state = state
        self.listeners: list[Listener] = []

    def machine(self, machine_id: str) -> Machine | None:
        """The record as it is now, changes during a running cycle included."""
        entry = self._inventory.find(machine_id)
        return None if entry is None else entry.machine

    def sidecar(self, machine_id: str) -> Sidecar:
        return self._inventory.entry(machine_id).sidecar

    def provider(self, machine_id: str) -> str:
        return self._inventory.provider(machine_id)

    def command(
        self,
        machine: Machine,
        *,
        preempted_for: Preemptor | None = None,
        drain_deadline: int | None = None,
    ) -> None:
        """The executor starts or ends a transition: over an edge of the table."""
        before = self.machine(machine.id)
        self._inventory.apply(
            machine, self._ctx.now, started=True, preempted_for=preempted_for, drain_deadline=drain_deadline
        )
        self.state.touched[machine.id] = self._ctx.now
        self._changed(before, machine)

    def take_back(self, machine: Machine) -> None:
        """The executor returns a machine to the state its operation found it in."""
        before = self.machine(machine.id)
        self._inventory.adopt(machine, self._ctx.now)
        self.state.touched[machine.id] = self._ctx.now
        self._changed(before, machine)

    def observe(self, machine: Machine, preempted_for: Preemptor | None = None) -> None:
        """Write what a provider's record shows, over an edge or not."""
        before = self.machine(machine.id)
        self._inventory.adopt(machine, self._ctx.now, preempted_for)
        self._changed(before, machine)

    def insert(self, machine: Machine, provider: str, preempted_for: Preemptor | None = None) -> None:
        self._inventory.insert(
            machine, self._ctx.now, Sidecar(provider=provider, preempted_for=preempted_for)
        )
        self._changed(None, machine)

    def remove(self, machine_id: str) -> None:
        before = self.machine(machine_id)
        self._inventory.remove(machine_id)
        self.state.touched.pop(machine_id, None)
        self._changed(before, None)

    def _changed(self, before: Machine | None, after: Machine | None) -> None:
        machine = after or before
        assert machine is not None
        since = self.state.since.get(machine.id)
        if before is not None and after is not None and since is not None:
            # The clock stops when the end is seen, not when a provider has said that it will come.
            timed = _TIMED.get((before.state, after.state))
            if timed is not None:
                self._ctx.observe(timed, (self._ctx.now - since) / SECOND)
        if after is None or after.state not in TRANSITIONAL:
            self.state.since.pop(machine.id, None)
        elif before is None or before.state is not after.state:
            self.state.since[machine.id] = self._ctx.now
        for listener in self.listeners:
            listener(before, after)
