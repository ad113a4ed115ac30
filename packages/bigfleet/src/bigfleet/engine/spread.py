"""Strict topology spread: how evenly a Need's machines must lie (engine.md §10.5, §11)."""

import heapq
from collections import Counter
from collections.abc import Iterator
from itertools import chain

from bigfleet.engine.stock import Row, Stock
from bigfleet.engine.supply import PASSES, Supply, first_of
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
        self.lowest = 0
        """What the emptiest domain has; while machines are added one by one it only rises."""
        cluster, fit = row.demand.need.cluster_id, row.fit
        for state in (MachineState.CONFIGURED, MachineState.CONFIGURING):
            for machine_class, _ in supply.inventory.cluster_classes(cluster, state, fit.instance_types):
                if fit.suits(machine_class) and (value := machine_class.lookup(self.key)) is not None:
                    self._counts[value] = 0
        for state in (MachineState.IDLE, MachineState.SPECULATIVE):
            for value, pools in fit.pools(state).by_value(self.key).items():
                if any(pool.cells for pool in pools):
                    self._counts[value] = 0
        self._domains = Counter(self._counts.values())
        """How many domains have so many."""
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
        before = self._counts.get(value)
        if before is not None:
            self._domains[before] -= 1
            if not self._domains[before]:
                del self._domains[before]
        after = self._counts[value] = (before or 0) + count
        self._domains[after] += 1
        if before is None or before == self.lowest:
            self.lowest = min(self._domains)

    def eligible(self, stock: Stock) -> bool:
        """Whether one more machine there keeps the skew."""
        value = self.domain(stock)
        return value is not None and self._counts.get(value, 0) <= self.lowest + self._skew - 1


def acquire_spread(row: Row, spread: TopologySpread, supply: Supply) -> None:
    """Acquisition under strict spread; notes if it was the spread that stopped it."""
    counts = SpreadCounts(row, spread, supply)
    own = set(supply.own_cells(row, MachineState.IDLE))
    own_idle: dict[str, list[Stock]] = {}
    for stock in supply.own_idle(row, None):
        value = counts.domain(stock)
        if value is not None:
            own_idle.setdefault(value, []).append(stock)
    left: list[_Domain] = []
    for number, (state, affordable) in enumerate(PASSES):
        domains = {}
        for value in row.fit.pools(state).by_value(counts.key):
            groups = supply.others(row.fit, state, affordable, (counts.key, value), own)
            first = first_of(row, own_idle.get(value, ())) if number == 0 else ()
            domains[value] = _Domain(chain(first, groups))
        _take_spread(row, counts, supply, domains)
        left += domains.values()
    row.spread_stopped = not row.remaining.is_zero() and any(domain.head(row) for domain in left)


def _take_spread(row: Row, counts: SpreadCounts, supply: Supply, domains: "dict[str, _Domain]") -> None:
    """One pass of acquisition under strict spread: a machine at a time, from the best head that may grow."""
    heads = [_order(row, supply, value, head) for value, d in domains.items() if (head := d.head(row))]
    heapq.heapify(heads)
    full: list[_Order] = []
    """Heads of domains that have enough until the emptiest has more."""
    while heads and not row.remaining.is_zero():
        *_, value = heads[0]
        head = domains[value].head(row)
        if head is None:
            heapq.heappop(heads)
        elif (order := _order(row, supply, value, head)) != heads[0]:
            # What comes to the head of a domain later is never better.
            heapq.heapreplace(heads, order)
        elif not counts.eligible(head):
            full.append(heapq.heappop(heads))
        else:
            row.buy([(head, head.taken, 1)])
            lowest = counts.lowest
            counts.add(head)
            if counts.lowest != lowest:
                heads += full
                heapq.heapify(heads)
                full.clear()


_Order = tuple[bool, float, float, str]
"""Which head comes first: the Need's own, then the cheapest, then by domain."""


def _order(row: Row, supply: Supply, value: str, head: Stock) -> _Order:
    cost = row.fit.cost_key(head.cell.machine_class)
    return (not supply.owns(row, head.cell), *cost, value)


class _Domain:
    """What a Need may acquire in one domain in one pass: groups of candidates, one behind the other."""

    __slots__ = ("_groups", "_heap")

    def __init__(self, groups: Iterator[list[Stock]]) -> None:
        self._groups = groups
        self._heap: list[tuple[str, Stock]] = []
        """Stocks that tie, by their first machine that is left."""

    def head(self, row: Row) -> Stock | None:
        """The stock with the first machine that makes progress; what makes none now never does later."""
        while True:
            heap = self._heap
            while heap:
                machine_id, stock = heap[0]
                if not stock.left or not row.remaining.pieces(stock.cell.alloc):
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
