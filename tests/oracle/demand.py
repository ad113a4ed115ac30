"""The NeedsTable, ingest of roll-ups and the empty-roll-up guard (§5, §13.2)."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from bigfleet_base.model import EMPTY, Need, ResourceVector, aggregate_rows
from bigfleet_base.model.penalty import BUCKETS, UNSPECIFIED, ZERO
from bigfleet_base.model.quantity import MAX_WIRE_UNITS
from tests.oracle.results import Ingest, Key

GUARD_FLOOR_ROWS: Final = 10
GUARD_HELD_AT_MOST: Final = 3


@dataclass(frozen=True, slots=True)
class _Baseline:
    rows: int
    totals: ResourceVector
    held: int = 0


class NeedsTable:
    """Demand by cluster, with first-seen times and the guard's memory."""

    def __init__(self) -> None:
        self._rows: dict[str, list[Need]] = {}
        self._arrivals: dict[Key, int] = {}
        self._baselines: dict[str, _Baseline] = {}
        self._reported: set[str] = set()

    @property
    def reported(self) -> frozenset[str]:
        """Clusters that sent a roll-up of any size since the process started (§13.5)."""
        return frozenset(self._reported)

    def apply_rollup(self, cluster: str, rows: Sequence[Need], now: int, *, guard: bool) -> Ingest:
        """One roll-up in the order of §5; the one entry point of demand."""
        if any(_refused(cluster, row) for row in rows):
            return Ingest.REFUSED
        rows = [_with_known_buckets(row) for row in rows]
        held = guard and self._held_by_guard(cluster, rows)
        self._reported.add(cluster)
        if held:
            return Ingest.HELD
        self._baselines[cluster] = _Baseline(len(rows), _totals(rows))
        self.replace(cluster, aggregate_rows(rows), now)
        return Ingest.ACCEPTED

    def replace(self, cluster: str, rows: Sequence[Need], now: int) -> None:
        """Swap the cluster's whole contribution; a key that stays keeps its first-seen time (ruling R5)."""
        arrivals = {row.key: self._arrivals.get(row.key, now) for row in rows}
        self._arrivals = {k: t for k, t in self._arrivals.items() if k[0] != cluster} | arrivals
        self._rows.pop(cluster, None)
        if rows:
            self._rows[cluster] = [replace(row, arrival_ns=arrivals[row.key]) for row in rows]

    def snapshot(self) -> list[Need]:
        """All rows in the order of §5; position inside the roll-up breaks the last tie."""
        rows = [row for cluster in sorted(self._rows) for row in self._rows[cluster]]
        return sorted(rows, key=lambda n: (-n.profile.priority, n.arrival_ns, n.cluster_id))

    def _held_by_guard(self, cluster: str, rows: Sequence[Need]) -> bool:
        known = self._baselines.get(cluster)
        if known is None or not _suspicious(known, rows):
            return False
        if known.held + 1 >= GUARD_HELD_AT_MOST:
            return False
        self._baselines[cluster] = replace(known, held=known.held + 1)
        return True


def _suspicious(known: _Baseline, rows: Sequence[Need]) -> bool:
    """§13.2: fewer than a tenth of the rows, or of every dimension that was wanted."""
    if known.rows < GUARD_FLOOR_ROWS:
        return False
    totals = _totals(rows)
    wanted = [d for d in known.totals if known.totals[d] > 0]
    vanished = bool(wanted) and all(10 * totals[d] < known.totals[d] for d in wanted)
    return 10 * len(rows) < known.rows or vanished


def _totals(rows: Sequence[Need]) -> ResourceVector:
    return sum((row.aggregate for row in rows), start=EMPTY)


def _refused(cluster: str, row: Need) -> bool:
    """What wire.md §9 refuses, as far as values of the model can still show it."""
    amounts = [*row.aggregate.values(), *row.min_unit.values()]
    return (
        row.cluster_id != cluster
        or any(amount < 0 or amount > 1000 * MAX_WIRE_UNITS for amount in amounts)
        or row.profile.interruption_bucket not in BUCKETS
        or row.profile.reclamation_bucket not in BUCKETS
        or (row.profile.same is not None and not row.group)
    )


def _with_known_buckets(row: Need) -> Need:
    """Bucket 0 becomes 1 before any fingerprint is taken (ruling R8)."""
    profile = row.profile
    if UNSPECIFIED not in (profile.interruption_bucket, profile.reclamation_bucket):
        return row
    return replace(
        row,
        profile=replace(
            profile,
            interruption_bucket=profile.interruption_bucket or ZERO,
            reclamation_bucket=profile.reclamation_bucket or ZERO,
        ),
    )
