"""Machines as their clusters see them: frames, the names of their nodes, and whether those are Ready."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from bigfleet.shard.core.events import NodeReadiness
from bigfleet.shard.core.fleet import Fleet
from bigfleet.shard.core.settings import MAX_NODE_FRAMES
from bigfleet_base.model import Machine, MachineState
from bigfleet_base.model.frames import NodeState
from bigfleet_base.model.requirement import INSTANCE_TYPE_KEY, ZONE_KEY


def node_labels(machine: Machine) -> Mapping[str, str]:
    """The labels an operator is told: the provider's and the two that every node has."""
    labels = dict(machine.labels)
    if machine.instance_type:
        labels[INSTANCE_TYPE_KEY] = machine.instance_type
    if machine.zone:
        labels[ZONE_KEY] = machine.zone
    return labels


def node_state(machine: Machine, cluster: str, state: MachineState, node_name: str) -> NodeState:
    """The frame for a cluster, which need not be the one the machine is bound to by now (N1)."""
    return NodeState(
        machine_id=machine.id,
        cluster=cluster,
        state=state,
        provider_id=machine.host.ref,
        last_error=machine.last_error,
        labels=node_labels(machine),
        resources=machine.alloc,
        node_name=node_name,
    )


def is_news(before: Machine | None, after: Machine | None) -> bool:
    """Whether a write changes what a cluster is told of: state or assignment, not price or labels (§8.2)."""
    return before is None or after is None or _told(before) != _told(after)


def _told(machine: Machine) -> tuple[object, ...]:
    return (
        machine.state,
        machine.cluster,
        machine.assigned_priority,
        machine.assigned_interruption_penalty,
        machine.assigned_reclamation_penalty,
        machine.assigned_need_fingerprint,
        machine.assigned_group,
    )


@dataclass(slots=True)
class NodesState:
    names: dict[str, str] = field(default_factory=dict)
    """Of machines whose node an operator has named, while they are bound to its cluster."""
    unready: set[str] = field(default_factory=set)
    """Those of them whose node is not Ready."""
    early: dict[str, dict[str, tuple[str, bool]]] = field(default_factory=dict)
    """What connected clusters told of machines that no List has shown yet, by cluster and machine: operators
    name their nodes right after Hello, and the first List may take longer. ``MAX_NODE_FRAMES`` each."""


class Nodes:
    """What operators tell of nodes. It never changes a machine's state (shard.md §20 item 12)."""

    def __init__(self, fleet: Fleet, state: NodesState) -> None:
        self._fleet = fleet
        self.state = state
        self._unready = sum(self._counts(fleet.machine(machine_id)) for machine_id in state.unready)

    def told(self, cluster: str, event: NodeReadiness, *, is_complete: bool) -> None:
        """Take a report, if the machine is the cluster's; until the inventory is complete it may yet be."""
        machine = self._fleet.machine(event.machine_id)
        if machine is not None and machine.cluster == cluster:
            self._take(machine, event.node_name, event.ready)
        elif machine is None and not is_complete:
            early = self.state.early.setdefault(cluster, {})
            if event.machine_id in early or len(early) < MAX_NODE_FRAMES:
                early[event.machine_id] = event.node_name, event.ready

    def forget_early(self, cluster: str) -> None:
        self.state.early.pop(cluster, None)

    def all_listed(self) -> None:
        self.state.early.clear()

    def changed(self, before: Machine | None, after: Machine | None) -> None:
        """A machine was written; its node is forgotten with its binding."""
        self._unready -= self._counts(before)
        if before is not None and (after is None or after.cluster != before.cluster):
            self.state.names.pop(before.id, None)
            self.state.unready.discard(before.id)
        self._unready += self._counts(after)
        if before is None and after is not None and (early := self.state.early.get(after.cluster)):
            told = early.pop(after.id, None)
            if told is not None:
                self._take(after, *told)

    def name(self, machine_id: str) -> str:
        """The name of its node; empty while nobody has told it."""
        return self.state.names.get(machine_id, "")

    def unready_count(self) -> int:
        """Configured machines whose node the operator sees missing or not Ready."""
        return self._unready

    def _take(self, machine: Machine, node_name: str, ready: bool) -> None:
        if node_name:
            self.state.names[machine.id] = node_name
        self._unready -= self._counts(machine)
        if ready:
            self.state.unready.discard(machine.id)
        else:
            self.state.unready.add(machine.id)
        self._unready += self._counts(machine)

    def _counts(self, machine: Machine | None) -> bool:
        return (
            machine is not None
            and machine.state is MachineState.CONFIGURED
            and machine.id in self.state.unready
        )
