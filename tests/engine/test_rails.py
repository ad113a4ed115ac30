"""Scenarios of release and the rails between decision and execution (engine.md §17, R)."""

import math
from collections import Counter
from dataclasses import replace

import pytest

from bigfleet_base.model import (
    CapacityType,
    InvalidMachineError,
    MachineState,
    Need,
    transition,
)
from bigfleet_base.model.lifecycle import Rpc
from tests.engine.dsl import (
    BARE_METAL,
    ON_DEMAND,
    RESERVED,
    SPOT,
    configured,
    gang,
    idle,
    many,
    need,
    speculative,
    types,
    vector,
)
from tests.engine.judge import NewJudge
from tests.engine.lab import Lab, actions, claims, kinds, targets, verdict
from tests.oracle.results import Action, Ingest, Kind
from tests.support.rules import rule

MINUTE = 60


def distinct(count: int) -> list[Need]:
    """That many rows of cluster c that do not aggregate."""
    return [need("c", 1, types(f"t{i:03}")) for i in range(count)]


@rule("engine.R1", "ruling.R6")
def test_on_demand_is_released_after_ten_minutes(lab: Lab) -> None:
    lab.have(idle("m", kind=ON_DEMAND))
    lab.advance(10 * MINUTE - 1)
    assert lab.cycle().decided == ()
    lab.advance(1)
    [action] = lab.cycle().decided
    assert (action.kind, action.machine, action.cluster, action.reason) == (
        Kind.DELETE,
        "m",
        "",
        "phase3.release",
    )


@rule("engine.R2", "ruling.R6")
def test_spot_is_released_after_a_minute(lab: Lab) -> None:
    lab.have(idle("m", kind=SPOT))
    lab.advance(59)
    assert lab.cycle().decided == ()
    lab.advance(1)
    assert targets(lab.cycle(), Kind.DELETE) == ["m"]


@rule("engine.R3", "ruling.R6")
@pytest.mark.parametrize("kind", [BARE_METAL, RESERVED, CapacityType.UNSPECIFIED])
def test_fixed_capacity_is_never_released(lab: Lab, kind: CapacityType) -> None:
    lab.have(idle("m", kind=kind))
    lab.advance(365 * 24 * 60 * MINUTE)
    assert lab.cycle().decided == ()


@rule("engine.R4")
def test_expired_machine_that_is_claimed_is_bootstrapped_only(lab: Lab) -> None:
    lab.have(idle("m", kind=SPOT))
    lab.advance(10 * MINUTE)
    lab.want(need("c", 1))
    assert kinds(lab.cycle()) == {"Bootstrap": 1}


@rule("engine.R5")
def test_field_merge_keeps_the_idle_clock(lab: Lab) -> None:
    lab.have(idle("m", kind=ON_DEMAND, price=1))
    lab.advance(9 * MINUTE)
    lab.judge.apply(replace(lab.machine("m"), price_per_hour=2.0), lab.now)
    lab.advance(1 * MINUTE)
    assert targets(lab.cycle(), Kind.DELETE) == ["m"]


@rule("engine.R6")
def test_restart_holds_for_the_full_time_again(lab: Lab, new_judge: NewJudge) -> None:
    lab.have(idle("m", kind=ON_DEMAND))
    lab.advance(9 * MINUTE)

    restarted = Lab(new_judge())
    restarted.now = lab.now
    restarted.have(lab.machine("m"))
    restarted.advance(1 * MINUTE)
    assert restarted.cycle().decided == ()
    restarted.advance(9 * MINUTE)
    assert targets(restarted.cycle(), Kind.DELETE) == ["m"]


@rule("engine.R7")
def test_surplus_is_released_once_and_never_bought_back(lab: Lab) -> None:
    lab.have(many(2, configured, "m", "c"), many(3, idle, "i", kind=ON_DEMAND))
    lab.want(need("c", 2))

    results = lab.run(150)

    assert sorted(targets(results)) == ["i-0", "i-1", "i-2"]
    assert kinds(results) == {"Delete": 3}


