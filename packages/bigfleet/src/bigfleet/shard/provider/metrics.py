"""The series of one provider (P-143)."""

from typing import Final

from bigfleet.shard.provider.retry import SECOND
from bigfleet_base.telemetry import Metrics
from bigfleet_base.telemetry.catalogue import shard as series


class ProviderMetrics:
    """What the shard counts of one provider; every series exists from the start."""

    def __init__(self, metrics: Metrics, provider: str) -> None:
        self._metrics = metrics
        self._provider = provider
        self._rejected = metrics.counter(series.PROVIDER_REJECTED, provider)
        self._fenced = metrics.counter(series.PROVIDER_FENCED, provider)
        self._breaker = metrics.gauge(series.PROVIDER_BREAKER_STATE, provider)
        self._age = metrics.gauge(series.RECONCILE_AGE, provider)

    def attempt(self, rpc: str, code: str, nanos: int) -> None:
        """One attempt of one of the six calls has ended."""
        self._metrics.histogram(series.PROVIDER_RPC, self._provider, rpc, code).observe(nanos / SECOND)
        if code == _FENCED:
            self._fenced.inc()

    def rejected(self, reason: str) -> None:
        """A record was refused, wherever it came from."""
        self._metrics.counter(series.MACHINES_REJECTED, reason).inc()
        self._rejected.inc()

    def listed(self, records: int, *, is_delta: bool) -> None:
        """A List was merged to its end."""
        self._metrics.histogram(series.PROVIDER_LIST_RECORDS, "delta" if is_delta else "full").observe(
            records
        )

    def show(self, *, breaker_open: bool, list_age: int) -> None:
        """Bring the gauges up to date."""
        self._breaker.set(int(breaker_open))
        self._age.set(list_age / SECOND)


_FENCED: Final = "FAILED_PRECONDITION"
