"""Carries out what the cycle has decided (shard.md §6, §7).

Each action becomes an operation that walks through waits (for a blob, for a cordon, for one of the N slots)
and provider calls. Whatever happens, it ends with one outcome, and its machine is left either where a
provider's record puts it, or where the operation found it, or with somebody told to look (X4): the shard
never invents a state.
"""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from bigfleet.engine.actions import Action, ActionKind
from bigfleet.engine.options import SECOND
from bigfleet.shard.core import calls
from bigfleet.shard.core.blocks import Blocks, BlocksState, Pair
from bigfleet.shard.core.context import Cause, Context, Timer
from bigfleet.shard.core.effects import DropBlob, GetMachine, LogLevel
from bigfleet.shard.core.events import (
    BootstrapAnswered,
    BreakerChanged,
    BreakerState,
    CallEnded,
    Failure,
    GetEnded,
    Observed,
    ReclaimAcked,
)
from bigfleet.shard.core.fleet import TRANSITIONAL, Fleet
from bigfleet.shard.core.holdoffs import HoldOffs, HoldOffsState
from bigfleet.shard.core.journal import Journal
from bigfleet.shard.core.merge import merged
from bigfleet.shard.core.nodes import node_labels
from bigfleet.shard.core.operations import FIRST_CALL, Operation, Operations, OperationsState, Step
from bigfleet.shard.core.outcomes import CONSEQUENCES, Outcome
from bigfleet.shard.core.settings import CORDON_TIMEOUT
from bigfleet.shard.core.shares import Lane, fair_share
from bigfleet.shard.provider import FailureKind
from bigfleet_base.model import Defect, InvalidMachineError, Machine, MachineState, transition
from bigfleet_base.model.frames import BootstrapRequest, ReclaimInstruction
from bigfleet_base.model.lifecycle import Rpc, check
from bigfleet_base.telemetry.catalogue import shard as series


class Sessions(Protocol):
    """What the executor asks of the sessions."""

    def session_of(self, cluster: str) -> int | None: ...


class Outboxes(Protocol):
    """What the executor asks of the outboxes. To withdraw what is not there does nothing."""

    def bootstrap(self, cluster: str, frame: BootstrapRequest) -> None: ...
    def withdraw_bootstrap(self, cluster: str, request_id: str) -> None: ...
    def new_instruction_id(self) -> str: ...
    def reclaim(self, cluster: str, machine_id: str, frame: ReclaimInstruction) -> None: ...
    def withdraw_reclaim(self, cluster: str, instruction_id: str) -> None: ...
    def node_name(self, machine_id: str) -> str: ...
    def halt_instructions(self, stopped: bool) -> None: ...


@dataclass(slots=True)
class ExecutorState:
    operations: OperationsState = field(default_factory=OperationsState)
    blocks: BlocksState = field(default_factory=BlocksState)
    hold_offs: HoldOffsState = field(default_factory=HoldOffsState)
    breakers: dict[str, BreakerState] = field(default_factory=dict)
    """Of providers whose breaker is not closed; they are those of the settings."""
    mute: dict[str, int] = field(default_factory=dict)
    """Clusters that have answered no bootstrap request in time since one timed out, and when the last one
    did. A new session is no answer: an operator that crashes over and over has many. At most the known
    clusters (S10)."""
    requests: int = 0
    """Bootstrap requests ever made by this process."""
    dropped: bool = False
    """Actions had no place in the queue: when it is half empty a cycle may decide them again (E4)."""
    halted: bool = False
    fenced: bool = False


