"""Gangs small enough for one machine become plain demand (engine.md §8).

A gang that fits one machine needs no common domain: it needs a machine. Folding many such gangs into one Need
is what keeps 2,400 gangs of a tenth of a machine from asking for 2,400 machines.
"""

from collections.abc import Collection, Generator, Iterable
from dataclasses import dataclass, field, replace
from functools import lru_cache
from operator import itemgetter
from typing import NamedTuple

from bigfleet.engine.cells import Cell
from bigfleet.engine.inventory import Identity, Inventory
from bigfleet.engine.matching import Matcher
from bigfleet.engine.needs import Arrived, Place
from bigfleet.engine.options import FOLD_AFTER
from bigfleet.engine.pace import pieces
from bigfleet.engine.states import CONFIGURED, CONFIGURING, IDLE, SPECULATIVE
from bigfleet_base.model import (
    Need,
    Operator,
    Profile,
    Requirement,
    ResourceVector,
    WhenUnsatisfiable,
)

GangClass = tuple[str, str, ResourceVector]
"""Gangs that fold together or not at all: (cluster, fingerprint, aggregate)."""


class Demand(NamedTuple):
    """One Need as the phases see it."""

    need: Need
    place: Place
    """Where it stands in the order Needs are served."""
    identities: frozenset[Identity]
    members: ResourceVector | None = None
    """Of a folded Need: the aggregate of each gang in it."""
    groups: tuple[str, ...] = ()
    """Of a folded Need: the gangs in it, in demand order."""


@dataclass(frozen=True, slots=True)
class FoldState:
    """What is remembered of a class of gangs from cycle to cycle."""

    folded: bool
    ever_folded: bool
    fitting_ticks: int = 0
    """Consecutive ticks in which an unfolded class has fitted."""


@dataclass(slots=True)
class Renewal:
    """Demand that takes the place of other demand."""

    gone: dict[Place, None] = field(default_factory=dict)
    come: dict[Place, Demand] = field(default_factory=dict)


class Folding:
    """The demand with small gangs folded, kept up to date as rows come and go."""

    def __init__(self, inventory: Inventory, matcher: Matcher) -> None:
        self._inventory = inventory
        self._matcher = matcher
        self._gangs: dict[GangClass, _Gangs] = {}
        self._waiting: dict[GangClass, None] = {}
        """Classes that fit and are not folded yet: all that time alone can change."""
        self._remembered: dict[GangClass, FoldState] | None = None
        """What was given back last."""
        self._shown: dict[GangClass, _Shown] = {}
        """What stands for each class, by the class under which the folded Need stands."""

    def update(
        self, arrived: Arrived, touched: Collection[Cell], memory: dict[GangClass, FoldState], tick: bool
    ) -> Generator[int, None, tuple[Renewal, dict[GangClass, FoldState]]]:
        """What changes in the demand, and the memory to carry to the next cycle."""
        renewal = Renewal()
        stale: dict[_Shown, None] = {}
        is_known = is_same = memory is self._remembered
        for leavers in pieces(arrived.gone.items()):
            yield 1
            for place, need in leavers:
                if need.profile.same is None:
                    renewal.gone[place] = None
                    continue
                gang_class = _class(need)
                gangs = self._gangs[gang_class]
                del gangs.members[place]
                stale[gangs.shown] = None
                if not gangs.members:
                    del self._gangs[gang_class], gangs.shown.classes[gangs]
                    self._waiting.pop(gang_class, None)
                    is_same = False
        for newcomers in pieces(arrived.come.items()):
            yield 1
            for place, need in newcomers:
                if need.profile.same is None:
                    renewal.come[place] = _plain(need, place)
                    continue
                gang_class = _class(need)
                known = self._gangs.get(gang_class)
                if known is None:
                    known = self._gangs[gang_class] = self._new(need)
                known.members[place] = need
                stale[known.shown] = None
        # At first sight a class looks at all there is.
        fresh = {} if self._remembered is None else _fresh(touched)
        concerned: Iterable[tuple[GangClass, _Gangs]] = self._gangs.items()
        if is_known and not (arrived.gone or arrived.come or touched):
            concerned = [(gang_class, self._gangs[gang_class]) for gang_class in self._waiting]
        for piece in pieces(concerned):
            yield 1
            for gang_class, gangs in piece:
                if is_known and gangs.is_settled:
                    continue
                before = memory.get(gang_class)
                state = _next_state(before, self._fits(gangs, fresh), tick)
                is_same = is_same and state is before
                if gangs.state is None or not _looks_alike(state, gangs.state):
                    stale[gangs.shown] = None
                gangs.state = state
                if gangs.witness is not None and not state.folded:
                    self._waiting[gang_class] = None
                else:
                    self._waiting.pop(gang_class, None)
        self._remembered = memory if is_same else self._states()
        for shown in stale:
            yield 1
            self._renew(shown, renewal)
        return renewal, self._remembered

    def _new(self, need: Need) -> "_Gangs":
        """A class of which this is the first gang."""
        plain = folded_profile(need.profile)
        shown_as = (need.cluster_id, plain.fingerprint, need.aggregate)
        shown = self._shown.get(shown_as)
        if shown is None:
            shown = self._shown[shown_as] = _Shown(shown_as, plain)
        gangs = _Gangs(need, shown)
        shown.classes[gangs] = None
        return gangs

    def _states(self) -> dict[GangClass, FoldState]:
        return {key: gangs.state for key, gangs in self._gangs.items() if gangs.state is not None}

    def _renew(self, shown: "_Shown", renewal: Renewal) -> None:
        """Show what stands for some gangs now."""
        before, after = shown.demand, _show(shown)
        for place, demand in before.items():
            if after.get(place) != demand:
                renewal.gone[place] = None
        for place, demand in after.items():
            if before.get(place) != demand:
                renewal.come[place] = demand
            else:
                # Equal demand stays the object it was.
                after[place] = before[place]
        shown.demand = after
        if not shown.classes:
            del self._shown[shown.key]

    def _fits(self, gangs: "_Gangs", fresh: dict[str, list[Cell]]) -> bool:
        """Whether some machine that the cluster has or could get holds a whole gang of the class."""
        if gangs.witness is not None and gangs.witness.ids:
            return True
        need = gangs.example
        # What the folded Need will ask for: whether machines share a value does not matter to one alone.
        fit = self._matcher.fit(gangs.shown.plain, need.aggregate)
        # A class that did not fit can only be helped by cells that were not there.
        first = gangs.state is None or gangs.witness is not None
        gangs.witness = None
        near: Iterable[Cell]
        if first:
            near = (
                next(iter(cells.values()))
                for state in (CONFIGURED, CONFIGURING)
                for machine_class, cells in self._inventory.cluster_classes(
                    need.cluster_id, state, fit.instance_types
                )
                if fit.suits(machine_class)
            )
        else:
            near = (cell for cell in fresh.get(need.cluster_id, ()) if fit.suits(cell.machine_class))
        gangs.witness = next(iter(near), None)
        for state in (IDLE, SPECULATIVE):
            if gangs.witness is None:
                pool = next(iter(fit.pools(state)), None)
                gangs.witness = None if pool is None else next(iter(pool.cells.values()))
        return gangs.witness is not None


