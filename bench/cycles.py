"""Whole cycles over the fleets of ``bench.fleets``.

*Full* is a pass over the fleet as it was loaded. For *steady* the fleet has come to rest; then in every cycle
a little changes, and each cycle is compared with a full pass. *Unchanged* is the same fleet with standing
shortfalls and parked gangs, and nothing that happens but time.
"""

import gc
import os
import sys
import tracemalloc
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path
from statistics import fmean
from typing import Final

from bench.adapter import classes, demand, explanation_bytes, full_result, load, unexplained
from bench.fleets import FleetShape
from bench.harness import Result, WrongAnswerError, best_of, progress, timed
from bench.life import CAPPED, INTERVAL, Life, Rate, Weather
from bigfleet.engine.actions import ActionKind
from bigfleet.engine.cycle import CycleInputs, CycleResult, Engine
from bigfleet.engine.ledger import Part, PartKey
from bigfleet.engine.options import DEFAULTS, REPROBE_EVERY
from bigfleet.engine.plan import Outcome
from bigfleet.engine.verdicts import UnmetReason
from bigfleet.scale import hopeless, mint, resources
from bigfleet.shard.shell import garbage
from bigfleet_base.model import CapacityType, MachineState, Need

STEADY_CYCLES: Final = 100
SHORTFALLS: Final = 100
PARKED: Final = 10
HELD: Final = 10
"""Idle machines whose hold ends while nothing else happens."""
HOLD_NS: Final = DEFAULTS.idle_hold_ns[CapacityType.SPOT]
UNCHANGED_CYCLES: Final = REPROBE_EVERY + 2
"""In so many every parked gang is looked at once."""
WEIGHED: Final = 500_000
"""Machines that are weighed, at most."""
EVERY_KIND: Final = ("Preempt", "Reclaim", "Delete", "folded", "parked", "spread")
"""A shape in which one of these does not occur leaves a part of the engine out."""


@dataclass(frozen=True, slots=True)
class Plan:
    """How long to measure."""

    best: int = 5
    budget_s: float = 60.0
    """No further full pass starts once they have taken this long."""
    cycles: int = STEADY_CYCLES


@dataclass(slots=True)
class Figures:
    """What has been measured and counted so far."""

    metrics: dict[str, float] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)
    runs: int = 0
    """Full passes that were timed."""


def measure(shape: FleetShape, plan: Plan) -> Result:
    """All figures of a shape, if what it decides is right."""
    figures = Figures()
    life = at_rest(shape, plan, figures)
    check(shape, figures.counts)
    steady(shape, life, plan, figures)
    unchanged(shape, life, figures)
    del life
    figures.metrics["bytes_per_machine"] = weigh(shape, figures.counts["machines"])
    metrics = {name: round(value, 3) for name, value in figures.metrics.items()}
    return Result(shape.name, metrics, dict(figures.counts), figures.runs)


def at_rest(shape: FleetShape, plan: Plan, figures: Figures) -> Life:
    """Load a shape, time full passes over it, and carry out what they decide until nothing is left to do."""
    life = Life(_loaded(shape, figures))
    life.begin()
    _full(shape, life, plan, figures)
    last = life.settle()
    counts = figures.counts
    counts["parked"] = sum(verdict.need.acquisition_parked for verdict in last.verdicts)
    counts["cycles to rest"] = life.rounds
    progress(f"{shape.name}: at rest after {life.rounds} cycles, {counts['parked']:,} gangs parked")
    _forget_garbage()
    return life


def steady(shape: FleetShape, life: Life, plan: Plan, figures: Figures) -> None:
    """A little changes in every cycle; each is compared with a full pass."""
    weather = Weather(life, Rate.steady(life.engine))
    cycles, fulls, changes = [], [], []
    for number in range(plan.cycles):
        changes.append(timed(weather.change)[1])
        inputs = CycleInputs(now=life.now, options=CAPPED)
        expected, spent = timed(partial(full_result, life.engine, inputs))
        fulls.append(spent)
        result, spent = steady_cycle(life, inputs)
        cycles.append(spent)
        compare_results(f"{shape.name}, steady cycle {number}", result, expected)
        figures.counts["steady actions"] += len(result.decided)
    figures.counts["steady cycles"] = plan.cycles
    figures.metrics |= {
        "steady_ms": fmean(cycles),
        "steady_worst_ms": max(cycles),
        "steady_full_ms": fmean(fulls),
        "steady_changes_ms": fmean(changes),
    }
    progress(f"{shape.name}: steady cycle {fmean(cycles):,.2f} ms, at worst {max(cycles):,.2f} ms")


