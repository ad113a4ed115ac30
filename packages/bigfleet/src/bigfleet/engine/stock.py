"""Supply as decisions see it: cells from which machines are taken, always the lowest ids first.

A ``Stock`` is a cell with its claims. What has been claimed of it is a prefix of its ids, because every rule
that chooses among the machines of one cell chooses by id; and the claims stand in the order of precedence of
the Needs that made them, so that what a Need found when its turn came is the end of the claim before it.
"""

import bisect
import heapq
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field
from enum import IntEnum
from itertools import accumulate, islice, repeat
from operator import mul
from typing import Any, Final

from bigfleet.engine.cells import Cell
from bigfleet.engine.matching import Fit
from bigfleet.engine.normalise import Demand
from bigfleet_base.model import EMPTY, MachineState, ResourceVector

Rank = tuple[int, int, int, int, str, int]
"""When a Need's turn comes: precedence (engine.md §10.6), then the order Needs are served in."""
AgeKey = tuple[str, str, str, ResourceVector | None]
"""What identifies a Need, folded ones included, from cycle to cycle: (cluster, fingerprint, group, aggregate
of each folded member)."""


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

    __slots__ = ("cell", "claims", "is_listed", "keep", "promised", "readers")

    def __init__(self, cell: Cell) -> None:
        self.cell = cell
        self.keep = (cell.machine_class.offer.price_per_hour, -cell.binding.reclamation_penalty)
        """In which order bound machines are kept: the cheapest first, then the one worth most to its
        tenant."""
        self.is_listed = False
        """Whether it is on the menus of its cluster."""
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

    def let_go(self) -> None:
        """As ``Row.let_go``."""
        self.claims.clear()
        self.readers.clear()

    def before(self, rank: Rank) -> int:
        """How many were claimed when a Need's turn came."""
        claims = self.claims
        if not claims:
            return 0
        if claims[-1].row.rank < rank:
            return claims[-1].end
        if len(claims) == 1:
            return 0
        place = bisect.bisect_left(claims, rank, key=_rank)
        return claims[place - 1].end if place else 0

    def add(self, claim: Claim) -> None:
        """Note a claim at its row's turn."""
        claims = self.claims
        if not claims or claims[-1].row.rank < claim.row.rank:
            claims.append(claim)
        else:
            claims.insert(bisect.bisect_left(claims, claim.row.rank, key=_rank), claim)


Groups = list[list[Stock]]
"""Stocks that tie, the first to be kept first; inside a group ids decide."""


class Tie:
    """Stocks on a menu that tie, and what the Need took of them when it last came to them."""

    __slots__ = ("_least", "end", "keep", "rest", "stocks", "taken", "wanted", "whole")

    def __init__(self, keep: tuple[float, float], stocks: list[Stock]) -> None:
        self.keep = keep
        """What they tie in."""
        self.stocks = stocks
        self.wanted: ResourceVector | None = None
        """What it wanted then; None if it did not come so far."""
        self.taken = EMPTY
        """What it took."""
        self.rest = EMPTY
        """What it still wanted then."""
        self.whole = False
        """Whether that was all there was."""
        self.end: str | None = None
        """If not: an id up to which it took all there are, and nothing beyond."""
        self._least: ResourceVector | None = None

    def add(self, stock: Stock) -> None:
        """One more."""
        self.stocks.append(stock)
        if self._least is not None and stock.cell.alloc != self._least:
            self._least = ResourceVector.common((self._least, stock.cell.alloc))

    @property
    def least(self) -> ResourceVector:
        """What any machine of them has at least."""
        if self._least is None:
            allocs = [stock.cell.alloc for stock in self.stocks]
            first = allocs[0]
            alike = all(alloc is first for alloc in allocs)
            self._least = first if alike else ResourceVector.common(allocs)
        return self._least


