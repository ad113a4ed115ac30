"""Phase 2: machines that serve lower priorities, or nobody, are drained for Needs that lack them
(engine.md §11)."""

import heapq
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import repeat

from bigfleet.engine.actions import Action, ActionKind, Reason
from bigfleet.engine.cells import Call, Pool
from bigfleet.engine.matching import Pools, Suited
from bigfleet.engine.needs import Place
from bigfleet.engine.options import Options, drain_grace_s
from bigfleet.engine.pace import Work, pieces
from bigfleet.engine.spread import SpreadCounts, strict_spread
from bigfleet.engine.states import CONFIGURED
from bigfleet.engine.stock import Row, Span, Stock
from bigfleet.engine.supply import Supply
from bigfleet.engine.victims import VictimOrder, in_time
from bigfleet_base.model import EMPTY, Need, Preemptor, ResourceVector


@dataclass(slots=True, eq=False)
class Range(Span):
    """Configured machines of equal rank that can be taken; its start moves as they are."""

    rank: int = 0
    excess: bool = False
    claimant: Place | None = None
    """The place of the Need that claims them."""


@dataclass(frozen=True, slots=True)
class Pick:
    """A machine drained for a Need, and the Need that loses it."""

    machine_id: str
    loser: Place | None
    """The place of the Need that claims it; None where nobody does."""


@dataclass(frozen=True, slots=True)
class Resolution:
    """What Phase 2 found for one Need."""

    deficit: ResourceVector
    """What is still missing when all of it is free."""
    picks: tuple[Pick, ...] = ()
    freed: ResourceVector = EMPTY
    """The capacity of the picks."""
    counted: tuple[str, ...] = ()
    """Machines that drain already and will do."""
    preempted: bool = False
    """Whether anything was picked for it now or before."""


Sought = tuple[Pools, int, str | None]
"""What machines are looked for: those that suit, the priority they must give way to, and a gang's domain."""


class Takeable:
    """Configured machines that suit a Need, of a gang those in its domain, and are nobody's, or of lower
    rank; the same for all Needs of a priority that ask for the same. What is taken of them stays taken, so
    that what is empty is let go where somebody comes upon it."""

    def __init__(self, ranges: Iterable[Range], priority: int, order: VictimOrder) -> None:
        self.ranges = list(ranges)
        self._priority = priority
        self._order = order

    @cached_property
    def groups(self) -> list[list[Range]]:
        """Excess first, then victims, of each the best first; inside a group ids decide."""
        excess = [part for part in self.ranges if part.excess]
        victims = [part for part in self.ranges if not part.excess]
        order, priority = self._order, self._priority
        return [*order.groups(excess, priority), *order.groups(victims, priority)]

    @cached_property
    def from_lowest(self) -> list[Range]:
        """The lowest stamp last."""
        return sorted(self.ranges, key=_stamp, reverse=True)

    def lowest_stamp(self, usable: Callable[[Stock], bool]) -> int | None:
        """The lowest assigned priority among those that would do; None where none would."""
        ranges = self.from_lowest
        while ranges and not len(ranges[-1]):
            ranges.pop()
        return next((_stamp(part) for part in reversed(ranges) if len(part) and usable(part.stock)), None)


