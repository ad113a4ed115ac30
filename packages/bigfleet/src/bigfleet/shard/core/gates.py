"""What is not started now although it was decided (shard.md L4, L7, L9, §8.1)."""

from collections import Counter
from dataclasses import dataclass, field

from bigfleet.engine.actions import Action, ActionKind
from bigfleet.shard.core.context import Context
from bigfleet.shard.core.execute import Executor
from bigfleet.shard.core.outbox import Outboxes
from bigfleet.shard.core.reconcile import Reconcile
from bigfleet.shard.core.settings import SETTLING_LIMIT
from bigfleet_base.model import MachineState
from bigfleet_base.telemetry.catalogue import shard as series

_ACQUIRING = frozenset({ActionKind.BOOTSTRAP, ActionKind.PROVISION, ActionKind.PREEMPT})
_DRAINING = frozenset({ActionKind.PREEMPT, ActionKind.RECLAIM})


@dataclass(slots=True)
class GatesState:
    settled: bool = False
    """Whether every cluster that a machine names has reported, or the wait for them is over."""
    listed_at: int | None = None
    """When every provider had been listed once."""
    named: set[str] = field(default_factory=set)
    """Clusters that machine records named then."""


class Gates:
    """Leaves out of a cycle's actions what must wait; what is left out is decided again."""

    def __init__(
        self, ctx: Context, reconcile: Reconcile, outboxes: Outboxes, executor: Executor, state: GatesState
    ) -> None:
        self._ctx = ctx
        self._reconcile = reconcile
        self._outboxes = outboxes
        self._executor = executor
        self.state = state
        self._deferred = 0
        """Used up by the event that set it."""

    def listed(self) -> None:
        """Every provider has been listed, or the wait for the last one is over."""
        if self.state.listed_at is None:
            self.state.listed_at = self._ctx.now
            self.state.named = self._clusters_named()
            self.look()

    def look(self) -> None:
        """See whether the start is over (L7)."""
        state = self.state
        if state.settled or state.listed_at is None:
            return
        state.settled = (
            self._ctx.settings.stepped
            or state.named <= self._ctx.engine.needs.reported
            or self._ctx.now - state.listed_at >= SETTLING_LIMIT
        )

    def admit(self, actions: list[Action]) -> list[Action]:
        """The actions that may start now."""
        self.look()
        deferred: Counter[str] = Counter()
        admitted = []
        drains: Counter[str] = Counter()
        held_back = self._executor.held_back()
        for action in actions:
            reason = self._reason(action, drains, held_back)
            if reason:
                deferred[reason] += 1
            else:
                admitted.append(action)
        for reason, count in sorted(deferred.items()):
            self._ctx.count(series.ACTIONS_DEFERRED, reason, by=count)
        self._deferred = deferred.total()
        return self._executor.admit(admitted)

    def take_deferred(self) -> int:
        """How many actions of the cycle at hand were left out."""
        deferred, self._deferred = self._deferred, 0
        return deferred

    def _reason(self, action: Action, drains: Counter[str], held_back: dict[str, int]) -> str:
        if not self._reconcile.acting or self._reconcile.withholds(action):
            return "provider"
        if action.kind in _ACQUIRING and not self.state.settled:
            return "settling"
        if action.kind in _DRAINING:
            if not self._outboxes.may_reclaim(action.cluster, drains[action.cluster]):
                return "outbox"
            drains[action.cluster] += 1
        if held_back:
            provider = self._reconcile.provider_of(action.machine_id)
            if provider in held_back:
                if held_back[provider] == 0:
                    return "provider"
                held_back[provider] -= 1
        return ""

    def _clusters_named(self) -> set[str]:
        inventory = self._ctx.engine.inventory
        named: set[str] = set()
        for state in MachineState:
            for cell in inventory.cells(state):
                stamp = cell.key.preempted_for
                named.update((cell.binding.cluster, cell.binding.target_cluster))
                named.add("" if stamp is None else stamp.cluster)
        named.discard("")
        return named
