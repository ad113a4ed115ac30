"""What waits for one cluster, by class and bound (the table of shard.md §8.1)."""

from dataclasses import dataclass, field
from enum import StrEnum

from bigfleet.shard.core.queue import KeyQueue
from bigfleet.shard.core.replay import Replay
from bigfleet.shard.core.settings import CREDIT, MAX_ACKS, MAX_AVAILABLE_FRAMES, MAX_NODE_FRAMES
from bigfleet_base.model.frames import (
    AvailableCapacity,
    BootstrapRequest,
    HelloAck,
    NodeState,
    ReclaimInstruction,
    RollupAck,
)


class FrameClass(StrEnum):
    """The values are those of the metrics' label."""

    BOOTSTRAP = "bootstrap"
    RECLAIM = "reclaim"
    NODE = "node"
    AVAILABLE = "available"
    ACK = "ack"


@dataclass(slots=True)
class Errand:
    """A frame that is sent on every session until it is answered or withdrawn."""

    frame: BootstrapRequest | ReclaimInstruction
    machine_id: str
    stamp: int
    sent: bool = False
    """Whether some session has been given it."""


@dataclass(slots=True)
class Mailbox:
    """The outbox of one cluster and the session that empties it. It outlives its sessions."""

    session: int | None = None
    credit: int = 0
    """Frames that the session may still be given."""
    replay: Replay | None = None
    """What the session has yet to be shown; None: it is up to date, or there is none."""
    stamp: int = 0
    """Frames queued so far: the order of all that is not an acknowledgement."""
    acks: list[HelloAck | RollupAck] = field(default_factory=list)
    """At most ``MAX_ACKS``, of this session alone."""
    bootstraps: dict[str, Errand] = field(default_factory=dict)
    """By request; at most one for each provider call that may be in flight (E1)."""
    reclaims: dict[str, Errand] = field(default_factory=dict)
    """By instruction; no drain is started for a cluster that has ``MAX_RECLAIMS``."""
    unsent_bootstraps: KeyQueue = field(default_factory=KeyQueue)
    unsent_reclaims: KeyQueue = field(default_factory=KeyQueue)
    nodes: KeyQueue = field(default_factory=KeyQueue)
    """Machines with news, at most ``MAX_NODE_FRAMES``. The frame of a bound one is made when it is sent."""
    left: dict[str, NodeState] = field(default_factory=dict)
    """The last word on those of them that are no longer bound to the cluster."""
    available: KeyQueue = field(default_factory=KeyQueue)
    """Fingerprints with a hint, at most ``MAX_AVAILABLE_FRAMES``."""
    hints: dict[str, AvailableCapacity] = field(default_factory=dict)
    unannounced: set[str] = field(default_factory=set)
    """Machines bound to the cluster of which it has never been told: it need not hear of their end (O4)."""

    def open(self, session: int) -> None:
        """Start over for a new session: everything it must be told, nothing it will be shown anyway."""
        self.session, self.credit, self.replay = session, CREDIT, Replay()
        for queue, errands in (
            (self.unsent_bootstraps, self.bootstraps),
            (self.unsent_reclaims, self.reclaims),
        ):
            queue.clear()
            for key, errand in errands.items():
                queue.put(key, errand.stamp)
        for machine_id in [key for key in self.nodes.stamps if key not in self.left]:
            self.nodes.discard(machine_id)

    def close(self) -> None:
        """Forget what was meant for the session alone."""
        self.session, self.credit, self.replay = None, 0, None
        self.acks.clear()
        self.available.clear()
        self.hints.clear()

    def is_empty(self) -> bool:
        """Whether nothing would be lost with it."""
        return not (
            self.session is not None or self.bootstraps or self.reclaims or self.nodes or self.unannounced
        )

    def put_ack(self, frame: HelloAck | RollupAck) -> bool:
        """Returns whether another had to go for it, as do all that follow."""
        self.acks.append(frame)
        if len(self.acks) <= MAX_ACKS:
            return False
        del self.acks[0]
        return True

    def put_bootstrap(self, frame: BootstrapRequest) -> None:
        self.bootstraps[frame.request_id] = Errand(frame, frame.machine_id, self._stamp())
        self.unsent_bootstraps.put(frame.request_id, self.stamp)

    def take_bootstrap(self, request_id: str) -> None:
        self.bootstraps.pop(request_id, None)
        self.unsent_bootstraps.discard(request_id)

    def put_reclaim(self, machine_id: str, frame: ReclaimInstruction) -> None:
        # The id may be a provider's word, and two machines may show one.
        self.take_reclaim(frame.instruction_id)
        self.reclaims[frame.instruction_id] = Errand(frame, machine_id, self._stamp())
        self.unsent_reclaims.put(frame.instruction_id, self.stamp)

    def take_reclaim(self, instruction_id: str) -> Errand | None:
        self.unsent_reclaims.discard(instruction_id)
        return self.reclaims.pop(instruction_id, None)

    def put_node(self, machine_id: str, last_word: NodeState | None) -> bool:
        """Queue news of a machine, in the place of older news of it."""
        is_full = False
        if machine_id not in self.nodes:
            is_full = len(self.nodes) >= MAX_NODE_FRAMES
            if is_full:
                self.left.pop(self.nodes.pop(), None)
            self.nodes.put(machine_id, self._stamp())
        if last_word is None:
            self.left.pop(machine_id, None)
        else:
            self.left[machine_id] = last_word
        return is_full

    def drop_node(self, machine_id: str) -> None:
        self.nodes.discard(machine_id)
        self.left.pop(machine_id, None)

    def put_hint(self, frame: AvailableCapacity) -> bool:
        is_full = False
        if frame.fingerprint not in self.available:
            is_full = len(self.available) >= MAX_AVAILABLE_FRAMES
            if is_full:
                del self.hints[self.available.pop()]
            self.available.put(frame.fingerprint, self._stamp())
        self.hints[frame.fingerprint] = frame
        return is_full

    def depths(self) -> tuple[int, ...]:
        """Frames in it, in the order of ``FrameClass``."""
        return (
            len(self.bootstraps),
            len(self.reclaims),
            len(self.nodes),
            len(self.available),
            len(self.acks),
        )

    def _stamp(self) -> int:
        self.stamp += 1
        return self.stamp
