"""What a metric is, as data.

The catalogue is made of these values; ``metrics`` turns a table of them into live metrics. A series is
compared by identity: the one object in the catalogue is the series.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

from bigfleet_base.telemetry.sketch import QUANTILES

Kind = Literal["counter", "gauge", "histogram"]


@dataclass(frozen=True, slots=True)
class Label:
    """One label of a series."""

    name: str
    values: tuple[str, ...] = ()
    """Every value the label may have. Empty: the values are names that only the running process knows, such
    as those of providers; they never name machines, pods or custom resources."""


@dataclass(frozen=True, slots=True, eq=False)
class Series:
    """What all kinds have in common. Values of labels are given in the order of ``labels``."""

    kind: ClassVar[Kind]

    name: str
    help: str
    labels: tuple[Label, ...] = ()

    @property
    def label_names(self) -> tuple[str, ...]:
        return tuple(label.name for label in self.labels)


@dataclass(frozen=True, slots=True, eq=False)
class CounterSeries(Series):
    kind = "counter"


@dataclass(frozen=True, slots=True, eq=False)
class GaugeSeries(Series):
    kind = "gauge"


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class HistogramSeries(Series):
    kind = "histogram"

    buckets: tuple[float, ...]

    exact: tuple[str, ...] | None = None
    """Which observations are also kept in a sketch and exported as ``<name>_exact``: None for none, an empty
    tuple for all of them together, label values for those of one label set."""

    def exact_gauge(self) -> GaugeSeries:
        """The series that shows the quantiles of the sketch over the last five minutes."""
        assert self.exact is not None, f"{self.name} keeps no sketch"
        return GaugeSeries(
            f"{self.name}_exact",
            f"{self.help} (quantiles of the last 5 minutes, right to 1 %; NaN when there was nothing)",
            (*(self.labels if self.exact else ()), Label("quantile", tuple(map(str, QUANTILES)))),
        )


def declared(namespace: Mapping[str, object]) -> tuple[Series, ...]:
    """The series bound to names in a module, in the order of their definition."""
    return tuple(value for value in namespace.values() if isinstance(value, Series))
