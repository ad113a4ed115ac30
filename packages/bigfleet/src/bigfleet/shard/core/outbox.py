"""What operators are told: queued per cluster, sent as their sessions have room (shard.md §8.1, §8.2, Q8).

Nothing here depends on a stream's life. A session that opens is given what is unanswered, the last word on
machines that left its cluster, every machine it has now, and the mark that this was all; then it hears of
changes. A frame of a bound machine is made from the inventory when it is sent, so what waits is an id.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final

from bigfleet.engine.options import RECLAIM_GRACE_S, SECOND, drain_grace_s
from bigfleet.shard.core.context import Context, Timer
from bigfleet.shard.core.effects import SendFrames
from bigfleet.shard.core.events import NodeReadiness
from bigfleet.shard.core.fleet import Fleet
from bigfleet.shard.core.mailbox import Errand, FrameClass, Mailbox
from bigfleet.shard.core.nodes import Nodes, NodesState, is_news, node_state
from bigfleet.shard.core.queue import KeyQueue
from bigfleet.shard.core.replay import Replay, bound_machines
from bigfleet.shard.core.settings import CREDIT, MAX_RECLAIMS, MINUTE
from bigfleet_base.model import Machine, MachineState
from bigfleet_base.model.frames import (
    AvailableCapacity,
    BootstrapRequest,
    Frame,
    HelloAck,
    NodeState,
    ReclaimInstruction,
    Resync,
    RollupAck,
)
from bigfleet_base.telemetry.catalogue import shard as series

GONE: Final = "machine no longer reported by provider"
LAST_WORD_AFTER: Final = 10 * MINUTE
"""How long a cluster sees a machine it has lost as Failed before the object ends (Q8)."""
MAX_FAREWELLS: Final = 10_000
INSTRUCTION_SLACK: Final = 10 * MINUTE
"""How long after its grace an instruction is still worth delivering."""
FLUSH_FRAMES: Final = 500
"""Frames of state and hints that one event sends: when many replays begin at once they take turns, and no
event takes long."""


class Lists(StrEnum):
    """What is known of the machines."""

    AWAITED = "awaited"
    INCOMPLETE = "incomplete"
    """A provider has not been listed, and is no longer waited for (L9)."""
    COMPLETE = "complete"


@dataclass(slots=True)
class Drain:
    """The instruction of a machine that is Draining."""

    cluster: str
    instruction_id: str
    expires: int
    acked: bool = False


@dataclass(slots=True)
class Farewell:
    """A cluster that shows a machine as Failed which is not bound to it any more."""

    frame: NodeState
    due: int


@dataclass(slots=True)
class OutboxesState:
    boxes: dict[str, Mailbox] = field(default_factory=dict)
    """By cluster: those with a session (``MAX_CLUSTERS``) and those that machine records name."""
    urgent: dict[str, None] = field(default_factory=dict)
    """Clusters with acknowledgements or errands to send."""
    dirty: dict[str, None] = field(default_factory=dict)
    """Clusters with anything else to send; the next in turn first."""
    lists: Lists = Lists.AWAITED
    halted: bool = False
    made: int = 0
    """Instruction ids handed out."""
    drains: dict[str, Drain] = field(default_factory=dict)
    """By machine, while it is Draining for that cluster."""
    echoed: dict[str, str] = field(default_factory=dict)
    """Instruction ids that an earlier process gave machines which are still Draining."""
    strays: list[str] = field(default_factory=list)
    """Machines that the event at hand has shown in a drain that is not ours."""
    farewells: dict[str, Farewell] = field(default_factory=dict)
    """By machine, the oldest first; at most ``MAX_FAREWELLS``."""
    bound_in: int = 0
    """The cycle that ``newly_bound`` is of."""
    newly_bound: dict[str, dict[str, None]] = field(default_factory=dict)
    """Machines bound since the last cycle began, by cluster: the index of the inventory has them for certain
    when the next one begins, not before."""
    nodes: NodesState = field(default_factory=NodesState)


class Outboxes:
    """The outboxes of all clusters. An event costs what it changes, however many clusters there are."""

    def __init__(self, ctx: Context, fleet: Fleet, state: OutboxesState) -> None:
        self._ctx = ctx
        self._fleet = fleet
        self._nodes = Nodes(fleet, state.nodes)
        self.state = state
        self.is_accepted: Callable[[str], bool] = lambda _: True
        """Whether a provider has accepted the Configure of a Configuring machine; set by ``core``."""
        self._sizes: dict[str, tuple[int, ...]] = {}
        self._total = [0] * len(FrameClass)
        self._resized = dict.fromkeys(state.boxes)

    # Sessions

    def opened(self, cluster: str, session: int) -> None:
        box = self._box(cluster)
        box.close()
        box.open(session)
        box.put_ack(HelloAck())
        self._nodes.forget_early(cluster)
        self.state.urgent[cluster] = None

    def closed(self, cluster: str) -> None:
        box = self._box(cluster)
        box.close()
        self._nodes.forget_early(cluster)
        if box.is_empty():
            del self.state.boxes[cluster]

    def writable(self, cluster: str, frames: int) -> None:
        """The session has written frames and may be given as many more."""
        box = self._box(cluster)
        box.credit += frames
        assert box.credit <= CREDIT, "more frames written than were given"
        self.state.urgent[cluster] = None

    def lists_complete(self) -> None:
        """Every provider has been listed: replays may begin, and mark their end."""
        if self.state.lists is not Lists.COMPLETE:
            self.state.lists = Lists.COMPLETE
            self._nodes.all_listed()
            self._begin_replays()

    def lists_incomplete(self) -> None:
        """A provider is not waited for any longer: replays may begin, but nothing is swept by them."""
        if self.state.lists is Lists.AWAITED:
            self.state.lists = Lists.INCOMPLETE
            self._begin_replays()

    # Acknowledgements and errands

    def ack(self, cluster: str, frame: HelloAck | RollupAck) -> None:
        if self._box(cluster).put_ack(frame):
            self._ctx.count(series.OUTBOX_DROPPED, FrameClass.ACK.value)
        self.state.urgent[cluster] = None

    def bootstrap(self, cluster: str, frame: BootstrapRequest) -> None:
        box = self._box(cluster)
        assert len(box.bootstraps) < self._ctx.settings.concurrency, "more Bootstraps than may be outstanding"
        box.put_bootstrap(frame)
        self.state.urgent[cluster] = None

    def withdraw_bootstrap(self, cluster: str, request_id: str) -> None:
        """The request was answered, or its operation has ended."""
        if cluster in self.state.boxes:
            self._box(cluster).take_bootstrap(request_id)

    def new_instruction_id(self) -> str:
        self.state.made += 1
        return f"{self._ctx.settings.shard_id}-{self._ctx.settings.epoch}-{self.state.made}"

    def reclaim(self, cluster: str, machine_id: str, frame: ReclaimInstruction) -> None:
        """Queue an instruction, until it is acknowledged or its drain ends; ask ``may_reclaim`` first."""
        self._end_drain(machine_id)
        expires = self._ctx.now + frame.grace_s * SECOND + INSTRUCTION_SLACK
        self.state.drains[machine_id] = Drain(cluster, frame.instruction_id, expires)
        self._ctx.timers.at(expires, Timer.INSTRUCTION, machine_id)
        self._box(cluster).put_reclaim(machine_id, frame)
        self.state.urgent[cluster] = None

    def withdraw_reclaim(self, cluster: str, instruction_id: str) -> None:
        errand = self._take_reclaim(cluster, instruction_id)
        if errand is not None:
            self._end_drain(errand.machine_id)

    def reclaim_acked(self, cluster: str, instruction_id: str) -> bool:
        """Returns whether the instruction waited for it."""
        errand = self._take_reclaim(cluster, instruction_id)
        if errand is not None:
            self.state.drains[errand.machine_id].acked = True
        return errand is not None

    def may_reclaim(self, cluster: str, planned: int = 0) -> bool:
        """Whether there is room for another instruction, beside those that are planned already."""
        box = self.state.boxes.get(cluster)
        return (0 if box is None else len(box.reclaims)) + planned < MAX_RECLAIMS

    def echoed(self, machine_id: str, instruction_id: str) -> None:
        """A provider's record says under which instruction a machine is Draining; call it after the write."""
        machine = self._fleet.machine(machine_id)
        if machine is not None and machine.state is MachineState.DRAINING and instruction_id:
            self.state.echoed[machine_id] = instruction_id

    def halt_instructions(self, stopped: bool) -> None:
        """Whether errands stay here: a fenced process, or one that only watches, must not order anybody."""
        self.state.halted = stopped
        if not stopped:
            self.state.urgent.update(dict.fromkeys(self.state.boxes))

    # State and hints

    def changed(self, before: Machine | None, after: Machine | None) -> None:
        """A machine was written; to be registered with the fleet."""
        machine = after or before
        assert machine is not None
        self._follow_drain(machine.id, before, after)
        if is_news(before, after):
            was_shown = self._end_farewell(machine.id, after)
            if before is not None and before.cluster and (after is None or after.cluster != before.cluster):
                self._tell_left(before, after)
            if after is not None and after.cluster:
                self._tell_bound(before, after, was_shown=was_shown)
        self._nodes.changed(before, after)

    def available(self, cluster: str, frame: AvailableCapacity) -> None:
        """Queue a hint; a cluster that is away is told anew when it returns (S7)."""
        box = self.state.boxes.get(cluster)
        if box is None or box.session is None:
            return
        if frame.fingerprint in box.available:
            self._ctx.count(series.OUTBOX_SUPERSEDED, FrameClass.AVAILABLE.value)
        if self._box(cluster).put_hint(frame):
            self._ctx.count(series.OUTBOX_DROPPED, FrameClass.AVAILABLE.value)
        self.state.dirty[cluster] = None

    def readiness(self, cluster: str, event: NodeReadiness) -> None:
        """An operator tells a node's name and whether it is Ready."""
        self._nodes.told(cluster, event, is_complete=self.state.lists is Lists.COMPLETE)

    def node_name(self, machine_id: str) -> str:
        """Empty while nobody has told it."""
        return self._nodes.name(machine_id)

    def unready_count(self) -> int:
        return self._nodes.unready_count()

    # Time, sending, gauges

    def timer(self, timer: Timer, key: str) -> None:
        match timer:
            case Timer.INSTRUCTION:
                drain = self.state.drains.get(key)
                if drain is not None and drain.expires <= self._ctx.now and not drain.acked:
                    self._end_drain(key)
            case Timer.REMOVED:
                farewell = self.state.farewells.get(key)
                if farewell is not None and farewell.due <= self._ctx.now:
                    self._say_last_word(key)
            case Timer.OUTBOX:
                # ``flush`` goes on at the end of this very event.
                pass
            case _:
                raise AssertionError(f"{timer} is not the outboxes'")

    def flush(self) -> None:
        """Send what there is room for; at the end of every event."""
        strays, self.state.strays = self.state.strays, []
        for machine_id in strays:
            self._instruct(machine_id)
        urgent, self.state.urgent = self.state.urgent, {}
        room = FLUSH_FRAMES
        for cluster in urgent:
            room -= self._send(cluster, room)
        while self.state.dirty and room:
            cluster = next(iter(self.state.dirty))
            del self.state.dirty[cluster]
            room -= self._send(cluster, room)
        if self.state.dirty:
            self._ctx.timers.at(self._ctx.now, Timer.OUTBOX)

    def depths(self) -> dict[FrameClass, int]:
        """Frames in all outboxes; what a replay has yet to show is not in one."""
        nothing = (0,) * len(FrameClass)
        for cluster in self._resized:
            box = self.state.boxes.get(cluster)
            before = self._sizes.pop(cluster, nothing)
            after = nothing if box is None else box.depths()
            if box is not None:
                self._sizes[cluster] = after
            self._total = [n + b - a for n, a, b in zip(self._total, before, after, strict=True)]
        self._resized.clear()
        return dict(zip(FrameClass, self._total, strict=True))

    def _box(self, cluster: str) -> Mailbox:
        self._resized[cluster] = None
        return self.state.boxes.setdefault(cluster, Mailbox())

    def _begin_replays(self) -> None:
        for cluster, box in self.state.boxes.items():
            if box.replay is not None:
                self.state.dirty[cluster] = None

    # Machines that change or leave

    def _tell_bound(self, before: Machine | None, after: Machine, *, was_shown: bool) -> None:
        is_first_sight = before is None and self.state.lists is not Lists.COMPLETE
        box = self.state.boxes.get(after.cluster)
        if is_first_sight and (box is None or box.session is None):
            # An earlier process has announced it, and the replay will show it.
            return
        box = self._box(after.cluster)
        if before is None or before.cluster != after.cluster:
            self._remember_binding(before, after)
            if not (is_first_sight or was_shown or after.id in box.left):
                box.unannounced.add(after.id)
        if box.replay is not None and box.replay.covers(after.id):
            box.drop_node(after.id)
        else:
            self._queue_node(after.cluster, box, after.id, None)

    def _remember_binding(self, before: Machine | None, after: Machine) -> None:
        if before is None:
            # Only a List inserts, and none is merged while a cycle holds back the index.
            return
        if self.state.bound_in != self._ctx.cycle:
            self.state.bound_in = self._ctx.cycle
            self.state.newly_bound.clear()
        self.state.newly_bound.setdefault(after.cluster, {})[after.id] = None

    def _tell_left(self, before: Machine, after: Machine | None) -> None:
        cluster, machine_id, name = before.cluster, before.id, self._nodes.name(before.id)
        box = self._box(cluster)
        if machine_id in box.unannounced:
            box.unannounced.discard(machine_id)
            box.drop_node(machine_id)
            return
        if after is None:
            frame = node_state(replace(before, last_error=GONE), cluster, MachineState.FAILED, name)
        else:
            # What a machine does for another cluster is not this one's: to it, the machine is drained.
            state = MachineState.IDLE if after.cluster else after.state
            frame = node_state(after, cluster, state, name)
        self._queue_node(cluster, box, machine_id, frame)
        if frame.state is MachineState.FAILED:
            self._begin_farewell(frame)

    def _queue_node(self, cluster: str, box: Mailbox, machine_id: str, last_word: NodeState | None) -> None:
        if machine_id in box.nodes:
            self._ctx.count(series.OUTBOX_SUPERSEDED, FrameClass.NODE.value)
        if box.put_node(machine_id, last_word):
            self._ctx.count(series.OUTBOX_DROPPED, FrameClass.NODE.value)
        if box.session is not None:
            self.state.dirty[cluster] = None

    def _begin_farewell(self, frame: NodeState) -> None:
        """Failed leaves the object standing, and nothing that happens to the machine will reach the cluster:
        end it after a while."""
        if len(self.state.farewells) >= MAX_FAREWELLS:
            self._say_last_word(next(iter(self.state.farewells)))
        due = self._ctx.now + LAST_WORD_AFTER
        self.state.farewells[frame.machine_id] = Farewell(frame, due)
        self._ctx.timers.at(due, Timer.REMOVED, frame.machine_id)

    def _end_farewell(self, machine_id: str, after: Machine | None) -> bool:
        """Look at a machine that was written: True if it has come back to the cluster that shows it as
        Failed. Elsewhere, or unbound and well, it ends the object by its own state."""
        farewell = self.state.farewells.get(machine_id)
        if farewell is None or after is None:
            return False
        is_back = after.cluster == farewell.frame.cluster
        if not is_back:
            if after.state is MachineState.FAILED and not after.cluster:
                return False
            state = MachineState.IDLE if after.cluster else after.state
            self._tell_end(replace(farewell.frame, state=state, last_error=""))
        del self.state.farewells[machine_id]
        return is_back

    def _say_last_word(self, machine_id: str) -> None:
        farewell = self.state.farewells.pop(machine_id)
        self._tell_end(replace(farewell.frame, state=MachineState.DELETING))

    def _tell_end(self, frame: NodeState) -> None:
        self._queue_node(frame.cluster, self._box(frame.cluster), frame.machine_id, frame)

    # Drains

    def _follow_drain(self, machine_id: str, before: Machine | None, after: Machine | None) -> None:
        draining_for = after.cluster if after and after.state is MachineState.DRAINING else None
        drain = self.state.drains.get(machine_id)
        if drain is not None and drain.cluster != draining_for:
            self._end_drain(machine_id)
        if after is None or draining_for is None:
            self.state.echoed.pop(machine_id, None)
        elif before is None or (before.state, before.cluster) != (after.state, after.cluster):
            # Looked at when the event is over: its echoed id is told after the write.
            self.state.strays.append(machine_id)

    def _end_drain(self, machine_id: str) -> None:
        drain = self.state.drains.pop(machine_id, None)
        if drain is not None:
            self._take_reclaim(drain.cluster, drain.instruction_id)

    def _take_reclaim(self, cluster: str, instruction_id: str) -> Errand | None:
        if cluster not in self.state.boxes:
            return None
        return self._box(cluster).take_reclaim(instruction_id)

    def _instruct(self, machine_id: str) -> None:
        """Have the operator respect its budgets in a drain that this process did not start."""
        machine = self._fleet.machine(machine_id)
        if (
            self.state.halted
            or machine_id in self.state.drains
            or machine is None
            or machine.state is not MachineState.DRAINING
            or self._fleet.sidecar(machine_id).seen_start
            or not self.may_reclaim(machine.cluster)
        ):
            return
        box = self.state.boxes.get(machine.cluster)
        if box is None or box.session is None or box.replay is not None:
            # Its turn comes at the end of the replay.
            return
        preemptor = self._fleet.sidecar(machine_id).preempted_for
        grace_s, priority = RECLAIM_GRACE_S, 0
        # A record without a fingerprint carries no assignment: its priority of 0 says nothing.
        if preemptor is not None and machine.assigned_need_fingerprint:
            grace_s = drain_grace_s(preemptor.priority - machine.assigned_priority)
            priority = preemptor.priority
        instruction_id = self.state.echoed.get(machine_id, "")
        if not instruction_id or instruction_id in box.reclaims:
            instruction_id = self.new_instruction_id()
        self._ctx.audit(
            "reclaim.instruction",
            machine_id=machine_id,
            cluster=machine.cluster,
            priority=priority,
            grace_s=grace_s,
        )
        self.reclaim(
            machine.cluster, machine_id, ReclaimInstruction(instruction_id, machine_id, grace_s, priority)
        )

    def _instruct_all(self, cluster: str) -> None:
        cells = self._ctx.engine.inventory.cluster_cells(cluster, MachineState.DRAINING)
        for machine_id in sorted(machine_id for cell in cells for machine_id in cell.ids):
            self._instruct(machine_id)

    # Sending

    def _send(self, cluster: str, room: int) -> int:
        """Give a session what it has credit for; of state and hints at most ``room``. Returns how many."""
        box = self.state.boxes.get(cluster)
        if box is None or box.session is None:
            return 0
        self._resized[cluster] = None
        frames: list[Frame] = list(box.acks[: box.credit])
        del box.acks[: len(frames)]
        bulk: list[Frame] = []
        if box.replay is None or self.state.lists is not Lists.AWAITED:
            frames += self._errands(box, box.credit - len(frames))
            bulk = self._bulk(cluster, box, min(room, box.credit - len(frames)))
        # Errands that the end of the replay has made follow it.
        later = self._errands(box, box.credit - len(frames) - len(bulk)) if box.replay is None else []
        sent = (*frames, *bulk, *later)
        box.credit -= len(sent)
        if sent:
            self._ctx.emit(SendFrames(box.session, sent))
        if box.credit and self._has_bulk(box):
            self.state.dirty[cluster] = None
        return len(bulk)

    def _errands(self, box: Mailbox, room: int) -> list[Frame]:
        frames: list[Frame] = []
        while len(frames) < room and not self.state.halted:
            queue = _earlier(box.unsent_bootstraps, box.unsent_reclaims)
            if queue is None:
                break
            is_bootstrap = queue is box.unsent_bootstraps
            errand = (box.bootstraps if is_bootstrap else box.reclaims)[queue.pop()]
            if errand.sent:
                frame_class = FrameClass.BOOTSTRAP if is_bootstrap else FrameClass.RECLAIM
                self._ctx.count(series.OUTBOX_REISSUED, frame_class.value)
            errand.sent = True
            frame = errand.frame
            if isinstance(frame, ReclaimInstruction):
                frame = replace(frame, node=self._nodes.name(errand.machine_id) or frame.node)
            frames.append(frame)
        return frames

    def _has_bulk(self, box: Mailbox) -> bool:
        if box.replay is not None:
            return self.state.lists is not Lists.AWAITED
        return bool(box.nodes or box.available)

    def _bulk(self, cluster: str, box: Mailbox, room: int) -> list[Frame]:
        """The replay, then changes and hints in the order they came."""
        replay = box.replay
        frames = self._replay(cluster, box, replay, room) if replay is not None and room else []
        while box.replay is None and len(frames) < room:
            queue = _earlier(box.nodes, box.available)
            if queue is None:
                break
            if queue is box.nodes:
                frames.append(self._pop_node(cluster, box))
            else:
                frames.append(box.hints.pop(queue.pop()))
        return frames

    def _replay(self, cluster: str, box: Mailbox, replay: Replay, room: int) -> list[Frame]:
        if replay.ids is None:
            newly = self.state.newly_bound if self.state.bound_in == self._ctx.cycle else {}
            ids = bound_machines(self._ctx.engine.inventory, cluster, newly.get(cluster, {}))
            replay.begin(ids, box.stamp, marker=self.state.lists is Lists.COMPLETE)
        frames: list[Frame] = []
        while len(frames) < room:
            first = box.nodes.first()
            if first is not None and first <= replay.until:
                frames.append(self._pop_node(cluster, box))
                continue
            machine_id = replay.take()
            if machine_id is None:
                if replay.marker:
                    frames.append(Resync())
                box.replay = None
                self._instruct_all(cluster)
                break
            machine = self._fleet.machine(machine_id)
            if machine is None or machine.cluster != cluster:
                continue
            if self._is_shown(machine):
                frames.append(self._show(box, machine))
            else:
                # Nothing more is written when the provider accepts it, so it would not be told of by then.
                self._queue_node(cluster, box, machine_id, None)
        return frames

    def _is_shown(self, machine: Machine) -> bool:
        return machine.state is not MachineState.CONFIGURING or self.is_accepted(machine.id)

    def _pop_node(self, cluster: str, box: Mailbox) -> NodeState:
        machine_id = box.nodes.pop()
        last_word = box.left.pop(machine_id, None)
        if last_word is not None:
            return last_word
        machine = self._fleet.machine(machine_id)
        assert machine is not None and machine.cluster == cluster, "a machine that left has a last word"
        return self._show(box, machine)

    def _show(self, box: Mailbox, machine: Machine) -> NodeState:
        box.unannounced.discard(machine.id)
        return node_state(machine, machine.cluster, machine.state, self._nodes.name(machine.id))


def _earlier(one: KeyQueue, other: KeyQueue) -> KeyQueue | None:
    """Of two queues the one whose head came first."""
    a, b = one.first(), other.first()
    if a is None:
        return None if b is None else other
    return one if b is None or a < b else other
