"""Shortfalls: demand that neither supply nor preemption covers, and for how long (engine.md §14)."""

from collections.abc import Generator, Mapping
from typing import NamedTuple

from bigfleet.engine.options import LEDGER_MEMORY, REPORT_LIMIT
from bigfleet.engine.pace import pieces
from bigfleet.engine.preempt import Resolution
from bigfleet.engine.stock import Row
from bigfleet_base.model import EMPTY, Profile, ResourceVector

PartKey = tuple[str, str]
"""(cluster, fingerprint)."""


class Part(NamedTuple):
    """One cluster's unmet demand of one Profile."""

    profile: Profile
    deficit: ResourceVector
    age: int
    absent: int = 0
    """Ticks since it was last unmet; an absent part is remembered but not shown."""


class Shortfall(NamedTuple):
    """A row of the report: one Profile over all clusters."""

    profile: Profile
    deficit: ResourceVector
    age: int


Deficits = dict[PartKey, tuple[Profile, ResourceVector]]
"""What is missing, by part."""


class Ledger:
    """The parts, visible and remembered; a cycle puts what ``after`` gives in their place."""

    def __init__(self) -> None:
        self.parts: dict[PartKey, Part] = {}

    def after(self, deficits: Deficits, tick: bool) -> Generator[int, None, dict[PartKey, Part]]:
        """The parts after a cycle that found this missing."""
        parts: dict[PartKey, Part] = {}
        for short in pieces(deficits.items()):
            yield 1
            for key, (profile, deficit) in short:
                known = self.parts.get(key)
                age = 1 if known is None else known.age + tick
                parts[key] = Part(profile, deficit, age)
        for remembered in pieces(self.parts.items()):
            yield 1
            for key, known in remembered:
                if key not in parts:
                    absent = known.absent + tick
                    if absent <= LEDGER_MEMORY:
                        parts[key] = Part(known.profile, EMPTY, known.age, absent)
        return parts


def missing(resolutions: Mapping[Row, Resolution]) -> Generator[int, None, Deficits]:
    """What is missing after a cycle that found this for the Needs that were short."""
    sums: Deficits = {}
    for piece in pieces(resolutions.items()):
        yield 1
        for row, found in piece:
            if found.deficit.is_zero():
                continue
            key, profile = row.key[:2], row.demand.need.profile
            _, deficit = sums.get(key, (profile, EMPTY))
            sums[key] = (profile, deficit + found.deficit)
    return sums


def report(
    parts: Mapping[PartKey, Part],
) -> Generator[int, None, tuple[dict[PartKey, Part], list[Shortfall]]]:
    """The parts that are unmet now, and the worst shortfalls: by priority, then age, then fingerprint."""
    visible: dict[PartKey, Part] = {}
    rows: dict[str, Shortfall] = {}
    for piece in pieces(parts.items()):
        yield 1
        for key, part in piece:
            if part.deficit.is_zero():
                continue
            visible[key] = part
            row = rows.get(key[1])
            rows[key[1]] = (
                Shortfall(part.profile, part.deficit, part.age)
                if row is None
                else Shortfall(row.profile, row.deficit + part.deficit, max(row.age, part.age))
            )
    # Parts stand in the order of the demand, and so nearly in this one.
    worst = sorted(rows.values(), key=lambda r: (-r.profile.priority, -r.age, r.profile.fingerprint))
    return visible, worst[:REPORT_LIMIT]
