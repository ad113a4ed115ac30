"""What goes into a cycle and what comes out of it, as plain values that compare field by field.

An implementation under test is translated into these types by its adapter, so nothing here has behaviour.
Times are nanoseconds, amounts milli-units, graces seconds.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from fractions import Fraction
from typing import Final

from bigfleet_base.model import Machine, Need, Profile, ResourceVector
from bigfleet_base.model.lifecycle import Rpc

SECOND: Final = 1_000_000_000

Key = tuple[str, str, str]
"""A Need: (cluster, fingerprint, group)."""
FoldClass = tuple[str, str, ResourceVector]
"""Gangs that fold together: (cluster, fingerprint, aggregate)."""
AgeKey = tuple[str, str, str, ResourceVector | None]
"""A Need for verdict ages: its key, and its members' aggregate when it is folded (§15)."""


@dataclass(frozen=True, slots=True)
class Options:
    """The settings of §1 that change decisions, with the defaults of the library (rails off)."""

    cycle_interval_ns: int = 10 * SECOND
    reclaim_cap_fraction: float = 0.0
    guard: bool = False
    paused: bool = False
    dry_run: bool = False
    max_actions_per_cycle: int = 0
    hold_on_demand_ns: int = 600 * SECOND
    hold_spot_ns: int = 60 * SECOND
    weight_priority: float = 1.0
    weight_drain: float = 0.1
    weight_interruption: float = 0.1
    weight_reclamation: float = 0.1
    estimated_drain_s: float = 30.0


@dataclass(frozen=True, slots=True)
class CycleInput:
    """What the shard tells the engine besides inventory and demand (§7)."""

    now: int
    tick: bool = True
    blocked: frozenset[tuple[str, str]] = frozenset()
    """(cluster, fingerprint) pairs that are held back after an operator's error."""
    no_session: frozenset[str] = frozenset()
    """Clusters without a session for 60 s."""
    held_off: frozenset[tuple[str, Rpc]] = frozenset()
    """Calls not to be tried on a machine at present."""
    pending: frozenset[str] = frozenset()
    """Machines with an action queued or running."""
    free_places: int | None = None
    """Room in the action queue; None: no bound."""


class Kind(StrEnum):
    BOOTSTRAP = "Bootstrap"
    PROVISION = "Provision"
    PREEMPT = "Preempt"
    RECLAIM = "Reclaim"
    DELETE = "Delete"


@dataclass(frozen=True, slots=True)
class Preemptor:
    priority: int
    cluster: str
    fingerprint: str
    group: str


@dataclass(frozen=True, slots=True)
class Action:
    """One decision (§2.6): the cluster is the destination, of a drain the source, of a Delete empty."""

    kind: Kind
    machine: str
    cluster: str
    reason: str
    grace_s: int = 0
    profile: Profile | None = None
    group: str = ""
    preemptor: Preemptor | None = None


class Ingest(StrEnum):
    """What became of a roll-up (§5, §13.2)."""

    REFUSED = "refused"
    HELD = "held"
    ACCEPTED = "accepted"


@dataclass(frozen=True, slots=True)
class Memory:
    """What the inventory remembers beside a machine's record (§2.5); ``held_off`` comes with the cycle."""

    idle_since: int | None = None
    last_reclamation_value: float = 0.0
    preempted_for: Key | None = None
    drain_deadline: int | None = None
    seen_start: bool = False
    not_deletable: bool = False


@dataclass(frozen=True, slots=True)
class Row:
    """One Need of the normalised demand and the identities machines are bought for it under (§8)."""

    need: Need
    identities: frozenset[tuple[str, str]]
    """(fingerprint, group) pairs."""
    member_aggregate: ResourceVector | None = None
    member_groups: tuple[str, ...] = ()

    @property
    def age_key(self) -> AgeKey:
        return (*self.need.key, self.member_aggregate)


@dataclass(frozen=True, slots=True)
class DomainCoverage:
    domain: str
    coverage_per_mille: int
    satisfiable: bool


@dataclass(frozen=True, slots=True)
class Assigned:
    """Phase 1's outcome for one Need (§10.7)."""

    claims: tuple[str, ...]
    """Machine ids, credit first, in the order they were taken."""
    deficit: ResourceVector
    acquired: int
    same_domain: str | None
    same_satisfiable: bool
    candidates: tuple[DomainCoverage, ...]
    """Every domain of the first ranking, best first; empty without ``Same``."""
    spread_stopped: bool


@dataclass(frozen=True, slots=True)
class Phase1Result:
    actions: tuple[Action, ...]
    needs: tuple[Assigned, ...]
    claimed: Mapping[str, int]
    """Machine id → row index of the Need that claims it."""


