"""Scenarios of ``Same`` domains, folding and parking (engine.md §17, G)."""

from collections.abc import Callable

import pytest

from bigfleet_base.model import Operator, Requirement, ResourceVector
from tests.engine.dsl import (
    RACK_KEY,
    SPOT,
    configured,
    configuring,
    creating,
    draining,
    gang,
    idle,
    lenient_zones,
    many,
    need,
    same_rack,
    speculative,
    strict_zones,
    units,
    vector,
)
from tests.engine.lab import Dwell, Lab, actions, claims, kinds, targets, verdict
from tests.oracle.results import CycleResult, Kind, Reason
from tests.support.rules import rule


def forms(result: CycleResult) -> list[str]:
    """How the demand looks after normalisation: ``folded`` or the gang's group, row by row."""
    return ["folded" if row.member_aggregate is not None else row.need.group for row in result.rows]


@rule("engine.G1")
def test_gang_settles_where_it_can_be_complete(lab: Lab) -> None:
    wanted = gang("c", 4)
    lab.have(
        many(2, configured, "a", "c", rack="A"),
        many(2, configured, "b", "c", rack="B"),
        many(2, idle, "i", rack="A"),
    )
    lab.want(wanted)

    result = lab.cycle()

    assert verdict(result, wanted).same_domain == "A"
    assert claims(result, wanted) == ["a-0", "a-1", "i-0", "i-1"]
    assert targets(result, Kind.BOOTSTRAP) == ["i-0", "i-1"]
    assert sorted(targets(result, Kind.RECLAIM)) == ["b-0", "b-1"]


@rule("engine.G2")
def test_gang_without_supply_credits_one_rack_and_leaves_it_for_nothing(lab: Lab) -> None:
    wanted = gang("c", 4)
    lab.have(many(2, configured, "a", "c", rack="A"), many(2, configured, "b", "c", rack="B"))
    lab.want(wanted)

    result = lab.cycle()

    assert claims(result, wanted) == ["a-0", "a-1"]
    assert verdict(result, wanted).deficit == units(2)
    assert kinds(result) == {"Reclaim": 2}


@rule("engine.G3")
def test_impossible_gang_concentrates_once_and_rests(lab: Lab) -> None:
    wanted = gang("c", 5)
    lab.have(many(2, configured, "a", "c", rack="A", bought_for=wanted), many(3, idle, "b", rack="B"))
    lab.want(wanted)

    results = lab.run(50)

    assert kinds(results[0]) == {"Bootstrap": 3, "Reclaim": 2}
    assert actions(results[1:]) == []
    assert claims(results[-1], wanted) == ["b-0", "b-1", "b-2"]


@rule("engine.G4")
@pytest.mark.parametrize(
    ("same", "folded"),
    [
        (same_rack(), Requirement(RACK_KEY, Operator.EXISTS)),
        (same_rack("r1", "r2"), Requirement(RACK_KEY, Operator.IN, ("r1", "r2"))),
    ],
)
def test_gang_that_fits_one_machine_is_folded(lab: Lab, same: Requirement, folded: Requirement) -> None:
    lab.have(idle("big", size=4, rack="r1"))
    lab.want(gang("c", 3, same))

    [row] = lab.cycle().rows

    assert row.need.profile.requirements == (folded,)
    assert row.need.min_unit == row.need.aggregate == units(3)
    assert row.need.group == ""


@rule("engine.G5")
def test_small_gangs_ask_for_the_machines_they_fill(lab: Lab) -> None:
    lab.have(many(540, idle, "m", size=10, rack="r"))
    lab.want(*(gang("c", 1, group=f"g{i}") for i in range(2400)))

    result = lab.cycle()

    assert len(result.rows) == 1
    assert kinds(result) == {"Bootstrap": 240}


