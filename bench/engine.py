"""How long the engine takes to decide, over the shapes of engine.md §18.

    bench/engine.py                           all shapes, full size
    bench/engine.py --scale 0.01              all of them at a hundredth
    bench/engine.py Phase3_M29Shape Uber5K_Unaggregated@1/10

A shape states its expected counts; a run whose counts differ reports both numbers, no time, and fails.
Figures go to bench/out/engine.json and are set against bench/baselines/engine.json.
"""

import argparse
import cProfile
import gc
import json
import pstats
import sys
import tracemalloc
from collections import Counter
from collections.abc import Generator, Iterable
from dataclasses import dataclass
from fractions import Fraction
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # so that the file runs by its name

from bench.harness import (
    TOLERANCE,
    Change,
    Result,
    WrongAnswerError,
    baseline,
    best_of,
    calibrate,
    compare,
    progress,
    report,
    table,
    timed,
)
from bench.shapes import FULL, SHAPES, Shape, shape
from bigfleet.engine.actions import Action, ActionKind
from bigfleet.engine.assign import Phase1
from bigfleet.engine.cycle import CycleInputs, Engine
from bigfleet.engine.inventory import Inventory
from bigfleet.engine.matching import Matcher
from bigfleet.engine.needs import NeedsTable
from bigfleet.engine.normalise import Demand
from bigfleet.engine.options import DEFAULTS
from bigfleet.engine.preempt import Phase2
from bigfleet.engine.reclaim import phase3
from bigfleet.engine.stock import Row
from bigfleet.engine.supply import Supply
from bigfleet.engine.victims import VictimOrder
from bigfleet_base.model import Machine, MachineState, Need

BUDGET_S = 60.0
"""No further run of a shape starts once its runs have taken this long."""
WEIGHED = 50_000
"""Machines that are weighed, at most."""
PROFILE_LINES = 25

T = TypeVar("T")


