"""Where a gang goes: one value of its Same key for all of its machines (engine.md §10.2, §10.3)."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from math import prod
from typing import Any

from bigfleet.engine.cells import Call
from bigfleet.engine.options import CANDIDATE_DOMAINS
from bigfleet.engine.stock import DomainCoverage, Residual, Row, Span, Stock, machines_needed, promise, take
from bigfleet.engine.supply import Supply
from bigfleet.engine.victims import VictimOrder, in_time, lowest_stamp
from bigfleet_base.model import EMPTY, MachineState, ResourceVector


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


def place_gang(row: Row, supply: Supply, reliance: Reliance, order: VictimOrder, now: int) -> None:
    """Choose the gang's domain, claim what counts there, and promise it what it will acquire."""
    need = row.demand.need
    same = need.profile.same
    assert same is not None
    usual, foreign = supply.creditable(row)
    buckets = _first_ranking(row, supply, same.key, [*usual, *foreign])
    choice = _best(buckets, need.aggregate, second=False)
    row.candidates = _coverage(buckets, need.aggregate)
    satisfiable = choice is not None and buckets[choice].total.covers(need.aggregate)
    row.satisfiable = satisfiable
    relied_on: Bucket | None = None
    if not satisfiable and not row.parked:
        wider = _second_ranking(row, supply, same.key, buckets, reliance, order, now)
        second = _best(wider, need.aggregate, second=True)
        if second is not None and wider[second].total.covers(need.aggregate):
            choice, relied_on = second, wider[second]
    row.domain = choice
    if choice is None:
        return
    _credit(row, supply, same.key, usual, foreign)
    if row.parked or row.remaining.is_zero():
        return
    residual = Residual(row.remaining)
    for groups in supply.passes(row, same.key):
        promise(residual, groups)
    if relied_on is not None:
        _rely(residual.amount, relied_on, reliance, order, need.profile.priority)


def _first_ranking(row: Row, supply: Supply, key: str, creditable: list[list[Stock]]) -> dict[str, Bucket]:
    buckets: dict[str, Bucket] = {}
    for group in creditable:
        for stock in group:
            value = stock.cell.machine_class.lookup(key)
            if value is not None and stock.left:
                bucket = buckets.setdefault(value, Bucket())
                bucket.add(stock.left, stock.cell.alloc, creditable=True, own=supply.owns(row, stock))
    if row.parked:
        return buckets
    for state in (MachineState.IDLE, MachineState.SPECULATIVE):
        for stock in supply.candidates(row, state, None):
            value = stock.cell.machine_class.lookup(key)
            left = len(stock.ids) - max(stock.taken, stock.promised)
            if value is not None and left:
                own = state is MachineState.IDLE and supply.owns(row, stock)
                buckets.setdefault(value, Bucket()).add(left, stock.cell.alloc, creditable=own, own=own)
    return buckets


def _second_ranking(
    row: Row,
    supply: Supply,
    key: str,
    first: dict[str, Bucket],
    reliance: Reliance,
    order: VictimOrder,
    now: int,
) -> dict[str, Bucket]:
    """The buckets with what preemption could free, and what is draining already, added."""
    need = row.demand.need
    priority = need.profile.priority
    wider = {
        value: Bucket(b.count, b.total, b.creditable, b.own, first_total=b.total)
        for value, b in first.items()
    }

    def bucket(value: str) -> Bucket:
        return wider.setdefault(value, Bucket())

    for stock in supply.suitable_in(need, MachineState.CONFIGURED):
        value = stock.cell.machine_class.lookup(key)
        if value is None or stock.cell.key.held_off & Call.DRAIN:
            continue
        for span, claimant in _ranked_spans(stock, need.cluster_id):
            rank = stock.cell.binding.priority
            if claimant is not None:
                rank = max(rank, claimant)
            if rank >= priority:
                continue
            for part in reliance.free(span):
                bucket(value).extra_bound.append(part)
    for stock in supply.suitable(need, supply.drains_for(row)):
        value = stock.cell.machine_class.lookup(key)
        if value is not None:
            for part in reliance.free(Span(stock, 0, len(stock.ids))):
                bucket(value).extra_drains.append(part)
                bucket(value).add(len(part), stock.cell.alloc, creditable=True, own=True)
    for stock in supply.suitable(need, supply.unstamped_drains):
        value = stock.cell.machine_class.lookup(key)
        if value is None:
            continue
        lowest = lowest_stamp(bucket(value).extra_bound)
        for free in reliance.free(Span(stock, 0, len(stock.ids))):
            for part in _runs(free, lambda m: in_time(supply, m, priority, lowest, now)):  # noqa: B023 # used at once
                bucket(value).extra_drains.append(part)
                bucket(value).add(len(part), stock.cell.alloc, creditable=False, own=False)
    for b in wider.values():
        for part in b.extra_bound:
            b.add(len(part), part.stock.cell.alloc, creditable=False, own=False)
    return wider


