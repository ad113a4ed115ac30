"""Scenarios of Phase 2 (engine.md §17, V)."""

import pytest

from bigfleet_base.model import Need
from tests.engine.dsl import configured, draining, gang, idle, many, need, strict_zones, types, units, vector
from tests.engine.lab import Dwell, Lab, actions, claims, kinds, targets, verdict
from tests.oracle.results import CycleResult, Inversion, Kind, Reason
from tests.support.rules import rule


def inversion(result: CycleResult, cluster: str) -> Inversion:
    """Phase 2's outcome for the cluster's one unsatisfied Need."""
    [found] = [n for n in result.phase2.needs if result.rows[n.index].need.cluster_id == cluster]
    return found


@rule("engine.V1")
def test_lower_priority_is_preempted_and_the_rest_stays_unresolved(lab: Lab) -> None:
    wanted, tenant = need("c", 2, priority=1_000_000), need("d", 1, priority=400_000)
    lab.have(configured("v", "d", bought_for=tenant))
    lab.want(wanted, tenant)

    result = lab.cycle()

    [preempt] = actions(result, Kind.PREEMPT)
    assert (preempt.machine, preempt.cluster, preempt.grace_s) == ("v", "d", 30)
    assert preempt.reason == "phase2.inversion"
    assert preempt.preemptor is not None and preempt.preemptor.priority == 1_000_000
    outcome = inversion(result, "c")
    assert (outcome.deficit, outcome.preempted) == (units(1), True)
    seen = verdict(result, wanted)
    assert seen.reason is Reason.PREEMPTION_EXHAUSTED
    assert seen.preemption is not None
    assert (seen.preemption.victims_found, seen.preemption.capacity_freed) == (1, units(1))


@rule("engine.V2")
def test_equal_priority_is_never_preempted(lab: Lab) -> None:
    wanted, tenant = need("c", 1), need("d", 1)
    lab.have(configured("v", "d", bought_for=tenant))
    lab.want(wanted, tenant)

    result = lab.cycle()

    assert result.decided == ()
    assert inversion(result, "c").preempted is False
    assert inversion(result, "c").deficit == units(1)


@rule("engine.V3")
@pytest.mark.parametrize(
    ("gap", "grace"),
    [(900_001, 10), (900_000, 30), (500_001, 30), (500_000, 120), (100_001, 120), (100_000, 600), (0, 600)],
)
def test_drain_grace_follows_the_priority_gap(lab: Lab, gap: int, grace: int) -> None:
    lab.have(configured("v", "d", stamp=1_000_000 - gap))
    lab.report("d")
    lab.want(need("c", 1, priority=1_000_000))

    [preempt] = lab.cycle().decided

    assert (preempt.kind, preempt.grace_s) == (Kind.PREEMPT, grace)


@rule("engine.V4")
@pytest.mark.parametrize("penalty", ["interruption", "reclamation"])
def test_cheaper_penalty_goes_first_then_the_smaller_id(lab: Lab, penalty: str) -> None:
    tenant = need("d", 4, priority=100)
    for machine_id, dollars in (("a-dear", 1000), ("b-cheap", 1), ("d-tie", 8), ("c-tie", 8)):
        lab.have(configured(machine_id, "d", bought_for=tenant, **{penalty: dollars}))
    lab.want(need("c", 3), tenant)

    assert targets(lab.cycle(), Kind.PREEMPT) == ["b-cheap", "c-tie", "d-tie"]


@rule("engine.V5")
def test_higher_preemptor_takes_the_only_victim(lab: Lab) -> None:
    low, high, tenant = need("a", 1, priority=1000), need("z", 1, priority=2000), need("d", 1, priority=100)
    lab.have(configured("v", "d", bought_for=tenant))
    lab.want(low, high, tenant)

    [preempt] = actions(lab.cycle(), Kind.PREEMPT)

    assert preempt.preemptor is not None and preempt.preemptor.cluster == "z"