@rule("engine.G6", "ruling.R3")
def test_class_unfolds_at_once_and_folds_again_in_the_third_fitting_cycle(lab: Lab) -> None:
    big = idle("big", size=2, rack="r")
    lab.want(gang("c", 2, group="g1"), gang("c", 2, group="g2"))
    lab.have(big)
    assert forms(lab.cycle()) == ["folded"]

    lab.judge.remove("big")
    assert forms(lab.cycle()) == ["g1", "g2"]
    assert forms(lab.cycle()) == ["g1", "g2"]

    lab.have(big)
    assert [forms(lab.cycle()) for _ in range(2)] == [["g1", "g2"]] * 2
    lab.judge.remove("big")
    assert forms(lab.cycle()) == ["g1", "g2"]
    lab.have(big)
    assert [forms(lab.cycle()) for _ in range(3)] == [["g1", "g2"], ["g1", "g2"], ["folded"]]


@rule("engine.G6", "ruling.R3")
def test_machines_bought_in_either_form_stay_own(lab: Lab) -> None:
    wanted = gang("c", 2)
    lab.have(many(1, speculative, "big", size=2, rack="r"))
    lab.want(wanted)

    first = lab.step(Dwell(create=3))
    assert (forms(first), targets(first, Kind.PROVISION)) == (["folded"], ["big-0"])
    # Creating machines make no class fit, so the class un-folds while its purchase is under way.
    for result in lab.run(2):
        assert forms(result) == ["g"]
        assert claims(result, wanted) == ["big-0"]
        assert result.decided == ()
    # Idle, then Configuring, then Configured: bought by the folded Need, bound by the gang.
    lab.have(idle("a-cheaper", size=2, rack="q"))
    bound = lab.step()
    assert (forms(bound), targets(bound, Kind.BOOTSTRAP)) == (["g"], ["big-0"])
    assert lab.machine("big-0").assigned_group == "g"
    later = lab.run(2)
    assert [forms(r) for r in later] == [["g"], ["folded"]]
    assert [list(r.phase1.claimed) for r in later] == [["big-0"], ["big-0"]]
    assert actions(later) == []


@rule("engine.G6", "ruling.R3")
def test_folded_need_takes_what_its_members_bought(lab: Lab) -> None:
    wanted = gang("c", 2)
    lab.have(idle("bought", size=2, rack="r", price=5, bought_for=wanted), idle("cheap", size=2, rack="r"))
    lab.want(wanted)

    result = lab.cycle()

    assert forms(result) == ["folded"]
    assert targets(result) == ["bought"]


@rule("engine.G7")
def test_machine_that_only_one_cluster_has_folds_only_its_gang(lab: Lab) -> None:
    lab.have(configured("big", "A", size=2, rack="r"))
    lab.want(gang("A", 2), gang("B", 2))

    rows = lab.cycle().rows

    assert [(r.need.cluster_id, r.member_aggregate is not None) for r in rows] == [("A", True), ("B", False)]


@rule("engine.G8")
def test_covered_gang_stays_when_a_fresh_rack_appears(lab: Lab) -> None:
    wanted = gang("c", 3)
    lab.have(many(4, configured, "x", "c", rack="X", bought_for=wanted))
    lab.judge.remove("x-3")
    lab.have(many(3, idle, "a", rack="A"))
    lab.want(wanted)

    result = lab.cycle()

    assert verdict(result, wanted).same_domain == "X"
    assert result.decided == ()


@rule("engine.G9")
def test_domain_with_more_of_the_clusters_machines_is_chosen(lab: Lab) -> None:
    wanted = gang("c", 4)
    lab.have(
        many(3, configured, "x", "c", rack="X"),
        many(2, idle, "xi", rack="X"),
        # Even if this one is the gang's own: the cluster's credit comes first (§10.3 rule 2 before 2b).
        many(1, configured, "a", "c", rack="A", bought_for=wanted),
        many(3, idle, "ai", rack="A"),
    )
    lab.want(wanted)

    assert verdict(lab.cycle(), wanted).same_domain == "X"


