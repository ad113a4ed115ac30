"""Where a gang goes: one value of its Same key for all of its machines (engine.md §10.2, §10.3)."""

import bisect
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from math import prod
from typing import Final, Protocol

from bigfleet.engine.cells import Call, Pool
from bigfleet.engine.matching import Pools
from bigfleet.engine.options import CANDIDATE_DOMAINS, DEFAULTS
from bigfleet.engine.states import CONFIGURED, CONFIGURING, IDLE, SPECULATIVE
from bigfleet.engine.stock import DomainCoverage, Groups, Reach, Row, Span, Stock, choose
from bigfleet.engine.supply import Place, Supply, suitable
from bigfleet.engine.victims import VictimOrder, in_time, lowest_stamp
from bigfleet_base.model import EMPTY, MachineState, ResourceVector

_BOUND: Final = (CONFIGURED, CONFIGURING)
Counts = dict[tuple[str, ResourceVector, bool], int]
"""Machines by domain, by what each counts for and by whether it is the gang's own."""


@dataclass(slots=True)
class Bucket:
    """The supply of one domain for one gang."""

    count: int = 0
    total: ResourceVector = EMPTY
    creditable: ResourceVector = EMPTY
    own: ResourceVector = EMPTY
    first_total: ResourceVector = EMPTY
    """The total of the first ranking, kept when a second one adds to it."""
    extra_drains: list[Span] = field(default_factory=list)
    extra_bound: list[Span] = field(default_factory=list)

    def add(self, count: int, alloc: ResourceVector, *, creditable: bool, own: bool) -> None:
        self.count += count
        amount = alloc * count
        self.total = self.total + amount
        if creditable:
            self.creditable = self.creditable + amount
        if own:
            self.own = self.own + amount


class Reliance:
    """Machines that earlier gangs of the walk already count on being freed for them."""

    def __init__(self) -> None:
        self._ids: set[str] = set()

    def free(self, span: Span) -> list[Span]:
        """The parts of a span nobody relies on."""
        if not self._ids:
            return [span]
        return list(_runs(span, lambda machine_id: machine_id not in self._ids))

    def add(self, ids: Iterable[str]) -> None:
        self._ids.update(ids)


class Claims(Protocol):
    """What a Need may claim in its turn, and the claiming."""

    def usual(self, row: Row, state: MachineState) -> Groups: ...
    def foreign(self, row: Row, state: MachineState) -> Iterable[list[Stock]]: ...
    def own_creating(self, row: Row) -> list[Stock]: ...
    def ownerless(self, row: Row) -> list[Stock]: ...
    def take(
        self, row: Row, group: list[Stock], lacking: ResourceVector, aside: ResourceVector = EMPTY
    ) -> ResourceVector: ...


