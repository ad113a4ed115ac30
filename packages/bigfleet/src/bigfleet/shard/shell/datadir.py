"""The folder of a shard: its lock, its epoch, its domains, the file that pauses it (shard.md F1, Q10, R3).

Inventory and demand are not here: they come back from providers and operators (P3).
"""

import errno
import fcntl
import json
import os
import re
from contextlib import suppress
from pathlib import Path
from typing import Final

LAST_EPOCH: Final = 2**63 - 1
"""Epochs are int64 on the wire."""


class DataDirError(Exception):
    """The folder cannot be used; the message says why and what to do."""


class DataDir:
    """The folder, locked for as long as this process lives or until ``close``."""

    def __init__(self, path: Path) -> None:
        """Make the folder if it is missing, and lock it before anything in it is read."""
        self.path = path
        self._pause = os.fspath(path / "PAUSE")
        self._was_paused = True
        """At the last look; before the first one nothing may be done."""
        try:
            path.mkdir(parents=True, exist_ok=True)
            self._lock = os.open(path / "LOCK", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise _unusable(path, error) from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(self._lock)
            raise DataDirError(
                f"--data-dir {path} is in use by another process; two processes must never share an epoch:"
                " stop the other one, or give this shard a folder of its own"
            ) from error

    def close(self) -> None:
        """Give the lock back."""
        os.close(self._lock)

    def next_epoch(self, floor: int) -> int:
        """The epoch of this process, written down before it is returned.

        A floor above what is on disk brings a shard back whose volume was lost.
        """
        epoch = _next_epoch(self.path, floor)
        self._replace("epoch", f"{epoch}\n")
        return epoch

    def domains(self) -> tuple[tuple[str, str], ...]:
        """The topology domains this shard is limited to, as (key, value); none: no limit."""
        return _domains(self.path)

    def is_paused(self) -> bool:
        """Whether somebody has put a file PAUSE here, whatever it is. A look costs two microseconds.

        A disk that cannot be asked takes no pause back.
        """
        with suppress(OSError):
            try:
                os.lstat(self._pause)
                self._was_paused = True
            except FileNotFoundError:
                self._was_paused = False
        return self._was_paused

    def _replace(self, name: str, text: str) -> None:
        """A reader, also after a crash at any point, finds the old content or the new one."""
        temporary = self.path / f"{name}.new"
        try:
            temporary.unlink(missing_ok=True)
            fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            try:
                os.write(fd, text.encode())
                os.fsync(fd)
            finally:
                os.close(fd)
            temporary.replace(self.path / name)
            folder = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
        except OSError as error:
            raise DataDirError(f"cannot write {self.path / name}: {error.strerror}") from error


def check_data_dir(path: Path, floor: int) -> None:
    """Refuse what a start would refuse, and change nothing. Whether the folder is in use is not asked: a
    configuration may be checked beside the shard that has it."""
    there = path
    while not os.path.lexists(there):
        there = there.parent
    if not there.is_dir():
        raise _unusable(path, OSError(errno.ENOTDIR, os.strerror(errno.ENOTDIR)))
    lock = path / "LOCK"
    if not os.access(there, os.W_OK | os.X_OK) or (lock.exists() and not os.access(lock, os.R_OK | os.W_OK)):
        raise _unusable(path, OSError(errno.EACCES, os.strerror(errno.EACCES)))
    _next_epoch(path, floor)
    _domains(path)


def _unusable(path: Path, error: OSError) -> DataDirError:
    return DataDirError(
        f"cannot use --data-dir {path}: {error.strerror}; give a folder that this user may write to"
    )


def _next_epoch(folder: Path, floor: int) -> int:
    epoch = max(_last_epoch(folder) + 1, floor)
    if epoch > LAST_EPOCH:
        raise DataDirError(f"epoch {epoch} is beyond {LAST_EPOCH}: correct {folder / 'epoch'}")
    return epoch


def _last_epoch(folder: Path) -> int:
    text = _read(folder / "epoch")
    if text is None:
        return 0
    if not _EPOCH.fullmatch(text.strip()):
        raise DataDirError(
            f"{folder / 'epoch'} holds {text[:64]!r} and no number; a guess could fence this shard or"
            " fail to fence its predecessor: write the last epoch into it, or remove it and give"
            " --epoch-floor a number above the last one"
        )
    return int(text)


def _domains(folder: Path) -> tuple[tuple[str, str], ...]:
    text = _read(folder / "domains")
    if text is None:
        return ()
    try:
        pairs = json.loads(text)
    except (ValueError, RecursionError):
        pairs = None
    if not isinstance(pairs, list) or not all(map(_is_pair, pairs)):
        # To go on without a limit would drive machines that belong to another shard.
        raise DataDirError(
            f"{folder / 'domains'} is not a JSON array of [key, value] pairs; correct it, or remove it"
            " if this shard is to manage every machine that its providers list"
        )
    return tuple((key, value) for key, value in pairs)


def _read(path: Path) -> str | None:
    try:
        return path.read_bytes().decode(errors="replace")
    except FileNotFoundError as error:
        if not os.path.islink(path):
            return None
        # A volume that is not there yet, perhaps: what it holds is not nothing.
        raise DataDirError(f"cannot read {path}: it is a link to a file that is not there") from error
    except OSError as error:
        raise DataDirError(f"cannot read {path}: {error.strerror}") from error


def _is_pair(value: object) -> bool:
    return isinstance(value, list) and len(value) == 2 and all(isinstance(part, str) for part in value)


_EPOCH: Final = re.compile(r"[0-9]{1,19}")
