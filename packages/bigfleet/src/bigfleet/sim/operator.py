"""A scripted operator: it holds a session, sends roll-ups and answers as it is told to."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeVar

from bigfleet.shard.core import events
from bigfleet.sim.shard import SimShard
from bigfleet.sim.time import Order
from bigfleet_base.model import Need
from bigfleet_base.model.frames import (
    BootstrapRequest,
    Frame,
    HelloAck,
    NodeState,
    ReclaimInstruction,
    Resync,
)

SECOND: Final = 1_000_000_000
Kind = TypeVar("Kind", bound=Frame)
GREATEST_BACKOFF: Final = 30 * SECOND


@dataclass(slots=True)
class Habits:
    """How an operator behaves."""

    rollup_interval: int = 10 * SECOND
    answer_delay: int = 0
    ack_delay: int = 0
    blob_ttl_s: int = 0
    blob_error: str = ""
    answers: bool = True
    """Whether bootstrap requests are answered."""
    acks: bool = True
    """Whether instructions are acknowledged."""
    reads: bool = True
    """Whether frames are taken off the stream."""
    nodes_started: int = 1
    reconnects: Callable[[int], int] | None = field(
        default=lambda attempt: min(SECOND << attempt, GREATEST_BACKOFF)
    )
    """Delay before each attempt to connect again; None: never."""


class SimOperator:
    """One cluster's operator."""

    def __init__(
        self, shard: SimShard, cluster: str, needs: Sequence[Need] = (), habits: Habits | None = None
    ) -> None:
        self.cluster = cluster
        self.needs = list(needs)
        self.habits = habits or Habits()
        self.session: int | None = None
        self.received: list[Frame] = []
        """Every frame of every session, in order."""
        self.nodes: dict[str, NodeState] = {}
        """The last state heard of each machine."""
        self.endings: list[tuple[str, str]] = []
        self._shard = shard
        self._attempt = 0
        self._number = 0
        self._rollups = 0
        self._shown: set[str] = set()

    def connect(self) -> None:
        """Open a session and send the roll-up, as an operator does at once."""
        self.session = self._shard.open(self.cluster, self)
        if self.session is None:
            self._try_again()
            return
        self._attempt = 0
        self._number += 1
        self._send_rollups(self._number)

    def disconnect(self, *, come_back_after: int | None = None) -> None:
        """The network ends the stream."""
        session, self.session = self.session, None
        self._number += 1
        if session is not None:
            self._shard.close(session, "connection reset")
        if come_back_after is not None:
            self._shard.time.after(come_back_after, Order.ROLLUP, self.connect)

    def demand(self, *needs: Need) -> None:
        """Change what the cluster wants and say so at once."""
        self.needs = list(needs)
        self.rollup()

    def rollup(self) -> None:
        if self.session is None:
            return
        self._rollups += 1
        core = self._shard.running
        digest = repr(self.needs).encode()
        if core.accepted_digest(self.cluster) == digest:
            self._submit(events.RollupRepeated(self.session, self._rollups))
        else:
            rows = tuple(self.needs)
            self._submit(events.Rollup(self.session, self._rollups, digest, rows, (-1,) * len(rows)))

    def frames(self, kind: type[Kind]) -> list[Kind]:
        """The frames of one kind."""
        return [frame for frame in self.received if isinstance(frame, kind)]

    # The shard's end of the stream calls these

    def receive(self, session: int, frames: Sequence[Frame]) -> bool:
        if not self.habits.reads:
            return False
        for frame in frames:
            self._take(session, frame)
        return True

    def ended(self, session: int, status: str, text: str) -> None:
        if session != self.session:
            return
        self.endings.append((status, text))
        self.session = None
        self._number += 1
        self._try_again()

    def _take(self, session: int, frame: Frame) -> None:
        self.received.append(frame)
        habits, time = self.habits, self._shard.time
        match frame:
            case BootstrapRequest() if habits.answers:
                answer = events.BootstrapAnswered(
                    session, frame.request_id, habits.blob_ttl_s, habits.blob_error
                )
                time.after(habits.answer_delay, Order.ROLLUP, lambda: self._say(session, answer))
            case ReclaimInstruction() if habits.acks:
                ack = events.ReclaimAcked(session, frame.instruction_id, habits.nodes_started)
                time.after(habits.ack_delay, Order.ROLLUP, lambda: self._say(session, ack))
            case HelloAck():
                self._shown.clear()
            case NodeState():
                self.nodes[frame.machine_id] = frame
                self._shown.add(frame.machine_id)
            case Resync():
                # What a replay has not shown is not the cluster's any more (operator.md UPN-8).
                self.nodes = {i: node for i, node in self.nodes.items() if i in self._shown}

    def _say(self, session: int, event: events.Event) -> None:
        if self.session == session:
            self._submit(event)

    def _submit(self, event: events.Event) -> None:
        self._shard.submit(event)

    def _send_rollups(self, number: int) -> None:
        if self._number != number:
            return
        self.rollup()
        self._shard.time.after(self.habits.rollup_interval, Order.ROLLUP, lambda: self._send_rollups(number))

    def _try_again(self) -> None:
        if self.habits.reconnects is not None:
            delay = self.habits.reconnects(self._attempt)
            self._attempt += 1
            self._shard.time.after(delay, Order.ROLLUP, self.connect)
