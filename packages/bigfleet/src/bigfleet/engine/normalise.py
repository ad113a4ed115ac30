"""Gangs small enough for one machine become plain demand (engine.md §8).

A gang that fits one machine needs no common domain: it needs a machine. Folding many such gangs into one Need
is what keeps 2,400 gangs of a tenth of a machine from asking for 2,400 machines.
"""

from collections.abc import Collection, Generator, Iterable
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from bigfleet.engine.cells import Cell
from bigfleet.engine.inventory import Identity, Inventory
from bigfleet.engine.matching import Matcher
from bigfleet.engine.needs import Arrived, Place
from bigfleet.engine.options import FOLD_AFTER
from bigfleet_base.model import (
    MachineState,
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
        self._shown: dict[GangClass, dict[Place, Demand]] = {}
        """What stands for each class, folded or not; classes with one folded Profile share theirs."""

    def update(
        self, arrived: Arrived, touched: Collection[Cell], memory: dict[GangClass, FoldState], tick: bool
    ) -> Generator[int, None, tuple[Renewal, dict[GangClass, FoldState]]]:
        """What changes in the demand, and the memory to carry to the next cycle."""
        renewal = Renewal()
        stale: dict[GangClass, None] = {}
        for place, need in arrived.gone.items():
            yield 1
            if need.profile.same is None:
                renewal.gone[place] = None
            else:
                gangs = self._gangs[_class(need)]
                del gangs.members[place]
                stale[gangs.shown_as] = None
                if not gangs.members:
                    del self._gangs[_class(need)]
                    self._waiting.pop(_class(need), None)
        for place, need in arrived.come.items():
            yield 1
            if need.profile.same is None:
                renewal.come[place] = _plain(need, place)
                continue
            known = self._gangs.get(_class(need))
            if known is None:
                known = self._gangs[_class(need)] = _Gangs(need)
            known.members[place] = need
            stale[known.shown_as] = None
        remembered: dict[GangClass, FoldState] = {}
        concerned: Iterable[GangClass] = self._gangs
        if memory is self._remembered and not (arrived.gone or arrived.come or touched):
            concerned = list(self._waiting)
            remembered = dict(memory) if concerned else memory
        if self._gangs:
            fresh = _fresh(touched)
            for gang_class in concerned:
                gangs = self._gangs[gang_class]
                yield 1
                before = memory.get(gang_class)
                state = remembered[gang_class] = _next_state(before, self._fits(gangs, fresh), tick)
                if gangs.state is None or not _looks_alike(state, gangs.state):
                    stale[gangs.shown_as] = None
                gangs.state = state
                if gangs.witness is not None and not state.folded:
                    self._waiting[gang_class] = None
                else:
                    self._waiting.pop(gang_class, None)
        self._remembered = remembered
        shared = self._by_shown(stale) if stale else {}
        for shown_as in stale:
            yield 1
            before_now = self._shown.pop(shown_as, {})
            after = _show(shared.get(shown_as, []))
            if after:
                self._shown[shown_as] = after
            for place, demand in before_now.items():
                if after.get(place) != demand:
                    renewal.gone[place] = None
            for place, demand in after.items():
                if before_now.get(place) != demand:
                    renewal.come[place] = demand
                else:
                    # Equal demand stays the object it was.
                    after[place] = before_now[place]
        return renewal, remembered

    def _by_shown(self, stale: dict[GangClass, None]) -> dict[GangClass, list["_Gangs"]]:
        found: dict[GangClass, list[_Gangs]] = {}
        for gangs in self._gangs.values():
            if gangs.shown_as in stale:
                found.setdefault(gangs.shown_as, []).append(gangs)
        return found

    def _fits(self, gangs: "_Gangs", fresh: dict[str, list[Cell]]) -> bool:
        """Whether some machine that the cluster has or could get holds a whole gang of the class."""
        if gangs.witness is not None and gangs.witness.ids:
            return True
        need = gangs.example
        fit = self._matcher.fit(need.profile, need.aggregate)
        # A class that did not fit can only be helped by cells that were not there.
        first = gangs.state is None or gangs.witness is not None
        gangs.witness = None
        near: Iterable[Cell]
        if first:
            near = (
                next(iter(cells.values()))
                for state in (MachineState.CONFIGURED, MachineState.CONFIGURING)
                for machine_class, cells in self._inventory.cluster_classes(need.cluster_id, state).items()
                if fit.suits(machine_class)
            )
        else:
            near = (cell for cell in fresh.get(need.cluster_id, ()) if fit.suits(cell.machine_class))
        gangs.witness = next(iter(near), None)
        for state in (MachineState.IDLE, MachineState.SPECULATIVE):
            if gangs.witness is None:
                pool = next(iter(fit.pools(state)), None)
                gangs.witness = None if pool is None else next(iter(pool.cells.values()))
        return gangs.witness is not None


@dataclass(slots=True)
class _Gangs:
    """The gangs of one class."""

    example: Need
    members: dict[Place, Need] = field(default_factory=dict)
    state: FoldState | None = None
    witness: Cell | None = None
    """A machine that holds a whole gang."""
    plain: Profile = field(init=False)
    shown_as: GangClass = field(init=False)
    """The class under which the folded Need stands."""

    def __post_init__(self) -> None:
        self.plain = folded_profile(self.example.profile)
        self.shown_as = (self.example.cluster_id, self.plain.fingerprint, self.example.aggregate)


def _show(classes: list[_Gangs]) -> dict[Place, Demand]:
    """What stands for the gangs of classes that share a folded Profile."""
    shown: dict[Place, Demand] = {}
    folded: dict[Place, Need] = {}
    plain: Profile | None = None
    for gangs in classes:
        assert gangs.state is not None
        if gangs.state.folded:
            plain = gangs.plain
            folded |= gangs.members
            continue
        also = {(gangs.plain.fingerprint, "")} if gangs.state.ever_folded else set()
        for place, need in gangs.members.items():
            own = (need.profile.fingerprint, need.group)
            shown[place] = Demand(need, place, frozenset({own} | also))
    if plain is not None:
        places = sorted(folded)
        members = [folded[place] for place in places]
        first = members[0]
        need = replace(
            first,
            profile=plain,
            aggregate=first.aggregate * len(members),
            min_unit=first.aggregate,
            group="",
            arrival_ns=min(member.arrival_ns for member in members),
        )
        identities = {(member.profile.fingerprint, member.group) for member in members}
        shown[places[0]] = Demand(
            need,
            places[0],
            frozenset(identities | {(plain.fingerprint, "")}),
            first.aggregate,
            tuple(member.group for member in members),
        )
    return shown


def _plain(need: Need, place: Place) -> Demand:
    return Demand(need, place, frozenset({(need.profile.fingerprint, need.group)}))


def _class(need: Need) -> GangClass:
    return (need.cluster_id, need.profile.fingerprint, need.aggregate)


def _fresh(touched: Iterable[Cell]) -> dict[str, list[Cell]]:
    """Bound cells that may be new, by cluster."""
    found: dict[str, list[Cell]] = {}
    for cell in touched:
        if cell.ids and cell.state in (MachineState.CONFIGURED, MachineState.CONFIGURING):
            found.setdefault(cell.binding.cluster, []).append(cell)
    return found


def _looks_alike(a: FoldState, b: FoldState) -> bool:
    return (a.folded, a.ever_folded) == (b.folded, b.ever_folded)


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
