"""Scenarios of the shortfall ledger, the verdicts and the NeedsTable (engine.md §17, L)."""

from dataclasses import replace

import pytest

from bigfleet_base.model import MachineState, Need
from tests.engine import execution
from tests.engine.dsl import (
    configured,
    configuring,
    draining,
    gang,
    idle,
    many,
    need,
    speculative,
    types,
    units,
)
from tests.engine.lab import Dwell, Lab, claims, targets, verdict
from tests.oracle.results import SECOND, Kind, MatchingSupply, Reason
from tests.support.rules import rule


@rule("engine.L1")
def test_gangs_of_one_fingerprint_are_one_part(lab: Lab) -> None:
    lab.want(*(gang("c", 1 + i, group=f"g{i}") for i in range(3)))

    results = lab.run(12)

    for age, result in enumerate(results, start=1):
        assert [(s.deficit, s.age) for s in result.report] == [(units(6), age)]
    assert all(v.acquisition_parked for v in results[-1].verdicts)


@rule("engine.L2", "ruling.R3")
@pytest.mark.parametrize(("absent", "age"), [(1, 6), (3, 6), (4, 1)])
def test_absent_part_is_remembered_for_three_cycles(lab: Lab, absent: int, age: int) -> None:
    """ "Kept for 3 cycles" is read as three absent cycles remembered, the fourth not."""
    wanted = need("c", 1)
    lab.want(wanted)
    assert lab.run(5)[-1].report[0].age == 5
    lab.report("c")
    assert all(r.report == () for r in lab.run(absent))

    lab.want(wanted)

    assert [s.age for s in lab.cycle().report] == [age]


@rule("engine.L3")
def test_report_shows_the_worst_hundred(lab: Lab) -> None:
    old = [need("c", 1, types(f"old{i:02}"), priority=100) for i in range(30)]
    lab.want(*old)
    lab.step()
    important = [need("c", 1, types(f"new{i:02}"), priority=1000) for i in range(50)]
    young = [need("c", 1, types(f"young{i:02}"), priority=100) for i in range(70)]
    lab.want(*young, *important, *old)

    result = lab.cycle()

    def fingerprints(needs: list[Need]) -> list[str]:
        return sorted(n.profile.fingerprint for n in needs)

    expected = [*fingerprints(important), *fingerprints(old), *fingerprints(young)[:20]]
    assert [s.profile.fingerprint for s in result.report] == expected
    assert len(result.carried.ledger) == 150


@rule("engine.L4")
def test_satisfied_need_has_a_verdict_with_counts(lab: Lab) -> None:
    wanted = need("c", 4)
    lab.have(configured("m", "c"), configuring("n", "c"), idle("i"), speculative("s"))
    lab.want(wanted)

    seen = verdict(lab.cycle(), wanted)

    assert seen.satisfied and seen.deficit.is_zero()
    assert (seen.claimed, seen.bootstrap, seen.provision) == (4, 1, 1)
    assert (seen.age, seen.reason, seen.matching_supply, seen.unmet_detail) == (0, Reason.NONE, None, "")


@rule("engine.L5")
def test_empty_inventory_has_no_matching_supply(lab: Lab) -> None:
    wanted = need("c", 1)
    lab.want(wanted)

    seen = verdict(lab.cycle(), wanted)

    assert seen.reason is Reason.NO_MATCHING_SUPPLY
    assert seen.matching_supply == MatchingSupply(0, 0, 0, capped=False)


@rule("engine.L6")
def test_machine_held_at_higher_priority_starves(lab: Lab) -> None:
    wanted, holder = need("c", 1), need("d", 1, priority=2000)
    lab.have(configured("m", "d", bought_for=holder))
    lab.want(wanted, holder)

    seen = verdict(lab.cycle(), wanted)

    assert seen.reason is Reason.PRIORITY_STARVED
    assert seen.matching_supply == MatchingSupply(0, 0, 1, capped=False)


@rule("engine.L7")
def test_empty_rollup_removes_only_its_cluster(lab: Lab) -> None:
    lab.want(need("a", 1), need("b", 2))
    lab.report("a")

    assert [row.cluster_id for row in lab.judge.demand()] == ["b"]


