"""Strict topology spread: how evenly a Need's machines must lie (engine.md §10.5, §11)."""

import bisect
import heapq
from collections import Counter
from collections.abc import Iterator
from itertools import chain

from bigfleet.engine.cells import Cell
from bigfleet.engine.states import IDLE
from bigfleet.engine.stock import Row, Stock
from bigfleet.engine.supply import PASSES, Shelf, Supply, first_of
from bigfleet_base.model import MachineState, TopologySpread


def strict_spread(row: Row) -> TopologySpread | None:
    """The spread entry that binds a Need; a gang's domain overrides it."""
    profile = row.demand.need.profile
    return None if profile.same is not None else profile.strict_spread


class SpreadCounts:
    """A Need's machines by domain, and which domains may take another one."""

    def __init__(self, row: Row, spread: TopologySpread, supply: Supply) -> None:
        self.key = spread.topology_key
        self._skew = max(1, spread.max_skew)
        self._counts: dict[str, int] = {}
        """Of the domains that have any."""
        self._domains: Counter[int] = Counter()
        """How many of those have so many."""
        self._free = supply.free_values(row.fit, self.key)
        self._further = supply.further_values(row.demand.need.cluster_id, row.fit, self.key)
        self._empty = len(self._free) + len(self._further)
        """How many domains have none."""
        self.lowest = 0
        """What the emptiest domain has; while machines are added one by one it only rises."""
        for claim in row.claims:
            self.add(claim.stock, len(claim))

    def domain(self, stock: Stock) -> str | None:
        """The domain its machines lie in."""
        return stock.cell.machine_class.lookup(self.key)

    def add(self, stock: Stock, count: int = 1) -> None:
        """Count machines that are the Need's from here on."""
        value = self.domain(stock)
        if value is None:
            return
        before = self._counts.get(value, 0)
        if before:
            self._domains[before] -= 1
            if not self._domains[before]:
                del self._domains[before]
        elif value in self._free or value in self._further:
            self._empty -= 1
        after = self._counts[value] = before + count
        self._domains[after] += 1
        self.lowest = 0 if self._empty else min(self._domains)

    def eligible(self, stock: Stock) -> bool:
        """Whether one more machine there keeps the skew."""
        value = self.domain(stock)
        return value is not None and self._counts.get(value, 0) <= self.lowest + self._skew - 1


def acquire_spread(row: Row, spread: TopologySpread, supply: Supply) -> None:
    """Acquisition under strict spread; notes if it was the spread that stopped it."""
    counts = SpreadCounts(row, spread, supply)
    own = set(supply.own_cells(row, IDLE))
    own_idle: dict[str, list[Stock]] = {}
    for stock in supply.own_idle(row, None):
        value = counts.domain(stock)
        if value is not None:
            own_idle.setdefault(value, []).append(stock)
    full: list[_Domain] = []
    for state, affordable in PASSES:
        market = _Market(row, supply, state, affordable, counts.key, own)
        for value, stocks in own_idle.items():
            market.open(value, stocks)
        own_idle = {}
        full += _take_spread(row, counts, market)
    row.spread_stopped = not row.remaining.is_zero() and any(domain.head() for domain in full)


def _take_spread(row: Row, counts: SpreadCounts, market: "_Market") -> "list[_Domain]":
    """One pass of acquisition under strict spread: a machine at a time, from the best head that may grow.
    Returns the domains that it could not take more of."""
    full: list[_Domain] = []
    """Domains that have enough until the emptiest has more."""
    while not row.remaining.is_zero() and (domain := market.best()) is not None:
        head = domain.head()
        assert head is not None
        if not counts.eligible(head):
            full.append(market.close(domain))
            continue
        row.buy([(head, head.taken, 1)])
        lowest = counts.lowest
        counts.add(head)
        if counts.lowest != lowest:
            for domain in full:
                market.reopen(domain)
            full.clear()
    return full


