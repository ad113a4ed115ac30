"""``python -m tests.mutants``: plant every bug and show which test catches it."""

import argparse
import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from tests.mutants.mutant import Mutant, load
from tests.mutants.trial import MOST_JOBS, Outcome, Trial, Workshop


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="make mutants",
        description="Plant known bugs in a copy of the engine, one at a time; fail unless the test named for "
        "each goes red.",
        epilog='Through make: make mutants ARGS="--only NAME".',
    )
    parser.add_argument("--only", action="append", default=[], metavar="NAME", help="this mutant (repeat)")
    parser.add_argument("--output", choices=["text", "json"], default="text")
    parser.add_argument(
        "--jobs", type=int, choices=range(1, MOST_JOBS + 1), default=MOST_JOBS, help=f"({MOST_JOBS})"
    )
    args = parser.parse_args(argv)
    mutants = load()
    if unknown := set(args.only) - {mutant.name for mutant in mutants}:
        parser.error(
            f"no mutant is called {', '.join(sorted(unknown))}; tests/mutants/engine.toml names them"
        )
    if args.only:
        mutants = [mutant for mutant in mutants if mutant.name in args.only]

    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        workshop = Workshop(Path(folder))
        _say("running the named tests without a bug")
        if failure := workshop.unmutated_failure(mutants):
            _say(f"the engine fails without a bug planted in it:\n{failure}")
            return 1
        trials = []
        for number, trial in enumerate(workshop.try_all(mutants, args.jobs), start=1):
            trials.append(trial)
            _say(f"{number}/{len(mutants)} {trial.mutant.name}: {trial.outcome}, {trial.seconds:.0f} s")
    trials.sort(key=lambda trial: mutants.index(trial.mutant))
    seconds = time.monotonic() - began
    if args.output == "json":
        print(json.dumps({"seconds": round(seconds, 1), "mutants": [_as_json(t) for t in trials]}, indent=2))
    else:
        print("\n".join(_table(trials)))
        counts = Counter(trial.outcome for trial in trials)
        print(f"{len(trials)} mutants, {_counted(counts)}; {seconds:.0f} s")
    for trial in trials:
        if not trial.passed:
            _say(_complaint(trial))
    return 0 if all(trial.passed for trial in trials) else 1


def _say(text: str) -> None:
    """To whoever waits; the table alone goes to standard output."""
    print(text, file=sys.stderr, flush=True)


def _table(trials: Sequence[Trial]) -> list[str]:
    rows = [("mutant", "rule", "caught by", "seconds")]
    rows += [
        (
            trial.mutant.name,
            ", ".join(trial.mutant.breaks),
            _short(trial.caught_by) if trial.passed else trial.outcome.value,
            f"{trial.seconds:.1f}",
        )
        for trial in trials
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    return [
        f"{name:{widths[0]}}  {rule:{widths[1]}}  {test:{widths[2]}}  {seconds:>7}"
        for name, rule, test, seconds in rows
    ]


def _short(test: str) -> str:
    return test.removeprefix("tests/engine/").replace("[engine]", "").replace("[engine-", "[")


def _counted(counts: Counter[Outcome]) -> str:
    return ", ".join(f"{counts[outcome]} {outcome}" for outcome in Outcome if counts[outcome])


def _complaint(trial: Trial) -> str:
    mutant: Mutant = trial.mutant
    said = f"{mutant.name}: {trial.outcome}. Planted in {mutant.file}: {mutant.wrong}"
    match trial.outcome:
        case Outcome.ELSEWHERE:
            return f"{said} Named: {mutant.caught_by}; red: {trial.caught_by}. Put the red one in its place."
        case Outcome.SURVIVED:
            return f"{said} No test of tests/engine notices: write the one that does."
        case _:
            return f"{said}\n{trial.detail}"


def _as_json(trial: Trial) -> dict[str, object]:
    mutant = trial.mutant
    return {
        "name": mutant.name,
        "wrong": mutant.wrong,
        "file": mutant.file,
        "breaks": mutant.breaks,
        "named": mutant.caught_by,
        "outcome": trial.outcome.value,
        "caught_by": trial.caught_by,
        "seconds": round(trial.seconds, 1),
    }


if __name__ == "__main__":
    sys.exit(main())
