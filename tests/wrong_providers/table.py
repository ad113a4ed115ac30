"""``python -m tests.wrong_providers.table``: which check has been seen red, and for whom.

Small, each wrong provider meets the checks named for it; with ``--full`` it meets all of them.
"""

import argparse
import json
import sys
import time
from collections.abc import Mapping, Sequence

from bigfleet_providerkit.conformance import checks
from bigfleet_providerkit.conformance.catalogue import BEHAVIOURS
from bigfleet_providerkit.conformance.outcome import Status, Verdict
from tests.wrong_providers.registry import WrongProvider, controls, load
from tests.wrong_providers.trial import Trial, try_all

MOST_JOBS = 6
_DEAR = ("X303",)
"""Ten thousand calls each, to find out what next to no mistake has to do with."""


def main(argv: Sequence[str] | None = None) -> int:
    """Print the table; fails when a check has nobody to catch, or somebody is not caught."""
    parser = argparse.ArgumentParser(
        prog="make conformance-wrong",
        description="Run the conformance suite against providers with one rule switched off, and show which "
        "check turns red for whom. Fails when a check has no wrong provider or does not notice its own.",
        epilog='Through make: make conformance-wrong ARGS="--only NAME".',
    )
    parser.add_argument("--only", action="append", default=[], metavar="NAME", help="this one (repeat)")
    parser.add_argument("--full", action="store_true", help="every check against every wrong provider")
    parser.add_argument("--output", choices=["text", "json"], default="text")
    parser.add_argument("--jobs", type=int, choices=range(1, 9), default=MOST_JOBS, help=f"({MOST_JOBS})")
    args = parser.parse_args(argv)
    known = load()
    if unknown := set(args.only) - known.keys():
        parser.error(
            f"no wrong provider is called {', '.join(sorted(unknown))}; known are {', '.join(known)}"
        )
    chosen = {name: one for name, one in known.items() if not args.only or name in args.only}
    ids = everything(chosen) if args.full else own(chosen)
    ids |= {} if args.only else own(controls())
    began = time.monotonic()
    trials: dict[str, Trial] = {}
    for trial in try_all(ids, args.jobs):
        trials[trial.name] = trial
        _say(f"{len(trials)}/{len(ids)} {trial.name}: {_seen(trial)}, {trial.seconds:.1f} s")
    seconds = time.monotonic() - began
    problems = [complaint for name in ids for complaint in complaints(name, trials[name])]
    problems += [] if args.only else without_wrong_provider()
    if args.output == "json":
        print(json.dumps(_as_json(chosen, trials, problems, seconds), indent=2))
    else:
        print("\n".join(_table(chosen, trials)))
        red = {one for trial in trials.values() for one in trial.red}
        print(f"{len(chosen)} wrong providers, {len(red)} checks seen red; {seconds:.0f} s")
    for problem in problems:
        _say(problem)
    return 1 if problems else 0


def own(chosen: Mapping[str, WrongProvider]) -> dict[str, Sequence[str]]:
    """For each the checks that are named for it."""
    return {name: one.caught_by for name, one in chosen.items()}


def everything(chosen: Mapping[str, WrongProvider]) -> dict[str, Sequence[str]]:
    """For each all checks that its base without a mistake passes, and its own."""
    passed = {control.base: control.caught_by for control in controls().values()}
    return {name: tuple(dict.fromkeys((*passed[one.base], *one.caught_by))) for name, one in chosen.items()}


def without_wrong_provider() -> list[str]:
    """Checks that nobody is known to fail."""
    named = {one for known in load().values() for one in known.caught_by}
    return [
        f"{one}: no wrong provider is there to fail it; write one in tests/wrong_providers/breaches"
        for one in checks.load()
        if one not in named
    ]


def complaints(name: str, trial: Trial) -> list[str]:
    """How a wrong provider got away with it, or why nothing is proven."""
    found = [f"{name}: the kit broke down over the mistake: {panic}" for panic in trial.panics]
    if name in controls():
        return found + [
            f"{name}: {one} is {result.status} with no mistake planted: {result.reason}"
            for one, result in trial.results.items()
            if result.status in (Status.FAILED, Status.ERROR)
        ]
    planted = load()[name]
    if trial.verdict is not Verdict.FAILED:
        found.append(f"{name}: the verdict is {trial.verdict}, expected FAILED")
    for one in planted.caught_by:
        if one not in trial.results:
            found.append(f"{name}: {one} did not run")
        elif one not in trial.red:
            result = trial.results[one]
            said = f" ({result.reason})" if result.reason else ""
            found.append(f"{name}: {one} is {result.status}{said}. Planted: {planted.says}")
    return found


def _table(chosen: Mapping[str, WrongProvider], trials: Mapping[str, Trial]) -> list[str]:
    bound = checks.load()
    rows = ["check   seen red for"]
    for one in BEHAVIOURS:
        caught = [name for name in chosen if one in trials[name].red]
        rows.append(f"{one:6}  {', '.join(caught) or ('-' if one in bound else '(the suite has no check)')}")
    return rows


def _seen(trial: Trial) -> str:
    return f"{trial.verdict}, {', '.join(trial.red) or 'nothing'} red"


def _as_json(
    chosen: Mapping[str, WrongProvider], trials: Mapping[str, Trial], problems: list[str], seconds: float
) -> dict[str, object]:
    return {
        "seconds": round(seconds, 1),
        "problems": problems,
        "wrong_providers": [
            {
                "name": one.name,
                "says": one.says,
                "breaks": one.breaks,
                "caught_by": one.caught_by,
                "verdict": trials[name].verdict,
                "seconds": round(trials[name].seconds, 1),
                "results": {
                    behaviour_id: {"status": result.status, "reason": result.reason}
                    for behaviour_id, result in trials[name].results.items()
                },
            }
            for name, one in chosen.items()
        ],
        "checks": {one: [name for name in chosen if one in trials[name].red] for one in BEHAVIOURS},
    }


def _say(text: str) -> None:
    """To whoever waits; the table alone goes to standard output."""
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
