"""Scenarios of strict topology spread (engine.md §17, P)."""

import math
from collections import Counter

from tests.engine.dsl import (
    ON_DEMAND,
    SPOT,
    configured,
    gang,
    idle,
    lenient_zones,
    many,
    need,
    speculative,
    strict_zones,
    units,
    zones,
)
from tests.engine.lab import Lab, claims, targets, verdict
from tests.oracle.results import CycleResult, Kind, Reason
from tests.support.rules import rule


def by_zone(result: CycleResult, machine_ids: list[str]) -> dict[str, int]:
    return dict(Counter(result.machines[i].zone for i in machine_ids))


@rule("engine.P1")
def test_three_equal_zones_share_evenly(lab: Lab) -> None:
    lab.have(*(many(4, idle, zone, zone=zone) for zone in "abc"))
    lab.want(need("c", 6, strict_zones()))

    result = lab.cycle()

    assert by_zone(result, targets(result)) == {"a": 2, "b": 2, "c": 2}


@rule("engine.I15")
def test_machines_of_a_domain_that_tie_are_taken_by_id_whatever_their_type(lab: Lab) -> None:
    lab.have(
        *(idle(f"m-{i}", type="even", zone="a") for i in (0, 2, 4)),
        *(idle(f"m-{i}", type="odd", zone="a") for i in (1, 3, 5)),
    )
    lab.want(need("c", 4, strict_zones()))

    assert targets(lab.cycle()) == ["m-0", "m-1", "m-2", "m-3"]


@rule("engine.P2", "ruling.R3")
def test_smallest_zone_limits_the_others(lab: Lab) -> None:
    wanted = need("c", 6, strict_zones())
    lab.have(many(1, idle, "a", zone="a"), many(5, idle, "b", zone="b"), many(5, idle, "c", zone="c"))
    lab.want(wanted)

    result = lab.cycle()

    assert by_zone(result, targets(result)) == {"a": 1, "b": 2, "c": 2}
    seen = verdict(result, wanted)
    assert seen.deficit == units(1)
    assert seen.reason is Reason.SPREAD_UNSATISFIABLE
    assert seen.wire_reason is Reason.TOPOLOGY_UNSATISFIABLE
    assert seen.unmet_detail == "spread"


@rule("engine.P3")
def test_wider_skew_admits_a_difference_of_two(lab: Lab) -> None:
    lab.have(many(5, idle, "a", zone="a", price=1), many(5, idle, "b", zone="b", price=2))
    lab.want(need("c", 8, strict_zones(2)))

    result = lab.cycle()

    assert by_zone(result, targets(result)) == {"a": 5, "b": 3}


@rule("engine.P4")
def test_lenient_spread_is_never_enforced(lab: Lab) -> None:
    lab.have(many(6, idle, "a", zone="a", price=1), many(2, idle, "b", zone="b", price=9))
    lab.want(need("c", 4, lenient_zones()))

    result = lab.cycle()

    assert by_zone(result, targets(result)) == {"a": 4}


@rule("engine.P5")
def test_strict_spread_beats_price(lab: Lab) -> None:
    lab.have(many(3, idle, "a", zone="a", price=1), many(3, idle, "b", zone="b", price=9))
    lab.want(need("c", 4, strict_zones()))

    result = lab.cycle()

    assert by_zone(result, targets(result)) == {"a": 2, "b": 2}


@rule("engine.P6")
def test_same_switches_spread_off(lab: Lab) -> None:
    lab.have(many(3, idle, "a", zone="a", rack="A"), many(3, idle, "b", zone="b", rack="B"))
    lab.want(gang("c", 3, strict_zones()))

    result = lab.cycle()

    assert by_zone(result, targets(result)) == {"a": 3}


@rule("engine.P7", "ruling.R3")
def test_bound_machines_count_in_the_skew(lab: Lab) -> None:
    lab.have(
        many(2, configured, "bound", "c", zone="a"),
        many(3, idle, "a", zone="a", price=1),
        many(3, idle, "b", zone="b", price=2),
    )
    lab.want(need("c", 4, strict_zones()))

    assert targets(lab.cycle(), Kind.BOOTSTRAP) == ["b-0", "b-1"]


@rule("engine.P8", "ruling.R3")
def test_counts_carry_over_from_idle_to_speculative(lab: Lab) -> None:
    lab.have(
        many(1, idle, "i", zone="a"),
        many(3, speculative, "a", zone="a", price=1),
        many(3, speculative, "b", zone="b", price=2),
    )
    lab.want(need("c", 4, strict_zones()))

    result = lab.cycle()

    assert by_zone(result, targets(result)) == {"a": 2, "b": 2}


@rule("engine.P9", "ruling.R3")
def test_zone_full_of_another_clusters_machines_is_no_domain(lab: Lab) -> None:
    other = need("d", 3)
    lab.have(
        many(3, idle, "a", zone="a"),
        many(3, idle, "b", zone="b"),
        many(3, configured, "c", "d", zone="c", bought_for=other),
    )
    lab.want(need("c", 6, strict_zones()), other)

    result = lab.cycle()

    assert by_zone(result, targets(result)) == {"a": 3, "b": 3}


@rule("engine.P10")
def test_heads_compare_by_effective_cost(lab: Lab) -> None:
    lab.have(
        idle("spot", zone="a", price=1, p=0.1, kind=SPOT),
        idle("steady", zone="b", price=3, kind=ON_DEMAND),
    )
    lab.want(need("c", 1, strict_zones(), interruption=64))

    assert targets(lab.cycle()) == ["steady"]


@rule("engine.P11")
def test_own_machine_is_the_first_head(lab: Lab) -> None:
    spread = need("c", 1, strict_zones(), priority=2000)
    pinned = need("c", 1, zones("b"))
    lab.have(
        idle("own-a", zone="a", price=3, bought_for=spread),
        idle("own-b", zone="b", price=1, bought_for=pinned),
        many(2, speculative, "s", zone="b"),
    )
    lab.want(spread, pinned)

    result = lab.cycle()

    assert (claims(result, spread), claims(result, pinned)) == (["own-a"], ["own-b"])


@rule("engine.P11", "engine.O9")
def test_own_machine_that_the_spread_kept_out_is_none_of_the_others_of_infinite_cost(lab: Lab) -> None:
    pinned = need("c", 3, strict_zones(), interruption=math.inf)
    risky = many(2, idle, "a", zone="a", kind=SPOT, p=0.1, price=1, bought_for=pinned)
    lab.have(risky, speculative("b-0", zone="b", kind=ON_DEMAND, price=3))
    lab.want(pinned)

    # When b-0 has made room in zone a, the turn of the Need's own is over.
    assert targets(lab.cycle()) == ["a-0", "b-0"]