@rule("engine.V6")
def test_victim_below_min_unit_is_skipped(lab: Lab) -> None:
    tenant = need("d", 3, priority=100)
    lab.have(
        configured("a-small", "d", bought_for=tenant, size=1),
        configured("b-large", "d", bought_for=tenant, size=2),
    )
    lab.want(need("c", 2, unit=units(2)), tenant)

    assert targets(lab.cycle(), Kind.PREEMPT) == ["b-large"]


@rule("engine.V7")
def test_gang_preempts_only_in_its_domain(lab: Lab) -> None:
    wanted = gang("c", 2)
    tenants = need("d", 1, types("a"), priority=500), need("d", 3, types("b"), priority=100)
    lab.have(
        configured("mine", "c", rack="A", bought_for=wanted),
        configured("in-a", "d", rack="A", type="a", bought_for=tenants[0]),
        many(3, configured, "in-b", "d", rack="B", type="b", bought_for=tenants[1]),
    )
    lab.want(wanted, *tenants)

    result = lab.cycle()

    assert verdict(result, wanted).same_domain == "A"
    assert targets(result, Kind.PREEMPT) == ["in-a"]


@rule("engine.V8")
def test_gang_without_a_domain_preempts_nothing(lab: Lab) -> None:
    wanted, tenant = gang("c", 2), need("d", 2, priority=100)
    lab.have(many(2, configured, "v", "d", bought_for=tenant))
    lab.want(wanted, tenant)

    result = lab.cycle()

    assert result.decided == ()
    assert verdict(result, wanted).same_domain is None
    assert inversion(result, "c").deficit == units(2)


@rule("engine.V8")
def test_parked_gang_preempts_nothing(lab: Lab) -> None:
    wanted, tenant = gang("c", 2), need("d", 2, priority=100)
    lab.want(wanted)
    lab.run(8)
    lab.have(many(2, configured, "v", "d", rack="A", bought_for=tenant))
    lab.want(tenant)

    result = lab.cycle()

    assert verdict(result, wanted).acquisition_parked
    assert result.decided == ()
    assert inversion(result, "c").deficit == units(2)


@rule("engine.V9")
def test_nothing_is_preempted_when_all_is_held_at_the_preemptors_priority(lab: Lab) -> None:
    equal, higher = need("d", 2), need("e", 2, priority=2000)
    lab.have(
        many(2, configured, "d", "d", bought_for=equal),
        # Unstamped, but claimed by a Need above the preemptor.
        many(2, configured, "e", "e"),
    )
    lab.want(need("c", 1), equal, higher)

    assert lab.cycle().decided == ()


@rule("engine.V10", "ruling.R3")
def test_largest_gap_does_not_overflow(lab: Lab) -> None:
    tenant = need("d", 1, priority=-1_000_000_000)
    lab.have(configured("v", "d", bought_for=tenant))
    lab.want(need("c", 1, priority=2_000_000_000), tenant)

    [preempt] = lab.cycle().decided

    assert preempt.grace_s == 10


@rule("engine.V11", "ruling.R3")
def test_excess_victim_gets_one_action(lab: Lab) -> None:
    lab.have(configured("m", "d", stamp=100))
    lab.report("d")
    lab.want(need("c", 1))

    [action] = lab.cycle().decided

    assert (action.kind, action.machine, action.reason) == (Kind.PREEMPT, "m", "phase2.excess")


@rule("engine.V12", "ruling.R3")
def test_strict_spread_stops_preemption_too(lab: Lab) -> None:
    wanted, tenant = need("c", 5, strict_zones()), need("d", 2, priority=100)
    lab.have(
        many(1, configured, "a", "c", zone="a", bought_for=wanted),
        many(2, configured, "b", "c", zone="b", bought_for=wanted),
        many(2, configured, "v", "d", zone="b", bought_for=tenant),
    )
    lab.want(wanted, tenant)

    for result in lab.run(3):
        assert result.decided == ()
        assert verdict(result, wanted).reason is Reason.SPREAD_UNSATISFIABLE


