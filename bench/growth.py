"""How the cost of a cycle grows with the fleet, and with what changes: ``make growth``.

    bench/growth.py                           measure, then draw docs/engine-growth.svg
    bench/growth.py --machines 100000         no larger fleets than this
    bench/growth.py --draw                    draw the figures of the last measurement

A full pass looks at everything; a steady cycle only at what changed. So the steady cycle is measured three
times: with change in proportion to the fleet, with the same change at every size, and at one size with more
and more change. Figures go to bench/out/growth.json.
"""

import argparse
import gc
import json
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # so that the file runs by its name

from bench import harness
from bench.cycles import Figures, Plan, at_rest, steady_cycle
from bench.fleets import FleetShape
from bench.harness import progress
from bench.life import CAPPED, Life, Rate, Weather
from bench.plot import Line, Panel, draw
from bigfleet.engine.cycle import CycleInputs
from bigfleet.scale import MixedFleet

PICTURE: Final = harness.HERE.parent / "docs" / "engine-growth.svg"

MACHINES: Final = (10_000, 30_000, 100_000, 300_000, 1_000_000, 5_000_000)
NEEDS: Final = (1_000, 3_000, 10_000, 30_000, 50_000)
USUAL_MACHINES: Final = 500_000
USUAL_NEEDS: Final = 5_000
FACTORS: Final = (0.02, 0.1, 0.3, 1.0, 3.0, 10.0)
"""Of the steady change, at the usual size."""
CYCLES: Final = 20
SAME: Final = Rate(needs=10, machines=10, by_a_tenth=False)
"""The change that is the same at every size."""

_FULL: Final = ("full pass", "#8a94a0")
_STEADY: Final = ("steady: 1 % of Needs, 0.1 % of machines change", "#0b6bcb")
_SAME: Final = ("steady: 10 Needs, 10 machines change", "#d9660a")
_MORE: Final = ("steady: as many as the axis says change", "#7a4bb8")


@dataclass(frozen=True, slots=True)
class Point:
    """One size of fleet and its milliseconds."""

    machines: int
    needs: int
    full_ms: float
    steady_ms: float
    same_ms: float
    by_change: tuple[tuple[int, float], ...] = ()
    """Needs and machines changed in a cycle, and its milliseconds."""


def main(arguments: list[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    crossing = (min(USUAL_MACHINES, options.machines), min(USUAL_NEEDS, options.needs))
    if options.alone:
        machines, needs = options.alone
        print(json.dumps(asdict(measure(machines, needs, by_change=(machines, needs) == crossing))))
        return 0
    figures = harness.HERE / "out" / "growth.json"
    if not options.draw:
        limits = ["--machines", str(options.machines), "--needs", str(options.needs)]
        points = [_measure_apart(size, limits) for size in sizes(options.machines, options.needs, crossing)]
        figures.parent.mkdir(exist_ok=True)
        figures.write_text(json.dumps(points, indent=1) + "\n")
    elif not figures.exists():
        progress(f"there are no figures to draw in {figures.name}: run without --draw first")
        return 1
    options.out.write_text(picture([_point(found) for found in json.loads(figures.read_text())]))
    progress(f"drawn: {options.out.name}")
    return 0


def sizes(machines: int, needs: int, crossing: tuple[int, int]) -> list[tuple[int, int]]:
    """(machines, Needs) of all fleets up to some size; both series run through the crossing."""
    found = {(count, crossing[1]) for count in MACHINES if count <= machines}
    found |= {(crossing[0], count) for count in NEEDS if count <= needs}
    return sorted(found | {crossing})


def measure(machines: int, needs: int, *, by_change: bool) -> Point:
    """All that is drawn of one fleet."""
    clusters = max(5, needs // 100)
    fleet = MixedFleet(machines_total=machines, clusters=clusters, needs_per_cluster=needs // clusters)
    figures = Figures()
    shape = FleetShape(name=f"{machines:,} machines, {needs:,} Needs", fleet=fleet)
    life = at_rest(shape, Plan(best=3), figures)
    usual = Rate.steady(life.engine)
    steady_ms = steady(life, usual)
    same_ms = steady(life, SAME)
    more = []
    for factor in FACTORS if by_change else ():
        rate = Rate(max(1, round(usual.needs * factor)), max(2, round(usual.machines * factor)))
        more.append((rate.needs + rate.machines, steady(life, rate)))
    return Point(machines, needs, figures.metrics["full_ms"], steady_ms, same_ms, tuple(more))


def steady(life: Life, rate: Rate) -> float:
    """The mean milliseconds of some cycles, after the fleet has come to rest."""
    life.settle()
    weather = Weather(life, rate)
    gc.collect()
    times = []
    for _ in range(CYCLES):
        weather.change()
        times.append(steady_cycle(life, CycleInputs(now=life.now, options=CAPPED))[1])
    return fmean(times)


def picture(points: list[Point]) -> str:
    """The figures as SVG."""
    usual = next(point for point in points if point.by_change)
    machines, needs = usual.machines, usual.needs
    by_machines = [point for point in points if point.needs == needs]
    by_needs = [point for point in points if point.machines == machines]
    whole = [(changes, usual.full_ms) for changes, _ in usual.by_change]
    panels = [
        Panel(f"{needs:,} Needs", "machines", _lines([(point.machines, point) for point in by_machines])),
        Panel(f"{machines:,} machines", "Needs", _lines([(point.needs, point) for point in by_needs])),
        Panel(
            f"{machines:,} machines, {needs:,} Needs",
            "Needs and machines that change in a cycle",
            [Line(*_FULL, whole, dashed=True), Line(*_MORE, usual.by_change)],
        ),
    ]
    return draw(
        "What a decision cycle costs",
        "One cycle on one core, by machines, by Needs, and by what changes. Both axes are logarithmic.",
        "milliseconds",
        panels,
    )


def _lines(points: list[tuple[int, Point]]) -> list[Line]:
    return [
        Line(*_FULL, [(x, point.full_ms) for x, point in points], dashed=True),
        Line(*_STEADY, [(x, point.steady_ms) for x, point in points]),
        Line(*_SAME, [(x, point.same_ms) for x, point in points]),
    ]


def _measure_apart(size: tuple[int, int], limits: list[str]) -> dict[str, Any]:
    """In a process of its own, so that no fleet finds the memory that another one left behind."""
    command = [sys.executable, __file__, *limits, "--alone", *map(str, size)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)  # noqa: S603 # this very file
    point: dict[str, Any] = json.loads(done.stdout)
    return point


def _point(found: dict[str, Any]) -> Point:
    found["by_change"] = tuple((x, y) for x, y in found["by_change"])
    return Point(**found)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="bench/growth.py", description="How the cost of a cycle grows: measured and drawn."
    )
    for what, most in (("machines", MACHINES[-1]), ("needs", NEEDS[-1])):
        limit = f"no fleet of more {what} ({most:,})"
        parser.add_argument(f"--{what}", type=harness.count, default=most, metavar="N", help=limit)
    parser.add_argument("--draw", action="store_true", help="draw what was measured last time")
    parser.add_argument("--out", type=Path, default=PICTURE, help="the picture (docs/engine-growth.svg)")
    parser.add_argument("--alone", nargs=2, type=int, help=argparse.SUPPRESS)
    return parser


if __name__ == "__main__":
    sys.exit(main())
