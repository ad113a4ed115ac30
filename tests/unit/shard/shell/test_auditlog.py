"""The audit log: lines that are whole, reopened on request, and failures that cost nothing else."""

import json
from pathlib import Path

import pytest

from bigfleet.shard.core.effects import WriteAudit
from bigfleet.shard.shell.auditlog import AuditLog, AuditLogError
from tests.support.rules import rule


def line(seq: int) -> WriteAudit:
    return WriteAudit((("t", 5), ("seq", seq), ("type", "action.emitted"), ("cost", 0.25)))


def fail(path: str, error: OSError) -> None:
    raise AssertionError(f"{path}: {error}")


@rule("shard.R6")
def test_lines_are_json_in_the_order_of_the_vocabulary_and_appended(tmp_path: Path) -> None:
    path = tmp_path / "audit"
    for first in (1, 3):
        log = AuditLog(str(path), fail)
        log.write([line(first), line(first + 1)])
        log.close()
    lines = path.read_text().splitlines()
    assert [json.loads(text)["seq"] for text in lines] == [1, 2, 3, 4]
    assert list(json.loads(lines[0])) == ["t", "seq", "type", "cost"]


@rule("shard.R6")
def test_after_a_rename_and_a_reopen_lines_go_to_the_new_file(tmp_path: Path) -> None:
    path = tmp_path / "audit"
    log = AuditLog(str(path), fail)
    log.write([line(1)])
    path.rename(tmp_path / "audit.1")
    log.write([line(2)])
    log.reopen()
    log.write([line(3)])
    log.close()
    assert len((tmp_path / "audit.1").read_text().splitlines()) == 2
    assert len(path.read_text().splitlines()) == 1


@rule("shard.R6")
def test_a_full_disk_is_reported_and_nothing_is_raised() -> None:
    failures = []
    log = AuditLog("/dev/full", lambda path, error: failures.append((path, error.strerror)))
    log.write([line(1)])
    log.write([line(2)])
    log.close()
    assert failures == [("/dev/full", "No space left on device")] * 2


@rule("shard.R6")
def test_a_reopen_that_fails_goes_on_in_the_old_file(tmp_path: Path) -> None:
    folder = tmp_path / "logs"
    folder.mkdir()
    failures = []
    log = AuditLog(str(folder / "audit"), lambda path, error: failures.append(path))
    folder.rename(tmp_path / "moved")
    log.reopen()
    log.write([line(1)])
    log.close()
    assert failures == [str(folder / "audit")]
    assert (tmp_path / "moved" / "audit").read_text()


def test_a_log_that_cannot_be_opened_refuses_the_start(tmp_path: Path) -> None:
    with pytest.raises(AuditLogError, match="--audit-log"):
        AuditLog(str(tmp_path / "missing" / "audit"), fail)
