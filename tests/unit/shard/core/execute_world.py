"""An executor with a clock that stands until it is moved, and stand-ins for what is around it."""

import copy
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TypeVar

from bigfleet.engine.actions import Action, ActionKind, Reason
from bigfleet.engine.cycle import Engine
from bigfleet.engine.options import SECOND
from bigfleet.shard.core.context import Context
from bigfleet.shard.core.effects import (
    ConfigureMachine,
    Count,
    CreateMachine,
    DeleteMachine,
    DrainMachine,
    Effect,
    WriteAudit,
    WriteLog,
)
from bigfleet.shard.core.events import BootstrapAnswered, CallEnded, Failure, GetEnded, Observed, ReclaimAcked
from bigfleet.shard.core.execute import Executor, ExecutorState
from bigfleet.shard.core.fleet import Fleet, FleetState
from bigfleet.shard.core.settings import Settings
from bigfleet.shard.provider import FailureKind
from bigfleet_base.model import (
    CapacityType,
    HostRef,
    Machine,
    MachineState,
    Operator,
    Preemptor,
    Profile,
    Requirement,
    ResourceVector,
)
from bigfleet_base.model.frames import BootstrapRequest, ReclaimInstruction
from bigfleet_base.telemetry.catalogue import shard as series
from bigfleet_base.telemetry.series import CounterSeries

Mutation = CreateMachine | ConfigureMachine | DrainMachine | DeleteMachine
MUTATIONS = (CreateMachine, ConfigureMachine, DrainMachine, DeleteMachine)
E = TypeVar("E")

PROFILE = Profile(
    (Requirement("node.kubernetes.io/instance-type", Operator.IN, ("m1",)),),
    priority=1000,
    interruption_bucket=5,
    reclamation_bucket=2,
)
PREEMPTOR = Preemptor("c9", 1_000_000, "f" * 64, "g9")


class StandInSessions:
    def __init__(self, clusters: Iterable[str]) -> None:
        self.open = set(clusters)

    def session_of(self, cluster: str) -> int | None:
        return 1 if cluster in self.open else None


class StandInOutboxes:
    """Remembers what is queued, by cluster and id."""

    def __init__(self) -> None:
        self.requests: dict[tuple[str, str], BootstrapRequest] = {}
        self.instructions: dict[tuple[str, str], ReclaimInstruction] = {}
        self.ever: list[BootstrapRequest | ReclaimInstruction] = []
        self.names: dict[str, str] = {}
        self.stopped = False
        self._count = 0

    def bootstrap(self, cluster: str, frame: BootstrapRequest) -> None:
        assert (cluster, frame.request_id) not in self.requests
        self.requests[cluster, frame.request_id] = frame
        self.ever.append(frame)

    def withdraw_bootstrap(self, cluster: str, request_id: str) -> None:
        self.requests.pop((cluster, request_id), None)

    def new_instruction_id(self) -> str:
        self._count += 1
        return f"shard-0-7-{self._count}"

    def reclaim(self, cluster: str, machine_id: str, frame: ReclaimInstruction) -> None:
        self.instructions[cluster, frame.instruction_id] = frame
        self.ever.append(frame)

    def withdraw_reclaim(self, cluster: str, instruction_id: str) -> None:
        self.instructions.pop((cluster, instruction_id), None)

    def node_name(self, machine_id: str) -> str:
        return self.names.get(machine_id, "")

    def halt_instructions(self, stopped: bool) -> None:
        self.stopped = stopped


