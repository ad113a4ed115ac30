"""Demand: the Profile that identifies it and the Need that quantifies it (engine.md §2.3, §2.4)."""

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from bigfleet_base.model import penalty
from bigfleet_base.model.requirement import Operator, Requirement, TopologySpread, WhenUnsatisfiable
from bigfleet_base.model.resources import EMPTY, ResourceVector


@dataclass(frozen=True, slots=True)
class Profile:
    """An aggregation key without any resource shape; two equal Profiles have one fingerprint.

    Requirements and spread are kept in canonical order without repetition, so that the order in which a
    peer happened to list them never splits demand.
    """

    requirements: tuple[Requirement, ...] = ()
    spread: tuple[TopologySpread, ...] = ()
    priority: int = 0
    interruption_bucket: int = penalty.ZERO
    reclamation_bucket: int = penalty.ZERO
    fingerprint: str = field(init=False, compare=False)
    """SHA-256 of the canonical JSON: injective, stable across processes and versions (ruling R20)."""
    same: Requirement | None = field(init=False, compare=False, repr=False)
    """The requirement that makes this a gang's Profile, if it is one."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "requirements", tuple(sorted(set(self.requirements))))
        object.__setattr__(self, "spread", tuple(sorted(set(self.spread))))
        same = [r for r in self.requirements if r.operator is Operator.SAME]
        if len(same) > 1:
            raise ValueError("a Profile has at most one Same requirement")
        object.__setattr__(self, "same", same[0] if same else None)
        object.__setattr__(self, "fingerprint", _fingerprint(self))

    @property
    def strict_spread(self) -> TopologySpread | None:
        """The spread entry that binds: the first ``DoNotSchedule`` in canonical order."""
        return next((s for s in self.spread if s.when is WhenUnsatisfiable.DO_NOT_SCHEDULE), None)


@dataclass(frozen=True, slots=True)
class Need:
    """One row of demand. There is no count: the number of machines is an outcome."""

    cluster_id: str
    profile: Profile
    aggregate: ResourceVector
    min_unit: ResourceVector = EMPTY
    """Largest indivisible request; every machine counted or acquired covers it alone."""
    group: str = ""
    """Opaque gang identity, empty for plain demand; not part of the fingerprint."""
    arrival_ns: int = 0
    """When this shard first saw the row (ruling R5); 0 while unknown."""
    acquisition_parked: bool = False
    held_back: bool = False

    @property
    def key(self) -> tuple[str, str, str]:
        """What identifies the row from roll-up to roll-up: (cluster, fingerprint, group)."""
        return (self.cluster_id, self.profile.fingerprint, self.group)

    def arrived(self, at: int) -> "Need":
        """The same row, first seen then."""
        return Need(
            self.cluster_id,
            self.profile,
            self.aggregate,
            self.min_unit,
            self.group,
            at,
            self.acquisition_parked,
            self.held_back,
        )


def aggregate_rows(rows: Iterable[Need]) -> list[Need]:
    """Merge rows with one key, in the order the keys were first seen; different groups never merge."""
    merged: dict[tuple[str, str, str], Need] = {}
    for row in rows:
        known = merged.get(row.key)
        merged[row.key] = row if known is None else _merge(known, row)
    return list(merged.values())


def _merge(a: Need, b: Need) -> Need:
    return replace(
        a,
        aggregate=a.aggregate + b.aggregate,
        min_unit=a.min_unit.maximum(b.min_unit),
        arrival_ns=min(a.arrival_ns or b.arrival_ns, b.arrival_ns or a.arrival_ns),
    )


def _fingerprint(profile: Profile) -> str:
    canonical = [
        [[r.key, r.operator.value, list(r.values)] for r in profile.requirements],
        [[s.topology_key, s.when.value, s.max_skew] for s in profile.spread],
        profile.priority,
        profile.interruption_bucket,
        profile.reclamation_bucket,
    ]
    text = json.dumps(canonical, separators=(",", ":"))
    return hashlib.sha256(text.encode("ascii")).hexdigest()
