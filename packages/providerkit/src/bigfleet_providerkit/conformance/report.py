"""A run in the forms that people and machines read (conformance.md §1.6, §3.5)."""

import json
import platform
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Final
from xml.etree import ElementTree

from bigfleet_providerkit.conformance.catalogue import AREAS, catalogue_hash
from bigfleet_providerkit.conformance.evidence import Latencies
from bigfleet_providerkit.conformance.options import Options
from bigfleet_providerkit.conformance.outcome import Judgement, Result, Status, Verdict, printable
from bigfleet_providerkit.conformance.target import Capabilities

_PASSED: Final = (Status.PASSED, Status.VACUOUS)
_FAILED: Final = (Status.FAILED, Status.ERROR)
_EXIT: Final = {
    Verdict.CERTIFIED: 0,
    Verdict.CERTIFIED_COMPAT: 0,
    Verdict.FAILED: 1,
    Verdict.INCOMPLETE: 3,
}
_COLOUR: Final = {
    Verdict.CERTIFIED: "green",
    Verdict.CERTIFIED_COMPAT: "green",
    Verdict.FAILED: "red",
    Verdict.INCOMPLETE: "yellow",
}


@dataclass(frozen=True)
class Report:
    """Everything about one run."""

    options: Options
    started: datetime
    seconds: float
    results: Sequence[Result]
    """One for each id of the catalogue, in its order."""
    judgement: Judgement
    capabilities: Capabilities | None
    latencies: Mapping[str, Latencies]
    problem: str = ""
    """Why nothing could be checked, in a sentence."""
    left: tuple[str, ...] = ()
    """Machines that the suite has used and could not return."""

    @property
    def verdict(self) -> Verdict:
        return self.judgement.verdict

    @property
    def exit_status(self) -> int:
        return _EXIT[self.verdict]

    @property
    def provider(self) -> str:
        """The provider's own name for itself, or where it was found."""
        info = self.capabilities.info if self.capabilities else None
        return (info.name if info else "") or self.options.target or self.options.provider_cmd.split()[0]

    def result(self, behaviour_id: str) -> Result:
        return next(result for result in self.results if result.behaviour.id == behaviour_id)

    def as_dict(self) -> dict[str, Any]:
        """The document of report.json."""
        ran = [result for result in self.results if result.status not in _UNSEEN]
        return {
            "provider": self.provider,
            "profiles": list(self.options.profiles),
            "timestamp": self.started.isoformat(timespec="seconds"),
            # The reference counts its two layers of tests; here every id is of the catalogue.
            "baseline": _tally([]),
            "extension": _tally(ran),
            "behaviors": [_behaviour(result) for result in self.results],
            "summary": self._summary(),
            "verdict": str(self.verdict),
            "reasons": list(self.judgement.reasons),
            "problem": self.problem,
            "suite": {
                "version": _version(),
                "catalogue": catalogue_hash(),
                "python": platform.python_version(),
            },
            "target": {
                "address": self.options.target,
                "command": self.options.provider_cmd,
                "tls": bool(self.options.tls_ca),
                "info": self.capabilities.info_dict() if self.capabilities else None,
            },
            "seed": self.options.seed,
            "seconds": round(self.seconds, 2),
            "options": self.options.as_dict(),
            "capabilities": _capabilities(self.capabilities),
            "latency": {name: latency.as_dict() for name, latency in sorted(self.latencies.items())},
            "slots": {
                "consumed": sum(result.slots_taken for result in self.results),
                "returned": sum(result.slots_returned for result in self.results),
                "left": list(self.left),
            },
        }

    def json(self) -> str:
        return json.dumps(self.as_dict(), indent=2) + "\n"

    def badge(self) -> str:
        passed, counted = self._score()
        badge = {
            "schemaVersion": 1,
            "label": "BigFleet provider",
            "message": f"{self.verdict} ({passed}/{counted})",
            "color": _COLOUR[self.verdict],
        }
        return json.dumps(badge) + "\n"

    def junit(self) -> str:
        root = ElementTree.Element("testsuites", name="bigfleet-conformance", time=f"{self.seconds:.2f}")
        for area, results in self._areas():
            counts = _tally(results)
            suite = ElementTree.SubElement(
                root,
                "testsuite",
                name=area,
                tests=str(len(results)),
                failures=str(sum(r.status is Status.FAILED for r in results)),
                errors=str(sum(r.status is Status.ERROR for r in results)),
                skipped=str(counts["skipped"]),
                time=f"{sum(r.seconds for r in results):.3f}",
            )
            for result in results:
                _junit_case(suite, area, result)
        ElementTree.indent(root)
        return ElementTree.tostring(root, encoding="unicode", xml_declaration=True) + "\n"

    def md(self) -> str:
        passed, counted = self._score()
        lines = [
            f"# {self.provider}: {self.verdict}",
            "",
            f"{passed} of {counted} ids passed in profiles {', '.join(self.options.profiles)}"
            f" ({'compat' if self.options.compat else 'strict'}), seed {self.options.seed},"
            f" {self.seconds:.0f} s, {self.started:%Y-%m-%d}.",
            "",
        ]
        lines += [f"- {reason}" for reason in self.judgement.reasons] + [""] * bool(self.judgement.reasons)
        for area, results in self._areas():
            lines += [f"## {area}", "", "| Id | Status | Seconds | What must hold |", "|---|---|---|---|"]
            for r in results:
                remark = f"<br>{_cell(r.reason)}" if r.reason else ""
                about = _cell(r.behaviour.title) + remark
                lines.append(f"| {r.behaviour.id} | {r.status} | {r.seconds:.2f} | {about} |")
            lines.append("")
        return printable("\n".join(lines))

    def text(self) -> str:
        """For a terminal: a line per area, every failure in full, the verdict last."""
        lines = []
        for area, results in self._areas():
            counts = _tally(results)
            seconds = sum(result.seconds for result in results)
            lines.append(
                f"{area:30} {counts['passed']:3} passed {counts['failed']:3} failed"
                f" {counts['skipped']:3} skipped {seconds:8.1f} s"
            )
        for result in self.results:
            if result.status in _FAILED:
                lines += ["", *failure_lines(result)]
        skipped = [r for r in self.results if r.required and r.status in _SKIPPED]
        lines += ["", *_grouped(skipped)] if skipped else []
        notes = [r for r in self.results if r.status is Status.VACUOUS or r.lenient or r.notes]
        lines += [""] if notes else []
        lines += [f"{r.behaviour.id} {r.status}: {_remarks(r)}" for r in notes]
        lines += ["", f"left behind: {'; '.join(_shortened(self.left))}"] if self.left else []
        passed, counted = self._score()
        lines += ["", f"{self.verdict}  {self.provider}  {passed}/{counted} in {self.seconds:.1f} s"]
        if self.verdict is not Verdict.CERTIFIED:
            lines.append("because: " + "; ".join(_shortened(self.judgement.reasons)))
        return printable("\n".join(lines) + "\n")

    def write(self, folder: Path, formats: Iterable[str]) -> list[Path]:
        """Put the files of these formats into a folder; which they are."""
        folder.mkdir(parents=True, exist_ok=True)
        written = []
        for name in formats:
            written.append(folder / _FILES[name])
            written[-1].write_text(getattr(self, name)(), encoding="utf-8")
        return written

    def _areas(self) -> list[tuple[str, list[Result]]]:
        """The areas in which something was to be done, with what was."""
        grouped = []
        for area in AREAS.values():
            results = [r for r in self.results if r.behaviour.area is area]
            if any(r.required or r.status not in _UNSEEN for r in results):
                grouped.append((area.name, [r for r in results if r.required or r.status not in _UNSEEN]))
        return grouped

    def _score(self) -> tuple[int, int]:
        counted = [r for r in self.results if r.required or r.status not in _UNSEEN]
        return sum(r.status in _PASSED for r in counted), len(counted)

    def _summary(self) -> dict[str, int]:
        counts = _tally(self.results)
        required = [result for result in self.results if result.required]
        return {
            "total_behaviors": len(self.results),
            "passed": counts["passed"],
            "failed": counts["failed"],
            "skipped": counts["skipped"],
            "not_implemented": sum(r.status is Status.NOT_IMPLEMENTED for r in self.results),
            "required_failed": sum(r.status in _FAILED for r in required),
            "required_missing": sum(r.status in _MISSING for r in required),
        }


