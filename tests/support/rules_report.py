"""``make rules``: which rules of the specification have a test, and whether every built one does.

The lists in ``tests/rules/`` hold one line per rule, ``<file>.<id> <sentence>``, one list per file of the
specification. A rule is whatever a file names or numbers together with an outcome that a test can show:
rule ids, invariants, scenarios (``<file>.<section>.<number>`` where they have only a number), profiles and
benchmark shapes. ``tests/rules/built.txt`` declares what is built, as globs of ids.

pytest itself collects the tests of the checkout in the current folder, so every mark counts, also one
that is made in a loop over parameters.
"""

import argparse
import contextlib
import fnmatch
import io
import itertools
import json
import os
import re
import sys
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

LISTS = Path("tests/rules")
BUILT = LISTS / "built.txt"

# Whoever adds a rule without a test reads only its line, in a terminal and in the log of CI.
MAX_SENTENCE = 160


@dataclass(frozen=True, slots=True)
class Rule:
    id: str
    sentence: str

    @property
    def file(self) -> str:
        return self.id.partition(".")[0]


@dataclass(frozen=True, slots=True)
class Statements:
    """Rule id → the tests that carry its mark."""

    running: dict[str, list[str]]
    idle: dict[str, list[str]]


@dataclass(frozen=True, slots=True)
class Report:
    rules: Sequence[Rule]
    built: Mapping[str, str]
    tests: Mapping[str, Sequence[str]]
    problems: Sequence[str]

    def untested(self, rules: Iterable[Rule]) -> list[Rule]:
        return [rule for rule in rules if rule.id not in self.tests]


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="make rules",
        description="Show which rules of the specification have a test; fail when a built one has none.",
        epilog='Through make: make rules ARGS="engine", make rules ARGS="--output json".',
    )
    parser.add_argument(
        "filters",
        nargs="*",
        metavar="FILTER",
        help="a file (engine), an id (engine.S9) or a glob of ids (engine.S*): show the sentences of its "
        "rules without a test",
    )
    parser.add_argument("--output", choices=["text", "json"], default="text")
    args = parser.parse_args(argv)

    report = examine(Path.cwd())
    for text in args.filters:
        if not any(_selected(rule, [text]) for rule in report.rules):
            files = ", ".join(sorted({rule.file for rule in report.rules}))
            parser.error(f"no rule matches {text!r}; the files are: {files}")
    shown = [rule for rule in report.rules if not args.filters or _selected(rule, args.filters)]

    if args.output == "json":
        print(json.dumps(_as_json(report, shown), indent=2, ensure_ascii=False))
    else:
        for line in _as_sentences(report, shown) if args.filters else _as_table(report):
            print(line)
        for problem in report.problems:
            print(f"error: {problem}", file=sys.stderr)
    return 1 if report.problems else 0


def examine(root: Path) -> Report:
    """Read the lists of the checkout at ``root``, collect its tests and compare."""
    rules, problems = _read_lists(root)
    built, built_problems = _read_built(root, rules)
    statements, collection_problems = _collect(root, rules)
    problems += built_problems + collection_problems
    for rule in rules.values():
        if rule.id in built and rule.id not in statements.running:
            idle = ", ".join(statements.idle.get(rule.id, []))
            lack = f"only tests that are skipped or expected to fail: {idle}" if idle else "no test"
            problems.append(f"{rule.id} has {lack}; {BUILT} declares {built[rule.id]} built. {rule.sentence}")
    return Report(list(rules.values()), built, statements.running, problems)


# --- the committed lists


def _read_lists(root: Path) -> tuple[dict[str, Rule], list[str]]:
    rules: dict[str, Rule] = {}
    problems: list[str] = []
    lists = sorted(path for path in (root / LISTS).glob("*.txt") if path.name != BUILT.name)
    if not lists:
        problems.append(f"{LISTS} has no list of rules")
    for path in lists:
        previous: Rule | None = None
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
            where = f"{LISTS / path.name}:{number}"
            rule = _parse(line, path.stem)
            if isinstance(rule, str):
                problems.append(f"{where}: {rule}")
                continue
            if rule.id in rules:
                problems.append(f"{where}: {rule.id} is listed twice")
            elif previous is not None and _natural(rule.id) < _natural(previous.id):
                problems.append(f"{where}: {rule.id} belongs before {previous.id} (numbers by value)")
            rules.setdefault(rule.id, rule)
            previous = rule
    return rules, problems


def _parse(line: str, file: str) -> Rule | str:
    match = re.fullmatch(rf"({re.escape(file)}\.[A-Za-z0-9][A-Za-z0-9._-]*) (\S.*\S)", line)
    if match is None:
        return f"expected '{file}.<id> <sentence>', found {line!r}"
    rule = Rule(match[1], match[2])
    if len(rule.sentence) > MAX_SENTENCE:
        return f"the sentence of {rule.id} has {len(rule.sentence)} characters, at most {MAX_SENTENCE} fit"
    return rule


def _natural(rule_id: str) -> list[str | int]:
    """Order numbers by value: S2 before S10. Splitting alternates text and digits, so types never meet."""
    return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", rule_id)]