class Menu:
    """The bound machines a Need may claim, in the order they are kept (``Stock.keep``)."""

    __slots__ = ("_keys", "ties")

    def __init__(self, stocks: Iterable[Stock]) -> None:
        found: dict[tuple[float, float], list[Stock]] = {}
        for stock in stocks:
            found.setdefault(stock.keep, []).append(stock)
        self._keys = sorted(found)
        self.ties = [Tie(key, found[key]) for key in self._keys]

    @property
    def groups(self) -> Groups:
        """The same without what is remembered."""
        return [tie.stocks for tie in self.ties]

    def add(self, stock: Stock) -> Tie | None:
        """Put it where it belongs; None if it is there."""
        place = bisect.bisect_left(self._keys, stock.keep)
        if place == len(self._keys) or self._keys[place] != stock.keep:
            self._keys.insert(place, stock.keep)
            self.ties.insert(place, Tie(stock.keep, []))
        tie = self.ties[place]
        if stock in tie.stocks:
            return None
        tie.add(stock)
        return tie

    def tie(self, stock: Stock) -> Tie | None:
        """Where it is, if it is there."""
        place = bisect.bisect_left(self._keys, stock.keep)
        if place < len(self._keys) and self._keys[place] == stock.keep and stock in self.ties[place].stocks:
            return self.ties[place]
        return None

    def discard(self, stock: Stock) -> None:
        """Take it off."""
        place = bisect.bisect_left(self._keys, stock.keep)
        self.ties[place].stocks.remove(stock)
        if not self.ties[place].stocks:
            del self._keys[place], self.ties[place]


class Reach(IntEnum):
    """How far a Need looked for what it holds, and so what may change that."""

    OWN = 0
    """Its own machines and those of its cluster that are nobody's."""
    OWNERLESS = 1
    """Machines in creation that are nobody's."""
    CLUSTER = 2
    """All that its cluster has."""
    FREE = 3
    """That, and what everybody may have."""
    FLEET = 4
    """All there is: looked at again whenever anything has changed."""


