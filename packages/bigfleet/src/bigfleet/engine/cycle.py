"""One cycle, from demand and machines to actions (engine.md §7).

``Engine`` is the whole of deciding: it holds the machines, the demand and the little that is carried from
cycle to cycle. A cycle is a generator: it yields after a bounded number of rows so that its caller can let
other work run, and returns its result at the end. Nothing leaves it before, and the inventory stands still
meanwhile, so where it was cut does not matter.
"""

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from bigfleet.engine.actions import Action, ActionKind
from bigfleet.engine.assign import Phase1
from bigfleet.engine.inventory import Inventory
from bigfleet.engine.ledger import Ledger, Part, PartKey, Shortfall, report
from bigfleet.engine.matching import Matcher
from bigfleet.engine.needs import NeedsTable
from bigfleet.engine.normalise import FoldState, GangClass, normalise
from bigfleet.engine.options import DEFAULTS, Options
from bigfleet.engine.parking import Parking
from bigfleet.engine.preempt import Phase2
from bigfleet.engine.rails import Passed, Rails
from bigfleet.engine.reclaim import phase3
from bigfleet.engine.stock import Row
from bigfleet.engine.supply import Supply
from bigfleet.engine.survey import Available, Wanted, WantedKey, survey
from bigfleet.engine.verdicts import AgeKey, Verdict, age_key, aged, judge
from bigfleet.engine.victims import VictimOrder
from bigfleet_base.model import MachineState


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
    judged: Callable[[Verdict], None] = lambda _: None
    """Told of each verdict as it falls."""
    wanted: Sequence[Wanted] = ()
    """What somebody wants to know the available capacity of."""


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


class Holders:
    """Who holds each machine, and who lost one in this cycle, as indexes into the verdicts; put together when
    somebody asks."""

    def __init__(self, rows: list[Row], phase2: Phase2) -> None:
        self._rows = rows
        self._phase2 = phase2

    @cached_property
    def held(self) -> dict[str, int]:
        return {machine_id: row.index for row in self._rows for span in row.claims for machine_id in span.ids}

    @cached_property
    def lost(self) -> dict[str, int]:
        return {
            pick.machine_id: pick.loser
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
    _matcher: Matcher = field(default_factory=Matcher)
    phase: str = ""
    """What the running cycle does next; in ``execute`` it writes down what it decided."""

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
                    done += next(work)
                except StopIteration as finished:
                    result: CycleResult = finished.value
                    return result
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

    def _decide(self, inputs: CycleInputs) -> Generator[int, None, CycleResult]:
        options, now, tick = inputs.options, inputs.now, inputs.tick
        snapshot, reported = self.needs.snapshot(), self.needs.reported
        demand, folds = yield from normalise(self.inventory, self._matcher, snapshot, self.folds, tick)
        demand = yield from self.parking.stamp(demand, inputs.blocked, inputs.without_session)
        rows: list[Row] = []
        identities: dict[str, set[tuple[str, str]]] = {}
        for index, item in enumerate(demand):
            rows.append(Row(index, item, item.need.aggregate))
            identities.setdefault(item.need.cluster_id, set()).update(item.identities)
            yield 1
        self.phase = "phase1"
        yield 0

        supply = Supply(self.inventory, self._matcher, identities, reported)
        phase1 = Phase1(rows, supply, VictimOrder(options), now)
        yield from phase1.run()
        parked = yield from self.parking.aged(rows, supply, tick)
        self.phase = "phase2"
        yield 0

        phase2 = Phase2(rows, supply, options, now)
        yield from phase2.run()
        self.phase = "phase3"
        yield 0

        reclaims = yield from phase3(supply, phase2.picked, options, now)
        acquisitions = yield from phase1.actions()
        decided = acquisitions + phase2.actions + reclaims
        self.phase = "emit"
        yield 0

        available = yield from survey(supply, inputs.wanted)
        ages = yield from aged(self.ages, rows, tick)
        verdicts = []
        for row in rows:
            age, parked_age = ages.get(age_key(row), 0), parked.get(row.demand.need.key, 0)
            resolution = phase2.resolutions.get(row)
            verdicts.append(judge(row, age, parked_age, supply, resolution, inputs.blocked))
            inputs.judged(verdicts[-1])
            yield 1
        parts = yield from self.ledger.after(phase2.resolutions, tick)
        shortfalls, worst = yield from report(parts)
        self.phase = "execute"
        yield 0

        # All that is remembered is written here, in one breath: a cycle that is abandoned half-way leaves no
        # trace, and the rails see every change that came in while it ran.
        self.folds, self.ages = folds, ages
        self.parking.ages = parked
        self.parking.helped = {
            row.demand.need.key for row, found in phase2.resolutions.items() if found.picks or found.counted
        }
        self.ledger.parts = parts
        passed = self.rails.run(
            decided,
            {
                cluster: self.inventory.count(MachineState.CONFIGURED, cluster)
                for cluster in self.inventory.clusters_with(MachineState.CONFIGURED)
            },
            options,
            now,
            busy=inputs.busy,
            startable=self._startable,
            admit=inputs.admit,
            free_places=inputs.free_places,
        )
        return CycleResult(
            decided,
            passed,
            verdicts,
            shortfalls,
            worst,
            Holders(rows, phase2),
            available,
        )

    def _startable(self, action: Action) -> bool:
        """Whether the machine is still in the state the action starts from, changes of this very cycle
        included."""
        if action.machine_id not in self.inventory:
            return False
        return self.inventory.entry(action.machine_id).machine.state is _STARTS_FROM[action.kind]


_STARTS_FROM = {
    ActionKind.BOOTSTRAP: MachineState.IDLE,
    ActionKind.PROVISION: MachineState.SPECULATIVE,
    ActionKind.PREEMPT: MachineState.CONFIGURED,
    ActionKind.RECLAIM: MachineState.CONFIGURED,
    ActionKind.DELETE: MachineState.IDLE,
}
