"""Phase 1: what each Need holds already, and what is acquired for the rest (engine.md §10)."""

from collections.abc import Generator
from dataclasses import dataclass

from bigfleet.engine.actions import Action, ActionKind, Reason
from bigfleet.engine.domains import Reliance, place_gang
from bigfleet.engine.spread import acquire_spread, strict_spread
from bigfleet.engine.stock import Row, take
from bigfleet.engine.supply import Supply
from bigfleet.engine.victims import VictimOrder
from bigfleet_base.model import EMPTY, MachineState

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

    def actions(self) -> list[Action]:
        """Bootstraps and Provisions, Need by Need in demand order."""
        return [action for row in self.rows for action in _acquisitions(row)]

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


def _acquisitions(row: Row) -> list[Action]:
    need = row.demand.need
    decided = []
    for span in row.claims:
        match span.stock.cell.state:
            case MachineState.IDLE:
                kind, reason = ActionKind.BOOTSTRAP, Reason.IDLE
            case MachineState.SPECULATIVE:
                kind, reason = ActionKind.PROVISION, Reason.SPECULATIVE
            case _:
                continue
        decided += [
            Action(kind, machine_id, reason, need.cluster_id, profile=need.profile, group=need.group)
            for machine_id in span.ids
        ]
    return decided
