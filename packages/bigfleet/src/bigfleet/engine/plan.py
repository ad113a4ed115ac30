"""All that a cycle works out, kept for the next one (design: a cycle costs what changed).

A ``Plan`` knows who holds what. Made anew it looks at every Need and every cell: a full pass. Kept, it
looks at those that changed and at whom their changes concern, and comes to the same answer; the engine makes
sure of that now and then.
"""

import bisect
from collections.abc import Collection, Generator
from dataclasses import dataclass
from operator import attrgetter
from typing import Final

from bigfleet.engine.actions import Action
from bigfleet.engine.assign import Acquisition
from bigfleet.engine.cells import Cell
from bigfleet.engine.credit import Credit
from bigfleet.engine.inventory import Inventory
from bigfleet.engine.ledger import Deficits, Ledger, Part, PartKey, missing
from bigfleet.engine.matching import Matcher
from bigfleet.engine.needs import Arrived, Place
from bigfleet.engine.normalise import Folding, FoldState, GangClass, Renewal
from bigfleet.engine.options import Options
from bigfleet.engine.pace import Work, emptied, pieces, resorted
from bigfleet.engine.parking import GangKey, Parking, Stamps
from bigfleet.engine.preempt import Phase2, Resolution
from bigfleet.engine.reclaim import reclaims, releases
from bigfleet.engine.stock import AgeKey, Row
from bigfleet.engine.supply import Supply
from bigfleet.engine.verdicts import NO_SUPPLY, Matching, Verdict, aged, judge
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
    gangs: list[Row]
    """Those of them that are gangs."""
    acquisitions: list[Action]
    phase2: Phase2
    deficits: Deficits
    helped: set[GangKey]
    reclaims: list[Action]
    indexes: list[int] | None = None
    """Where the unmet stand among the rows, once somebody has looked."""


class Plan:
    """Who holds what, by all the demand and machines it has been told of."""

    def __init__(self, inventory: Inventory, matcher: Matcher, parking: Parking) -> None:
        self.supply = Supply(inventory)
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
        """Verdicts that the last cycle replaced, unless only time has passed."""
        self._verdicts: dict[Row, Verdict] = {}
        self._is_aligned = False
        """Whether verdicts stand where their rows do."""
        self._deletes: list[Action] = []
        self._next_delete = 0
        """While nothing is released and nothing changes, nothing will be before this."""
        self._short: list[Row] = []
        """Those who lacked something in the last cycle, in the order they are served."""
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
        stamped = yield from self._stamps.update(renewal, told.blocked, told.without_session)
        found, before = self._found, self._found
        # Whether a drain for nobody ends in time depends on the clock.
        if (
            found is None
            or arrived.reported is not self.supply.reported
            or stamped.gone
            or stamped.come
            or touched
            or self.supply.unstamped_drains
            or found.options != told.options
            or found.blocked != told.blocked
        ):
            self._acquisition.undo()
            yield from self._credit.hear(arrived.reported)
            yield from self._exchange(stamped)
            for piece in pieces(touched):
                yield len(piece)
                for cell in piece:
                    self._credit.touch(cell)
            found = yield from self._work_out(told)
        yield "phase3"
        parked = yield from memory.parking.aged(found.gangs, self.supply, told.tick)
        if found is not before or self._deletes or told.now >= self._next_delete:
            self._deletes, self._next_delete = yield from releases(self.supply, told.options, told.now)
        yield "emit"
        ages = yield from aged(memory.ages, found.unmet, told.tick)
        if found is before:
            yield from self._grow_older(found, ages, parked)
        else:
            yield from self._judge(found, before, ages, parked)
        parts = yield from memory.ledger.after(found.deficits, told.tick)
        self._found = found
        return Outcome(
            [*found.acquisitions, *found.phase2.actions, *found.reclaims, *self._deletes],
            self.verdicts,
            parts,
            ages,
            folds,
            parked,
            found.helped,
        )

    def dissolve(self) -> Work:
        """Another plan takes its place."""
        for piece in pieces(self.rows):
            yield 1
            for row in piece:
                row.let_go()
        for stocks in pieces(self.supply.stocks()):
            yield 1
            for stock in stocks:
                stock.let_go()
        self._found, self._short = None, []
        # Piece by piece as well: what is let go in one go takes its time.
        for part in (self._at, self._verdicts, *self._credit.parts(), *self.supply.parts(), self.rows):
            yield from emptied(part)

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
            self.rows, self._is_aligned = exchanged(self.rows, gone, come)

    def _work_out(self, told: Situation) -> Generator[int | str, None, _Found]:
        yield "phase1"
        self.supply.begin()
        yield from self._credit.walk(VictimOrder(told.options), told.now)
        yield from self._acquisition.run(self._credit.short)
        self._short = short = resorted(self._short, self._credit.short, _place)
        unmet = [row for row in short if not row.remaining.is_zero()]
        yield "phase2"
        before = {} if self._found is None else self._found.phase2.resolutions
        phase2 = Phase2(unmet, self.supply, self._credit.loose, told.options, told.now, before)
        yield from phase2.run()
        deficits = yield from missing(phase2.resolutions)
        given_back = yield from reclaims(self.supply, self._credit.loose, phase2.picked)
        acquisitions = yield from self._acquisition.actions(short)
        return _Found(
            told.options,
            told.blocked,
            unmet,
            [row for row in unmet if row.demand.need.profile.same is not None],
            acquisitions,
            phase2,
            deficits,
            {row.key for row, r in phase2.resolutions.items() if r.picks or r.counted},
            given_back,
        )

    def _judge(
        self,
        found: _Found,
        before: _Found | None,
        ages: dict[AgeKey, int],
        parked: dict[GangKey, int],
    ) -> Work:
        """Verdicts for those of whom there is something new to say."""
        older: dict[Row, Verdict] = {}
        fresh: dict[Row, Verdict] = {}
        matching = Matching()
        looked_at = dict.fromkeys(self._credit.looked_at)
        concerned = {**looked_at, **self._credit.short}
        same_blocked = before is not None and before.blocked == found.blocked
        for piece in pieces(concerned):
            work = 1
            for row in piece:
                resolution, known = found.phase2.resolutions.get(row), self._verdicts.get(row)
                age, parked_age = ages.get(row.age_key, 0), parked.get(row.key, 0)
                if (
                    known is not None
                    and same_blocked
                    and row not in looked_at
                    and _is_barren_still(known, resolution)
                ):
                    older[row] = known.aged(age, parked_age)
                else:
                    fresh[row] = judge(row, age, parked_age, resolution, found.blocked, matching)
                    work += 1
            yield work
        self.changed += [(self._verdicts.get(row), verdict) for row, verdict in fresh.items()]
        self._verdicts.update(older)
        self._verdicts.update(fresh)
        # A new list each time: whoever has the last one keeps it as it was.
        written = [*older, *fresh]
        if not self._is_aligned or len(written) * _FEW > len(self.rows):
            self.verdicts = [self._verdicts[row] for row in self.rows]
            self._is_aligned = True
        elif written:
            self.verdicts = list(self.verdicts)
            for row in written:
                self.verdicts[_index(self.rows, row)] = self._verdicts[row]

    def _grow_older(self, found: _Found, ages: dict[AgeKey, int], parked: dict[GangKey, int]) -> Work:
        """Verdicts where nothing but time has passed."""
        if found.indexes is None:
            found.indexes = [_index(self.rows, row) for row in found.unmet]
        verdicts = list(self.verdicts)
        for piece in pieces(zip(found.unmet, found.indexes, strict=True)):
            yield 1
            for row, index in piece:
                grown = verdicts[index].aged(ages[row.age_key], parked.get(row.key, 0))
                verdicts[index] = self._verdicts[row] = grown
        self.verdicts = verdicts


