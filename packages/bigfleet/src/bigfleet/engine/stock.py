"""Supply as decisions see it: cells from which machines are taken, always the lowest ids first.

A ``Stock`` is a cell with its claims. What has been claimed of it is a prefix of its ids, because every rule
that chooses among the machines of one cell chooses by id; and the claims stand in the order of precedence of
the Needs that made them, so that what a Need found when its turn came is the end of the claim before it.
"""

import bisect
import heapq
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from bigfleet.engine.cells import Cell
from bigfleet.engine.matching import Fit
from bigfleet.engine.normalise import Demand
from bigfleet_base.model import ResourceVector

Rank = tuple[int, int, int, int, str, int]
"""When a Need's turn comes: precedence (engine.md §10.6), then the order Needs are served in."""


@dataclass(slots=True, eq=False)
class Span:
    """Machines of one stock, by position: ids[start:end]."""

    stock: "Stock"
    start: int
    end: int

    @property
    def ids(self) -> list[str]:
        return self.stock.cell.ids[self.start : self.end]

    def __len__(self) -> int:
        return self.end - self.start


@dataclass(slots=True, eq=False)
class Claim(Span):
    """Machines that count for a Need."""

    row: "Row"


class Stock:
    """A cell and the claims on it."""

    __slots__ = ("cell", "claims", "promised", "readers")

    def __init__(self, cell: Cell) -> None:
        self.cell = cell
        self.claims: list[Claim] = []
        """In the order of their rows' ranks."""
        self.readers: set[Row] = set()
        """Needs without a claim that would have one if more were left."""
        self.promised = 0
        """How many gangs count on while domains are chosen (virtual consumption, engine.md §10.2 step 6)."""

    @property
    def taken(self) -> int:
        """How many are claimed."""
        return self.claims[-1].end if self.claims else 0

    @property
    def left(self) -> int:
        return len(self.cell.ids) - self.taken

    def before(self, rank: Rank) -> int:
        """How many were claimed when a Need's turn came."""
        claims = self.claims
        if not claims:
            return 0
        if claims[-1].row.rank < rank:
            return claims[-1].end
        place = bisect.bisect_left(claims, rank, key=_rank)
        return claims[place - 1].end if place else 0

    def add(self, claim: Claim) -> None:
        """Note a claim at its row's turn."""
        claims = self.claims
        if not claims or claims[-1].row.rank < claim.row.rank:
            claims.append(claim)
        else:
            claims.insert(bisect.bisect_left(claims, claim.row.rank, key=_rank), claim)


@dataclass(slots=True, eq=False)
class Row:
    """A Need's way through the cycles, for as long as the Need does not change."""

    demand: Demand
    rank: Rank
    fit: Fit
    lacking: ResourceVector
    """What is left to acquire after what it holds already."""
    remaining: ResourceVector
    """What it lacks in the end."""
    held: list[Claim] = field(default_factory=list)
    """What counts for it without being bought."""
    bought: list[Claim] = field(default_factory=list)
    """What this cycle acquires, in the order it was chosen."""
    reach: int = 0
    """How far it looked for what it holds (``credit.Reach``)."""
    visited: list[Stock] = field(default_factory=list)
    """Where it is among the readers."""
    stopped: tuple[int, tuple[float, float]] | None = None
    """Where it had enough, if that was among what other Needs of its cluster were given."""
    domain: str | None = None
    """Of a gang: the chosen value of its Same key."""
    satisfiable: bool = False
    """Of a gang: whether the chosen domain could hold all of it by what is free or its own."""
    candidates: list["DomainCoverage"] = field(default_factory=list)
    spread_stopped: bool = False

    @classmethod
    def of(cls, demand: Demand, fit: Fit) -> "Row":
        """A Need that holds nothing yet."""
        profile = demand.need.profile
        buckets = (-profile.interruption_bucket, -profile.reclamation_bucket)
        rank = (-profile.priority, *buckets, *demand.place[1:])
        return cls(demand, rank, fit, demand.need.aggregate, demand.need.aggregate)

    @property
    def parked(self) -> bool:
        """Whether nothing may be started for it, for its own reasons or the shard's."""
        return self.demand.need.acquisition_parked or self.demand.need.held_back

    @property
    def claims(self) -> Iterator[Claim]:
        """All of its machines."""
        yield from self.held
        yield from self.bought

    def buy(self, stock: Stock, count: int) -> None:
        """Acquire the next machines of a stock."""
        start = stock.taken
        last = self.bought[-1] if self.bought else None
        if last is not None and last.stock is stock and last.end == start:
            last.end += count
        else:
            claim = Claim(stock, start, start + count, self)
            stock.claims.append(claim)
            self.bought.append(claim)
        self.remaining = self.remaining.less(stock.cell.alloc, count)


