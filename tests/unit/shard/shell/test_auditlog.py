"""The audit log: lines that are whole, reopened on request, and failures that cost nothing else."""

import errno
import json
import os
import resource
import select
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from bigfleet.shard.core.effects import WriteAudit
from bigfleet.shard.shell.auditlog import STDOUT, AuditLog, AuditLogError
from tests.support.alarms import within_seconds
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


def fill(log: AuditLog, failures: Sequence[object]) -> int:
    """Write batches until one fails; returns how many lines."""
    for first in range(1, 1_000_000, 1_000):
        log.write([line(seq) for seq in range(first, first + 1_000)])
        if failures:
            return first + 999
    raise AssertionError("nothing has failed")


def read_whole_lines(reader: int) -> list[int]:
    """What waits in a pipe: the number of each line, 0 for half a line."""
    *whole, rest = read_all(reader).split(b"\n")
    return [_number(text) for text in whole] + [0] * bool(rest)


def read_all(reader: int) -> bytes:
    """What waits in a pipe."""
    data = b""
    with suppress(BlockingIOError):
        while part := os.read(reader, 1 << 16):
            data += part
    return data


def _number(text: bytes) -> int:
    try:
        return int(json.loads(text)["seq"])
    except ValueError:
        return 0


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


@rule("shard.R6", "shard.C4")
def test_a_pipe_that_nobody_empties_holds_up_nobody(tmp_path: Path) -> None:
    path = tmp_path / "audit"
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    failures: list[int | None] = []
    with within_seconds(20):
        log = AuditLog(str(path), lambda path, error: failures.append(error.errno))
        written = fill(log, failures)
        assert failures == [errno.EAGAIN]
        # The line that was cut off takes none of those with it that come once somebody reads again.
        *whole, half = read_whole_lines(reader)
        assert whole == list(range(1, len(whole) + 1)) and len(whole) < written and half == 0
        log.write([line(written + 1)])
        assert read_whole_lines(reader) == [0, written + 1]
        log.close()
    os.close(reader)


@rule("shard.R6", "shard.C4")
def test_a_standard_output_that_nobody_empties_holds_up_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    failures: list[int | None] = []
    with within_seconds(20), os.fdopen(writer, "w") as out:
        monkeypatch.setattr(sys, "stdout", out)
        log = AuditLog(STDOUT, lambda path, error: failures.append(error.errno))
        written = fill(log, failures)
        assert failures == [errno.EAGAIN]
        assert os.get_blocking(writer), "others write there too and would not expect it"
        read_whole_lines(reader)
        log.write([line(written + 1)])
        assert read_whole_lines(reader)[-1] == written + 1
        log.close()
    os.close(reader)


@rule("shard.R6")
def test_a_pipe_gets_all_lines_of_a_batch_that_it_has_no_room_for_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "audit"
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    poll, read = select.poll, list[bytes]()

    class Waiting:
        """Its reader reads while it is waited for, and at no other time."""

        def register(self, fd: int, events: int) -> None:
            self._poll = poll()
            self._poll.register(fd, events)

        def poll(self, patience: int) -> object:
            if patience and not self._poll.poll(0):
                read.append(read_all(reader))
            return self._poll.poll(0)

    monkeypatch.setattr(select, "poll", Waiting)
    log = AuditLog(str(path), fail)
    log.write([line(seq) for seq in range(1, 5_001)])
    log.close()
    read.append(read_all(reader))
    os.close(reader)
    assert [json.loads(text)["seq"] for text in b"".join(read).splitlines()] == list(range(1, 5_001))


def test_a_pipe_that_nobody_reads_refuses_the_start(tmp_path: Path) -> None:
    path = tmp_path / "audit"
    os.mkfifo(path)
    with within_seconds(20), pytest.raises(AuditLogError, match="nobody reads it"):
        AuditLog(str(path), fail)


def test_a_log_that_cannot_be_opened_refuses_the_start(tmp_path: Path) -> None:
    with pytest.raises(AuditLogError, match="--audit-log"):
        AuditLog(str(tmp_path / "missing" / "audit"), fail)