def _is_barren_still(known: Verdict, resolution: Resolution | None) -> bool:
    """Whether nothing suits a Need, and nothing did when it was judged."""
    return known.resolution is resolution is not None and known.supply == NO_SUPPLY


def exchanged(rows: list[Row], gone: list[Row], come: list[Row]) -> tuple[list[Row], bool]:
    """The rows with some taken out and others put in, in the order they are served; and whether each of
    these took the place of one of those."""
    if (len(gone) + len(come)) * _FEW > len(rows):
        left = set(gone)
        rows = [row for row in rows if row not in left] + come
        rows.sort(key=_place)
        return rows, False
    rows = list(rows)
    newcomers = {row.demand.place: row for row in come}
    leavers = []
    for row in gone:
        newcomer = newcomers.pop(row.demand.place, None)
        if newcomer is None:
            leavers.append(row)
        else:
            rows[_index(rows, row)] = newcomer
    for row in leavers:
        del rows[_index(rows, row)]
    for row in newcomers.values():
        bisect.insort(rows, row, key=_place)
    return rows, not leavers and not newcomers


def _index(rows: list[Row], row: Row) -> int:
    """Where a row stands."""
    return bisect.bisect_left(rows, row.demand.place, key=_place)


_place: Final = attrgetter("demand.place")
_FEW: Final = 8
"""As long as one in so many changes, looking for the place of each is cheaper than going through all."""


def unlike(one: Outcome, other: Outcome) -> Generator[int, None, str | None]:
    """The first thing two outcomes do not agree about; None if they agree."""
    for name, ours, theirs in (
        ("action", one.decided, other.decided),
        ("verdict", one.verdicts, other.verdicts),
    ):
        for piece in pieces(enumerate(zip(ours, theirs, strict=False))):
            yield 1
            for number, (a, b) in piece:
                if a != b:
                    return f"{name} {number}: {a} and {b}"
        if len(ours) != len(theirs):
            return f"{len(ours)} and {len(theirs)} {name}s"
    for name in ("parts", "ages", "folds", "parked", "helped"):
        if getattr(one, name) != getattr(other, name):
            return f"{name}: {getattr(one, name)} and {getattr(other, name)}"
    return None
