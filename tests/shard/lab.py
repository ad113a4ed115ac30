"""A shard's core in a small world that a test controls completely."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import partial
from typing import Any, Final

from bigfleet.engine.options import Options
from bigfleet.shard.core.effects import ConfigureMachine, CreateMachine, DeleteMachine, DrainMachine
from bigfleet.shard.core.events import Failure, Observed
from bigfleet.shard.core.settings import Settings
from bigfleet.shard.provider.failures import classify
from bigfleet.sim.operator import Habits, SimOperator
from bigfleet.sim.provider import Answer, Answered, Mutation, Token
from bigfleet.sim.shard import SimShard, Trace
from bigfleet.sim.time import Order, VirtualTime
from bigfleet_base.model import (
    CapacityType,
    HostRef,
    Machine,
    MachineState,
    Need,
    Operator,
    Profile,
    Requirement,
    ResourceVector,
)
from bigfleet_base.model.requirement import INSTANCE_TYPE_KEY

SECOND: Final = 1_000_000_000
MINUTE: Final = 60 * SECOND
START: Final = 1_750_000_000 * SECOND
S = MachineState

RPC = {CreateMachine: "Create", ConfigureMachine: "Configure", DrainMachine: "Drain", DeleteMachine: "Delete"}
FROM = {"Create": S.SPECULATIVE, "Configure": S.IDLE, "Drain": S.CONFIGURED, "Delete": S.IDLE}
DURING = {"Create": S.CREATING, "Configure": S.CONFIGURING, "Drain": S.DRAINING, "Delete": S.DELETING}
ENDS = {S.CREATING: S.IDLE, S.CONFIGURING: S.CONFIGURED, S.DRAINING: S.IDLE, S.DELETING: S.SPECULATIVE}


DEPLOYED: Final = Options(reclaim_cap=Fraction(5, 100), guard=True)
"""With its rails on, as command lines set it up; the library has them off."""
CPU: Final = ResourceVector({"cpu": 1000})


def machine(machine_id: str, state: MachineState = S.IDLE, **values: Any) -> Machine:
    """A machine of one cpu."""
    hostless = state in (S.SPECULATIVE, S.CREATING)
    bound = state in (S.CONFIGURING, S.CONFIGURED, S.DRAINING)
    fields: dict[str, Any] = {
        "host": HostRef() if hostless else HostRef("lab", f"host-{machine_id}"),
        "cluster": "c1" if bound else "",
        "instance_type": "small",
        "zone": "z1",
        "capacity_type": CapacityType.ON_DEMAND,
        "resources": CPU,
        "price_per_hour": 1.0,
    }
    return Machine(machine_id, state, **(fields | values))


def machines(count: int, state: MachineState = S.IDLE, prefix: str = "m", **values: Any) -> list[Machine]:
    return [machine(f"{prefix}-{n:04}", state, **values) for n in range(count)]


def profile(priority: int = 1000, kind: str = "small", **values: Any) -> Profile:
    return Profile((Requirement(INSTANCE_TYPE_KEY, Operator.IN, (kind,)),), priority=priority, **values)


def need(cluster: str, cpus: int, priority: int = 1000, kind: str = "small", **values: Any) -> Need:
    """Demand for so many machines."""
    return Need(cluster, profile(priority, kind), ResourceVector({"cpu": 1000 * cpus}), CPU, **values)


def serving(wanted: Need, count: int, prefix: str = "m", **values: Any) -> list[Machine]:
    """Machines that serve a Need."""
    found = machines(count, S.CONFIGURED, prefix, cluster=wanted.cluster_id, **values)
    return [
        replace(
            m,
            assigned_priority=wanted.profile.priority,
            assigned_need_fingerprint=wanted.profile.fingerprint,
            assigned_group=wanted.group,
        )
        for m in found
    ]


def failure(code: str, details: str = "scripted", sequence: int = 0) -> Failure:
    return Failure(classify(code).value, code, details, sequence)


class ScriptedProvider:
    """A provider that keeps the base contract, and breaks it where a test says so.

    Calls are accepted and transitions stay under way until ``finish``, or end at once if ``instant``.
    """

    def __init__(
        self,
        time: VirtualTime,
        records: Sequence[Machine] = (),
        name: str = "default",
        *,
        instant: bool = True,
    ) -> None:
        self.name = name
        self.instant = instant
        self.echoes = True
        self.down = False
        self.list_failure: Failure | None = None
        self.get_failure: Failure | None = None
        self.refuse: Callable[[str, str], Failure | None] = lambda _rpc, _machine_id: None
        """Asked for each call; a failure is answered without effect."""
        self.answer_delay = 0
        self.hold: Callable[[str, str], bool] = lambda _rpc, _machine_id: False
        """Calls whose answer waits for ``release``."""
        self.lists = 0
        self.gets: list[str] = []
        self.calls: list[tuple[int, str, str]] = []
        """Every call that arrived: when, which, for which machine."""
        self.accepted: list[tuple[str, str]] = []
        self.records = {m.id: Observed(m) for m in records}
        self.hide: Callable[[str], bool] = lambda _: False
        """Machines that a List leaves out."""
        self.rejected: list[str] = []
        self._time = time
        self._floor = 0
        self._held: list[tuple[Answered, Answer]] = []

    def call(self, effect: Mutation, token: Token, answered: Answered) -> None:
        rpc = RPC[type(effect)]
        self.calls.append((self._time.now, rpc, effect.machine_id))
        if self.down:
            answer: Answer = failure("UNAVAILABLE")
        else:
            refusal = self.refuse(rpc, effect.machine_id)
            answer = refusal or self._fence(token) or self._accept(rpc, effect)
        if self.hold(rpc, effect.machine_id):
            self._held.append((answered, answer))
        else:
            self._time.after(self.answer_delay, Order.PROVIDER, lambda: answered(answer))

    def release(self) -> None:
        """Answer the calls that were held."""
        held, self._held = self._held, []
        for answered, answer in held:
            self._time.after(0, Order.PROVIDER, partial(answered, answer))

    def raise_floor(self, token: Token, answered: Answered) -> None:
        answer = failure("UNAVAILABLE") if self.down else self._fence(token) or failure("NOT_FOUND")
        self._time.after(0, Order.PROVIDER, lambda: answered(answer))

    def get(self, machine_id: str, answered: Answered) -> None:
        self.gets.append(machine_id)
        if self.down:
            answer: Answer = failure("UNAVAILABLE")
        else:
            answer = self.get_failure or self.records.get(machine_id) or failure("NOT_FOUND")
        self._time.after(self.answer_delay, Order.PROVIDER, lambda: answered(answer))

    def list_all(self) -> tuple[list[Observed], list[str]] | Failure:
        self.lists += 1
        if self.down:
            return failure("UNAVAILABLE")
        if self.list_failure is not None:
            return self.list_failure
        ids = sorted(machine_id for machine_id in self.records if not self.hide(machine_id))
        return [self.records[i] for i in ids if i not in self.rejected], list(self.rejected)

    def put(self, record: Machine) -> None:
        """The machine is now like this."""
        self.records[record.id] = Observed(record)

    def finish(self, machine_id: str = "") -> None:
        """Transitions under way end well: of one machine, or of all."""
        for known in [machine_id] if machine_id else list(self.records):
            state = self.records[known].machine.state
            if state in ENDS:
                self._move(known, ENDS[state])

    def fail(self, machine_id: str, error: str = "broken") -> None:
        """The machine has failed."""
        seen = self.records[machine_id].machine
        self.put(replace(seen, state=S.FAILED, last_error=error))

    def states(self, *states: MachineState) -> list[str]:
        return sorted(i for i, seen in self.records.items() if seen.machine.state in states)

    def count(self, rpc: str) -> int:
        """Calls that were accepted."""
        return sum(1 for kind, _ in self.accepted if kind == rpc)

    def _fence(self, token: Token) -> Failure | None:
        if token.epoch < self._floor:
            return failure("FAILED_PRECONDITION", f"epoch {self._floor} has been seen", token.sequence)
        self._floor = token.epoch
        return None

    def _accept(self, rpc: str, effect: Mutation) -> Answer:
        seen = self.records.get(effect.machine_id)
        if seen is None:
            return failure("NOT_FOUND")
        if seen.machine.state is not FROM[rpc]:
            return failure("ABORTED", f"the machine is {seen.machine.state.title}")
        self.accepted.append((rpc, effect.machine_id))
        record = replace(seen.machine, state=DURING[rpc])
        instruction, preemptor = "", None
        match effect:
            case CreateMachine(assignment=a, target_cluster=target) if self.echoes:
                record = replace(
                    record,
                    assigned_need_fingerprint=a.need_fingerprint,
                    assigned_group=a.group,
                    target_cluster=target,
                )
            case ConfigureMachine(cluster=cluster, assignment=a):
                record = replace(
                    record,
                    cluster=cluster,
                    assigned_priority=a.priority,
                    assigned_interruption_penalty=a.interruption_penalty,
                    assigned_reclamation_penalty=a.reclamation_penalty,
                    assigned_need_fingerprint=a.need_fingerprint,
                    assigned_group=a.group,
                )
            case DrainMachine() if self.echoes:
                instruction, preemptor = effect.instruction_id, effect.preemptor
        self.records[record.id] = Observed(record, instruction, preemptor)
        if self.instant:
            self._move(record.id, ENDS[record.state])
        return self.records[record.id]

    def _move(self, machine_id: str, state: MachineState) -> None:
        record = replace(self.records[machine_id].machine, state=state)
        if state in (S.IDLE, S.SPECULATIVE):
            record = replace(
                record,
                cluster="",
                host=HostRef("lab", f"host-{machine_id}") if state is S.IDLE else HostRef(),
                assigned_priority=0,
                assigned_interruption_penalty=0.0,
                assigned_reclamation_penalty=0.0,
                assigned_need_fingerprint="",
                assigned_group="",
                target_cluster="",
            )
        self.put(record)


class Lab:
    """One shard, its scripted providers and operators."""

    def __init__(
        self,
        records: Sequence[Machine] = (),
        *,
        providers: Sequence[ScriptedProvider] = (),
        time: VirtualTime | None = None,
        instant: bool = True,
        trace: Trace | None = None,
        settle: bool = True,
        **settings: Any,
    ) -> None:
        self.time = time or VirtualTime(START)
        self.provider = providers[0] if providers else ScriptedProvider(self.time, records, instant=instant)
        names = tuple(p.name for p in providers) or (self.provider.name,)
        self.shard = SimShard(
            self.time,
            Settings("shard-0", 1, b"seed", names, **settings),
            providers or (self.provider,),
            trace=trace,
        )
        self.operators: dict[str, SimOperator] = {}
        if settle:
            self.run(0)

    @property
    def core(self) -> Any:
        return self.shard.running

    @property
    def notes(self) -> Any:
        return self.shard.notes

    def operator(self, cluster: str, *needs: Need, habits: Habits | None = None) -> SimOperator:
        """An operator with a session and this demand."""
        made = SimOperator(self.shard, cluster, needs, habits)
        self.operators[cluster] = made
        made.connect()
        return made

    def run(self, seconds: float) -> None:
        self.time.run_for(round(seconds * SECOND))

    def run_until(self, condition: Callable[[], bool], limit_s: float = 600) -> None:
        assert self.time.run_until_true(condition, round(limit_s * SECOND)), "did not happen in time"

    def machine(self, machine_id: str) -> Machine:
        found = self.shard.running.fleet.machine(machine_id)
        assert found is not None, machine_id
        return found

    def state(self, machine_id: str) -> MachineState:
        return self.machine(machine_id).state

    def ids(self, *states: MachineState) -> list[str]:
        inventory = self.shard.running.engine.inventory
        return sorted(i for i in inventory if inventory.entry(i).machine.state in states)

    def counter(self, series: Any, *labels: str) -> float:
        value: float = self.shard.notes.counters[series.name, *labels]
        return value

    def gauge(self, series: Any, *labels: str) -> float:
        return self.shard.notes.gauges.get((series.name, *labels), 0)