@dataclass(slots=True, eq=False)
class Row:
    """A Need's way through the cycles, for as long as the Need does not change."""

    demand: Demand
    key: tuple[str, str, str]
    """As ``Need.key``."""
    age_key: AgeKey
    rank: Rank
    fit: Fit
    lacking: ResourceVector
    """What is left to acquire after what it holds already."""
    remaining: ResourceVector
    """What it lacks in the end."""
    holdings: dict[Stock, Claim] = field(default_factory=dict)
    """What counts for it without being bought, by where it is."""
    bought: list[list[Claim]] = field(default_factory=list)
    """What this cycle acquires, lot by lot in the order it was chosen; inside a lot ids decide."""
    promises: dict[Stock, int] = field(default_factory=dict)
    """Of a gang: what is set aside for it while later ones choose their domains."""
    usual: dict[MachineState, Menu] = field(default_factory=dict)
    """What it may claim of what its cluster has, its own or nobody's; for the states it came to."""
    foreign: dict[MachineState, Menu] = field(default_factory=dict)
    """The same of what was bought for others."""
    reach: Reach = Reach.OWN
    visited: list[Stock] = field(default_factory=list)
    """Where it is among the readers, what stands on its menus apart."""
    walked: list[Tie] = field(default_factory=list)
    """Of a plain Need: how far it came on its menus, and there it is among the readers."""
    coming: list[Stock] = field(default_factory=list)
    """Of a plain Need: machines in creation that it looked at."""
    is_new: bool = True
    """Whether its first turn is still to come."""
    stale: dict[Stock, None] | None = None
    """Of a plain Need: where it may find something else than when it last came there; None: everywhere."""
    stopped: tuple[int, tuple[float, float]] | None = None
    """Where it had enough, if that was among what its cluster has."""
    domain: str | None = None
    """Of a gang: the chosen value of its Same key."""
    rivals: frozenset[str] = frozenset()
    """Of a gang: the only domains it could be in, as long as they have all of it; none: any."""
    satisfiable: bool = False
    """Of a gang: whether the chosen domain could hold all of it by what is free or its own."""
    candidates: list["DomainCoverage"] = field(default_factory=list)
    spread_stopped: bool = False

    @classmethod
    def of(cls, demand: Demand, fit: Fit) -> "Row":
        """A Need that holds nothing yet."""
        need = demand.need
        profile, key = need.profile, need.key
        buckets = (-profile.interruption_bucket, -profile.reclamation_bucket)
        rank = (-profile.priority, *buckets, *demand.place[1:])
        return cls(demand, key, (*key, demand.members), rank, fit, need.aggregate, need.aggregate)

    @property
    def parked(self) -> bool:
        """Whether nothing may be started for it, for its own reasons or the shard's."""
        return self.demand.need.acquisition_parked or self.demand.need.held_back

    @property
    def held(self) -> Collection[Claim]:
        """What counts for it without being bought."""
        return self.holdings.values()

    def in_turn(self) -> Iterator[Claim]:
        """All of its machines in the order it came to them, those of one stock together."""
        usual = {tie for menu in self.usual.values() for tie in menu.ties}
        places = {
            stock: (tie not in usual, number)
            for number, tie in enumerate(self.walked, start=1)
            for stock in tie.stocks
        }

        def place(claim: Claim) -> tuple[bool, int, list[str]]:
            found = places.get(claim.stock)
            # What is on its way comes between what is usual and what was bought for others.
            return (True, 0, []) if found is None else (*found, claim.ids[:1])

        yield from sorted(self.held, key=place)
        for lot in self.bought:
            yield from lot

    @property
    def claims(self) -> Iterator[Claim]:
        """All of its machines."""
        yield from self.holdings.values()
        for lot in self.bought:
            yield from lot

    def holding(self, stock: Stock) -> int:
        """How many machines of a stock it has without buying them."""
        known = self.holdings.get(stock)
        return 0 if known is None else known.end - known.start

    def inherit(self, row: "Row", *, menus: bool) -> None:
        """Take over what another one of the same rank came to hold, and its menus if they are the same."""
        self.holdings, self.promises = row.holdings, row.promises
        for claim in self.holdings.values():
            claim.row = self
        for stock in row.reads():
            stock.readers.discard(row)
        if menus:
            self.usual, self.foreign, self.visited = row.usual, row.foreign, row.visited
            self.walked, self.coming, self.stale = row.walked, row.coming, row.stale
        for stock in self.reads():
            stock.readers.add(self)

    def reads(self) -> Iterator[Stock]:
        """Where it is among the readers."""
        yield from self.visited
        for tie in self.walked:
            yield from tie.stocks

    def take_off(self, stock: Stock) -> None:
        """Machines that are gone are on no menu."""
        for menus in (self.usual, self.foreign):
            menu = menus.get(stock.cell.state)
            if menu is not None and menu.tie(stock) is not None:
                menu.discard(stock)

    def forget_menus(self) -> None:
        """What it may claim is no longer what it was."""
        for tie in self.walked:
            for stock in tie.stocks:
                stock.readers.discard(self)
        self.usual, self.foreign, self.walked, self.stale = {}, {}, [], None

    def let_go(self) -> None:
        """Forget all machines, so that what is gone is gone at once: rows, claims and stocks refer to each
        other, and a process that lives long hardly ever looks for garbage among what is old."""
        self.holdings, self.bought, self.visited, self.promises = {}, [], [], {}
        self.usual, self.foreign, self.walked, self.coming, self.stale = {}, {}, [], [], None

    def buy(self, parts: "list[Part]") -> None:
        """Acquire the next machines of some stocks that tie."""
        lot = []
        for stock, start, count in parts:
            claim = Claim(stock, start, start + count, self)
            stock.claims.append(claim)
            lot.append(claim)
            self.remaining = self.remaining.less(stock.cell.alloc, count)
        if lot:
            self.bought.append(lot)


Part = tuple[Stock, int, int]
"""Machines of a stock: from which position, and how many."""


@dataclass(frozen=True, slots=True)
class DomainCoverage:
    """How much of a gang one domain could hold."""

    domain: str
    coverage_per_mille: int
    satisfiable: bool


def in_order(stocks: Collection[Stock], key: Callable[[Stock], Any]) -> Iterable[list[Stock]]:
    """Stocks in groups of equal key, the smallest key first; inside a group ids decide."""
    if len(stocks) <= 1:
        return [list(stocks)] if stocks else ()
    groups: dict[Any, list[Stock]] = {}
    for stock in stocks:
        groups.setdefault(key(stock), []).append(stock)
    return [groups[each] for each in sorted(groups)]