class Gangs:
    """The choice of domains in one walk over the Needs."""

    def __init__(self, supply: Supply) -> None:
        self._supply = supply
        self._order = VictimOrder(DEFAULTS)
        self._now = 0
        self._reliance = Reliance()
        self._promised: dict[str, list[tuple[Stock, int]]] = {}
        """What has been set aside in this walk, by instance type."""
        self._frees: dict[tuple[Pools, str], Free] = {}

    def begin(self, order: VictimOrder, now: int) -> None:
        """A walk begins: nothing is promised yet, and nobody relies on anything."""
        self._order, self._now = order, now
        self._reliance = Reliance()
        for promised in self._promised.values():
            for stock, _ in promised:
                stock.promised = 0
        self._promised.clear()

    def end(self) -> None:
        """The walk is over: what is free is not what it was by the next one."""
        self._frees.clear()

    def place(self, row: Row, claims: Claims) -> tuple[ResourceVector, Reach]:
        """Choose the gang's domain, claim what counts there, and promise it what it will acquire; returns
        what it lacks then, and how far it had to look."""
        usual = [
            *(group for state in _BOUND for group in claims.usual(row, state)),
            *(g for g in (claims.own_creating(row), claims.ownerless(row)) if g),
        ]
        foreign = [group for state in _BOUND for group in claims.foreign(row, state)]
        creditable = self._creditable(row, [*usual, *foreign])
        rivals = self._rivals(row, creditable)
        if len(rivals) == 1:
            row.domain, row.satisfiable, row.candidates = rivals[0], True, []
            return self._credit(row, claims, usual, foreign), Reach.CLUSTER
        need = row.demand.need
        row.rivals = frozenset(rivals)
        free = None if row.parked else self._free(row)
        buckets, ranked = self._first_ranking(row, creditable, free)
        choice = ranked[0] if ranked else None
        row.candidates = _coverage(buckets, ranked[:CANDIDATE_DOMAINS], need.aggregate)
        row.satisfiable = choice is not None and buckets[choice].total.covers(need.aggregate)
        relied_on: Bucket | None = None
        if not row.satisfiable and free is not None:
            wider = self._second_ranking(row, creditable, free)
            ranked = _ranked(wider, need.aggregate, second=True)
            if ranked and wider[ranked[0]].total.covers(need.aggregate):
                choice, relied_on = ranked[0], wider[ranked[0]]
        row.domain = choice
        if choice is None:
            return need.aggregate, Reach.CLUSTER if row.parked else Reach.FLEET
        lacking = self._credit(row, claims, usual, foreign)
        if row.parked:
            return lacking, Reach.CLUSTER
        if lacking.is_zero():
            # What others could be made to give up matters only to those that nothing else can hold.
            return lacking, Reach.FREE if row.satisfiable else Reach.FLEET
        residual = self._promise(row, lacking)
        if relied_on is not None:
            _rely(residual, relied_on, self._reliance, self._order, need.profile.priority)
        return lacking, Reach.FLEET

    def _creditable(self, row: Row, groups: Groups) -> Counts:
        """What a gang may claim."""
        owns, key, rank = self._supply.owns, same_key(row), row.rank
        counts: Counts = {}
        for group in groups:
            for stock in group:
                cell = stock.cell
                value = cell.machine_class.lookup(key)
                left = len(cell.ids) - stock.before(rank)
                if value is not None and left:
                    kind = (value, cell.alloc, owns(row, cell))
                    counts[kind] = counts.get(kind, 0) + left
        return counts

    def _rivals(self, row: Row, creditable: Counts) -> list[str]:
        """The domains that already have all of the gang and, among those, most that is its own: no other can
        beat them, and what is free elsewhere does not matter. None if there are none to be sure of."""
        wanted = row.demand.need.aggregate
        # Machines of its own that it may take up count as its own too.
        if wanted.is_zero() or self._supply.own_idle(row, None):
            return []
        totals: dict[str, ResourceVector] = {}
        own: dict[str, ResourceVector] = {}
        for (value, alloc, is_own), count in creditable.items():
            amount = alloc * count
            totals[value] = totals.get(value, EMPTY) + amount
            if is_own:
                own[value] = own.get(value, EMPTY) + amount
        whole = [value for value, total in totals.items() if total.covers(wanted)]
        if len(whole) <= 1:
            return whole
        score = _scores(wanted)
        scores = {value: score(own.get(value, EMPTY), capped=True) for value in whole}
        best = max(scores.values())
        return [value for value in whole if scores[value] == best]

    def _buckets(
        self, row: Row, creditable: Counts, free: "Free | None", values: Iterable[str]
    ) -> dict[str, Bucket]:
        """The supply of some domains: what the gang may claim, and what is free."""
        buckets = {}
        for value in values:
            known = None if free is None else free.bucket(value)
            buckets[value] = Bucket() if known is None else Bucket(known.count, known.total)
        for (value, alloc, own), count in creditable.items():
            if value in buckets:
                buckets[value].add(count, alloc, creditable=True, own=own)
        for stock, value in self._own_idle(row):
            if value in buckets:
                amount, bucket = stock.cell.alloc * (len(stock.cell.ids) - stock.promised), buckets[value]
                bucket.creditable, bucket.own = bucket.creditable + amount, bucket.own + amount
        return buckets

    def _own_idle(self, row: Row) -> Iterator[tuple[Stock, str]]:
        """The gang's own Idle machines that are not promised, and where they are."""
        for stock in self._supply.own_idle(row, None):
            value = stock.cell.machine_class.lookup(same_key(row))
            if value is not None and len(stock.cell.ids) > stock.promised:
                yield stock, value

    def _first_ranking(
        self, row: Row, creditable: Counts, free: "Free | None"
    ) -> tuple[dict[str, Bucket], list[str]]:
        """The best domains, in order, and their supply."""
        wanted = row.demand.need.aggregate
        special: set[str] = set(row.rivals)
        if not special:
            special.update(value for value, _, _ in creditable)
            special.update(value for _, value in self._own_idle(row))
        buckets = self._buckets(row, creditable, free, special)
        ranked = _ranked(buckets, wanted, second=False)
        if free is None or row.rivals:
            return buckets, ranked
        # Where the gang has nothing of its own, domains are as good for it as for all who want as much.
        others = list(islice((v for v in free.ranked(wanted) if v not in special), CANDIDATE_DOMAINS))
        for value in others:
            bucket = free.bucket(value)
            assert bucket is not None
            buckets[value] = bucket
        best = [*ranked[:CANDIDATE_DOMAINS], *others]
        return buckets, _ranked({value: buckets[value] for value in best}, wanted, second=False)

    def _free(self, row: Row) -> "Free":
        """What everybody may have, as far as it suits, but for what is promised to others."""
        key, fit = same_key(row), row.fit
        pools = {state: fit.pools(state) for state in (IDLE, SPECULATIVE)}
        while sum(known.size() for known in self._frees.values()) > _MOST_KNOWN:
            del self._frees[next(iter(self._frees))]
        index = (pools[IDLE].pools, key)
        free = self._frees.get(index)
        if free is None:
            if len(self._frees) >= _MOST_FREES:
                del self._frees[next(iter(self._frees))]
            free = self._frees[index] = Free()
            for state, suited in pools.items():
                for value, there in suited.by_value(key).items():
                    for pool in filter(_lives, there):
                        count = pool.count - self._held_off(pool, state)
                        free.add(value, pool.machine_class.alloc, count)
        for name in fit.instance_types or self._promised:
            promised = self._promised.get(name, ())
            for stock, count in promised[free.seen.get(name, 0) :]:
                machine_class = stock.cell.machine_class
                where = machine_class.lookup(key) if fit.suits(machine_class) else None
                if where is not None:
                    free.add(where, machine_class.alloc, -count)
            free.seen[name] = len(promised)
        return free

    def _held_off(self, pool: Pool, state: MachineState) -> int:
        """How many machines of a pool may not be had now."""
        call = Call.CONFIGURE if state is IDLE else Call.CREATE
        return sum(len(cell.ids) for cell in self._supply.inventory.held_off(pool) if cell.is_held_off(call))

    def _second_ranking(self, row: Row, creditable: Counts, free: "Free") -> dict[str, Bucket]:
        """The domains in which preemption could free something, or something is draining already, with that.
        No other can hold the gang now that none could before."""
        supply, reliance, key = self._supply, self._reliance, same_key(row)
        priority = row.demand.need.profile.priority
        bound: dict[str, list[Span]] = {}
        stamped: dict[str, list[Span]] = {}
        unstamped: dict[str, list[Span]] = {}
        for pool in row.fit.pools(CONFIGURED):
            value = pool.machine_class.lookup(key)
            if value is None:
                continue
            for cell in pool.cells.values():
                if cell.binding.priority >= priority or cell.is_held_off(Call.DRAIN):
                    continue
                for span, claimant in _ranked_spans(supply.stock(cell), row):
                    if claimant is None or claimant < priority:
                        bound.setdefault(value, []).extend(reliance.free(span))
        for stock in suitable(row, supply.drains_for(row)):
            value = stock.cell.machine_class.lookup(key)
            if value is not None:
                stamped.setdefault(value, []).extend(reliance.free(Span(stock, 0, len(stock.cell.ids))))
        for stock in supply.drains_for_nobody(row.fit):
            value = stock.cell.machine_class.lookup(key)
            if value is None:
                continue
            lowest = lowest_stamp(bound.get(value, ()))
            for part in reliance.free(Span(stock, 0, len(stock.cell.ids))):
                soon = _runs(part, lambda m: in_time(supply, m, priority, lowest, self._now))  # noqa: B023 # used at once
                unstamped.setdefault(value, []).extend(soon)
        buckets = self._buckets(row, creditable, free, bound.keys() | stamped.keys() | unstamped.keys())
        for value, bucket in buckets.items():
            bucket.first_total = bucket.total
            bucket.extra_bound = bound.get(value, [])
            bucket.extra_drains = [*stamped.get(value, ()), *unstamped.get(value, ())]
            for part in stamped.get(value, ()):
                bucket.add(len(part), part.stock.cell.alloc, creditable=True, own=True)
            for part in (*unstamped.get(value, ()), *bucket.extra_bound):
                bucket.add(len(part), part.stock.cell.alloc, creditable=False, own=False)
        return buckets

    def _credit(self, row: Row, claims: Claims, usual: Groups, foreign: Groups) -> ResourceVector:
        """Claim what counts in the chosen domain: the gang's own first, foreign machines last and only if
        they add to what its own Idle ones leave short."""
        supply, key = self._supply, same_key(row)

        def here(groups: Groups, own: bool | None) -> Iterator[list[Stock]]:
            for group in groups:
                found = [
                    stock
                    for stock in group
                    if stock.cell.machine_class.lookup(key) == row.domain
                    and (own is None or supply.owns(row, stock.cell) == own)
                ]
                if found:
                    yield found

        lacking = row.demand.need.aggregate
        for group in (*here(usual, True), *here(usual, False)):
            lacking = claims.take(row, group, lacking)
        if lacking.is_zero():
            return lacking
        aside = EMPTY
        for stock in supply.own_idle(row, place_of(row)):
            aside = aside + stock.cell.alloc * len(stock.cell.ids)
        for group in here(foreign, None):
            lacking = claims.take(row, group, lacking, aside)
        return lacking

    def _promise(self, row: Row, residual: ResourceVector) -> ResourceVector:
        """Set machines aside for a gang, so that later gangs choose their domain by what is left."""
        for groups in self._supply.passes(row, place_of(row)):
            for group in groups:
                if residual.is_zero():
                    return residual
                for stock, _, count in choose(group, residual, [stock.promised for stock in group]):
                    name = stock.cell.machine_class.offer.instance_type
                    self._promised.setdefault(name, []).append((stock, count))
                    stock.promised += count
                    row.promises[stock] = row.promises.get(stock, 0) + count
                    residual = residual.less(stock.cell.alloc, count)
        return residual


