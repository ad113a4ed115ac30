"""Random fleets of hundreds of machines, many of one kind.

The small fleets of ``differential`` never reach the sizes from which on the engine goes another way to the
same answer: merging instead of sorting, a dict instead of a list. Here are fleets that do, and an engine for
which every number is a large one.
"""

import random
from collections.abc import Iterator
from contextlib import ExitStack
from unittest import mock

import pytest

from bigfleet.engine import cells, domains, matching, plan, stock, supply, turn
from tests.engine.differential import first_difference
from tests.engine.fleets import HUGE, Description, generate
from tests.support.rules import rule

_SIZES = (
    (turn, "_NEAR"),
    (stock, "_FEW_OF_MANY"),
    (cells, "LARGE"),
    (cells, "_MANY"),
    (cells, "_SMALL"),
    (cells, "_SORTING"),
    (domains, "_MOST_FREES"),
    (domains, "_MOST_KNOWN"),
    (domains, "_SORTING"),
    (matching, "_SORTING"),
    (plan, "_FEW"),
    (supply, "_MOST_OFFERS"),
    (supply, "_MOST_SHELVES"),
)


@pytest.fixture(params=["as-it-is", "all-is-large"])
def _sizes(request: pytest.FixtureRequest) -> Iterator[None]:
    with ExitStack() as patched:
        for module, name in _SIZES if request.param == "all-is-large" else ():
            patched.enter_context(mock.patch.object(module, name, 2))
        yield


@rule("engine.I1", "engine.I15")
@pytest.mark.usefixtures("_sizes")
@pytest.mark.timeout(1800)
def test_crowds_are_decided_as_by_the_oracle(full_size: bool) -> None:
    for seed in range(2000 if full_size else 100):
        difference = first_difference(_crowded(generate(seed), random.Random(seed)))
        assert difference is None, f"seed {seed} differs in {difference}"


def _crowded(fleet: Description, rng: random.Random) -> Description:
    """The fleet with up to twenty copies of each machine, their ids in a row or mixed with those of others,
    and with Needs that want so many times as much."""
    most, in_a_row = rng.choice([3, 8, 20]), rng.random() < 0.5
    steps = fleet["steps"][:6]
    kinds = [*fleet["machines"], *(machine for step in steps for machine in step["appear"])]
    names = {
        kind["id"]: [
            f"{kind['id']}-{copy:02}" if in_a_row else f"{copy:02}-{kind['id']}"
            for copy in range(rng.randint(1, most))
        ]
        for kind in kinds
    }

    def copies(machines: list[Description]) -> list[Description]:
        return [{**machine, "id": name} for machine in machines for name in names[machine["id"]]]

    def some(machine_ids: list[str]) -> list[str]:
        return [name for machine_id in machine_ids for name in names[machine_id] if rng.random() < 0.5]

    return {
        **fleet,
        "needs": [_times(need, rng.randint(1, most)) for need in fleet["needs"]],
        "machines": copies(fleet["machines"]),
        "steps": [
            {
                **step,
                "appear": copies(step["appear"]),
                "vanish": some(step["vanish"]),
                "held_off": [
                    [name, rpc] for machine_id, rpc in step["held_off"] for name in some([machine_id])
                ],
            }
            for step in steps
        ],
    }


def _times(need: Description, times: int) -> Description:
    # More than HUGE would be refused at the wire.
    aggregate = {name: min(HUGE, amount * times) for name, amount in need["aggregate"].items()}
    return {**need, "aggregate": aggregate}
