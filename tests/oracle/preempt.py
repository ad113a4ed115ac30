"""Phase 2: priority inversions (§11)."""

from collections.abc import Callable, Iterable
from typing import Final

from bigfleet_base.model import Machine, ResourceVector
from bigfleet_base.model.lifecycle import Rpc
from tests.oracle.context import Context, progresses, starts_nothing
from tests.oracle.results import (
    SECOND,
    Action,
    Inversion,
    Kind,
    Options,
    Phase1Result,
    Phase2Result,
    Preemptor,
    Row,
)
from tests.oracle.spread import Skew, strict_spread
from tests.oracle.world import CONFIGURED, DRAINING

GRACES: Final = ((900_000, 10), (500_000, 30), (100_000, 120))
LONGEST_GRACE: Final = 600


def phase2(context: Context, first: Phase1Result) -> Phase2Result:
    """For each unsatisfied Need count what drains already, then pick excess, then victims."""
    walk = _Phase2(context, first)
    unsatisfied = [i for i, assigned in enumerate(first.needs) if not assigned.deficit.is_zero()]
    by_priority = sorted(unsatisfied, key=lambda i: -context.rows[i].need.profile.priority)
    needs = tuple(walk.resolve(index) for index in by_priority)
    return Phase2Result(tuple(walk.actions), needs, frozenset(walk.picked))


def drain_grace(gap: int) -> int:
    """Seconds a victim gets, by priority gap (§1)."""
    return next((seconds for above, seconds in GRACES if gap > above), LONGEST_GRACE)


def score(options: Options, row: Row, victim: Machine) -> float:
    """§11: higher is the better victim; IEEE doubles, left to right."""
    gap = max(0, row.need.profile.priority - victim.assigned_priority)
    drain_s = max(1.0, options.estimated_drain_s)
    interruption = max(0.01, victim.assigned_interruption_penalty)
    reclamation = max(0.01, victim.assigned_reclamation_penalty)
    return (
        gap * options.weight_priority
        + (1 / drain_s) * options.weight_drain
        + (1 / interruption) * options.weight_interruption
        + (1 / reclamation) * options.weight_reclamation
    )


def could_be_free_sooner(context: Context, row: Row, draining: Machine, rivals: Iterable[Machine]) -> bool:
    """§11 step 3: whether some candidate would be drained before this voluntary drain ends."""
    deadline = context.snapshot.memory[draining.id].drain_deadline
    stamps = [m.assigned_priority for m in rivals]
    if deadline is None or not stamps:
        return False
    return deadline > context.now + drain_grace(row.need.profile.priority - min(stamps)) * SECOND


class _Phase2:
    def __init__(self, context: Context, first: Phase1Result) -> None:
        self.context = context
        self.first = first
        self.actions: list[Action] = []
        self.picked: set[str] = set()
        self.counted: set[str] = set()
        drainable = [m for m in context.snapshot.in_state(CONFIGURED) if not context.held_off(m, Rpc.DRAIN)]
        self.excess = [m for m in drainable if m.id not in first.claimed and m.cluster in context.reported]
        self.excess_ids = {m.id for m in self.excess}
        self.others = [m for m in drainable if m.id not in self.excess_ids]

    def resolve(self, index: int) -> Inversion:
        row, assigned = self.context.rows[index], self.first.needs[index]
        gang_without_domain = row.need.profile.same is not None and assigned.same_domain is None
        if starts_nothing(row.need) or gang_without_domain:
            return Inversion(index, assigned.deficit, (), (), preempted=False, spread_stopped=False)
        return _Resolution(self, index).run()

    def rank(self, machine: Machine) -> int:
        claimant = self.first.claimed.get(machine.id)
        if claimant is None:
            return machine.assigned_priority
        return max(machine.assigned_priority, self.context.rows[claimant].need.profile.priority)


