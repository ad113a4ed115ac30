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
    """The rails with the one thing they remember: each cluster's reclaim bucket."""

    def __init__(self) -> None:
        self.buckets: dict[str, Bucket] = {}

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
        """Let pass what may be executed now; ``configured`` counts each cluster's machines."""
        loads = self._refill(configured, options, now)
        if options.paused:
            return Passed([], suppressed=Counter(a.kind for a in decided))
        if options.dry_run:
            return Passed([], rehearsed=Counter(a.kind for a in decided))
        # All of this happens while everybody waits, and after an outage it may be a hundred thousand actions.
        free = [action for action in decided if not busy(action.machine_id)]
        fit = [action for action in free if startable(action)]
        actions = admit(fit)
        withheld = len(fit) - len(actions)
        actions, capped = self._cap(actions, loads, options)
        deferred = dropped = 0
        if options.max_actions > 0:
            actions, deferred = _share(actions, options.max_actions)
        if free_places is not None:
            actions, dropped = _share(actions, free_places)
        for cluster, count in Counter(a.cluster for a in actions if a.kind is ActionKind.RECLAIM).items():
            if cluster in loads:
                self.buckets[cluster].tokens -= count
        return Passed(
            actions,
            busy=len(decided) - len(free),
            stale=len(free) - len(fit),
            withheld=withheld,
            capped=capped,
            deferred=deferred,
            dropped=dropped,
        )

    def _refill(self, configured: Mapping[str, int], options: Options, now: int) -> dict[str, int]:
        """Let time flow into the buckets; returns each cluster's load, the depth of its bucket."""
        if options.reclaim_cap <= 0:
            return {}
        interval = options.cycle_interval_ns
        part, whole = options.reclaim_cap.as_integer_ratio()
        loads = {cluster: max(1, part * count // whole) for cluster, count in configured.items()}
        # A bucket left alone for two intervals is full again, as it would be at first sight.
        for idle in [
            c for c, b in self.buckets.items() if c not in loads and now - b.filled_at >= 2 * interval
        ]:
            del self.buckets[idle]
        for cluster, load in loads.items():
            bucket = self.buckets.get(cluster)
            if bucket is None:
                self.buckets[cluster] = Bucket(Fraction(load), now)
                continue
            if bucket.tokens == load:
                # Full, as most are, and there are thousands.
                bucket.filled_at = now
                continue
            gained = Fraction(load * max(0, now - bucket.filled_at), interval)
            bucket.tokens = min(Fraction(load), bucket.tokens + gained)
            bucket.filled_at = now
        return loads

    def _cap(
        self, actions: list[Action], loads: Mapping[str, int], options: Options
    ) -> tuple[list[Action], int]:
        if options.reclaim_cap <= 0:
            return actions, 0
        allowed = {
            cluster: max(0, min(load, math.ceil(self.buckets[cluster].tokens)))
            for cluster, load in loads.items()
        }
        kept = []
        for action in actions:
            if action.kind is ActionKind.RECLAIM:
                if allowed[action.cluster] == 0:
                    continue
                allowed[action.cluster] -= 1
            kept.append(action)
        return kept, len(actions) - len(kept)


def _share(actions: list[Action], limit: int) -> tuple[list[Action], int]:
    """Cut to a limit, one action of each kind in turn, so that no kind starves another."""
    if len(actions) <= limit:
        return actions, 0
    turns: dict[ActionKind, list[int]] = {kind: [] for kind in ActionKind}
    for number, action in enumerate(actions):
        turns[action.kind].append(number)
    in_turn = (n for each in zip_longest(*turns.values()) for n in each if n is not None)
    return [actions[n] for n in sorted(islice(in_turn, limit))], len(actions) - limit
