"""Live metrics made from the catalogue: the only place that creates any.

A process makes one ``Metrics`` for its role. Every series of the role exists from then on, at 0 where its
label values are known, so that "absent" never has to mean "zero". Owners pick what they update once and keep
it; an update then costs no lookup::

    metrics = Metrics(Role.SHARD)
    bootstraps = metrics.counter(catalogue.shard.ACTIONS, "Bootstrap")
    bootstraps.inc()
"""

import math
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import product
from threading import Lock
from typing import Any, Final, Protocol

import prometheus_client
from prometheus_client.core import GaugeMetricFamily, Metric

from bigfleet_base.telemetry.catalogue import TABLES, Role, process
from bigfleet_base.telemetry.series import CounterSeries, GaugeSeries, HistogramSeries, Series
from bigfleet_base.telemetry.sketch import QUANTILES, Sketch, WindowedSketch, pack_sketches

CONTENT_TYPE: Final = prometheus_client.CONTENT_TYPE_PLAIN_0_0_4
"""Of what ``Metrics.render`` returns."""

# Label values from outside (clusters, shards, providers) must not grow memory without end. A shard has a few
# thousand sessions, so more label sets than this are a mistake or an attack: they share one.
MAX_LABEL_SETS: Final = 10_000
OVERFLOW: Final = "other"

# Otherwise every counter and histogram brings a `_created` series that is in no catalogue.
prometheus_client.disable_created_metrics()  # type: ignore[no-untyped-call]  # unannotated in the library


class Counter(Protocol):
    """What owners may do with a counter."""

    def inc(self, amount: float = 1) -> None: ...


class Gauge(Protocol):
    """What owners may do with a gauge."""

    def set(self, value: float) -> None: ...
    def inc(self, amount: float = 1) -> None: ...
    def dec(self, amount: float = 1) -> None: ...


class Histogram(Protocol):
    """What owners may do with a histogram."""

    def observe(self, amount: float) -> None: ...