class World:
    """One executor. Every method that is an event pumps afterwards, as the core does."""

    def __init__(self, *, concurrency: int = 2, clusters: Iterable[str] = ("c1", "c2"), local: bool = False):
        self.ctx = Context(
            Settings(
                shard_id="shard-0",
                epoch=7,
                seed=b"seed",
                providers=("default",),
                concurrency=concurrency,
                local_bootstrap=local,
            ),
            Engine(),
            now=1_000 * SECOND,
        )
        self.fleet = Fleet(self.ctx, FleetState())
        self.sessions = StandInSessions(clusters)
        self.outboxes = StandInOutboxes()
        self.verified: list[str] = []
        self.released: list[str] = []
        self.history: list[Effect] = []
        self.executor = self._executor(ExecutorState())

    def restore(self) -> None:
        """Go on from a copy of the state alone, as after a checkpoint."""
        self.fleet.listeners.clear()
        self.executor = self._executor(copy.deepcopy(self.executor.state))

    def _executor(self, state: ExecutorState) -> Executor:
        executor = Executor(self.ctx, self.fleet, self.sessions, self.outboxes, state)
        executor.verify = self.verified.append
        executor.released = self.released.append
        return executor

    # Machines

    def add(self, machine_id: str, state: MachineState, cluster: str = "", **fields: object) -> Machine:
        machine = record(machine_id, state, cluster)
        if state is MachineState.CONFIGURED:
            machine = replace(
                machine,
                assigned_priority=PROFILE.priority,
                assigned_interruption_penalty=4.0,
                assigned_reclamation_penalty=0.5,
                assigned_need_fingerprint=PROFILE.fingerprint,
            )
        machine = replace(machine, **fields)  # type: ignore[arg-type]  # keywords of Machine, checked by it
        self.fleet.insert(machine, "default")
        return machine

    def machine(self, machine_id: str) -> Machine:
        machine = self.fleet.machine(machine_id)
        assert machine is not None
        return machine

    def state(self, machine_id: str) -> MachineState:
        return self.machine(machine_id).state

    # Events

    def enqueue(self, *actions: Action) -> list[Effect]:
        self.executor.enqueue(actions)
        return self.settle()

    def settle(self) -> list[Effect]:
        """The end of an event: start what may start; returns what the event led to."""
        self.executor.pump()
        effects, self.ctx.effects = self.ctx.effects, []
        self.history += effects
        return effects

    def advance(self, seconds: float) -> list[Effect]:
        """Let time pass, and tell the executor of the times it asked for."""
        until = self.ctx.now + int(seconds * SECOND)
        effects = []
        while (at := self.ctx.timers.next()) is not None and at <= until:
            self.ctx.now = max(at, self.ctx.now)
            due = self.ctx.timers.due(self.ctx.now)
            assert due is not None
            self.executor.timer(*due)
            effects += self.settle()
        self.ctx.now = until
        return effects + self.settle()

    def answer(self, request: BootstrapRequest, *, ttl_s: int = 0, error: str = "") -> list[Effect]:
        self.executor.answered(request.cluster, BootstrapAnswered(1, request.request_id, ttl_s, error))
        return self.settle()

    def ack(self, instruction_id: str, *, cluster: str = "c1", nodes: int = 1) -> list[Effect]:
        self.executor.cordoned(cluster, ReclaimAcked(1, instruction_id, nodes))
        return self.settle()

    def succeed(self, call: Mutation, state: MachineState, **fields: object) -> list[Effect]:
        """The provider answers a call with a record in a state."""
        cluster = "" if state in UNBOUND else self.machine(call.machine_id).cluster
        seen = record(call.machine_id, state, cluster)
        seen = replace(seen, **fields)  # type: ignore[arg-type]  # keywords of Machine, checked by it
        self.executor.call_ended(CallEnded(call.op, Observed(seen)))
        return self.settle()

    def fail(self, call: Mutation, kind: FailureKind, code: str = "X", details: str = "why") -> list[Effect]:
        self.executor.call_ended(CallEnded(call.op, failure=Failure(kind.value, code, details, 42)))
        return self.settle()

    def got(self, machine_id: str, seen: Machine | FailureKind, *, started: int | None = None) -> bool:
        """A Get is answered; returns whether the executor took it for its own."""
        sent = self.ctx.now if started is None else started
        if isinstance(seen, Machine):
            event = GetEnded("default", machine_id, sent, Observed(seen))
        else:
            event = GetEnded("default", machine_id, sent, failure=Failure(seen.value, "X", "why"))
        is_own = self.executor.got(event)
        self.settle()
        return is_own

    def in_call(self, kind: str) -> Mutation:
        """A machine ``m1`` whose call of this kind is in flight."""
        source = SOURCES[kind]
        self.add("m1", source, "c1" if source is MachineState.CONFIGURED else "")
        match kind:
            case "Provision":
                self.enqueue(provision("m1"))
            case "Bootstrap":
                self.enqueue(bootstrap("m1"))
                self.answer(self.requests()[0])
            case "Reclaim":
                self.enqueue(reclaim("m1"))
                self.ack(self.instructions()[0].instruction_id)
            case _:
                self.enqueue(delete("m1"))
        [call] = self.calls()
        return call

    # What was seen

    def calls(self, effects: Iterable[Effect] | None = None) -> list[Mutation]:
        return [e for e in (self.history if effects is None else effects) if isinstance(e, MUTATIONS)]

    def seen(self, kind: type[E], effects: Iterable[Effect] | None = None) -> list[E]:
        return [e for e in (self.history if effects is None else effects) if isinstance(e, kind)]

    def requests(self, cluster: str = "c1") -> list[BootstrapRequest]:
        return [frame for (of, _), frame in self.outboxes.requests.items() if of == cluster]

    def instructions(self, cluster: str = "c1") -> list[ReclaimInstruction]:
        return [frame for (of, _), frame in self.outboxes.instructions.items() if of == cluster]

    def outcomes(self) -> list[tuple[str, str]]:
        """(kind, outcome) of every operation that has ended."""
        return [
            (e.labels[0], e.labels[1])
            for e in self.seen(Count)
            if e.series is series.ACTION_OUTCOMES and e.by == 1
        ]

    def counted(self, counter: CounterSeries) -> float:
        return sum(e.by for e in self.seen(Count) if e.series is counter)

    def audit(self, kind: str = "") -> list[Mapping[str, object]]:
        lines = [dict(e.line) for e in self.seen(WriteAudit)]
        return [line for line in lines if not kind or line["type"] == kind]

    def logs(self, msg: str) -> list[Mapping[str, object]]:
        return [{"level": e.level, **dict(e.fields)} for e in self.seen(WriteLog) if e.msg == msg]


