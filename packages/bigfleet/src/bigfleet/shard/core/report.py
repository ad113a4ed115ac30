"""What a cycle tells the outside: verdicts, shortfalls, gauges, log lines (shard.md §9, §11, §12, §18)."""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from bigfleet.engine.actions import Action
from bigfleet.engine.cycle import CycleResult
from bigfleet.engine.ledger import PartKey, Shortfall
from bigfleet.engine.options import SECOND
from bigfleet.engine.plan import Change
from bigfleet.engine.verdicts import Verdict
from bigfleet.shard.core.attribution import attribute
from bigfleet.shard.core.context import Context, Timer
from bigfleet.shard.core.effects import LogLevel
from bigfleet.shard.core.journal import served
from bigfleet_base.model import CapacityType
from bigfleet_base.model.penalty import PINNED, ZERO, bound_dollars, bucket_for, bucket_label
from bigfleet_base.telemetry.catalogue import shard as series

SHORTFALL_REPEAT: Final = 60 * SECOND
"""How often the shortfall line comes while the set does not change."""
INFO_EVERY: Final = 60
_AGES: Final = ((300, "300+"), (60, "60-299"), (10, "10-59"), (1, "1-9"))


@dataclass(frozen=True, slots=True)
class Views:
    """What ``InspectNeeds`` serves: the verdicts of one cycle, never changed, replaced as a whole."""

    cycle: int = 0
    computed_at: int = 0
    verdicts: Sequence[Verdict] = ()


@dataclass(slots=True)
class ReportState:
    logged_at: int = 0
    since: dict[PartKey, int] = field(default_factory=dict)
    """When each part became short."""
    top: tuple[str, ...] = ()
    by_class: dict[str, int] = field(default_factory=dict)
    max_age: int = 0


class _Tally:
    """What is counted of the verdicts, kept up to date as they change: there may be tens of thousands."""

    def __init__(self) -> None:
        self.rows: Counter[int] = Counter()
        self.machines: Counter[str] = Counter()
        self.plain = 0
        self.same = 0

    def take(self, change: Change) -> None:
        before, after = change
        if before is not None:
            self._count(before, -1)
        if after is not None:
            self._count(after, 1)

    def _count(self, verdict: Verdict, by: int) -> None:
        profile = verdict.need.profile
        self.rows[profile.interruption_bucket] += by
        self.machines[priority_class(profile.priority)] += by * _machines_implied(verdict)
        if profile.same is None:
            self.plain += by
        else:
            self.same += by


