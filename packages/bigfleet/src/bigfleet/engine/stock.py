"""Supply during one cycle: cells from which machines are taken, always the lowest ids first.

A ``Stock`` is a cell as one cycle sees it. What has been claimed of it is a prefix of its ids, because every
rule that chooses among the machines of one cell chooses by id.
"""

import heapq
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from bigfleet.engine.cells import Cell
from bigfleet.engine.normalise import Demand
from bigfleet_base.model import ResourceVector


@dataclass(slots=True)
class Span:
    """Machines of one stock, by position: ids[start:end]."""

    stock: "Stock"
    start: int
    end: int

    @property
    def ids(self) -> list[str]:
        return self.stock.ids[self.start : self.end]

    def __len__(self) -> int:
        return self.end - self.start


@dataclass(slots=True)
class Claim:
    """Machines that count for a Need."""

    row: "Row"
    span: Span


@dataclass(slots=True, eq=False)
class Stock:
    """A cell in a running cycle."""

    cell: Cell
    ids: list[str]
    taken: int = 0
    """How many are claimed."""
    promised: int = 0
    """How many gangs count on while domains are chosen (virtual consumption, engine.md §10.2 step 6)."""
    claims: list[Claim] = field(default_factory=list)

    @property
    def left(self) -> int:
        return len(self.ids) - self.taken


@dataclass(slots=True, eq=False)
class Row:
    """A Need's way through one cycle."""

    index: int
    demand: Demand
    remaining: ResourceVector
    claims: list[Span] = field(default_factory=list)
    domain: str | None = None
    """Of a gang: the chosen value of its Same key."""
    satisfiable: bool = False
    """Of a gang: whether the chosen domain could hold all of it by what is free or its own."""
    candidates: list["DomainCoverage"] = field(default_factory=list)
    spread_stopped: bool = False
    acquired: int = 0

    @property
    def parked(self) -> bool:
        """Whether nothing may be started for it, for its own reasons or the shard's."""
        return self.demand.need.acquisition_parked or self.demand.need.held_back

    def claim(self, stock: Stock, count: int) -> None:
        """Take the next machines of a stock."""
        span = Span(stock, stock.taken, stock.taken + count)
        stock.taken += count
        stock.claims.append(Claim(self, span))
        last = self.claims[-1] if self.claims else None
        if last is not None and last.stock is stock and last.end == span.start:
            last.end = span.end
        else:
            self.claims.append(Span(stock, span.start, span.end))
        self.remaining = self.remaining - stock.cell.alloc * count


@dataclass(frozen=True, slots=True)
class DomainCoverage:
    """How much of a gang one domain could hold."""

    domain: str
    coverage_per_mille: int
    satisfiable: bool


def machines_needed(remaining: ResourceVector, alloc: ResourceVector) -> int:
    """How many machines of this size still make progress: none if no dimension that is short grows."""
    return max((-(-short // alloc[name]) for name, short in remaining.items() if alloc[name] > 0), default=0)


def in_order(stocks: Iterable[Stock], key: Callable[[Stock], Any]) -> Iterator[list[Stock]]:
    """Stocks in groups of equal key, the smallest key first; inside a group ids decide."""
    keyed = sorted(((key(stock), number, stock) for number, stock in enumerate(stocks)), key=lambda k: k[:2])
    group: list[Stock] = []
    for position, (this, _, stock) in enumerate(keyed):
        if position and this != keyed[position - 1][0]:
            yield group
            group = []
        group.append(stock)
    if group:
        yield group


def take(row: Row, groups: Iterable[list[Stock]], wanted: Callable[[], ResourceVector] | None = None) -> None:
    """Claim machines group by group until the Need is covered, passing over what makes no progress.

    ``wanted`` narrows what counts as progress; without it that is all the Need still lacks.
    """
    for group in groups:
        if row.remaining.is_zero():
            return
        for stock, count in _choose(group, wanted or (lambda: row.remaining), lambda stock: stock.taken):
            row.claim(stock, count)


def promise(residual: "Residual", groups: Iterable[list[Stock]]) -> None:
    """Set machines aside for a gang, so that later gangs choose their domain by what is left."""
    for group in groups:
        if residual.amount.is_zero():
            return
        for stock, count in _choose(group, lambda: residual.amount, lambda stock: stock.promised):
            stock.promised += count
            residual.amount = residual.amount - stock.cell.alloc * count


@dataclass(slots=True)
class Residual:
    """What a gang still lacks while machines are promised to it."""

    amount: ResourceVector


def _choose(
    group: list[Stock], lacking: Callable[[], ResourceVector], used: Callable[[Stock], int]
) -> Iterator[tuple[Stock, int]]:
    """The machines of one group to take, as (stock, how many); the caller books each before the next."""
    if len(group) == 1:
        stock = group[0]
        count = min(len(stock.ids) - used(stock), machines_needed(lacking(), stock.cell.alloc))
        if count > 0:
            yield stock, count
        return
    heads = [
        (stock.ids[used(stock)], number, stock)
        for number, stock in enumerate(group)
        if used(stock) < len(stock.ids)
    ]
    heapq.heapify(heads)
    while heads:
        _, number, stock = heads[0]
        count = machines_needed(lacking(), stock.cell.alloc)
        if count == 0:
            # What makes no progress now never does later: none of this stock is visited again.
            heapq.heappop(heads)
            continue
        if len(heads) > 1:
            count = min(count, _run(stock, used(stock), min(heads[1:3])[0]))
        else:
            count = min(count, len(stock.ids) - used(stock))
        yield stock, count
        if used(stock) < len(stock.ids):
            heapq.heapreplace(heads, (stock.ids[used(stock)], number, stock))
        else:
            heapq.heappop(heads)


def _run(stock: Stock, start: int, before: str) -> int:
    """How many machines of a stock come before another stock's next one."""
    end = start + 1
    while end < len(stock.ids) and stock.ids[end] < before:
        end += 1
    return end - start
