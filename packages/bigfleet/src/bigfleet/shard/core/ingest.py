"""Demand on its way in: the one door that roll-ups come through (shard.md §4, R2)."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from bigfleet.engine.options import GUARD_CONFIRMATIONS, SECOND
from bigfleet.engine.verdicts import Verdict
from bigfleet.shard.core.context import Cause, Context
from bigfleet.shard.core.effects import LogLevel
from bigfleet.shard.core.events import Rollup
from bigfleet_base.model import Machine, MachineState, Need
from bigfleet_base.telemetry.catalogue import shard as series

CRITICAL: Final = 1_000_000
"""A new row of this priority fires a cycle inside the window (L2)."""


@dataclass(frozen=True, slots=True)
class Accepted:
    """The last roll-up of a cluster that was taken."""

    digest: bytes
    rows: tuple[Need, ...]
    """As received, before equal rows are merged."""


@dataclass(slots=True)
class IngestState:
    accepted: dict[str, Accepted] = field(default_factory=dict)
    """One for each cluster; clusters are bounded where sessions are opened."""
    first_seen: dict[tuple[str, str], int] = field(default_factory=dict)
    """When a roll-up first named (cluster, fingerprint), until a machine is Configured for it or it turns out
    to be served already."""


class Ingest:
    """Applies roll-ups."""

    def __init__(self, ctx: Context, state: IngestState) -> None:
        self._ctx = ctx
        self.state = state

    def digest(self, cluster: str) -> bytes | None:
        """Of the last accepted roll-up."""
        known = self.state.accepted.get(cluster)
        return None if known is None else known.digest

    def rows(self, cluster: str, event: Rollup) -> tuple[Need, ...]:
        """The rows of a roll-up, those it repeats taken from the last accepted one."""
        known = self.state.accepted.get(cluster)
        before = () if known is None else known.rows
        fresh = iter(event.fresh)
        return tuple(next(fresh) if n < 0 else before[n] for n in event.order)

    def apply(self, cluster: str, rows: tuple[Need, ...], digest: bytes) -> bool:
        """Take a cluster's whole demand, unless the guard holds it."""
        ctx, needs = self._ctx, self._ctx.engine.needs
        known = self.state.accepted.get(cluster)
        before = () if known is None else known.rows
        held_before = needs.held(cluster)
        confirmed = held_before == GUARD_CONFIRMATIONS - 1 and needs.is_suspicious(cluster, rows)
        if not needs.apply_rollup(cluster, list(rows), ctx.now, guard=ctx.settings.options.guard):
            held = needs.held(cluster)
            ctx.mark(series.ROLLUP_QUARANTINED, held, cluster)
            self._quarantine_log(
                "rollup quarantined: full-replacement demand drop held", cluster, before, rows, held
            )
            ctx.audit("rollup.quarantined", cluster=cluster, count=len(rows))
            return False
        if confirmed:
            self._quarantine_log(
                "quarantined rollup accepted: demand drop confirmed by consecutive reports",
                cluster,
                before,
                rows,
                GUARD_CONFIRMATIONS,
            )
        if held_before:
            ctx.mark(series.ROLLUP_QUARANTINED, 0, cluster)
        self.state.accepted[cluster] = Accepted(digest, rows)
        self._note_arrivals(cluster, before, rows)
        if known is None or rows != before:
            # The first one, even of no rows, is what lets a cluster's machines be reclaimed (L7).
            ctx.audit("rollup.accepted", cluster=cluster, count=len(rows))
        if rows != before:
            ctx.wake(Cause.ROLLUP, urgent=_is_urgent(before, rows))
        return True

    def repeat(self, cluster: str) -> None:
        """The last accepted roll-up has come again: it counts as reported and ends a row of held ones."""
        needs = self._ctx.engine.needs
        if needs.held(cluster):
            self._ctx.mark(series.ROLLUP_QUARANTINED, 0, cluster)
        needs.confirm(cluster)

    def refuse(self, cluster: str, error: str) -> None:
        self._ctx.count(series.ROLLUPS_REJECTED, cluster)
        self._ctx.log(
            LogLevel.ERROR,
            "rollup rejected at ingest validation; keeping last-known-good demand",
            cluster=cluster,
            err=error,
        )
        self._ctx.audit("rollup.rejected", cluster=cluster, err=error)

    def judged(self, verdicts: Iterable[Verdict]) -> None:
        """A cycle has ended: nobody waited for what machines serve that were there before."""
        if not self.state.first_seen:
            return
        for verdict in verdicts:
            if verdict.satisfied and verdict.sources.bound == verdict.claimed:
                need = verdict.need
                self.state.first_seen.pop((need.cluster_id, need.profile.fingerprint), None)

    def changed(self, before: Machine | None, after: Machine | None) -> None:
        """Listens to the fleet: the first machine that serves a demand ends the wait for it."""
        if after is None or after.state is not MachineState.CONFIGURED or before is None:
            return
        since = self.state.first_seen.pop((after.cluster, after.assigned_need_fingerprint), None)
        if since is not None:
            self._ctx.observe(series.PROVISIONING_LATENCY, (self._ctx.now - since) / SECOND)

    def _note_arrivals(self, cluster: str, before: tuple[Need, ...], rows: tuple[Need, ...]) -> None:
        known = {need.profile.fingerprint for need in before}
        named = {need.profile.fingerprint for need in rows}
        for fingerprint in sorted(named - known):
            self.state.first_seen.setdefault((cluster, fingerprint), self._ctx.now)
        for fingerprint in sorted(known - named):
            self.state.first_seen.pop((cluster, fingerprint), None)

    def _quarantine_log(
        self, msg: str, cluster: str, before: tuple[Need, ...], rows: tuple[Need, ...], held: int
    ) -> None:
        self._ctx.log(
            LogLevel.WARN,
            msg,
            cluster=cluster,
            previous_rows=len(before),
            new_rows=len(rows),
            held_consecutive=held,
            accepted_after=GUARD_CONFIRMATIONS,
        )


def _is_urgent(before: tuple[Need, ...], rows: tuple[Need, ...]) -> bool:
    """Whether a critical row has come that was not there before."""
    critical = {need.key for need in rows if need.profile.priority >= CRITICAL}
    return bool(critical) and not critical <= {need.key for need in before}
