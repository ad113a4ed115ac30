"""What every benchmark does alike: calibrate, time, write its figures, compare them with a baseline.

Machines differ and ratios do not: beside each run stand the times of two well-known pieces of work, measured
in that very run. What is measured here is Python, so times are compared after dividing by the one in Python;
the other, a sort of NumPy's, is four times as quick on a processor with wide vectors, and nothing else is.
Time is the processor's: what is measured here computes on one core and waits for nothing, so a busy machine
does not make it look slower.
"""

import argparse
import gc
import json
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

import numpy as np

HERE: Final = Path(__file__).resolve().parent
TOLERANCE: Final = 1.20
"""How much dearer than its baseline a figure may be before ``--check`` fails."""

_TIMES: Final = ("_ms", "us_per_need", "us_per_rollup", "cpu_share", "connected_s")
_AMOUNTS: Final = ("bytes_per_machine",)

T = TypeVar("T")


class WrongAnswerError(Exception):
    """A benchmark whose outcome is not the expected one: it has no time to report."""


@dataclass(frozen=True, slots=True)
class Result:
    """One shape and its figures."""

    name: str
    metrics: Mapping[str, float]
    counts: Mapping[str, int]
    """What was asserted before anything was timed."""
    runs: int

    def as_json(self) -> dict[str, Any]:
        """In the form of the files."""
        return {
            "name": self.name,
            "metrics": dict(self.metrics),
            "counts": dict(self.counts),
            "runs": self.runs,
        }


@dataclass(frozen=True, slots=True)
class Change:
    """A figure against its baseline."""

    shape: str
    metric: str
    value: float
    baseline: float
    ratio: float
    """Above one is dearer; for times after dividing each by the calibration of its own run."""


@dataclass(frozen=True, slots=True)
class Calibration:
    """How quick this machine is, in milliseconds."""

    sort_ms: float
    """To argsort a million random doubles, best of five."""
    python_ms: float
    """To look up, compare and replace tuples in a dict, best of five."""

    def __str__(self) -> str:
        return (
            f"{self.python_ms:.1f} ms for a loop in Python, {self.sort_ms:.1f} to argsort a million doubles"
        )


def calibrate() -> Calibration:
    """Time both pieces of work."""
    numbers = np.random.default_rng(1).random(1_000_000)
    sort_ms = min(timed(lambda: np.argsort(numbers))[1] for _ in range(5))
    return Calibration(round(sort_ms, 2), round(min(timed(_python)[1] for _ in range(5)), 2))


def _python() -> None:
    best: dict[tuple[int, int], tuple[int, int]] = {}
    for number in range(200_000):
        key, found = (number % 1_009, number % 7), (number * 7_919 % 10_007, number)
        known = best.get(key)
        if known is None or found < known:
            best[key] = found


def best_of(repeat: int, budget_s: float, run: Callable[[], tuple[T, float]]) -> tuple[T, float, int]:
    """The last outcome, the best time and the number of runs: ``repeat`` of them, or as many as start within
    the budget."""
    deadline = time.perf_counter() + budget_s
    times: list[float] = []
    while not times or (len(times) < repeat and time.perf_counter() < deadline):
        gc.collect()
        outcome, milliseconds = run()
        times.append(milliseconds)
    return outcome, min(times), len(times)


def timed(work: Callable[[], T]) -> tuple[T, float]:
    """The outcome of some work and its milliseconds."""
    started = time.process_time()
    outcome = work()
    return outcome, (time.process_time() - started) * 1000


def count(text: str) -> int:
    """An option that says how many: of nothing there is no figure."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of at least 1")
    return int(text)


def progress(text: str) -> None:
    """Tell whoever waits."""
    print(text, file=sys.stderr, flush=True)


def report(benchmark: str, results: Iterable[Result], calibration: Calibration) -> dict[str, Any]:
    """Write ``bench/out/BENCHMARK.json`` and return what is in it."""
    document = {
        "calibration_ms": calibration.sort_ms,
        "python_ms": calibration.python_ms,
        "commit": _commit(),
        "python": platform.python_version(),
        "cpu": _cpu(),
        "results": [result.as_json() for result in results],
    }
    out = HERE / "out"
    out.mkdir(exist_ok=True)
    (out / f"{benchmark}.json").write_text(json.dumps(document, indent=1) + "\n")
    return document


def baseline(benchmark: str) -> dict[str, Any] | None:
    """The recorded baseline, if there is one."""
    path = HERE / "baselines" / f"{benchmark}.json"
    if not path.exists():
        return None
    document: dict[str, Any] = json.loads(path.read_text())
    return document


def compare(document: Mapping[str, Any], base: Mapping[str, Any] | None) -> list[Change]:
    """Every figure that both documents have for a shape of the same name, and so of the same size."""
    if base is None:
        return []
    known = {result["name"]: result["metrics"] for result in base["results"]}
    # Older baselines know how quick their machine was at sorting only.
    work = "python_ms" if "python_ms" in base else "calibration_ms"
    speed = document[work] / base[work]
    changes = []
    for result in document["results"]:
        before = known.get(result["name"], {})
        for metric, value in result["metrics"].items():
            if not metric.endswith(_TIMES + _AMOUNTS) or not before.get(metric):
                continue
            ratio = value / before[metric]
            if metric.endswith(_TIMES):
                ratio /= speed
            changes.append(Change(result["name"], metric, value, before[metric], ratio))
    return changes


def is_dearer(document: Mapping[str, Any], benchmark: str) -> bool:
    """Whether a figure is far above its baseline; each that is is told."""
    dearer = [change for change in compare(document, baseline(benchmark)) if change.ratio > TOLERANCE]
    for change in dearer:
        print(f"{change.shape} {change.metric}: {change.value:,.2f}, baseline {change.baseline:,.2f}")
    return bool(dearer)


def table(headings: list[str], rows: list[list[str]]) -> str:
    """Columns as wide as they need to be, the first flush left."""
    widths = [max(len(row[n]) for row in [headings, *rows]) for n in range(len(headings))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if n == 0 else cell.rjust(width)
            for n, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in [headings, *rows]
    )


def _commit() -> str:
    try:
        found = subprocess.run(
            ["git", "describe", "--always", "--dirty", "--abbrev=12"],  # noqa: S607 # the developer's own git
            cwd=HERE,
            capture_output=True,
            text=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return found.stdout.strip()


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    return next(
        (line.partition(":")[2].strip() for line in lines if line.startswith("model name")),
        platform.machine(),
    )
