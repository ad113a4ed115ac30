"""A scenario's bench: one judge, a clock, and machines whose transitions take a known number of cycles."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Final

from bigfleet_base.model import Machine, MachineState, Need
from tests.engine import execution
from tests.engine.judge import Judge
from tests.oracle.results import (
    SECOND,
    Action,
    CycleInput,
    CycleResult,
    Ingest,
    Kind,
    Memory,
    Options,
    Verdict,
)

START: Final = 1_000_000 * SECOND


@dataclass(frozen=True)
class Dwell:
    """How many cycles each call takes: with 1 the next cycle finds it done."""

    create: int = 1
    configure: int = 1
    drain: int = 1
    delete: int = 1

    def cycles(self, state: MachineState) -> int:
        return {
            MachineState.CREATING: self.create,
            MachineState.CONFIGURING: self.configure,
            MachineState.DRAINING: self.drain,
            MachineState.DELETING: self.delete,
        }[state]


class Lab:
    """Given (``have``, ``want``), when (``cycle``, ``run``), then (the results and ``history``)."""

    def __init__(self, judge: Judge) -> None:
        self.judge = judge
        self.now = START
        self.options = Options()
        self.history: list[CycleResult] = []
        self._flight: dict[str, int] = {}

    # given

    def have(self, *machines: Machine | Iterable[Machine], finishing_in: int | None = None) -> None:
        """Put machines into the inventory; ``finishing_in`` cycles their running transition ends."""
        for item in machines:
            for machine in [item] if isinstance(item, Machine) else item:
                self.judge.insert(machine, self.now)
                if finishing_in is not None:
                    self._flight[machine.id] = finishing_in

    def have_draining(
        self,
        machine: Machine,
        *,
        preempted_for: Need | None = None,
        ends_in: float | None = None,
        cycles: int | None = None,
    ) -> None:
        """A drain this process started (``ends_in`` seconds at the latest), or one it did not (None)."""
        stamp = None if preempted_for is None else preempted_for.key
        if ends_in is None:
            self.judge.insert(machine, self.now, preempted_for=stamp)
        else:
            self.judge.insert(replace(machine, state=MachineState.CONFIGURED), self.now)
            self.judge.apply(
                machine,
                self.now,
                started=True,
                preempted_for=stamp,
                drain_deadline=self.now + round(ends_in * SECOND),
            )
        if cycles is not None:
            self._flight[machine.id] = cycles

    def want(self, *needs: Need) -> Ingest:
        """One roll-up for each cluster named, in the order given; returns what became of the last."""
        outcome = Ingest.ACCEPTED
        for cluster in dict.fromkeys(n.cluster_id for n in needs):
            outcome = self.report(cluster, *(n for n in needs if n.cluster_id == cluster))
        return outcome

    def report(self, cluster: str, *needs: Need) -> Ingest:
        """The cluster's roll-up, which may be empty."""
        return self.judge.rollup(cluster, needs, self.now, guard=self.options.guard)

    def set(self, **options: Any) -> None:
        self.options = replace(self.options, **options)

    def advance(self, seconds: float = 10) -> None:
        self.now += round(seconds * SECOND)

    def machine(self, machine_id: str) -> Machine:
        return self.judge.machines()[machine_id]

    def memory(self, machine_id: str) -> Memory:
        return self.judge.memory(machine_id)

    # when

    def cycle(self, **inputs: Any) -> CycleResult:
        """Decide once; nothing is carried out and no time passes."""
        result = self.judge.cycle(CycleInput(now=self.now, **inputs), self.options)
        self.history.append(result)
        return result

    def step(self, dwell: Dwell | None = None, **inputs: Any) -> CycleResult:
        """Decide, start what was decided, and let one interval pass."""
        result = self.cycle(**inputs)
        for action in result.rails.executed:
            self.start(action, dwell or Dwell())
        self.advance(self.options.cycle_interval_ns / SECOND)
        self.land()
        return result

    def start(self, action: Action, dwell: Dwell | None = None) -> None:
        execution.start(self.judge, action, self.now)
        state = self.machine(action.machine).state
        self._flight[action.machine] = (dwell or Dwell()).cycles(state)

    def land(self) -> None:
        """One cycle less for all that is under way; what is due is finished."""
        self._flight = {machine_id: left - 1 for machine_id, left in self._flight.items()}
        for machine_id in sorted(i for i, left in self._flight.items() if left <= 0):
            self.finish(machine_id)

    def finish(self, machine_id: str) -> None:
        self._flight.pop(machine_id, None)
        execution.finish(self.judge, machine_id, self.now)

    def fail(self, machine_id: str) -> None:
        self._flight.pop(machine_id, None)
        execution.fail(self.judge, machine_id, self.now)

    def run(self, cycles: int, dwell: Dwell | None = None, **inputs: Any) -> list[CycleResult]:
        return [self.step(dwell, **inputs) for _ in range(cycles)]

    def until_quiet(self, dwell: Dwell | None = None, limit: int = 80) -> list[CycleResult]:
        """Step until a cycle decides nothing while nothing is under way; then once more to be sure."""
        results: list[CycleResult] = []
        for _ in range(limit):
            under_way = bool(self._flight)
            results.append(self.step(dwell))
            if not results[-1].decided and not under_way:
                again = self.step(dwell)
                assert again.decided == (), "quiet, and then not"
                return [*results, again]
        raise AssertionError(f"not quiet after {limit} cycles: {results[-1].decided}")


# then


def actions(results: CycleResult | Iterable[CycleResult], kind: Kind | None = None) -> list[Action]:
    """What was decided in one cycle or in many, of one kind or of all."""
    cycles = [results] if isinstance(results, CycleResult) else results
    return [a for r in cycles for a in r.decided if kind is None or a.kind is kind]


def targets(results: CycleResult | Iterable[CycleResult], kind: Kind | None = None) -> list[str]:
    """The machines of those actions, in order."""
    return [a.machine for a in actions(results, kind)]


def kinds(results: CycleResult | Iterable[CycleResult]) -> dict[str, int]:
    """How many actions of each kind."""
    return dict(Counter(a.kind.value for a in actions(results)))


def verdict(result: CycleResult, need: Need) -> Verdict:
    """The one verdict with the Need's key."""
    found = [v for v in result.verdicts if (v.cluster, v.profile.fingerprint, v.group) == need.key]
    assert len(found) == 1, f"{len(found)} verdicts for {need.key}"
    return found[0]


def claims(result: CycleResult, need: Need) -> list[str]:
    """Machines that Phase 1 holds for the Need, in the order they were taken."""
    found = [i for i, row in enumerate(result.rows) if row.need.key == need.key]
    assert len(found) == 1, f"{len(found)} rows for {need.key}"
    return list(result.phase1.needs[found[0]].claims)
