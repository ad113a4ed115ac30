"""Shortfalls: demand that neither supply nor preemption covers, and for how long (engine.md §14)."""

from collections.abc import Mapping
from dataclasses import dataclass

from bigfleet.engine.options import LEDGER_MEMORY, REPORT_LIMIT
from bigfleet.engine.preempt import Resolution
from bigfleet.engine.stock import Row
from bigfleet_base.model import EMPTY, Profile, ResourceVector

PartKey = tuple[str, str]
"""(cluster, fingerprint)."""


@dataclass(frozen=True, slots=True)
class Part:
    """One cluster's unmet demand of one Profile."""

    profile: Profile
    deficit: ResourceVector
    age: int
    absent: int = 0
    """Ticks since it was last unmet; an absent part is remembered but not shown."""


@dataclass(frozen=True, slots=True)
class Shortfall:
    """A row of the report: one Profile over all clusters."""

    profile: Profile
    deficit: ResourceVector
    age: int


class Ledger:
    """The parts, visible and remembered."""

    def __init__(self) -> None:
        self.parts: dict[PartKey, Part] = {}

    def record(self, unresolved: Mapping[Row, Resolution], tick: bool) -> None:
        """Take over what a cycle left unresolved."""
        sums: dict[PartKey, tuple[Profile, ResourceVector]] = {}
        for row, found in unresolved.items():
            need = row.demand.need
            key = (need.cluster_id, need.profile.fingerprint)
            _, deficit = sums.get(key, (need.profile, EMPTY))
            sums[key] = (need.profile, deficit + found.deficit)
        parts: dict[PartKey, Part] = {}
        for key, (profile, deficit) in sums.items():
            known = self.parts.get(key)
            age = 1 if known is None else known.age + tick
            parts[key] = Part(profile, deficit, age)
        for key, known in self.parts.items():
            if key not in parts:
                absent = known.absent + tick
                if absent <= LEDGER_MEMORY:
                    parts[key] = Part(known.profile, EMPTY, known.age, absent)
        self.parts = parts

    def visible(self) -> dict[PartKey, Part]:
        """The parts that are unmet now."""
        return {key: part for key, part in self.parts.items() if not part.deficit.is_zero()}

    def report(self) -> list[Shortfall]:
        """The worst shortfalls: by priority, then age, then fingerprint."""
        rows: dict[str, Shortfall] = {}
        for (_, fingerprint), part in self.visible().items():
            row = rows.get(fingerprint, Shortfall(part.profile, EMPTY, 0))
            rows[fingerprint] = Shortfall(row.profile, row.deficit + part.deficit, max(row.age, part.age))
        ordered = sorted(rows.values(), key=lambda r: (-r.profile.priority, -r.age, r.profile.fingerprint))
        return ordered[:REPORT_LIMIT]
