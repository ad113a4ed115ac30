"""What a provider tells the outside: reports of the core as metrics and log lines."""

import time
from collections.abc import Callable
from typing import Final

from bigfleet_base.model import CapacityType, MachineState
from bigfleet_base.telemetry import Log, Metrics, Role
from bigfleet_base.telemetry.catalogue import provider as series
from bigfleet_providerkit.core import Core
from bigfleet_providerkit.effects import (
    Accepted,
    Code,
    HostLost,
    Interrupted,
    LateResult,
    Panicked,
    PriceRefreshed,
    Reconciled,
    Refused,
    RepairTried,
    Replayed,
    Report,
    Settled,
    Withheld,
)
from bigfleet_providerkit.records import Kind

_PUBLISHED: Final = [kind for kind in CapacityType if kind is not CapacityType.UNSPECIFIED]


class Telemetry:
    """Metrics and log of one provider."""

    def __init__(self, provider: str, log: Log, wall: Callable[[], float] = time.time) -> None:
        self._metrics = Metrics(Role.PROVIDER, given={"provider": provider})
        self._log = log
        self._wall = wall
        metrics = self._metrics
        self._machines = {
            (state, kind): metrics.gauge(series.MACHINES, state.title, kind.title)
            for state in MachineState
            for kind in _PUBLISHED
        }
        self._inflight = {kind: metrics.gauge(series.INFLIGHT, kind.value) for kind in Kind}
        self._revision = metrics.gauge(series.REVISION)
        self._writes = metrics.histogram(series.STORE_WRITE_DURATION)
        self._write_failures = metrics.counter(series.STORE_WRITE_FAILURES)
        self._panics = metrics.counter(series.PANICS)

    def render(self, core: Core) -> bytes:
        """The metrics page."""
        counts = core.listing.counts()
        for key, gauge in self._machines.items():
            gauge.set(counts.get(key, 0))
        for kind, inflight in core.inflight.items():
            self._inflight[kind].set(inflight)
        self._revision.set(core.listing.head)
        return self._metrics.render()

    def rpc(self, method: str, code: str, seconds: float) -> None:
        self._metrics.counter(series.RPCS, method, code).inc()
        self._metrics.histogram(series.RPC_DURATION, method).observe(seconds)

    def read(self, method: str, machine: str, code: Code, message: str) -> None:
        if code is Code.OK:
            self._log.debug("read answered", method=method, **_ids(machine))
        else:
            self._log.warn("read refused", method=method, code=code.value, err=message, **_ids(machine))

    def substrate(self, method: str, outcome: str, seconds: float) -> None:
        self._metrics.counter(series.SUBSTRATE_CALLS, method, outcome).inc()
        self._metrics.histogram(series.SUBSTRATE_DURATION, method).observe(seconds)

    def feed_failed(self, feed: str, error: BaseException) -> None:
        self._metrics.counter(series.PRICE_REFRESHES, feed, "error").inc()
        self._log.warn("feed of the backend failed; it is started again", feed=feed, err=error)

    def wrote(self, seconds: float, error: Exception | None) -> None:
        self._writes.observe(seconds)
        if error is not None:
            self._write_failures.inc()
            self._log.error("store write failed; calls are answered UNAVAILABLE", err=error)

    def panicked(self, error: BaseException) -> None:
        """A defect showed, in a call or in the background."""
        self._panics.inc()
        self._log.error("unexpected error", err=error)

    def report(self, report: Report) -> None:
        """Count and log what the core did."""
        log, metrics = self._log, self._metrics
        match report:
            case Accepted(kind, machine, operation, shard, cluster):
                log.info("transition accepted", kind=kind.value, **_ids(machine, operation, shard, cluster))
            case Replayed(kind, machine, operation, shard):
                metrics.counter(series.IDEMPOTENT_REPLAYS, kind.value).inc()
                log.info("transition repeated", kind=kind.value, **_ids(machine, operation, shard))
            case Refused(kind, machine, shard, code, message):
                if code is Code.FAILED_PRECONDITION:
                    metrics.counter(series.FENCED, shard).inc()
                log.warn(
                    "call refused", kind=kind.value, code=code.value, err=message, **_ids(machine, "", shard)
                )
            case Settled(kind, machine, operation, outcome, seconds, error):
                metrics.counter(series.TRANSITIONS, kind.value, outcome).inc()
                metrics.histogram(series.TRANSITION_DURATION, kind.value).observe(seconds)
                if outcome == "ok":
                    log.info("transition ended", kind=kind.value, seconds=seconds, **_ids(machine, operation))
                else:
                    log.warn("transition failed", kind=kind.value, err=error, **_ids(machine, operation))
            case HostLost(machine, error):
                log.warn("host lost", err=error, **_ids(machine))
            case RepairTried(machine, outcome, detail):
                metrics.counter(series.REPAIRS, outcome).inc()
                log.info("repair tried", outcome=outcome, detail=detail, **_ids(machine))
            case LateResult(machine, method):
                log.warn(
                    "backend call came back after it was given up; discarded", call=method, **_ids(machine)
                )
            case Reconciled(outcome, detail):
                metrics.counter(series.RECONCILES, outcome).inc()
                if outcome == "ok":
                    metrics.gauge(series.RECONCILE_LAST_SUCCESS_TIMESTAMP).set(self._wall())
                else:
                    log.warn("reconcile failed; the last inventory stays", err=detail)
            case PriceRefreshed(outcome, detail):
                metrics.counter(series.PRICE_REFRESHES, "prices", outcome).inc()
                if outcome == "ok":
                    metrics.gauge(series.PRICE_LAST_SUCCESS_TIMESTAMP).set(self._wall())
                else:
                    log.warn("price refused; the last one stays", err=detail)
            case Interrupted(machine, imminent):
                metrics.counter(series.INTERRUPTIONS).inc()
                log.warn("substrate gave notice", imminent=imminent, **_ids(machine))
            case Withheld(offer, seconds):
                log.warn(
                    "no capacity; free slots of the offering are withheld", offering=offer, seconds=seconds
                )
            case Panicked(error):
                self.panicked(error)


def _ids(machine: str, operation: str = "", shard: str = "", cluster: str = "") -> dict[str, str]:
    given = {"machine": machine, "operation_id": operation, "shard_id": shard, "cluster": cluster}
    return {name: value for name, value in given.items() if value}
