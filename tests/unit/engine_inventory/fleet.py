"""Small fleets for the tests of the inventory, and what an inventory shows of itself."""

from typing import Any, Final

from bigfleet.engine.cells import Cell
from bigfleet.engine.inventory import Inventory
from bigfleet.engine.records import Entry
from bigfleet_base.model import CapacityType, HostRef, Machine, MachineState, ResourceVector

S = MachineState
HOSTLESS: Final = (S.SPECULATIVE, S.CREATING)
BOUND: Final = (S.CONFIGURING, S.CONFIGURED, S.DRAINING)


def machine(machine_id: str, state: MachineState = S.IDLE, kind: int = 0, **fields: Any) -> Machine:
    """A machine of one of a few kinds, with all that its state asks for."""
    if state not in HOSTLESS:
        fields.setdefault("host", HostRef("cloud", machine_id))
    if state in BOUND:
        fields.setdefault("cluster", f"c{kind % 3}")
        fields.setdefault("assigned_need_fingerprint", f"need-{kind % 2}")
        fields.setdefault("assigned_reclamation_penalty", float(kind % 2))
    if state is S.FAILED:
        fields.setdefault("last_error", "lost")
    fields.setdefault("instance_type", f"type-{kind % 2}")
    fields.setdefault("price_per_hour", 1.0)
    fields.setdefault("labels", {"rack": f"r{kind % 4}", "image": f"v{kind % 3}"})
    return Machine(
        machine_id,
        state,
        zone="z",
        capacity_type=CapacityType.SPOT if kind % 2 else CapacityType.ON_DEMAND,
        resources=ResourceVector(cpu=1000 * (1 + kind % 2)),
        **fields,
    )


def entries(inventory: Inventory) -> dict[str, Entry]:
    """Every machine as it is read one by one."""
    return {machine_id: inventory.entry(machine_id) for machine_id in inventory}


def rebuilt(inventory: Inventory) -> Inventory:
    """One that never knew anything but the machines as they are now."""
    fresh = Inventory()
    fresh.ask(inventory.asked)
    for refused in inventory.undeletable:
        fresh.mark_not_deletable(*refused)
    for entry in inventory.capture():
        fresh.insert(entry.machine, entry.sidecar.idle_since or 0, entry.sidecar)
    return fresh


def view(inventory: Inventory) -> dict[str, Any]:
    """All that a cycle can read, numbers of classes apart."""
    clusters = ["c0", "c1", "c2"]
    return {
        "entries": entries(inventory),
        "captured": {entry.machine.id: entry for entry in inventory.capture()},
        "cells": _shown(inventory.all_cells()),
        "count of cells": inventory.cell_count(),
        "by state": {state: _shown(inventory.cells(state)) for state in S},
        "pools": {
            state: sorted(
                (repr(_class(pool.machine_class)), pool.count, repr(_shown(pool.cells.values())))
                for pool in inventory.pools(state)
            )
            for state in S
        },
        "arrivals": {
            state: sorted(
                repr(_shown(pool.cells.values()))
                for pools in inventory.arrivals(state).by_type.values()
                for pool in pools
                if pool.cells
            )
            for state in S
        },
        "by cluster": {
            (cluster, state): sorted(
                (repr(_class(machine_class)), repr(_shown(cells.values())))
                for machine_class, cells in inventory.cluster_classes(cluster, state)
            )
            for cluster in clusters
            for state in S
        },
        "owned": {
            (cluster, state, identity): _shown(cells.values())
            for cluster in clusters
            for state in S
            for identity, cells in inventory.owned(cluster, state).items()
        },
        "stamped": {
            cluster: _shown(inventory.stamped(cluster, ("f", ""))) for cluster in [*clusters, "nowhere"]
        },
        "counts": [inventory.count(state, cluster) for state in S for cluster in (None, "", *clusters)],
        "configured": inventory.configured(),
        "tallies": {key: (t.machines, t.nano_dollars) for key, t in inventory.tallies().items()},
        "not deletable": {i for i in inventory if inventory.is_not_deletable(i)},
        "shared": _shared(inventory),
        "idle": {
            i: t
            for cell in inventory.all_cells()
            for i, t in zip(cell.ids, inventory.idle_times(cell), strict=True)
        },
        "deadlines": {i: inventory.drain_deadline(i) for i in inventory},
    }


def _shared(inventory: Inventory) -> list[int]:
    """How much is kept for many machines together: nothing of it may outlive them. Readers cannot see it."""
    assert all(column.keys() <= {*inventory} for column in inventory._own.columns())
    return [len(inventory._products), len(inventory._labels), len(inventory._bindings._values)]


def _shown(cells: Any) -> list[str]:
    return sorted(repr(_cell(cell)) for cell in cells)


def _cell(cell: Cell) -> tuple[Any, ...]:
    assert cell.pool.machine_class is cell.machine_class
    assert (cell.state, cell.binding) == (cell.key.state, cell.key.binding)
    return (cell.state, _class(cell.machine_class), cell.binding, cell.key.past, cell.ids)


def _class(machine_class: Any) -> tuple[Any, ...]:
    return (repr(machine_class.offer), sorted(machine_class.asked.items()))
