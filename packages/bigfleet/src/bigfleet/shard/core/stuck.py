"""Machines that have been in transition for too long (shard.md X8)."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from bigfleet.engine.options import RECLAIM_GRACE_S, SECOND, drain_grace_s
from bigfleet.shard.core.context import Context
from bigfleet.shard.core.effects import LogLevel
from bigfleet.shard.core.fleet import TRANSITIONAL, Fleet
from bigfleet.shard.core.settings import MINUTE
from bigfleet_base.model import Machine, MachineState
from bigfleet_base.telemetry.catalogue import shard as series

BUDGETS: Final = {
    MachineState.CREATING: 20 * MINUTE,
    MachineState.CONFIGURING: 30 * MINUTE,
    MachineState.DRAINING: 15 * MINUTE,
    MachineState.DELETING: 20 * MINUTE,
}
"""How long a transition may take; a drain its grace in addition."""
LOOK_EVERY: Final = 10 * SECOND
CHECK_EVERY: Final = MINUTE
"""Between two Gets of one stuck machine (ruling R17)."""
CHECKS_A_SECOND: Final = 10


@dataclass(slots=True)
class StuckState:
    checked: dict[str, int] = field(default_factory=dict)
    """When a stuck machine was last asked for. At most the machines in transition."""


class Stuck:
    """Finds machines whose transition does not end. It never decides anything about them."""

    def __init__(self, ctx: Context, fleet: Fleet, state: StuckState) -> None:
        self._ctx = ctx
        self._fleet = fleet
        self.state = state
        self._since: dict[MachineState, dict[str, int]] = {s: {} for s in MachineState if s in TRANSITIONAL}
        """The fleet's own ``since`` by state, the oldest first."""
        for machine_id, since in sorted(fleet.state.since.items(), key=lambda item: item[1]):
            machine = fleet.machine(machine_id)
            assert machine is not None
            self._since[machine.state][machine_id] = since

    def changed(self, before: Machine | None, after: Machine | None) -> None:
        """A machine was written."""
        left = before.state if before is not None else None
        entered = after.state if after is not None else None
        if left is entered:
            return
        if before is not None and left in TRANSITIONAL:
            self._since[before.state].pop(before.id, None)
            self.state.checked.pop(before.id, None)
        if after is not None and entered in TRANSITIONAL:
            self._since[after.state][after.id] = self._ctx.now

    def to_check(self) -> tuple[list[str], bool]:
        """Stuck machines to be asked for now, and whether there are more."""
        now, checked = self._ctx.now, self.state.checked
        due = [
            machine_id
            for state in self._since
            for machine_id in self._stuck(state)
            if now - checked.get(machine_id, -CHECK_EVERY) >= CHECK_EVERY
        ]
        # Those that have waited longest first: what is due again must not hide what never had its turn.
        due.sort(key=lambda machine_id: checked.get(machine_id, -CHECK_EVERY))
        for machine_id in due[:CHECKS_A_SECOND]:
            checked[machine_id] = now
        return due[:CHECKS_A_SECOND], len(due) > CHECKS_A_SECOND

    def answered(self, machine_id: str) -> None:
        """The provider was asked for a machine; say so if that did not help."""
        if machine_id not in self.state.checked:
            return
        machine = self._fleet.machine(machine_id)
        assert machine is not None
        age = self._ctx.now - self._since[machine.state][machine_id]
        self._ctx.log(
            LogLevel.WARN,
            "machine stuck",
            machine=machine_id,
            state=machine.state.title,
            age_s=age // SECOND,
            timeout_s=self._budget(machine_id, machine.state) // SECOND,
        )

    def show_gauges(self) -> None:
        oldest: dict[tuple[str, ...], float] = {}
        stuck: dict[tuple[str, ...], float] = {}
        for state, since in self._since.items():
            if since:
                oldest[(state.title,)] = (self._ctx.now - next(iter(since.values()))) / SECOND
            stuck[(state.title,)] = sum(1 for _ in self._stuck(state))
        self._ctx.show(series.INVENTORY_OLDEST_TRANSITION, oldest)
        self._ctx.show(series.STUCK_TRANSITIONS, stuck)

    def _stuck(self, state: MachineState) -> Iterator[str]:
        for machine_id, since in self._since[state].items():
            age = self._ctx.now - since
            if age <= BUDGETS[state]:
                return
            if state is not MachineState.DRAINING or age > self._budget(machine_id, state):
                yield machine_id

    def _budget(self, machine_id: str, state: MachineState) -> int:
        budget = BUDGETS[state]
        return budget + self._grace(machine_id) if state is MachineState.DRAINING else budget

    def _grace(self, machine_id: str) -> int:
        """Of a drain that this process did not start, what its instruction says (shard.md §8.1)."""
        sidecar = self._fleet.sidecar(machine_id)
        if sidecar.drain_deadline is not None:
            return sidecar.drain_deadline - self._since[MachineState.DRAINING][machine_id]
        machine = self._fleet.machine(machine_id)
        assert machine is not None
        if sidecar.preempted_for is None:
            return RECLAIM_GRACE_S * SECOND
        return drain_grace_s(sidecar.preempted_for.priority - machine.assigned_priority) * SECOND