@rule("engine.G10")
def test_domain_with_the_gangs_own_machines_is_chosen_despite_slack(lab: Lab) -> None:
    wanted = gang("c", 3)
    lab.have(
        many(3, configured, "x", "c", rack="X", bought_for=wanted),
        many(2, idle, "slack", rack="X"),
        many(3, configured, "a", "c", rack="A"),
    )
    lab.want(wanted)

    result = lab.cycle()

    assert verdict(result, wanted).same_domain == "X"
    assert claims(result, wanted) == ["x-0", "x-1", "x-2"]


@rule("engine.G10")
def test_domain_with_machines_of_the_gang_is_chosen_where_it_must_grow_too(lab: Lab) -> None:
    wanted = gang("c", 3)
    lab.have(
        configured("x", "c", rack="X", bought_for=wanted),
        many(4, idle, "slack", rack="X"),
        configured("a", "c", rack="A"),
        many(2, idle, "exact", rack="A"),
    )
    lab.want(wanted)

    assert verdict(lab.cycle(), wanted).same_domain == "X"


@rule("engine.G11")
def test_gangs_do_not_swap_while_slack_moves_between_their_racks(lab: Lab) -> None:
    left, right = gang("c", 3, group="left"), gang("c", 3, group="right")
    lab.have(many(3, idle, "x", rack="X"), many(3, idle, "y", rack="Y"), idle("z-slack", rack="X"))
    lab.want(left, right)

    seen = []
    for cycle in range(20):
        result = lab.step(Dwell(configure=3))
        seen.append([(verdict(result, g).same_domain, set(claims(result, g))) for g in (left, right)])
        lab.judge.remove("z-slack")
        lab.have(idle("z-slack", rack="XY"[(cycle + 1) % 2]))

    assert all(choice == seen[0] for choice in seen)
    assert kinds(lab.history) == {"Bootstrap": 6}


@rule("engine.G12")
def test_gang_claims_its_own_incumbents_first(lab: Lab) -> None:
    wanted, gone = gang("c", 2), gang("c", 2, group="gone")
    lab.have(
        configured("g-aaa", "c", rack="A", bought_for=gone),
        configured("g-mmm", "c", rack="A", bought_for=wanted),
        configured("g-nnn", "c", rack="A", bought_for=wanted),
    )
    lab.want(wanted)

    result = lab.cycle()

    assert claims(result, wanted) == ["g-mmm", "g-nnn"]
    assert targets(result, Kind.RECLAIM) == ["g-aaa"]


@rule("engine.G13")
def test_claims_stay_the_same_when_a_stranger_matures(lab: Lab) -> None:
    wanted, gone = gang("c", 2), gang("c", 2, group="gone")
    lab.have(
        configuring("g-aaa", "c", rack="A", bought_for=gone),
        configured("g-mmm", "c", rack="A", bought_for=wanted),
        configured("g-nnn", "c", rack="A", bought_for=wanted),
    )
    lab.want(wanted)
    before = claims(lab.cycle(), wanted)

    lab.finish("g-aaa")

    assert claims(lab.cycle(), wanted) == before == ["g-mmm", "g-nnn"]


@rule("engine.G14")
def test_own_incumbents_beyond_demand_are_shed_in_keep_order(lab: Lab) -> None:
    wanted = gang("c", 2)
    lab.have(configured(f"m-{p}", "c", rack="A", price=p, bought_for=wanted) for p in (3, 1, 4, 2))
    lab.want(wanted)

    result = lab.cycle()

    assert claims(result, wanted) == ["m-1", "m-2"]
    assert targets(result, Kind.RECLAIM) == ["m-4", "m-3"]