@dataclass(slots=True, eq=False)
class _Shown:
    """What stands for the gangs of classes that share a folded Profile, folded or not."""

    key: GangClass
    """The class under which the folded Need stands."""
    plain: Profile
    classes: "dict[_Gangs, None]" = field(default_factory=dict)
    demand: dict[Place, Demand] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class _Gangs:
    """The gangs of one class."""

    example: Need
    shown: _Shown
    members: dict[Place, Need] = field(default_factory=dict)
    state: FoldState | None = None
    witness: Cell | None = None
    """A machine that holds a whole gang."""

    @property
    def is_settled(self) -> bool:
        """Whether it is folded and stays so."""
        return (
            self.state is not None
            and self.state.folded
            and self.witness is not None
            and bool(self.witness.ids)
        )


def _show(shown: _Shown) -> dict[Place, Demand]:
    """What stands for the gangs of some classes now."""
    demand: dict[Place, Demand] = {}
    folded: list[tuple[Place, Need]] = []
    plain = shown.plain
    for gangs in shown.classes:
        assert gangs.state is not None
        if gangs.state.folded:
            folded += gangs.members.items()
            continue
        also = {(plain.fingerprint, "")} if gangs.state.ever_folded else set()
        for place, need in gangs.members.items():
            own = (need.profile.fingerprint, need.group)
            demand[place] = Demand(need, place, frozenset({own} | also))
    if folded:
        # Most stand in order already.
        folded.sort(key=itemgetter(0))
        place, first = folded[0]
        members = [need for _, need in folded]
        need = replace(
            first,
            profile=plain,
            aggregate=first.aggregate * len(members),
            min_unit=first.aggregate,
            group="",
            arrival_ns=min(member.arrival_ns for member in members),
        )
        identities = [(member.profile.fingerprint, member.group) for member in members]
        demand[place] = Demand(
            need,
            place,
            frozenset([*identities, (plain.fingerprint, "")]),
            first.aggregate,
            tuple([member.group for member in members]),
        )
    return demand


def _plain(need: Need, place: Place) -> Demand:
    return Demand(need, place, frozenset({(need.profile.fingerprint, need.group)}))


def _class(need: Need) -> GangClass:
    return (need.cluster_id, need.profile.fingerprint, need.aggregate)


def _fresh(touched: Iterable[Cell]) -> dict[str, list[Cell]]:
    """Bound cells that may be new, by cluster."""
    found: dict[str, list[Cell]] = {}
    for cell in touched:
        if cell.ids and cell.state in (CONFIGURED, CONFIGURING):
            found.setdefault(cell.binding.cluster, []).append(cell)
    return found


def _looks_alike(a: FoldState, b: FoldState) -> bool:
    return (a.folded, a.ever_folded) == (b.folded, b.ever_folded)


@lru_cache(maxsize=10_000)
def folded_profile(profile: Profile) -> Profile:
    """The Profile of a gang that a single machine can serve."""
    same = profile.same
    assert same is not None
    anywhere = (
        Requirement(same.key, Operator.IN, same.values)
        if same.values
        else Requirement(same.key, Operator.EXISTS)
    )
    return replace(
        profile,
        requirements=(*(r for r in profile.requirements if r is not same), anywhere),
        spread=tuple(s for s in profile.spread if s.when is not WhenUnsatisfiable.DO_NOT_SCHEDULE),
    )


def _next_state(before: FoldState | None, fits: bool, tick: bool) -> FoldState:
    if before is None:
        return FoldState(folded=fits, ever_folded=fits)
    if before.folded == fits and not before.fitting_ticks:
        return before
    if before.folded or not fits:
        return FoldState(folded=fits and before.folded, ever_folded=before.ever_folded)
    fitting = before.fitting_ticks + tick
    if tick and fitting >= FOLD_AFTER:
        return FoldState(folded=True, ever_folded=True)
    return FoldState(folded=False, ever_folded=before.ever_folded, fitting_ticks=fitting)