class Reporter:
    """Reads the result of a cycle."""

    def __init__(self, ctx: Context, state: ReportState) -> None:
        self._ctx = ctx
        self.state = state
        self.views = Views()
        self.shortfalls: list[Shortfall] = []
        """The report of the last cycle."""
        self._tally = _Tally()

    def judging(self, afresh: bool) -> Callable[[Change], None]:
        """Verdicts change; returns what is to be told of each."""
        if afresh:
            self._tally = _Tally()
        return self._tally.take

    def witness(self, result: CycleResult) -> None:
        """Look at single machines while they are what was decided on."""
        attribute(self._ctx, result)

    def cycle(self, result: CycleResult, phases_ns: tuple[tuple[str, int], ...], *, deferred: int) -> None:
        """Publish all that a cycle found out; ``deferred`` actions were left out before the rails."""
        tally = self._tally
        self.views = Views(self._ctx.cycle, self._ctx.now, result.verdicts)
        self.shortfalls = result.report
        self._rails(result)
        if deferred + result.passed.deferred:
            self._ctx.audit("action.deferred", count=deferred + result.passed.deferred)
        self._shortfalls(result)
        self._inventory()
        self._ctx.show(
            series.DEMAND_MACHINES, {(bucket_label(b),): n for b, n in sorted(tally.rows.items()) if n}
        )
        self._ctx.show(series.NEEDS_ROWS, {("plain",): tally.plain, ("same",): tally.same})
        # As floats: demand may imply more machines than a recording has room for in a number.
        self._ctx.show(
            series.DEMAND_UNITS, {(name,): float(n) for name, n in sorted(tally.machines.items()) if n}
        )
        self._line(result, phases_ns)

    def timer(self) -> None:
        """A minute is over since the shortfalls were logged."""
        if self.state.since and self._ctx.now - self.state.logged_at >= SHORTFALL_REPEAT:
            self._log_shortfalls()

    def _rails(self, result: CycleResult) -> None:
        ctx, passed = self._ctx, result.passed
        if passed.busy or passed.stale:
            ctx.count(series.ACTIONS_DEDUPED, by=passed.busy + passed.stale)
        if passed.capped:
            ctx.count(series.RECLAIMS_CAPPED, by=passed.capped)
            ctx.log(
                LogLevel.WARN,
                "reclaim blast-radius cap engaged",
                deferred_reclaims=passed.capped,
                cap_fraction=float(ctx.settings.options.reclaim_cap),
            )
            ctx.audit("action.capped", count=passed.capped)
        if passed.deferred:
            ctx.count(series.ACTIONS_DEFERRED, "limit", by=passed.deferred)
        if passed.suppressed:
            for action in result.decided:
                ctx.count(series.ACTIONS_SUPPRESSED, action.kind.value)
                self._intention("action.suppressed", action)
            ctx.log(
                LogLevel.WARN,
                "actuation paused: decided actions suppressed",
                suppressed=passed.suppressed.total(),
            )
        if passed.rehearsed:
            for action in result.decided:
                ctx.count(series.ACTIONS_DRYRUN, action.kind.value)
                self._intention("action.dryrun", action)
                ctx.log(
                    LogLevel.INFO,
                    "dry-run: would execute action",
                    kind=action.kind.value,
                    machine=action.machine_id,
                    cluster=action.cluster,
                    reason=action.reason.value,
                    grace=action.grace_s or 0,
                )

    def _intention(self, what: str, action: Action) -> None:
        fingerprint, group, priority = served(action)
        self._ctx.audit(
            what,
            machine_id=action.machine_id,
            cluster=action.cluster or None,
            kind=action.kind.value,
            need_fp=fingerprint,
            group=group,
            priority=priority,
            reason=action.reason.value,
            grace_s=action.grace_s,
            cost=action.cost,
            runner_up_cost=action.runner_up_cost,
            victim_score=action.victim_score,
        )

    def _shortfalls(self, result: CycleResult) -> None:
        ctx, state = self._ctx, self.state
        parts = result.shortfalls
        changed = parts.keys() != state.since.keys()
        for key in [key for key in state.since if key not in parts]:
            ctx.observe(series.SHORTFALL_AGE, (ctx.now - state.since.pop(key)) / SECOND)
        for key in parts:
            state.since.setdefault(key, ctx.now)
        by_class = Counter(priority_class(row.profile.priority) for row in result.report)
        ages = Counter(_age_bucket(row) for row in result.report)
        ctx.mark(series.SHORTFALLS, len({fingerprint for _, fingerprint in parts}))
        ctx.show(series.SHORTFALLS_BY_PRIORITY, {(name,): n for name, n in by_class.items()})
        ctx.show(series.SHORTFALLS_AGED, {(name,): n for name, n in ages.items()})
        state.top = tuple(row.profile.fingerprint for row in result.report[:3])
        state.by_class = dict(by_class)
        state.max_age = max((row.age for row in result.report), default=0)
        if parts and (changed or ctx.now - state.logged_at >= SHORTFALL_REPEAT):
            self._log_shortfalls()

    def _log_shortfalls(self) -> None:
        ctx, state = self._ctx, self.state
        state.logged_at = ctx.now
        ctx.log(
            LogLevel.WARN,
            "shortfalls detected",
            count=len({fingerprint for _, fingerprint in state.since}),
            top_fingerprints=state.top,
            by_class=dict(sorted(state.by_class.items())),
            max_age=state.max_age,
        )
        if not ctx.settings.stepped:
            ctx.timers.at(ctx.now + SHORTFALL_REPEAT, Timer.SHORTFALLS)

    def _inventory(self) -> None:
        machines: Counter[tuple[str, ...]] = Counter()
        nano_dollars: Counter[tuple[str, ...]] = Counter()
        for (state, kind, penalty), tally in self._ctx.engine.inventory.tallies().items():
            if kind is CapacityType.UNSPECIFIED:
                # The series have no value for it.
                continue
            machines[state.title, kind.title, _penalty_label(penalty)] += tally.machines
            nano_dollars[state.title, kind.title] += tally.nano_dollars
        self._ctx.show(series.INVENTORY_MACHINES, dict(machines))
        self._ctx.show(series.INVENTORY_HOURLY_COST, {key: _dollars(n) for key, n in nano_dollars.items()})

    def _line(self, result: CycleResult, phases_ns: tuple[tuple[str, int], ...]) -> None:
        ctx = self._ctx
        kinds = Counter(action.kind.value for action in result.passed.actions)
        ctx.log(
            LogLevel.INFO if ctx.cycle % INFO_EVERY == 0 else LogLevel.DEBUG,
            "cycle",
            cycle=ctx.cycle,
            needs=len(result.verdicts),
            actions=dict(sorted(kinds.items())),
            deferred=result.passed.deferred + result.passed.withheld,
            shortfalls=len(result.shortfalls),
            phases_ms={phase: round(spent / 1e6, 3) for phase, spent in phases_ns},
        )


def priority_class(priority: int) -> str:
    """The label that a priority goes under."""
    if priority >= 1_000_000:
        return "critical"
    if priority >= 1_000:
        return "service"
    return "batch" if priority >= 100 else "other"


def _machines_implied(verdict: Verdict) -> int:
    """Machines that would cover a Need: those it has, scaled by its scarcest resource; where it has none, one
    for each indivisible unit."""
    need, deficit = verdict.need, verdict.deficit
    if deficit.is_zero():
        return verdict.claimed
    covered = need.aggregate - deficit
    short = [name for name, amount in deficit.items() if amount > 0]
    if verdict.claimed and all(covered[name] > 0 for name in short):
        return max(-(-verdict.claimed * need.aggregate[name] // covered[name]) for name in short)
    units = [-(-need.aggregate[name] // amount) for name, amount in need.min_unit.items() if amount > 0]
    return max([1, verdict.claimed, *units])


def _dollars(nano_dollars: int) -> float:
    try:
        return nano_dollars / 10**9
    except OverflowError:
        return math.inf


def _penalty_label(dollars: float) -> str:
    # Another shard's notes may say any number; only those on the ladder are counted in nano-dollars.
    return _LABELS.get(dollars) or bucket_label(
        PINNED if dollars > _HIGHEST_BOUND else bucket_for(round(dollars * 1e9))
    )


_LABELS: Final = {bound_dollars(bucket): bucket_label(bucket) for bucket in range(ZERO, PINNED + 1)}
_HIGHEST_BOUND: Final = bound_dollars(PINNED - 1)


def _age_bucket(row: Shortfall) -> str:
    return next((name for least, name in _AGES if row.age >= least), "1-9")