@rule("engine.R8")
def test_burst_is_given_back_and_the_fleet_goes_quiet(lab: Lab) -> None:
    lab.have(
        many(2, configured, "base", "c"),
        many(2, idle, "metal"),
        many(2, speculative, "cloud", kind=ON_DEMAND, price=1),
    )
    lab.want(need("c", 2))
    assert lab.run(3)[-1].decided == ()
    lab.want(need("c", 6))
    assert kinds(lab.until_quiet()) == {"Bootstrap": 4, "Provision": 2}

    lab.want(need("c", 2))
    results = lab.run(120)

    assert Counter(a.kind for a in actions(results)) == {Kind.RECLAIM: 4, Kind.DELETE: 2}
    assert sorted(targets(results, Kind.DELETE)) == ["cloud-0", "cloud-1"]
    # At equal price the last by id go: base-0 and base-1 stay, whatever metal there is.
    assert lab.machine("metal-0").state is MachineState.IDLE
    assert lab.machine("cloud-0").state is MachineState.SPECULATIVE
    assert actions(results[-50:]) == []


@rule("engine.R9")
def test_cap_lets_a_small_cluster_lose_one_machine(lab: Lab) -> None:
    lab.set(reclaim_cap_fraction=0.05)
    lab.have(many(5, configured, "m", "c"))
    lab.report("c")

    result = lab.cycle()

    assert len(result.decided) == 5
    assert [a.kind for a in result.rails.executed] == [Kind.RECLAIM]
    assert result.rails.capped == 4
    assert not result.rails.follow_up


@rule("engine.R10", "ruling.R3")
@pytest.mark.parametrize(("seconds", "more"), [(10, 47), (5, 24)])
def test_cap_refills_by_time(lab: Lab, seconds: float, more: int) -> None:
    lab.set(reclaim_cap_fraction=0.05)
    lab.have(configured(f"m-{i:03}", "c", price=i) for i in range(1000))
    lab.report("c")

    first = lab.cycle().rails.executed
    assert [a.machine for a in first] == [f"m-{i:03}" for i in range(999, 949, -1)]
    for action in first:
        lab.start(action)
    lab.advance(seconds)

    assert len(lab.cycle().rails.executed) == more


@rule("engine.R10", "ruling.R3")
def test_cap_fraction_is_the_decimal_as_written(lab: Lab) -> None:
    lab.set(reclaim_cap_fraction=0.29)
    lab.have(many(100, configured, "m", "c"))
    lab.report("c")

    assert len(lab.cycle().rails.executed) == 29


@rule("engine.R11")
def test_cap_leaves_preemptions_alone(lab: Lab) -> None:
    lab.set(reclaim_cap_fraction=0.05)
    tenant = need("d", 5, types("v"), priority=100)
    lab.have(
        many(5, configured, "v", "d", type="v", bought_for=tenant),
        many(15, configured, "x", "d", type="x", stamp=100),
    )
    lab.want(need("c", 12), tenant)

    result = lab.cycle()

    assert Counter(a.reason for a in result.rails.executed) == {"phase2.excess": 12, "phase3.excess": 1}
    assert result.rails.capped == 2


@rule("engine.R12")
def test_third_suspicious_rollup_is_accepted(lab: Lab) -> None:
    lab.set(guard=True)
    assert lab.report("c", *distinct(100)) is Ingest.ACCEPTED
    assert [lab.report("c", *distinct(9)) for _ in range(3)] == [Ingest.HELD, Ingest.HELD, Ingest.ACCEPTED]
    assert len(lab.judge.demand()) == 9


@rule("engine.R13")
def test_plausible_rollup_resets_the_guard(lab: Lab) -> None:
    lab.set(guard=True)
    lab.report("c", *distinct(100))
    assert lab.report("c", *distinct(9)) is Ingest.HELD
    assert len(lab.judge.demand()) == 100
    assert lab.report("c", *distinct(50)) is Ingest.ACCEPTED
    assert [lab.report("c", *distinct(4)) for _ in range(3)] == [Ingest.HELD, Ingest.HELD, Ingest.ACCEPTED]


@rule("engine.R14")
def test_ten_per_cent_is_not_suspicious(lab: Lab) -> None:
    lab.set(guard=True)
    lab.report("c", *distinct(100))
    assert lab.report("c", *distinct(10)) is Ingest.ACCEPTED


@rule("engine.R15")
def test_guard_does_not_watch_small_clusters(lab: Lab) -> None:
    lab.set(guard=True)
    lab.report("c", *distinct(9))
    assert lab.report("c") is Ingest.ACCEPTED


@rule("engine.R16")
def test_first_rollup_after_a_restart_is_accepted_and_the_cap_bounds_the_drain(lab: Lab) -> None:
    lab.set(guard=True, reclaim_cap_fraction=0.05)
    lab.have(many(40, configured, "m", "c"))
    assert lab.report("c") is Ingest.ACCEPTED
    assert len(lab.cycle().rails.executed) == 2


