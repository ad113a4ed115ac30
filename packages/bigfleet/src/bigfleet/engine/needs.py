"""Demand as the shard holds it: the table of Needs and the guard in front of it (engine.md §5, §13.2)."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from bigfleet.engine.options import GUARD_CONFIRMATIONS, GUARD_FLOOR_ROWS
from bigfleet_base.model import EMPTY, Need, ResourceVector, aggregate_rows


@dataclass(slots=True)
class Baseline:
    """The last accepted roll-up of a cluster, as the guard remembers it."""

    rows: int
    totals: ResourceVector
    held: int = 0


@dataclass(slots=True)
class NeedsState:
    """All that the table remembers. Rows are replaced whole, never changed."""

    rows: dict[str, list[Need]] = field(default_factory=dict)
    baselines: dict[str, Baseline] = field(default_factory=dict)
    reported: set[str] = field(default_factory=set)


class NeedsTable:
    """The demand of every cluster, replaced whole with each roll-up."""

    def __init__(self, state: NeedsState | None = None) -> None:
        self.state = state or NeedsState()
        self._snapshot: tuple[Need, ...] | None = None
        self._asked: frozenset[str] | None = None

    @property
    def reported(self) -> frozenset[str]:
        """Clusters that have sent a roll-up since this process started, an empty or a held one included."""
        return frozenset(self.state.reported)

    def held(self, cluster: str) -> int:
        """How many roll-ups in a row the guard is holding."""
        baseline = self.state.baselines.get(cluster)
        return 0 if baseline is None else baseline.held

    def apply_rollup(self, cluster: str, rows: list[Need], now: int, *, guard: bool = True) -> bool:
        """Take a cluster's whole demand; False when the guard holds it and the old demand stays."""
        self.state.reported.add(cluster)
        totals = sum((row.aggregate for row in rows), EMPTY)
        known = self.state.baselines.get(cluster)
        if guard and known is not None and _suspicious(known, len(rows), totals):
            known.held += 1
            if known.held < GUARD_CONFIRMATIONS:
                return False
        self.state.baselines[cluster] = Baseline(len(rows), totals)
        self.replace(cluster, rows, now)
        return True

    def is_suspicious(self, cluster: str, rows: Sequence[Need]) -> bool:
        """Whether the guard would hold this roll-up."""
        known = self.state.baselines.get(cluster)
        totals = sum((row.aggregate for row in rows), EMPTY)
        return known is not None and _suspicious(known, len(rows), totals)

    def confirm(self, cluster: str) -> None:
        """The last accepted roll-up has come again: the cluster has reported, and nothing is held."""
        self.state.reported.add(cluster)
        baseline = self.state.baselines.get(cluster)
        if baseline is not None:
            baseline.held = 0

    def replace(self, cluster: str, rows: list[Need], now: int) -> None:
        """Swap the rows of a cluster; a row that stays keeps the time it was first seen."""
        arrivals = {need.key: need.arrival_ns for need in self.state.rows.get(cluster, ())}
        merged = aggregate_rows(replace(row, arrival_ns=0) for row in rows)
        if merged:
            self.state.rows[cluster] = [
                replace(need, arrival_ns=arrivals.get(need.key, now)) for need in merged
            ]
        else:
            self.state.rows.pop(cluster, None)
        self._snapshot = self._asked = None

    def snapshot(self) -> tuple[Need, ...]:
        """All rows in the order they are served: priority, then age, then cluster, then position."""
        if self._snapshot is None:
            rows = [need for cluster in sorted(self.state.rows) for need in self.state.rows[cluster]]
            rows.sort(key=lambda need: (-need.profile.priority, need.arrival_ns, need.cluster_id))
            self._snapshot = tuple(rows)
        return self._snapshot

    def asked_keys(self) -> frozenset[str]:
        """Every label key that some Need's requirements or spread look at."""
        if self._asked is None:
            profiles = {need.profile.fingerprint: need.profile for need in self.snapshot()}.values()
            self._asked = frozenset(
                key
                for profile in profiles
                for key in (
                    *(r.key for r in profile.requirements),
                    *(s.topology_key for s in profile.spread),
                )
            )
        return self._asked


def _suspicious(known: Baseline, rows: int, totals: ResourceVector) -> bool:
    if known.rows < GUARD_FLOOR_ROWS:
        return False
    if 10 * rows < known.rows:
        return True
    wanted = [(name, amount) for name, amount in known.totals.items() if amount > 0]
    return bool(wanted) and all(10 * totals[name] < amount for name, amount in wanted)
