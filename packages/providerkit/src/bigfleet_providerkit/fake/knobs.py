"""Everything that can be set about the fake (provider.md §13), under the names of its command line."""

import argparse
import math
import random
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Final

from bigfleet_providerkit.backend import Binding
from bigfleet_providerkit.errors import (
    BackendError,
    InsufficientCapacity,
    NotFound,
    Retryable,
    Terminal,
    Unauthorized,
)
from bigfleet_providerkit.options import duration
from bigfleet_providerkit.records import Kind
from bigfleet_providerkit.work import NANOS

STEPS: Final = ("create", "configure", "ready", "drain", "delete")
CLASSES: Final[Mapping[str, Callable[[str], BackendError]]] = MappingProxyType(
    {
        "terminal": Terminal,
        "retryable": Retryable,
        "capacity": InsufficientCapacity,
        "unauthorized": Unauthorized,
        "not-found": NotFound,
    }
)
"""The classes of failure, by name."""
_P99: Final = 2.3263478740408408
"""Standard deviations between the median of a normal distribution and its 99th percentile."""


@dataclass(frozen=True)
class Latency:
    """A distribution of nanoseconds: ``constant(a)``, ``uniform(a, b)`` or ``lognormal(p50, p99)``."""

    form: str
    first: int
    second: int = 0

    def draw(self, rng: random.Random) -> int:
        match self.form:
            case "constant":
                return self.first
            case "uniform":
                return rng.randint(self.first, self.second)
            case _:
                return round(
                    rng.lognormvariate(math.log(self.first), math.log(self.second / self.first) / _P99)
                )


@dataclass(frozen=True)
class Preseed:
    """Machines that exist already when the provider first starts; Configured ones with their binding."""

    offering: str
    """A selector: ``type``, ``type/zone`` or ``type/zone/capacity_type``."""
    idle: int = 0
    bound: Sequence[Binding] = ()


_USUAL: Final = Latency("uniform", 20_000_000, 80_000_000)


@dataclass(frozen=True)
class Knobs:
    """How the fake behaves. Times are nanoseconds; whatever is not set is off, but for the latencies."""

    seed: int = 1
    latency: Mapping[str, Latency] = field(default_factory=lambda: dict.fromkeys(STEPS, _USUAL))
    """By step, or for some offerings by ``step@selector``; the longest selector that fits wins."""
    failure_rate: Mapping[str, float] = field(default_factory=dict)
    failure_class: Mapping[str, str] = field(default_factory=dict)
    hang_rate: Mapping[str, float] = field(default_factory=dict)
    late_success: int = 0
    """A cancelled call ends well all the same, this much later."""
    stage: frozenset[str] = frozenset()
    """Kinds whose transitions wait for ``complete``."""
    spot_hazard: float = 0.0
    """Spot machines are reclaimed at this multiple of the probability they declare."""
    spot_notice: int = 120 * NANOS
    price_walk: float = 0.0
    """Standard deviation of the change of a price's logarithm, each interval."""
    price_interval: int = 60 * NANOS
    rpc_latency: Latency = Latency("constant", 0)
    rpc_error_rate: float = 0.0
    list_stale: int = 0
    """How far List lags behind the machines."""
    preseed: Sequence[Preseed] = ()


INSTANT: Final = Knobs(latency=dict.fromkeys(STEPS, Latency("constant", 0)))
"""No step takes any time; under a virtual clock only, where that hides nothing."""


def read_knobs(settings: Sequence[str], preseed: Sequence[Preseed] = ()) -> Knobs:
    """Knobs from ``name=value`` texts; ValueError names the one that is wrong."""
    knobs = replace(Knobs(), preseed=preseed)
    for setting in settings:
        name, separator, text = setting.partition("=")
        if not separator:
            raise ValueError(f"--knob {setting}: write it as name=value")
        try:
            knobs = _set(knobs, name, text)
        except (ValueError, argparse.ArgumentTypeError) as error:
            raise ValueError(f"--knob {setting}: {error}") from None
    return knobs