@dataclass(slots=True)
class Phase2:
    """Phase 2 over the supply that Phase 1 left."""

    short: list[Row]
    """The Needs that lack something, in the order they are served, and so the highest priority first."""
    supply: Supply
    loose: Iterable[Stock]
    """Where the Configured machines are that nobody claims."""
    options: Options
    now: int
    before: Mapping[Row, Resolution] = field(default_factory=dict)
    """What was found the last time."""
    actions: list[Action] = field(default_factory=list)
    resolutions: dict[Row, Resolution] = field(default_factory=dict)
    """One for every Need that Phase 1 left short, in the order they were served."""
    picked: set[str] = field(default_factory=set)
    counted: set[str] = field(default_factory=set)
    _ranges: dict[Stock, list[Range]] = field(default_factory=dict)
    _loose: dict[Pool, list[Stock]] = field(default_factory=dict)
    _takeable: dict[Sought, Takeable] = field(default_factory=dict)

    def run(self) -> Work:
        """Resolve the unsatisfied Needs one after the other."""
        for stock in self.loose:
            self._loose.setdefault(stock.cell.pool, []).append(stock)
        barren = self.supply.barren
        for piece in pieces(self.short):
            work = 1
            for row in piece:
                if barren(row.fit):
                    self.resolutions[row] = self._nothing(row)
                else:
                    found = self.resolutions[row] = self._resolve(row)
                    work += 1 + len(found.picks)
            yield work

    def _nothing(self, row: Row) -> Resolution:
        known = self.before.get(row)
        if known is not None and known.deficit is row.remaining and not (known.picks or known.counted):
            return known
        return Resolution(row.remaining)

    def takeable(self, row: Row) -> Takeable:
        """What may be taken for a Need."""
        priority, suited = row.demand.need.profile.priority, row.fit.pools(CONFIGURED)
        key = (suited.pools, priority, row.domain)
        known = self._takeable.get(key)
        if known is None:
            ranges = self._lower(row, priority, suited)
            known = self._takeable[key] = Takeable(ranges, priority, VictimOrder(self.options))
        return known

    def _lower(self, row: Row, priority: int, suited: Suited) -> Iterator[Range]:
        same = row.demand.need.profile.same
        for pool in suited if same is None else suited.by_value(same.key).get(row.domain or "", ()):
            stocks = self._loose.get(pool, [])
            lower = [
                self.supply.stock(cell) for cell in pool.cells.values() if cell.binding.priority < priority
            ]
            for stock in dict.fromkeys([*stocks, *lower]):
                for part in self._ranges_of(stock):
                    if part.excess or part.rank < priority:
                        yield part

    def _ranges_of(self, stock: Stock) -> list[Range]:
        known = self._ranges.get(stock)
        if known is None:
            known = self._ranges[stock] = list(self._split(stock))
        return known

    def _split(self, stock: Stock) -> Iterator[Range]:
        if stock.cell.is_held_off(Call.DRAIN):
            return
        stamp = stock.cell.binding.priority
        for claim in stock.claims:
            priority = claim.row.demand.need.profile.priority
            yield Range(stock, claim.start, claim.end, max(stamp, priority), False, claim.row.demand.place)
        if stock.left:
            excess = stock.cell.binding.cluster in self.supply.reported
            yield Range(stock, stock.taken, len(stock.cell.ids), stamp, excess)

    def _resolve(self, row: Row) -> Resolution:
        same = row.demand.need.profile.same
        if row.parked or (same is not None and row.domain is None):
            return Resolution(row.remaining)
        search = _Search(row, self)
        search.count_drains()
        search.pick()
        return Resolution(
            search.remaining, tuple(search.picks), search.freed, tuple(search.counted), search.preempted
        )


