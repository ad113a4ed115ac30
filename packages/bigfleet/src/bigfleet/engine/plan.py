"""All that a cycle works out, kept for the next one (design: a cycle costs what changed).

A ``Plan`` knows who holds what. Made anew it looks at every Need and every cell: a full pass. Kept, it
looks at those that changed and at whom their changes concern, and comes to the same answer; the engine makes
sure of that now and then.
"""

from collections.abc import Collection, Generator
from dataclasses import dataclass, replace

from bigfleet.engine.actions import Action
from bigfleet.engine.assign import Acquisition
from bigfleet.engine.cells import Cell
from bigfleet.engine.credit import Credit
from bigfleet.engine.inventory import Inventory
from bigfleet.engine.ledger import Ledger, Part, PartKey
from bigfleet.engine.matching import Matcher
from bigfleet.engine.needs import Arrived, Place
from bigfleet.engine.normalise import Folding, FoldState, GangClass, Renewal
from bigfleet.engine.options import Options
from bigfleet.engine.parking import GangKey, Parking, Stamps
from bigfleet.engine.preempt import Phase2
from bigfleet.engine.reclaim import reclaims, releases
from bigfleet.engine.stock import Row
from bigfleet.engine.supply import Supply
from bigfleet.engine.verdicts import AgeKey, Verdict, age_key, aged, judge
from bigfleet.engine.victims import VictimOrder

Change = tuple[Verdict | None, Verdict | None]
"""A verdict before and after; None where the Need was not there."""


@dataclass(frozen=True, slots=True)
class Memory:
    """What is carried from cycle to cycle, by whom."""

    parking: Parking
    ledger: Ledger
    ages: dict[AgeKey, int]
    folds: dict[GangClass, FoldState]


@dataclass(frozen=True, slots=True)
class Situation:
    """What a cycle is told about the world beside machines and demand."""

    now: int
    tick: bool
    options: Options
    blocked: frozenset[tuple[str, str]]
    without_session: frozenset[str]


@dataclass(slots=True)
class Outcome:
    """What a cycle comes to, before the rails; the next memory included."""

    decided: list[Action]
    verdicts: list[Verdict]
    parts: dict[PartKey, Part]
    ages: dict[AgeKey, int]
    folds: dict[GangClass, FoldState]
    parked: dict[GangKey, int]
    helped: set[GangKey]


@dataclass(slots=True)
class _Found:
    """What the phases found, good until something changes."""

    options: Options
    blocked: frozenset[tuple[str, str]]
    unmet: list[Row]
    acquisitions: list[Action]
    phase2: Phase2
    reclaims: list[Action]