def read_preseed(document: Any) -> list[Preseed]:
    """Machines that exist already, from the JSON array of a ``--preseed`` file."""
    try:
        return [
            Preseed(
                str(row["offering"]),
                int(row.get("idle", 0)),
                [
                    Binding(str(bound["cluster"]), dict(bound.get("metadata", {})))
                    for bound in row.get("bound", ())
                ],
            )
            for row in document
        ]
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ValueError(
            "--preseed: the file is a JSON array of objects with offering, idle and bound (objects with"
            f" cluster and metadata); {type(error).__name__}: {error}"
        ) from None


def read_latency(text: str) -> Latency:
    """``50ms``, ``uniform(20ms,80ms)`` or ``lognormal(30s,90s)``; ValueError otherwise."""
    call = re.fullmatch(r"(constant|uniform|lognormal)\(([^,]+?)(?:,([^,]+?))?\)", text.replace(" ", ""))
    form, first, second = call.groups() if call else ("constant", text, None)
    if (second is None) != (form == "constant"):
        raise ValueError(f"{form} takes {'one time' if form == 'constant' else 'two times'}")
    latency = Latency(form, duration(first), duration(second or "0"))
    if form != "constant" and latency.second < latency.first:
        raise ValueError("the second time is the longer one")
    if form == "lognormal" and not latency.first:
        raise ValueError("the median must be above 0")
    return latency


def _set(knobs: Knobs, name: str, text: str) -> Knobs:
    if plain := _PLAIN.get(name):
        attribute, read = plain
        return replace(knobs, **{attribute: read(text)})
    group, _, rest = name.partition(".")
    step, _, selector = rest.partition("@")
    kind, _, part = rest.partition(".")
    if group == "latency" and step in STEPS and ("@" in rest) == bool(selector):
        return replace(knobs, latency={**knobs.latency, rest: read_latency(text)})
    if group == "failure" and kind in tuple(Kind) and part == "rate":
        return replace(knobs, failure_rate={**knobs.failure_rate, kind: _rate(text)})
    if group == "failure" and kind in tuple(Kind) and part == "class":
        if text not in CLASSES:
            raise ValueError(f"the classes are {', '.join(CLASSES)}")
        return replace(knobs, failure_class={**knobs.failure_class, kind: text})
    if group == "hang" and kind in tuple(Kind) and part == "rate":
        return replace(knobs, hang_rate={**knobs.hang_rate, kind: _rate(text)})
    if group == "stage" and rest in tuple(Kind):
        if text not in ("true", "false"):
            raise ValueError("it is true or false")
        return replace(knobs, stage=knobs.stage | {rest} if text == "true" else knobs.stage - {rest})
    raise ValueError(f"no such knob; known are {', '.join((*_PLAIN, *_FAMILIES))}")


def _rate(text: str) -> float:
    rate = float(text)
    if not 0.0 <= rate <= 1.0:
        raise ValueError("a rate is between 0 and 1")
    return rate


def _interval(text: str) -> int:
    interval = duration(text)
    if not interval:
        raise ValueError("it must be above 0")
    return interval


def _positive(text: str) -> float:
    number = float(text)
    if not 0.0 <= number < math.inf:
        raise ValueError("must be a number that is not negative")
    return number


_PLAIN: Final[Mapping[str, tuple[str, Callable[[str], Any]]]] = MappingProxyType(
    {
        "seed": ("seed", int),
        "late_success": ("late_success", duration),
        "spot.hazard": ("spot_hazard", _positive),
        "spot.notice": ("spot_notice", duration),
        "price.walk": ("price_walk", _positive),
        "price.interval": ("price_interval", _interval),
        "rpc.latency": ("rpc_latency", read_latency),
        "rpc.error_rate": ("rpc_error_rate", _rate),
        "list.stale": ("list_stale", duration),
    }
)
_FAMILIES: Final = (
    "latency.STEP[@OFFERING]",
    "failure.KIND.rate",
    "failure.KIND.class",
    "hang.KIND.rate",
    "stage.KIND",
)
