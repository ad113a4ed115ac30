"""A shard's core among operators and a provider that do at random whatever they may do.

Everything follows from one seed. Answers come late and in any order, calls fail in every way, sessions come
and go, machines appear, break and vanish; a cycle is cut into slices with other events in between.
"""

import random
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from functools import partial
from typing import Final, TypeVar

from bigfleet.engine.options import SECOND, Options
from bigfleet.shard.core import effects as ef
from bigfleet.shard.core import events as ev
from bigfleet.shard.core.core import ShardCore
from bigfleet.shard.core.settings import Settings
from bigfleet.shard.provider.failures import FailureKind
from bigfleet_base.model import (
    CapacityType,
    HostRef,
    Machine,
    MachineState,
    Need,
    Operator,
    Preemptor,
    Profile,
    Requirement,
    ResourceVector,
    transition,
)
from bigfleet_base.model.frames import BootstrapRequest, Frame, ReclaimInstruction

T = TypeVar("T")

PROVIDER: Final = "default"
CLUSTERS: Final = ("alpha", "beta", "gamma")
ENDS: Final = {
    MachineState.CREATING: MachineState.IDLE,
    MachineState.CONFIGURING: MachineState.CONFIGURED,
    MachineState.DRAINING: MachineState.IDLE,
    MachineState.DELETING: MachineState.SPECULATIVE,
}
LABEL: Final = "topology.kubernetes.io/zone"

Written = Callable[[int, list[ev.Event], list[ef.Effect]], None]
"""Told of every batch, before its effects are performed."""