class Metrics:
    """The metrics of one process.

    ``given`` fixes labels that have one value in this process, such as the name of a provider; they are left
    out when a metric is picked. ``now`` is a monotonic clock in nanoseconds: it moves the window of the exact
    quantiles.
    """

    def __init__(
        self,
        role: Role,
        *,
        given: Mapping[str, str] | None = None,
        now: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        table = (*TABLES[role], *process.SERIES)
        given = given or {}
        if unknown := given.keys() - {name for series in table for name in series.label_names}:
            raise ValueError(f"no series of the {role} has a label {', '.join(sorted(unknown))}")
        self._role = role
        self._registry = prometheus_client.CollectorRegistry()
        self._sketches: list[_ExactQuantiles] = []
        self._families = {series: self._family(series, given, now) for series in table}
        prometheus_client.ProcessCollector(registry=self._registry)
        prometheus_client.PlatformCollector(registry=self._registry)
        prometheus_client.GCCollector(registry=self._registry)

    def counter(self, series: CounterSeries, *values: str) -> Counter:
        """The counter with these label values, in the order of the catalogue."""
        counter: Counter = self._pick(series).child(values)
        return counter

    def gauge(self, series: GaugeSeries, *values: str) -> Gauge:
        """The gauge with these label values, in the order of the catalogue."""
        gauge: Gauge = self._pick(series).child(values)
        return gauge

    def histogram(self, series: HistogramSeries, *values: str) -> Histogram:
        """The histogram with these label values, in the order of the catalogue."""
        histogram: Histogram = self._pick(series).child(values)
        return histogram

    def remove(self, series: Series, *values: str) -> None:
        """Stop exporting a label set whose subject is gone, such as a cluster that was unbound."""
        self._pick(series).remove(values)

    def render(self) -> bytes:
        """Everything in Prometheus' text format, for ``GET /metrics``."""
        # One label value that is not Unicode must not cost the whole scrape.
        return "".join(_lines(self._registry.collect())).encode(errors="backslashreplace")

    def sketches(self) -> bytes:
        """The sketches behind the exact quantiles, for ``GET /debug/sketches``: ``<series> 5m`` and
        ``<series> start`` for each, as ``sketch.unpack_sketches`` reads them."""
        return pack_sketches({name: part for each in self._sketches for name, part in each.named()})

    def _pick(self, series: Series) -> "_Family":
        try:
            return self._families[series]
        except KeyError:
            raise ValueError(
                f"{series.name} is not a series of the {self._role} in bigfleet_base.telemetry.catalogue"
            ) from None

    def _family(self, series: Series, given: Mapping[str, str], now: Callable[[], int]) -> "_Family":
        arguments = (series.name, series.help, series.label_names)
        match series:
            case CounterSeries():
                return _Family(series, given, prometheus_client.Counter(*arguments, registry=self._registry))
            case GaugeSeries():
                return _Family(series, given, prometheus_client.Gauge(*arguments, registry=self._registry))
            case HistogramSeries():
                exact = None
                if series.exact is not None:
                    exact = _ExactQuantiles(series, now)
                    self._sketches.append(exact)
                    self._registry.register(exact)
                return _Family(
                    series,
                    given,
                    prometheus_client.Histogram(*arguments, buckets=series.buckets, registry=self._registry),
                    exact,
                )
        raise TypeError(f"{series.name} is of no kind that can be exported")


class _Family:
    """One series with its label sets, looked up by the values that are not given."""

    def __init__(
        self, series: Series, given: Mapping[str, str], parent: Any, exact: "_ExactQuantiles | None" = None
    ) -> None:
        self._series = series
        self._parent = parent
        self._exact = exact
        self._given = given
        self._labels = tuple(label for label in series.labels if label.name not in given)
        self._open = any(not label.values for label in self._labels)
        self._children: dict[tuple[str, ...], Any] = {}
        if not self._open:
            for values in product(*(label.values for label in self._labels)):
                self.child(values)

    def child(self, values: tuple[str, ...]) -> Any:
        child = self._children.get(values)
        return self._add(values) if child is None else child

    def remove(self, values: tuple[str, ...]) -> None:
        if not self._open:
            raise ValueError(f"{self._series.name} has fixed label values: set it to 0 instead")
        if self._children.pop(values, None) is not None:
            self._parent.remove(*self._all_values(values))

    def _add(self, values: tuple[str, ...]) -> Any:
        if len(values) != len(self._labels):
            wanted = ", ".join(label.name for label in self._labels) or "no label"
            raise ValueError(f"{self._series.name} takes values for {wanted}, not {values!r}")
        for label, value in zip(self._series.labels, self._all_values(values), strict=True):
            if label.values and value not in label.values:
                raise ValueError(
                    f"{self._series.name}: {label.name} cannot be {value!r}, only {label.values}"
                )
        if self._open and len(self._children) >= MAX_LABEL_SETS:
            values = tuple(
                value if label.values else OVERFLOW for label, value in zip(self._labels, values, strict=True)
            )
            if values in self._children:
                return self._children[values]
        child = self._parent.labels(*self._all_values(values)) if self._series.labels else self._parent
        if self._exact is not None and self._exact.covers(values):
            child = _ExactHistogram(child, self._exact)
        self._children[values] = child
        return child

    def _all_values(self, values: tuple[str, ...]) -> list[str]:
        rest = iter(values)
        return [
            self._given[label.name] if label.name in self._given else next(rest)
            for label in self._series.labels
        ]


class _ExactQuantiles:
    """The sketch of one histogram, and the collector that exports its quantiles."""

    def __init__(self, series: HistogramSeries, now: Callable[[], int]) -> None:
        self._series = series
        self._gauge = series.exact_gauge()
        self._now = now
        # The metrics of prometheus_client may be used from any thread, so these may too.
        self._lock = Lock()
        self._sketch = WindowedSketch()

    def covers(self, values: tuple[str, ...]) -> bool:
        return not self._series.exact or values == self._series.exact

    def observe(self, amount: float) -> None:
        with self._lock:
            self._sketch.add(amount, self._now())

    def named(self) -> list[tuple[str, Sketch]]:
        selector = ",".join(
            f'{label.name}="{value}"'
            for label, value in zip(self._series.labels, self._series.exact or (), strict=False)
        )
        name = f"{self._series.name}{{{selector}}}" if selector else self._series.name
        with self._lock:
            return [
                (f"{name} 5m", self._sketch.window(self._now())),
                (f"{name} start", self._sketch.since_start()),
            ]

    def describe(self) -> Iterable[GaugeMetricFamily]:
        return [GaugeMetricFamily(self._gauge.name, self._gauge.help, labels=self._gauge.label_names)]

    def collect(self) -> Iterable[GaugeMetricFamily]:
        with self._lock:
            window = self._sketch.window(self._now())
        [family] = self.describe()
        for quantile, value in zip(QUANTILES, window.quantiles(), strict=True):
            family.add_metric([*(self._series.exact or ()), str(quantile)], value)
        return [family]


class _ExactHistogram:
    """A histogram that also feeds a sketch."""

    __slots__ = ("_exact", "_histogram")

    def __init__(self, histogram: Histogram, exact: _ExactQuantiles) -> None:
        self._histogram = histogram
        self._exact = exact

    def observe(self, amount: float) -> None:
        # First, because it refuses what is no duration; the histogram would take it.
        self._exact.observe(amount)
        self._histogram.observe(amount)


def _lines(families: Iterable[Metric]) -> Iterator[str]:
    """The text format, version 0.0.4. The library's own renderer checks and escapes every name of every line
    again, which at 3,000 lines holds up the event loop for twice as long."""
    for family in families:
        name = family.name + "_total" if family.type == "counter" else family.name
        help_text = family.documentation.replace("\\", r"\\").replace("\n", r"\n")
        yield f"# HELP {name} {help_text}\n# TYPE {name} {family.type}\n"
        for sample in family.samples:
            if sample.labels:
                labels = ",".join([f'{key}="{_escape(value)}"' for key, value in sample.labels.items()])
                yield f"{sample.name}{{{labels}}} {_number(sample.value)}\n"
            else:
                yield f"{sample.name} {_number(sample.value)}\n"


def _escape(text: str) -> str:
    return text.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


def _number(value: float) -> str:
    if math.isfinite(value):
        return repr(value)
    return "NaN" if math.isnan(value) else "+Inf" if value > 0 else "-Inf"
