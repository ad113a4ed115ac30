"""Scenarios of bound supply, machines in flight and shrinkage (engine.md §17, S)."""

from dataclasses import replace
from typing import Any

import pytest

from bigfleet_base.model import MachineState, transition
from tests.engine.dsl import (
    configured,
    configuring,
    creating,
    gang,
    idle,
    many,
    need,
    speculative,
    types,
    units,
)
from tests.engine.judge import NewJudge
from tests.engine.lab import Dwell, Lab, actions, claims, kinds, targets, verdict
from tests.oracle.results import Kind, Reason
from tests.support.rules import rule


@rule("engine.S1")
def test_covered_demand_stays_quiet_however_pods_are_placed(lab: Lab) -> None:
    lab.have(many(4, configured, "m", "c"), many(2, idle, "i"), many(2, speculative, "s"))
    lab.want(need("c", 4))

    for result in lab.run(30):
        assert result.decided == ()
        assert result.report == ()


@rule("engine.S2")
def test_shrinkage_gives_up_the_dearest(lab: Lab) -> None:
    lab.have(many(3, configured, "dear", "c", price=6), many(2, configured, "free", "c", price=0))
    lab.want(need("c", 3))

    reclaimed = targets(lab.cycle(), Kind.RECLAIM)

    assert len(reclaimed) == 2
    assert all(machine_id.startswith("dear") for machine_id in reclaimed)


@rule("engine.S3")
def test_at_equal_price_the_machine_worth_most_to_its_tenant_stays(lab: Lab) -> None:
    lab.have(configured("a-cheap", "c", reclamation=0), configured("b-dear", "c", reclamation=5000))
    lab.want(need("c", 1))

    assert targets(lab.cycle(), Kind.RECLAIM) == ["a-cheap"]


@rule("engine.S4")
def test_cluster_that_never_reported_loses_nothing(lab: Lab) -> None:
    lab.have(many(3, configured, "m", "c"))

    assert lab.cycle().decided == ()


@rule("engine.S5")
def test_empty_rollup_counts_as_reported(lab: Lab) -> None:
    lab.have(many(3, configured, "m", "c"))
    lab.report("c")

    assert sorted(targets(lab.cycle(), Kind.RECLAIM)) == ["m-0", "m-1", "m-2"]


@rule("engine.S6")
def test_only_reported_clusters_are_reclaimed(lab: Lab) -> None:
    lab.have(many(2, configured, "a", "A"), many(2, configured, "b", "B"))
    lab.report("A")

    assert sorted(targets(lab.cycle())) == ["a-0", "a-1"]


@rule("engine.S7")
def test_restart_reclaims_nothing_and_keeps_protection(lab: Lab, new_judge: NewJudge) -> None:
    protected = need("c", 2, priority=1_000_000, reclamation=4096)
    lab.have(many(2, configured, "m", "c", bought_for=protected))
    lab.want(protected)
    assert lab.cycle().decided == ()

    restarted = Lab(new_judge())
    restarted.have(lab.judge.machines().values())
    restarted.want(need("d", 1, priority=999_999))

    for result in restarted.run(5):
        assert result.decided == ()
    assert restarted.machine("m-0").assigned_priority == 1_000_000
    assert restarted.machine("m-0").assigned_reclamation_penalty == 4096


@rule("engine.S8")
def test_machine_still_configuring_counts_fully(lab: Lab) -> None:
    lab.have(configuring("m", "c"), idle("i"))
    lab.want(need("c", 1))

    assert lab.cycle().decided == ()


@rule("engine.S9")
@pytest.mark.parametrize("cycles", [1, 2, 3, 6])
def test_slow_create_is_bought_once(lab: Lab, cycles: int) -> None:
    lab.have(many(5, speculative, "s"))
    lab.want(need("c", 1))

    assert kinds(lab.until_quiet(Dwell(create=cycles))) == {"Provision": 1, "Bootstrap": 1}


@rule("engine.S10")
def test_failed_create_reopens_the_deficit_for_one_purchase(lab: Lab) -> None:
    lab.have(many(3, speculative, "s"))
    lab.want(need("c", 1))
    slow = Dwell(create=9)
    assert targets(lab.step(slow)) == ["s-0"]
    assert lab.step(slow).decided == ()

    lab.fail("s-0")

    assert targets(lab.step(slow)) == ["s-1"]
    assert lab.step(slow).decided == ()


@rule("engine.S11", "ruling.R15")
def test_machine_this_process_started_without_attribution_counts_for_nobody(lab: Lab) -> None:
    lab.have(many(2, speculative, "s"))
    lab.judge.apply(transition(lab.machine("s-0"), MachineState.CREATING), lab.now, started=True)
    wanted = need("c", 1)
    lab.want(wanted)

    assert claims(lab.cycle(), wanted) == ["s-1"]


