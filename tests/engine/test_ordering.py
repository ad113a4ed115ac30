"""Scenarios of ordering, contention and cost (engine.md §17, O)."""

import math

import pytest

from tests.engine.dsl import (
    ON_DEMAND,
    SPOT,
    configured,
    draining,
    idle,
    many,
    need,
    speculative,
    types,
    units,
)
from tests.engine.lab import Lab, claims, targets, verdict
from tests.oracle.results import Kind, Reason
from tests.support.rules import rule


@rule("engine.O1")
def test_higher_priority_gets_the_only_machine(lab: Lab) -> None:
    high, low = need("a", 1, priority=2_000_000), need("z", 1, priority=1_000_000)
    lab.have(idle("m"))
    lab.want(low)
    lab.advance()
    lab.want(high)

    result = lab.cycle()

    assert [(a.cluster, a.machine) for a in result.decided] == [("a", "m")]
    starved = verdict(result, low)
    assert starved.reason is Reason.PRIORITY_STARVED
    assert starved.matching_supply is not None and starved.matching_supply.idle == 1


@rule("engine.O2", "ruling.R5")
def test_larger_interruption_bucket_wins_then_the_need_first_seen(lab: Lab) -> None:
    lab.have(idle("m"))
    lab.want(need("a", 1, interruption=4))
    lab.advance()
    lab.want(need("z", 1, interruption=8))
    assert [a.cluster for a in lab.cycle().decided] == ["z"]

    lab.report("a")
    lab.report("z")
    lab.advance()
    lab.want(need("z", 1))
    lab.advance()
    lab.want(need("a", 1))
    assert [a.cluster for a in lab.cycle().decided] == ["z"]


@rule("engine.O3")
def test_idle_comes_before_cheaper_speculative(lab: Lab) -> None:
    lab.have(idle("i", price=5), speculative("s", price=1))
    lab.want(need("c", 1))

    assert targets(lab.cycle()) == ["i"]


@rule("engine.O4")
@pytest.mark.parametrize(("bucket", "chosen"), [(64, "on-demand"), (0, "spot")])
def test_speculative_is_bought_by_effective_cost(lab: Lab, bucket: float, chosen: str) -> None:
    lab.have(
        speculative("spot", price=1, p=0.1, kind=SPOT), speculative("on-demand", price=3, kind=ON_DEMAND)
    )
    lab.want(need("c", 1, interruption=bucket))

    assert targets(lab.cycle(), Kind.PROVISION) == [chosen]


@rule("engine.O5", "ruling.R3")
def test_pinned_work_costs_the_price_of_a_machine_that_is_never_interrupted(lab: Lab) -> None:
    lab.have(
        speculative("a-spot", price=0.1, p=0.01, kind=SPOT),
        speculative("b-spot", price=0.05, p=0.01, kind=SPOT),
        speculative("on-demand", price=3, kind=ON_DEMAND),
    )
    lab.want(need("c", 3, interruption=math.inf))

    # A NaN would leave the order to chance; of two infinite costs the lower price goes first.
    assert targets(lab.cycle()) == ["on-demand", "b-spot", "a-spot"]


@rule("engine.O6")
def test_as_many_machines_as_needs_serve_every_need(lab: Lab) -> None:
    needs = [need(f"c{i:02}", 1) for i in range(20)]
    lab.have(many(20, idle, "m"))
    lab.want(*needs)

    result = lab.cycle()

    assert all(verdict(result, n).satisfied for n in needs)
    assert len(set(targets(result, Kind.BOOTSTRAP))) == 20


@rule("engine.O7")
def test_higher_priority_credits_bound_supply_first(lab: Lab) -> None:
    high, low = need("c", 2, priority=2000), need("c", 2, priority=1000)
    lab.have(many(3, configured, "m", "c"))
    lab.want(low, high)

    result = lab.cycle()

    assert claims(result, high) == ["m-0", "m-1"]
    assert claims(result, low) == ["m-2"]
    assert verdict(result, low).deficit == units(1)


@rule("engine.O8")
def test_no_lower_priority_is_served_while_a_matching_higher_one_is_not(lab: Lab) -> None:
    kinds_wanted = (types("a"), types("a", "b"), types("b"))
    needs = [
        need(f"c{i:04}", 1, kinds_wanted[i % 3], priority=(100, 1000, 1_000_000)[i * 7 // 3 % 3])
        for i in range(1000)
    ]
    lab.have(many(120, idle, "a", type="a"), many(150, idle, "b", type="b"))
    lab.want(*needs)

    result = lab.cycle()

    served = [n for n in needs if verdict(result, n).satisfied]
    unserved = [n for n in needs if not verdict(result, n).satisfied]
    assert len(served) == 270
    for requirement in kinds_wanted:
        of_this = [n.profile.priority for n in unserved if n.profile.requirements == (requirement,)]
        machines = {i for n in served for i in claims(result, n) if i[0] in requirement.values}
        holders = [n.profile.priority for n in served if set(claims(result, n)) & machines]
        assert min(holders) >= max(of_this)


@rule("engine.O9", "ruling.R3")
@pytest.mark.parametrize(("bucket", "chosen"), [(math.inf, "on-demand"), (64, "spot")])
def test_pinned_work_avoids_interruptible_idle_while_finite_cost_is_left(
    lab: Lab, bucket: float, chosen: str
) -> None:
    lab.have(idle("spot", price=1, p=0.05, kind=SPOT), speculative("on-demand", price=3, kind=ON_DEMAND))
    lab.want(need("c", 1, interruption=bucket))

    assert targets(lab.cycle()) == [chosen]


@rule("engine.O10", "ruling.R3")
def test_idle_is_taken_by_effective_cost_then_by_last_value(lab: Lab) -> None:
    lab.have(idle("spot", price=1, p=0.1, kind=SPOT), idle("z-on-demand", price=3, kind=ON_DEMAND))
    lab.want(need("c", 1, interruption=64))
    assert targets(lab.cycle()) == ["z-on-demand"]

    for machine_id, value in (("a-dear", 5000), ("b-free", 0)):
        lab.have_draining(draining(machine_id, "d", type="x", reclamation=value), ends_in=0)
        lab.finish(machine_id)
    lab.want(need("c", 1, types("x")))
    assert targets(lab.cycle(), Kind.BOOTSTRAP) == ["b-free"]
