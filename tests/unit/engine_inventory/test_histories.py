"""Whatever has happened to an inventory, it is what one would be that was given the same machines today."""

from dataclasses import replace
from itertools import islice
from typing import Any
from unittest.mock import patch

from hypothesis import given
from hypothesis import strategies as st

from bigfleet.engine import cells
from bigfleet.engine.cells import Call
from bigfleet.engine.inventory import Inventory
from bigfleet.engine.records import Entry, Sidecar
from bigfleet_base.model import CapacityType, HostRef, Preemptor
from bigfleet_base.model.lifecycle import EDGES, transition
from tests.unit.engine_inventory.fleet import S, entries, machine, rebuilt, view

NAMES = [f"m-{n}" for n in range(6)]
IDS = st.sampled_from(NAMES)
KINDS = st.sampled_from([0, 0, 2, 4, 6, 1])
"""Most are one offer with other labels, so that they meet in one cell while nobody asks for those."""
STATES = st.sampled_from([S.IDLE, S.IDLE, S.CONFIGURED, S.DRAINING, S.SPECULATIVE, S.FAILED])
STEPS = st.one_of(
    st.tuples(st.just("insert"), IDS, STATES, KINDS),
    st.tuples(st.just("move"), IDS, st.integers(0, 3), st.booleans()),
    st.tuples(st.just("adopt"), IDS, st.sampled_from([S.IDLE, S.DRAINING, S.SPECULATIVE]), KINDS),
    st.tuples(st.just("relabel"), IDS, KINDS, st.none()),
    st.tuples(st.just("rehost"), IDS, st.sampled_from(["", "elsewhere"]), st.none()),
    st.tuples(st.just("hold off"), IDS, st.sampled_from([Call(0), Call.DELETE]), st.none()),
    st.tuples(st.just("remove"), IDS, st.none(), st.none()),
    st.tuples(st.just("refuse"), st.sampled_from(["p0", "p1"]), st.sampled_from(CapacityType), st.none()),
    st.tuples(st.just("ask"), st.sampled_from(["rack", "image", "nobody-has-it"]), st.none(), st.none()),
)
"""A kind of event and what it needs; one that cannot happen to the machine as it is does not."""
FLEETS = st.tuples(*(st.tuples(st.just("insert"), st.just(name), STATES, KINDS) for name in NAMES))


@given(FLEETS, st.lists(STEPS, max_size=30), st.sampled_from([2, 1000]))
def test_a_history_leaves_nothing_but_the_machines(
    fleet: tuple[Any, ...], steps: list[Any], large: int
) -> None:
    with patch.object(cells, "LARGE", large):
        inventory = lived(fleet, steps)
        assert view(inventory) == view(rebuilt(inventory))


@given(FLEETS, st.lists(STEPS, max_size=10), st.lists(STEPS, max_size=20))
def test_what_waits_for_the_end_of_a_cycle_is_read_at_once_and_decided_on_later(
    fleet: tuple[Any, ...], before: list[Any], meanwhile: list[Any]
) -> None:
    inventory, spared = lived(fleet, before), lived(fleet, before)
    meanwhile = [step for step in meanwhile if step[0] != "ask"]
    decided_on = {cell: list(cell.ids) for cell in inventory.all_cells()}
    inventory.freeze()
    for now, step in enumerate(meanwhile, 1000):
        happen(inventory, step, now)
        happen(spared, step, now)
    assert [inventory.find(machine_id) for machine_id in spared] == list(entries(spared).values())
    assert {cell: list(cell.ids) for cell in inventory.all_cells()} == decided_on
    inventory.thaw()
    assert view(inventory) == view(spared)


@given(FLEETS, st.lists(STEPS, max_size=15), st.lists(STEPS, min_size=1, max_size=20))
def test_a_capture_shows_the_moment_it_was_made_whatever_is_written_while_it_is_read(
    fleet: tuple[Any, ...], before: list[Any], later: list[Any]
) -> None:
    inventory = lived(fleet, before)
    expected = entries(inventory)
    captured = inventory.capture()
    read: list[Entry] = []
    for now, step in enumerate(later, 1000):
        happen(inventory, step, now)
        read += islice(captured, now % 4 // 3)
    read += captured
    assert {entry.machine.id: entry for entry in read} == expected
    assert len(read) == len(expected)


@given(FLEETS, st.lists(STEPS, max_size=15), st.lists(STEPS, max_size=10))
def test_every_cell_whose_machines_are_not_what_they_were_is_named(
    fleet: tuple[Any, ...], before: list[Any], later: list[Any]
) -> None:
    inventory = lived(fleet, before)
    inventory.take_changes()
    known = {cell: list(cell.ids) for cell in inventory.all_cells()}
    for now, step in enumerate(later, 1000):
        happen(inventory, step, now)
    changes = inventory.take_changes()
    living = {cell: list(cell.ids) for cell in inventory.all_cells()}
    differ = {cell for cell in known | living if known.get(cell) != living.get(cell)}
    assert changes.everything or differ <= set(changes.touched)
    assert all(not cell.ids for cell in known.keys() - living.keys()), "a cell that is gone says so"


def lived(fleet: tuple[Any, ...], steps: list[Any]) -> Inventory:
    """An inventory with a history."""
    inventory = Inventory()
    for now, step in enumerate([*fleet, *steps]):
        happen(inventory, step, now)
    return inventory


def happen(inventory: Inventory, step: tuple[Any, ...], now: int) -> None:
    kind, name, one, two = step
    if kind == "refuse":
        inventory.mark_not_deletable(name, one)
        return
    if kind == "ask":
        inventory.ask([name])
        return
    known = inventory.find(name)
    if kind == "insert":
        if known is None:
            stamp = Preemptor("c1", 7, "f", "") if one is S.DRAINING and two % 2 else None
            value = two % 3 / 2
            sidecar = Sidecar(provider=f"p{two // 2 % 2}", preempted_for=stamp, last_reclamation_value=value)
            inventory.insert(machine(name, one, two), now, sidecar)
    elif known is None:
        return
    elif kind == "move":
        edges = [edge for edge in EDGES if edge.source is known.machine.state]
        target = edges[one % len(edges)].target
        like = machine(name, target, one)
        values = {
            field: getattr(like, field)
            for field in edges[one % len(edges)].sets & {"host", "cluster", "last_error"}
        }
        moved = transition(known.machine, target, **values)
        stamp = Preemptor("c1", 7, "f", "") if two else None
        inventory.apply(moved, now, started=two, preempted_for=stamp, drain_deadline=now + one)
    elif kind == "adopt":
        inventory.adopt(machine(name, one, two), now)
    elif kind == "relabel":
        labels = machine(name, S.IDLE, one).labels
        inventory.apply(replace(known.machine, labels=labels, price_per_hour=1.0 + one % 2), now)
    elif kind == "rehost":
        if known.machine.host:
            inventory.apply(replace(known.machine, host=HostRef("cloud", f"{one}{name}")), now)
    elif kind == "hold off":
        inventory.hold_off(name, one)
    else:
        inventory.remove(name)
