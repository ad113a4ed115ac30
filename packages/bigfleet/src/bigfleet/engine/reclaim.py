"""Phase 3: bound machines nobody needs go back, idle ones that cost money are released (engine.md §12)."""

from collections.abc import Generator, Iterable, Iterator
from typing import Final

from bigfleet.engine.actions import Action, ActionKind, Reason
from bigfleet.engine.cells import NEVER, Call
from bigfleet.engine.options import RECLAIM_GRACE_S, Options
from bigfleet.engine.states import IDLE
from bigfleet.engine.stock import Stock, in_order
from bigfleet.engine.supply import Supply, keep_order
from bigfleet_base.model import CapacityType


def reclaims(supply: Supply, loose: Iterable[Stock], picked: set[str]) -> Generator[int, None, list[Action]]:
    """Configured machines that nobody claims, by cluster, the dearest first."""
    by_cluster: dict[str, list[Stock]] = {}
    for stock in loose:
        cluster = stock.cell.binding.cluster
        if cluster in supply.reported and not stock.cell.is_held_off(Call.DRAIN):
            by_cluster.setdefault(cluster, []).append(stock)
    actions: list[Action] = []
    for cluster in sorted(by_cluster):
        actions += _reclaims(by_cluster[cluster], cluster, picked)
        yield 1
    return actions


def releases(supply: Supply, options: Options, now: int) -> Generator[int, None, tuple[list[Action], int]]:
    """Idle machines whose hold is over, by id, and when the next one follows if nothing but time goes by."""
    spare: list[str] = []
    next_one = NEVER
    for pool in supply.inventory.pools(IDLE):
        capacity_type = pool.machine_class.offer.capacity_type
        hold = options.idle_hold_ns.get(capacity_type, 0)
        if hold <= 0 or capacity_type not in _ELASTIC:
            continue
        for cell in pool.cells.values():
            if cell.key.not_deletable or cell.is_held_off(Call.DELETE):
                continue
            if cell.idle_from + hold > now:
                next_one = min(next_one, cell.idle_from + hold)
                continue
            since, taken = supply.inventory.idle_times(cell), supply.stock(cell).taken
            for machine_id, idle_from in zip(cell.ids[taken:], since[taken:], strict=True):
                if idle_from + hold <= now:
                    spare.append(machine_id)
                else:
                    next_one = min(next_one, idle_from + hold)
            yield 1 + len(since) // _A_ROW
    return [Action(ActionKind.DELETE, machine_id, Reason.RELEASE) for machine_id in sorted(spare)], next_one


def _reclaims(stocks: list[Stock], cluster: str, picked: set[str]) -> Iterator[Action]:
    for group in reversed(list(in_order(stocks, keep_order))):
        left = [
            machine_id
            for stock in group
            for machine_id in stock.cell.ids[stock.taken :]
            if machine_id not in picked
        ]
        for machine_id in sorted(left, reverse=True):
            yield Action(
                ActionKind.RECLAIM, machine_id, Reason.EXCESS, cluster=cluster, grace_s=RECLAIM_GRACE_S
            )


_A_ROW: Final = 64
"""Looking at so many clocks takes as long as a row."""
_ELASTIC = (CapacityType.ON_DEMAND, CapacityType.SPOT)
