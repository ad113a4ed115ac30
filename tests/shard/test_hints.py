"""Hints of available capacity (shard.md §8.3)."""

from dataclasses import replace

from bigfleet.sim.operator import Habits
from bigfleet_base.model import MachineState
from bigfleet_base.model.frames import AvailableCapacity, Confidence
from tests.shard.lab import MINUTE, Lab, machine, machines, need, serving
from tests.support.rules import rule

S = MachineState
QUIET = Habits(rollup_interval=60 * MINUTE)
RULE = "shard.S7"


def _hints(lab: Lab, cluster: str) -> list[AvailableCapacity]:
    return lab.operators[cluster].frames(AvailableCapacity)


def test_unchanged_supply_is_told_once() -> None:
    lab = Lab([*serving(need("c1", 1), 1), *machines(5, prefix="i")])
    lab.operator("c1", need("c1", 1), habits=QUIET)
    lab.run(100)

    [hint] = _hints(lab, "c1")
    assert (hint.count, hint.confidence, hint.cost_per_hour) == (5, Confidence.HIGH, 1.0)
    assert hint.resources["cpu"] == 1000


def test_a_change_every_second_is_told_at_most_every_five_and_the_last_one_arrives() -> None:
    lab = Lab([*serving(need("c1", 1), 1), machine("x", price_per_hour=1.0)])
    operator = lab.operator("c1", need("c1", 1), habits=QUIET)
    lab.run(2)
    for n in range(20):
        lab.core.fleet.observe(replace(lab.machine("x"), price_per_hour=2.0 + n))
        operator.demand(need("c1", 1), need("c1", 0, priority=n))
        lab.run(1)
    lab.provider.put(lab.machine("x"))
    lab.run(15)

    told = [h for h in _hints(lab, "c1") if h.fingerprint == need("c1", 1).profile.fingerprint]
    assert len(told) <= 1 + 20 // 5 + 1
    assert told[-1].cost_per_hour == 21.0


def test_confidence_says_where_the_machines_would_come_from() -> None:
    low = need("c2", 1, priority=10)
    lab = Lab([machine("s", S.SPECULATIVE, instance_type="spec"), *serving(low, 1)])
    lab.operator("c2", low)
    lab.operator(
        "c1",
        need("c1", 0, kind="spec"),
        need("c1", 0, kind="small"),
        need("c1", 0, kind="none"),
        habits=QUIET,
    )
    lab.run(12)

    told = {h.requirements[0].values[0]: h.confidence for h in _hints(lab, "c1")}
    assert told == {"spec": Confidence.MEDIUM, "small": Confidence.LOW, "none": Confidence.NONE}


def test_supply_that_vanishes_is_told_once() -> None:
    lab = Lab([machine("x")])
    lab.operator("c1", need("c1", 0), habits=QUIET)
    lab.run(12)
    lab.provider.fail("x")
    lab.run(60)

    assert [h.confidence for h in _hints(lab, "c1")] == [Confidence.HIGH, Confidence.NONE]


def test_a_machine_too_small_for_the_largest_unit_does_not_count() -> None:
    big = replace(need("c1", 0), min_unit=need("c1", 3).aggregate, group="b")
    lab = Lab(machines(4))
    lab.operator("c1", need("c1", 0), big, habits=QUIET)
    lab.run(12)

    [hint] = _hints(lab, "c1")
    assert (hint.count, hint.resources["cpu"]) == (0, 3000)


@rule(RULE)
def test_a_reconnect_is_told_its_hints_again_and_others_are_not() -> None:
    lab = Lab(machines(2))
    one = lab.operator("c1", need("c1", 0), habits=QUIET)
    lab.operator("c2", need("c2", 0), habits=QUIET)
    lab.run(12)
    assert (len(_hints(lab, "c1")), len(_hints(lab, "c2"))) == (1, 1)
    one.disconnect(come_back_after=1_000_000_000)
    lab.run(30)

    assert (len(_hints(lab, "c1")), len(_hints(lab, "c2"))) == (2, 1)


def test_a_profile_that_left_and_came_back_is_told_again() -> None:
    lab = Lab(machines(2))
    operator = lab.operator("c1", need("c1", 0), habits=QUIET)
    lab.run(12)
    operator.demand(need("c1", 0, priority=5))
    lab.run(12)
    operator.demand(need("c1", 0))
    lab.run(12)

    prints = [h.fingerprint for h in _hints(lab, "c1")]
    assert prints == [
        need("c1", 0).profile.fingerprint,
        need("c1", 0, priority=5).profile.fingerprint,
        need("c1", 0).profile.fingerprint,
    ]