@rule("engine.R17")
def test_pause_decides_everything_and_executes_nothing(lab: Lab) -> None:
    lab.set(paused=True, dry_run=True, reclaim_cap_fraction=0.05, max_actions_per_cycle=1)
    short = need("e", 2, types("none"))
    lab.have(idle("i"), many(4, configured, "m", "d"), idle("old", kind=SPOT, type="old"))
    lab.advance(60)
    lab.report("d")
    lab.want(need("c", 1, types("std")), short)

    for cycle in range(1, 4):
        result = lab.step()
        assert kinds(result) == {"Bootstrap": 1, "Reclaim": 4, "Delete": 1}
        assert result.rails.executed == ()
        assert (result.rails.suppressed, result.rails.dry_run) == (6, 0)
        assert (result.rails.capped, result.rails.deferred, result.rails.follow_up) == (0, 0, False)
        assert verdict(result, short).age == cycle
        assert [s.age for s in result.report] == [cycle]

    lab.set(paused=False)
    assert lab.cycle().rails.dry_run == 6


@rule("engine.R18")
@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"price_per_hour": -1.0}, "price"),
        ({"price_per_hour": math.nan}, "price"),
        ({"interruption_probability": 1.5}, "interruption_probability"),
        ({"interruption_probability": math.nan}, "interruption_probability"),
    ],
)
def test_bad_record_is_rejected_and_the_last_good_one_stays(
    lab: Lab, change: dict[str, float], reason: str
) -> None:
    good = idle("m", price=1)
    lab.have(good)

    with pytest.raises(InvalidMachineError) as refused:
        lab.judge.apply(replace(good, **change), lab.now)  # type: ignore[arg-type]  # both fields are floats

    assert refused.value.defect == reason
    assert lab.machine("m") == good


@rule("engine.R19", "ruling.R16")
def test_delete_that_is_not_supported_is_never_tried_again(lab: Lab) -> None:
    lab.have(idle("m", kind=ON_DEMAND), idle("spot", kind=SPOT, type="spot"))
    lab.advance(10 * MINUTE)
    refused = next(a for a in lab.cycle().decided if a.machine == "m")
    lab.start(refused)
    lab.judge.apply(transition(lab.machine("m"), MachineState.IDLE), lab.now, delete_unsupported=True)
    lab.have(idle("twin", kind=ON_DEMAND))

    lab.advance(365 * 24 * 60 * MINUTE)

    # The answer speaks for the provider and capacity type, not for spot.
    assert targets(lab.cycle(), Kind.DELETE) == ["spot"]
    lab.want(need("c", 2, types("std")))
    assert targets(lab.cycle(), Kind.BOOTSTRAP) == ["m", "twin"]


@rule("engine.R20", "ruling.R3")
def test_action_limit_is_shared_by_kinds_in_turn(lab: Lab) -> None:
    lab.set(max_actions_per_cycle=4)
    tenant = need("d", 1, types("v"), priority=100)
    lab.have(
        many(8, idle, "i"),
        configured("v", "d", type="v", bought_for=tenant),
        idle("old", kind=SPOT, type="old"),
    )
    lab.advance(60)
    lab.want(need("c", 9, types("std", "v")), tenant)

    result = lab.cycle()

    assert kinds(result) == {"Bootstrap": 8, "Preempt": 1, "Delete": 1}
    assert [a.machine for a in result.rails.executed] == ["i-0", "i-1", "v", "old"]
    assert (result.rails.deferred, result.rails.follow_up) == (6, True)


@rule("engine.R20", "ruling.R3")
def test_full_queue_cuts_the_same_way_without_a_follow_up(lab: Lab) -> None:
    lab.have(many(4, idle, "i"), many(2, configured, "m", "d"))
    lab.report("d")
    lab.want(need("c", 4))

    result = lab.cycle(free_places=3)

    assert [a.machine for a in result.rails.executed] == ["i-0", "i-1", "m-1"]
    assert (result.rails.dropped, result.rails.deferred, result.rails.follow_up) == (3, 0, False)


