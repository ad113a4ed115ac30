"""Engine against oracle over random histories: ``python -m tests.engine.differential --help``.

Every fleet comes from its seed alone, so a difference is reproduced by naming the seed; it is then shrunk and
written to ``regressions/``, where the tests replay it for ever.
"""

import argparse
import json
import os
import re
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from bigfleet_base.model import Need
from tests.engine.adapter import EngineJudge
from tests.engine.fleets import Description, Step, generate, play
from tests.engine.judge import OracleJudge
from tests.engine.shrink import shrunk
from tests.engine.situations import SITUATIONS, Scene, reached
from tests.oracle.results import CycleInput, CycleResult, Ingest, Options

REGRESSIONS = Path(__file__).parent / "regressions"
RARE = 0.01
"""A situation that fewer fleets than this reach is not tested by chance."""
TELLING = 500
"""Fleets that must have been looked at before a situation can be called rare."""
SAMPLE_EVERY = 10
"""Looking for situations costs as much as deciding, so only every so many fleets are looked at."""
CHUNK = 250


class WatchedOracle(OracleJudge):
    """The oracle, remembering what each cycle saw."""

    held = False

    def rollup(self, cluster: str, rows: Sequence[Need], now: int, *, guard: bool = False) -> Ingest:
        outcome = super().rollup(cluster, rows, now, guard=guard)
        self.held |= outcome is Ingest.HELD
        return outcome

    def cycle(self, inputs: CycleInput, options: Options) -> CycleResult:
        self.seen = self._world.snapshot()
        return super().cycle(inputs, options)


def first_difference(fleet: Description, situations: set[str] | None = None) -> str | None:
    """What engine and oracle disagree about first; None if they agree to the end."""
    oracle, engine = WatchedOracle(), EngineJudge()
    before: CycleResult | None = None
    for number, (theirs, ours) in enumerate(zip(play(oracle, fleet), play(engine, fleet), strict=True)):
        for what, expected, got in compared(theirs, ours):
            if expected != got:
                return f"cycle {number}, {what}:\n  oracle {expected}\n  engine {got}"
        if situations is not None:
            situations.update(reached(Scene(theirs, oracle.seen, oracle.held, before)))
            oracle.held = False
        before = theirs.result
    machines = oracle.machines()
    if machines != engine.records():
        return "the records at the end"
    if any(oracle.memory(i) != engine.memory(i) for i in machines):
        return "what is remembered beside the records at the end"
    return None


def compared(theirs: Step, ours: Step) -> Iterator[tuple[str, object, object]]:
    a, b = theirs.result, ours.result
    yield "demand", theirs.demand, ours.demand
    yield "normalised demand", a.rows, b.rows
    # In which order a Need came to what it holds is nobody's business; what it buys is in the actions.
    yield "claims", [set(n.claims) for n in a.phase1.needs], [set(n.claims) for n in b.phase1.needs]
    yield "decided actions", a.decided, b.decided
    for index, (verdict, other) in enumerate(zip(a.verdicts, b.verdicts, strict=True)):
        yield f"verdict {index}", verdict, other
    yield (
        "counted drains",
        [(n.index, n.deficit, n.picked, n.counted, n.preempted) for n in a.phase2.needs],
        [(n.index, n.deficit, n.picked, n.counted, n.preempted) for n in b.phase2.needs],
    )
    yield "rails", a.rails, b.rails
    yield "report", a.report, b.report
    yield "fold memory", a.carried.folds, b.carried.folds
    yield "parking", a.carried.parking, b.carried.parking
    yield "helped", a.carried.helped, b.carried.helped
    yield "ledger", a.carried.ledger, b.carried.ledger
    yield "verdict ages", a.carried.ages, b.carried.ages
    # The oracle keeps every bucket; the engine drops one that time has filled again anyway.
    fresh = theirs.inputs.now - 2 * theirs.options.cycle_interval_ns
    yield (
        "reclaim buckets",
        {c: bucket for c, bucket in a.carried.buckets.items() if bucket.at > fresh},
        {c: bucket for c, bucket in b.carried.buckets.items() if bucket.at > fresh},
    )