def _read_built(root: Path, rules: Mapping[str, Rule]) -> tuple[dict[str, str], list[str]]:
    """Rule id → the first glob that declares it built."""
    built: dict[str, str] = {}
    problems: list[str] = []
    path = root / BUILT
    if not path.is_file():
        return built, [f"{BUILT} is missing; it may be empty"]
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        if not line.strip() or line.startswith("#"):
            continue
        match = re.fullmatch(r"(\S+)\s+#\s*\S.*", line)
        if match is None:
            problems.append(f"{BUILT}:{number}: expected '<glob of ids>  # <reason>', found {line!r}")
            continue
        matched = [rule_id for rule_id in rules if fnmatch.fnmatchcase(rule_id, match[1])]
        if not matched:
            problems.append(f"{BUILT}:{number}: {match[1]} matches no rule of the lists")
        for rule_id in matched:
            built.setdefault(rule_id, match[1])
    return built, problems


# --- the tests


class _Collector:
    """Notes every item when it is made, so that deselecting it later (-m, -k, a conftest) hides nothing."""

    def __init__(self) -> None:
        self.items: list[pytest.Item] = []
        self.problems: list[str] = []

    def pytest_itemcollected(self, item: pytest.Item) -> None:
        self.items.append(item)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.problems.append(
                f"{report.nodeid}: cannot be collected, its marks are unknown: {_cause(report.longreprtext)}"
            )


def _collect(root: Path, rules: Mapping[str, Rule]) -> tuple[Statements, list[str]]:
    collector = _Collector()
    output = io.StringIO()
    # The options of everyday runs may leave tests out; here every test counts.
    os.environ.pop("PYTEST_ADDOPTS", None)
    arguments = ["--collect-only", "-q", "-o", "addopts=", "-p", "no:cacheprovider", f"--rootdir={root}"]
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
        code = pytest.main([*arguments, str(root / "tests")], plugins=[collector])
    problems = collector.problems
    if code not in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED) and not problems:
        problems.append(
            f"pytest could not collect the tests (exit code {int(code)}):\n{output.getvalue().strip()}"
        )

    statements = Statements(running={}, idle={})
    for item in collector.items:
        # A conditional skip or expected failure counts as idle too: a rule needs a test that always runs.
        is_idle = any(map(item.get_closest_marker, ("skip", "skipif", "xfail")))
        tests_of = statements.idle if is_idle else statements.running
        test = item.nodeid.partition("[")[0]
        for mark in item.iter_markers("rule"):
            for rule_id in mark.args or [None]:
                if isinstance(rule_id, str) and rule_id in rules:
                    _add(tests_of.setdefault(rule_id, []), test)
                else:
                    _add(
                        problems, f"{test}: unknown rule {rule_id!r}: no list in {LISTS} has this <file>.<id>"
                    )
    return statements, problems


def _add(texts: list[str], text: str) -> None:
    """Once for all cases of a parametrised test."""
    if text not in texts:
        texts.append(text)


def _cause(longrepr: str) -> str:
    """The line a person looks for in pytest's account of a failed import."""
    errors = [line[1:].strip() for line in longrepr.splitlines() if line.startswith("E ")]
    return (errors or longrepr.strip().splitlines() or ["no message"])[-1]


# --- the output


def _selected(rule: Rule, filters: Iterable[str]) -> bool:
    return any(rule.file == text or fnmatch.fnmatchcase(rule.id, text) for text in filters)


def _as_table(report: Report) -> Iterator[str]:
    yield f"{'file':<15}{'tested':>8}  without a test"
    for file, group in itertools.groupby(report.rules, key=lambda rule: rule.file):
        rules = list(group)
        untested = report.untested(rules)
        ids = textwrap.wrap(" ".join(_ranges(untested)), width=83, break_on_hyphens=False) or [""]
        yield f"{file:<15}{f'{len(rules) - len(untested)}/{len(rules)}':>8}  {ids[0]}".rstrip()
        yield from (" " * 25 + line for line in ids[1:])
    total = len(report.rules)
    yield f"{'all':<15}{f'{total - len(report.untested(report.rules))}/{total}':>8}"


def _ranges(rules: Iterable[Rule]) -> list[str]:
    """S1, S2, S3, S7 → S1…3, S7."""
    runs: list[tuple[str, str, str]] = []
    for rule in rules:
        name = rule.id.partition(".")[2]
        stem = name.rstrip("0123456789")
        number = name[len(stem) :]
        start, first, last = runs[-1] if runs else ("", "", "")
        if stem == start and number and last and int(number) == int(last) + 1:
            runs[-1] = (stem, first, number)
        else:
            runs.append((stem, number, number))
    return [stem + first + (f"…{last}" if last != first else "") for stem, first, last in runs]


def _as_sentences(report: Report, shown: Sequence[Rule]) -> Iterator[str]:
    untested = report.untested(shown)
    width = max((len(rule.id) for rule in untested), default=0)
    yield from (f"{rule.id:<{width}}  {rule.sentence}" for rule in untested)
    yield f"{len(untested)} of {len(shown)} rules without a test"


def _as_json(report: Report, shown: Sequence[Rule]) -> dict[str, object]:
    files = {
        file: {"rules": len(rules), "tested": len(rules) - len(report.untested(rules))}
        for file, group in itertools.groupby(shown, key=lambda rule: rule.file)
        for rules in [list(group)]
    }
    rules = [
        {
            "id": rule.id,
            "sentence": rule.sentence,
            "built": rule.id in report.built,
            "tests": report.tests.get(rule.id, []),
        }
        for rule in shown
    ]
    return {"ok": not report.problems, "problems": report.problems, "files": files, "rules": rules}


if __name__ == "__main__":
    sys.exit(main())