@dataclass(frozen=True, slots=True)
class Inversion:
    """Phase 2's outcome for one unsatisfied Need (§11)."""

    index: int
    deficit: ResourceVector
    """What picks and counted drains leave short."""
    picked: tuple[str, ...]
    counted: tuple[str, ...]
    preempted: bool
    spread_stopped: bool


@dataclass(frozen=True, slots=True)
class Phase2Result:
    actions: tuple[Action, ...]
    needs: tuple[Inversion, ...]
    """One per unsatisfied Need, in the order Phase 2 took them."""
    picked: frozenset[str]

    @property
    def unresolved(self) -> tuple[Inversion, ...]:
        return tuple(n for n in self.needs if not n.deficit.is_zero())


@dataclass(frozen=True, slots=True)
class Railed:
    """What the rails leave of the decided actions (§13)."""

    executed: tuple[Action, ...]
    deduped: int = 0
    capped: int = 0
    deferred: int = 0
    dropped: int = 0
    suppressed: int = 0
    dry_run: int = 0
    follow_up: bool = False


@dataclass(frozen=True, slots=True)
class Shortfall:
    """One row of the report (§14); its interruption bucket is the Profile's."""

    profile: Profile
    deficit: ResourceVector
    age: int


class Reason(StrEnum):
    """Why a Need is unmet, the finer reasons included (§15)."""

    NONE = "NONE"
    PREEMPTION_PENDING = "PREEMPTION_PENDING"
    TOPOLOGY_UNSATISFIABLE = "TOPOLOGY_UNSATISFIABLE"
    NO_MATCHING_SUPPLY = "NO_MATCHING_SUPPLY"
    PREEMPTION_EXHAUSTED = "PREEMPTION_EXHAUSTED"
    SPREAD_UNSATISFIABLE = "SPREAD_UNSATISFIABLE"
    INSUFFICIENT_SUPPLY = "INSUFFICIENT_SUPPLY"
    PRIORITY_STARVED = "PRIORITY_STARVED"


@dataclass(frozen=True, slots=True)
class MatchingSupply:
    idle: int
    speculative: int
    configured: int
    capped: bool


@dataclass(frozen=True, slots=True)
class PreemptionSummary:
    victims_found: int
    capacity_freed: ResourceVector


@dataclass(frozen=True, slots=True)
class Verdict:
    """The view of one Need (§15, wire.md §6)."""

    cluster: str
    profile: Profile
    aggregate: ResourceVector
    min_unit: ResourceVector
    arrival_ns: int
    group: str
    member_groups: tuple[str, ...]
    satisfied: bool
    deficit: ResourceVector
    claimed: int
    bootstrap: int
    provision: int
    same_domain: str | None
    same_satisfiable: bool
    acquisition_parked: bool
    parked_age: int
    age: int
    reason: Reason
    wire_reason: Reason
    unmet_detail: str
    matching_supply: MatchingSupply | None
    """Of unmet Needs only."""
    preemption: PreemptionSummary | None
    candidates: tuple[DomainCoverage, ...]


@dataclass(frozen=True, slots=True)
class Fold:
    """Memory of one gang class (§8)."""

    folded: bool
    fitting_ticks: int
    ever_folded: bool


@dataclass(frozen=True, slots=True)
class Bucket:
    """A cluster's reclaim allowance (§13.1)."""

    tokens: Fraction
    at: int


@dataclass(frozen=True, slots=True)
class Part:
    """The shortfall of one (cluster, fingerprint) (§14)."""

    profile: Profile
    deficit: ResourceVector
    age: int
    visible: bool = True
    absent_ticks: int = 0


@dataclass(frozen=True, slots=True)
class Carried:
    """All that lives from cycle to cycle beside inventory and demand (§7), in memory only."""

    folds: Mapping[FoldClass, Fold] = field(default_factory=dict)
    parking: Mapping[Key, int] = field(default_factory=dict)
    helped: frozenset[Key] = frozenset()
    """Needs that Phase 2 picked or counted a machine for in the last cycle."""
    buckets: Mapping[str, Bucket] = field(default_factory=dict)
    ledger: Mapping[tuple[str, str], Part] = field(default_factory=dict)
    ages: Mapping[AgeKey, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CycleResult:
    """One cycle: what was decided, what the rails let through, and what everyone may read of it."""

    machines: Mapping[str, Machine]
    """The snapshot the cycle worked on."""
    rows: tuple[Row, ...]
    phase1: Phase1Result
    phase2: Phase2Result
    decided: tuple[Action, ...]
    rails: Railed
    report: tuple[Shortfall, ...]
    verdicts: tuple[Verdict, ...]
    carried: Carried
