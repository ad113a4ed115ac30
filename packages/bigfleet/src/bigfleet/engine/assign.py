"""Phase 1: what each Need holds already, and what is acquired for the rest (engine.md §10)."""

from collections.abc import Generator
from dataclasses import dataclass
from typing import Final

from bigfleet.engine.actions import Action, ActionKind, Reason
from bigfleet.engine.domains import Reliance, place_gang
from bigfleet.engine.spread import acquire_spread, strict_spread
from bigfleet.engine.stock import Row, take
from bigfleet.engine.supply import Supply, cost
from bigfleet.engine.victims import VictimOrder
from bigfleet_base.model import EMPTY, MachineState, penalty

Work = Generator[int, None, None]
"""A phase in progress: it yields the rows it has worked on, so that its caller can pause it."""


@dataclass(slots=True)
class Phase1:
    """Phase 1 over one supply; afterwards each row knows its claims and what it still lacks."""

    rows: list[Row]
    supply: Supply
    order: VictimOrder
    now: int

    def run(self) -> Work:
        """Credit for all Needs, then acquisition for all, both in order of precedence."""
        ranked = sorted(self.rows, key=_precedence)
        reliance = Reliance()
        for row in ranked:
            if row.demand.need.profile.same is None:
                _credit(row, self.supply)
            else:
                place_gang(row, self.supply, reliance, self.order, self.now)
            yield 1
        for row in ranked:
            if not row.remaining.is_zero() and not row.parked:
                self._acquire(row)
            yield 1

    def actions(self) -> Generator[int, None, list[Action]]:
        """Bootstraps and Provisions, Need by Need in demand order."""
        decided: list[Action] = []
        for row in self.rows:
            decided += self._acquisitions(row)
            yield 1
        return decided

    def _acquire(self, row: Row) -> None:
        bought_before = len(row.claims)
        same = row.demand.need.profile.same
        if same is not None and row.domain is None:
            return
        spread = strict_spread(row)
        if spread is not None:
            acquire_spread(row, spread, self.supply)
        else:
            for groups in self.supply.passes(row, None if same is None else same.key):
                take(row, groups)
        row.acquired = sum(len(span) for span in row.claims[bought_before:])

    def _acquisitions(self, row: Row) -> list[Action]:
        need = row.demand.need
        bound = penalty.bound_dollars(need.profile.interruption_bucket)
        runners_up: dict[MachineState, float | None] = {}
        decided = []
        for span in row.claims:
            state = span.stock.cell.state
            if state not in _ACQUIRED:
                continue
            kind, reason = _ACQUIRED[state]
            if state not in runners_up:
                left = [stock for stock in self.supply.suitable_in(need, state) if stock.left]
                runners_up[state] = min((cost(stock, bound) for stock in left), default=None)
            decided += [
                Action(
                    kind,
                    machine_id,
                    reason,
                    need.cluster_id,
                    profile=need.profile,
                    group=need.group,
                    cost=cost(span.stock, bound),
                    runner_up_cost=runners_up[state],
                )
                for machine_id in span.ids
            ]
        return decided


_ACQUIRED: Final = {
    MachineState.IDLE: (ActionKind.BOOTSTRAP, Reason.IDLE),
    MachineState.SPECULATIVE: (ActionKind.PROVISION, Reason.SPECULATIVE),
}


def _precedence(row: Row) -> tuple[int, int, int, int]:
    profile = row.demand.need.profile
    return (-profile.priority, -profile.interruption_bucket, -profile.reclamation_bucket, row.index)


def _credit(row: Row, supply: Supply) -> None:
    """Claim what already counts for a plain Need; what was bought for others only if it is still wanted."""
    usual, foreign = supply.creditable(row)
    take(row, usual)
    if row.remaining.is_zero() or not foreign:
        return
    aside = EMPTY
    for stock in supply.own_idle(row, None):
        aside = aside + stock.cell.alloc * len(stock.ids)
    take(row, foreign, lambda: row.remaining - aside)