class Plan:
    """Who holds what, by all the demand and machines it has been told of."""

    def __init__(
        self, inventory: Inventory, matcher: Matcher, reported: frozenset[str], parking: Parking
    ) -> None:
        self.supply = Supply(inventory, reported)
        self.rows: list[Row] = []
        """In the order they are served."""
        self._inventory = inventory
        self._matcher = matcher
        self._folding = Folding(inventory, matcher)
        self._stamps = Stamps(parking)
        self._credit = Credit(self.supply)
        self._acquisition = Acquisition(self.supply)
        self._at: dict[Place, Row] = {}
        self.verdicts: list[Verdict] = []
        """One for every row."""
        self.changed: list[Change] = []
        """Verdicts that the last cycle replaced."""
        self._verdicts: dict[Row, Verdict] = {}
        self._found: _Found | None = None

    @property
    def phase2(self) -> Phase2:
        """What the last cycle found for those who lacked something."""
        assert self._found is not None
        return self._found.phase2

    def run(
        self, arrived: Arrived, touched: Collection[Cell], memory: Memory, told: Situation
    ) -> Generator[int | str, None, Outcome]:
        """Decide; yields the rows worked on, and the name of each phase as it begins."""
        self.changed = []
        renewal, folds = yield from self._folding.update(arrived, touched, memory.folds, told.tick)
        stamped = self._stamps.update(renewal, told.blocked, told.without_session)
        found, before = self._found, self._found
        # Whether a drain for nobody ends in time depends on the clock.
        if (
            found is None
            or stamped.gone
            or stamped.come
            or touched
            or self.supply.unstamped_drains
            or found.options != told.options
            or found.blocked != told.blocked
        ):
            self._acquisition.undo()
            yield from self._exchange(stamped)
            for cell in touched:
                self._credit.touch(cell)
                yield 1
            found = yield from self._work_out(told)
        yield "phase3"
        parked = yield from memory.parking.aged(found.unmet, self.supply, told.tick)
        deletes = yield from releases(self.supply, told.options, told.now)
        yield "emit"
        ages = yield from aged(memory.ages, found.unmet, told.tick)
        resolutions = found.phase2.resolutions
        yield from self._judge(found, before, ages, parked, told.blocked)
        parts = yield from memory.ledger.after(resolutions, told.tick)
        self._found = found
        return Outcome(
            [*found.acquisitions, *found.phase2.actions, *found.reclaims, *deletes],
            self.verdicts,
            parts,
            ages,
            folds,
            parked,
            {row.demand.need.key for row, r in resolutions.items() if r.picks or r.counted},
        )

    def _exchange(self, stamped: Renewal) -> Generator[int, None, None]:
        gone = [self._at.pop(place) for place in stamped.gone]
        come = []
        for place, demand in stamped.come.items():
            row = Row.of(demand, self._matcher.fit(demand.need.profile, demand.need.min_unit))
            self._at[place] = row
            come.append(row)
            yield 1
        yield from self._credit.exchange(gone, come)
        self.changed += [(self._verdicts.pop(row), None) for row in gone]
        if gone or come:
            self.rows = [self._at[place] for place in sorted(self._at)]

    def _work_out(self, told: Situation) -> Generator[int | str, None, _Found]:
        yield "phase1"
        yield from self._credit.walk(VictimOrder(told.options), told.now)
        yield from self._acquisition.run(self._credit.short)
        short = sorted(self._credit.short, key=lambda row: row.demand.place)
        unmet = [row for row in short if not row.remaining.is_zero()]
        yield "phase2"
        phase2 = Phase2(unmet, self.supply, self._credit.loose, told.options, told.now)
        yield from phase2.run()
        given_back = yield from reclaims(self.supply, self._credit.loose, phase2.picked)
        acquisitions = yield from self._acquisition.actions(short)
        return _Found(told.options, told.blocked, unmet, acquisitions, phase2, given_back)

    def _judge(
        self,
        found: _Found,
        before: _Found | None,
        ages: dict[AgeKey, int],
        parked: dict[GangKey, int],
        blocked: frozenset[tuple[str, str]],
    ) -> Generator[int, None, None]:
        """Verdicts for those of whom there is something new to say."""
        fresh: dict[Row, Verdict] = {}
        if found is before:
            for row in found.unmet:
                age, parked_age = ages.get(age_key(row), 0), parked.get(row.demand.need.key, 0)
                fresh[row] = replace(self._verdicts[row], age=age, parked_age=parked_age)
                yield 1
        else:
            concerned = dict.fromkeys(self._credit.looked_at)
            concerned.update(self._credit.short)
            for row in concerned:
                resolution = found.phase2.resolutions.get(row)
                age, parked_age = ages.get(age_key(row), 0), parked.get(row.demand.need.key, 0)
                fresh[row] = judge(row, age, parked_age, resolution, blocked)
                yield 1
        self.changed += [(self._verdicts.get(row), verdict) for row, verdict in fresh.items()]
        self._verdicts.update(fresh)
        # A new list each time: whoever has the last one keeps it as it was.
        self.verdicts = [self._verdicts[row] for row in self.rows]


def unlike(one: Outcome, other: Outcome) -> str | None:
    """The first thing two outcomes do not agree about; None if they agree."""
    for number, (a, b) in enumerate(zip(one.decided, other.decided, strict=False)):
        if a != b:
            return f"action {number}: {a} and {b}"
    if len(one.decided) != len(other.decided):
        return f"{len(one.decided)} and {len(other.decided)} actions"
    for number, (v, w) in enumerate(zip(one.verdicts, other.verdicts, strict=False)):
        if v != w:
            return f"verdict {number}: {v} and {w}"
    for name in ("parts", "ages", "folds", "parked", "helped"):
        if getattr(one, name) != getattr(other, name):
            return f"{name}: {getattr(one, name)} and {getattr(other, name)}"
    return None
