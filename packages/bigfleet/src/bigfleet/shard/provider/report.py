"""What is counted and logged of bad records (shard.md Q3)."""

from typing import Final

from bigfleet.shard.provider.listing import ListSlice
from bigfleet.shard.provider.metrics import ProviderMetrics
from bigfleet_base.telemetry import Log
from bigfleet_base.wire import ObservedMachine, Rejected

MAX_LOGGED: Final = 10
"""Bad records of one answer that are named in the log; of the rest the number."""


class RecordReport:
    """The bad records of one answer."""

    def __init__(self, metrics: ProviderMetrics, log: Log) -> None:
        self._metrics = metrics
        self._log = log
        self._bad = 0

    def slice(self, news: ListSlice) -> None:
        for rejected in news.rejected:
            self.rejected(rejected)
        for observed in news.changed:
            if observed.notes.malformed:
                self.malformed(observed)

    def end(self) -> None:
        if self._bad > MAX_LOGGED:
            self._log.warn("more bad provider records than are named in the log", records=self._bad)

    def rejected(self, bad: Rejected) -> None:
        self._metrics.rejected(bad.reason)
        if self._is_logged():
            self._log.warn(
                "provider machine rejected at ingest",
                machine=bad.machine_id,
                state=bad.state,
                field=bad.reason,
                err=bad.message,
            )

    def malformed(self, observed: ObservedMachine) -> None:
        if self._is_logged():
            malformed = ", ".join(observed.notes.malformed)
            self._log.warn(
                "shard_metadata decode failed at ingest; protection state may be incomplete",
                machine=observed.machine.id,
                state=observed.machine.state.title,
                field=malformed,
                err=f"malformed: {malformed}",
            )

    def _is_logged(self) -> bool:
        self._bad += 1
        return self._bad <= MAX_LOGGED
