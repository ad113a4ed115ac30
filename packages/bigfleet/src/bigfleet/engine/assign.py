"""Phase 1, second half: what is acquired for Needs that hold too little (engine.md §10.4)."""

from collections.abc import Generator, Iterable
from operator import attrgetter
from typing import Final

from bigfleet.engine.actions import Action, ActionKind, Reason
from bigfleet.engine.cells import Pool
from bigfleet.engine.domains import place_of
from bigfleet.engine.matching import Suited
from bigfleet.engine.pace import Work, emptied, pieces, resorted
from bigfleet.engine.spread import acquire_spread, strict_spread
from bigfleet.engine.states import IDLE, SPECULATIVE
from bigfleet.engine.stock import Row, choose
from bigfleet.engine.supply import Supply


class Acquisition:
    """What one cycle buys. It is decided anew each time, for nobody has it yet."""

    def __init__(self, supply: Supply) -> None:
        self._supply = supply
        self._rows: list[Row] = []
        self._left: dict[Pool, bool] = {}
        """Whether anything is left of a pool when all is bought."""
        self._runners_up: dict[Suited, float | None] = {}

    def undo(self) -> None:
        """Forget what was bought last."""
        for row in self._rows:
            for lot in row.bought:
                for claim in lot:
                    claim.stock.claims.clear()
            row.bought = []

    def run(self, short: dict[Row, None]) -> Work:
        """Buy for the Needs that lack something, in order of precedence."""
        self._rows = resorted(self._rows, short, attrgetter("rank"))
        barren = self._supply.barren
        for piece in pieces(self._rows):
            work = 1
            for row in piece:
                row.remaining, row.spread_stopped = row.lacking, False
                if not barren(row.fit) and not row.parked:
                    self._acquire(row)
                    work += 1 + len(row.bought)
            yield work
        yield from emptied(self._supply.offers)
        yield from emptied(self._supply.shelves)

    def actions(self, rows: Iterable[Row]) -> Generator[int, None, list[Action]]:
        """Bootstraps and Provisions, Need by Need."""
        decided: list[Action] = []
        self._left.clear()
        self._runners_up.clear()
        for row in rows:
            if row.bought:
                found = self._acquisitions(row)
                decided += found
                yield 1 + len(found) // _A_ROW
        return decided

    def _acquire(self, row: Row) -> None:
        if row.demand.need.profile.same is not None and row.domain is None:
            return
        spread = strict_spread(row)
        if spread is not None:
            acquire_spread(row, spread, self._supply)
            return
        for groups in self._supply.passes(row, place_of(row)):
            for group in groups:
                if row.remaining.is_zero():
                    return
                row.buy(choose(group, row.remaining, [stock.taken for stock in group]))

    def _acquisitions(self, row: Row) -> list[Action]:
        need, fit = row.demand.need, row.fit
        decided = []
        for lot in row.bought:
            cell = lot[0].stock.cell
            state = cell.state
            kind, reason = _ACQUIRED[state]
            pools = fit.pools(state)
            if pools not in self._runners_up:
                self._runners_up[pools] = self._cheapest_left(pools)
            runner_up = self._runners_up[pools]
            # Machines of one lot cost the same, or they would not tie.
            cost = fit.cost(cell.machine_class)
            ids = [machine_id for claim in lot for machine_id in claim.ids]
            if len(lot) > 1:
                ids.sort()
            decided += [
                Action(
                    kind,
                    machine_id,
                    reason,
                    need.cluster_id,
                    profile=need.profile,
                    group=need.group,
                    cost=cost,
                    runner_up_cost=runner_up,
                )
                for machine_id in ids
            ]
        return decided

    def _cheapest_left(self, suited: Suited) -> float | None:
        for (cost, _), pools in suited.priced():
            if any(map(self._is_left, pools)):
                return cost
        return None

    def _is_left(self, pool: Pool) -> bool:
        known = self._left.get(pool)
        if known is None:
            known = self._left[pool] = self._supply.has_left(pool)
        return known


_A_ROW: Final = 8
"""So many actions take as long as a row."""
_ACQUIRED: Final = {
    IDLE: (ActionKind.BOOTSTRAP, Reason.IDLE),
    SPECULATIVE: (ActionKind.PROVISION, Reason.SPECULATIVE),
}