class World:
    def __init__(self, seed: int, written: Written) -> None:
        self._random = random.Random(seed)
        self._written = written
        options = Options(
            cycle_interval_ns=10 * SECOND,
            reclaim_cap=Fraction(1, self._random.choice((1, 3, 20))),
            guard=self._random.random() < 0.5,
            max_actions=self._random.choice((0, 0, 3)),
            idle_hold_ns={CapacityType.ON_DEMAND: 30 * SECOND, CapacityType.SPOT: 5 * SECOND},
        )
        self.core = ShardCore(
            Settings("shard-0", 1, b"seed", (PROVIDER,), options, concurrency=self._random.choice((1, 4)))
        )
        self.now = 1_000 * SECOND
        self._begun: object = None
        self._sessions: dict[str, int] = {}
        self._session_count = 0
        self._rows: dict[str, tuple[Need, ...]] = {}
        self._machines = {machine.id: machine for machine in (self._machine(n) for n in range(14))}
        self._told: dict[str, Machine] = {}
        self._answers: list[Callable[[], ev.Event]] = []
        """What peers will say sooner or later."""
        self._between_cycles: list[Callable[[], list[ev.Event]]] = []
        """The same, of what must not come while a cycle runs."""
        self.start()

    def start(self) -> None:
        self.take([ev.TimePassed()])

    def step(self) -> None:
        """Something happens."""
        roll = self._random.random
        self.now += self._random.choice((0, 0, SECOND // 10, SECOND, 7 * SECOND))
        if self.core.running is not None and roll() < 0.5:
            self._run_slice()
        elif self.core.running is None and self._between_cycles and roll() < 0.6:
            event, *rest = self._take_one(self._between_cycles)()
            if rest:
                self._between_cycles.insert(0, lambda: rest)
            self.take([event])
        elif self._answers and roll() < 0.7:
            count = min(len(self._answers), self._random.choice((1, 1, 1, 3)))
            self.take([self._take_one(self._answers)() for _ in range(count)])
        else:
            self._random.choice(
                (
                    self._progress,
                    self._progress,
                    self._progress,
                    self._open,
                    self._open,
                    self._close,
                    self._roll_up,
                    self._roll_up,
                    self._wait,
                    self._wait,
                    self._accident,
                    self._odd_event,
                )
            )()

    def take(self, events: list[ev.Event]) -> None:
        """Hand over a batch as the shell does: write, then perform, then begin the cycle."""
        effects = [effect for event in events for effect in self.core.handle(event, self.now)]
        self._written(self.now, events, effects)
        for effect in effects:
            self._perform(effect)
        if self.core.running is not None and self.core.running is not self._begun:
            self._begun = self.core.running
            self._run_slice()

    def settle(self) -> None:
        """Let a cycle that is running end."""
        while self.core.running is not None:
            self._run_slice()

    def _run_slice(self) -> None:
        assert self.core.running is not None
        try:
            next(self.core.running)
        except StopIteration:
            self.take([ev.CycleFinished(self._random.randrange(1000), (("phase1", 5),), self.core.put_off)])

    def _take_one(self, waiting: list[T]) -> T:
        return waiting.pop(self._random.randrange(min(3, len(waiting))))

    # What operators do

    def _open(self) -> None:
        cluster = self._random.choice(CLUSTERS)
        self._session_count += 1
        self._sessions[cluster] = self._session_count
        self.take([ev.SessionOpened(self._session_count, cluster, "peer", "v1alpha1")])

    def _close(self) -> None:
        if self._sessions:
            cluster = self._random.choice(list(self._sessions))
            self.take([ev.SessionClosed(self._sessions.pop(cluster), self._random.choice(("", "reset")))])

    def _roll_up(self) -> None:
        if not self._sessions:
            return
        cluster, session = self._random.choice(list(self._sessions.items()))
        digest = self.core.accepted_digest(cluster)
        if digest is not None and self._random.random() < 0.2:
            self.take([ev.RollupRepeated(session, self.now)])
            return
        fresh = tuple(self._need(cluster) for _ in range(self._random.choice((0, 1, 2, 3))))
        known = self.core.state.ingest.accepted.get(cluster)
        kept = [n for n in range(len(known.rows) if known else 0) if self._random.random() < 0.7]
        order = (*kept, *(-1 for _ in fresh))
        self.take([ev.Rollup(session, self.now, self._random.randbytes(4), fresh, order)])

    def _need(self, cluster: str) -> Need:
        gang = self._random.random() < 0.3
        requirements = (Requirement(LABEL, Operator.SAME),) if gang else ()
        if self._random.random() < 0.4:
            requirements = (*requirements, Requirement("rack", Operator.IN, (self._random.choice("ab"),)))
        profile = Profile(
            requirements,
            priority=self._random.choice((0, 100, 5_000, 2_000_000)),
            interruption_bucket=self._random.choice((1, 5, 27)),
        )
        amount = self._random.choice((500, 1_000, 2_500, 6_000))
        return Need(
            cluster,
            profile,
            ResourceVector(cpu=amount),
            ResourceVector(cpu=min(amount, 1_000)),
            group=self._random.choice(("g1", "g2")) if gang else "",
        )

    # What the provider does

    def _machine(self, number: int) -> Machine:
        state = self._random.choice((MachineState.SPECULATIVE, MachineState.IDLE, MachineState.CONFIGURED))
        bound = state is MachineState.CONFIGURED
        return Machine(
            f"m-{number:02}",
            state,
            HostRef() if state is MachineState.SPECULATIVE else HostRef("h", str(number)),
            cluster=self._random.choice(CLUSTERS) if bound else "",
            instance_type=self._random.choice(("small", "large")),
            zone=self._random.choice(("z1", "z2")),
            capacity_type=self._random.choice((CapacityType.ON_DEMAND, CapacityType.SPOT)),
            resources=ResourceVector(cpu=self._random.choice((1_000, 2_000)), memory=2**70),
            labels={"rack": self._random.choice("ab")},
            price_per_hour=self._random.choice((1, 1.0, 2.5)),
            interruption_probability=self._random.choice((0.0, 0.1)),
            assigned_priority=self._random.choice((0, 100)) if bound else 0,
        )

    def _progress(self) -> None:
        """A machine gets to the end of its transition; the shard has to look to see it."""
        moving = [machine for machine in self._machines.values() if machine.state in ENDS]
        for machine in moving[: self._random.choice((1, 2, 5))]:
            target = ENDS[machine.state]
            host = {"host": HostRef("h", machine.id)} if machine.state is MachineState.CREATING else {}
            self._machines[machine.id] = transition(machine, target, **host)

    def _accident(self) -> None:
        if not self._machines:
            return
        machine = self._random.choice(list(self._machines.values()))
        match self._random.randrange(4):
            case 0 if machine.state in (MachineState.IDLE, MachineState.CONFIGURED):
                self._machines[machine.id] = transition(machine, MachineState.FAILED, last_error="lost")
            case 1:
                del self._machines[machine.id]
            case 2:
                self._machines[machine.id] = replace(machine, price_per_hour=3.0, labels={"rack": "c"})
            case _:
                number = self._random.randrange(20, 40)
                self._machines.setdefault(f"m-{number:02}", self._machine(number))

    def _call(
        self,
        op: int,
        machine_id: str,
        target: MachineState,
        preemptor: Preemptor | None = None,
        **values: object,
    ) -> ev.Event:
        machine = self._machines.get(machine_id)
        if self._random.random() < 0.25 or machine is None or machine.state is target:
            return ev.CallEnded(op, failure=self._failure())
        try:
            moved = transition(machine, target, **values)
        except ValueError:
            return ev.CallEnded(op, failure=ev.Failure(FailureKind.FAILED, "ABORTED", "state"))
        self._machines[machine_id] = moved
        return ev.CallEnded(op, ev.Observed(moved, preemptor=preemptor))

    def _failure(self) -> ev.Failure:
        kinds = [kind for kind in FailureKind if kind is not FailureKind.FENCED]
        kind = self._random.choice(kinds * 30 + [FailureKind.FENCED])
        return ev.Failure(kind, kind.name, "no", self._random.randrange(9))

    def _list(self, started: int) -> list[ev.Event]:
        if self._random.random() < 0.1:
            return [ev.ListFailed(PROVIDER, "unavailable")]
        changed = [m for m in self._machines.values() if self._told.get(m.id) != m]
        gone = tuple(sorted(self._told.keys() - self._machines.keys()))
        self._told = dict(self._machines)
        half = len(changed) // 2
        return [
            ev.Listed(PROVIDER, started, tuple(map(ev.Observed, changed[:half]))),
            ev.Listed(PROVIDER, started, tuple(map(ev.Observed, changed[half:])), gone),
            ev.ListEnded(PROVIDER, started, True),
        ]

    def _get(self, machine_id: str, started: int) -> ev.Event:
        machine = self._machines.get(machine_id)
        if machine is None:
            failure = ev.Failure(FailureKind.NOT_FOUND, "NOT_FOUND", "")
            return ev.GetEnded(PROVIDER, machine_id, started, failure=failure)
        if self._random.random() < 0.1:
            return ev.GetEnded(PROVIDER, machine_id, started, failure=self._failure())
        return ev.GetEnded(PROVIDER, machine_id, started, ev.Observed(machine))

    # The rest

    def _wait(self) -> None:
        deadline = self.core.next_deadline()
        self.now = max(self.now, deadline or 0) + self._random.choice((0, 0, 20 * SECOND))
        self.take([ev.TimePassed()])

    def _odd_event(self) -> None:
        session = self._random.randrange(self._session_count + 2)
        self.take(
            [
                self._random.choice(
                    (
                        ev.HelloRepeated(session),
                        ev.RollupRefused(session, "bad"),
                        ev.BootstrapAnswered(session, "unknown", 5),
                        ev.ReclaimAcked(session, "unknown", 1),
                        ev.NodeReadiness(session, "m-01", "node-1", self._random.random() < 0.5),
                        ev.BreakerChanged(PROVIDER, self._random.choice([*ev.BreakerState])),
                        ev.PauseFile(self._random.random() < 0.2),
                    )
                )
            ]
        )

    def _perform(self, effect: ef.Effect) -> None:
        started, answers = self.now, self._answers
        match effect:
            case ef.RaiseFloor(provider):
                answers.append(lambda: ev.FloorRaised(provider))
            case ef.ListProvider():
                self._between_cycles.append(lambda: self._list(started))
            case ef.GetMachine(_, machine_id):
                self._between_cycles.append(lambda: [self._get(machine_id, started)])
            case ef.CreateMachine(op, _, machine_id, stamps, cluster):
                answers.append(
                    lambda: self._call(
                        op,
                        machine_id,
                        MachineState.CREATING,
                        assigned_need_fingerprint=stamps.need_fingerprint,
                        assigned_group=stamps.group,
                        target_cluster=cluster,
                    )
                )
            case ef.ConfigureMachine(op, _, machine_id, cluster, _, stamps):
                answers.append(
                    lambda: self._call(
                        op,
                        machine_id,
                        MachineState.CONFIGURING,
                        cluster=cluster,
                        assigned_priority=stamps.priority,
                        assigned_interruption_penalty=stamps.interruption_penalty,
                        assigned_reclamation_penalty=stamps.reclamation_penalty,
                        assigned_need_fingerprint=stamps.need_fingerprint,
                        assigned_group=stamps.group,
                    )
                )
            case ef.DrainMachine(op, _, machine_id, _, _, preemptor):
                answers.append(lambda: self._call(op, machine_id, MachineState.DRAINING, preemptor))
            case ef.DeleteMachine(op, _, machine_id):
                answers.append(lambda: self._call(op, machine_id, MachineState.DELETING))
            case ef.SendFrames(session, frames):
                answers.append(lambda: ev.Writable(session, len(frames)))
                answers.extend(partial(self._answer, session, frame) for frame in frames if _asks(frame))
            case ef.EndSession(session):
                answers.append(lambda: ev.SessionClosed(session))

    def _answer(self, session: int, frame: Frame) -> ev.Event:
        if isinstance(frame, BootstrapRequest):
            error = self._random.choice(("", "", "", "template"))
            return ev.BootstrapAnswered(session, frame.request_id, 600, error)
        assert isinstance(frame, ReclaimInstruction)
        return ev.ReclaimAcked(session, frame.instruction_id, self._random.randrange(2))


def _asks(frame: Frame) -> bool:
    return isinstance(frame, BootstrapRequest | ReclaimInstruction)