class _Search:
    """One Need's search for machines to free."""

    def __init__(self, row: Row, phase: Phase2) -> None:
        self.row = row
        self.need = row.demand.need
        self.priority = self.need.profile.priority
        self.remaining = row.remaining
        self.picks: list[Pick] = []
        self.freed = EMPTY
        self.counted: list[str] = []
        self.preempted = False
        self._lowest: int | None = None
        """Of the candidates that would do now."""
        self._is_lowest_known = False
        self._phase = phase
        spread = strict_spread(row)
        self._spread = None if spread is None else SpreadCounts(row, spread, phase.supply)
        same = self.need.profile.same
        self._same_key = None if same is None else same.key
        self._candidates = phase.takeable(row)

    def count_drains(self) -> None:
        """Count what is draining already: for this Need, or for nobody and soon enough."""
        for stamped, stocks in (
            (True, self._phase.supply.drains_for(self.row)),
            (False, self._phase.supply.drains_for_nobody(self.row.fit)),
        ):
            waiting, passed = self._drains(stocks), list[_Drain]()
            while not self.remaining.is_zero():
                found = self._next_drain(waiting, passed, stamped)
                if found is None:
                    break
                machine_id, stock = found
                self._phase.counted.add(machine_id)
                self.counted.append(machine_id)
                self.preempted |= stamped
                self._account(stock)

    def pick(self) -> None:
        """Pick excess first, then victims, the best first; after each pick the walk starts again."""
        reached: list[_Tied] = []
        beyond = map(_Tied, self._candidates.groups)
        while not self.remaining.is_zero() and (best := self._best(reached, beyond)) is not None:
            lowest = None if self._spread is None else self._spread.lowest
            self._take(best)
            if self._spread is not None and self._spread.lowest != lowest:
                for tied in reached:
                    tied.reopen()
        if self._spread is not None and any(
            len(c) and self._wanted(c.stock) and self._spread.domain(c.stock) is not None
            for c in self._candidates.ranges
        ):
            self.row.spread_stopped = True

    def _best(self, reached: list["_Tied"], beyond: Iterator["_Tied"]) -> Range | None:
        while reached and reached[0].is_empty():
            del reached[0]
        for tied in reached:
            if (best := self._first(tied)) is not None:
                return best
        for tied in beyond:
            reached.append(tied)
            if (best := self._first(tied)) is not None:
                return best
        return None

    def _first(self, tied: "_Tied") -> Range | None:
        """The one with the lowest id that would do."""
        heads = tied.heads
        while heads:
            machine_id, part = heads[0]
            if not len(part) or not self._wanted(part.stock):
                # What makes no progress now never does later.
                heapq.heappop(heads)
            elif (first := part.stock.cell.ids[part.start]) != machine_id:
                heapq.heapreplace(heads, (first, part))
            elif self._usable(part.stock):
                return part
            else:
                tied.full.append(heapq.heappop(heads))
        return None

    def _take(self, candidate: Range) -> None:
        stock = candidate.stock
        machine_id = stock.cell.ids[candidate.start]
        candidate.start += 1
        self._phase.picked.add(machine_id)
        self.picks.append(Pick(machine_id, candidate.claimant))
        self.freed = self.freed + stock.cell.alloc
        self.preempted = True
        self._account(stock)
        self._phase.actions.append(
            Action(
                ActionKind.PREEMPT,
                machine_id,
                Reason.EXCESS_TAKEN if candidate.excess else Reason.INVERSION,
                cluster=stock.cell.binding.cluster,
                grace_s=drain_grace_s(self.priority - stock.cell.binding.priority),
                preemptor=_preemptor(self.need),
                victim_score=VictimOrder(self._phase.options).score(stock.cell.binding, self.priority),
            )
        )

    def _account(self, stock: Stock) -> None:
        self.remaining = self.remaining - stock.cell.alloc
        self._is_lowest_known = False
        if self._spread is not None:
            self._spread.add(stock)

    def _drains(self, stocks: Iterable[Stock]) -> Iterator["_Drain"]:
        # What makes no progress now never does later.
        reachable = [stock for stock in stocks if self._wanted(stock) and self._reachable(stock)]
        merged = heapq.merge(*(zip(stock.cell.ids, repeat(n)) for n, stock in enumerate(reachable)))
        return ((i, reachable[n]) for i, n in merged if i not in self._phase.counted)

    def _next_drain(
        self, waiting: Iterator["_Drain"], passed: list["_Drain"], stamped: bool
    ) -> "_Drain | None":
        """The first that will do. What was passed over makes no progress later either; under strict spread a
        count may have opened its domain, so the walk starts again."""
        for position, (machine_id, stock) in enumerate(passed):
            if self._will_do(machine_id, stock, stamped):
                return passed.pop(position)
        for machine_id, stock in waiting:
            if self._will_do(machine_id, stock, stamped):
                return machine_id, stock
            if self._spread is not None:
                passed.append((machine_id, stock))
        return None

    def _will_do(self, machine_id: str, stock: Stock, stamped: bool) -> bool:
        return self._usable(stock) and (stamped or self._soon_enough(machine_id))

    def _soon_enough(self, machine_id: str) -> bool:
        if not self._is_lowest_known:
            self._lowest = self._candidates.lowest_stamp(self._usable)
            self._is_lowest_known = True
        return in_time(self._phase.supply, machine_id, self.priority, self._lowest, self._phase.now)

    def _reachable(self, stock: Stock) -> bool:
        """Whether the machines suit and, for a gang, lie in its domain."""
        return self.row.fit.suits(stock.cell.machine_class) and (
            self._same_key is None or stock.cell.machine_class.lookup(self._same_key) == self.row.domain
        )

    def _wanted(self, stock: Stock) -> bool:
        return self.remaining.pieces(stock.cell.alloc) > 0

    def _usable(self, stock: Stock) -> bool:
        return self._wanted(stock) and (self._spread is None or self._spread.eligible(stock))


_Drain = tuple[str, Stock]
"""A machine that drains already."""


class _Tied:
    """Machines that tie, so that ids decide."""

    def __init__(self, group: list[Range]) -> None:
        group[:] = [part for part in group if len(part)]
        self.heads = [(part.stock.cell.ids[part.start], part) for part in group]
        """The first of each range, as a heap."""
        heapq.heapify(self.heads)
        self.full: list[tuple[str, Range]] = []
        """Those in domains that have enough until the emptiest has more."""

    def is_empty(self) -> bool:
        """Whether none of them will ever do."""
        return not self.heads and not self.full

    def reopen(self) -> None:
        """The emptiest domain has more."""
        self.heads += self.full
        heapq.heapify(self.heads)
        self.full.clear()


def _stamp(part: Range) -> int:
    return part.stock.cell.binding.priority


def _preemptor(need: Need) -> Preemptor:
    return Preemptor(need.cluster_id, need.profile.priority, need.profile.fingerprint, need.group)
