"""Gangs that no domain can hold stop buying, and look again now and then (engine.md §9)."""

from collections import defaultdict
from collections.abc import Generator, Iterable
from dataclasses import replace

from bigfleet.engine.needs import Place
from bigfleet.engine.normalise import Demand, Renewal
from bigfleet.engine.options import PARK_AFTER, REPROBE_EVERY
from bigfleet.engine.pace import pieces
from bigfleet.engine.states import CREATING
from bigfleet.engine.stock import Row
from bigfleet.engine.supply import Supply
from bigfleet_base.model import Need

GangKey = tuple[str, str, str]
"""(cluster, fingerprint, group), as ``Need.key``."""


class Parking:
    """How long each gang has been hopeless, and for whom Phase 2 found something last time."""

    def __init__(self) -> None:
        self.ages: dict[GangKey, int] = {}
        self.helped: set[GangKey] = set()

    def is_parked(self, need: Need) -> bool:
        """Whether a gang is not to look for machines now."""
        age = self.ages.get(need.key, 0)
        return need.profile.same is not None and age >= PARK_AFTER and age % REPROBE_EVERY != 0

    def aged(
        self, gangs: Iterable[Row], supply: Supply, tick: bool
    ) -> Generator[int, None, dict[GangKey, int]]:
        """After Phase 1: the ages of unmet gangs, with those of the gangs that stand still grown."""
        ages: dict[GangKey, int] = {}
        for piece in pieces(gangs):
            yield 1
            for row in piece:
                age = self.ages.get(row.key)
                if row.demand.need.held_back:
                    if age is not None:
                        ages[row.key] = age
                elif not self._moves(row, supply):
                    ages[row.key] = 1 if age is None else age + tick
        return ages

    def _moves(self, row: Row, supply: Supply) -> bool:
        """Whether anything is under way for a gang."""
        return (
            bool(row.bought)
            or row.satisfiable
            or any(claim.stock.cell.state is CREATING for claim in row.held)
            or bool(supply.drains_for(row))
            or row.key in self.helped
        )


class Stamps:
    """Demand with the marks of those for whom nothing may be started: parked gangs, blocked Needs, clusters
    without a session."""

    def __init__(self, parking: Parking) -> None:
        self._parking = parking
        self._plain: dict[Place, Demand] = {}
        self._shown: dict[Place, Demand] = {}
        self._of_cluster: defaultdict[str, dict[Place, None]] = defaultdict(dict)
        self._gangs: dict[GangKey, Place] = {}
        self._parked: dict[Place, None] = {}
        self._blocked: frozenset[tuple[str, str]] = frozenset()
        self._without_session: frozenset[str] = frozenset()

    def update(
        self, renewal: Renewal, blocked: frozenset[tuple[str, str]], without_session: frozenset[str]
    ) -> Generator[int, None, Renewal]:
        """What changes in the demand, the marks included."""
        stamped = Renewal()
        for gone in pieces(renewal.gone):
            yield 1
            for place in gone:
                self._leave(place)
                del self._shown[place]
                stamped.gone[place] = None
        for come in pieces(renewal.come.items()):
            yield 1
            for place, demand in come:
                self._enter(place, demand)
        suspects = dict.fromkeys(renewal.come)
        suspects.update(self._parked)
        for key in self._parking.ages:
            if key in self._gangs:
                suspects[self._gangs[key]] = None
        moved = {cluster for cluster, _ in blocked ^ self._blocked} | (
            without_session ^ self._without_session
        )
        for cluster in sorted(moved):
            suspects.update(self._of_cluster.get(cluster, {}))
        self._blocked, self._without_session = blocked, without_session
        for piece in pieces(suspects):
            yield 1
            for place in piece:
                self._show(place, stamped)
        return stamped

    def _show(self, place: Place, stamped: Renewal) -> None:
        demand, before = self._plain.get(place), self._shown.get(place)
        if demand is None:
            return
        need = demand.need
        held = need.cluster_id in self._without_session or need.key[:2] in self._blocked
        parked = not held and self._parking.is_parked(need)
        if before is not None and before.need.acquisition_parked == parked and before.need.held_back == held:
            return
        if held or parked:
            demand = demand._replace(need=replace(need, acquisition_parked=parked, held_back=held))
        if before is not None:
            stamped.gone[place] = None
        stamped.come[place] = self._shown[place] = demand
        if parked:
            self._parked[place] = None
        else:
            self._parked.pop(place, None)

    def _enter(self, place: Place, demand: Demand) -> None:
        need = demand.need
        self._plain[place] = demand
        self._of_cluster[need.cluster_id][place] = None
        if need.profile.same is not None:
            self._gangs[need.key] = place

    def _leave(self, place: Place) -> None:
        need = self._plain.pop(place).need
        of_cluster = self._of_cluster[need.cluster_id]
        del of_cluster[place]
        if not of_cluster:
            del self._of_cluster[need.cluster_id]
        self._parked.pop(place, None)
        if self._gangs.get(need.key) == place:
            del self._gangs[need.key]