def choose(group: list[Stock], lacking: ResourceVector, used: list[int]) -> list[Part]:
    """What to take of a group whose order ids decide, until nothing is lacking, passing over what makes no
    progress; ``used`` says where each stock was left. Each stock comes up once at most."""
    if len(group) == 1:
        stock, start = group[0], used[0]
        count = min(len(stock.cell.ids) - start, lacking.pieces(stock.cell.alloc))
        return [(stock, start, count)] if count > 0 else []
    first = group[0].cell.alloc
    for stock in group:
        if stock.cell.alloc is not first and stock.cell.alloc != first:
            break
    else:
        return _first(group, used, lacking.pieces(first))
    columns = lacking.columns([stock.cell.alloc for stock in group])
    if all(min(column) > 0 for column, _ in columns):
        return _lowest(group, used, columns)
    return _one_by_one(group, lacking, used)


def _first(group: list[Stock], used: list[int], wanted: int) -> list[Part]:
    """So many of the lowest ids of several stocks, as a prefix of each, or all of them."""
    free = [min(wanted, len(stock.cell.ids) - start) for stock, start in zip(group, used, strict=True)]
    if sum(free) > wanted:
        free = _counts(_owners(group, used, free, wanted), len(group))
    return _by_id(zip(group, used, free, strict=True))


def _lowest(group: list[Stock], used: list[int], columns: list[tuple[list[int], int]]) -> list[Part]:
    """The lowest ids of several stocks, as a prefix of each: as few as cover all that is lacking, or all of
    them. Every one of them makes progress."""
    most = max(-(-amount // min(column)) for column, amount in columns)
    free = [min(most, len(stock.cell.ids) - start) for stock, start in zip(group, used, strict=True)]
    if all(sum(map(mul, free, column)) >= amount for column, amount in columns):
        owners = _owners(group, used, free, most)
        enough = max(
            bisect.bisect_left(list(accumulate(map(column.__getitem__, owners))), amount)
            for column, amount in columns
        )
        free = _counts(owners[: enough + 1], len(group))
    return _by_id(zip(group, used, free, strict=True))


def _owners(group: list[Stock], used: list[int], free: list[int], most: int) -> list[int]:
    """The numbers of the stocks that have the lowest ids, in their order; so many ids at most."""
    parts = [s.cell.ids[start : start + count] for s, start, count in zip(group, used, free, strict=True)]
    if sum(free) > _FEW_OF_MANY * most:
        merged = heapq.merge(*(zip(part, repeat(number)) for number, part in enumerate(parts)))
        return [number for _, number in islice(merged, most)]
    owners: dict[str, int] = {}
    for number, part in enumerate(parts):
        owners.update(dict.fromkeys(part, number))
    return [owners[machine_id] for machine_id in sorted(owners)][:most]


_FEW_OF_MANY: Final = 8
"""Where there are more than so many times as many ids, those wanted are found sooner without sorting."""


def _counts(owners: list[int], stocks: int) -> list[int]:
    counts = [0] * stocks
    for number in owners:
        counts[number] += 1
    return counts


def _one_by_one(group: list[Stock], lacking: ResourceVector, used: list[int]) -> list[Part]:
    """The same where some of them may make no progress when their turn comes."""
    taken = [0] * len(group)
    heads = [
        (stock.cell.ids[start], number, start)
        for number, (stock, start) in enumerate(zip(group, used, strict=True))
        if start < len(stock.cell.ids)
    ]
    heapq.heapify(heads)
    while heads and not lacking.is_zero():
        _, number, start = heads[0]
        stock = group[number]
        ids = stock.cell.ids
        count = lacking.pieces(stock.cell.alloc)
        if count == 0:
            # What makes no progress now never does later: none of this stock is visited again.
            heapq.heappop(heads)
            continue
        end = min(start + count, len(ids))
        if len(heads) > 1:
            end = bisect.bisect_left(ids, min(heads[1:3])[0], start + 1, end)
        taken[number] += end - start
        lacking = lacking.less(stock.cell.alloc, end - start)
        if end < len(ids):
            heapq.heapreplace(heads, (ids[end], number, end))
        else:
            heapq.heappop(heads)
    return _by_id(zip(group, used, taken, strict=True))


def _by_id(parts: Iterable[Part]) -> list[Part]:
    """Those that take something, in the order of their ids: which cell came up first must not show."""
    return sorted((part for part in parts if part[2]), key=lambda part: part[0].cell.ids[part[1]])


def _rank(claim: Claim) -> Rank:
    return claim.row.rank
