"""Scenarios of the demand model (engine.md §17, D)."""

from bigfleet_base.model import EMPTY, Need
from tests.engine.dsl import configured, draining, gang, idle, many, need, types, units, vector
from tests.engine.lab import Lab, actions, claims, kinds, targets, verdict
from tests.oracle.results import Kind
from tests.support.rules import rule


@rule("engine.D1")
def test_eight_requests_share_the_machine_that_holds_them(lab: Lab) -> None:
    request = need("c", vector(cpu=1, memory="4Gi"), unit=vector(cpu=1, memory="4Gi"))
    lab.have(idle("m", size=vector(cpu=16, memory="32Gi")))
    lab.want(*[request] * 8)

    result = lab.cycle()

    assert kinds(result) == {"Bootstrap": 1}
    assert verdict(result, request).satisfied
    assert verdict(result, request).aggregate == vector(cpu=8, memory="32Gi")


@rule("engine.D2")
def test_second_machine_is_reclaimed_when_one_holds_all_requests(lab: Lab) -> None:
    request = need("c", vector(cpu=1, memory="4Gi"), unit=vector(cpu=1, memory="4Gi"))
    lab.have(many(2, configured, "m", "c", size=vector(cpu=16, memory="32Gi")))
    lab.want(*[request] * 8)

    assert [(a.kind, a.machine) for a in lab.cycle().decided] == [(Kind.RECLAIM, "m-1")]


@rule("engine.D3")
def test_shared_supply_is_credited_once_and_the_rest_is_short(lab: Lab) -> None:
    family = types("m6i.large", "m6i.xlarge", "m6i.2xlarge")
    # Profiles carry no shape, so what keeps four shapes apart here is their reclamation bucket.
    needs = [need("c", size, family, reclamation=2**i) for i, size in enumerate((2, 4, 8, 10))]
    lab.have(many(3, configured, "m", "c", type="m6i.xlarge", size=4))
    lab.want(*needs)

    result = lab.cycle()

    held = [i for n in needs for i in claims(result, n)]
    assert sorted(held) == ["m-0", "m-1", "m-2"]
    for n in needs:
        credited = units(4 * len(claims(result, n)))
        assert verdict(result, n).deficit == n.aggregate - credited
        assert verdict(result, n).satisfied == credited.covers(n.aggregate)
    assert sum((verdict(result, n).deficit for n in needs), start=EMPTY).covers(units(12))


@rule("engine.D4")
def test_machine_that_two_needs_match_counts_for_exactly_one(lab: Lab) -> None:
    first, second = need("c", 1, types("a", "b")), need("c", 1, types("b", "c"))
    lab.have(configured("b", "c", type="b"))
    lab.want(first, second)

    result = lab.cycle()

    assert sorted([claims(result, first), claims(result, second)]) == [[], ["b"]]


@rule("engine.D5", "ruling.R3")
def test_acquisition_follows_the_dimension_that_is_short(lab: Lab) -> None:
    wanted = need("c", vector(cpu=4, memory="56Gi"))
    lab.have(
        configured("bound", "c", size=vector(cpu=4, memory="16Gi")),
        many(2, idle, "a-only-cpu", size=vector(cpu=64)),
        many(4, idle, "mem", size=vector(cpu=1, memory="16Gi")),
    )
    lab.want(wanted)

    # 40Gi short: three machines of 16Gi; those without memory come first by id and add nothing.
    assert targets(lab.cycle(), Kind.BOOTSTRAP) == ["mem-0", "mem-1", "mem-2"]


@rule("engine.D6")
def test_machine_below_min_unit_is_never_used(lab: Lab) -> None:
    wanted = need("c", 4, unit=units(4), priority=1_000_000)
    lab.have(
        configured("bound", "c", size=2),
        idle("idle", size=2),
        configured("victim", "d", size=2, stamp=0),
    )
    lab.have_draining(draining("draining", "d", size=2))
    lab.want(wanted, need("d", 2, priority=0))

    result = lab.cycle()

    assert claims(result, wanted) == []
    assert verdict(result, wanted).deficit == units(4)
    assert actions(result, Kind.BOOTSTRAP) == actions(result, Kind.PREEMPT) == []
    assert result.phase2.needs[0].counted == ()


@rule("engine.D7")
def test_fifty_thousand_equal_requests_are_one_row(lab: Lab) -> None:
    request = need("c", 1)
    lab.want(*[request] * 50_000)

    [row] = lab.judge.demand()

    assert row.aggregate == units(50_000)
    assert row.min_unit == units(1)
    assert row.profile.same is None


@rule("engine.D8")
def test_workloads_with_different_affinity_keep_their_own_rows_and_domains(lab: Lab) -> None:
    left, right = gang("c", 2, group="left"), gang("c", 2, group="right")
    lab.have(many(2, idle, "x", rack="X"), many(2, idle, "y", rack="Y"))
    lab.want(left, right)

    result = lab.cycle()

    assert len(result.rows) == 2
    assert (verdict(result, left).same_domain, verdict(result, right).same_domain) == ("X", "Y")
    assert kinds(result) == {"Bootstrap": 4}


@rule("engine.D9")
def test_running_pods_keep_their_requests_so_nothing_is_reclaimed(lab: Lab) -> None:
    lab.have(many(3, configured, "m", "c"))
    for _ in range(5):
        lab.want(need("c", 3))
        assert lab.step().decided == ()


@rule("engine.D10")
def test_deficits_are_per_dimension_and_never_negative(lab: Lab) -> None:
    cpu_bound = need("c", vector(cpu=20), types("cpu"))
    gpu_only = need("c", vector(gpu=2), types("gpu"))
    mixed = need("c", vector(cpu=4, gpu=2), types("mixed"))
    lab.have(
        configured("m1", "c", type="cpu", size=vector(cpu=16, memory="64Gi")),
        configured("m2", "c", type="gpu", size=vector(cpu=8, gpu=1)),
        configured("m3", "c", type="mixed", size=vector(cpu=16)),
    )
    lab.want(cpu_bound, gpu_only, mixed)

    result = lab.cycle()

    def deficit(n: Need) -> object:
        return verdict(result, n).deficit

    assert (deficit(cpu_bound), deficit(gpu_only), deficit(mixed)) == (
        vector(cpu=4),
        vector(gpu=1),
        vector(gpu=2),
    )


@rule("engine.D11", "ruling.R8")
def test_unspecified_and_zero_penalty_are_one_need(lab: Lab) -> None:
    zero = need("c", 1)
    unspecified = Need(
        "c",
        type(zero.profile)(priority=1000, interruption_bucket=0, reclamation_bucket=0),
        units(2),
        units(1),
    )
    lab.want(zero, unspecified)

    [row] = lab.judge.demand()

    assert row.key == zero.key
    assert row.aggregate == units(3)
    assert (row.profile.interruption_bucket, row.profile.reclamation_bucket) == (1, 1)