class Executor:
    """The operations of a shard, from the queue to their outcome."""

    def __init__(
        self, ctx: Context, fleet: Fleet, sessions: Sessions, outboxes: Outboxes, state: ExecutorState
    ) -> None:
        self._ctx = ctx
        self._fleet = fleet
        self._sessions = sessions
        self._outboxes = outboxes
        self.state = state
        self._operations = Operations(state.operations)
        self._blocks = Blocks(ctx, state.blocks)
        self._hold_offs = HoldOffs(ctx, state.hold_offs)
        self._journal = Journal(ctx)
        self.verify: Callable[[str], None] = lambda _: None
        """Told of a machine whose state nobody knows: the next record of it is to be believed."""
        self.released: Callable[[str], None] = lambda _: None
        """Told of a machine that has no operation any more."""
        fleet.listeners.append(self._changed)

    # Looking

    @property
    def fenced(self) -> bool:
        """Whether a newer process with this shard's identity was met (F4)."""
        return self.state.fenced

    def is_busy(self, machine_id: str) -> bool:
        return self._operations.on(machine_id) is not None

    def is_accepted(self, machine_id: str) -> bool:
        """False while the provider has not taken the Configure of a machine."""
        op = self._operations.on(machine_id)
        return op is None or op.rpc is not Rpc.CONFIGURE or op.accepted

    def depth(self) -> int:
        """Operations that wait for anything but the answer to a mutation."""
        return len(self._operations) - self._operations.in_call

    def in_flight(self) -> int:
        return self._operations.in_call

    def operations(self) -> list[Operation]:
        """All that are under way, in the order they were begun."""
        return self._operations.all()

    def free_places(self) -> int:
        return max(0, self._ctx.settings.queue_capacity - self.depth())

    # The cycle

    def before_cycle(self) -> frozenset[Pair]:
        """Bring the inventory up to date; returns what the cycle is to start nothing for."""
        self._hold_offs.refresh()
        return self._blocks.held()

    def held_back(self) -> dict[str, int]:
        """Providers whose breaker is not closed, and how many operations each may begin now: to find out
        whether it is back one is enough (X4, P-140)."""
        if not self.state.breakers:
            return {}
        running = {op.provider for op in self._operations.all()}
        return {
            provider: int(state is BreakerState.TRIAL and provider not in running)
            for provider, state in self.state.breakers.items()
        }

    def admit(self, actions: list[Action]) -> list[Action]:
        """Leave out what is for a blocked Need, of one that is to be probed all but one action; what would
        let operators that do not answer, or are not there, fill the queue; and what has no place in it, so
        that everybody gets some (E1, E4)."""
        actions = self._answerable(self._blocks.admit(actions))
        places, most = self.free_places(), self._ctx.settings.options.max_actions
        if len(actions) <= places or 0 < most <= places:
            return actions
        actions, capped = self._within_cap(actions)
        if len(actions) <= places:
            return actions + capped
        one = None if len(self._ctx.settings.providers) > 1 else self._ctx.settings.providers[0]

        def lane_of(action: Action) -> Lane:
            return (one or self._fleet.provider(action.machine_id), action.cluster)

        taken = [(op.provider, op.cluster) for op in self._operations.all()]
        admitted = fair_share(actions, places, lane_of, taken)
        self._ctx.count(series.ACTIONS_DROPPED, by=len(actions) - len(admitted))
        self.state.dropped = True
        # Where a Reclaim found no place, the cap would let one that comes later pass for it.
        cut = _reclaims(actions) - _reclaims(admitted)
        return admitted + [action for action in capped if action.cluster not in cut]

    def _within_cap(self, actions: list[Action]) -> tuple[list[Action], list[Action]]:
        """Part from the rest the Reclaims that the cap, which comes next, will not let pass: they need no
        place."""
        options = self._ctx.settings.options
        if options.reclaim_cap <= 0:
            return actions, []
        buckets = self._ctx.engine.rails.buckets
        left = {cluster: max(0, math.ceil(bucket.tokens)) for cluster, bucket in buckets.items()}
        within, capped = [], []
        for action in actions:
            if action.kind is not ActionKind.RECLAIM:
                within.append(action)
            elif left[action.cluster] > 0:
                left[action.cluster] -= 1
                within.append(action)
            else:
                capped.append(action)
        return within, capped

    def _answerable(self, actions: list[Action]) -> list[Action]:
        """What some operator may answer; one that is not there is told of once a cycle (X9)."""
        places = self._places_of_the_mute(actions)
        absent: set[str] = set()
        admitted = []
        for action in actions:
            cluster = action.cluster
            if cluster in places and FIRST_CALL[action.kind] in _ACQUIRING:
                if places[cluster] == 0:
                    continue
                places[cluster] -= 1
            if action.kind is ActionKind.BOOTSTRAP and not self._has_operator(cluster):
                if cluster in absent:
                    continue
                absent.add(cluster)
            admitted.append(action)
        return admitted

    def _places_of_the_mute(self, actions: list[Action]) -> dict[str, int]:
        """How many operations each mute cluster may begin: all of them have N together, and those come first
        that have waited longest."""
        mute = self.state.mute
        if not mute:
            return {}
        running = Counter(op.cluster for op in self._operations.all() if op.rpc in _ACQUIRING)
        wanted = Counter(a.cluster for a in actions if a.cluster in mute and FIRST_CALL[a.kind] in _ACQUIRING)
        left = self._ctx.settings.concurrency
        share = max(1, left // len(mute))
        left -= sum(running[cluster] for cluster in mute)
        places = {}
        for cluster in sorted(mute, key=lambda cluster: (mute[cluster], cluster)):
            places[cluster] = max(0, min(share - running[cluster], wanted[cluster], left))
            left -= places[cluster]
        return places

    def enqueue(self, actions: Sequence[Action], *, dropped: int = 0) -> None:
        """Take the actions that have passed the rails, in their order; ``dropped`` more had no place."""
        for action in actions:
            machine = self._fleet.machine(action.machine_id)
            source = calls.START[FIRST_CALL[action.kind]].source
            if machine is None or self.is_busy(machine.id) or machine.state is not source:
                self._ctx.count(series.ACTIONS_DEDUPED)
            elif self.free_places() == 0:
                dropped += 1
            else:
                self._ctx.count(series.ACTIONS, action.kind.value)
                self._begin(action)
        if dropped:
            self._ctx.count(series.ACTIONS_DROPPED, by=dropped)
            self.state.dropped = True

    def pump(self) -> None:
        """Start what may start: bootstrap requests as far as their clusters have room, calls as far as there
        are slots."""
        most = self._ctx.settings.concurrency
        while True:
            if (op := self._operations.next_for_room(most)) is not None:
                self._ask_for_blob(op)
            elif (
                self.in_flight() < most and (op := self._operations.next_for_slot(self._may_call)) is not None
            ):
                self._send(op)
            else:
                break
        if self.state.dropped and 2 * self.depth() < self._ctx.settings.queue_capacity:
            self.state.dropped = False
            self._ctx.wake(Cause.DRAIN)

    def _may_call(self, provider: str) -> bool:
        """Whether a free slot may go to a provider: each of the others keeps a few for itself, so that one
        whose calls all hang freezes its own machines alone (P-139)."""
        most, names = self._ctx.settings.concurrency, self._ctx.settings.providers
        own = max(1, most // (2 * len(names))) if most >= len(names) else 0
        kept = sum(max(0, own - self._operations.calls_of(name)) for name in names if name != provider)
        return most - self.in_flight() > kept

    # The switch

    def halt(self) -> None:
        """Pause, dry run, fence and shutdown: nothing more is sent. Calls under way and verifications go on
        (R3)."""
        self.state.halted = True
        for op in self._operations.all():
            if op.step not in (Step.CALL, Step.VERIFY):
                self._abandon(op, Outcome.CANCELED, _HALTED)

    def resume(self) -> None:
        """A pause is over; a fence never is."""
        self.state.halted = self.state.fenced

    def abandon_calls(self) -> None:
        """The process ends: what becomes of calls and machines is its successor's to see, but every operation
        has its outcome (R6). One that is being verified keeps the one it has."""
        for op in self._operations.all():
            if op.outcome is None:
                self._conclude(op, Outcome.CANCELED, _UNANSWERED)
            self._finish(op)

    def fence(self, kind: str, failure: Failure | None, machine_id: str = "", cluster: str = "") -> None:
        """Another process with this shard's identity has been at work: stop for good (F4)."""
        self._journal.fenced(kind, failure, machine_id, cluster)
        self.state.fenced = True
        self._ctx.mark(series.FENCED, 1)
        self._outboxes.halt_instructions(True)
        self.halt()

    # Operators

    def session_opened(self, cluster: str) -> None:
        """A new session may be of an operator that has been mended."""
        self._blocks.forget_cluster(cluster)

    def answered(self, cluster: str, event: BootstrapAnswered) -> None:
        """An operator's blob, or its reason for having none."""
        op = self._operations.with_request(event.request_id)
        if op is None or op.cluster != cluster or op.step is not Step.BLOB:
            self.unasked(event)
            return
        self.state.mute.pop(cluster, None)
        self._ctx.observe(series.REQUEST_BOOTSTRAP, (self._ctx.now - op.since) / SECOND)
        self._outboxes.withdraw_bootstrap(cluster, event.request_id)
        error = event.error[:_MAX_ERROR]
        self._journal.audit("bootstrap.response", op, err=error or None)
        if error:
            self._blocks.failed(_need(op.action))
            self._drop_blob(op)
            self._abandon(op, Outcome.UNSATISFIABLE, f"operator: {error}")
            return
        if event.ttl_s:
            op.expiry = self._ctx.now + (min(event.ttl_s, _MAX_TTL_S) - _TTL_RESERVE_S) * SECOND
        if self._is_expired(op):
            self._expired(op)
            return
        self._blocks.lift(_need(op.action))
        self._operations.move(op, Step.SLOT, self._ctx.now)

    def unasked(self, event: BootstrapAnswered) -> None:
        """An answer that nobody waits for (B2). A repeated one has the id of a blob that is yet to be used:
        that one must not be dropped. An error has brought none."""
        op = self._operations.with_request(event.request_id)
        if not event.error and (op is None or op.step is not Step.SLOT):
            self._ctx.emit(DropBlob(event.request_id))

    def cordoned(self, cluster: str, event: ReclaimAcked) -> None:
        """An operator has begun to drain a node."""
        op = self._operations.with_instruction(event.instruction_id)
        if op is None or op.cluster != cluster:
            return
        self._journal.audit("reclaim.ack", op, count=event.nodes_started)
        if event.nodes_started == 0:
            self._journal.warn("reclaim acknowledged without a node", op)
        if op.step is Step.CORDON:
            self._operations.move(op, Step.SLOT, self._ctx.now)

    def timer(self, timer: Timer, key: str) -> None:
        """A blob or a cordon may be overdue."""
        if timer is Timer.BLOB:
            op = self._operations.with_request(key)
            if op is not None and op.step is Step.BLOB:
                self.state.mute[op.cluster] = self._ctx.now
                self._journal.audit("bootstrap.timeout", op)
                self._abandon(op, Outcome.BLOB_ERROR, "no answer to the bootstrap request in time")
        else:
            assert timer is Timer.CORDON
            op = self._operations.with_instruction(key)
            if op is not None and op.step is Step.CORDON:
                self._journal.warn("reclaim not acknowledged; draining", op)
                self._journal.audit("reclaim.fallback", op, reason="not acknowledged")
                self._operations.move(op, Step.SLOT, self._ctx.now)

    # Providers

    def breaker_changed(self, event: BreakerChanged) -> None:
        if event.state is BreakerState.CLOSED:
            self.state.breakers.pop(event.provider, None)
        else:
            self.state.breakers[event.provider] = event.state

    def call_ended(self, event: CallEnded) -> None:
        """A mutation was answered, or was not."""
        op = self._operations.numbered(event.op)
        assert op is not None and op.step is Step.CALL, "an answer to a call that was not made"
        if event.observed is not None:
            self._acknowledged(op, event.observed)
        else:
            assert event.failure is not None, "a call that ended with nothing"
            self._failed(op, event.failure)

    def got(self, event: GetEnded) -> bool:
        """A Get was answered; returns whether it was the verification of an operation (X4)."""
        op = self._operations.on(event.machine_id)
        if op is None or op.step is not Step.VERIFY:
            return False
        if event.provider != op.provider or event.started < op.since:
            return False
        is_known = event.observed is not None and self._adopt(op, event.observed)
        if event.failure is not None and event.failure.kind == FailureKind.NOT_FOUND:
            self._fleet.remove(op.machine_id)
            is_known = True
        self._finish(op)
        if not is_known:
            self.verify(op.machine_id)
        self.released(op.machine_id)
        return True

    # From action to call

    def _begin(self, action: Action) -> None:
        buys = action.machine_id if action.kind is ActionKind.PROVISION else ""
        probe = action.profile is not None and self._blocks.probe(_need(action), buys)
        step = _FIRST_STEP[FIRST_CALL[action.kind]]
        provider = self._fleet.provider(action.machine_id)
        op = self._operations.begin(action, provider, step, self._ctx.now, probe=probe)
        if self.state.halted:
            # The pause came while the cycle ran.
            self._end(op, Outcome.CANCELED, _HALTED)
        elif op.rpc is Rpc.DRAIN:
            self._instruct(op)

    def _obstacle(self, op: Operation) -> tuple[Outcome, str] | None:
        """What keeps an operation from taking its machine into transition (E5, X4, X9)."""
        machine = self._fleet.machine(op.machine_id)
        if machine is None:
            return Outcome.INVENTORY_MISS, "the machine is not in the inventory"
        if machine.state is not calls.START[op.rpc].source:
            if calls.is_done(op, machine):
                return Outcome.SUCCESS, ""
            return Outcome.STALE_STATE, f"the machine is {machine.state.title}"
        if op.rpc in _ACQUIRING:
            if op.action.profile is None:
                return Outcome.MISSING_PROFILE, "the action names no Profile"
            if self._blocks.holds(_need(op.action)) and not op.probe:
                return Outcome.UNSATISFIABLE, "the operator could not serve this Need a moment ago"
        if op.rpc is Rpc.CONFIGURE and not self._has_operator(op.cluster):
            return Outcome.NO_SESSION, "the cluster has no session"
        if op.rpc is Rpc.DELETE and self._ctx.engine.inventory.is_not_deletable(op.machine_id):
            return Outcome.PROVIDER_ERROR, _text(op, "the provider has none for this capacity type")
        if self.state.breakers.get(op.provider) is BreakerState.OPEN:
            return Outcome.PROVIDER_TRANSIENT, _text(op, _HELD_BACK)
        return None

    def _has_operator(self, cluster: str) -> bool:
        return self._ctx.settings.local_bootstrap or self._sessions.session_of(cluster) is not None

    def _start(self, op: Operation) -> bool:
        """Take the machine into transition, unless something is in the way."""
        obstacle = self._obstacle(op)
        if obstacle is not None:
            # A Provision whose Configure must wait has bought its machine all the same.
            self._end(op, *((Outcome.SUCCESS, "") if op.started else obstacle))
            return False
        if not op.started:
            op.started = True
            self._journal.emitted(op)
        deadline = self._ctx.now + calls.grace_s(op) * SECOND if op.rpc is Rpc.DRAIN else None
        self._fleet.command(
            transition(self._machine(op), calls.START[op.rpc].target, **calls.stamps(op)),
            preempted_for=op.action.preemptor,
            drain_deadline=deadline,
        )
        return True

    def _ask_for_blob(self, op: Operation) -> None:
        if not op.refetched and not self._start(op):
            return
        if self._ctx.settings.local_bootstrap:
            self._operations.move(op, Step.SLOT, self._ctx.now)
            return
        self.state.requests += 1
        request_id = calls.request_id(self._ctx.settings.seed, self.state.requests)
        self._operations.set_request(op, request_id)
        self._operations.move(op, Step.BLOB, self._ctx.now)
        self._outboxes.bootstrap(
            op.cluster,
            BootstrapRequest(
                request_id,
                op.cluster,
                calls.profile(op).requirements,
                op.machine_id,
                node_labels(self._machine(op)),
            ),
        )
        self._ctx.timers.at(self._ctx.now + self._ctx.settings.bootstrap_timeout_ns, Timer.BLOB, request_id)
        self._journal.audit("bootstrap.request", op)

    def _instruct(self, op: Operation) -> None:
        if not self._start(op):
            return
        preemptor = op.action.preemptor
        instruction = ReclaimInstruction(
            self._outboxes.new_instruction_id(),
            self._outboxes.node_name(op.machine_id) or op.machine_id,
            calls.grace_s(op),
            0 if preemptor is None else preemptor.priority,
        )
        self._operations.set_instruction(op, instruction.instruction_id)
        self._outboxes.reclaim(op.cluster, op.machine_id, instruction)
        self._journal.audit(
            "reclaim.instruction", op, priority=instruction.preemptor_priority, grace_s=instruction.grace_s
        )
        if self._sessions.session_of(op.cluster) is None:
            self._journal.warn("reclaim fallback: no operator session; PDB-respecting drain skipped", op)
            self._journal.audit("reclaim.fallback", op, reason="no session")
            self._operations.move(op, Step.SLOT, self._ctx.now)
        else:
            # Decided once: losing the session changes neither the deadline nor the id (ruling R21).
            self._ctx.timers.at(self._ctx.now + CORDON_TIMEOUT, Timer.CORDON, instruction.instruction_id)

    def _send(self, op: Operation) -> None:
        """The operation has its slot: make the call, unless that has become pointless."""
        if op.rpc in (Rpc.CREATE, Rpc.DELETE):
            if not self._start(op):
                return
        elif self.state.breakers.get(op.provider) is BreakerState.OPEN:
            self._abandon(op, Outcome.PROVIDER_TRANSIENT, _text(op, _HELD_BACK))
            return
        elif self._is_expired(op):
            self._expired(op)
            return
        budget = self._ctx.settings.execute_timeout_ns
        if op.expiry is not None:
            budget = min(budget, op.expiry - self._ctx.now)
        self._ctx.emit(calls.call(op, self._machine(op), budget))
        self._operations.set_request(op, "")
        self._operations.move(op, Step.CALL, self._ctx.now)

    def _is_expired(self, op: Operation) -> bool:
        return op.expiry is not None and self._ctx.now >= op.expiry

    def _expired(self, op: Operation) -> None:
        """A blob that is too old is fetched once more (B3)."""
        self._drop_blob(op)
        if op.refetched:
            self._blocks.failed(_need(op.action))
            self._abandon(op, Outcome.BLOB_EXPIRED, "the blob expired before it could be used, twice")
        else:
            op.refetched = True
            self._operations.move(op, Step.ROOM, self._ctx.now)

    def _drop_blob(self, op: Operation) -> None:
        self._ctx.emit(DropBlob(op.request_id))
        self._operations.set_request(op, "")

    # From answer to outcome

    def _acknowledged(self, op: Operation, observed: Observed) -> None:
        seen = observed.machine
        if not calls.is_answer(op, seen) or not self._adopt(op, observed):
            self._ctx.count(series.MACHINES_REJECTED, Defect.STRUCTURAL.value)
            details = f"machine {seen.id!r}, {seen.state.title} in cluster {seen.cluster!r}, is no answer"
            self._failed(op, Failure(FailureKind.BAD_ANSWER.value, "OK", details))
            return
        if seen.state is MachineState.FAILED:
            self._end(op, Outcome.PROVIDER_ERROR, _text(op, seen.last_error))
            return
        self._hold_offs.succeeded(op.machine_id, calls.HOLDS[op.rpc])
        if op.rpc is Rpc.CONFIGURE:
            self._blocks.forget(_need(op.action))
        if op.rpc is Rpc.CREATE and seen.state is MachineState.IDLE and not self.state.halted:
            op.rpc, op.accepted = Rpc.CONFIGURE, False
            self._operations.move(op, Step.ROOM, self._ctx.now)
            return
        self._end(op, Outcome.SUCCESS)

    def _failed(self, op: Operation, failure: Failure) -> None:
        """What follows from a call without a good answer (the table of X4)."""
        kind = FailureKind(failure.kind)
        op.attempt = failure.attempt
        consequence = CONSEQUENCES[kind]
        error = _text(op, f"{failure.code}: {failure.details}")
        if op.rpc is Rpc.DELETE and kind is FailureKind.NOT_SUPPORTED:
            self._cannot_delete(op)
            self._abandon(op, consequence.outcome, error)
            return
        if not consequence.sent:
            # The switch may have been thrown between the decision and the call (R3).
            self._abandon(op, Outcome.CANCELED if self.state.halted else consequence.outcome, error)
            return
        if consequence.hold_off:
            self._hold_offs.failed(op.machine_id, calls.HOLDS[op.rpc])
        is_refused = kind is FailureKind.REFUSED
        if is_refused and op.rpc is Rpc.CONFIGURE:
            self._blocks.failed(_need(op.action))
        self._conclude(op, consequence.outcome, error, LogLevel.ERROR if is_refused else LogLevel.WARN)
        self._operations.move(op, Step.VERIFY, self._ctx.now)
        self._ctx.emit(GetMachine(op.provider, op.machine_id))
        if kind is FailureKind.FENCED:
            self.fence(op.action.kind.value, failure, op.machine_id, op.cluster)

    def _cannot_delete(self, op: Operation) -> None:
        inventory = self._ctx.engine.inventory
        # To mark is to walk all machines: once is enough.
        if not inventory.is_not_deletable(op.machine_id):
            inventory.mark_not_deletable(op.provider, self._machine(op).capacity_type)

    def _adopt(self, op: Operation, observed: Observed) -> bool:
        """Write a provider's record of the machine; False for one that breaks an invariant."""
        ours = self._machine(op)
        machine = merged(ours, observed.machine)
        try:
            check(machine)
        except InvalidMachineError:
            return False
        source = calls.START[op.rpc].source
        # Before the write, so that whoever hears of it knows that the provider has taken the call.
        op.accepted = machine.state is not source
        stays = machine.state is ours.state and machine.cluster == ours.cluster
        if stays or calls.is_edge(ours.state, machine.state):
            self._fleet.command(machine)
        elif machine.state is source:
            self._fleet.take_back(machine)
        else:
            self._fleet.observe(machine, observed.preemptor)
        return True

    def _abandon(self, op: Operation, outcome: Outcome, error: str) -> None:
        """End an operation of which the provider knows nothing: the machine is as it was."""
        machine = self._fleet.machine(op.machine_id)
        if op.started and machine is not None and machine.state in TRANSITIONAL:
            before = calls.taken_back(machine)
            if calls.is_edge(machine.state, before.state):
                self._fleet.command(before)
            else:
                self._fleet.take_back(before)
        self._end(op, outcome, error)

    def _end(self, op: Operation, outcome: Outcome, error: str = "") -> None:
        self._conclude(op, outcome, error)
        self._finish(op)
        self.released(op.machine_id)

    def _conclude(self, op: Operation, outcome: Outcome, error: str, level: LogLevel = LogLevel.WARN) -> None:
        op.outcome, op.error = outcome, error
        if outcome not in (Outcome.SUCCESS, Outcome.CANCELED):
            self._journal.failed(op, outcome, error, level)

    def _finish(self, op: Operation) -> None:
        """The operation is no more: nothing of it stays behind in an outbox or with the shell."""
        assert op.outcome is not None
        if op.request_id:
            self._outboxes.withdraw_bootstrap(op.cluster, op.request_id)
            if op.step is Step.SLOT:
                self._drop_blob(op)
        if op.instruction_id:
            machine = self._fleet.machine(op.machine_id)
            if machine is None or machine.state is not MachineState.DRAINING:
                self._outboxes.withdraw_reclaim(op.cluster, op.instruction_id)
        self._operations.end(op)
        self._ctx.count(series.ACTION_OUTCOMES, op.action.kind.value, op.outcome.value)
        if op.started:
            self._journal.audit("action.result", op, outcome=op.outcome.value, err=op.error or None)

    def _changed(self, before: Machine | None, after: Machine | None) -> None:
        if before is None:
            return
        if after is None:
            self._hold_offs.removed(before.id)
        elif before.state is MachineState.DELETING and after.state is MachineState.SPECULATIVE:
            # However the end of the Delete was learnt.
            self._ctx.count(series.IDLE_RELEASES)
        elif before.state is MachineState.CREATING and after.state is MachineState.IDLE:
            op = self._operations.on(after.id)
            if op is None or op.outcome is not None:
                # No operation goes on with it.
                self._blocks.bought((after.target_cluster, after.assigned_need_fingerprint), after.id)

    def _machine(self, op: Operation) -> Machine:
        machine = self._fleet.machine(op.machine_id)
        assert machine is not None, "a machine with an operation is not removed"
        return machine


_TTL_RESERVE_S: Final = 5
"""Of a blob's life, for its way to the machine (B3)."""
_MAX_TTL_S: Final = 365 * 24 * 3600
"""As good as for ever, and a time that a checkpoint can hold."""
_MAX_ERROR: Final = 1_024
"""Of an operator's reason: the log must not be a stranger's."""
_HALTED: Final = "actuation was stopped"
_UNANSWERED: Final = "the shard stopped before the provider answered"
_HELD_BACK: Final = "the provider does not answer; calls are held back"

_ACQUIRING: Final = frozenset({Rpc.CREATE, Rpc.CONFIGURE})
"""The calls that give a cluster a machine."""

_FIRST_STEP: Final = {
    Rpc.CREATE: Step.SLOT,
    Rpc.CONFIGURE: Step.ROOM,
    Rpc.DRAIN: Step.CORDON,
    Rpc.DELETE: Step.SLOT,
}


def _reclaims(actions: list[Action]) -> Counter[str]:
    return Counter(action.cluster for action in actions if action.kind is ActionKind.RECLAIM)


def _need(action: Action) -> Pair:
    """Whom a Bootstrap or a Provision serves."""
    assert action.profile is not None
    return (action.cluster, action.profile.fingerprint)


def _text(op: Operation, error: str) -> str:
    return f"{op.rpc.value.lower()}: {error}"
