"""Gangs that no domain can hold stop buying, and look again now and then (engine.md §9)."""

from collections.abc import Generator, Iterable
from dataclasses import replace

from bigfleet.engine.normalise import Demand
from bigfleet.engine.options import PARK_AFTER, REPROBE_EVERY
from bigfleet.engine.stock import Row
from bigfleet.engine.supply import Supply
from bigfleet_base.model import MachineState, Need

GangKey = tuple[str, str, str]
"""(cluster, fingerprint, group), as ``Need.key``."""


class Parking:
    """How long each gang has been hopeless, and for whom Phase 2 found something last time."""

    def __init__(self) -> None:
        self.ages: dict[GangKey, int] = {}
        self.helped: set[GangKey] = set()

    def stamp(
        self,
        demand: Iterable[Demand],
        blocked: frozenset[tuple[str, str]],
        without_session: frozenset[str],
    ) -> Generator[int, None, list[Demand]]:
        """Mark the Needs for which nothing may be started: parked gangs, blocked Needs, clusters without a
        session."""
        stamped = []
        for item in demand:
            yield 1
            held = item.need.cluster_id in without_session or item.need.key[:2] in blocked
            parked = not held and self._parked(item.need)
            if parked or held:
                need = replace(item.need, acquisition_parked=parked, held_back=held)
                item = replace(item, need=need)
            stamped.append(item)
        return stamped

    def aged(
        self, rows: Iterable[Row], supply: Supply, tick: bool
    ) -> Generator[int, None, dict[GangKey, int]]:
        """After Phase 1: the ages with those of the gangs that stand still grown."""
        ages: dict[GangKey, int] = {}
        for row in rows:
            yield 1
            need = row.demand.need
            if need.profile.same is None or row.remaining.is_zero():
                continue
            age = self.ages.get(need.key)
            if need.held_back:
                if age is not None:
                    ages[need.key] = age
            elif not self._moves(row, supply):
                ages[need.key] = 1 if age is None else age + tick
        return ages

    def _parked(self, need: Need) -> bool:
        age = self.ages.get(need.key, 0)
        return need.profile.same is not None and age >= PARK_AFTER and age % REPROBE_EVERY != 0

    def _moves(self, row: Row, supply: Supply) -> bool:
        """Whether anything is under way for a gang."""
        return (
            row.acquired > 0
            or row.satisfiable
            or any(span.stock.cell.state is MachineState.CREATING for span in row.claims)
            or bool(supply.drains_for(row))
            or row.demand.need.key in self.helped
        )
