"""All that the benchmarks know of the engine's inside, in one place."""

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from unittest import mock

from bench.fleets import FleetShape
from bigfleet.engine import domains
from bigfleet.engine.assign import Acquisition
from bigfleet.engine.cells import MachineClass
from bigfleet.engine.cycle import CycleInputs, Engine
from bigfleet.engine.matching import Matcher
from bigfleet.engine.plan import Outcome
from bigfleet_base.model import Machine, MachineState


def loaded(shape: FleetShape) -> Engine:
    """An engine with all demand and all machines of a shape."""
    engine = Engine()
    demand(engine, shape)
    load(engine, shape.machines())
    return engine


def demand(engine: Engine, shape: FleetShape, now: int = 0) -> None:
    """Take the roll-ups of a shape. Labels that are asked for are known before machines come, so that classes
    are right from the start."""
    for cluster, rows in shape.rollups():
        engine.needs.apply_rollup(cluster, rows, now, guard=False)
    engine.inventory.ask(engine.needs.asked_keys())


def load(engine: Engine, machines: Iterable[Machine], now: int = 0) -> None:
    """Fill the inventory."""
    for machine in machines:
        engine.inventory.insert(machine, now)


def classes(engine: Engine) -> int:
    """Machines that no Need can tell apart count once, whatever their state."""
    cells = (cell for state in MachineState for cell in engine.inventory.cells(state))
    return len({cell.machine_class.number for cell in cells})


def full_result(engine: Engine, inputs: CycleInputs, *, warm: bool = False) -> Outcome:
    """What a pass over everything decides in the same place; the engine itself does not notice.

    Unless it is to be ``warm``, nothing has been matched before, as after a restart, and nothing that it
    matches is left for the cycle that is timed next.
    """
    known = engine._matcher
    if not warm:
        engine._matcher = Matcher(engine.inventory)
    try:
        return engine.full_pass(inputs)
    finally:
        engine._matcher = known


@contextmanager
def unexplained() -> Iterator[None]:
    """Inside, the engine decides the same and keeps nothing that only says why: the cost of the machine left,
    the domains that gangs did not get. (The supply of unmet Needs is counted for their reason anyway.)"""

    def says(answer: object) -> Callable[..., object]:
        return lambda *_: answer  # a Mock would take longer than what it stands for

    with (
        mock.patch.object(Acquisition, "_cheapest_left", says(None)),
        mock.patch.object(domains, "_coverage", says(())),
    ):
        yield


def explanation_bytes(outcome: Outcome) -> int:
    """What these three take. All of it belongs to Needs and to actions; a machine that stays where it is has
    nothing to explain."""
    parts = [part for each in outcome.verdicts for part in (each.supply, each.candidates, *each.candidates)]
    # One number for all machines of a kind that a Need gets.
    costs = {id(action.runner_up_cost): action.runner_up_cost for action in outcome.decided}
    return sum(sys.getsizeof(part) for part in (*parts, *costs.values()) if part is not None and part != ())


def reprice(engine: Engine, machine_id: str, price: float, now: int) -> None:
    """Change the price of a machine and of all that are offered as it is."""
    inventory = engine.inventory
    like = inventory.entry(machine_id).machine
    offer = (like.instance_type, like.zone, like.capacity_type, like.price_per_hour)
    alike = [
        found
        for state in MachineState
        for cell in inventory.cells(state)
        if offer == _offer(cell.machine_class)
        for found in cell.ids
    ]
    for found in alike:
        inventory.apply(replace(inventory.entry(found).machine, price_per_hour=price), now)


def _offer(of: MachineClass) -> tuple[str, str, int, float]:
    return (of.offer.instance_type, of.offer.zone, of.offer.capacity_type, of.offer.price_per_hour)