def main(arguments: list[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    wanted = [(name, scale or options.scale) for name, scale in options.shapes] or [
        (name, options.scale) for name in SHAPES
    ]
    calibration_ms = calibrate()
    progress(f"calibration: {calibration_ms:.1f} ms to argsort a million doubles")
    results, failed = [], False
    for name, scale in wanted:
        try:
            results.append(measure(name, scale, options.repeat, profile=options.profile))
        except WrongAnswerError as wrong:
            progress(f"FAILED {wrong}")
            failed = True
    document = report("engine", results, calibration_ms)
    changes = compare(document, baseline("engine"))
    if options.output == "json":
        print(json.dumps(document, indent=1))
    else:
        print(_summary(document, changes))
    if options.check:
        for change in changes:
            if change.ratio > TOLERANCE:
                progress(
                    f"FAILED {change.shape}: {change.metric} is {change.value:,.1f}, "
                    f"{change.ratio:.2f} times its baseline of {change.baseline:,.1f}"
                )
                failed = True
    return 1 if failed else 0


def measure(name: str, scale: Fraction, repeat: int, *, profile: bool = False) -> Result:
    """Run a shape, and report its time if the outcome is right."""
    title = name if scale == FULL else f"{name}@{scale}"
    bytes_per_machine = weigh(shape(name, scale))
    world = load(shape(name, scale))
    machines = len(world.inventory)
    progress(f"{title}: {machines:,} machines, {len(world.needs):,} Needs loaded")
    outcome, milliseconds, runs = best_of(repeat, BUDGET_S, lambda: decide(world))
    counts = count(world, outcome)
    check(title, world.shape, counts)
    progress(f"{title}: {milliseconds:,.1f} ms, the best of {runs}")
    metrics = {
        f"phase{world.shape.phase}_ms": milliseconds,
        "us_per_need": 1000 * milliseconds / len(world.needs),
        "load_us_per_machine": 1000 * world.load_ms / machines,
        "bytes_per_machine": bytes_per_machine,
        "classes": counts["classes"],
        "cells": counts["cells"],
        "actions": len(outcome.actions),
    }
    if profile:
        _profile(title, world)
    if world.shape.folds:
        metrics["cycle_ms"] = _whole_cycle(title, world, repeat)
    return Result(title, {key: round(value, 3) for key, value in metrics.items()}, world.shape.expected, runs)


@dataclass(slots=True)
class World:
    """A shape in memory."""

    shape: Shape
    inventory: Inventory
    needs: list[Need]
    load_ms: float


@dataclass(slots=True)
class Outcome:
    """What the phases of one run left behind."""

    rows: list[Row]
    supply: Supply
    actions: list[Action]
    """Of the timed phase."""
    phase2: Phase2 | None = None


def load(chosen: Shape) -> World:
    """Fill an inventory with all machines of a shape."""
    gc.unfreeze()
    needs = list(chosen.needs())
    inventory = _empty(needs)
    machines = chosen.machines()
    milliseconds = 0.0
    while batch := list(islice(machines, 1000)):
        _, spent = timed(lambda: _insert(inventory, batch))
        milliseconds += spent
    inventory.freeze()
    gc.collect()
    # As a process does that has loaded its fleet: what stays for good is not searched for garbage again.
    gc.freeze()
    return World(chosen, inventory, needs, milliseconds)


def weigh(chosen: Shape) -> float:
    """Bytes that a machine takes in the inventory, its id apart, as tracemalloc sees them. Tracing is slow:
    of a large fleet every n-th machine is weighed."""
    needs = list(chosen.needs())
    step = -(-chosen.expected["machines"] // WEIGHED)
    machines = islice(chosen.machines(), 0, None, step)
    gc.collect()
    tracemalloc.start()
    try:
        inventory = _empty(needs)
        _insert(inventory, machines)
        traced, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    return (traced - sum(map(sys.getsizeof, inventory))) / len(inventory)


def _empty(needs: list[Need]) -> Inventory:
    """An inventory that knows which labels will be asked for, so that classes are right from the start."""
    inventory = Inventory()
    inventory.ask({requirement.key for need in needs for requirement in need.profile.requirements})
    return inventory


def _insert(inventory: Inventory, machines: Iterable[Machine]) -> None:
    for machine in machines:
        inventory.insert(machine, 0)


def decide(world: World) -> tuple[Outcome, float]:
    """One run from fresh rows: the outcome and the milliseconds of the phase that is timed."""
    rows = [
        Row(index, Demand(need, frozenset({(need.profile.fingerprint, need.group)})), need.aggregate)
        for index, need in enumerate(world.needs)
    ]
    reported = frozenset(need.cluster_id for need in world.needs) if world.shape.reported else frozenset()

    def phase1() -> tuple[Supply, list[Action]]:
        # The view of the supply is made anew in every cycle, so making it belongs to the time.
        identities: dict[str, set[tuple[str, str]]] = {}
        for row in rows:
            identities.setdefault(row.demand.need.cluster_id, set()).update(row.demand.identities)
        supply = Supply(world.inventory, Matcher(), identities, reported)
        phase = Phase1(rows, supply, VictimOrder(DEFAULTS), now=0)
        finish(phase.run())
        return supply, finish(phase.actions())

    (supply, actions), milliseconds = timed(phase1)
    if world.shape.phase == 1:
        return Outcome(rows, supply, actions), milliseconds
    if world.shape.phase == 2:
        phase2 = Phase2(rows, supply, DEFAULTS, now=0)
        _, milliseconds = timed(lambda: finish(phase2.run()))
        return Outcome(rows, supply, phase2.actions, phase2), milliseconds
    actions, milliseconds = timed(lambda: finish(phase3(supply, set(), DEFAULTS, 0)))
    return Outcome(rows, supply, actions), milliseconds


def check(title: str, chosen: Shape, counts: Counter[str]) -> None:
    """Refuse an outcome that is not the expected one."""
    wrong = [
        f"{name}: expected {expected:,}, got {got:,}"
        for name, expected in chosen.expected.items()
        if (got := sum(counts[part] for part in name.split(" + "))) != expected
    ]
    if wrong:
        raise WrongAnswerError(f"{title}: {'; '.join(wrong)}")


def count(world: World, outcome: Outcome) -> Counter[str]:
    """Everything the specification states a number for."""
    rows, inventory = outcome.rows, world.inventory
    cells = [cell for state in MachineState for cell in inventory.cells(state)]
    claimed = Counter[MachineState]()
    for row in rows:
        for span in row.claims:
            claimed[span.stock.cell.state] += len(span)
    short = [row for row in rows if not row.remaining.is_zero()]
    counts = Counter(
        {
            "machines": len(inventory),
            # A class counts once for every state it occurs in.
            "classes": len({(cell.state, cell.machine_class.number) for cell in cells}),
            "cells": len(cells),
            "needs": len(rows),
            "needs with Same": sum(row.demand.need.profile.same is not None for row in rows),
            "profiles": len({row.demand.need.profile.fingerprint for row in rows}),
            "claimed": claimed.total(),
            "credited": claimed[MachineState.CONFIGURED],
            "unsatisfied": len(short),
            "unsatisfied Same": sum(row.demand.need.profile.same is not None for row in short),
            "cpu short": sum(row.remaining["cpu"] for row in short) // 1000,
        }
    )
    counts.update(action.kind.value for action in outcome.actions)
    counts.update(f"gangs in {row.domain}" for row in rows if row.domain is not None)
    if world.shape.phase == 1:
        excess = finish(phase3(outcome.supply, set(), DEFAULTS, 0))
        counts["excess"] = sum(action.kind is ActionKind.RECLAIM for action in excess)
    if outcome.phase2 is not None:
        found = outcome.phase2.resolutions.values()
        counts["unresolved"] = sum(not resolution.deficit.is_zero() for resolution in found)
        counts.update(f"Preempt with {action.grace_s} s" for action in outcome.actions)
    return counts


def finish(work: Generator[int, None, T]) -> T:
    """Run a phase to its end."""
    while True:
        try:
            next(work)
        except StopIteration as finished:
            outcome: T = finished.value
            return outcome


def _whole_cycle(title: str, world: World, repeat: int) -> float:
    """A cycle as a shard runs it, with folding: as many Bootstraps, from as many plain Needs."""
    by_cluster: dict[str, list[Need]] = {}
    for need in world.needs:
        by_cluster.setdefault(need.cluster_id, []).append(need)
    table_of_needs = NeedsTable()
    for cluster, rows in by_cluster.items():
        table_of_needs.apply_rollup(cluster, rows, 0, guard=False)
    world.inventory.thaw()

    def cycle() -> tuple[int, float]:
        engine = Engine(inventory=world.inventory, needs=table_of_needs)
        result, milliseconds = timed(lambda: engine.run(CycleInputs(now=0)))
        return sum(action.kind is ActionKind.BOOTSTRAP for action in result.decided), milliseconds

    bootstraps, milliseconds, _ = best_of(repeat, BUDGET_S, cycle)
    expected = world.shape.expected["Bootstrap"]
    if bootstraps != expected:
        raise WrongAnswerError(f"{title}, whole cycle: expected {expected:,} Bootstrap, got {bootstraps:,}")
    return milliseconds


def _profile(title: str, world: World) -> None:
    profiler = cProfile.Profile()
    profiler.runcall(decide, world)
    progress(f"{title}: where the time goes (all phases of one run, under the profiler)")
    pstats.Stats(profiler, stream=sys.stderr).sort_stats("tottime").print_stats(PROFILE_LINES)


def _summary(document: dict[str, Any], changes: list[Change]) -> str:
    calibration = document["calibration_ms"]
    ratios = {(change.shape, change.metric): change.ratio for change in changes}
    rows = []
    for result in document["results"]:
        metrics, counts = result["metrics"], result["counts"]
        for metric, milliseconds in metrics.items():
            if not metric.endswith("_ms"):
                continue
            ratio = ratios.get((result["name"], metric))
            rows.append(
                [
                    result["name"],
                    f"{counts['machines']:,}",
                    f"{metrics['classes']:,}",
                    f"{counts['needs']:,}",
                    f"{metrics['actions']:,}",
                    f"{metrics['bytes_per_machine']:,.0f}",
                    metric.removesuffix("_ms"),
                    f"{milliseconds:,.1f}",
                    f"{milliseconds / calibration:,.2f}",
                    "-" if ratio is None else f"{ratio:.2f}",
                ]
            )
    headings = [
        "shape",
        "machines",
        "classes",
        "Needs",
        "actions",
        "B/machine",
        "timed",
        "ms",
        "÷ calibration",
    ]
    return table([*headings, "÷ baseline"], rows)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="bench/engine.py",
        description="How long the engine takes to decide. Counts are checked before times are reported.",
        epilog=f"Shapes: {', '.join(SHAPES)}. NAME@1/10 runs one at a tenth of its size.",
    )
    parser.add_argument(
        "shapes", nargs="*", type=_shape_argument, metavar="SHAPE", help="shapes to run (default: all)"
    )
    parser.add_argument("--scale", type=_scale, default=FULL, help="fraction of the full size: 0.01, 1/100")
    parser.add_argument(
        "--repeat", type=int, default=5, help="times are the best of so many runs (default: 5)"
    )
    parser.add_argument("--output", choices=("table", "json"), default="table", help="what to print")
    parser.add_argument("--profile", action="store_true", help="show where the time goes, on standard error")
    parser.add_argument(
        "--check", action="store_true", help=f"fail when a figure is {TOLERANCE:g} times its baseline or more"
    )
    return parser


def _shape_argument(text: str) -> tuple[str, Fraction | None]:
    name, at, fraction = text.partition("@")
    if name not in SHAPES:
        raise argparse.ArgumentTypeError(f"{name!r} is no shape; there are {', '.join(SHAPES)}")
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
