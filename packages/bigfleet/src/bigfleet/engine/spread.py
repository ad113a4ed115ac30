"""Strict topology spread: how evenly a Need's machines must lie (engine.md §10.5, §11)."""

import heapq
from collections import Counter
from collections.abc import Iterable

from bigfleet.engine.stock import Row, Stock
from bigfleet.engine.supply import Supply
from bigfleet_base.model import MachineState, TopologySpread

Heap = list[tuple[str, Stock]]
"""Stocks that tie, by their first machine that is left."""


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
    passes = [list(groups) for groups in supply.passes(row, None)]
    for groups in passes:
        _take_spread(row, counts, supply, groups)
    row.spread_stopped = any(
        stock.left and counts.domain(stock) is not None and row.remaining.pieces(stock.cell.alloc)
        for groups in passes
        for group in groups
        for stock in group
    )


def _take_spread(row: Row, counts: SpreadCounts, supply: Supply, groups: Iterable[list[Stock]]) -> None:
    """One pass of acquisition under strict spread: a machine at a time, from the best head that may grow."""
    buckets: dict[str, list[Heap]] = {}
    for group in groups:
        # Stocks of one group tie but for ids; those of the next group come behind them.
        heaps: dict[str, Heap] = {}
        for stock in group:
            if stock.left and (value := counts.domain(stock)) is not None:
                heaps.setdefault(value, []).append((stock.cell.ids[stock.taken], stock))
        for value, heap in heaps.items():
            heapq.heapify(heap)
            buckets.setdefault(value, []).append(heap)
    heads = [_order(row, supply, value, head) for value, b in buckets.items() if (head := _head(row, b))]
    heapq.heapify(heads)
    full: list[_Order] = []
    """Heads of domains that have enough until the emptiest has more."""
    while heads and not row.remaining.is_zero():
        *_, value = heads[0]
        head = _head(row, buckets[value])
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


def _head(row: Row, bucket: list[Heap]) -> Stock | None:
    """The stock with a domain's first machine that makes progress; what makes none now never does later."""
    while bucket:
        heap = bucket[0]
        while heap:
            machine_id, stock = heap[0]
            if not stock.left or not row.remaining.pieces(stock.cell.alloc):
                heapq.heappop(heap)
            elif (first := stock.cell.ids[stock.taken]) != machine_id:
                heapq.heapreplace(heap, (first, stock))
            else:
                return stock
        del bucket[0]
    return None
