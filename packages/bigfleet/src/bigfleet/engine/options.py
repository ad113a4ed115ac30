"""What can be set about deciding, and the numbers that cannot (engine.md §1)."""

from dataclasses import dataclass, field
from fractions import Fraction
from typing import Final

from bigfleet_base.model import CapacityType

SECOND: Final = 1_000_000_000

PARK_AFTER: Final = 8
REPROBE_EVERY: Final = 32
FOLD_AFTER: Final = 3
LEDGER_MEMORY: Final = 3
REPORT_LIMIT: Final = 100
RECLAIM_GRACE_S: Final = 600
GUARD_FLOOR_ROWS: Final = 10
GUARD_CONFIRMATIONS: Final = 3
SUPPLY_CAP: Final = 1000
CANDIDATE_DOMAINS: Final = 5


@dataclass(frozen=True, slots=True)
class VictimWeights:
    """How much each term counts when the best victim is sought."""

    priority: float = 1.0
    drain: float = 0.1
    interruption: float = 0.1
    reclamation: float = 0.1


@dataclass(frozen=True, slots=True)
class Options:
    """Settings of one shard's decisions; they may change between cycles. The rails are off unless whoever
    deploys the engine turns them on, so that a simulation shows what it decides undamped (shard.md R7)."""

    cycle_interval_ns: int = 10 * SECOND
    reclaim_cap: Fraction = Fraction(0)
    """Share of a cluster's Configured machines that one interval may reclaim; 0 or less: no cap."""
    guard: bool = False
    """Hold a roll-up that shrinks to almost nothing until it is confirmed."""
    paused: bool = False
    dry_run: bool = False
    max_actions: int = 0
    """Most actions of one cycle; 0: no limit."""
    idle_hold_ns: dict[CapacityType, int] = field(
        default_factory=lambda: {CapacityType.ON_DEMAND: 600 * SECOND, CapacityType.SPOT: 60 * SECOND}
    )
    """How long elastic machines stay Idle before they are released; other types never are."""
    weights: VictimWeights = VictimWeights()
    estimated_drain_s: float = 30.0


DEFAULTS: Final = Options()


def drain_grace_s(gap: int) -> int:
    """Seconds a victim is given, by how far its priority lies below the preemptor's."""
    if gap > 900_000:
        return 10
    if gap > 500_000:
        return 30
    if gap > 100_000:
        return 120
    return 600