@rule("engine.V12", "ruling.R3")
def test_domain_of_others_is_the_emptiest_from_its_first_pick_on(lab: Lab) -> None:
    wanted, tenant = need("c", 7, strict_zones()), need("d", 3, priority=100)
    lab.have(
        many(2, configured, "a", "c", zone="a", bought_for=wanted),
        many(2, configured, "b", "c", zone="b", bought_for=wanted),
        configured("v1", "d", zone="c", bought_for=tenant),
        configured("v2", "d", zone="a", bought_for=tenant),
        configured("v3", "d", zone="b", bought_for=tenant),
    )
    lab.want(wanted, tenant)

    assert targets(lab.cycle(), Kind.PREEMPT) == ["v1"]


@rule("engine.V13")
def test_need_does_not_preempt_the_machine_it_holds(lab: Lab) -> None:
    lab.have(configured("m", "c"))
    lab.want(need("c", 2))

    assert lab.cycle().decided == ()


@rule("engine.V14")
def test_rank_is_the_claimants_priority_and_grace_the_stamps(lab: Lab) -> None:
    tenant = need("d", 1, priority=5000)
    lab.have(configured("m", "d", stamp=100))
    lab.want(need("c", 1, priority=500), tenant)
    assert lab.cycle().decided == ()

    lab.want(need("c", 1, priority=6000))
    [preempt] = lab.cycle().decided
    assert (preempt.machine, preempt.grace_s) == ("m", 600)

    lab.want(need("d", 1, priority=800_000), need("c", 1, priority=1_000_000))
    [preempt] = lab.cycle().decided
    assert (preempt.machine, preempt.grace_s) == ("m", 10)


@rule("engine.V14")
def test_gang_counts_on_no_machine_of_higher_rank(lab: Lab) -> None:
    wanted = gang("c", 4)
    high, low = need("d", 4, types("a"), priority=5000), need("d", 4, types("b"), priority=100)
    lab.have(
        # Stamped 100 all the same; the Need that holds them decides.
        many(4, configured, "a", "d", rack="A", type="a", stamp=100),
        many(4, configured, "b", "d", rack="B", type="b", bought_for=low),
    )
    lab.want(wanted, high, low)

    result = lab.cycle()

    assert verdict(result, wanted).same_domain == "B"
    assert targets(result) == ["b-0", "b-1", "b-2", "b-3"]


@rule("engine.V15", "ruling.R3")
def test_excess_goes_before_victims_whatever_its_stamp(lab: Lab) -> None:
    wanted, tenant = need("c", 2), need("d", 1, priority=1)
    lab.have(
        configured("m1", "d", stamp=1, price=0),
        configured("m2", "d", stamp=500, price=1),
        configured("m3", "d", stamp=9000, price=2),
    )
    lab.want(wanted, tenant)

    result = lab.cycle()

    assert [(a.kind, a.machine, a.reason, a.grace_s) for a in result.decided] == [
        (Kind.PREEMPT, "m2", "phase2.excess", 600),
        (Kind.PREEMPT, "m3", "phase2.excess", 600),
    ]
    assert claims(result, tenant) == ["m1"]
    assert verdict(result, wanted).reason is Reason.PREEMPTION_PENDING


@rule("engine.V16", "ruling.R3")
@pytest.mark.parametrize("cycles", [1, 2, 5])
def test_nothing_more_is_picked_while_victims_drain(lab: Lab, cycles: int) -> None:
    wanted, tenant = need("c", 2), need("d", 6, priority=100)
    lab.have(many(6, configured, "v", "d", bought_for=tenant))
    lab.want(wanted, tenant)

    results = lab.until_quiet(Dwell(drain=cycles))

    assert kinds(results) == {"Preempt": 2, "Bootstrap": 2}
    assert all(verdict(r, wanted).reason is Reason.PREEMPTION_PENDING for r in results[:cycles])
    assert verdict(results[-1], wanted).satisfied


