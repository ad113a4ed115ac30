"""Rails between decision and execution (engine.md §13).

A dropped action is never lost: an unchanged world yields it again in the next cycle.
"""

import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import islice, zip_longest

from bigfleet.engine.actions import Action, ActionKind
from bigfleet.engine.options import Options


@dataclass(slots=True)
class Bucket:
    """How many Reclaims a cluster may still lose."""

    tokens: Fraction
    filled_at: int


@dataclass(frozen=True, slots=True)
class Passed:
    """What the rails let through, and what they kept back."""

    actions: list[Action]
    busy: int = 0
    """Actions for machines that have one queued or running."""
    stale: int = 0
    """Actions whose machine has left the state they start from."""
    withheld: int = 0
    capped: int = 0
    deferred: int = 0
    """Cut by the action limit; a follow-up cycle takes them up at once."""
    dropped: int = 0
    """Cut because the action queue is full."""
    suppressed: Counter[ActionKind] = field(default_factory=Counter)
    """Decided while paused."""
    rehearsed: Counter[ActionKind] = field(default_factory=Counter)
    """Decided in a dry run."""


class Rails:
    """The rails with the one thing they remember: each cluster's reclaim bucket. There are thousands, most of
    them full; of these the load alone is kept, which is all that is in them."""

    def __init__(self) -> None:
        self._open: dict[str, Bucket] = {}
        """The buckets that are not full, and those of clusters that have nothing to lose."""
        self._loads: dict[str, int] = {}
        """Each cluster's load, the depth of its bucket, …"""
        self._loads_of: tuple[Mapping[str, int], Fraction] | None = None
        """… by these machines and this cap."""
        self._filled_at = 0
        """When all that are full were so last."""

    @property
    def buckets(self) -> dict[str, Bucket]:
        full = {cluster: Bucket(Fraction(load), self._filled_at) for cluster, load in self._loads.items()}
        return full | self._open

    @buckets.setter
    def buckets(self, known: dict[str, Bucket]) -> None:
        self._open, self._loads, self._loads_of = dict(known), {}, None

    def run(
        self,
        decided: list[Action],
        configured: Mapping[str, int],
        options: Options,
        now: int,
        *,
        busy: Callable[[str], bool],
        startable: Callable[[Action], bool],
        admit: Callable[[list[Action]], list[Action]],
        free_places: int | None,
    ) -> Passed:
        """Let pass what may be executed now; ``configured`` counts each cluster's machines, and is another
        object when they have changed."""
        self._refill(configured, options, now)
        if options.paused:
            return Passed([], suppressed=Counter(a.kind for a in decided))
        if options.dry_run:
            return Passed([], rehearsed=Counter(a.kind for a in decided))
        # All of this happens while everybody waits, and after an outage it may be a hundred thousand actions.
        free = [action for action in decided if not busy(action.machine_id)]
        fit = [action for action in free if startable(action)]
        actions = admit(fit)
        withheld = len(fit) - len(actions)
        actions, capped = self._cap(actions, options)
        deferred = dropped = 0
        if options.max_actions > 0:
            actions, deferred = _share(actions, options.max_actions)
        if free_places is not None:
            actions, dropped = _share(actions, free_places)
        if options.reclaim_cap > 0:
            for cluster, count in Counter(a.cluster for a in actions if a.kind is ActionKind.RECLAIM).items():
                full = Bucket(Fraction(self._loads[cluster]), now)
                self._open.setdefault(cluster, full).tokens -= count
        return Passed(
            actions,
            busy=len(decided) - len(free),
            stale=len(free) - len(fit),
            withheld=withheld,
            capped=capped,
            deferred=deferred,
            dropped=dropped,
        )

    def _refill(self, configured: Mapping[str, int], options: Options, now: int) -> None:
        """Let time flow into the buckets."""
        if options.reclaim_cap <= 0:
            return
        if (
            self._loads_of is None
            or self._loads_of[0] is not configured
            or self._loads_of[1] != options.reclaim_cap
        ):
            self._load(configured, options.reclaim_cap)
        interval = options.cycle_interval_ns
        for cluster, bucket in list(self._open.items()):
            load = self._loads.get(cluster)
            if load is None:
                # A bucket left alone for two intervals is full again, as it would be at first sight.
                if now - bucket.filled_at >= 2 * interval:
                    del self._open[cluster]
                continue
            gained = Fraction(load * max(0, now - bucket.filled_at), interval)
            bucket.tokens = min(Fraction(load), bucket.tokens + gained)
            bucket.filled_at = now
            if bucket.tokens == load:
                del self._open[cluster]
        self._filled_at = now

    def _load(self, configured: Mapping[str, int], cap: Fraction) -> None:
        """Give each bucket its depth. What was full before another depth is not full by it, or too full."""
        part, whole = cap.as_integer_ratio()
        loads = {cluster: max(1, part * count // whole) for cluster, count in configured.items()}
        for cluster, load in self._loads.items():
            if loads.get(cluster) != load and cluster not in self._open:
                self._open[cluster] = Bucket(Fraction(load), self._filled_at)
        self._loads, self._loads_of = loads, (configured, cap)

    def _cap(self, actions: list[Action], options: Options) -> tuple[list[Action], int]:
        if options.reclaim_cap <= 0:
            return actions, 0
        allowed: dict[str, int] = {}
        kept = []
        for action in actions:
            if action.kind is ActionKind.RECLAIM:
                left = allowed.get(action.cluster)
                if left is None:
                    left = self._allowed(action.cluster)
                if left == 0:
                    continue
                allowed[action.cluster] = left - 1
            kept.append(action)
        return kept, len(actions) - len(kept)

    def _allowed(self, cluster: str) -> int:
        """How many machines a cluster may lose now."""
        load, bucket = self._loads[cluster], self._open.get(cluster)
        return load if bucket is None else max(0, min(load, math.ceil(bucket.tokens)))


def _share(actions: list[Action], limit: int) -> tuple[list[Action], int]:
    """Cut to a limit, one action of each kind in turn, so that no kind starves another."""
    if len(actions) <= limit:
        return actions, 0
    turns: dict[ActionKind, list[int]] = {kind: [] for kind in ActionKind}
    for number, action in enumerate(actions):
        turns[action.kind].append(number)
    in_turn = (n for each in zip_longest(*turns.values()) for n in each if n is not None)
    return [actions[n] for n in sorted(islice(in_turn, limit))], len(actions) - limit
