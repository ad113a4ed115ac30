"""Writes the recording (shard.md R8): segments in a folder, bounded, and never in the way of the shard.

The driver asks ``wants`` between cycles, gives a checkpoint to ``begin`` and calls ``advance`` when it has a
few milliseconds; ``batch`` takes every batch of events before its effects are performed. While a checkpoint
is being written, batches go to the segment before it too, so that whenever the process dies the last whole
segment has everything that was done.
"""

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import Final

from bigfleet.shard.core.effects import Effect
from bigfleet.shard.core.events import Event
from bigfleet.shard.core.settings import MINUTE
from bigfleet.shard.recording.codec import EncodeError
from bigfleet.shard.recording.segments import BATCHES, HEADERS, MAGIC, Frame, Header, Kind, batch, frame
from bigfleet_base.telemetry import Log, Metrics
from bigfleet_base.telemetry.catalogue import shard as series

SEGMENT_EVENTS: Final = 16 << 20
"""Bytes of events after which a segment ends, unless its checkpoint is larger."""
CHECKPOINTS_KEPT: Final = 3
RETRY_NS: Final = MINUTE


class Recorder:
    """The recording of one process. ``limit`` bounds the folder in bytes; 0 records nothing."""

    def __init__(self, folder: Path, limit: int, header: Header, metrics: Metrics, log: Log) -> None:
        self._folder = folder
        self._limit = limit
        self._header = header
        self._errors = metrics.counter(series.RECORDING_ERRORS)
        self._log = log
        self._kept: list[_Kept] | None = None
        """Segments that are complete and closed, oldest first; None before the folder was looked at."""
        self._number = 0
        self._checkpoint = 0
        """Bytes of the last whole one."""
        self._current: _Segment | None = None
        self._next: _Segment | None = None
        """Whose checkpoint is being written."""
        self._frames: Iterator[Frame] = iter(())
        self._not_before: int | None = None
        """When the next segment may be tried after a failure."""

    def wants(self, now: int) -> bool:
        """Whether a checkpoint should be taken as soon as no cycle is running."""
        if self._limit == 0 or self._next is not None:
            return False
        if self._not_before is not None and now < self._not_before:
            return False
        current = self._current
        return current is None or current.events > max(SEGMENT_EVENTS, current.checkpoint)

    def begin(self, checkpoint: Iterator[Frame], now: int) -> None:
        """Start a segment with a checkpoint of the core as it is now."""
        assert self._next is None, "a checkpoint is being taken"
        # Until it has succeeded it counts as failed: that is when it may be tried again.
        self._not_before = now + RETRY_NS
        path = self._folder
        try:
            if self._kept is None:
                self._kept = self._look()
            self._number += 1
            path = self._folder / f"segment-{self._number:08}{_PARTIAL}"
            self._next = _Segment(path, create(path))
            self._next.write(MAGIC + frame(Kind.HEADER, HEADERS.encode(self._header)))
        except OSError as error:
            self._failed(path, error)
            self._drop_next()
            return
        self._frames = checkpoint

    def advance(self) -> bool:
        """Write one more frame of the checkpoint that is being taken; False: there is none left."""
        if self._next is None:
            return False
        segment = self._next
        try:
            part = next(self._frames, None)
            if part is not None:
                segment.checkpoint += segment.write(frame(part.kind, part.body))
                return True
            segment.write(frame(Kind.COMPLETE, b""))
            segment.rename(segment.path.with_suffix(_COMPLETE))
        except (OSError, EncodeError) as error:
            self._failed(segment.path, error)
            self._drop_next()
            return False
        self._close_current()
        self._current, self._next = segment, None
        self._checkpoint, self._not_before = segment.checkpoint, None
        self._make_room()
        return False

    def batch(self, now: int, events: Sequence[Event], effects: Sequence[Effect]) -> None:
        """Write a batch. When this returns the kernel has it, or the error has been counted."""
        if self._current is None and self._next is None:
            return
        try:
            data = frame(Kind.BATCH, BATCHES.encode(batch(now, events, effects)))
        except EncodeError as error:
            self._failed(self._folder, error)
            self._drop_next()
            self._close_current()
            self._not_before = now + RETRY_NS
            return
        for segment in (self._current, self._next):
            if segment is None:
                continue
            try:
                segment.events += segment.write(data)
            except OSError as error:
                self._failed(segment.path, error)
                self._not_before = now + RETRY_NS
                if segment is self._next:
                    self._drop_next()
                else:
                    self._close_current()
        self._make_room()

    def close(self) -> None:
        """End the recording in order."""
        self._drop_next()
        self._close_current()

    def _look(self) -> list["_Kept"]:
        """Make the folder, or find what earlier processes have left in it."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        kept = []
        for path in sorted(self._folder.iterdir()):
            found = _NAME.fullmatch(path.name)
            if found is None:
                continue
            self._number = max(self._number, int(found[1]))
            if path.suffix == _PARTIAL:
                # All that it could tell is in the segment before it.
                path.unlink()
            else:
                kept.append(_Kept(path, path.stat().st_size))
        return kept

    def _make_room(self) -> None:
        """Delete the oldest while there is too much."""
        if not self._kept:
            return
        running = (segment.size for segment in (self._current, self._next) if segment is not None)
        total = sum(running) + sum(kept.size for kept in self._kept)
        most = max(self._limit, CHECKPOINTS_KEPT * self._checkpoint)
        while self._kept and total > most:
            oldest = self._kept.pop(0)
            total -= oldest.size
            try:
                oldest.path.unlink(missing_ok=True)
            except OSError as error:
                self._failed(oldest.path, error)

    def _close_current(self) -> None:
        if self._current is not None and self._kept is not None:
            self._current.close()
            self._kept.append(_Kept(self._current.path, self._current.size))
            self._current = None

    def _drop_next(self) -> None:
        if self._next is not None:
            self._next.close()
            with suppress(OSError):
                self._next.path.unlink()
            self._next, self._frames = None, iter(())

    def _failed(self, path: Path, error: Exception) -> None:
        self._errors.inc()
        self._log.error("recording write failed", path=str(path), err=error)


def create(path: Path) -> FileIO:
    """A new file that only its owner reads. Unbuffered: what is written is with the kernel."""
    return FileIO(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb")


_COMPLETE: Final = ".rec"
_PARTIAL: Final = ".part"
_NAME: Final = re.compile(r"segment-(\d{8,})\.(?:rec|part)")


@dataclass(frozen=True, slots=True)
class _Kept:
    path: Path
    size: int


@dataclass(slots=True)
class _Segment:
    """A file that is being written."""

    path: Path
    file: FileIO
    size: int = 0
    checkpoint: int = 0
    events: int = 0

    def write(self, data: bytes) -> int:
        """Write all of it; on a full disk a part may be written before the error comes."""
        rest = memoryview(data)
        while rest:
            written = self.file.write(rest)
            self.size += written
            rest = rest[written:]
        return len(data)

    def rename(self, path: Path) -> None:
        self.path.rename(path)
        self.path = path

    def close(self) -> None:
        with suppress(OSError):
            self.file.close()
