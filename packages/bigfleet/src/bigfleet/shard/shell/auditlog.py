"""The audit log: JSON lines, appended, reopened on request (shard.md R6)."""

import errno
import os
import stat
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

import orjson

from bigfleet.shard.core.effects import WriteAudit
from bigfleet_base.telemetry.output import Output

STDOUT: Final = "stdout"


class AuditLogError(Exception):
    """The log cannot be opened at the start, when that is still somebody's mistake to correct."""


class AuditLog:
    """Lines reach the kernel with ``write``; a failed write, also one to a pipe that nobody empties, is told
    to ``failed`` and costs nothing else."""

    def __init__(self, path: str, failed: Callable[[str, OSError], None]) -> None:
        self._path = path
        self._failed = failed
        self._torn = False
        """The file ends in the middle of a line."""
        try:
            self._fd = self._open()
        except OSError as error:
            raise _unusable(path, error) from error
        self._out = Output(self._fd)

    def write(self, lines: Iterable[WriteAudit]) -> None:
        """All lines in one write, so that a reader never finds half a line that a crash would finish."""
        self._write(b"".join(orjson.dumps(dict(line.line)) + b"\n" for line in lines))

    def reopen(self) -> None:
        """Go on in a new file of the same name, after somebody has moved the old one away."""
        try:
            fresh = self._open()
        except OSError as error:
            self._failed(self._path, error)
            return
        self._close()
        self._fd, self._out = fresh, Output(fresh)

    def close(self) -> None:
        self._close()

    def _open(self) -> int:
        if self._path == STDOUT:
            return sys.stdout.fileno()
        # A pipe without a reader would keep us waiting for one.
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NONBLOCK
        fd = os.open(self._path, flags, 0o640)
        self._torn = _is_torn(self._path, fd)
        return fd

    def _write(self, data: bytes) -> None:
        # Half a line that a full disk has left must not take a whole one with it.
        view = memoryview(b"\n" + data if self._torn else data)
        try:
            while view:
                written = self._out.push(view)
                self._torn = view[written - 1] != _NEWLINE
                view = view[written:]
        except OSError as error:
            self._failed(self._path, error)

    def _close(self) -> None:
        if self._path != STDOUT:
            os.close(self._fd)


def check_audit_log(path: str, data_dir: Path) -> None:
    """Refuse a path that could not be opened, and make no file. The data directory may be missing still: a
    shard makes it first."""
    if path == STDOUT:
        return
    folder = Path(os.path.abspath(path)).parent
    data_dir = Path(os.path.abspath(data_dir))
    problem = 0
    if os.path.exists(path):
        if os.path.isdir(path):
            problem = errno.EISDIR
        elif not os.access(path, os.W_OK):
            problem = errno.EACCES
    elif not folder.exists():
        problem = 0 if data_dir.is_relative_to(folder) else errno.ENOENT
    elif not folder.is_dir():
        problem = errno.ENOTDIR
    elif not os.access(folder, os.W_OK | os.X_OK):
        problem = errno.EACCES
    if problem:
        raise _unusable(path, OSError(problem, os.strerror(problem)))


def _unusable(path: str, error: OSError) -> AuditLogError:
    if error.errno == errno.ENXIO:
        return AuditLogError(f"cannot open --audit-log {path}: nobody reads it; start its reader first")
    return AuditLogError(
        f"cannot open --audit-log {path}: {error.strerror};"
        " give a file in a folder that this user may write to"
    )


def _is_torn(path: str, fd: int) -> bool:
    """Whether a file that is appended to, and may have been by an earlier process, ends in half a line."""
    state = os.fstat(fd)
    if not stat.S_ISREG(state.st_mode) or not state.st_size:
        return False
    try:
        with open(path, "rb") as file:
            file.seek(-1, os.SEEK_END)
            return file.read(1) != b"\n"
    except OSError:
        return False  # it may be written to and not read


_NEWLINE: Final = ord("\n")