@rule("engine.V16", "ruling.R3")
def test_drains_of_a_spread_need_all_count_again(lab: Lab) -> None:
    """One walk by id would pass over a-1 and a-2 while zone b lags behind, and preempt two more."""
    wanted, tenant = need("c", 7, strict_zones()), need("d", 9, priority=100)
    lab.have(
        many(1, configured, "mine-a", "c", zone="a", bought_for=wanted),
        many(1, configured, "mine-b", "c", zone="b", bought_for=wanted),
        many(5, configured, "a", "d", zone="a", bought_for=tenant),
        many(4, configured, "b", "d", zone="b", bought_for=tenant),
    )
    lab.want(wanted, tenant)

    results = lab.until_quiet(Dwell(drain=4))

    assert targets(results[0]) == ["a-0", "b-0", "a-1", "b-1", "a-2"]
    assert kinds(results) == {"Preempt": 5, "Bootstrap": 5}


@pytest.mark.xfail(
    strict=True,
    raises=AssertionError,
    reason="engine.md §11 step 3 counts a drain only where the spread allows one more machine, those for the "
    "Need itself first: what a drain for nobody opens comes too late for them, and every cycle preempts anew",
)
def test_drains_of_a_spread_need_count_beside_a_drain_for_nobody(lab: Lab) -> None:
    wanted, tenant = need("c", 5, strict_zones()), need("d", 6, priority=1)
    lab.have(
        many(2, configured, "mine-a", "c", zone="a", bought_for=wanted),
        configured("mine-b", "c", zone="b", bought_for=wanted),
        many(6, configured, "victim", "d", zone="a", bought_for=tenant),
    )
    lab.have_draining(draining("given-back", "d", zone="b", stamp=1), ends_in=600)
    lab.want(wanted, tenant)

    results = lab.run(4, Dwell(drain=60))

    assert targets(results, Kind.PREEMPT) == ["victim-0"]


@rule("engine.V16", "ruling.R3")
def test_zone_is_a_domain_of_preemption_from_its_first_pick_on(lab: Lab) -> None:
    """§11: zone b is no domain of this Need before something is picked there, so a alone is even."""
    wanted, tenant = need("c", 3, strict_zones()), need("d", 6, priority=100)
    lab.have(
        many(3, configured, "a", "d", zone="a", bought_for=tenant),
        many(3, configured, "b", "d", zone="b", bought_for=tenant),
    )
    lab.want(wanted, tenant)

    assert targets(lab.cycle()) == ["a-0", "a-1", "a-2"]


@rule("engine.V1")
def test_drain_for_the_need_counts_as_preempted(lab: Lab) -> None:
    wanted = need("c", 2)
    lab.have_draining(draining("m", "d"), preempted_for=wanted, ends_in=10)
    lab.want(wanted)

    result = lab.cycle()

    assert inversion(result, "c").preempted
    assert verdict(result, wanted).reason is Reason.PREEMPTION_EXHAUSTED
    assert verdict(result, wanted).preemption is None


@rule("engine.V17")
@pytest.mark.parametrize(("ends_in", "preempted"), [(8, []), (500, ["v"]), (None, [])])
def test_voluntary_drain_counts_if_it_ends_before_a_victim_could(
    lab: Lab, ends_in: float | None, preempted: list[str]
) -> None:
    tenant = need("d", 1, priority=0)
    lab.have(configured("v", "d", bought_for=tenant))
    lab.have_draining(draining("m", "e", stamp=0), ends_in=ends_in)
    lab.want(need("c", 1, priority=1_000_000), tenant)

    result = lab.cycle()

    assert targets(result, Kind.PREEMPT) == preempted
    assert inversion(result, "c").counted == (() if preempted else ("m",))
    assert [a.grace_s for a in actions(result, Kind.PREEMPT)] == [10] * len(preempted)


@rule("engine.V18")
@pytest.mark.parametrize(
    "earlier",
    [need("a", 1, priority=3000), need("a", 1, priority=2000), need("b", 1, priority=2000, group="first")],
    ids=["higher-priority", "another-cluster", "another-group"],
)
def test_drain_for_another_need_never_counts(lab: Lab, earlier: Need) -> None:
    """The other Need is served first: served later, it would find the drain counted already."""
    preemptor = need("b", 1, priority=2000)
    lab.have_draining(draining("m", "d"), preempted_for=preemptor, ends_in=10)
    lab.want(earlier, preemptor)

    result = lab.cycle()

    counted = [(result.rows[n.index].need.key, n.counted) for n in result.phase2.needs]
    assert counted == [(earlier.key, ()), (preemptor.key, ("m",))]


