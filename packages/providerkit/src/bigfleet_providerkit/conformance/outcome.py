"""What became of an id, and what all of them make together (conformance.md §3.4)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from bigfleet_providerkit.conformance.catalogue import Behaviour


class Status(StrEnum):
    PASSED = "passed"
    FAILED = "failed"
    ERROR = "error"
    """Harness or transport."""
    SKIPPED_CAPABILITY = "skipped-capability"
    """The provider lacks something optional, and there is evidence."""
    SKIPPED_FIXTURE = "skipped-fixture"
    """The run lacked something: machines, a hook, a way to restart."""
    NOT_RUN = "not-run"
    NOT_IMPLEMENTED = "not_implemented"
    """The suite has no check for it."""
    VACUOUS = "vacuous"
    """Passed with nothing to bind."""


class Verdict(StrEnum):
    CERTIFIED = "CERTIFIED"
    CERTIFIED_COMPAT = "CERTIFIED-COMPAT"
    INCOMPLETE = "INCOMPLETE"
    FAILED = "FAILED"


@dataclass(frozen=True, slots=True)
class Result:
    """What became of one id."""

    behaviour: Behaviour
    status: Status
    required: bool
    reason: str = ""
    """Why it was skipped, not run or vacuous, or what was seen instead."""
    lenient: str = ""
    """The alternative of the reference by which alone it passed."""
    notes: tuple[str, ...] = ()
    seconds: float = 0.0
    evidence: Sequence[Mapping[str, Any]] = ()
    reproduce: str = ""
    slots_taken: int = 0
    slots_returned: int = 0


@dataclass(frozen=True, slots=True)
class Judgement:
    """A verdict and everything that keeps it from being a better one."""

    verdict: Verdict
    reasons: tuple[str, ...] = field(default=())


def printable(text: str) -> str:
    """What a provider has said, fit for a terminal and for XML: neither takes every character."""
    return "".join(c if c in "\t\n" or c.isprintable() else ascii(c)[1:-1] for c in text)


def judge(results: Sequence[Result], *, compat: bool, no_vacuous: bool) -> Judgement:
    """The verdict over all ids of the catalogue."""
    required = [result for result in results if result.required]
    failed = [r for r in required if r.status in _BAD or (no_vacuous and r.status is Status.VACUOUS)]
    if failed:
        return Judgement(Verdict.FAILED, tuple(f"{r.behaviour.id} {r.status}" for r in failed))
    missing = [f"{r.behaviour.id} {r.status}" for r in required if r.status in _OPEN]
    missing += _areas_without_a_pass(required)
    if missing or not required:
        return Judgement(Verdict.INCOMPLETE, tuple(missing) or ("no id was required",))
    lenient = [f"{r.behaviour.id}: {r.lenient}" for r in required if r.lenient]
    # What ours adds to the reference is not asked of a provider in compat mode, but it shows in the verdict.
    lenient += [f"{r.behaviour.id} {r.status}" for r in results if compat and r.status in _BAD]
    if lenient:
        return Judgement(Verdict.CERTIFIED_COMPAT, tuple(lenient))
    return Judgement(Verdict.CERTIFIED)


def _areas_without_a_pass(required: Sequence[Result]) -> list[str]:
    areas = {result.behaviour.area.name for result in required}
    passed = {r.behaviour.area.name for r in required if r.status in (Status.PASSED, Status.VACUOUS)}
    return [f"nothing passed in {area}" for area in sorted(areas - passed)]


_BAD = (Status.FAILED, Status.ERROR)
_OPEN = (Status.SKIPPED_FIXTURE, Status.NOT_RUN, Status.NOT_IMPLEMENTED)
