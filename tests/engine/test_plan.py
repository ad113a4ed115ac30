"""A plan that is kept from cycle to cycle decides as one that is made anew.

The engines of the judges compare the two in every cycle, and ``EngineJudge`` fails where they differ: many of
these tests only have to lead the way to where they might.
"""

import random
from collections.abc import Iterable
from dataclasses import replace

import pytest

from bigfleet.engine.cycle import CycleInputs, Engine
from bigfleet.engine.inventory import Changes
from bigfleet.engine.needs import Arrived
from bigfleet.engine.plan import Plan
from bigfleet_base.model import Machine
from tests.engine.adapter import EngineJudge
from tests.engine.dsl import idle, many, need
from tests.engine.fleets import generate, play
from tests.engine.lab import START
from tests.oracle.results import SECOND
from tests.support.rules import rule


class _Persistent(Engine):
    """Goes by what changed even where so much has that it would rather look at everything, as a small fleet's
    engine does in most cycles."""

    def _is_upheaval(self, plan: Plan, arrived: Arrived, changes: Changes) -> bool:
        return changes.everything or plan.supply.reported != self.needs.reported


@rule("engine.I15")
@pytest.mark.timeout(1800)
def test_random_fleets_are_decided_by_changes_as_by_everything(full_size: bool) -> None:
    for seed in range(20_000 if full_size else 300):
        judge, rng = EngineJudge(), random.Random(seed)
        judge.engine = _Persistent(full_every=1)
        for step in play(judge, generate(seed)):
            for _ in range(rng.randint(0, 2)):
                # The world stands still; only the clock and what the shard tells go on.
                later = replace(
                    step.inputs, now=step.inputs.now + rng.randint(0, 60) * SECOND, tick=rng.random() < 0.5
                )
                judge.cycle(rng.choice([later, replace(later, blocked=frozenset(), no_session=frozenset())]), step.options)


def test_plan_that_went_astray_is_found_out_in_time() -> None:
    engine = _engine(many(3, idle, "m"), full_every=3)
    engine.needs.apply_rollup("c", [need("c", 2)], START)
    engine.run(CycleInputs(now=START))
    engine.inventory.remove("m-0")
    engine.inventory.take_changes()

    results = [engine.run(CycleInputs(now=START)) for _ in range(4)]

    assert [result.mismatch is None for result in results] == [True, True, False, True]
    assert [a.machine_id for a in results[1].decided] == ["m-0", "m-1"]
    for right in results[2:]:
        assert [a.machine_id for a in right.decided] == ["m-1", "m-2"]


def _engine(*machines: Machine | Iterable[Machine], full_every: int = 1) -> Engine:
    engine = Engine(full_every=full_every)
    for item in machines:
        for machine in [item] if isinstance(item, Machine) else item:
            engine.inventory.insert(machine, START)
    return engine
