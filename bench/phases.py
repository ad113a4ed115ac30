"""One phase at a time over the eight shapes of engine.md §18."""

import cProfile
import gc
import pstats
import sys
import tracemalloc
from collections import Counter
from collections.abc import Generator, Iterable
from dataclasses import dataclass
from fractions import Fraction
from itertools import islice
from typing import TypeVar

from bench.harness import Result, WrongAnswerError, best_of, progress, timed
from bench.shapes import FULL, Shape, shape
from bigfleet.engine.actions import Action, ActionKind
from bigfleet.engine.assign import Acquisition
from bigfleet.engine.credit import Credit
from bigfleet.engine.cycle import CycleInputs, Engine
from bigfleet.engine.inventory import Inventory
from bigfleet.engine.matching import Matcher
from bigfleet.engine.needs import NeedsTable
from bigfleet.engine.normalise import Demand
from bigfleet.engine.options import DEFAULTS
from bigfleet.engine.preempt import Phase2
from bigfleet.engine.reclaim import reclaims, releases
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
    credit: Credit
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
    """One run from nothing: the outcome and the milliseconds of the phase that is timed."""
    reported = frozenset(need.cluster_id for need in world.needs) if world.shape.reported else frozenset()
    matcher = Matcher(world.inventory)

    def phase1() -> tuple[Credit, list[Row], list[Action]]:
        rows = [
            Row.of(_demand(need, n), matcher.fit(need.profile, need.min_unit))
            for n, need in enumerate(world.needs)
        ]
        credit = Credit(Supply(world.inventory, reported))
        finish(credit.exchange([], rows))
        for cell in world.inventory.all_cells():
            credit.touch(cell)
        finish(credit.walk(VictimOrder(DEFAULTS), now=0))
        acquisition = Acquisition(credit.supply)
        finish(acquisition.run(credit.short))
        return credit, rows, finish(acquisition.actions(rows))

    (credit, rows, actions), milliseconds = timed(phase1)
    if world.shape.phase == 1:
        return Outcome(rows, credit, actions), milliseconds
    if world.shape.phase == 2:
        short = [row for row in rows if not row.remaining.is_zero()]
        short.sort(key=lambda row: row.demand.place)
        phase2 = Phase2(short, credit.supply, credit.loose, DEFAULTS, now=0)
        _, milliseconds = timed(lambda: finish(phase2.run()))
        return Outcome(rows, credit, phase2.actions, phase2), milliseconds
    actions, milliseconds = timed(lambda: _phase3(credit))
    return Outcome(rows, credit, actions), milliseconds


def _demand(need: Need, position: int) -> Demand:
    place = (-need.profile.priority, need.arrival_ns, need.cluster_id, position)
    return Demand(need, place, frozenset({(need.profile.fingerprint, need.group)}))


def _phase3(credit: Credit) -> list[Action]:
    given_back = finish(reclaims(credit.supply, credit.loose, set()))
    released, _ = finish(releases(credit.supply, DEFAULTS, 0))
    return given_back + released


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
        excess = _phase3(outcome.credit)
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