@rule("engine.S12")
def test_machine_bought_for_one_gang_does_not_count_for_its_twin(lab: Lab) -> None:
    first, second = gang("c", 2, group="g1"), gang("c", 2, group="g2")
    lab.have(creating("m", rack="X", bought_for=first))
    lab.want(second, first)

    result = lab.cycle()

    assert claims(result, first) == ["m"]
    assert claims(result, second) == []


@rule("engine.S13", "ruling.R3")
def test_machine_bought_for_a_cluster_counts_once_and_there(lab: Lab) -> None:
    here, elsewhere = need("A", 1), need("B", 1)
    lab.have(creating("m", bought_for=here))
    lab.want(elsewhere)
    lab.advance()
    lab.want(here)

    result = lab.cycle()

    assert here.profile.fingerprint == elsewhere.profile.fingerprint
    assert claims(result, here) == ["m"]
    assert claims(result, elsewhere) == []


@rule("engine.S14")
def test_machine_of_a_vanished_need_is_credited_to_what_it_matches(lab: Lab) -> None:
    gone, remaining = need("c", 1, reclamation=64), need("c", 1)
    lab.have(configured("m", "c", bought_for=gone), idle("i"))
    lab.want(remaining)

    result = lab.cycle()

    assert claims(result, remaining) == ["m"]
    assert result.decided == ()


@rule("engine.S15", "ruling.R3")
def test_shrinkage_keeps_the_first_in_keep_order(lab: Lab) -> None:
    wanted = need("c", 4)
    lab.have(configured(f"m-{i}", "c", price=i) for i in range(10))
    lab.want(wanted)

    result = lab.cycle()

    assert targets(result, Kind.RECLAIM) == ["m-9", "m-8", "m-7", "m-6", "m-5", "m-4"]
    assert claims(result, wanted) == ["m-0", "m-1", "m-2", "m-3"]


@rule("engine.S16")
def test_machine_that_never_gets_ready_reopens_the_deficit(lab: Lab) -> None:
    lab.have(idle("m-0"))
    lab.want(need("c", 1))
    lab.step(Dwell(configure=99))
    lab.have(idle("m-1"))
    assert all(r.decided == () for r in lab.run(5))
    assert lab.machine("m-0").state is MachineState.CONFIGURING

    lab.fail("m-0")

    assert targets(lab.cycle()) == ["m-1"]


@rule("engine.S17")
def test_credit_follows_the_order_of_acquisition(lab: Lab) -> None:
    x = need("c", 1, types("a", "b"))
    y = need("c", 1, types("b", "c"), interruption=4)
    lab.have(idle("a", type="a", price=2), idle("b", type="b", price=1), idle("c", type="c", price=3))
    lab.want(x)
    lab.advance()
    lab.want(x, y)

    results = lab.until_quiet(Dwell(configure=2))

    assert kinds(results) == {"Bootstrap": 2}
    assert (claims(results[-1], x), claims(results[-1], y)) == (["a"], ["b"])


@rule("engine.S18")
def test_need_keeps_its_own_machine_beside_a_cheaper_one_of_another(lab: Lab) -> None:
    one = need("c", 1, types("a", "b"), priority=2000)
    two = need("c", 1, types("b"), priority=1000)
    lab.have(idle("a", type="a", price=5), many(2, speculative, "b", type="b", price=1))
    lab.want(one, two)

    results = lab.until_quiet()

    assert targets(results, Kind.PROVISION) == ["b-0"]
    assert kinds(results) == {"Bootstrap": 2, "Provision": 1}
    assert (claims(results[-1], one), claims(results[-1], two)) == (["a"], ["b-0"])


@rule("engine.S19")
def test_need_bootstraps_the_machine_it_bought(lab: Lab) -> None:
    lab.have(speculative("bought", price=5))
    lab.want(need("c", 1))
    assert targets(lab.step()) == ["bought"]
    lab.have(idle("cheaper", price=1))

    result = lab.cycle()

    assert [(a.kind, a.machine) for a in result.decided] == [(Kind.BOOTSTRAP, "bought")]


@rule("engine.S20", "ruling.R15")
def test_echoed_create_counts_for_its_own_need_after_a_restart(lab: Lab) -> None:
    older, owner = need("a", 1, priority=2000), need("b", 1)
    lab.have(creating("m", bought_for=owner), finishing_in=4)
    lab.have(many(3, speculative, "s"))
    lab.want(older, owner)

    results = lab.until_quiet()

    assert [a.cluster for a in actions(results, Kind.PROVISION)] == ["a"]
    assert claims(results[-1], owner) == ["m"]


@rule("engine.S20", "ruling.R15")
def test_unechoed_create_counts_once_for_the_first_need_it_suits(lab: Lab) -> None:
    first, second = need("b", 1, priority=2000), need("a", 1)
    lab.have(creating("m"), finishing_in=4)
    lab.have(many(3, speculative, "s"))
    lab.want(first, second)

    results = lab.until_quiet()

    assert claims(results[0], first) == ["m"]
    assert [a.cluster for a in actions(results, Kind.PROVISION)] == ["a"]
    assert claims(results[-1], first) == ["m"]


