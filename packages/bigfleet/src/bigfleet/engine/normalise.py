"""Gangs small enough for one machine become plain demand (engine.md §8).

A gang that fits one machine needs no common domain: it needs a machine. Folding many such gangs into one Need
is what keeps 2,400 gangs of a tenth of a machine from asking for 2,400 machines.
"""

from collections.abc import Generator, Iterable
from dataclasses import dataclass, field, replace

from bigfleet.engine.inventory import Inventory
from bigfleet.engine.matching import Matcher
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

Identity = tuple[str, str]
"""A name under which machines are bought for a Need: (fingerprint, group)."""
GangClass = tuple[str, str, ResourceVector]
"""Gangs that fold together or not at all: (cluster, fingerprint, aggregate)."""


@dataclass(frozen=True, slots=True)
class Demand:
    """One Need as the phases see it."""

    need: Need
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


def normalise(
    inventory: Inventory,
    matcher: Matcher,
    rows: Iterable[Need],
    memory: dict[GangClass, FoldState],
    tick: bool,
) -> Generator[int, None, tuple[list[Demand], dict[GangClass, FoldState]]]:
    """The demand with small gangs folded, and the memory to carry to the next cycle. Yields for each row."""
    remembered: dict[GangClass, FoldState] = {}
    placed: list[_Placed] = []
    folded: dict[tuple[str, str, ResourceVector], int] = {}
    for position, need in enumerate(rows):
        yield 1
        own = (need.profile.fingerprint, need.group)
        if need.profile.same is None:
            placed.append(_Placed(position, need, {own}))
            continue
        gang_class = (need.cluster_id, need.profile.fingerprint, need.aggregate)
        state = remembered.get(gang_class)
        if state is None:
            fits = _fits(inventory, matcher, need)
            state = remembered[gang_class] = _next_state(memory.get(gang_class), fits, tick)
        plain = folded_profile(need.profile)
        if not state.folded:
            identities = {own, (plain.fingerprint, "")} if state.ever_folded else {own}
            placed.append(_Placed(position, need, identities))
            continue
        key = (need.cluster_id, plain.fingerprint, need.aggregate)
        where = folded.get(key)
        if where is None:
            folded[key] = len(placed)
            first = replace(need, profile=plain, min_unit=need.aggregate, group="")
            identities = {(plain.fingerprint, ""), own}
            placed.append(_Placed(position, first, identities, need.aggregate, [need.group]))
            continue
        group = placed[where]
        group.need = replace(
            group.need,
            aggregate=group.need.aggregate + need.aggregate,
            arrival_ns=min(group.need.arrival_ns, need.arrival_ns),
        )
        group.identities.add(own)
        group.groups.append(need.group)
    if folded:
        placed.sort(
            key=lambda p: (-p.need.profile.priority, p.need.arrival_ns, p.need.cluster_id, p.position)
        )
    demand = []
    for p in placed:
        demand.append(Demand(p.need, frozenset(p.identities), p.members, tuple(p.groups)))
        yield 1
    return demand, remembered


@dataclass(slots=True)
class _Placed:
    """A Need on its way into the normalised demand."""

    position: int
    need: Need
    identities: set[Identity]
    members: ResourceVector | None = None
    groups: list[str] = field(default_factory=list)


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
    if before.folded or not fits:
        return FoldState(folded=fits and before.folded, ever_folded=before.ever_folded)
    fitting = before.fitting_ticks + tick
    if tick and fitting >= FOLD_AFTER:
        return FoldState(folded=True, ever_folded=True)
    return FoldState(folded=False, ever_folded=before.ever_folded, fitting_ticks=fitting)


def _fits(inventory: Inventory, matcher: Matcher, need: Need) -> bool:
    """Whether some machine that the cluster has or could get holds the whole gang."""
    pools = (
        inventory.cluster_cells(need.cluster_id, MachineState.CONFIGURED),
        inventory.cluster_cells(need.cluster_id, MachineState.CONFIGURING),
        inventory.cells(MachineState.IDLE),
        inventory.cells(MachineState.SPECULATIVE),
    )
    return any(
        matcher.suits(need.profile, need.aggregate, cell.machine_class) for cells in pools for cell in cells
    )