@rule("engine.R21")
def test_queued_reclaim_does_not_use_the_cap_again(lab: Lab) -> None:
    lab.set(reclaim_cap_fraction=0.05)
    lab.have(configured(f"m-{i:02}", "c", price=i) for i in range(20))
    lab.want(need("c", 15))
    [first] = lab.cycle().rails.executed
    lab.advance()

    result = lab.cycle(pending=frozenset({first.machine}))

    assert first.machine == "m-19"
    assert [a.machine for a in result.rails.executed] == ["m-18"]
    assert result.rails.deduped == 1


@rule("engine.R22", "ruling.R3")
def test_guard_looks_at_quantities_as_well_as_rows(lab: Lab) -> None:
    lab.set(guard=True)

    def demand(cpu: str, gpu: str) -> list[Need]:
        return [need("c", vector(cpu=cpu, gpu=gpu), types(f"t{i}")) for i in range(20)]

    lab.report("c", *demand("10", "1"))
    assert lab.report("c", *demand("999m", "99m")) is Ingest.HELD
    assert lab.report("c", *demand("10", "0")) is Ingest.ACCEPTED


@rule("engine.R23", "ruling.R3")
def test_machines_with_an_action_queued_do_not_use_the_limit(lab: Lab) -> None:
    lab.set(max_actions_per_cycle=2)
    lab.have(many(4, idle, "i"))
    lab.want(need("c", 4))

    result = lab.cycle(pending=frozenset({"i-0", "i-1"}))

    assert [a.machine for a in result.rails.executed] == ["i-2", "i-3"]
    assert (result.rails.deduped, result.rails.follow_up) == (2, False)


@rule("engine.R24")
def test_machines_held_off_for_acquisition_are_passed_over(lab: Lab) -> None:
    lab.have(
        idle("i-cheap", price=1),
        idle("i-next", price=2),
        speculative("s-cheap", price=1),
        speculative("s-next", price=2),
    )
    lab.want(need("c", 2))
    held = frozenset({("i-cheap", Rpc.CONFIGURE), ("s-cheap", Rpc.CREATE)})

    assert targets(lab.cycle(held_off=held)) == ["i-next", "s-next"]


@rule("engine.R24")
def test_machines_held_off_for_drain_are_neither_victim_nor_excess_but_still_credited(lab: Lab) -> None:
    tenant = need("d", 3, priority=100)
    lab.have(
        many(3, configured, "v", "d", bought_for=tenant),
        many(2, configured, "x", "e", type="x", stamp=1),
    )
    lab.report("e")
    lab.want(need("c", 1, types("std")), tenant)
    held = frozenset({("v-0", Rpc.DRAIN), ("x-0", Rpc.DRAIN)})

    result = lab.cycle(held_off=held)

    assert targets(result, Kind.PREEMPT) == ["v-1"]
    assert targets(result, Kind.RECLAIM) == ["x-1"]
    assert "v-0" in claims(result, tenant)


@rule("engine.R24")
def test_gang_counts_on_no_machine_held_off(lab: Lab) -> None:
    wanted, tenant = gang("c", 2), need("d", 4, priority=100)
    lab.have(
        many(2, configured, "a", "d", rack="A", bought_for=tenant),
        many(2, configured, "b", "d", rack="B", bought_for=tenant),
    )
    lab.want(wanted, tenant)

    result = lab.cycle(held_off=frozenset({("a-0", Rpc.DRAIN)}))

    assert verdict(result, wanted).same_domain == "B"
    assert targets(result) == ["b-0", "b-1"]


@rule("engine.R24")
def test_machine_held_off_for_delete_may_still_be_bootstrapped(lab: Lab) -> None:
    lab.have(idle("m", kind=SPOT), idle("z-other", kind=SPOT))
    lab.advance(60)
    held = frozenset({("m", Rpc.DELETE)})
    assert targets(lab.cycle(held_off=held), Kind.DELETE) == ["z-other"]

    lab.want(need("c", 1))
    assert targets(lab.cycle(held_off=held), Kind.BOOTSTRAP) == ["m"]


@rule("engine.R9")
def test_only_reclaims_that_pass_the_limit_are_charged(lab: Lab) -> None:
    lab.set(reclaim_cap_fraction=0.1, max_actions_per_cycle=3)
    lab.have(many(50, configured, "m", "c"))
    lab.report("c")

    def executed() -> tuple[Action, ...]:
        return lab.cycle().rails.executed

    # A load of 5: the limit takes 3 of them now and leaves 2 tokens for a cycle at the same moment.
    assert [len(executed()), len(executed()), len(executed())] == [3, 2, 0]
