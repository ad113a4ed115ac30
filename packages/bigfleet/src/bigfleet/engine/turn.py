"""A Need's turn: what it claims of stocks that tie, and where that is not what it held before.

Machines on a menu that tie remember what the Need took of them (``Tie``), so that a turn costs what is new:
where nothing has changed it passes by; where all is still wanted it looks into the stocks that changed; where
a few machines more or fewer are wanted it adds or drops one id after the other.
"""

import bisect
import heapq
from typing import Final

from bigfleet.engine.stock import Claim, Row, Stock, Tie, choose
from bigfleet_base.model import EMPTY, ResourceVector

_Spans = dict[Stock, tuple[int, int]]
"""What a Need is to have of some stocks, by position."""


class Turn:
    """The claims of the Need whose turn it is."""

    __slots__ = ("_claimed", "differs", "moved", "work")

    def __init__(self) -> None:
        self.moved: list[Stock] = []
        """Where its claims do not end as they did."""
        self.differs = False
        """Whether it holds more or less of something than before."""
        self.work = 0
        """How many stocks it has looked into."""
        self._claimed: dict[Stock, Claim] = {}
        """What it held before, and has not claimed again yet."""

    def begin(self, row: Row) -> None:
        """A Need's turn comes."""
        self.moved, self.differs, self.work = [], row.is_new or row.stale is None, 0

    def put_up(self, row: Row, stock: Stock) -> None:
        """What the Need has of a stock may be claimed again, by nobody else."""
        known = row.holdings.pop(stock, None)
        if known is not None:
            self._claimed[stock] = known

    def put_up_all(self, row: Row) -> None:
        """The same of every stock."""
        self._claimed, row.holdings = row.holdings, {}

    def give_up_rest(self) -> None:
        """What it has not claimed again is not its own any more."""
        for claim in self._claimed.values():
            claim.stock.claims.remove(claim)
            self.moved.append(claim.stock)
            self.differs = True
        self._claimed = {}

    def visit(self, row: Row, tie: Tie, wanted: ResourceVector) -> ResourceVector:
        """Claim machines that tie, as far as they add to what is wanted; returns what is still wanted then.
        What is as it was when the Need last came here is not touched."""
        assert row.stale is not None
        row.walked.append(tie)
        if tie.wanted is None:
            for stock in tie.stocks:
                stock.readers.add(row)
        else:
            stale = [s for s in row.stale if s.keep == tie.keep and s in tie.stocks] if row.stale else []
            if not stale and tie.wanted == wanted:
                return tie.rest
            if (tie.whole or tie.end) and self._take_again(row, tie, wanted, stale):
                tie.wanted, tie.rest = wanted, wanted - tie.taken
                return tie.rest
        for stock in tie.stocks:
            self.put_up(row, stock)
        tie.taken, tie.whole = self.take(row, tie.stocks, wanted)
        tie.wanted, tie.rest = wanted, wanted - tie.taken
        tie.end = None
        if not tie.whole and wanted.is_within(tie.least):
            # Every one of them made progress, so that none was passed over.
            taken = [row.holdings[stock] for stock in tie.stocks if stock in row.holdings]
            tie.end = max(claim.stock.cell.ids[claim.end - 1] for claim in taken)
        return tie.rest

    def leave(self, row: Row, tie: Tie) -> None:
        """The Need has enough before it comes here."""
        tie.wanted = None
        for stock in tie.stocks:
            stock.readers.discard(row)
            self.put_up(row, stock)

    def take(self, row: Row, group: list[Stock], wanted: ResourceVector) -> tuple[ResourceVector, bool]:
        """Claim machines of stocks whose order ids decide; returns what they are together, and whether they
        are all there were."""
        self.work += len(group)
        rank = row.rank
        if len(group) == 1:
            return self._take_of(row, group[0], wanted)
        used = [stock.before(rank) for stock in group]
        taken, alloc, total, left = EMPTY, EMPTY, 0, -sum(used)
        for stock in group:
            left += len(stock.cell.ids)
        for stock, start, count in choose(group, wanted, used):
            self._claim(row, stock, start, start + count)
            if stock.cell.alloc is not alloc:
                taken = taken + alloc * total
                alloc, total = stock.cell.alloc, 0
            total += count
            left -= count
        return taken + alloc * total, not left

    def _take_of(self, row: Row, stock: Stock, wanted: ResourceVector) -> tuple[ResourceVector, bool]:
        """The same of one stock alone."""
        cell, start = stock.cell, stock.before(row.rank)
        there = len(cell.ids)
        count = min(there - start, wanted.pieces(cell.alloc))
        if count:
            self._claim(row, stock, start, start + count)
        return cell.alloc * count, start + count == there

    def _take_again(self, row: Row, tie: Tie, wanted: ResourceVector, stale: list[Stock]) -> bool:
        """Where all was taken up to some id: take what is wanted now without looking at all there is.
        ``stale`` are the stocks in which there may be more or less than before. False if what is right is not
        known so."""
        taken, spans = _there_now(row, tie, stale)
        if tie.whole and wanted.takes_all(taken, tie.least):
            tie.taken = taken
            self._claim_anew(row, spans)
            return True
        return wanted.is_within(tie.least) and self._take_on(row, tie, wanted, taken, spans)

    def _take_on(
        self, row: Row, tie: Tie, wanted: ResourceVector, taken: ResourceVector, spans: _Spans
    ) -> bool:
        """Take up to a later id, or an earlier one, as is wanted now. False if that is far from there."""
        end, whole = tie.end, tie.whole
        if not taken.covers(wanted):
            self.work += len(tie.stocks)
            heads = _heads(row, tie, spans)
            steps = 0
            while heads and not taken.covers(wanted):
                if steps == _NEAR:
                    return False
                steps += 1
                end, stock = heads[0]
                start, after = _span(row, stock, spans)
                spans[stock] = (start, after + 1)
                taken = taken + stock.cell.alloc
                if after + 1 < len(stock.cell.ids):
                    heapq.heapreplace(heads, (stock.cell.ids[after + 1], stock))
                else:
                    heapq.heappop(heads)
            whole = not heads
        elif (taken - tie.least).covers(wanted):
            self.work += len(tie.stocks)
            lasts = _lasts(row, tie, spans)
            for _ in range(_NEAR):
                _, stock = lasts[-1]
                fewer = taken - stock.cell.alloc
                if not fewer.covers(wanted):
                    break
                taken, whole = fewer, False
                start, after = _span(row, stock, spans)
                spans[stock] = (start, after - 1)
                lasts.pop()
                if start < after - 1:
                    bisect.insort(lasts, (stock.cell.ids[after - 2], stock))
                end = lasts[-1][0]
            else:
                return False
        tie.taken, tie.whole, tie.end = taken, whole, None if whole else end
        self._claim_anew(row, spans)
        return True

    def _claim_anew(self, row: Row, spans: _Spans) -> None:
        for stock, (start, end) in spans.items():
            known = row.holdings.get(stock)
            if known is None or known.start != start or known.end != end:
                self.put_up(row, stock)
                if start < end:
                    self._claim(row, stock, start, end)

    def _claim(self, row: Row, stock: Stock, start: int, end: int) -> None:
        claim = self._claimed.pop(stock, None)
        if claim is None:
            claim = Claim(stock, start, end, row)
            stock.add(claim)
            self.moved.append(stock)
            self.differs = True
        else:
            if claim.end != end:
                self.moved.append(stock)
            if claim.end - claim.start != end - start:
                self.differs = True
            claim.start, claim.end = start, end
        row.holdings[stock] = claim


