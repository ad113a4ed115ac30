"""The executor among a provider and operators that answer in any order, wrongly, late or never."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from bigfleet.engine.actions import Action
from bigfleet.shard.core.effects import ConfigureMachine, DropBlob, Effect, GetMachine
from bigfleet.shard.core.events import BootstrapAnswered, BreakerChanged, BreakerState, CallEnded, Observed
from bigfleet.shard.core.fleet import TRANSITIONAL
from bigfleet.shard.core.merge import merged
from bigfleet.shard.core.operations import Operation, Operations, Step
from bigfleet.shard.provider import FailureKind
from bigfleet_base.model import CapacityType, HostRef, Machine, MachineState
from bigfleet_base.model.frames import BootstrapRequest
from bigfleet_base.model.lifecycle import (
    CONFIGURED,
    CONFIGURING,
    CREATING,
    DELETING,
    DRAINING,
    FAILED,
    IDLE,
    SPECULATIVE,
    Rpc,
)
from bigfleet_base.telemetry.catalogue import shard as series
from tests.support import rules
from tests.unit.shard.core.execute_world import (
    Mutation,
    World,
    bootstrap,
    delete,
    preempt,
    provision,
    reclaim,
    record,
)

CLUSTERS = ("c1", "c2")
MACHINES = tuple(f"m{n}" for n in range(9))
ENDS = {CREATING: IDLE, CONFIGURING: CONFIGURED, DRAINING: IDLE, DELETING: SPECULATIVE, FAILED: IDLE}
BEGINS = {Rpc.CREATE: CREATING, Rpc.CONFIGURE: CONFIGURING, Rpc.DRAIN: DRAINING, Rpc.DELETE: DELETING}
UNCLEAR = (FailureKind.TRANSIENT, FailureKind.FAILED, FailureKind.BAD_ANSWER)
ENDINGS = (*("done", "begun") * 4, "broken", "of another machine", *(kind.value for kind in FailureKind))
OUTCOMES = frozenset(series.ACTION_OUTCOMES.labels[1].values or ())

machines = st.sampled_from(MACHINES)
# What stops everything is kept rare, or a run would see little else.
rarely = st.sampled_from((False,) * 7 + (True,))
clusters = st.sampled_from(CLUSTERS)

Draw = Callable[[st.SearchStrategy[Any]], Any]


class Executing(RuleBasedStateMachine):
    """``truth`` is what the provider has; the executor sees it only through answers."""

    @initialize(slots=st.integers(1, 3), may_fence=rarely)
    def begin(self, slots: int, may_fence: bool) -> None:
        self.slots = slots
        self.may_fence = may_fence
        self.world = World(concurrency=slots, clusters=CLUSTERS)
        self.truth: dict[str, Machine] = {}
        self.asked: dict[str, BootstrapRequest] = {}
        self.taken: dict[str, MachineState] = {}
        """Of machines in transition: the state that a call has brought them to at the provider."""
        self.blobs: set[str] = set()
        self.in_call: dict[int, Mutation] = {}
        self.gets: set[str] = set()
        self.read = 0
        self.is_running = False
        for number, machine_id in enumerate(MACHINES):
            state = (SPECULATIVE, IDLE, CONFIGURED)[number % 3]
            cluster = CLUSTERS[number % 2] if state is CONFIGURED else ""
            kind = CapacityType.SPOT if number % 2 else CapacityType.ON_DEMAND
            self.truth[machine_id] = self.world.add(machine_id, state, cluster, capacity_type=kind)

    # What happens

    @rule(data=st.data())
    def happen(self, data: st.DataObject) -> None:
        """One of the things that can happen now; what keeps work going is more likely than what stops it."""
        possible = [self.decide] * 3 + [self.wait, self.disturb, self.run_or_end_cycle]
        if self.world.outboxes.requests:
            possible += [self.answer] * 3
        if self.asked:
            possible.append(self.answer_again)
        if self.world.outboxes.instructions:
            possible += [self.cordon] * 2
        if self.in_call:
            possible += [self.end_call] * 5
        if self.gets:
            possible += [self.answer_get] * 3
        if not self.is_running:
            possible += [self.reconcile] * 3
        data.draw(st.sampled_from(possible))(data.draw)

    def decide(self, draw: Draw) -> None:
        """A cycle's actions, most of them for machines that are where they should be."""
        cluster, actions = draw(clusters), []
        for machine_id in draw(st.lists(machines, min_size=3, max_size=9)):
            machine = self.world.fleet.machine(machine_id)
            state = SPECULATIVE if machine is None else machine.state
            if draw(rarely):
                state = draw(st.sampled_from((SPECULATIVE, IDLE, CONFIGURED)))
            if state is CONFIGURED:
                owner = cluster if machine is None else machine.cluster or cluster
                kinds: tuple[Action, ...] = (preempt(machine_id, owner), reclaim(machine_id, owner))
            elif state is IDLE:
                kinds = (bootstrap(machine_id, cluster), bootstrap(machine_id, cluster), delete(machine_id))
            else:
                kinds = (provision(machine_id, cluster),)
            actions.append(draw(st.sampled_from(kinds)))
        self.world.executor.before_cycle()
        self.world.executor.enqueue(self.world.executor.admit(actions))
        self.settle()

    def answer(self, draw: Draw) -> None:
        _, request_id = draw(st.sampled_from(sorted(self.world.outboxes.requests)))
        ttl_s, error = draw(st.sampled_from((0, 0, 0, 3, 8))), draw(st.sampled_from(("", "", "", "no")))
        self.answer_request(request_id, ttl_s, error)

    def answer_again(self, draw: Draw) -> None:
        """One of the last requests, whether it was answered, was given up, or is out."""
        self.answer_request(draw(st.sampled_from(list(self.asked)[-3:])), 0, "")

    def answer_request(self, request_id: str, ttl_s: int, error: str) -> None:
        if not error:
            self.blobs.add(request_id)
        event = BootstrapAnswered(1, request_id, ttl_s, error)
        self.world.executor.answered(self.asked[request_id].cluster, event)
        self.settle()

    def cordon(self, draw: Draw) -> None:
        cluster, instruction = draw(st.sampled_from(sorted(self.world.outboxes.instructions)))
        self.take(self.world.ack(instruction, cluster=cluster, nodes=draw(st.integers(0, 1))))

    def end_call(self, draw: Draw) -> None:
        call = self.in_call.pop(draw(st.sampled_from(sorted(self.in_call))))
        end = draw(st.sampled_from(ENDINGS))
        match end:
            case "done" | "begun" | "broken":
                begun = self.begin_there(call)
                if end == "done":
                    self.finish_there(begun.id)
                elif end == "broken":
                    self.truth[begun.id] = replace(begun, state=FAILED, cluster="", last_error="it broke")
                self.world.executor.call_ended(CallEnded(call.op, Observed(self.truth[begun.id])))
                self.settle()
            case "of another machine":
                self.world.executor.call_ended(CallEnded(call.op, Observed(record("stranger", IDLE))))
                self.settle()
            case _:
                kind = FailureKind(end)
                if kind in UNCLEAR and draw(st.booleans()):
                    self.begin_there(call)
                elif kind is FailureKind.NOT_FOUND:
                    del self.truth[call.machine_id]
                elif kind is FailureKind.FENCED and not self.may_fence:
                    kind = FailureKind.TRANSIENT
                self.take(self.world.fail(call, kind))

    def answer_get(self, draw: Draw) -> None:
        machine_id = draw(st.sampled_from(sorted(self.gets)))
        self.gets.discard(machine_id)
        known = self.truth.get(machine_id, FailureKind.NOT_FOUND)
        assert self.world.got(machine_id, FailureKind.TRANSIENT if draw(rarely) else known)
        self.take(())

    def reconcile(self, draw: Draw) -> None:
        """A List shows what the provider has; machines with an operation are left alone (Q1)."""
        machine_id = draw(machines)
        if self.world.executor.is_busy(machine_id):
            return
        if machine_id not in self.truth:
            self.truth[machine_id] = record(machine_id, SPECULATIVE)
        elif draw(st.booleans()):
            self.finish_there(machine_id)
        ours, theirs = self.world.fleet.machine(machine_id), self.truth[machine_id]
        if ours is None:
            self.world.fleet.insert(theirs, "default")
        else:
            self.world.fleet.observe(merged(ours, theirs))
        self.world.verified[:] = [m for m in self.world.verified if m != machine_id]
        # A real outbox follows its machines out of Draining by itself.
        if theirs.state is not DRAINING:
            for key, instruction in list(self.world.outboxes.instructions.items()):
                if instruction.node == machine_id:
                    del self.world.outboxes.instructions[key]
        self.settle()

    def wait(self, draw: Draw) -> None:
        self.take(self.world.advance(draw(st.sampled_from((1, 1, 1, 1, 5, 5, 30, 60, 600)))))

    def disturb(self, draw: Draw) -> None:
        """Something stops for a moment, or until the next time."""
        executor = self.world.executor
        match draw(st.sampled_from(("pause", "breaker", "session", "session", "session"))):
            case "pause":
                executor.halt()
                self.settle()
                self.nothing_waits_while_the_executor_is_halted()
            case "breaker":
                executor.breaker_changed(BreakerChanged("default", BreakerState.OPEN))
            case _:
                self.world.sessions.open.discard(draw(clusters))
        self.settle()
        if not draw(rarely):
            executor.resume()
            executor.breaker_changed(BreakerChanged("default", BreakerState.CLOSED))
            for returning in CLUSTERS:
                if returning not in self.world.sessions.open:
                    self.world.sessions.open.add(returning)
                    executor.session_opened(returning)
            self.settle()

    def run_or_end_cycle(self, draw: Draw) -> None:
        """While a cycle runs the inventory stands still and writes wait. Sometimes the process goes on from a
        checkpoint."""
        self.is_running = not self.is_running
        if self.is_running:
            self.world.ctx.engine.inventory.freeze()
        else:
            self.world.ctx.engine.inventory.thaw()
        if draw(rarely):
            self.world.restore()

    # What must be true

    @invariant()
    def slots_and_places_are_bounded(self) -> None:
        executor = self.world.executor
        assert executor.in_flight() == len(self.in_call) <= self.slots
        assert executor.depth() + executor.free_places() == self.world.ctx.settings.queue_capacity
        for cluster in CLUSTERS:
            assert len(self.world.requests(cluster)) <= self.slots

    @invariant()
    def a_machine_has_one_operation(self) -> None:
        ids = [op.machine_id for op in self.operations.values()]
        assert len(ids) == len(set(ids))

    @invariant()
    def every_operation_ends_with_one_outcome(self) -> None:
        outcomes = self.world.outcomes()
        assert {outcome for _, outcome in outcomes} <= OUTCOMES
        assert self.world.counted(series.ACTIONS) == len(outcomes) + len(self.operations)

    @invariant()
    def every_started_operation_is_told_once_before_its_call_and_once_at_its_end(self) -> None:
        emitted = [line["op_id"] for line in self.world.audit("action.emitted")]
        results = [line["op_id"] for line in self.world.audit("action.result")]
        assert len(set(emitted)) == len(emitted)
        assert len(set(results)) == len(results)
        running = {f"7-{op.number}" for op in self.operations.values() if op.started}
        assert set(emitted) == running | set(results)
        assert not running & set(results)

    @invariant()
    def no_machine_is_left_in_transition_with_nobody_to_end_it(self) -> None:
        for machine_id in MACHINES:
            machine = self.world.fleet.machine(machine_id)
            if machine is None or machine.state not in TRANSITIONAL:
                self.taken.pop(machine_id, None)
            else:
                assert (
                    self.world.executor.is_busy(machine_id)
                    or machine_id in self.world.verified
                    or self.taken.get(machine_id) is machine.state
                ), f"{machine_id} is {machine.state.title}"

    @invariant()
    def frames_and_blobs_are_those_of_operations(self) -> None:
        steps: dict[Step, set[str]] = {Step.BLOB: set(), Step.SLOT: set()}
        instructions = set()
        for op in self.operations.values():
            if op.request_id:
                steps[op.step].add(op.request_id)
            if op.instruction_id:
                instructions.add(op.instruction_id)
        assert {request for _, request in self.world.outboxes.requests} == steps[Step.BLOB]
        assert self.blobs == steps[Step.SLOT]
        draining = {m for m in MACHINES if (got := self.world.fleet.machine(m)) and got.state is DRAINING}
        waiting = {frame.node for frame in self.world.outboxes.instructions.values()}
        assert waiting <= draining

    @invariant()
    def nothing_waits_while_the_executor_is_halted(self) -> None:
        if self.world.executor.state.halted:
            assert {op.step for op in self.operations.values()} <= {Step.CALL, Step.VERIFY}

    @invariant()
    def nothing_waits_for_what_is_free(self) -> None:
        for cluster in self.world.executor.state.operations.for_room:
            assert len(self.world.requests(cluster)) == self.slots
        if self.world.executor.in_flight() < self.slots:
            assert not self.world.executor.state.operations.for_slot

    @invariant()
    def what_is_not_in_the_state_can_be_made_from_it(self) -> None:
        ours, rebuilt = self.world.executor._operations, Operations(self.world.executor.state.operations)
        assert vars(ours) == vars(rebuilt)

    def teardown(self) -> None:
        """Everything that is under way ends."""
        if not hasattr(self, "world"):
            return
        if self.is_running:
            self.world.ctx.engine.inventory.thaw()
        self.world.executor.halt()
        self.settle()
        for call in list(self.in_call.values()):
            del self.in_call[call.op]
            self.take(self.world.fail(call, FailureKind.TRANSIENT))
        for machine_id in sorted(self.gets):
            assert self.world.got(machine_id, self.truth.get(machine_id, FailureKind.NOT_FOUND))
            self.take(())
        assert not self.operations
        assert not self.blobs
        assert len(self.world.audit("action.emitted")) == len(self.world.audit("action.result"))

    # The provider and the shell

    @property
    def operations(self) -> dict[int, Operation]:
        return self.world.executor.state.operations.running

    def settle(self) -> None:
        self.take(self.world.settle())

    def take(self, _: object) -> None:
        """Do what the shell would with the effects since the last time."""
        effects: list[Effect] = self.world.history[self.read :]
        self.read += len(effects)
        for effect in effects:
            match effect:
                case DropBlob():
                    self.blobs.discard(effect.request_id)
                case GetMachine():
                    assert effect.machine_id not in self.gets
                    self.gets.add(effect.machine_id)
        for call in self.world.calls(effects):
            assert call.op not in self.in_call
            assert not self.world.executor.state.halted
            assert all(call.machine_id != other.machine_id for other in self.in_call.values())
            self.in_call[call.op] = call
            if isinstance(call, ConfigureMachine):
                self.blobs.remove(call.request_id)
        for frame in self.world.outboxes.ever:
            if isinstance(frame, BootstrapRequest):
                self.asked[frame.request_id] = frame

    def begin_there(self, call: Mutation) -> Machine:
        """The provider takes a call."""
        rpc = self.operations[call.op].rpc
        before = self.truth[call.machine_id]
        machine = replace(before, state=BEGINS[rpc])
        if isinstance(call, ConfigureMachine):
            machine = replace(machine, cluster=call.cluster)
        self.truth[machine.id] = machine
        self.taken[machine.id] = machine.state
        return machine

    def finish_there(self, machine_id: str) -> None:
        before = self.truth[machine_id]
        state = ENDS.get(before.state, before.state)
        host = HostRef() if state is SPECULATIVE else HostRef("default", f"host-{machine_id}")
        cluster = before.cluster if state is CONFIGURED else ""
        self.truth[machine_id] = replace(before, state=state, host=host, cluster=cluster, last_error="")


@rules.rule("shard.E1", "shard.E2", "shard.X4", "shard.X7", "shard.R6", "shard.R3")
def test_operations_end_as_they_should_whoever_answers_when() -> None:
    run_state_machine_as_test(Executing, settings=settings(stateful_step_count=80))
