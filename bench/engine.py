"""How long the engine takes to decide: ``make bench-engine``.

    bench/engine.py                                  all shapes, full size
    bench/engine.py --scale 1/100                    all of them at a hundredth
    bench/engine.py --only b5k --only b500k-racks@1/10 --best 3

The ``b…`` shapes are fleets under whole cycles (``bench.cycles``), the others those of engine.md §18, where
one phase is timed (``bench.phases``). A shape states its expected counts; a run whose counts differ reports
both numbers, no time, and fails. Each shape has a process of its own. Figures go to bench/out/engine.json and
are set against bench/baselines/engine.json.
"""

import argparse
import json
import subprocess
import sys
from fractions import Fraction
from pathlib import Path
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # so that the file runs by its name

from bench import cycles, phases
from bench.fleets import FLEETS, FULL, fleet_shape
from bench.harness import (
    TOLERANCE,
    Calibration,
    Change,
    Result,
    WrongAnswerError,
    baseline,
    calibrate,
    compare,
    count,
    progress,
    report,
    table,
)
from bench.shapes import SHAPES

NAMES: Final = (*SHAPES, *FLEETS)

_FLEET_TIMES: Final = (
    "full_ms",
    "full_warm_ms",
    "steady_ms",
    "steady_worst_ms",
    "steady_full_ms",
    "unchanged_ms",
)


def main(arguments: list[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    if options.alone:
        return _measure_here(options)
    wanted = [(name, scale or options.scale) for name, scale in options.only or [(n, None) for n in NAMES]]
    calibration = calibrate()
    progress(f"calibration: {calibration}")
    measured = [_measure_apart(name, scale, options) for name, scale in wanted]
    document = report("engine", [result for result in measured if result is not None], calibration)
    failed = None in measured
    changes = compare(document, baseline("engine"))
    if options.output == "json":
        print(json.dumps(document, indent=1))
    else:
        print(_summary(document, changes, calibration))
    if options.check:
        for change in changes:
            if change.ratio > TOLERANCE:
                progress(
                    f"FAILED {change.shape}: {change.metric} is {change.value:,.1f}, "
                    f"{change.ratio:.2f} times its baseline of {change.baseline:,.1f}"
                )
                failed = True
    return 1 if failed else 0


def measure(name: str, scale: Fraction, plan: cycles.Plan, *, profile: bool = False) -> Result:
    """Run a shape, and report its figures if the outcome is right."""
    if name in FLEETS:
        return cycles.measure(fleet_shape(name, scale), plan)
    return phases.measure(name, scale, plan.best, profile=profile)


def _measure_apart(name: str, scale: Fraction, options: argparse.Namespace) -> Result | None:
    """In a process of its own, so that no shape finds the memory that another one left behind; None if its
    answer is wrong."""
    command = [sys.executable, __file__, "--alone", "--only", f"{name}@{scale}"]
    command += ["--best", str(options.best), "--cycles", str(options.cycles)]
    done = subprocess.run(  # noqa: S603 # this very file
        command + ["--profile"] * options.profile, stdout=subprocess.PIPE, text=True, check=False
    )
    if done.returncode:
        return None
    return Result(**json.loads(done.stdout))


def _measure_here(options: argparse.Namespace) -> int:
    [(name, scale)] = options.only
    plan = cycles.Plan(best=options.best, cycles=options.cycles)
    try:
        result = measure(name, scale or FULL, plan, profile=options.profile)
    except WrongAnswerError as wrong:
        progress(f"FAILED {wrong}")
        return 1
    print(json.dumps(result.as_json()))
    return 0


def _summary(document: dict[str, Any], changes: list[Change], calibration: Calibration) -> str:
    """Fleets and single phases, a table each; behind a time stands how it compares with the baseline."""
    ratios = {(change.shape, change.metric): change.ratio for change in changes}
    size = ["shape", "machines", "classes", "Needs", "actions", "B/machine", "µs/Need"]
    fleets, single = [], []
    for result in document["results"]:
        metrics, counts = result["metrics"], result["counts"]
        row = [
            result["name"],
            f"{counts['machines']:,}",
            f"{metrics['classes']:,}",
            f"{counts['needs']:,}",
            f"{metrics['actions']:,}",
            f"{metrics['bytes_per_machine']:,.0f}",
            f"{metrics['us_per_need']:,.1f}",
        ]
        times = {
            metric: f"{value:,.2f}" + _against(ratios.get((result["name"], metric)))
            for metric, value in metrics.items()
            if metric.endswith("_ms")
        }
        if "full_ms" in metrics:
            fleets.append([*row, f"{metrics['rss_mib']:,.0f}", *(times[metric] for metric in _FLEET_TIMES)])
        else:
            single += [[*row, metric.removesuffix("_ms"), times[metric]] for metric in times]
    parts = [f"Times in ms; {calibration}."]
    if fleets:
        headings = [metric.removesuffix("_ms").replace("_", " ") for metric in _FLEET_TIMES]
        parts.append(table([*size, "RSS MiB", *headings], fleets))
    if single:
        parts.append(table([*size, "timed", "ms"], single))
    return "\n\n".join(parts)


def _against(ratio: float | None) -> str:
    return "" if ratio is None else f" ({ratio:.2f}×)"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="bench/engine.py",
        description="How long the engine takes to decide. Counts are checked before times are reported.",
        epilog=f"Shapes: {', '.join(NAMES)}. NAME@1/10 runs one at a tenth of its size.",
    )
    parser.add_argument(
        "--only", action="append", type=_shape_argument, metavar="SHAPE", help="run this one; repeatable"
    )
    parser.add_argument("--scale", type=_scale, default=FULL, help="fraction of the full size: 0.01, 1/100")
    parser.add_argument(
        "--best", type=count, default=5, metavar="N", help="times are the best of so many runs (default: 5)"
    )
    parser.add_argument(
        "--cycles",
        type=count,
        default=cycles.STEADY_CYCLES,
        metavar="N",
        help="steady cycles to take the mean and the worst of, each beside a full pass (%(default)s)",
    )
    parser.add_argument("--output", choices=("table", "json"), default="table", help="what to print")
    parser.add_argument(
        "--profile", action="store_true", help="show where the time of a phase goes, on standard error"
    )
    parser.add_argument(
        "--check", action="store_true", help=f"fail when a figure is {TOLERANCE:g} times its baseline or more"
    )
    parser.add_argument("--alone", action="store_true", help=argparse.SUPPRESS)
    return parser


def _shape_argument(text: str) -> tuple[str, Fraction | None]:
    name, at, fraction = text.partition("@")
    if name not in NAMES:
        raise argparse.ArgumentTypeError(f"{name!r} is no shape; there are {', '.join(NAMES)}")
    return name, _scale(fraction) if at else None


def _scale(text: str) -> Fraction:
    try:
        scale = Fraction(text)
    except (ValueError, ZeroDivisionError):
        scale = Fraction(0)
    if not 0 < scale <= 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no fraction of the size (examples: 0.01, 1/100, 1)")
    return scale


if __name__ == "__main__":
    sys.exit(main())
