"""One view per Need: what it got, and why not more (§15)."""

from collections.abc import Mapping
from typing import Final

from bigfleet_base.model import EMPTY, Machine
from tests.oracle.context import Context
from tests.oracle.results import (
    AgeKey,
    Assigned,
    Inversion,
    Key,
    MatchingSupply,
    Phase1Result,
    Phase2Result,
    PreemptionSummary,
    Reason,
    Row,
    Verdict,
)
from tests.oracle.world import CONFIGURED, IDLE, SPECULATIVE

SUPPLY_CAP: Final = 1000
CANDIDATES_SHOWN: Final = 5

WIRE: Final = {
    Reason.PREEMPTION_PENDING: Reason.PRIORITY_STARVED,
    Reason.INSUFFICIENT_SUPPLY: Reason.PRIORITY_STARVED,
    Reason.SPREAD_UNSATISFIABLE: Reason.TOPOLOGY_UNSATISFIABLE,
}
"""How the finer reasons fold into those of wire.md §6."""

DETAIL: Final = {
    Reason.PREEMPTION_PENDING: "preemption_pending",
    Reason.INSUFFICIENT_SUPPLY: "insufficient_supply",
    Reason.SPREAD_UNSATISFIABLE: "spread",
}


def ages(context: Context, first: Phase1Result, known: Mapping[AgeKey, int]) -> dict[AgeKey, int]:
    """Consecutive ticks each Need is unsatisfied after Phase 1, this one included."""
    tick = int(context.inputs.tick)
    return {
        row.age_key: known[row.age_key] + tick if row.age_key in known else 1
        for row, assigned in zip(context.rows, first.needs, strict=True)
        if not assigned.deficit.is_zero()
    }


def verdicts(
    context: Context,
    first: Phase1Result,
    second: Phase2Result,
    unmet_ages: Mapping[AgeKey, int],
    parking: Mapping[Key, int],
) -> tuple[Verdict, ...]:
    inversions = {inversion.index: inversion for inversion in second.needs}
    return tuple(
        _verdict(
            context,
            row,
            assigned,
            inversions.get(index),
            unmet_ages.get(row.age_key, 0),
            parking.get(row.need.key, 0) if row.need.profile.same is not None else 0,
        )
        for index, (row, assigned) in enumerate(zip(context.rows, first.needs, strict=True))
    )


def _verdict(
    context: Context, row: Row, assigned: Assigned, inversion: Inversion | None, age: int, parked_age: int
) -> Verdict:
    need = row.need
    states = [context.snapshot.machines[i].state for i in assigned.claims]
    reason = Reason.NONE if inversion is None else _reason(context, row, assigned, inversion)
    return Verdict(
        cluster=need.cluster_id,
        profile=need.profile,
        aggregate=need.aggregate,
        min_unit=need.min_unit,
        arrival_ns=need.arrival_ns,
        group=need.group,
        member_groups=row.member_groups,
        satisfied=inversion is None,
        deficit=assigned.deficit,
        claimed=len(assigned.claims),
        bootstrap=states.count(IDLE),
        provision=states.count(SPECULATIVE),
        same_domain=assigned.same_domain,
        same_satisfiable=assigned.same_satisfiable,
        acquisition_parked=need.acquisition_parked,
        parked_age=parked_age,
        age=age,
        reason=reason,
        wire_reason=WIRE.get(reason, reason),
        unmet_detail=_detail(context, row, reason),
        matching_supply=None if inversion is None else _matching_supply(context, row),
        preemption=None if inversion is None else _summary(context, inversion),
        candidates=() if inversion is None else assigned.candidates[:CANDIDATES_SHOWN],
    )


def _reason(context: Context, row: Row, assigned: Assigned, inversion: Inversion) -> Reason:
    """The table of §15; the first match wins."""
    need = row.need
    matching = _matching(context, row)
    known = {m.id: m for m in matching} | {i: context.snapshot.machines[i] for i in assigned.claims}
    reachable = sum((m.alloc for m in known.values()), start=EMPTY)
    if inversion.deficit.is_zero():
        return Reason.PREEMPTION_PENDING
    if need.profile.same is not None and (
        not assigned.same_satisfiable or need.acquisition_parked or assigned.same_domain is None
    ):
        return Reason.TOPOLOGY_UNSATISFIABLE
    if not assigned.claims and not matching and not inversion.counted:
        return Reason.NO_MATCHING_SUPPLY
    if inversion.preempted:
        return Reason.PREEMPTION_EXHAUSTED
    if assigned.spread_stopped or inversion.spread_stopped:
        return Reason.SPREAD_UNSATISFIABLE
    if not reachable.covers(need.aggregate):
        return Reason.INSUFFICIENT_SUPPLY
    return Reason.PRIORITY_STARVED


def _matching(context: Context, row: Row) -> list[Machine]:
    """Machines of the shard the Need could ever use, claims and hold-offs ignored."""
    pool = context.snapshot.in_state(IDLE, SPECULATIVE, CONFIGURED)
    return [m for m in pool if context.suits(m, row.need)]


def _detail(context: Context, row: Row, reason: Reason) -> str:
    """``unmet_detail`` of wire.md §13. A satisfied Need has nothing to explain, held back or not."""
    if reason is Reason.NONE:
        return ""
    if (row.need.cluster_id, row.need.profile.fingerprint) in context.inputs.blocked:
        return "operator_error"
    if row.need.held_back:
        return "no_session"
    return DETAIL.get(reason, "")


def _matching_supply(context: Context, row: Row) -> MatchingSupply:
    states = [m.state for m in _matching(context, row)]
    counts = [states.count(state) for state in (IDLE, SPECULATIVE, CONFIGURED)]
    idle, speculative, configured = (min(count, SUPPLY_CAP) for count in counts)
    return MatchingSupply(idle, speculative, configured, capped=max(counts) > SUPPLY_CAP)


def _summary(context: Context, inversion: Inversion) -> PreemptionSummary | None:
    """What Phase 2 picked for the Need in this cycle (wire.md §6: only when there is any)."""
    if not inversion.picked:
        return None
    freed = sum((context.snapshot.machines[i].alloc for i in inversion.picked), start=EMPTY)
    return PreemptionSummary(len(inversion.picked), freed)