def unchanged(shape: FleetShape, life: Life, figures: Figures) -> None:
    """Nothing happens but time: ages grow, parked gangs are looked at again, holds end."""
    engine = life.engine
    _only_known_shortfalls(shape, life)
    for n in range(HELD):
        held = mint(
            f"held-{n}",
            MachineState.IDLE,
            resources("1"),
            instance_type="held",
            capacity_type=CapacityType.SPOT,
            price_per_hour=1.0,
        )
        engine.inventory.insert(held, life.now)
    holds_end = life.now + HOLD_NS
    times, before, probed = [], None, set()
    for _ in range(UNCHANGED_CYCLES):
        result, spent = timed(partial(engine.run, CycleInputs(now=life.now)))
        times.append(spent)
        unmet = {verdict.need.key: verdict for verdict in result.verdicts if not verdict.satisfied}
        gangs = {key: verdict for key, verdict in unmet.items() if verdict.need.profile.same is not None}
        ages = {key: verdict.age for key, verdict in unmet.items()}
        probed |= {key for key, verdict in gangs.items() if not verdict.need.acquisition_parked}
        released = sum(action.kind is ActionKind.DELETE for action in result.decided)
        found = {
            "shortfalls": (len(unmet) - len(gangs), SHORTFALLS),
            "gangs": (len(gangs), PARKED),
            "releases": (released, HELD if life.now >= holds_end else 0),
            "other actions": (len(result.decided) - released, 0),
            "ages that grew": (
                len(ages)
                if before is None
                else sum(age == before.get(key, 0) + 1 for key, age in ages.items()),
                len(ages),
            ),
        }
        for name, (got, expected) in found.items():
            if got != expected:
                raise WrongAnswerError(f"{shape.name}, unchanged: expected {expected:,} {name}, got {got:,}")
        before = ages
        life.now += INTERVAL
    if len(probed) != PARKED:
        raise WrongAnswerError(
            f"{shape.name}, unchanged: expected {PARKED} gangs looked at again, got {len(probed)}"
        )
    figures.metrics |= {"unchanged_ms": fmean(times), "unchanged_worst_ms": max(times)}
    progress(f"{shape.name}: unchanged cycle {fmean(times):,.3f} ms, at worst {max(times):,.3f} ms")


def check(shape: FleetShape, counts: Counter[str]) -> None:
    """Refuse counts that are not the expected ones."""
    wrong = [
        f"{name}: expected {expected:,}, got {counts[name]:,}"
        for name, expected in shape.expected.items()
        if counts[name] != expected
    ]
    wrong += [f"{name}: expected at least 1, got 0" for name in EVERY_KIND if not counts[name]]
    if wrong:
        raise WrongAnswerError(f"{shape.name}: {'; '.join(wrong)}")


def compare_results(title: str, result: CycleResult, expected: Outcome) -> None:
    """Refuse a cycle that decides otherwise than a full pass."""
    shortfalls = {key: part for key, part in expected.parts.items() if not part.deficit.is_zero()}
    for name, got, wanted in (
        ("decided", result.decided, expected.decided),
        ("verdicts", result.verdicts, expected.verdicts),
        ("shortfalls", _by_key(result.shortfalls), _by_key(shortfalls)),
    ):
        if got != wanted:
            pairs = zip(got, wanted, strict=False)
            first = next((pair for pair in pairs if pair[0] != pair[1]), (len(got), len(wanted)))
            raise WrongAnswerError(
                f"{title}: {name} differ from a full pass, first {first[0]} and {first[1]}"
            )


def steady_cycle(life: Life, inputs: CycleInputs) -> tuple[CycleResult, float]:
    """One cycle and its milliseconds; what may be executed is begun."""
    gc.collect()
    result, milliseconds = timed(partial(life.engine.run, inputs))
    life.start(result.passed.actions)
    life.now += INTERVAL
    return result, milliseconds


