"""How machines are held: what one costs, in which order ids stand, what is done to whole cells at once."""

import gc
import random
import tracemalloc

import pytest

from bigfleet.engine.cells import LARGE
from bigfleet.engine.inventory import Inventory
from bigfleet.engine.records import Sidecar
from bigfleet_base.model import CapacityType, HostRef
from bigfleet_base.model.lifecycle import IllegalTransitionError
from tests.support.rules import rule
from tests.unit.engine_inventory.fleet import S, entries, machine, rebuilt, view

MOST_BYTES = 100


@pytest.mark.timeout(600)
@pytest.mark.parametrize("state", [S.SPECULATIVE, S.IDLE, S.CONFIGURED])
def test_a_machine_takes_no_more_than_a_hundred_bytes_beside_its_id(full_size: bool, state: S) -> None:
    count = 50_000 if full_size else 5_000
    # As in a large fleet: some hundred machines of each class, and Needs that have some tens of them.
    types = count // 200
    fleet = [
        machine(f"m-{n:06}", state, n % 6, instance_type=f"type-{n % types}", labels={}) for n in range(count)
    ]
    inventory = Inventory()
    gc.collect()
    tracemalloc.start()
    try:
        for each in fleet:
            inventory.insert(each, 0)
        gc.collect()
        traced, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert inventory.cell_count() >= types
    assert traced / count <= MOST_BYTES


def test_ids_stand_in_order_however_a_large_fleet_comes_and_goes(full_size: bool) -> None:
    rng = random.Random(7)
    count = 100_000 if full_size else 3 * LARGE
    ids = [f"m-{n:06}" for n in range(count)]
    rng.shuffle(ids)
    inventory = Inventory()
    for machine_id in ids:
        inventory.insert(machine(machine_id, S.SPECULATIVE), 0)
    [cell] = inventory.all_cells()
    assert cell.ids == sorted(ids)

    for machine_id in (gone := ids[: count // 2]):
        inventory.remove(machine_id)
    back = gone[: count // 4]
    for machine_id in back[:10]:
        inventory.insert(machine(machine_id, S.SPECULATIVE), 0)
        assert machine_id in cell.ids
    for machine_id in back[10:]:
        inventory.insert(machine(machine_id, S.SPECULATIVE), 0)
    assert cell.ids == sorted({*ids} - {*gone} | {*back})


def test_what_only_one_machine_of_a_cell_has_is_its_own() -> None:
    inventory = Inventory()
    inventory.insert(machine("a"), 5)
    inventory.insert(machine("b", labels={"image": "other"}), 6)
    inventory.insert(machine("c", host=HostRef("cloud", "i-0123")), 7)
    inventory.insert(machine("d", last_error="slow"), 8, Sidecar(drain_deadline=9, provider="p"))
    before = entries(inventory)
    assert inventory.cell_count() == 1

    inventory.remove("a")
    assert entries(inventory) == {name: entry for name, entry in before.items() if name != "a"}
    [cell] = inventory.all_cells()
    assert cell.idle_from == 5, "a bound, until somebody looks"
    assert (inventory.idle_times(cell), cell.idle_from) == ([6, 7, 8], 6)
    assert [entry.machine.host.ref for entry in entries(inventory).values()] == ["b", "i-0123", "d"]


def test_a_label_that_is_asked_for_parts_the_machines_that_have_it_and_no_others() -> None:
    inventory = Inventory()
    for n in range(12):
        inventory.insert(machine(f"m-{n:02}", labels={"rack": f"r{n % 3}"} if n < 9 else {}), n)
    inventory.insert(machine("far", kind=1, labels={}), 0)
    untouched = next(cell for cell in inventory.all_cells() if cell.ids == ["far"])
    before = entries(inventory)

    inventory.ask(["rack"])
    parts = sorted(cell.ids for cell in inventory.all_cells())
    assert parts == [
        ["far"],
        ["m-00", "m-03", "m-06"],
        ["m-01", "m-04", "m-07"],
        ["m-02", "m-05", "m-08"],
        ["m-09", "m-10", "m-11"],
    ]
    assert untouched in inventory.all_cells()
    assert entries(inventory) == before
    assert inventory.take_changes().everything


@rule("engine.R19")
def test_that_a_provider_has_no_delete_is_heard_in_a_cycle_and_true_after_it() -> None:
    inventory = Inventory()
    for n in range(6):
        # Kind 1 is Spot; two providers have the same machines, so that they stand in one cell.
        inventory.insert(machine(f"spot-{n}", kind=1), 0, Sidecar(provider=f"p{n % 2}"))
    inventory.insert(machine("other", kind=0), 0, Sidecar(provider="p0"))
    inventory.take_changes()
    assert inventory.cell_count() == 2
    before = entries(inventory)

    inventory.freeze()
    inventory.mark_not_deletable("p0", CapacityType.SPOT)
    inventory.insert(machine("spot-6", kind=1), 0, Sidecar(provider="p0"))
    assert not any(inventory.is_not_deletable(machine_id) for machine_id in inventory)
    assert inventory.cell_count() == 2
    inventory.thaw()

    marked = [cell.ids for cell in inventory.all_cells() if cell.key.not_deletable]
    assert marked == [["spot-0", "spot-2", "spot-4", "spot-6"]]
    assert {i for i in inventory if inventory.is_not_deletable(i)} == set(marked[0])
    assert before.items() <= entries(inventory).items()
    touched = inventory.take_changes().touched
    assert ["other"] not in [cell.ids for cell in touched], "what is not concerned is not named"

    inventory.mark_not_deletable("p1", CapacityType.SPOT)
    assert [cell.ids for cell in inventory.all_cells() if cell.key.not_deletable] == [
        [f"spot-{n}" for n in range(7)]
    ]
    assert view(inventory) == view(rebuilt(inventory))


def test_machines_that_join_others_keep_their_clocks() -> None:
    inventory = Inventory()
    inventory.mark_not_deletable("p0", CapacityType.SPOT)
    inventory.insert(machine("a", kind=1), 5, Sidecar(provider="p0"))
    inventory.insert(machine("b", kind=1), 1, Sidecar(provider="p1"))
    inventory.insert(machine("c", kind=1), 5, Sidecar(provider="p1"))

    inventory.mark_not_deletable("p1", CapacityType.SPOT)
    [cell] = inventory.all_cells()
    assert (cell.ids, cell.idle_from) == (["a", "b", "c"], 1)
    assert inventory.idle_times(cell) == [5, 1, 5]


@rule("engine.I22")
@pytest.mark.parametrize("in_a_cycle", [False, True])
@pytest.mark.parametrize("state", [S.CONFIGURING, S.CONFIGURED, S.DRAINING])
def test_a_machine_comes_to_another_cluster_only_by_what_a_provider_shows(state: S, in_a_cycle: bool) -> None:
    inventory = Inventory()
    inventory.insert(machine("m", state, cluster="a"), 0)
    if in_a_cycle:
        inventory.freeze()
        inventory.apply(machine("m", state, cluster="a", price_per_hour=2.0), 1)
    before = inventory.entry("m")
    with pytest.raises(IllegalTransitionError, match="'m' changes clusters"):
        inventory.apply(machine("m", state, cluster="b"), 1)
    assert inventory.entry("m") == before

    inventory.adopt(machine("m", state, cluster="b"), 1)
    assert inventory.entry("m").machine.cluster == "b"
