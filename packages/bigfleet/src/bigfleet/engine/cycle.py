"""One cycle, from demand and machines to actions (engine.md §7).

``Engine`` is the whole of deciding: it holds the machines, the demand and the little that is carried from
cycle to cycle. A cycle is a generator: it yields after a bounded number of rows so that its caller can let
other work run, and returns its result at the end. Nothing leaves it before, and the inventory stands still
meanwhile, so where it was cut does not matter.
"""

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final

from bigfleet.engine.actions import Action, ActionKind
from bigfleet.engine.inventory import Changes, Inventory
from bigfleet.engine.ledger import Ledger, Part, PartKey, Shortfall, report
from bigfleet.engine.matching import Matcher
from bigfleet.engine.needs import Arrived, NeedsTable
from bigfleet.engine.normalise import FoldState, GangClass
from bigfleet.engine.options import DEFAULTS, Options
from bigfleet.engine.parking import Parking
from bigfleet.engine.plan import Change, Memory, Outcome, Plan, Situation, unlike
from bigfleet.engine.preempt import Phase2
from bigfleet.engine.rails import Passed, Rails
from bigfleet.engine.states import CONFIGURED, IDLE, SPECULATIVE
from bigfleet.engine.stock import AgeKey, Row
from bigfleet.engine.survey import Available, Wanted, WantedKey, survey
from bigfleet.engine.verdicts import Verdict


@dataclass(frozen=True, slots=True)
class CycleInputs:
    """What the shard tells the engine at the start of a cycle."""

    now: int
    tick: bool = True
    """Whether an interval has passed since the last tick: only then do counters in cycles go up."""
    options: Options = DEFAULTS
    blocked: frozenset[tuple[str, str]] = frozenset()
    """(cluster, fingerprint) for which nothing is to be started."""
    without_session: frozenset[str] = frozenset()
    """Clusters that have had no session for too long."""
    busy: Callable[[str], bool] = lambda _: False
    """Whether a machine has an action queued or running; asked when the cycle ends."""
    admit: Callable[[list[Action]], list[Action]] = lambda actions: actions
    """Leaves out the actions that the shard does not want started now; asked when the cycle ends, before the
    caps, so that what is left out takes nobody's place."""
    free_places: int | None = None
    """Room in the action queue; None: enough."""
    judging: Callable[[bool], Callable[[Change], None]] = lambda _: lambda _: None
    """Gives whom to tell of every verdict that changes in more than its age; asked with True if all that was
    told before is to be forgotten, because everything is told anew."""
    witness: "Callable[[CycleResult], None]" = lambda _: None
    """Shown the result while the inventory still is what was decided on."""
    wanted: Sequence[Wanted] = ()
    """What somebody wants to know the available capacity of."""

    @property
    def told(self) -> Situation:
        """What deciding needs of it."""
        return Situation(self.now, self.tick, self.options, self.blocked, self.without_session)


@dataclass(frozen=True, slots=True)
class CycleResult:
    """All that a cycle decided."""

    decided: list[Action]
    """In the order of the phases, before the rails."""
    passed: Passed
    verdicts: list[Verdict]
    shortfalls: dict[PartKey, Part]
    report: list[Shortfall]
    holders: "Holders"
    """The base of every answer to why a machine is where it is."""
    available: Mapping[WantedKey, Available]
    changed: list[Verdict]
    """The verdicts that are not what they were, unless only time has passed."""
    mismatch: str | None = None
    """What a cycle that looked at changes alone would have got wrong, in a cycle that looked at everything as
    well; it should never be anything."""