def failure_lines(result: Result) -> list[str]:
    """A failure as a provider's author wants to read it."""
    behaviour = result.behaviour
    rules = f"  [{', '.join(behaviour.rules)}]" if behaviour.rules else ""
    return [
        f"{behaviour.id} {result.status}: {behaviour.title}{rules}",
        f"  seen:      {result.reason}",
        f"  reproduce: {result.reproduce}",
    ]


def _behaviour(result: Result) -> dict[str, Any]:
    behaviour = result.behaviour
    return {
        "id": behaviour.id,
        "area": behaviour.area.name,
        "title": behaviour.title,
        "profiles": list(behaviour.profiles),
        "phase": behaviour.area.phase,
        "black_box": behaviour.area.black_box,
        "level": behaviour.level,
        "gate": str(behaviour.gate),
        "lane": str(behaviour.lane),
        "rules": list(behaviour.rules),
        "required": result.required,
        "status": str(result.status),
        "tests": [] if result.status is Status.NOT_IMPLEMENTED else [behaviour.id],
        "reason": result.reason,
        "lenient": result.lenient,
        "notes": list(result.notes),
        "reproduce": result.reproduce,
        "seconds": round(result.seconds, 3),
        "slots": {"consumed": result.slots_taken, "returned": result.slots_returned},
        "evidence": list(result.evidence),
    }


