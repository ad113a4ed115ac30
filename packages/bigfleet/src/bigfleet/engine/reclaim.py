"""Phase 3: bound machines nobody needs go back, idle ones that cost money are released (engine.md §12)."""

import heapq
from collections.abc import Generator, Iterator

from bigfleet.engine.actions import Action, ActionKind, Reason
from bigfleet.engine.cells import Call
from bigfleet.engine.options import RECLAIM_GRACE_S, Options
from bigfleet.engine.stock import in_order
from bigfleet.engine.supply import Supply, keep_order
from bigfleet_base.model import CapacityType, MachineState


def phase3(
    supply: Supply, picked: set[str], options: Options, now: int
) -> Generator[int, None, list[Action]]:
    """Reclaims by cluster, the dearest machine first; then Deletes by id."""
    actions: list[Action] = []
    for cluster in supply.inventory.clusters_with(MachineState.CONFIGURED):
        if cluster in supply.reported:
            actions += _reclaims(supply, cluster, picked)
        yield 1
    actions += _releases(supply, options, now)
    yield 1
    return actions


def _reclaims(supply: Supply, cluster: str, picked: set[str]) -> Iterator[Action]:
    groups = list(in_order(supply.cluster_stocks(cluster, MachineState.CONFIGURED), keep_order))
    for group in reversed(groups):
        left = [
            machine_id
            for stock in group
            if not stock.cell.key.held_off & Call.DRAIN
            for machine_id in stock.ids[stock.taken :]
            if machine_id not in picked
        ]
        for machine_id in sorted(left, reverse=True):
            yield Action(
                ActionKind.RECLAIM, machine_id, Reason.EXCESS, cluster=cluster, grace_s=RECLAIM_GRACE_S
            )


def _releases(supply: Supply, options: Options, now: int) -> Iterator[Action]:
    spare = []
    for stock in supply.stocks(MachineState.IDLE):
        key = stock.cell.key
        hold = options.idle_hold_ns.get(stock.cell.machine_class.offer.capacity_type, 0)
        elastic = stock.cell.machine_class.offer.capacity_type in (CapacityType.ON_DEMAND, CapacityType.SPOT)
        if hold > 0 and elastic and not key.not_deletable and not key.held_off & Call.DELETE:
            spare.append([(machine_id, hold) for machine_id in stock.ids[stock.taken :]])
    for machine_id, hold in heapq.merge(*spare):
        since = supply.inventory.sidecar(machine_id).idle_since
        if since is not None and now - since >= hold:
            yield Action(ActionKind.DELETE, machine_id, Reason.RELEASE)
