"""Reports: the same run in five forms, each readable by whoever reads it."""

import json
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from xml.etree import ElementTree

import pytest

from bigfleet_providerkit.conformance.catalogue import BEHAVIOURS, catalogue_hash
from bigfleet_providerkit.conformance.evidence import Latencies
from bigfleet_providerkit.conformance.options import Options
from bigfleet_providerkit.conformance.outcome import Result, Status, Verdict, judge
from bigfleet_providerkit.conformance.report import Report
from bigfleet_providerkit.conformance.target import Capabilities

OPTIONS = Options(target="127.0.0.1:9000")
FAILURE = "Create(m1) answered OK, expected a rejection \x00\x1b[2K\uffff & <more>"
SHOWN = r"Create(m1) answered OK, expected a rejection \x00\x1b[2K\uffff & <more>"


def report(**statuses: Status) -> Report:
    """A run in which everything passed but what is given."""
    results = []
    for behaviour in BEHAVIOURS.values():
        status = statuses.get(behaviour.id, Status.PASSED)
        required = "core" in behaviour.profiles
        result = Result(
            behaviour, status if required else Status.NOT_RUN, required, seconds=0.5, slots_taken=2
        )
        if status is Status.FAILED:
            result = replace(result, reason=FAILURE, reproduce=OPTIONS.reproduction(behaviour.id))
        elif status is not Status.PASSED:
            result = replace(result, reason="because")
        results.append(result)
    latency = Latencies()
    latency.observe(0.003)
    return Report(
        options=OPTIONS,
        started=datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC),
        seconds=12.5,
        results=results,
        judgement=judge(results, compat=False, no_vacuous=False),
        capabilities=Capabilities(delete=True, cursor=False, evidence={"delete": "probe", "cursor": "probe"}),
        latencies={"Get": latency},
    )


def test_the_json_has_every_field_of_the_reference() -> None:
    document = json.loads(report(B201=Status.FAILED, B109=Status.SKIPPED_CAPABILITY).json())
    assert document["provider"] == "127.0.0.1:9000"
    assert document["profiles"] == ["core"]
    assert document["timestamp"] == "2026-01-02T03:04:05+00:00"
    assert document["verdict"] == "FAILED"
    for layer in ("baseline", "extension"):
        assert document[layer].keys() == {"tests", "passed", "failed", "skipped"}
    [behaviour] = [one for one in document["behaviors"] if one["id"] == "B201"]
    assert behaviour["area"] == "Transition Matrix / Errors" and behaviour["phase"] == 2
    assert behaviour["title"] == BEHAVIOURS["B201"].title
    assert (behaviour["required"], behaviour["status"], behaviour["tests"]) == (True, "failed", ["B201"])
    core = sum("core" in one.profiles for one in BEHAVIOURS.values())
    assert document["summary"] == {
        "total_behaviors": len(BEHAVIOURS),
        "passed": core - 2,
        "failed": 1,
        "skipped": len(BEHAVIOURS) - core + 1,
        "not_implemented": 0,
        "required_failed": 1,
        "required_missing": 0,
    }


def test_the_json_says_what_ran_where_and_how() -> None:
    document = json.loads(report().json())
    assert document["suite"]["catalogue"] == catalogue_hash()
    assert document["seed"] == 1 and document["options"]["profiles"] == ["core"]
    assert document["capabilities"]["evidence"] == {"delete": "probe", "cursor": "probe"}
    assert document["latency"]["Get"]["buckets"]["le_5ms"] == 1
    assert document["slots"]["consumed"] == 2 * len(BEHAVIOURS)


def test_junit_has_a_suite_per_area_and_the_reason_in_the_element() -> None:
    root = ElementTree.fromstring(
        report(B201=Status.FAILED, B202=Status.ERROR, B203=Status.SKIPPED_FIXTURE).junit()
    )
    [suite] = [one for one in root if one.get("name") == "Transition Matrix / Errors"]
    assert (suite.get("failures"), suite.get("errors"), suite.get("skipped")) == ("1", "1", "1")
    cases = {str(case.get("name")).split()[0]: case for case in suite}
    [failure] = cases["B201"]
    assert (failure.tag, failure.get("message")) == ("failure", SHOWN)
    assert BEHAVIOURS["B201"].title in str(failure.text) and "reproduce:" in str(failure.text)
    assert [child.tag for child in cases["B202"]] == ["error"]
    [skipped] = cases["B203"]
    assert skipped.get("message") == "skipped-fixture: because"


@pytest.mark.parametrize(
    ("status", "verdict", "colour"),
    [
        (Status.PASSED, Verdict.CERTIFIED, "green"),
        (Status.FAILED, Verdict.FAILED, "red"),
        (Status.SKIPPED_FIXTURE, Verdict.INCOMPLETE, "yellow"),
    ],
)
def test_the_badge_says_the_verdict_and_the_score(status: Status, verdict: Verdict, colour: str) -> None:
    badge = json.loads(report(B201=status).badge())
    core = sum("core" in one.profiles for one in BEHAVIOURS.values())
    passed = core if status is Status.PASSED else core - 1
    assert badge == {
        "schemaVersion": 1,
        "label": "BigFleet provider",
        "message": f"{verdict} ({passed}/{core})",
        "color": colour,
    }


@pytest.mark.parametrize(
    ("status", "code"), [(Status.PASSED, 0), (Status.FAILED, 1), (Status.ERROR, 1), (Status.NOT_RUN, 3)]
)
def test_the_exit_status_is_the_verdict(status: Status, code: int) -> None:
    assert report(B201=status).exit_status == code


def test_the_text_shows_a_failure_with_its_rule_and_how_to_see_it_again() -> None:
    text = report(B201=Status.FAILED, B103=Status.VACUOUS).text()
    assert f"B201 failed: {BEHAVIOURS['B201'].title}  [provider.P-11]" in text
    assert f"seen:      {SHOWN}" in text, "what a provider says is no command to a terminal"
    assert (
        "reproduce: bigfleet-conformance --target 127.0.0.1:9000 --profile core --select B201 --seed 1"
        in text
    )
    assert "B103 vacuous: because" in text
    assert text.splitlines()[-1] == "because: B201 failed"


def test_markdown_has_a_table_per_area() -> None:
    text = report(B201=Status.SKIPPED_FIXTURE).md()
    assert "# 127.0.0.1:9000: INCOMPLETE" in text and "## Fencing" in text
    assert f"| B201 | skipped-fixture | 0.50 | {BEHAVIOURS['B201'].title}<br>because |" in text


def test_files_are_written_where_they_are_wanted(tmp_path: Path) -> None:
    written = report().write(tmp_path / "new", ("json", "junit", "badge", "md"))
    assert [path.name for path in written] == ["report.json", "junit.xml", "badge.json", "report.md"]
    assert json.loads(written[0].read_text())["verdict"] == "CERTIFIED"