def place_of(row: Row) -> Place | None:
    """Where a gang gathers; None of a Need that may be anywhere."""
    return None if row.domain is None else (same_key(row), row.domain)


def same_key(row: Row) -> str:
    """The label whose value all machines of a gang share."""
    same = row.demand.need.profile.same
    assert same is not None
    return same.key


def _lives(pool: Pool) -> bool:
    return bool(pool.cells)


def _ranked_spans(stock: Stock, row: Row) -> Iterator[tuple[Span, int | None]]:
    """Configured machines that are in no bucket yet, with the priority of the Need that claims them."""
    end = 0
    for claim in stock.claims:
        if claim.row.rank >= row.rank:
            break
        yield claim, claim.row.demand.need.profile.priority
        end = claim.end
    # Unclaimed machines of the gang's own cluster are in its buckets as creditable already.
    if end < len(stock.cell.ids) and stock.cell.binding.cluster != row.demand.need.cluster_id:
        yield Span(stock, end, len(stock.cell.ids)), None


def _rely(
    residual: ResourceVector, chosen: Bucket, reliance: Reliance, order: VictimOrder, priority: int
) -> None:
    for machine_id, alloc in _by_id(chosen.extra_drains):
        if residual.is_zero():
            return
        if residual.pieces(alloc):
            residual = residual - alloc
            reliance.add([machine_id])
    for group in order.groups(chosen.extra_bound, priority):
        for machine_id, alloc in _by_id(group):
            if residual.is_zero():
                return
            if residual.pieces(alloc):
                residual = residual - alloc
                reliance.add([machine_id])