@dataclass
class Tally:
    """What a run of fleets showed."""

    fleets: int = 0
    sampled: int = 0
    situations: Counter[str] = field(default_factory=Counter)
    differences: dict[int, str] = field(default_factory=dict)

    def add(self, other: "Tally") -> None:
        self.fleets += other.fleets
        self.sampled += other.sampled
        self.situations += other.situations
        self.differences |= other.differences

    def save(self, path: Path) -> None:
        """Write it down whole or not at all."""
        draft = path.with_suffix(".draft")
        draft.write_text(json.dumps(vars(self)), encoding="utf-8")
        draft.replace(path)

    @classmethod
    def load(cls, path: Path) -> "Tally":
        known = json.loads(path.read_text(encoding="utf-8"))
        return cls(
            known["fleets"],
            known["sampled"],
            Counter(known["situations"]),
            {int(seed): text for seed, text in known["differences"].items()},
        )

    def rare(self) -> list[str]:
        """Situations that too few fleets reached; of few fleets that says nothing."""
        if self.sampled < TELLING:
            return []
        return [name for name in SITUATIONS if self.situations[name] < RARE * self.sampled]

    def table(self) -> str:
        width = max(map(len, SITUATIONS))
        rows = (
            f"  {name:{width}}  {count:7}  {100 * count / self.sampled:5.1f} %"
            for name in SITUATIONS
            for count in [self.situations[name]]
        )
        return "\n".join([f"situations reached, of {self.sampled} fleets looked at:", *rows])


def judge_seeds(start: int, stop: int) -> Tally:
    """Judge the fleets of these seeds."""
    tally = Tally()
    for seed in range(start, stop):
        looked_at: set[str] | None = set() if seed % SAMPLE_EVERY == 0 else None
        difference = first_difference(generate(seed), looked_at)
        tally.fleets += 1
        if looked_at is not None:
            tally.sampled += 1
            tally.situations.update(looked_at)
        if difference is not None:
            tally.differences[seed] = difference
    return tally


def run(
    start: int, fleets: int, jobs: int, *, progress: bool = False, most: int = 3, state: Path | None = None
) -> Tally:
    """Judge many fleets on several cores; stops early after a few differences.

    With a state file the run goes on where an earlier one was stopped.
    """
    total = Tally.load(state) if state is not None and state.exists() else Tally()
    began, done = time.monotonic(), total.fleets
    first, end = start + done, start + fleets
    bounds = [(s, min(s + CHUNK, end)) for s in range(first, end, CHUNK)]
    if not bounds:
        return total
    with ProcessPoolExecutor(jobs) as pool:
        for number, tally in enumerate(pool.map(judge_seeds, *zip(*bounds, strict=True)), start=1):
            total.add(tally)
            if state is not None:
                total.save(state)
            if progress and number % 40 == 0:
                rate = (total.fleets - done) / (time.monotonic() - began)
                print(f"{total.fleets} of {fleets} fleets, {rate:.0f} a second", file=sys.stderr, flush=True)
            if len(total.differences) >= most:
                pool.shutdown(cancel_futures=True)
                break
    return total


def write_regression(seed: int) -> Path:
    """Shrink the failing fleet of a seed and write it where the tests replay it."""
    small = shrunk(generate(seed), lambda fleet: first_difference(fleet) is not None)
    REGRESSIONS.mkdir(exist_ok=True)
    path = REGRESSIONS / f"seed-{seed}.json"
    path.write_text(json.dumps(small, indent=1) + "\n", encoding="utf-8")
    return path


def _whole(least: int) -> Callable[[str], int]:
    def read(text: str) -> int:
        if not re.fullmatch(r"[0-9]{1,18}", text) or int(text) < least:
            raise argparse.ArgumentTypeError(f"{text!r} is no whole number of at least {least}")
        return int(text)

    return read


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="make differential", description="Judge the engine by the oracle over random fleets."
    )
    parser.add_argument(
        "--from", dest="start", type=_whole(0), default=0, metavar="SEED", help="first seed (0)"
    )
    parser.add_argument("--fleets", type=_whole(1), default=20_000, help="how many (20000)")
    parser.add_argument(
        "--jobs", type=_whole(1), default=os.cpu_count() or 1, help="processes (one per core)"
    )
    parser.add_argument(
        "--state", type=Path, metavar="FILE", help="keep what was judged in this file, and go on from it"
    )
    arguments = parser.parse_args(argv)
    began = time.monotonic()
    tally = run(arguments.start, arguments.fleets, arguments.jobs, progress=True, state=arguments.state)
    if tally.sampled:
        print(tally.table())
    for seed, difference in sorted(tally.differences.items()):
        print(f"seed {seed} differs in {difference}\nshrunk to {write_regression(seed)}")
    last = arguments.start + tally.fleets - 1
    print(
        f"{tally.fleets} fleets, seeds {arguments.start} to {last}, "
        f"{len(tally.differences)} differences, {time.monotonic() - began:.0f} s"
    )
    rare = tally.rare()
    if rare:
        print(f"reached by less than {RARE:.0%}: {', '.join(rare)}")
    return 1 if tally.differences or rare else 0


if __name__ == "__main__":
    sys.exit(main())
