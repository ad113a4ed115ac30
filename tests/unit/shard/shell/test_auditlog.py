"""The audit log: lines that are whole, reopened on request, and failures that cost nothing else."""

import json
import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager
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


@contextmanager
def full_at(size: int) -> Iterator[None]:
    """A disk that has room for files of this size."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, before)


def whole_lines(path: Path) -> list[int]:
    found = []
    for text in path.read_text().splitlines():
        try:
            found.append(json.loads(text)["seq"])
        except ValueError:
            assert text.startswith('{"t":5')
    return found


@rule("shard.R6")
@pytest.mark.parametrize("restarted", [False, True])
def test_half_a_line_left_by_a_full_disk_takes_no_other_line_with_it(tmp_path: Path, restarted: bool) -> None:
    path = tmp_path / "audit"
    failures = []
    log = AuditLog(str(path), lambda path, error: failures.append(path))
    log.write([line(1)])
    with full_at(path.stat().st_size + 20):
        log.write([line(2)])
    assert failures == [str(path)] and not path.read_text().endswith("\n")
    if restarted:
        log.close()
        log = AuditLog(str(path), fail)
    log.write([line(3)])
    log.write([line(4)])
    log.close()
    assert whole_lines(path) == [1, 3, 4]
    assert "\n\n" not in path.read_text()


@rule("shard.R6")
def test_a_new_file_after_half_a_line_begins_with_a_line(tmp_path: Path) -> None:
    path = tmp_path / "audit"
    log = AuditLog(str(path), lambda path, error: None)
    with full_at(20):
        log.write([line(1)])
    path.rename(tmp_path / "audit.1")
    log.reopen()
    log.write([line(2)])
    log.close()
    assert path.read_text().startswith("{") and whole_lines(path) == [2]


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