@rule("engine.G15")
def test_unsatisfiable_gang_moves_to_strictly_greater_coverage(lab: Lab) -> None:
    wanted = gang("c", 5)
    lab.have(many(2, configured, "a", "c", rack="A", bought_for=wanted), many(3, idle, "b", rack="B"))
    lab.want(wanted)

    seen = verdict(lab.cycle(), wanted)

    assert (seen.same_domain, seen.same_satisfiable) == ("B", False)
    assert [(c.domain, c.coverage_per_mille) for c in seen.candidates] == [("B", 600), ("A", 400)]


@rule("engine.G16", "ruling.R3")
@pytest.mark.parametrize("holder", ["A", "C"])
@pytest.mark.parametrize("own", [True, False])
def test_unsatisfiable_gang_stays_at_equal_coverage(lab: Lab, holder: str, own: bool) -> None:
    wanted = gang("c", 5)
    other = "C" if holder == "A" else "A"
    lab.have(
        many(2, configured, "m", "c", rack=holder, bought_for=wanted if own else None),
        many(2, idle, "i", rack=other),
    )
    lab.want(wanted)

    assert verdict(lab.cycle(), wanted).same_domain == holder


@rule("engine.G16", "ruling.R3")
def test_own_machines_decide_between_racks_the_cluster_holds_alike(lab: Lab) -> None:
    """§10.3 rule 5b: equal coverage and equal credit, but only one rack's machines are the gang's own."""
    wanted = gang("c", 5)
    lab.have(
        many(2, configured, "a", "c", rack="A"),
        many(2, configured, "b", "c", rack="B", bought_for=wanted),
    )
    lab.want(wanted)

    assert verdict(lab.cycle(), wanted).same_domain == "B"


@rule("engine.G17")
def test_fresh_rack_does_not_move_bound_gangs(lab: Lab) -> None:
    gangs = [gang("c", 2, group=f"g{i:02}") for i in range(24)]
    for i, g in enumerate(gangs):
        lab.have(many(2, configured, f"m{i:02}", "c", rack=f"r{i:02}", bought_for=g))
    lab.want(*gangs)
    assert lab.cycle().decided == ()

    lab.have(many(2, idle, "fresh", rack="a-fresh"))
    result = lab.cycle()

    assert sum(verdict(result, g).same_domain == "a-fresh" for g in gangs) <= 1
    assert result.decided == ()


@rule("engine.G18")
def test_gang_without_progress_is_parked_in_the_ninth_cycle(lab: Lab) -> None:
    wanted, tenant = gang("c", 3), need("d", 1, priority=100)
    lab.have(configured("mine", "c", rack="A", bought_for=wanted))
    lab.want(wanted)
    for cycle in range(1, 9):
        result = lab.step()
        assert not verdict(result, wanted).acquisition_parked
        assert result.carried.parking[wanted.key] == cycle

    lab.have(many(2, idle, "i", rack="A"), configured("v", "d", rack="A", bought_for=tenant))
    lab.want(tenant)
    for cycle in range(9, 15):
        result = lab.step()
        assert verdict(result, wanted).acquisition_parked
        assert verdict(result, wanted).reason is Reason.TOPOLOGY_UNSATISFIABLE
        assert claims(result, wanted) == ["mine"]
        assert result.decided == ()
        assert [(s.deficit, s.age) for s in result.report] == [(units(2), cycle)]


@rule("engine.G19")
@pytest.mark.parametrize("supplied", [True, False])
def test_parked_gang_probes_once_at_age_32(lab: Lab, supplied: bool) -> None:
    wanted = gang("c", 3)
    lab.have(configured("mine", "c", rack="A", bought_for=wanted))
    lab.want(wanted)
    lab.run(8)
    if supplied:
        lab.have(many(2, idle, "i", rack="A"))
    parked = lab.run(24)
    assert all(verdict(r, wanted).acquisition_parked and r.decided == () for r in parked)
    assert parked[-1].carried.parking[wanted.key] == 32

    probe = lab.step()

    assert not verdict(probe, wanted).acquisition_parked
    assert targets(probe, Kind.BOOTSTRAP) == (["i-0", "i-1"] if supplied else [])
    assert (wanted.key in probe.carried.parking) is not supplied
    assert verdict(lab.step(), wanted).acquisition_parked is not supplied