def _by_id(spans: Iterable[Span]) -> list[tuple[str, ResourceVector]]:
    return sorted(
        ((machine_id, span.stock.cell.alloc) for span in spans for machine_id in span.ids),
        key=lambda pair: pair[0],
    )


def _runs(span: Span, wanted: Callable[[str], bool]) -> Iterator[Span]:
    """The stretches of a span whose machines are wanted."""
    start = None
    for position in range(span.start, span.end):
        if wanted(span.stock.cell.ids[position]):
            start = position if start is None else start
        elif start is not None:
            yield Span(span.stock, start, position)
            start = None
    if start is not None:
        yield Span(span.stock, start, span.end)


# Choosing


class Free:
    """What everybody may have in each domain, as those gangs see it that ask for the same."""

    def __init__(self) -> None:
        self.seen: dict[str, int] = {}
        """How much of what is promised, by instance type, is known here."""
        self._counts: dict[str, dict[ResourceVector, int]] = {}
        """Machines by domain and by what each counts for."""
        self._alike: dict[frozenset[tuple[ResourceVector, int]], Bucket] = {}
        self._changed: list[str] = []
        self._rankings: dict[ResourceVector, _Ranking] = {}

    def size(self) -> int:
        """How much is known: each domain, once and in each order."""
        return len(self._counts) * (1 + len(self._rankings))

    def add(self, value: str, alloc: ResourceVector, count: int) -> None:
        """So many more are there; fewer, if below zero."""
        counts = self._counts.setdefault(value, {})
        counts[alloc] = counts.get(alloc, 0) + count
        if not counts[alloc]:
            del counts[alloc]
        self._changed.append(value)

    def bucket(self, value: str) -> Bucket | None:
        """What is there; not to be changed, because others may have as much."""
        counts = self._counts.get(value)
        if not counts:
            return None
        kind = frozenset(counts.items())
        bucket = self._alike.get(kind)
        if bucket is None:
            bucket = self._alike[kind] = Bucket()
            for alloc, count in counts.items():
                bucket.add(count, alloc, creditable=False, own=False)
        return bucket

    def ranked(self, wanted: ResourceVector) -> Iterator[str]:
        """The domains for a gang that wants so much, the best first."""
        ranking = self._rankings.get(wanted)
        if ranking is None:
            ranking = self._rankings[wanted] = _Ranking(wanted)
        changed, ranking.seen = self._changed[ranking.seen :], len(self._changed)
        ranking.update((value, self.bucket(value)) for value in dict.fromkeys(changed))
        return ranking.values()