@rule("engine.L8", "ruling.R5")
def test_arrival_is_when_the_shard_first_saw_the_row(lab: Lab) -> None:
    late, early = need("a", 1), need("b", 1)
    lab.now = 3 * SECOND
    lab.want(replace(early, arrival_ns=999))
    lab.now = 5 * SECOND
    lab.want(replace(late, arrival_ns=1))
    lab.now = 7 * SECOND
    lab.want(replace(early, aggregate=units(2)))
    assert [(n.cluster_id, n.arrival_ns // SECOND) for n in lab.judge.demand()] == [("b", 3), ("a", 5)]

    lab.report("b")
    lab.want(early)
    assert [(n.cluster_id, n.arrival_ns // SECOND) for n in lab.judge.demand()] == [("a", 5), ("b", 7)]


@rule("engine.L9")
def test_machine_without_a_blob_is_usable_in_the_next_cycle(lab: Lab) -> None:
    lab.have(idle("m"))
    lab.want(need("c", 1, reclamation=64))
    lab.step(Dwell(configure=9))

    execution.roll_back(lab.judge, "m", lab.now)

    machine = lab.machine("m")
    assert machine.state is MachineState.IDLE
    assert (machine.cluster, machine.assigned_need_fingerprint, machine.assigned_priority) == ("", "", 0)
    assert machine.assigned_reclamation_penalty == 0
    assert lab.memory("m").idle_since == lab.now
    assert targets(lab.cycle(), Kind.BOOTSTRAP) == ["m"]


@rule("engine.L10")
def test_need_waiting_for_its_drains_ages_without_a_ledger_part(lab: Lab) -> None:
    wanted, tenant = need("c", 1), need("d", 1, types("std"), priority=100)
    lab.have(configured("v", "d", bought_for=tenant))
    lab.want(wanted, tenant)

    for age in range(1, 13):
        result = lab.step(Dwell(drain=12))
        seen = verdict(result, wanted)
        assert (seen.reason, seen.age) == (Reason.PREEMPTION_PENDING, age)
        assert ("c", wanted.profile.fingerprint) not in result.carried.ledger
    seen = verdict(lab.step(), wanted)
    assert (seen.satisfied, seen.age) == (True, 0)


@rule("engine.L11", "ruling.R3")
def test_too_few_machines_in_all_is_insufficient_supply(lab: Lab) -> None:
    wanted, holder = need("c", 3), need("d", 1, priority=2000)
    lab.have(configured("m", "d", bought_for=holder), configured("n", "c", bought_for=wanted))
    lab.want(wanted, holder)

    seen = verdict(lab.cycle(), wanted)

    assert seen.reason is Reason.INSUFFICIENT_SUPPLY
    assert seen.wire_reason is Reason.PRIORITY_STARVED
    assert seen.unmet_detail == "insufficient_supply"


@rule("engine.L12")
def test_gang_whose_victims_drain_is_pending(lab: Lab) -> None:
    wanted, tenant = gang("c", 4), need("d", 7, priority=100)
    lab.have(
        many(4, configured, "a", "d", rack="A", bought_for=tenant),
        many(3, configured, "b", "d", rack="B", bought_for=tenant),
    )
    lab.want(wanted, tenant)

    results = lab.run(5, Dwell(drain=5))

    assert [verdict(r, wanted).reason for r in results] == [Reason.PREEMPTION_PENDING] * 5


@rule("engine.L12")
def test_need_whose_only_machine_drains_for_it_is_pending(lab: Lab) -> None:
    wanted = need("c", 1)
    lab.have_draining(draining("m", "d"), preempted_for=wanted, ends_in=10)
    lab.want(wanted)

    results = lab.run(4)

    assert claims(results[-1], wanted) == []
    assert [verdict(r, wanted).reason for r in results] == [Reason.PREEMPTION_PENDING] * 4


@rule("engine.L12")
def test_counted_drain_is_matching_supply(lab: Lab) -> None:
    wanted = need("c", 2)
    lab.have_draining(draining("m", "d"), ends_in=10)
    lab.want(wanted)

    assert verdict(lab.cycle(), wanted).reason is Reason.INSUFFICIENT_SUPPLY


@rule("engine.L13")
def test_ages_count_ticks_and_not_cycles(lab: Lab) -> None:
    unmet = need("c", 1, types("none"))
    lab.want(unmet)
    ages, ledger_ages = [], []
    for second in range(31):
        result = lab.cycle(tick=second % 10 == 0)
        ages.append(verdict(result, unmet).age)
        ledger_ages.append(result.report[0].age)
        lab.advance(1)

    assert ages == ledger_ages == [1] * 10 + [2] * 10 + [3] * 10 + [4]


@rule("engine.L13")
def test_part_that_returns_between_two_ticks_keeps_its_age(lab: Lab) -> None:
    unmet = need("c", 1, types("none"))
    lab.want(unmet)
    lab.cycle()
    lab.cycle()
    lab.report("c")
    assert lab.cycle(tick=False).report == ()

    lab.want(unmet)

    assert [lab.cycle(tick=tick).report[0].age for tick in (False, False, True)] == [2, 2, 3]


@rule("engine.L13")
def test_class_folds_at_the_third_fitting_tick(lab: Lab) -> None:
    lab.want(gang("c", 2))
    lab.cycle()
    lab.have(idle("big", size=2, rack="r"))
    folded = []
    for second in range(1, 32):
        result = lab.cycle(tick=second % 10 == 0)
        folded.append(result.rows[0].member_aggregate is not None)
        lab.advance(1)

    assert folded == [False] * 29 + [True] * 2


@rule("engine.L13")
def test_parking_ages_and_probes_count_ticks(lab: Lab) -> None:
    wanted = gang("c", 2)
    lab.want(wanted)
    lab.cycle(tick=False)
    parked = [verdict(lab.cycle(tick=i % 2 == 1), wanted).acquisition_parked for i in range(1, 80)]

    # Age 1 at once, 8 after the seventh tick (cycle 13); the probe at age 32 lasts until the tick after.
    assert [i for i, now in enumerate(parked, start=1) if now] == [*range(14, 62), *range(64, 80)]