def _acquires_a_part(lab: Lab) -> None:
    lab.have(idle("new", rack="A"))


def _loses_the_race(lab: Lab) -> None:
    lab.have(many(3, idle, "new", rack="A"))
    lab.want(need("z", 3, priority=2000))


def _waits_for_a_create(lab: Lab) -> None:
    lab.have(creating("new", rack="A", bought_for=gang("c", 4)))


def _has_a_drain_stamped(lab: Lab) -> None:
    # In another rack: it does not count for the deficit, but it shows that something is under way.
    lab.have_draining(draining("new", "d", rack="B"), preempted_for=gang("c", 4))


@rule("engine.G20")
@pytest.mark.parametrize(
    "event", [_acquires_a_part, _loses_the_race, _waits_for_a_create, _has_a_drain_stamped]
)
def test_sign_of_progress_resets_the_age_of_a_gang(lab: Lab, event: Callable[[Lab], None]) -> None:
    wanted = gang("c", 4)
    lab.have(configured("mine", "c", rack="A", bought_for=wanted))
    lab.want(wanted)
    assert lab.run(5)[-1].carried.parking == {wanted.key: 5}

    event(lab)
    result = lab.cycle()

    assert not verdict(result, wanted).satisfied
    assert result.carried.parking == {}


def _is_picked(lab: Lab) -> None:
    tenant = need("d", 2, priority=100)
    lab.have(many(2, configured, "new", "d", rack="A", bought_for=tenant))
    lab.want(tenant)


def _is_counted(lab: Lab) -> None:
    lab.have_draining(draining("new", "d", rack="A"))


@rule("engine.G20")
@pytest.mark.parametrize("event", [_is_picked, _is_counted])
def test_what_phase_2_did_in_the_cycle_before_resets_the_age(lab: Lab, event: Callable[[Lab], None]) -> None:
    wanted = gang("c", 4)
    lab.have(configured("mine", "c", rack="A", bought_for=wanted))
    lab.want(wanted)
    lab.run(5)

    event(lab)

    # Ages move before Phase 2, so this cycle still counts; nothing decided here is carried out.
    assert lab.cycle().carried.parking == {wanted.key: 6}
    assert lab.cycle().carried.parking == {}


@rule("engine.G21")
def test_plenty_of_one_resource_does_not_hide_a_hole_in_another(lab: Lab) -> None:
    wanted = gang("c", vector(cpu=4, memory="4Gi"))
    lab.have(
        many(4, idle, "a", rack="A", size=vector(cpu=100)),
        many(3, idle, "b", rack="B", size=vector(cpu=1, memory="1Gi")),
    )
    lab.want(wanted)

    seen = verdict(lab.cycle(), wanted)

    assert seen.same_domain == "B"
    assert [(c.domain, c.coverage_per_mille) for c in seen.candidates] == [("B", 750), ("A", 0)]


@rule("engine.G22")
def test_listed_values_are_the_only_domains(lab: Lab) -> None:
    wanted = gang("c", 2, same_rack("r2", "r9"))
    lab.have(many(3, idle, "a", rack="r1"), many(2, idle, "b", rack="r2", price=9))
    lab.want(wanted)

    result = lab.cycle()

    assert verdict(result, wanted).same_domain == "r2"
    assert targets(result) == ["b-0", "b-1"]


@rule("engine.G23")
def test_gang_whose_victims_drain_slowly_is_never_parked(lab: Lab) -> None:
    wanted, tenant = gang("c", 3), need("d", 4, priority=100)
    lab.have(
        configured("mine", "c", rack="A", bought_for=wanted),
        many(4, configured, "v", "d", rack="A", bought_for=tenant),
    )
    lab.want(wanted, tenant)

    results = lab.until_quiet(Dwell(drain=12))

    assert not any(verdict(r, wanted).acquisition_parked for r in results)
    assert kinds(results) == {"Preempt": 2, "Bootstrap": 2}
    assert verdict(results[-1], wanted).satisfied