def weigh(shape: FleetShape, machines: int) -> float:
    """Bytes that a machine takes in the engine, its id apart, as tracemalloc sees them. Tracing is slow and
    takes memory itself: of a large fleet every n-th machine is weighed."""
    engine = Engine()
    demand(engine, shape)
    sample = islice(shape.machines(), 0, None, -(-machines // WEIGHED))
    gc.unfreeze()
    gc.collect()
    tracemalloc.start()
    try:
        load(engine, sample)
        gc.collect()
        traced, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    return (traced - sum(map(sys.getsizeof, engine.inventory))) / len(engine.inventory)


def _loaded(shape: FleetShape, figures: Figures) -> Engine:
    gc.unfreeze()
    engine = Engine()
    demand(engine, shape)
    machines = shape.machines()
    milliseconds = 0.0
    while batch := list(islice(machines, 10_000)):
        _, spent = timed(partial(load, engine, batch))
        milliseconds += spent
    _forget_garbage()
    count = len(engine.inventory)
    figures.counts["machines"] = count
    figures.counts["needs"] = len(engine.needs.snapshot())
    figures.counts["classes"] = classes(engine)
    figures.metrics |= {
        "classes": figures.counts["classes"],
        "load_us_per_machine": 1000 * milliseconds / count,
        "rss_mib": _rss_mib(),
    }
    progress(f"{shape.name}: {count:,} machines, {figures.counts['needs']:,} Needs loaded")
    return engine


def _full(shape: FleetShape, life: Life, plan: Plan, figures: Figures) -> None:
    inputs = CycleInputs(now=life.now)
    unsaid: list[float] = []

    def cold() -> tuple[Outcome, float]:
        # By turns, so that both meet the same weather.
        with unexplained():
            unsaid.append(timed(partial(full_result, life.engine, inputs))[1])
        gc.collect()
        return timed(partial(full_result, life.engine, inputs))

    result, milliseconds, figures.runs = best_of(plan.best, plan.budget_s, cold)
    _, warm_ms, _ = best_of(
        plan.best, plan.budget_s, lambda: timed(lambda: full_result(life.engine, inputs, warm=True))
    )
    counts = figures.counts
    counts["actions"] = len(result.decided)
    counts.update(action.kind.value for action in result.decided)
    for verdict in result.verdicts:
        counts["unmet"] += not verdict.satisfied
        counts["folded"] += len(verdict.demand.groups)
        strict = verdict.need.profile.strict_spread is not None
        bought = verdict.sources.idle + verdict.sources.speculative > 0
        counts["spread"] += strict and (bought or verdict.reason is UnmetReason.SPREAD_UNSATISFIABLE)
    percent, size = 100 * (1 - min(unsaid) / milliseconds), explanation_bytes(result) / counts["needs"]
    figures.metrics |= {
        "actions": counts["actions"],
        "full_ms": milliseconds,
        "full_warm_ms": warm_ms,
        "us_per_need": 1000 * milliseconds / counts["needs"],
        "explained_percent": percent,
        "explanation_bytes_per_need": size,
    }
    progress(
        f"{shape.name}: full pass {milliseconds:,.1f} ms, the best of {figures.runs}; "
        f"{counts['actions']:,} actions; to say why takes {percent:.1f} % of it and {size:.0f} bytes a Need"
    )


def _only_known_shortfalls(shape: FleetShape, life: Life) -> None:
    """Take away what is unmet, until all is met; then add demand of which it is known that it never is."""
    needs = life.engine.needs
    rows: dict[str, list[Need]] = {}
    for need in needs.snapshot():
        rows.setdefault(need.cluster_id, []).append(need)
    while True:
        result = life.settle()
        unmet = {verdict.need.cluster_id: set[str]() for verdict in result.verdicts if not verdict.satisfied}
        if not unmet:
            break
        for verdict in result.verdicts:
            if not verdict.satisfied:
                # A folded Need stands for all gangs of its cluster that it holds.
                unmet[verdict.need.cluster_id] |= {verdict.need.key[1], *verdict.demand.groups}
        for cluster, short in unmet.items():
            rows[cluster] = [need for need in rows[cluster] if not ({need.key[1], need.group} - {""}) & short]
            needs.apply_rollup(cluster, rows[cluster], life.now, guard=False)
    names = sorted(rows)
    for n in range(SHORTFALLS + PARKED):
        cluster = names[n % len(names)]
        rows[cluster].append(hopeless(cluster, n, gang=n >= SHORTFALLS))
    for cluster in names:
        needs.apply_rollup(cluster, rows[cluster], life.now, guard=False)
    life.settle()
    progress(f"{shape.name}: {SHORTFALLS} shortfalls stand, {PARKED} gangs are parked")


def _by_key(shortfalls: Mapping[PartKey, Part]) -> list[tuple[PartKey, Part]]:
    return sorted(shortfalls.items(), key=lambda item: item[0])


def _forget_garbage() -> None:
    """As a shard does that has loaded its fleet."""
    garbage.look_rarely()
    gc.collect()
    garbage.keep_for_good()


def _rss_mib() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20
