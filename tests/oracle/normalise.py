"""Folding of gangs that fit one machine (§8)."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from bigfleet_base.model import Need, Operator, Profile, Requirement, ResourceVector, WhenUnsatisfiable
from tests.oracle.results import Fold, FoldClass, Row
from tests.oracle.world import CONFIGURED, CONFIGURING, IDLE, SPECULATIVE, Snapshot

FOLD_AFTER_TICKS: Final = 3


def normalise(
    snapshot: Snapshot, demand: Sequence[Need], folds: Mapping[FoldClass, Fold], *, tick: bool
) -> tuple[list[Row], dict[FoldClass, Fold]]:
    """The demand with foldable gangs merged, and the fold memory of the classes present (§8)."""
    memory: dict[FoldClass, Fold] = {}
    for need in demand:
        if need.profile.same is not None and fold_class(need) not in memory:
            memory[fold_class(need)] = _remember(
                folds.get(fold_class(need)), fits=_fits(snapshot, need), tick=tick
            )

    placed: list[tuple[int, Row]] = []
    groups: dict[tuple[str, str, ResourceVector], list[tuple[int, Need]]] = {}
    for position, need in enumerate(demand):
        own = (need.profile.fingerprint, need.group)
        fold = memory.get(fold_class(need)) if need.profile.same is not None else None
        if fold is None:
            placed.append((position, Row(need, frozenset({own}))))
        elif fold.folded:
            key = (need.cluster_id, folded_profile(need.profile).fingerprint, need.aggregate)
            groups.setdefault(key, []).append((position, need))
        else:
            as_folded = {(folded_profile(need.profile).fingerprint, "")} if fold.ever_folded else set()
            placed.append((position, Row(need, frozenset({own} | as_folded))))
    placed += [(members[0][0], _merged([need for _, need in members])) for members in groups.values()]

    def place(item: tuple[int, Row]) -> tuple[int, int, str, int]:
        position, row = item
        return (-row.need.profile.priority, row.need.arrival_ns, row.need.cluster_id, position)

    return [row for _, row in sorted(placed, key=place)], memory


def fold_class(need: Need) -> FoldClass:
    return (need.cluster_id, need.profile.fingerprint, need.aggregate)


def folded_profile(profile: Profile) -> Profile:
    """``Same`` as ``In`` or ``Exists``, without the spread that ``Same`` had switched off (§8)."""
    return replace(
        profile,
        requirements=tuple(_unsame(r) for r in profile.requirements),
        spread=tuple(s for s in profile.spread if s.when is not WhenUnsatisfiable.DO_NOT_SCHEDULE),
    )


def _unsame(requirement: Requirement) -> Requirement:
    if requirement.operator is not Operator.SAME:
        return requirement
    return replace(requirement, operator=Operator.IN if requirement.values else Operator.EXISTS)


def _fits(snapshot: Snapshot, need: Need) -> bool:
    """Whether some machine could hold the whole gang; claims do not matter (§8)."""
    pool = [
        *snapshot.bound(need.cluster_id, CONFIGURED),
        *snapshot.bound(need.cluster_id, CONFIGURING),
        *snapshot.in_state(IDLE, SPECULATIVE),
    ]
    return any(m.matches(need.profile) and m.alloc.covers(need.aggregate) for m in pool)


def _remember(known: Fold | None, *, fits: bool, tick: bool) -> Fold:
    """The table of §8: fold at first sight, un-fold at once, fold again in the third fitting tick."""
    if known is None:
        return Fold(folded=fits, fitting_ticks=0, ever_folded=fits)
    if not fits:
        return replace(known, folded=False, fitting_ticks=0)
    if known.folded or not tick:
        return known
    ticks = known.fitting_ticks + 1
    if ticks < FOLD_AFTER_TICKS:
        return replace(known, fitting_ticks=ticks)
    return Fold(folded=True, fitting_ticks=0, ever_folded=True)


def _merged(members: list[Need]) -> Row:
    """One Need for all gangs of a folded group (§8)."""
    first = members[0]
    folded = Need(
        cluster_id=first.cluster_id,
        profile=folded_profile(first.profile),
        aggregate=first.aggregate * len(members),
        min_unit=first.aggregate,
        arrival_ns=min(member.arrival_ns for member in members),
    )
    identities = {(folded.profile.fingerprint, "")} | {(m.profile.fingerprint, m.group) for m in members}
    return Row(
        folded,
        frozenset(identities),
        member_aggregate=first.aggregate,
        member_groups=tuple(m.group for m in members),
    )