@rule("engine.G24")
def test_folded_gangs_are_not_spread(lab: Lab) -> None:
    lab.have(
        many(4, idle, "a", zone="a", rack="r1", price=1), many(1, idle, "b", zone="b", rack="r2", price=9)
    )
    lab.want(*(gang("c", 1, strict_zones(), lenient_zones(3), group=f"g{i}") for i in range(4)))

    result = lab.cycle()

    assert targets(result) == ["a-0", "a-1", "a-2", "a-3"]
    [row] = result.rows
    assert row.need.profile.spread == (lenient_zones(3),)


@rule("engine.G25")
@pytest.mark.parametrize(("values", "chosen"), [(("r1", "r4"), "in-r1"), ((), "in-r3")])
def test_folded_gang_still_wants_a_rack(lab: Lab, values: tuple[str, ...], chosen: str) -> None:
    lab.have(
        idle("in-r1", rack="r1", size=2, price=3),
        idle("in-r3", rack="r3", size=2, price=2),
        idle("no-rack", size=2, price=1),
    )
    lab.want(gang("c", 2, same_rack(*values)))

    assert targets(lab.cycle()) == [chosen]


@rule("engine.G26", "ruling.R3")
def test_folded_need_keeps_the_place_of_its_oldest_member(lab: Lab) -> None:
    older, plain, younger = gang("c", 2, group="g1"), need("c", 1), gang("c", 2, group="g2")
    lab.have(idle("big", size=2, rack="r"))
    for rows in ([older], [older, plain], [older, plain, younger]):
        lab.want(*rows)
        lab.advance()

    result = lab.cycle()

    assert forms(result) == ["folded", ""]
    assert result.rows[0].member_groups == ("g1", "g2")
    assert claims(result, plain) == []


@rule("engine.G27")
def test_gang_stays_where_it_has_bought(lab: Lab) -> None:
    wanted = gang("c", 2)
    lab.have(many(3, speculative, "x", rack="X"))
    lab.want(wanted)
    lab.step()
    lab.have(many(2, speculative, "a", rack="A"))

    lab.until_quiet()

    assert targets(lab.history, Kind.PROVISION) == ["x-0", "x-1"]
    assert targets(lab.history, Kind.BOOTSTRAP) == ["x-0", "x-1"]
    assert len(actions(lab.history)) == 4


@rule("engine.G28")
def test_gang_waiting_for_slow_creates_is_not_parked(lab: Lab) -> None:
    wanted = gang("c", 3)
    lab.have(many(2, speculative, "s", rack="A", kind=SPOT))
    lab.want(wanted)

    results = lab.until_quiet(Dwell(create=10))

    assert not any(verdict(r, wanted).acquisition_parked for r in results)
    assert kinds(results) == {"Provision": 2, "Bootstrap": 2}


@rule("engine.G28")
def test_gang_for_which_voluntary_drains_count_is_not_parked(lab: Lab) -> None:
    wanted = gang("c", 3)
    lab.want(wanted)
    for i in range(3):
        lab.have_draining(draining(f"m-{i}", "d", rack="A"), ends_in=600, cycles=14)

    results = lab.until_quiet()

    assert not any(verdict(r, wanted).acquisition_parked for r in results)
    assert kinds(results) == {"Bootstrap": 3}


@rule("engine.G4")
def test_gang_larger_than_any_machine_is_not_folded(lab: Lab) -> None:
    lab.have(many(3, idle, "m", rack="r", size=2))
    lab.want(gang("c", ResourceVector(units(2)) + units(1)))

    assert forms(lab.cycle()) == ["g"]
