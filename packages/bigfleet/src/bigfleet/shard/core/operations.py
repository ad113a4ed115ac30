"""The operations under way: one for a machine, queued fairly (shard.md E1, E2).

An operation is an action on its way through waits and calls. What it waits for is its ``Step``; a queue for
each cluster, taken in turn, decides who gets the next free slot, so that a cluster with a thousand actions
and an operator that never answers delays nobody else.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from bigfleet.engine.actions import Action, ActionKind
from bigfleet.shard.core.outcomes import Outcome
from bigfleet_base.model.lifecycle import Rpc


class Step(StrEnum):
    """What an operation waits for."""

    ROOM = "room"
    """For room among its cluster's bootstrap requests."""
    BLOB = "blob"
    CORDON = "cordon"
    SLOT = "slot"
    """For one of the N slots."""
    CALL = "call"
    """For the provider's answer: it has a slot."""
    VERIFY = "verify"
    """For the Get that tells what a failed call has done."""


FIRST_CALL: Final = {
    ActionKind.BOOTSTRAP: Rpc.CONFIGURE,
    ActionKind.PROVISION: Rpc.CREATE,
    ActionKind.PREEMPT: Rpc.DRAIN,
    ActionKind.RECLAIM: Rpc.DRAIN,
    ActionKind.DELETE: Rpc.DELETE,
}


@dataclass(slots=True)
class Operation:
    number: int
    action: Action
    provider: str
    rpc: Rpc
    """The call it is on the way to or in; a Provision goes on from Create to Configure."""
    step: Step
    since: int
    """When the step began."""
    probe: bool = False
    """Started to find out whether a blocked Need can be served again."""
    started: bool = False
    """Told to the audit log; from here on its machine may be in transition."""
    accepted: bool = False
    """The provider has taken the call at hand."""
    request_id: str = ""
    """Of the bootstrap request that is out, or whose blob is kept for the Configure."""
    expiry: int | None = None
    """When that blob is too old."""
    refetched: bool = False
    instruction_id: str = ""
    outcome: Outcome | None = None
    """Of one that is being verified: how it will end."""
    error: str = ""
    attempt: int = 0
    """Of its last call; 0 for none."""

    @property
    def machine_id(self) -> str:
        return self.action.machine_id

    @property
    def cluster(self) -> str:
        """Whose queue it is in; a Delete has none, and all Deletes share one queue."""
        return self.action.cluster


@dataclass(slots=True)
class OperationsState:
    count: int = 0
    """Operations ever begun by this process."""
    running: dict[int, Operation] = field(default_factory=dict)
    """By number; no more than the capacity of the queue and the slots together (E4)."""
    for_room: dict[str, dict[int, None]] = field(default_factory=dict)
    """By cluster, those in ROOM, first in first."""
    for_slot: dict[str, dict[int, None]] = field(default_factory=dict)
    """By cluster, those in SLOT; the cluster whose turn it is comes first."""