def _junit_case(suite: ElementTree.Element, area: str, result: Result) -> None:
    case = ElementTree.SubElement(
        suite,
        "testcase",
        classname=area,
        name=f"{result.behaviour.id} {result.behaviour.title}",
        time=f"{result.seconds:.3f}",
    )
    text = printable("\n".join(failure_lines(result)))
    match result.status:
        case Status.FAILED:
            ElementTree.SubElement(case, "failure", message=printable(result.reason)).text = text
        case Status.ERROR:
            ElementTree.SubElement(case, "error", message=printable(result.reason)).text = text
        case Status.PASSED | Status.VACUOUS:
            if result.reason or result.notes or result.lenient:
                ElementTree.SubElement(case, "system-out").text = printable(_remarks(result))
        case _:
            ElementTree.SubElement(case, "skipped", message=printable(f"{result.status}: {result.reason}"))


def _capabilities(capabilities: Capabilities | None) -> dict[str, Any]:
    if capabilities is None:
        return {}
    return {
        "delete": capabilities.delete,
        "cursor": capabilities.cursor,
        "evidence": dict(capabilities.evidence),
    }


def _tally(results: Sequence[Result]) -> dict[str, int]:
    counts = Counter(_column(result.status) for result in results)
    return {"tests": len(results), **{name: counts[name] for name in ("passed", "failed", "skipped")}}


def _column(status: Status) -> str:
    if status in _PASSED:
        return "passed"
    return "failed" if status in _FAILED else "skipped"


def _remarks(result: Result) -> str:
    return "; ".join(remark for remark in (result.reason, result.lenient, *result.notes) if remark)


def _grouped(results: Sequence[Result]) -> list[str]:
    """One line for all ids that were skipped for one reason."""
    reasons: dict[str, list[str]] = {}
    for result in results:
        reasons.setdefault(f"{result.status}: {result.reason}", []).append(result.behaviour.id)
    return [f"{reason} ({' '.join(behaviour_ids)})" for reason, behaviour_ids in reasons.items()]


def _shortened(reasons: Sequence[str], limit: int = 12) -> list[str]:
    more = [f"{len(reasons) - limit} more"] if len(reasons) > limit else []
    return [*reasons[:limit], *more]


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def _version() -> str:
    try:
        return version("bigfleet-providerkit")
    except PackageNotFoundError:
        return "unknown"


_SKIPPED: Final = (
    Status.SKIPPED_CAPABILITY,
    Status.SKIPPED_FIXTURE,
    Status.NOT_RUN,
    Status.NOT_IMPLEMENTED,
)
_MISSING: Final = (Status.SKIPPED_FIXTURE, Status.NOT_RUN, Status.NOT_IMPLEMENTED)
_UNSEEN: Final = (Status.NOT_RUN, Status.NOT_IMPLEMENTED)
_FILES: Final = {"json": "report.json", "junit": "junit.xml", "badge": "badge.json", "md": "report.md"}