SOURCES = {
    "Provision": MachineState.SPECULATIVE,
    "Bootstrap": MachineState.IDLE,
    "Reclaim": MachineState.CONFIGURED,
    "Delete": MachineState.IDLE,
}
"""Where the actions of each kind start."""

UNBOUND = frozenset(
    {
        MachineState.SPECULATIVE,
        MachineState.CREATING,
        MachineState.IDLE,
        MachineState.DELETING,
        MachineState.FAILED,
    }
)


def record(machine_id: str, state: MachineState, cluster: str = "") -> Machine:
    """A provider's record."""
    hosted = state not in (MachineState.SPECULATIVE, MachineState.CREATING)
    return Machine(
        machine_id,
        state,
        host=HostRef("default", f"host-{machine_id}") if hosted else HostRef(),
        cluster=cluster,
        instance_type="m1",
        zone="z1",
        capacity_type=CapacityType.ON_DEMAND,
        resources=ResourceVector({"cpu": 4000}),
        labels={"rack": "r1"},
        price_per_hour=1.0,
        last_error="it broke" if state is MachineState.FAILED else "",
    )


def bootstrap(machine_id: str, cluster: str = "c1", profile: Profile | None = PROFILE) -> Action:
    return Action(
        ActionKind.BOOTSTRAP, machine_id, Reason.IDLE, cluster, profile=profile, group="g1", cost=1.5
    )


def provision(machine_id: str, cluster: str = "c1", profile: Profile | None = PROFILE) -> Action:
    return Action(ActionKind.PROVISION, machine_id, Reason.SPECULATIVE, cluster, profile=profile, group="g1")


def reclaim(machine_id: str, cluster: str = "c1") -> Action:
    return Action(ActionKind.RECLAIM, machine_id, Reason.EXCESS, cluster, grace_s=600)


def preempt(machine_id: str, cluster: str = "c1", preemptor: Preemptor = PREEMPTOR) -> Action:
    return Action(ActionKind.PREEMPT, machine_id, Reason.INVERSION, cluster, grace_s=10, preemptor=preemptor)


def delete(machine_id: str) -> Action:
    return Action(ActionKind.DELETE, machine_id, Reason.RELEASE)