class _Ranking:
    """Domains in order, kept so while what is there changes."""

    def __init__(self, wanted: ResourceVector) -> None:
        self.seen = 0
        """How many changes it knows of."""
        self._worth = _worth(wanted, second=False)
        self._known: dict[int, tuple[int, ...]] = {}
        self._at: dict[str, tuple[tuple[int, ...], str]] = {}
        self._order: list[tuple[tuple[int, ...], str]] = []

    def update(self, changed: Iterable[tuple[str, Bucket | None]]) -> None:
        """Something else is there than before."""
        come = []
        for value, bucket in changed:
            before = self._at.pop(value, None)
            if before is not None:
                del self._order[bisect.bisect_left(self._order, before)]
            if bucket is not None:
                worth = self._known.get(id(bucket))
                if worth is None:
                    worth = self._known[id(bucket)] = self._worth(bucket)
                self._at[value] = (worth, value)
                come.append(self._at[value])
        if len(come) * _SORTING < len(self._order):
            for each in come:
                bisect.insort(self._order, each)
        else:
            self._order += come
            self._order.sort()

    def values(self) -> Iterator[str]:
        return (value for _, value in self._order)


_MOST_FREES: Final = 64
"""What is free is remembered for so many kinds of gangs in one walk: each may name as many domains as there
are machines. The oldest makes room, and is added up again if it is needed."""
_MOST_KNOWN: Final = 1_000_000
"""So many domains are remembered in all, one for each order in which they stand: about 200 bytes each."""
_SORTING: Final = 16
"""As long as one in so many domains changes, putting each in its place is cheaper than sorting."""


def _ranked(buckets: dict[str, Bucket], wanted: ResourceVector, *, second: bool) -> list[str]:
    """Domains, the best first (the table of engine.md §10.3)."""
    worth = _worth(wanted, second=second)
    return [value for _, value in sorted((worth(b), value) for value, b in buckets.items() if b.count)]


def _worth(wanted: ResourceVector, *, second: bool) -> Callable[[Bucket], tuple[int, ...]]:
    """By what a domain is compared with others before its name decides; less is better."""
    score = _scores(wanted)
    whole = score(wanted, capped=True)

    def worth(b: Bucket) -> tuple[int, ...]:
        covered = score(b.total, capped=True)
        own = (-score(b.creditable, capped=True), -score(b.own, capped=True))
        if covered == whole:
            first = -score(b.first_total, capped=True) if second else 0
            return (0, *own, first, score(b.total, capped=False), -b.count)
        return (1, -covered, *own, 0, -b.count)

    return worth


def _scores(wanted: ResourceVector) -> Callable[..., int]:
    """Σ have/want over the dimensions wanted, times the product of all wants: exact and whole."""
    product = prod(amount for amount in wanted.values() if amount > 0)
    wants = [(name, amount, product // amount) for name, amount in wanted.items() if amount > 0]

    def score(have: ResourceVector, *, capped: bool) -> int:
        total = 0
        if have is EMPTY:
            return total
        for name, amount, weight in wants:
            there = have[name]
            total += (amount if capped and there > amount else there) * weight
        return total

    return score


def _coverage(
    buckets: dict[str, Bucket], best: Iterable[str], wanted: ResourceVector
) -> list[DomainCoverage]:
    return [
        DomainCoverage(
            value,
            min(
                (
                    min(1000, 1000 * buckets[value].total[name] // amount)
                    for name, amount in wanted.items()
                    if amount > 0
                ),
                default=1000,
            ),
            buckets[value].total.covers(wanted),
        )
        for value in best
    ]