class _Resolution:
    """Steps 3 to 7 for one Need."""

    def __init__(self, phase: _Phase2, index: int) -> None:
        self.phase, self.index, self.context = phase, index, phase.context
        self.row = self.context.rows[index]
        assigned = phase.first.needs[index]
        self.domain = assigned.same_domain
        self.remaining: ResourceVector = assigned.deficit
        claims = [self.context.snapshot.machines[i] for i in assigned.claims]
        spread = strict_spread(self.row)
        self.skew = None if spread is None else Skew(self.context, self.row, spread, claims)
        self.picked: list[Machine] = []
        self.counted: list[Machine] = []

    def run(self) -> Inversion:
        self._count_drains()
        candidates = self._candidates()
        while (machine := self._next(candidates)) is not None:
            self._pick(machine)
        stopped = any(self._wanted(m) and not self._admitted(m) for m in candidates)
        return Inversion(
            self.index,
            self.remaining,
            tuple(m.id for m in self.picked),
            tuple(m.id for m in self.counted),
            preempted=bool(self.picked) or any(self.context.drains_for(m, self.row) for m in self.counted),
            spread_stopped=stopped,
        )

    def _count_drains(self) -> None:
        """Step 3: what drains for this Need, then what drains for nobody, each by id.

        Under strict spread the walk starts again after each count, as step 5 does after each pick: one
        walk by id could pass over drains that were picked for this very Need and preempt anew (V16).
        """
        draining = self.context.snapshot.in_state(DRAINING)
        walks: list[tuple[list[Machine], Callable[[Machine], bool]]] = [
            ([m for m in draining if self.context.drains_for(m, self.row)], lambda _: True),
            ([m for m in draining if self.context.drains_for_nobody(m)], self._in_time),
        ]
        for machines, counts in walks:
            left = machines
            while left:
                place = next((i for i, m in enumerate(left) if self._usable(m) and counts(m)), None)
                if place is None:
                    break
                self._count(left[place])
                left = machines if self.skew is not None else left[place + 1 :]

    def _in_time(self, machine: Machine) -> bool:
        rivals = [m for m in self._candidates() if self._usable(m)]
        return not could_be_free_sooner(self.context, self.row, machine, rivals)

    def _candidates(self) -> list[Machine]:
        """Step 4: the excess, then the victims, each by score and id."""

        def best_first(machines: list[Machine]) -> list[Machine]:
            return sorted(machines, key=lambda m: (-score(self.context.options, self.row, m), m.id))

        priority = self.row.need.profile.priority
        victims = [m for m in self.phase.others if self.phase.rank(m) < priority]
        return best_first(self.phase.excess) + best_first(victims)

    def _next(self, machines: Iterable[Machine]) -> Machine | None:
        return next((m for m in machines if self._usable(m)), None)

    def _usable(self, machine: Machine) -> bool:
        return self._wanted(machine) and self._admitted(machine)

    def _wanted(self, machine: Machine) -> bool:
        """All of *usable* but the spread, for a machine not taken yet."""
        same = self.row.need.profile.same
        return (
            machine.id not in self.phase.picked
            and machine.id not in self.phase.counted
            and self.context.suits(machine, self.row.need)
            and progresses(machine, self.remaining)
            and (same is None or machine.lookup(same.key) == self.domain)
            and (self.skew is None or self.skew.domain(machine) is not None)
        )

    def _admitted(self, machine: Machine) -> bool:
        return self.skew is None or self.skew.admits(machine)

    def _count(self, machine: Machine) -> None:
        self.phase.counted.add(machine.id)
        self.counted.append(machine)
        self._take(machine)

    def _pick(self, machine: Machine) -> None:
        self.phase.picked.add(machine.id)
        self.picked.append(machine)
        self._take(machine)
        need = self.row.need
        self.phase.actions.append(
            Action(
                kind=Kind.PREEMPT,
                machine=machine.id,
                cluster=machine.cluster,
                reason="phase2.excess" if machine.id in self.phase.excess_ids else "phase2.inversion",
                grace_s=drain_grace(need.profile.priority - machine.assigned_priority),
                preemptor=Preemptor(
                    need.profile.priority, need.cluster_id, need.profile.fingerprint, need.group
                ),
            )
        )

    def _take(self, machine: Machine) -> None:
        self.remaining -= machine.alloc
        if self.skew is not None:
            self.skew.add(machine)