@rule("engine.V18")
def test_drain_for_a_need_already_satisfied_stays_reserved(lab: Lab) -> None:
    x, y = need("x", 1), need("y", 1)
    lab.have(configured("held", "x", bought_for=x))
    lab.have_draining(draining("m", "d"), preempted_for=x, ends_in=10)
    lab.want(x, y)

    assert inversion(lab.cycle(), "y").counted == ()


@rule("engine.V19")
def test_gang_in_a_full_fleet_finds_a_rack_by_the_second_ranking(lab: Lab) -> None:
    wanted, tenant = gang("c", 4), need("d", 7, priority=100)
    lab.have(
        many(4, configured, "a", "d", rack="A", bought_for=tenant),
        many(3, configured, "b", "d", rack="B", bought_for=tenant),
    )
    lab.want(wanted, tenant)

    results = lab.until_quiet(Dwell(drain=3))

    first = verdict(results[0], wanted)
    assert (first.same_domain, first.same_satisfiable) == ("A", False)
    assert targets(results[0]) == ["a-0", "a-1", "a-2", "a-3"]
    assert all(wanted.key not in r.carried.parking for r in results[1:])
    assert kinds(results) == {"Preempt": 4, "Bootstrap": 4}
    assert sorted(claims(results[-1], wanted)) == ["a-0", "a-1", "a-2", "a-3"]


@rule("engine.V20")
def test_stray_idle_machine_does_not_divert_the_gang(lab: Lab) -> None:
    wanted, tenant = gang("c", 4), need("d", 7, priority=100)
    lab.have(
        many(4, configured, "a", "d", rack="A", bought_for=tenant),
        many(3, configured, "b", "d", rack="B", bought_for=tenant),
        idle("stray", rack="Z"),
    )
    lab.want(wanted, tenant)

    result = lab.cycle()

    assert verdict(result, wanted).same_domain == "A"
    assert kinds(result) == {"Preempt": 4}


@rule("engine.V21", "ruling.R3")
def test_gang_keeps_the_rack_where_its_victims_drain(lab: Lab) -> None:
    wanted, tenant = gang("c", 5), need("d", 7, priority=100)
    lab.have(
        many(5, configured, "b", "d", rack="B", bought_for=tenant),
        many(2, configured, "a", "d", rack="A", bought_for=tenant),
        many(2, idle, "i", rack="A"),
    )
    lab.want(wanted, tenant)

    results = lab.until_quiet(Dwell(drain=4))

    assert {verdict(r, wanted).same_domain for r in results} == {"B"}
    assert sorted(targets(results, Kind.PREEMPT)) == ["b-0", "b-1", "b-2", "b-3", "b-4"]
    assert verdict(results[-1], wanted).satisfied


@rule("engine.V22")
def test_second_gang_leaves_out_what_the_first_relies_on(lab: Lab) -> None:
    one, two = gang("c", 3, group="one"), gang("c", 3, group="two")
    tenant = need("d", 8, priority=100)
    lab.have(
        many(4, configured, "a", "d", rack="A", bought_for=tenant),
        many(4, configured, "b", "d", rack="B", bought_for=tenant),
    )
    lab.want(one, two, tenant)

    results = lab.until_quiet(Dwell(drain=3))

    picks = [(a.machine[0], a.preemptor and a.preemptor.group) for a in results[0].decided]
    assert picks == [("a", "one")] * 3 + [("b", "two")] * 3
    assert len(actions(results, Kind.PREEMPT)) == 6
    assert verdict(results[-1], one).satisfied and verdict(results[-1], two).satisfied


