"""The rails between decision and execution (§13; the guard of §13.2 sits at ingest)."""

import math
from collections.abc import Mapping, Sequence
from fractions import Fraction

from tests.oracle.results import Action, Bucket, CycleInput, Kind, Options, Railed
from tests.oracle.world import CONFIGURED, Snapshot


def rails(
    snapshot: Snapshot,
    decided: Sequence[Action],
    buckets: Mapping[str, Bucket],
    inputs: CycleInput,
    options: Options,
) -> tuple[Railed, dict[str, Bucket]]:
    """What is executed of the decided actions, and the cap's buckets afterwards."""
    filled = _refill(snapshot, buckets, inputs.now, options)
    if options.paused:
        return Railed((), suppressed=len(decided)), filled
    if options.dry_run:
        return Railed((), dry_run=len(decided)), filled

    free = [a for a in decided if a.machine not in inputs.pending]
    capped = _cap(snapshot, free, filled, options)
    limited = share(capped, options.max_actions_per_cycle or None)
    executed = share(limited, inputs.free_places)
    for action in executed:
        if action.kind is Kind.RECLAIM and options.reclaim_cap_fraction > 0:
            bucket = filled[action.cluster]
            filled[action.cluster] = Bucket(bucket.tokens - 1, bucket.at)
    return (
        Railed(
            executed=tuple(executed),
            deduped=len(decided) - len(free),
            capped=len(free) - len(capped),
            deferred=len(capped) - len(limited),
            dropped=len(limited) - len(executed),
            follow_up=len(limited) < len(capped),
        ),
        filled,
    )


def share(actions: Sequence[Action], limit: int | None) -> list[Action]:
    """§13.4: one action of each kind in turn until the limit; survivors keep their order."""
    if limit is None or len(actions) <= limit:
        return list(actions)
    turns: list[tuple[int, int, int]] = []
    for rank, kind in enumerate(Kind):
        positions = [position for position, action in enumerate(actions) if action.kind is kind]
        turns += [(turn, rank, position) for turn, position in enumerate(positions)]
    kept = {position for _, _, position in sorted(turns)[:limit]}
    return [action for position, action in enumerate(actions) if position in kept]


def _load(snapshot: Snapshot, cluster: str, options: Options) -> int:
    """Reclaims a cluster may lose per interval; the fraction is the decimal as written (§13.1)."""
    fraction = Fraction(repr(options.reclaim_cap_fraction))
    return max(1, math.floor(fraction * len(snapshot.bound(cluster, CONFIGURED))))


def _refill(
    snapshot: Snapshot, buckets: Mapping[str, Bucket], now: int, options: Options
) -> dict[str, Bucket]:
    """§13.1: a bucket of one load per cluster, full at first sight, refilled by time.

    A bucket moves in every cycle whose snapshot shows Configured machines of its cluster: without them
    there is no load, and nothing to reclaim. It keeps its balance until they come back.
    """
    filled = dict(buckets)
    if options.reclaim_cap_fraction <= 0:
        return filled
    for cluster in snapshot.serving_clusters:
        load = Fraction(_load(snapshot, cluster, options))
        known = buckets.get(cluster)
        tokens = load
        if known is not None:
            elapsed = Fraction(max(0, now - known.at), options.cycle_interval_ns)
            tokens = min(load, known.tokens + load * elapsed)
        filled[cluster] = Bucket(tokens, now)
    return filled


def _cap(
    snapshot: Snapshot, actions: Sequence[Action], buckets: Mapping[str, Bucket], options: Options
) -> list[Action]:
    """§13.1: the first Reclaims of each cluster that its bucket pays for; nothing else is capped."""
    if options.reclaim_cap_fraction <= 0:
        return list(actions)
    room = {
        cluster: min(_load(snapshot, cluster, options), math.ceil(buckets[cluster].tokens))
        for cluster in snapshot.serving_clusters
    }
    kept: list[Action] = []
    for action in actions:
        if action.kind is Kind.RECLAIM:
            if room[action.cluster] <= 0:
                continue
            room[action.cluster] -= 1
        kept.append(action)
    return kept