def _ranked_spans(stock: Stock, cluster: str) -> Iterator[tuple[Span, int | None]]:
    """Configured machines that are in no bucket yet, with the priority of the Need that claims them."""
    for claim in stock.claims:
        yield claim.span, claim.row.demand.need.profile.priority
    # Unclaimed machines of the gang's own cluster are in its buckets as creditable already.
    if stock.left and stock.cell.binding.cluster != cluster:
        yield Span(stock, stock.taken, len(stock.ids)), None


def _credit(row: Row, supply: Supply, key: str, usual: list[list[Stock]], foreign: list[list[Stock]]) -> None:
    """Claim what counts in the chosen domain: the gang's own first, foreign machines last and only if
    they add to what its own Idle ones leave short."""

    def here(groups: list[list[Stock]], own: bool | None) -> list[list[Stock]]:
        return [
            [
                stock
                for stock in group
                if stock.cell.machine_class.lookup(key) == row.domain
                and (own is None or supply.owns(row, stock) == own)
            ]
            for group in groups
        ]

    take(row, (g for g in here(usual, True) if g))
    take(row, (g for g in here(usual, False) if g))
    aside = EMPTY
    for stock in supply.own_idle(row, key):
        aside = aside + stock.cell.alloc * len(stock.ids)
    take(row, (g for g in here(foreign, None) if g), lambda: row.remaining - aside)


def _rely(
    residual: ResourceVector, chosen: Bucket, reliance: Reliance, order: VictimOrder, priority: int
) -> None:
    for machine_id, alloc in _by_id(chosen.extra_drains):
        if residual.is_zero():
            return
        if machines_needed(residual, alloc):
            residual = residual - alloc
            reliance.add([machine_id])
    for group in order.groups(chosen.extra_bound, priority):
        for machine_id, alloc in _by_id(group):
            if residual.is_zero():
                return
            if machines_needed(residual, alloc):
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
        if wanted(span.stock.ids[position]):
            start = position if start is None else start
        elif start is not None:
            yield Span(span.stock, start, position)
            start = None
    if start is not None:
        yield Span(span.stock, start, span.end)


# Choosing


def _best(buckets: dict[str, Bucket], wanted: ResourceVector, *, second: bool) -> str | None:
    ranked = _ranked(buckets, wanted, second=second)
    return ranked[0] if ranked else None


def _ranked(buckets: dict[str, Bucket], wanted: ResourceVector, *, second: bool) -> list[str]:
    """Domains, the best first (the table of engine.md §10.3)."""
    score = _scores(wanted)

    def key(value: str) -> tuple[Any, ...]:
        b = buckets[value]
        if b.total.covers(wanted):
            slack = (
                -score(b.creditable, capped=True),
                -score(b.own, capped=True),
                -score(b.first_total, capped=True) if second else 0,
                score(b.total, capped=False),
            )
            return (0, *slack, -b.count, value)
        short = (
            -score(b.total, capped=True),
            -score(b.creditable, capped=True),
            -score(b.own, capped=True),
            0,
        )
        return (1, *short, -b.count, value)

    return sorted((value for value, b in buckets.items() if b.count), key=key)


def _scores(wanted: ResourceVector) -> Callable[..., int]:
    """Σ have/want over the dimensions wanted, times the product of all wants: exact and whole."""
    wants = [(name, amount) for name, amount in wanted.items() if amount > 0]
    product = prod(amount for _, amount in wants)

    def score(have: ResourceVector, *, capped: bool) -> int:
        return sum(
            (min(have[name], amount) if capped else have[name]) * (product // amount)
            for name, amount in wants
        )

    return score


def _coverage(buckets: dict[str, Bucket], wanted: ResourceVector) -> list[DomainCoverage]:
    best = _ranked(buckets, wanted, second=False)[:CANDIDATE_DOMAINS]
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
