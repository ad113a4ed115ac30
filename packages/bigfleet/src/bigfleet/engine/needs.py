"""Demand as the shard holds it: the table of Needs and the guard in front of it (engine.md §5, §13.2)."""

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Final

from bigfleet.engine.options import GUARD_CONFIRMATIONS, GUARD_FLOOR_ROWS
from bigfleet_base.model import Need, ResourceVector, aggregate_rows


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


Place = tuple[int, int, str, int]
"""Where a Need stands in the order Needs are served: (-priority, arrival, cluster, position in its rows)."""


@dataclass(slots=True)
class Arrived:
    """Rows that came and went since somebody last asked."""

    gone: dict[Place, Need] = field(default_factory=dict)
    come: dict[Place, Need] = field(default_factory=dict)
    reported: frozenset[str] = frozenset()
    """The clusters that have told their demand, then or before."""

    def remove(self, place: Place, need: Need) -> None:
        """A row goes. Who has not been told of it need not be told that it is gone."""
        if self.come.pop(place, None) is None:
            self.gone[place] = need

    def replace(self, place: Place, old: Need, new: Need) -> None:
        """A row takes the place of another."""
        self.remove(place, old)
        self.come[place] = new


class NeedsTable:
    """The demand of every cluster, replaced whole with each roll-up."""

    def __init__(self, state: NeedsState | None = None) -> None:
        self.state = state or NeedsState()
        self._snapshot: tuple[Need, ...] | None = None
        self._reported = frozenset(self.state.reported)
        self._positions: dict[str, list[int]] = {}
        self._received: dict[str, tuple[Need, ...]] = {}
        """The last rows of each cluster as they came, unless some of them were merged."""
        self._keys: Counter[str] = Counter()
        self._changes = Arrived()
        for cluster, rows in self.state.rows.items():
            self._exchange(cluster, [], rows)

    @property
    def reported(self) -> frozenset[str]:
        """Clusters that have sent a roll-up since this process started, an empty or a held one included."""
        return self._reported

    def held(self, cluster: str) -> int:
        """How many roll-ups in a row the guard is holding."""
        baseline = self.state.baselines.get(cluster)
        return 0 if baseline is None else baseline.held

    def apply_rollup(self, cluster: str, rows: list[Need], now: int, *, guard: bool = False) -> bool:
        """Take a cluster's whole demand; False when the guard holds it and the old demand stays."""
        self._hear(cluster)
        totals = ResourceVector.total(row.aggregate for row in rows)
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
        totals = ResourceVector.total(row.aggregate for row in rows)
        return known is not None and _suspicious(known, len(rows), totals)

    def confirm(self, cluster: str) -> None:
        """The last accepted roll-up has come again: the cluster has reported, and nothing is held."""
        self._hear(cluster)
        baseline = self.state.baselines.get(cluster)
        if baseline is not None:
            baseline.held = 0

    def replace(self, cluster: str, rows: list[Need], now: int) -> None:
        """Swap the rows of a cluster; a row that stays keeps the time it was first seen."""
        before = self.state.rows.get(cluster, [])
        if self._amend(cluster, before, rows):
            return
        known = {need.key: need for need in before}
        after = []
        for row in aggregate_rows(rows):
            old = known.get(row.key)
            after.append(row.arrived(now) if old is None else _renewed(old, row))
        if after:
            self.state.rows[cluster] = after
            self._received[cluster] = tuple(rows) if len(rows) == len(after) else ()
        else:
            self.state.rows.pop(cluster, None)
            self._received.pop(cluster, None)
        self._exchange(cluster, before, after)

    def take_changes(self) -> Arrived:
        """What has changed since this was last called."""
        changes, self._changes = self._changes, Arrived()
        changes.reported = self.reported
        return changes

    def everything(self) -> Arrived:
        """All rows, as if they had just come."""
        return Arrived(
            come={
                _place(need, position): need
                for cluster, rows in self.state.rows.items()
                for position, need in zip(self._positions[cluster], rows, strict=True)
            },
            reported=self.reported,
        )

    def snapshot(self) -> tuple[Need, ...]:
        """All rows in the order they are served: priority, then age, then cluster, then position."""
        if self._snapshot is None:
            rows = [need for cluster in sorted(self.state.rows) for need in self.state.rows[cluster]]
            rows.sort(key=lambda need: (-need.profile.priority, need.arrival_ns, need.cluster_id))
            self._snapshot = tuple(rows)
        return self._snapshot

    def asked_keys(self) -> Collection[str]:
        """Every label key that some Need's requirements or spread look at."""
        return self._keys.keys()

    def _hear(self, cluster: str) -> None:
        if cluster not in self.state.reported:
            self.state.reported.add(cluster)
            self._reported = frozenset(self.state.reported)

    def _amend(self, cluster: str, before: list[Need], rows: list[Need]) -> bool:
        """The same for rows that want more or less of the same, which most roll-ups do; False if they do
        not."""
        received = self._received.get(cluster, ())
        if len(received) != len(rows) or not rows:
            return False
        changed = [n for n, (row, old) in enumerate(zip(rows, received, strict=True)) if row is not old]
        if any(rows[n].key != before[n].key for n in changed):
            return False
        after, positions = list(before), self._positions[cluster]
        for n in changed:
            old = before[n]
            after[n] = new = _renewed(old, rows[n])
            if new is not old:
                self._changes.replace(_place(new, positions[n]), old, new)
        self.state.rows[cluster], self._received[cluster] = after, tuple(rows)
        self._snapshot = None
        return True

    def _exchange(self, cluster: str, before: list[Need], after: list[Need]) -> None:
        """Note which rows differ, each with its place."""
        self._snapshot = None
        known = self._positions.pop(cluster, [])
        positions = _positions(before, known, after)
        if positions:
            self._positions[cluster] = positions
        old = {_place(need, position): need for position, need in zip(known, before, strict=True)}
        new = {_place(need, position): need for position, need in zip(positions, after, strict=True)}
        for place, need in old.items():
            if new.get(place) is not need:
                self._changes.remove(place, need)
                self._keys.subtract(_keys(need))
        for place, need in new.items():
            if old.get(place) is not need:
                self._changes.come[place] = need
                self._keys.update(_keys(need))
        self._keys = +self._keys