@rule("engine.S21")
def test_machine_on_its_way_keeps_a_need_off_the_machine_of_another(lab: Lab) -> None:
    one = need("c", 1, types("a", "b"), priority=2000)
    two = need("c", 1, types("b"), priority=1000)
    lab.have(creating("a", type="a", price=5, bought_for=one), finishing_in=5)
    lab.have(configured("b", "c", type="b", price=1, bought_for=two), speculative("s", type="b", price=1))
    lab.want(one, two)

    results = lab.until_quiet()

    assert kinds(results) == {"Bootstrap": 1}
    assert all(claims(r, one) == ["a"] and claims(r, two) == ["b"] for r in results)


@rule("engine.S22")
@pytest.mark.parametrize("cause", ["operator_error", "no_session"])
def test_need_held_back_keeps_what_it_has_and_starts_nothing(lab: Lab, cause: str) -> None:
    wanted, other = need("c", 3), need("d", 2, types("v"), priority=100)
    lab.have(
        configured("mine", "c", bought_for=wanted),
        idle("i"),
        speculative("s"),
        many(2, configured, "v", "d", type="v", bought_for=other),
    )
    lab.want(wanted, other)
    blocked: dict[str, Any] = {"blocked": frozenset({("c", wanted.profile.fingerprint)})}
    mute: dict[str, Any] = {"no_session": frozenset({"c"})}
    held = blocked if cause == "operator_error" else mute

    for result in lab.run(12, **held):
        assert result.decided == ()
        seen = verdict(result, wanted)
        assert claims(result, wanted) == ["mine"]
        assert not seen.acquisition_parked
        assert seen.unmet_detail == cause
        assert [s.deficit for s in result.report] == [units(2)]

    assert targets(lab.cycle()) == ["i", "s"]


@rule("engine.S22")
def test_parked_gang_that_is_held_back_keeps_its_age_and_is_not_shown_as_parked(lab: Lab) -> None:
    """§9 wants held-back Needs "with acquisition_parked false"; shard.md §12 "not shown as parked"."""
    wanted = gang("c", 2)
    lab.want(wanted)
    lab.run(9)

    held = [lab.step(no_session=frozenset({"c"})) for _ in range(3)]
    after = lab.step()

    assert not any(verdict(r, wanted).acquisition_parked for r in held)
    assert [r.carried.parking for r in held] == [{wanted.key: 9}] * 3
    assert verdict(after, wanted).acquisition_parked


@rule("engine.S23", "ruling.R15")
def test_machines_in_flight_follow_a_need_that_changes_its_fingerprint(lab: Lab) -> None:
    before = need("c", 3, types("s", "v"), priority=1_000_000)
    after = need("c", 3, types("s", "v"), priority=1_000_000, interruption=64)
    tenant = need("d", 2, types("v"), priority=0)
    lab.have(
        many(2, speculative, "s", type="s"),
        many(2, configured, "v", "d", type="v", bought_for=tenant),
    )
    lab.want(before, tenant)
    slow = Dwell(create=5, drain=6)
    assert kinds(lab.step(slow)) == {"Provision": 2, "Preempt": 1}

    # v-1 is there to be preempted, should any of the three not count.
    lab.want(after)
    results = lab.until_quiet(slow)

    assert kinds(results) == {"Bootstrap": 3}
    assert claims(results[0], after) == ["s-0", "s-1"]
    assert verdict(results[0], after).reason is Reason.PREEMPTION_PENDING
    assert sorted(claims(results[-1], after)) == ["s-0", "s-1", "v-0"]


@rule("engine.S20", "ruling.R15")
def test_attribution_to_a_cluster_that_has_not_reported_stays_reserved(lab: Lab) -> None:
    """The other half of the rule behind S20 and S23: only reported demand can show that a Need is gone."""
    owner, other = need("late", 1), need("c", 1)
    lab.have(creating("m", bought_for=owner))
    lab.want(other)
    assert claims(lab.cycle(), other) == []

    lab.report("late")
    assert claims(lab.cycle(), other) == ["m"]


@rule("engine.S9")
def test_taking_back_a_create_reopens_the_deficit(lab: Lab) -> None:
    """shard.md §6.1: a call that was not sent returns the machine to its source state."""
    lab.have(speculative("s"))
    lab.want(need("c", 1))
    lab.step(Dwell(create=9))
    taken_back = replace(
        lab.machine("s"),
        state=MachineState.SPECULATIVE,
        assigned_need_fingerprint="",
        assigned_group="",
        target_cluster="",
    )
    lab.judge.apply(taken_back, lab.now)

    assert targets(lab.cycle()) == ["s"]
