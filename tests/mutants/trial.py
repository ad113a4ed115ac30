"""Does its test catch a planted bug?"""

import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final

from tests.mutants.agreement import FLEETS
from tests.mutants.mutant import DIFFERENTIAL, ROOT, Mutant, StaleMutantError, copy_engine

MOST_JOBS: Final = 2


class Outcome(StrEnum):
    """What became of a planted bug; only the first is good."""

    CAUGHT = "caught"
    ELSEWHERE = "caught by another test"
    SURVIVED = "SURVIVED"
    BROKEN = "does not run"


@dataclass(frozen=True, slots=True)
class Trial:
    """One mutant tried."""

    mutant: Mutant
    outcome: Outcome
    caught_by: str
    """The test that went red; empty where none did."""
    seconds: float
    detail: str = ""
    """What there is to read where the outcome is not as it should be."""

    @property
    def passed(self) -> bool:
        return self.outcome is Outcome.CAUGHT


@dataclass(frozen=True, slots=True)
class Suite:
    """All that can catch a mutant which its own test let pass."""

    tests: str
    fleets: int


WHOLE: Final = Suite("tests/engine", FLEETS)


@dataclass(frozen=True, slots=True)
class Workshop:
    """Where mutants are tried: a folder of its own for the copies, and for the bytecode they share."""

    folder: Path
    suite: Suite = WHOLE

    def try_all(self, mutants: Sequence[Mutant], jobs: int) -> Iterator[Trial]:
        """Try mutants side by side; each trial as it ends."""
        pool = ThreadPoolExecutor(min(jobs, MOST_JOBS))
        try:
            for done in as_completed([pool.submit(self.try_one, mutant) for mutant in mutants]):
                yield done.result()
        finally:
            pool.shutdown(cancel_futures=True)

    def try_one(self, mutant: Mutant) -> Trial:
        """Run its own test against the bug, and everything else if that stays green."""
        began = time.monotonic()

        def trial(outcome: Outcome, caught_by: str = "", detail: str = "") -> Trial:
            return Trial(mutant, outcome, caught_by, time.monotonic() - began, detail)

        with tempfile.TemporaryDirectory(dir=self.folder) as own:
            try:
                copy = copy_engine(Path(own), mutant)
            except StaleMutantError as stale:
                return trial(Outcome.BROKEN, detail=str(stale))
            run = self._named([mutant.caught_by], copy)
            if run.broken:
                return trial(Outcome.BROKEN, detail=run.output)
            if run.red:
                return trial(Outcome.CAUGHT, mutant.caught_by)
            # The oracle cannot see the bug. Its name is also in that of the long differential test, which
            # comes apart, and shorter, afterwards.
            run = self._pytest(copy, "-x", "-k", "not oracle", self.suite.tests)
            if run.red:
                return trial(Outcome.ELSEWHERE, run.first_failure)
            if self._agreement(copy, self.suite.fleets).red:
                return trial(Outcome.ELSEWHERE, DIFFERENTIAL)
        return trial(Outcome.SURVIVED)

    def unmutated_failure(self, mutants: Iterable[Mutant]) -> str:
        """What the tests of these mutants say of the engine as it is: nothing, unless they fail."""
        named = list(dict.fromkeys(mutant.caught_by for mutant in mutants))
        with tempfile.TemporaryDirectory(dir=self.folder) as own:
            run = self._named(named, copy_engine(Path(own)))
        return run.output if run.returncode else ""

    def _named(self, tests: list[str], copy: Path) -> "_Run":
        """Run tests as the catalogue names them."""
        by_pytest = [test for test in tests if test != DIFFERENTIAL]
        run = self._pytest(copy, *by_pytest) if by_pytest else _Run(0, "")
        return self._agreement(copy, FLEETS) if DIFFERENTIAL in tests and run.returncode == 0 else run

    def _pytest(self, copy: Path, *arguments: str) -> "_Run":
        quietly = ("-q", "--tb=line", "-rf", "-p", "no:cacheprovider", f"--timeout={_TEST_SECONDS}")
        return self._python(copy, "pytest", *quietly, *arguments)

    def _agreement(self, copy: Path, fleets: int) -> "_Run":
        return self._python(copy, "tests.mutants.agreement", "--fleets", str(fleets))

    def _python(self, copy: Path, module: str, *arguments: str) -> "_Run":
        """A process that imports the engine from the copy and writes nothing into the checkout."""
        settings = {
            "PYTHONPATH": str(copy),
            # Most of the time of a trial is imports, so their bytecode is kept from one to the next.
            "PYTHONPYCACHEPREFIX": str(self.folder / "bytecode"),
            "PYTHONDONTWRITEBYTECODE": "",
            "HYPOTHESIS_STORAGE_DIRECTORY": str(copy.parent),
        }
        try:
            done = subprocess.run(
                [sys.executable, "-m", module, *arguments],
                cwd=ROOT,
                env={**os.environ, **settings},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=_RUN_SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return _Run(1, f"not done after {_RUN_SECONDS} s")
        return _Run(done.returncode, done.stdout)


@dataclass(frozen=True, slots=True)
class _Run:
    returncode: int
    output: str

    @property
    def red(self) -> bool:
        return self.returncode == 1

    @property
    def broken(self) -> bool:
        """No test ran, or the mutant names something that is not there (any more): it would count as caught
        for ever."""
        return self.returncode not in (0, 1) or _NONSENSE.search(self.output) is not None

    @property
    def first_failure(self) -> str:
        failed = re.search(r"^FAILED (\S+)", self.output, re.MULTILINE)
        return failed[1] if failed else "?"


_NONSENSE: Final = re.compile(r"\b(?:NameError|UnboundLocalError|AttributeError|TypeError|ImportError)\b")
_TEST_SECONDS: Final = 60
"""A bug may loop for ever, which is a way of being caught."""
_RUN_SECONDS: Final = 600