@dataclass(frozen=True, slots=True)
class DomainCoverage:
    """How much of a gang one domain could hold."""

    domain: str
    coverage_per_mille: int
    satisfiable: bool


def in_order(stocks: Iterable[Stock], key: Callable[[Stock], Any]) -> Iterator[list[Stock]]:
    """Stocks in groups of equal key, the smallest key first; inside a group ids decide."""
    keyed = [(key(stock), number, stock) for number, stock in enumerate(stocks)]
    keyed.sort(key=_first_two)
    group: list[Stock] = []
    for position, (this, _, stock) in enumerate(keyed):
        if position and this != keyed[position - 1][0]:
            yield group
            group = []
        group.append(stock)
    if group:
        yield group


def choose(
    group: list[Stock], lacking: ResourceVector, used: Callable[[Stock], int]
) -> Iterator[tuple[Stock, int, int]]:
    """What to take of a group whose order ids decide, as (stock, from where, how many), until nothing is
    lacking, passing over what makes no progress. A stock may come up again, then where it was left."""
    if len(group) == 1:
        stock = group[0]
        start = used(stock)
        count = min(len(stock.cell.ids) - start, lacking.pieces(stock.cell.alloc))
        if count > 0:
            yield stock, start, count
        return
    heads = []
    for number, stock in enumerate(group):
        start = used(stock)
        if start < len(stock.cell.ids):
            heads.append((stock.cell.ids[start], number, stock, start))
    heapq.heapify(heads)
    while heads and not lacking.is_zero():
        _, number, stock, start = heads[0]
        ids = stock.cell.ids
        count = lacking.pieces(stock.cell.alloc)
        if count == 0:
            # What makes no progress now never does later: none of this stock is visited again.
            heapq.heappop(heads)
            continue
        end = min(start + count, len(ids))
        if len(heads) > 1:
            end = bisect.bisect_left(ids, min(heads[1:3])[0], start + 1, end)
        yield stock, start, end - start
        lacking = lacking.less(stock.cell.alloc, end - start)
        if end < len(ids):
            heapq.heapreplace(heads, (ids[end], number, stock, end))
        else:
            heapq.heappop(heads)


def choose_alike(
    group: list[Stock], lacking: ResourceVector, used: Callable[[Stock], int]
) -> list[tuple[Stock, int, int]]:
    """``choose`` where nobody minds the order inside the group: each stock comes up once."""
    if len(group) > 1 and all(stock.cell.alloc == group[0].cell.alloc for stock in group[1:]):
        return _split(group, lacking.pieces(group[0].cell.alloc), [used(stock) for stock in group])
    found: dict[Stock, tuple[Stock, int, int]] = {}
    for stock, start, count in choose(group, lacking, used):
        first = found.get(stock, (stock, start, 0))
        found[stock] = (stock, first[1], first[2] + count)
    return list(found.values())


def _split(group: list[Stock], wanted: int, used: list[int]) -> list[tuple[Stock, int, int]]:
    """The ``wanted`` lowest ids of several stocks, as a prefix of each."""
    free = [len(stock.cell.ids) - start for stock, start in zip(group, used, strict=True)]
    if sum(free) > wanted:
        lowest: list[str] = []
        for stock, start in zip(group, used, strict=True):
            lowest += stock.cell.ids[start : start + wanted]
        lowest.sort()
        last = lowest[wanted - 1] if wanted else ""
        free = [
            bisect.bisect_right(stock.cell.ids, last, start) - start
            for stock, start in zip(group, used, strict=True)
        ]
    return [part for part in zip(group, used, free, strict=True) if part[2]]


def _rank(claim: Claim) -> Rank:
    return claim.row.rank


def _first_two(keyed: tuple[Any, int, Stock]) -> tuple[Any, int]:
    return keyed[:2]