@rule("engine.V23")
@pytest.mark.parametrize("victim", [True, False])
def test_late_drain_counts_only_without_a_quick_victim(lab: Lab, victim: bool) -> None:
    tenant = need("d", 1, priority=0)
    lab.have_draining(draining("m", "e", stamp=1_000_000), ends_in=500)
    if victim:
        lab.have(configured("v", "d", bought_for=tenant))
    lab.want(need("c", 1, priority=1_000_000), tenant)

    result = lab.cycle()

    assert [(a.machine, a.grace_s) for a in actions(result, Kind.PREEMPT)] == ([("v", 10)] if victim else [])
    assert inversion(result, "c").counted == (() if victim else ("m",))


@rule("engine.V23")
def test_quickest_victim_decides_whether_a_drain_is_late(lab: Lab) -> None:
    low, high = need("d", 1, types("low"), priority=0), need("d", 1, types("high"), priority=999_999)
    lab.have_draining(draining("m", "e", stamp=1_000_000), ends_in=500)
    lab.have(configured("a-slow", "d", type="high", bought_for=high))
    lab.have(configured("b-quick", "d", type="low", bought_for=low))
    lab.want(need("c", 1, priority=1_000_000), low, high)

    assert targets(lab.cycle(), Kind.PREEMPT) == ["b-quick"]


@rule("engine.V23")
def test_victim_of_whom_nothing_is_wanted_any_more_makes_no_drain_late(lab: Lab) -> None:
    gpus, cores = vector(gpu=1), vector(cpu=1)
    quick = need("d", gpus, types("gpu"), priority=0)
    slow = need("d", cores, types("cpu"), priority=999_999)
    lab.have_draining(draining("m-1", "e", size=gpus, stamp=1_000_000), ends_in=5)
    lab.have_draining(draining("m-2", "e", size=cores, stamp=1_000_000), ends_in=500)
    lab.have(configured("v-1", "d", type="gpu", size=gpus, bought_for=quick))
    lab.have(configured("v-2", "d", type="cpu", size=cores, bought_for=slow))
    lab.want(need("c", vector(cpu=1, gpu=1), priority=1_000_000), quick, slow)

    result = lab.cycle()

    assert inversion(result, "c").counted == ("m-1", "m-2")
    assert targets(result, Kind.PREEMPT) == []


@rule("engine.V24")
def test_rack_with_more_free_machines_is_chosen_among_those_that_need_victims(lab: Lab) -> None:
    wanted, tenant = gang("c", 5), need("d", 6, priority=100)
    lab.have(
        many(5, configured, "a", "d", rack="A", bought_for=tenant),
        many(4, idle, "i", rack="B"),
        many(1, configured, "b", "d", rack="B", bought_for=tenant),
    )
    lab.want(wanted, tenant)

    result = lab.cycle()

    assert verdict(result, wanted).same_domain == "B"
    assert targets(result, Kind.BOOTSTRAP) == ["i-0", "i-1", "i-2", "i-3"]
    assert targets(result, Kind.PREEMPT) == ["b-0"]


@rule("engine.V25")
def test_draining_victims_hold_the_domain(lab: Lab) -> None:
    wanted, tenant = gang("c", 5), need("d", 11, types("t"), priority=100)
    lab.have(
        many(6, configured, "a", "d", rack="A", type="t", bought_for=tenant),
        many(5, configured, "b", "d", rack="B", type="t", bought_for=tenant),
    )
    lab.want(wanted, tenant)
    slow = Dwell(drain=5)
    first = lab.step(slow)
    assert verdict(first, wanted).same_domain == "B"
    assert len(targets(first, Kind.PREEMPT)) == 5

    assert lab.step(slow).decided == ()
    lab.judge.remove("a-0")
    lab.have(idle("fresh", rack="A"))
    results = lab.until_quiet(slow)

    assert {verdict(r, wanted).same_domain for r in results} == {"B"}
    assert kinds(results) == {"Bootstrap": 5}
    assert sorted(claims(results[-1], wanted)) == ["b-0", "b-1", "b-2", "b-3", "b-4"]
