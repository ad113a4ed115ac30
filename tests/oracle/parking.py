"""Parking of structurally unsatisfiable gangs, and Needs that are held back (§9)."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Final

from tests.oracle.context import Context
from tests.oracle.results import CycleInput, Key, Phase1Result, Row
from tests.oracle.world import CREATING, DRAINING

PARK_AFTER: Final = 8
REPROBE_EVERY: Final = 32


def stamp(rows: Sequence[Row], ages: Mapping[Key, int], inputs: CycleInput) -> tuple[Row, ...]:
    """§9, before Phase 1: mark what may start nothing.

    A Need that is both parked by age and held back is marked held back alone: §9 wants held-back Needs
    "with acquisition_parked false", shard.md §12 "not shown as parked".
    """
    stamped: list[Row] = []
    for row in rows:
        need = row.need
        held = (need.cluster_id, need.profile.fingerprint) in inputs.blocked
        held = held or need.cluster_id in inputs.no_session
        age = ages.get(need.key, 0) if need.profile.same is not None else 0
        parked = age >= PARK_AFTER and age % REPROBE_EVERY != 0
        need = replace(need, acquisition_parked=parked and not held, held_back=held)
        stamped.append(replace(row, need=need))
    return tuple(stamped)


def update(
    context: Context, result: Phase1Result, ages: Mapping[Key, int], helped: frozenset[Key]
) -> dict[Key, int]:
    """§9, after Phase 1: the gangs that made no progress grow older, all others forget their age."""
    kept: dict[Key, int] = {}
    for row, assigned in zip(context.rows, result.needs, strict=True):
        need = row.need
        if need.profile.same is None or assigned.deficit.is_zero():
            continue
        known = ages.get(need.key)
        if need.held_back:
            if known is not None:
                kept[need.key] = known
        elif not (
            assigned.acquired > 0
            or assigned.same_satisfiable
            or any(context.snapshot.machines[i].state is CREATING for i in assigned.claims)
            or any(context.drains_for(m, row) for m in context.snapshot.in_state(DRAINING))
            or need.key in helped
        ):
            kept[need.key] = 1 if known is None else known + int(context.inputs.tick)
    return kept
