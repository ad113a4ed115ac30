"""One verdict per Need: what it got, and if not enough, why (engine.md §15)."""

from collections import Counter
from collections.abc import Generator, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, NamedTuple

from bigfleet.engine.matching import Pools
from bigfleet.engine.normalise import Demand
from bigfleet.engine.options import SUPPLY_CAP
from bigfleet.engine.pace import pieces
from bigfleet.engine.preempt import Resolution
from bigfleet.engine.states import CONFIGURED, IDLE, SPECULATIVE
from bigfleet.engine.stock import AgeKey, DomainCoverage, Row
from bigfleet_base.model import Need, ResourceVector


class UnmetReason(StrEnum):
    """Why a Need is not satisfied, finer than the wire says it."""

    NONE = ""
    PREEMPTION_PENDING = "preemption_pending"
    TOPOLOGY_UNSATISFIABLE = "topology_unsatisfiable"
    NO_MATCHING_SUPPLY = "no_matching_supply"
    PREEMPTION_EXHAUSTED = "preemption_exhausted"
    SPREAD_UNSATISFIABLE = "spread"
    INSUFFICIENT_SUPPLY = "insufficient_supply"
    PRIORITY_STARVED = "priority_starved"


_COUNTED: Final = (IDLE, SPECULATIVE, CONFIGURED)
_FINER: Final = frozenset(
    {UnmetReason.PREEMPTION_PENDING, UnmetReason.SPREAD_UNSATISFIABLE, UnmetReason.INSUFFICIENT_SUPPLY}
)


@dataclass(frozen=True, slots=True)
class MatchingSupply:
    """How many machines would do, whoever has them; each count stops at a cap."""

    idle: int
    speculative: int
    configured: int
    capped: bool


class ClaimSources(NamedTuple):
    """Where a Need's machines came from."""

    bound: int = 0
    in_flight: int = 0
    idle: int = 0
    speculative: int = 0
    displaced: int = 0
    """Machines that are drained for it: they will count once they are free."""


class Verdict(NamedTuple):
    """The outcome of one Need in one cycle. A tuple, because each cycle makes one for every Need that lacks
    something, and a tuple is made in a fraction of the time."""

    demand: Demand
    satisfied: bool
    deficit: ResourceVector
    claimed: int
    sources: ClaimSources
    same_domain: str | None
    same_satisfiable: bool
    parked_age: int
    """Of a gang: ticks it has stood still."""
    age: int
    """Consecutive ticks without satisfaction, this cycle included."""
    reason: UnmetReason
    detail: str
    """What the wire's coarser reasons cannot say; empty where there is nothing finer."""
    outcome: str
    supply: MatchingSupply | None
    """Of unmet Needs only."""
    resolution: Resolution | None
    """Of unmet Needs only: what Phase 2 found."""
    candidates: tuple[DomainCoverage, ...]
    """Of an unmet gang: its best domains."""

    @property
    def need(self) -> Need:
        return self.demand.need

    def aged(self, age: int, parked_age: int) -> "Verdict":
        """The same, later."""
        return Verdict(
            self.demand,
            self.satisfied,
            self.deficit,
            self.claimed,
            self.sources,
            self.same_domain,
            self.same_satisfiable,
            parked_age,
            age,
            self.reason,
            self.detail,
            self.outcome,
            self.supply,
            self.resolution,
            self.candidates,
        )


def aged(
    ages: Mapping[AgeKey, int], unmet: Iterable[Row], tick: bool
) -> Generator[int, None, dict[AgeKey, int]]:
    """How long each unmet Need has been unmet; satisfied and vanished ones are forgotten."""
    grown = {}
    for piece in pieces(unmet):
        yield 1
        for row in piece:
            before = ages.get(row.age_key)
            grown[row.age_key] = 1 if before is None else before + tick
    return grown