_NEAR: Final = 16
"""So many machines more or fewer are found sooner one by one."""


def _there_now(row: Row, tie: Tie, stale: list[Stock]) -> tuple[ResourceVector, _Spans]:
    """What the Need has of ties if it takes all there is now up to where it came, and its part of those that
    may have changed."""
    taken, spans = tie.taken, _Spans()
    rank, last = row.rank, tie.end
    for stock in stale:
        ids, start = stock.cell.ids, stock.before(rank)
        end = len(ids) if last is None else bisect.bisect_right(ids, last, start)
        more = end - start - row.holding(stock)
        if more:
            taken = taken + stock.cell.alloc * more
        spans[stock] = (start, end)
    return taken, spans


def _span(row: Row, stock: Stock, spans: _Spans) -> tuple[int, int]:
    span = spans.get(stock)
    if span is None:
        known = row.holdings.get(stock)
        if known is not None:
            return (known.start, known.end)
        start = stock.before(row.rank)
        return (start, start)
    return span


def _heads(row: Row, tie: Tie, spans: _Spans) -> list[tuple[str, Stock]]:
    """The first id of every stock that the Need does not have, as a heap."""
    heads = []
    holdings, rank = row.holdings, row.rank
    for stock in tie.stocks:
        ids = stock.cell.ids
        if stock in spans:
            _, end = spans[stock]
        elif stock in holdings:
            end = holdings[stock].end
        else:
            end = stock.before(rank)
        if end < len(ids):
            heads.append((ids[end], stock))
    heapq.heapify(heads)
    return heads


def _lasts(row: Row, tie: Tie, spans: _Spans) -> list[tuple[str, Stock]]:
    """The last id of every stock that the Need has, in order."""
    lasts = []
    holdings = row.holdings
    for stock in tie.stocks:
        if stock in spans:
            start, end = spans[stock]
        elif stock in holdings:
            claim = holdings[stock]
            start, end = claim.start, claim.end
        else:
            continue
        if start < end:
            lasts.append((stock.cell.ids[end - 1], stock))
    lasts.sort()
    return lasts
