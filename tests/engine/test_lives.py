"""Fleets that live long.

What is kept from cycle to cycle goes wrong late, if at all: when a gang has folded, or a Need is back for
which a machine was meant. The histories of ``differential`` are short; these go on for dozens of cycles, each
decided by changes, by everything and by the oracle. What such histories have found stands below as cases.
"""

import pytest

from bigfleet_base.model import MachineState, transition
from tests.engine.differential import first_difference
from tests.engine.dsl import configured, creating, gang, idle, need
from tests.engine.fleets import generate_life
from tests.engine.lab import Lab, claims, targets
from tests.oracle.normalise import folded_profile
from tests.oracle.results import CycleResult
from tests.support.rules import rule


@rule("engine.I1", "engine.I15")
@pytest.mark.timeout(3600)
def test_fleets_that_live_long_are_decided_as_by_the_oracle(full_size: bool) -> None:
    for seed in range(5000 if full_size else 60):
        difference = first_difference(generate_life(seed))
        assert difference is None, f"seed {seed} differs in {difference}"


@rule("engine.G6", "engine.I15")
def test_gang_that_has_folded_hears_of_machines_among_ties_it_has_nothing_of(lab: Lab) -> None:
    lab.want(gang("c", 1))
    lab.cycle()
    lab.have(configured("1", "c", rack="r", zone="x"), configured("2", "c", rack="r", zone="y"))
    fitting = [lab.cycle() for _ in range(3)]
    assert [_is_folded(result) for result in fitting] == [False, False, True]

    lab.have(configured("0", "c", rack="r", zone="y"))

    assert lab.cycle().phase1.needs[0].claims == ("0",)


@rule("engine.G6", "engine.S11")
def test_gang_hears_that_another_of_its_folded_name_leaves_it_what_is_on_its_way_elsewhere(lab: Lab) -> None:
    one, other = (gang("c", 2, group=group) for group in ("g1", "g2"))
    plain = need("c", 2, *folded_profile(one.profile).requirements)
    lab.have(idle("big", rack="r0", size=2))
    lab.want(one, other)
    assert _is_folded(lab.cycle())
    lab.judge.remove("big")
    lab.have(
        *(configured(i, "c", rack="r1") for i in ("p", "q")),
        *(creating(i, rack="r2", bought_for=plain) for i in ("x", "y")),
    )
    apart = lab.cycle()
    assert (set(claims(apart, one)), set(claims(apart, other))) == ({"x", "y"}, {"p", "q"})

    lab.want(other)
    alone = lab.cycle()

    assert (set(claims(alone, other)), targets(alone)) == ({"x", "y"}, ["q", "p"])


@rule("engine.S20", "ruling.R15")
def test_gang_hears_that_a_machine_that_was_nobodys_fails_as_its_need_comes_back(lab: Lab) -> None:
    """With it r1 has one too many, so that r2 is the closer fit."""
    waiting, gone = gang("c", 2), need("other", 1)
    lab.have(
        *(configured(i, "c", rack="r2") for i in ("p", "q")),
        *(creating(i, rack="r1", price=1) for i in ("x", "y")),
        creating("z", rack="r1", bought_for=gone),
    )
    lab.want(waiting)
    lab.report("other")
    assert set(claims(lab.cycle(), waiting)) == {"p", "q"}

    lab.want(gone)
    lab.judge.apply(transition(lab.machine("z"), MachineState.FAILED, last_error="no room"), lab.now)

    assert set(claims(lab.cycle(), waiting)) == {"x", "y"}


def _is_folded(result: CycleResult) -> bool:
    return result.rows[0].need.profile.same is None