def judge(
    row: Row,
    age: int,
    parked_age: int,
    resolution: Resolution | None,
    blocked: frozenset[tuple[str, str]],
    matching: "Matching",
) -> Verdict:
    """Put together what the phases know of a Need."""
    counts = _sources(row, resolution)
    claimed = counts.bound + counts.in_flight + counts.idle + counts.speculative
    reason = UnmetReason.NONE if resolution is None else _reason(row, resolution, matching)
    if resolution is not None:
        outcome = "unsatisfied"
    elif counts.speculative:
        outcome = "emitted_spec"
    else:
        outcome = "emitted_idle" if counts.idle else "absorbed_by_supply"
    return Verdict(
        demand=row.demand,
        satisfied=resolution is None,
        deficit=row.remaining,
        claimed=claimed,
        sources=counts,
        same_domain=row.domain,
        same_satisfiable=row.satisfiable,
        parked_age=parked_age,
        age=age,
        reason=reason,
        detail=_detail(row, reason, blocked),
        outcome=outcome,
        supply=None if resolution is None else matching.of(row)[0],
        resolution=resolution,
        candidates=() if resolution is None else tuple(row.candidates),
    )


class Matching:
    """What suits a Need, whoever has it; counted once a cycle for all that ask for the same."""

    def __init__(self) -> None:
        self._known: dict[Pools, tuple[MatchingSupply, ResourceVector]] = {}

    def of(self, row: Row) -> tuple[MatchingSupply, ResourceVector]:
        """How many machines, and what they are together."""
        suited = row.fit.pools(_COUNTED[0])
        known = self._known.get(suited.pools)
        if known is None:
            alike: Counter[ResourceVector] = Counter()
            counts = []
            for state in _COUNTED:
                found = row.fit.pools(state)
                counts.append(found.count())
                for pool in found:
                    alike[pool.machine_class.alloc] += pool.count
            idle, speculative, configured = (min(count, SUPPLY_CAP) for count in counts)
            capped = any(count > SUPPLY_CAP for count in counts)
            known = self._known[suited.pools] = (
                MatchingSupply(idle, speculative, configured, capped),
                ResourceVector.total(alloc * count for alloc, count in alike.items()),
            )
        return known


def _reason(row: Row, resolution: Resolution, matching: Matching) -> UnmetReason:
    """The first that applies."""
    if resolution.deficit.is_zero():
        return UnmetReason.PREEMPTION_PENDING
    need = row.demand.need
    if need.profile.same is not None and (
        not row.satisfiable or need.acquisition_parked or row.domain is None
    ):
        return UnmetReason.TOPOLOGY_UNSATISFIABLE
    claims = list(row.claims)
    supply, total = matching.of(row)
    if not claims and supply == NO_SUPPLY and not resolution.counted:
        return UnmetReason.NO_MATCHING_SUPPLY
    if resolution.preempted:
        return UnmetReason.PREEMPTION_EXHAUSTED
    if row.spread_stopped:
        return UnmetReason.SPREAD_UNSATISFIABLE
    for claim in claims:
        # Claims in the three states are in the sum already.
        if claim.stock.cell.state not in _COUNTED:
            total = total + claim.stock.cell.alloc * len(claim)
    if not total.covers(need.aggregate):
        return UnmetReason.INSUFFICIENT_SUPPLY
    return UnmetReason.PRIORITY_STARVED


def _detail(row: Row, reason: UnmetReason, blocked: frozenset[tuple[str, str]]) -> str:
    need = row.demand.need
    if reason is UnmetReason.NONE:
        return ""
    if need.held_back:
        return "operator_error" if need.key[:2] in blocked else "no_session"
    return reason.value if reason in _FINER else ""


NO_SUPPLY: Final = MatchingSupply(0, 0, 0, capped=False)


def _sources(row: Row, resolution: Resolution | None) -> ClaimSources:
    bound = in_flight = idle = speculative = 0
    for stock, claim in row.holdings.items():
        if stock.cell.state is CONFIGURED:
            bound += claim.end - claim.start
        else:
            in_flight += claim.end - claim.start
    for lot in row.bought:
        count = sum(claim.end - claim.start for claim in lot)
        if lot[0].stock.cell.state is IDLE:
            idle += count
        else:
            speculative += count
    displaced = 0 if resolution is None else len(resolution.picks) + len(resolution.counted)
    return ClaimSources(bound, in_flight, idle, speculative, displaced)
