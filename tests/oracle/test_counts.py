"""The counts of engine.md §18: at their own size where the oracle is quick enough, else at a hundredth.

A hundredth of a greedy outcome is not a hundredth of its count, so the small counts of ``Realistic`` are
recorded here. They come from the same shapes that give the counts of §18 at full size.
"""

from collections import Counter

from bigfleet_base.model import MachineState
from tests.oracle import shapes
from tests.oracle.assign import phase1
from tests.oracle.context import Context
from tests.oracle.preempt import phase2
from tests.oracle.reclaim import phase3
from tests.oracle.results import Phase1Result
from tests.support.rules import rule


def kinds(result: Phase1Result) -> dict[str, int]:
    return dict(Counter(action.kind.value for action in result.actions))


def unsatisfied(context: Context, result: Phase1Result, *, same: bool | None = None) -> int:
    rows = zip(context.rows, result.needs, strict=True)
    return sum(
        not assigned.deficit.is_zero() and (same is None or (row.need.profile.same is not None) is same)
        for row, assigned in rows
    )


def credited(context: Context, result: Phase1Result) -> int:
    return sum(context.snapshot.machines[i].state is MachineState.CONFIGURED for i in result.claimed)


def profiles(context: Context) -> int:
    return len({row.need.profile for row in context.rows})


@rule("engine.Realistic_50K")
def test_realistic_at_a_hundredth() -> None:
    context = shapes.realistic(machines=600, clusters=5, needs_each=100)
    result = phase1(context)

    assert profiles(context) == 13
    assert kinds(result) == {"Bootstrap": 482}
    assert unsatisfied(context, result) == 18
    assert unsatisfied(context, result, same=True) == 0


@rule("engine.Realistic_50K_AllSame")
def test_realistic_all_same_at_a_hundredth() -> None:
    context = shapes.realistic(machines=600, clusters=5, needs_each=100, all_same=True)
    result = phase1(context)

    assert profiles(context) == 13
    assert kinds(result) == {"Bootstrap": 495}
    assert unsatisfied(context, result) == 5


@rule("engine.Uber5K_LateRun")
def test_late_run_at_full_size() -> None:
    context = shapes.uber5k(
        clusters=20, configured=250, idle=1000, speculative=12_000, needs_each=8, times=3125
    )
    result = phase1(context)

    assert profiles(context) == 13
    assert unsatisfied(context, result) == 158
    assert kinds(result) == {"Bootstrap": 920, "Provision": 11_060}
    assert credited(context, result) == 1498
    assert len(phase3(context, result.claimed.keys(), set())) == 3502


@rule("engine.Uber5K_Unaggregated")
def test_unaggregated_at_a_hundredth() -> None:
    context = shapes.uber5k(clusters=2, configured=25, idle=10, speculative=120, needs_each=1250, times=1)
    result = phase1(context)

    assert kinds(result) == {"Bootstrap": 10, "Provision": 120}
    assert credited(context, result) == 50
    assert unsatisfied(context, result) == 2320


@rule("engine.Uber50K_BucketSizedBuckets")
def test_bucket_sized_buckets_at_a_hundredth() -> None:
    context = shapes.uber50k(machines=1000, clusters=200)
    result = phase1(context)

    racks = Counter(assigned.same_domain for assigned in result.needs)
    assert kinds(result) == {"Bootstrap": 200}
    assert racks == {"rack-mem-0": 125, "rack-mem-1": 75}


@rule("engine.Phase2_ScaleInversions")
def test_scale_inversions_over_a_hundredth_of_the_machines() -> None:
    context = shapes.scale_inversions(machines=1000, needs=100, deficit=5)
    result = phase2(context, phase1(context))

    assert Counter(action.grace_s for action in result.actions) == {10: 500}
    assert len(result.picked) == 500
    assert result.unresolved == ()


@rule("engine.Phase3_HighDemand")
def test_high_demand_at_a_hundredth() -> None:
    context = shapes.high_demand(machines=5000, clusters=50, cpu=33)
    claimed = phase1(context).claimed

    # Only the first Need of a cluster can credit any of its 100 machines: 33 kept, 67 excess.
    assert len(phase3(context, claimed.keys(), set())) == 50 * 67


@rule("engine.Phase3_M29Shape")
def test_m29_shape_at_a_hundredth() -> None:
    context = shapes.m29(clusters=50, each=90, cpu=100)
    result = phase1(context)

    assert phase3(context, result.claimed.keys(), set()) == ()
    assert len(result.claimed) == 4500
    assert {assigned.deficit for assigned in result.needs} == {shapes.shape(10, 0)}
