"""One cycle, in order (§7)."""

from collections.abc import Sequence

from bigfleet_base.model import Need
from tests.oracle import ledger, parking, verdicts
from tests.oracle.assign import phase1
from tests.oracle.context import Context
from tests.oracle.normalise import normalise
from tests.oracle.preempt import phase2
from tests.oracle.rails import rails
from tests.oracle.reclaim import phase3
from tests.oracle.results import Carried, CycleInput, CycleResult, Options
from tests.oracle.world import Snapshot


def run_cycle(
    snapshot: Snapshot,
    demand: Sequence[Need],
    reported: frozenset[str],
    carried: Carried,
    inputs: CycleInput,
    options: Options,
) -> CycleResult:
    """All decisions of one cycle, from values alone; nothing passed in is changed (I16)."""
    normalised, folds = normalise(snapshot, demand, carried.folds, tick=inputs.tick)
    rows = parking.stamp(normalised, carried.parking, inputs)
    context = Context(snapshot, rows, reported, inputs, options)

    first = phase1(context)
    parked = parking.update(context, first, carried.parking, carried.helped)
    second = phase2(context, first)
    third = phase3(context, first.claimed.keys(), second.picked)

    decided = (*first.actions, *second.actions, *third)
    railed, buckets = rails(snapshot, decided, carried.buckets, inputs, options)

    shortfalls = ledger.record(context, second, carried.ledger)
    unmet_ages = verdicts.ages(context, first, carried.ages)
    helped = {rows[n.index].need.key for n in second.needs if n.picked or n.counted}
    return CycleResult(
        machines=snapshot.machines,
        rows=rows,
        phase1=first,
        phase2=second,
        decided=decided,
        rails=railed,
        report=ledger.report(shortfalls),
        verdicts=verdicts.verdicts(context, first, second, unmet_ages, parked),
        carried=Carried(folds, parked, frozenset(helped), buckets, shortfalls, unmet_ages),
    )