class Holders:
    """Who holds each machine, and who lost one in this cycle, as indexes into the verdicts; put together when
    somebody asks, which must be before any machine changes: ``CycleInputs.witness`` may."""

    def __init__(self, rows: list[Row], phase2: Phase2) -> None:
        self._rows = rows
        self._phase2 = phase2

    @cached_property
    def held(self) -> dict[str, int]:
        return {
            machine_id: index
            for index, row in enumerate(self._rows)
            for claim in row.in_turn()
            for machine_id in claim.ids
        }

    @cached_property
    def lost(self) -> dict[str, int]:
        indexes = {row.demand.place: index for index, row in enumerate(self._rows)}
        return {
            pick.machine_id: indexes[pick.loser]
            for found in self._phase2.resolutions.values()
            for pick in found.picks
            if pick.loser is not None
        }


@dataclass(slots=True)
class Engine:
    """Inventory, demand and what is carried over; ``cycle`` decides."""

    inventory: Inventory = field(default_factory=Inventory)
    needs: NeedsTable = field(default_factory=NeedsTable)
    parking: Parking = field(default_factory=Parking)
    ledger: Ledger = field(default_factory=Ledger)
    rails: Rails = field(default_factory=Rails)
    ages: dict[AgeKey, int] = field(default_factory=dict)
    folds: dict[GangClass, FoldState] = field(default_factory=dict)
    full_every: int = 100
    """After so many cycles that looked at changes alone, one looks at everything too and compares."""
    hurried: bool = False
    """Said while a cycle runs: somebody cannot wait, so what is compared may be compared in the next one."""
    put_off: int = 0
    """How many cycles in a row left it to the next."""
    _plan: Plan | None = None
    _last_plan: Plan | None = None
    """Whose verdicts were told last."""
    _plan_age: int = 0
    _configured: dict[str, int] | None = None
    """How many Configured machines each cluster has, until some machine changes."""
    _matcher: Matcher = field(init=False)
    phase: str = ""
    """What the running cycle does next; in ``execute`` it writes down what it decided."""

    def __post_init__(self) -> None:
        self._matcher = Matcher(self.inventory)

    def cycle(self, inputs: CycleInputs, slice_rows: int = 1000) -> Generator[str, None, CycleResult]:
        """Decide, pausing after every ``slice_rows`` rows and at the end of each phase, whose name is
        yielded."""
        self.inventory.ask(self.needs.asked_keys())
        self.inventory.freeze()
        try:
            self.phase = "snapread"
            work = self._decide(inputs)
            done = 0
            while True:
                phase = self.phase
                try:
                    progress = next(work)
                except StopIteration as finished:
                    result: CycleResult = finished.value
                    inputs.witness(result)
                    return result
                if isinstance(progress, str):
                    self.phase = progress
                else:
                    done += progress
                if done >= slice_rows or self.phase != phase:
                    done = 0
                    yield phase
        finally:
            self.inventory.thaw()

    def run(self, inputs: CycleInputs) -> CycleResult:
        """A cycle in one piece."""
        work = self.cycle(inputs)
        while True:
            try:
                next(work)
            except StopIteration as finished:
                result: CycleResult = finished.value
                return result

    def start_over(self) -> None:
        """Look at everything in the next cycle."""
        self._plan = None

    def full_pass(self, inputs: CycleInputs) -> Outcome:
        """What a pass over everything comes to now; nothing is remembered of it."""
        self.inventory.ask(self.needs.asked_keys())
        plan = Plan(self.inventory, self._matcher, self.parking)
        memory = Memory(self.parking, self.ledger, self.ages, self.folds)
        work = plan.run(self.needs.everything(), self.inventory.all_cells(), memory, inputs.told)
        while True:
            try:
                next(work)
            except StopIteration as finished:
                outcome: Outcome = finished.value
                break
        for _ in plan.dissolve():
            pass
        return outcome

    def _decide(self, inputs: CycleInputs) -> Generator[int | str, None, CycleResult]:
        options, now = inputs.options, inputs.now
        outcome, plan, mismatch = yield from self._plan_for(inputs.told)
        is_fresh = plan is not self._last_plan
        if is_fresh and self._last_plan is not None:
            yield from self._last_plan.dissolve()
        available = yield from survey(self._matcher, inputs.wanted)
        judged = inputs.judging(is_fresh)
        for change in plan.changed:
            judged(change)
            yield 1
        shortfalls, worst = yield from report(outcome.parts)
        yield "execute"

        # All that is remembered is written here, in one breath: a cycle that is abandoned half-way leaves no
        # trace, and the rails see every change that came in while it ran.
        self._plan = self._last_plan = plan
        self.folds, self.ages = outcome.folds, outcome.ages
        self.parking.ages, self.parking.helped = outcome.parked, outcome.helped
        self.ledger.parts = outcome.parts
        if self._configured is None:
            self._configured = self.inventory.configured()
        passed = self.rails.run(
            outcome.decided,
            self._configured,
            options,
            now,
            busy=inputs.busy,
            startable=self._startable,
            admit=inputs.admit,
            free_places=inputs.free_places,
        )
        return CycleResult(
            outcome.decided,
            passed,
            outcome.verdicts,
            shortfalls,
            worst,
            Holders(plan.rows, plan.phase2),
            available,
            [after for _, after in plan.changed if after is not None],
            mismatch,
        )

    def _plan_for(self, told: Situation) -> Generator[int | str, None, tuple[Outcome, Plan, str | None]]:
        """What to do, by what changed where that is less work, and by everything now and then."""
        plan, self._plan = self._plan, None
        arrived, changes = self.needs.take_changes(), self.inventory.take_changes()
        memory = Memory(self.parking, self.ledger, self.ages, self.folds)
        if changes.touched or changes.everything:
            self._configured = None
        if plan is not None and self._is_upheaval(plan, arrived, changes):
            plan = None
        self._plan_age = 0 if plan is None else (self._plan_age + 1) % self.full_every
        if plan is not None and self._plan_age:
            return (yield from plan.run(arrived, changes.touched, memory, told)), plan, None
        # Taken down before anything yields: demand may change while the cycle runs.
        everything = self.needs.everything()
        fresh = Plan(self.inventory, self._matcher, self.parking)
        if plan is None:
            self.put_off = 0
            outcome = yield from fresh.run(everything, self.inventory.all_cells(), memory, told)
            return outcome, fresh, None
        by_changes = yield from plan.run(arrived, changes.touched, memory, told)
        full = yield from self._unless_hurried(
            fresh.run(everything, self.inventory.all_cells(), memory, told)
        )
        if full is None:
            self._plan_age = -1
            self.put_off += 1
        else:
            self.put_off = 0
            mismatch = yield from unlike(by_changes, full)
            if mismatch is not None:
                return full, fresh, mismatch
        yield from fresh.dissolve()
        return by_changes, plan, None

    def _unless_hurried(
        self, work: Generator[int | str, None, Outcome]
    ) -> Generator[int | str, None, Outcome | None]:
        """What it comes to; None if somebody could not wait for it."""
        while not self.hurried or self.put_off == MOST_PUT_OFF:
            try:
                progress = next(work)
            except StopIteration as finished:
                outcome: Outcome = finished.value
                return outcome
            yield progress
        work.close()
        return None

    def _is_upheaval(self, plan: Plan, arrived: Arrived, changes: Changes) -> bool:
        """Whether so much changed that looking at everything is as quick, or so that it must be."""
        return (
            changes.everything
            or 2 * max(len(arrived.gone), len(arrived.come)) > len(plan.rows)
            or 2 * len(changes.touched) > self.inventory.cell_count()
        )

    def _startable(self, action: Action) -> bool:
        """Whether the machine is still in the state the action starts from, changes of this very cycle
        included."""
        return self.inventory.state(action.machine_id) is _STARTS_FROM[action.kind]


MOST_PUT_OFF: Final = 10
"""So often in a row somebody's hurry counts."""
_STARTS_FROM = {
    ActionKind.BOOTSTRAP: IDLE,
    ActionKind.PROVISION: SPECULATIVE,
    ActionKind.PREEMPT: CONFIGURED,
    ActionKind.RECLAIM: CONFIGURED,
    ActionKind.DELETE: IDLE,
}