class Operations:
    """Who waits for what, and who is next. Nothing here walks all operations but ``all``."""

    def __init__(self, state: OperationsState) -> None:
        self.state = state
        self._by_machine = {op.machine_id: op for op in state.running.values()}
        self._by_request = {op.request_id: op for op in state.running.values() if op.request_id}
        self._by_instruction = {op.instruction_id: op for op in state.running.values() if op.instruction_id}
        self._requests: dict[str, int] = {}
        """Outstanding bootstrap requests by cluster."""
        self._calls: dict[str, int] = {}
        """In flight, by provider."""
        self._ready: dict[str, int] = {}
        """In SLOT, by provider."""
        self._loose: dict[str, None] = {}
        """Clusters that may have both an operation in ROOM and room for it; empty between two events."""
        for op in state.running.values():
            self._count(op, 1)

    def __len__(self) -> int:
        return len(self.state.running)

    @property
    def in_call(self) -> int:
        return sum(self._calls.values())

    def calls_of(self, provider: str) -> int:
        """How many of a provider's are in flight."""
        return self._calls.get(provider, 0)

    def all(self) -> list[Operation]:
        """In the order they were begun."""
        return list(self.state.running.values())

    def numbered(self, number: int) -> Operation | None:
        return self.state.running.get(number)

    def on(self, machine_id: str) -> Operation | None:
        return self._by_machine.get(machine_id)

    def with_request(self, request_id: str) -> Operation | None:
        return self._by_request.get(request_id)

    def with_instruction(self, instruction_id: str) -> Operation | None:
        return self._by_instruction.get(instruction_id)

    def begin(self, action: Action, provider: str, step: Step, now: int, *, probe: bool) -> Operation:
        assert action.machine_id not in self._by_machine, "one operation for a machine"
        self.state.count += 1
        op = Operation(
            self.state.count, action, provider, FIRST_CALL[action.kind], step, since=now, probe=probe
        )
        self.state.running[op.number] = op
        self._by_machine[op.machine_id] = op
        self._enter(op)
        return op

    def move(self, op: Operation, step: Step, now: int) -> None:
        self._leave(op)
        op.step, op.since = step, now
        self._enter(op)

    def end(self, op: Operation) -> None:
        self._leave(op)
        self.set_request(op, "")
        if op.instruction_id:
            del self._by_instruction[op.instruction_id]
        del self._by_machine[op.machine_id]
        del self.state.running[op.number]

    def set_request(self, op: Operation, request_id: str) -> None:
        if op.request_id:
            del self._by_request[op.request_id]
        op.request_id, op.expiry = request_id, None
        if request_id:
            self._by_request[request_id] = op

    def set_instruction(self, op: Operation, instruction_id: str) -> None:
        op.instruction_id = instruction_id
        self._by_instruction[instruction_id] = op

    def next_for_room(self, most: int) -> Operation | None:
        """One in ROOM whose cluster has fewer than ``most`` requests out."""
        while self._loose:
            cluster = next(iter(self._loose))
            waiting = self.state.for_room.get(cluster)
            if waiting and self._requests.get(cluster, 0) < most:
                return self.state.running[next(iter(waiting))]
            del self._loose[cluster]
        return None

    def next_for_slot(self, may_call: Callable[[str], bool]) -> Operation | None:
        """The first of the cluster whose turn it is, whose provider may be called; the turn goes on."""
        callable_now = set(filter(may_call, self._ready))
        if not callable_now:
            return None
        for cluster, waiting in self.state.for_slot.items():
            for number in waiting:
                op = self.state.running[number]
                if op.provider in callable_now:
                    self.state.for_slot[cluster] = self.state.for_slot.pop(cluster)
                    return op
        raise AssertionError("what is ready is in a queue")

    def _enter(self, op: Operation) -> None:
        queue = self._queue(op.step)
        if queue is not None:
            queue.setdefault(op.cluster, {})[op.number] = None
        self._count(op, 1)
        if op.step is Step.ROOM:
            self._loose[op.cluster] = None

    def _leave(self, op: Operation) -> None:
        queue = self._queue(op.step)
        if queue is not None:
            del queue[op.cluster][op.number]
            if not queue[op.cluster]:
                del queue[op.cluster]
        self._count(op, -1)
        if op.step is Step.BLOB:
            self._loose[op.cluster] = None

    def _queue(self, step: Step) -> dict[str, dict[int, None]] | None:
        match step:
            case Step.ROOM:
                return self.state.for_room
            case Step.SLOT:
                return self.state.for_slot
            case _:
                return None

    def _count(self, op: Operation, by: int) -> None:
        match op.step:
            case Step.CALL:
                _add(self._calls, op.provider, by)
            case Step.SLOT:
                _add(self._ready, op.provider, by)
            case Step.BLOB:
                _add(self._requests, op.cluster, by)
            case _:
                pass


def _add(counts: dict[str, int], key: str, by: int) -> None:
    left = counts.get(key, 0) + by
    if left:
        counts[key] = left
    else:
        del counts[key]