def _renewed(old: Need, row: Need) -> Need:
    """A row that was there before. What is as it was stays the same object, which is how everybody behind
    sees that it is."""
    if old.aggregate == row.aggregate and old.min_unit == row.min_unit:
        return old
    return row.arrived(old.arrival_ns)


_GAP: Final = 1 << 20


def _positions(before: list[Need], known: list[int], after: list[Need]) -> list[int]:
    """Numbers in the order of the rows; a row that keeps its neighbours keeps its number, so that one that
    comes or goes does not move all behind it."""
    at = {need.key: position for need, position in zip(before, known, strict=True)}
    positions: list[int] = []
    waiting = 0
    last = 0
    for row in after:
        position = at.get(row.key, 0)
        if position - last <= waiting:
            waiting += 1
            continue
        positions += _between(last, position, waiting)
        positions.append(position)
        last, waiting = position, 0
    return positions + [last + _GAP * n for n in range(1, waiting + 1)]


def _between(low: int, high: int, count: int) -> list[int]:
    step = (high - low) // (count + 1)
    return [low + step * n for n in range(1, count + 1)]


def _place(need: Need, position: int) -> Place:
    return (-need.profile.priority, need.arrival_ns, need.cluster_id, position)


def _keys(need: Need) -> set[str]:
    profile = need.profile
    return {r.key for r in profile.requirements} | {s.topology_key for s in profile.spread}


def _suspicious(known: Baseline, rows: int, totals: ResourceVector) -> bool:
    if known.rows < GUARD_FLOOR_ROWS:
        return False
    if 10 * rows < known.rows:
        return True
    wanted = [(name, amount) for name, amount in known.totals.items() if amount > 0]
    return bool(wanted) and all(10 * totals[name] < amount for name, amount in wanted)