_Order = tuple[bool, float, float, str]
"""Which head comes first: the Need's own, then the cheapest, then by domain."""


class _Market:
    """The domains in which a Need may acquire something in one pass, by their heads. A domain is opened when
    it can be the best: most of many are never looked into."""

    def __init__(
        self,
        row: Row,
        supply: Supply,
        state: MachineState,
        affordable: bool,
        label: str,
        own: set[Cell],
    ) -> None:
        self._row = row
        self._supply = supply
        self._what = (row.fit, state, affordable)
        self._label = label
        self._own = own
        self._shelf: Shelf = supply.shelf(*self._what, label)
        self._seen = 0
        """How far it has come on the shelf."""
        self._heads: list[_Order] = []
        self._open: dict[str, _Domain] = {}

    def open(self, value: str, own_idle: list[Stock]) -> None:
        """Look into a domain; the Need's own machines come first."""
        others = self._supply.others(*self._what, (self._label, value), self._own)
        first = first_of(self._row, own_idle)
        domain = self._open[value] = _Domain(value, self._row, chain(first, others))
        self.reopen(domain)

    def close(self, domain: "_Domain") -> "_Domain":
        """Pass over the best domain until it is opened again."""
        heapq.heappop(self._heads)
        return domain

    def reopen(self, domain: "_Domain") -> None:
        """Look at a domain again."""
        head = domain.head()
        if head is not None:
            heapq.heappush(self._heads, self._order(domain, head))

    def best(self) -> "_Domain | None":
        """The domain with the best head."""
        while True:
            self._open_those_before(self._heads[0] if self._heads else None)
            if not self._heads:
                return None
            *_, value = self._heads[0]
            domain = self._open[value]
            head = domain.head()
            if head is None:
                heapq.heappop(self._heads)
            elif (order := self._order(domain, head)) != self._heads[0]:
                # What comes to the head of a domain later is never better.
                heapq.heapreplace(self._heads, order)
            else:
                return domain

    def _open_those_before(self, best: _Order | None) -> None:
        """Open the domains whose heads could be better than the best that is known."""
        shelf = self._shelf
        while self._seen < len(shelf) and (best is None or (True, *shelf[self._seen]) < best):
            *known, value = shelf[self._seen]
            if value in self._open:
                self._seen += 1
                continue
            cost = self._supply.first_cost(*self._what, (self._label, value))
            if cost is None:
                del shelf[self._seen]
            elif cost != tuple(known):
                del shelf[self._seen]
                bisect.insort(shelf, (*cost, value))
            else:
                self._seen += 1
                self.open(value, [])
                best = self._heads[0] if self._heads else None

    def _order(self, domain: "_Domain", head: Stock) -> _Order:
        cost = self._row.fit.cost_key(head.cell.machine_class)
        return (not self._supply.owns(self._row, head.cell), *cost, domain.value)


class _Domain:
    """What a Need may acquire in one domain in one pass: groups of candidates, one behind the other."""

    __slots__ = ("_groups", "_heap", "_row", "value")

    def __init__(self, value: str, row: Row, groups: Iterator[list[Stock]]) -> None:
        self.value = value
        self._row = row
        self._groups = groups
        self._heap: list[tuple[str, Stock]] = []
        """Stocks that tie, by their first machine that is left."""

    def head(self) -> Stock | None:
        """The stock with the first machine that makes progress; what makes none now never does later."""
        remaining = self._row.remaining
        while True:
            heap = self._heap
            while heap:
                machine_id, stock = heap[0]
                if not stock.left or not remaining.pieces(stock.cell.alloc):
                    heapq.heappop(heap)
                elif (first := stock.cell.ids[stock.taken]) != machine_id:
                    heapq.heapreplace(heap, (first, stock))
                else:
                    return stock
            group = next(self._groups, None)
            if group is None:
                return None
            self._heap = [(stock.cell.ids[stock.taken], stock) for stock in group if stock.left]
            heapq.heapify(self._heap)
