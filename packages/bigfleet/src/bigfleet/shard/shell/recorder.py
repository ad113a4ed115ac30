"""Writes the recording (shard.md R8): segments in a folder, bounded, and never in the way of the shard.

The driver gives every batch of events to ``record`` before it performs their effects. When it is time for a
new segment, a checkpoint is taken between two cycles and written a frame with each batch that follows.
Until it is whole, batches go to the segment before it too, so that whenever the process dies the last whole
segment has everything that was done.
"""

import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import version
from io import FileIO
from pathlib import Path
from typing import Final

from bigfleet.shard.core.core import ShardCore
from bigfleet.shard.core.effects import Effect
from bigfleet.shard.core.events import Event
from bigfleet.shard.core.settings import MINUTE
from bigfleet.shard.recording.checkpoint import SCHEMA, capture
from bigfleet.shard.recording.codec import EncodeError
from bigfleet.shard.recording.segments import BATCHES, HEADERS, MAGIC, Frame, Header, Kind, batch, frame
from bigfleet_base.telemetry import Log, Metrics
from bigfleet_base.telemetry.catalogue import shard as series

SEGMENT_EVENTS: Final = 16 << 20
"""Bytes of events after which a segment ends, unless its checkpoint is larger."""
CHECKPOINTS_KEPT: Final = 3
SEGMENTS_KEPT: Final = 3
"""Segments that do not rotate; the first ones, for they tell how it began."""
RETRY_NS: Final = MINUTE


def start_recording(
    core: ShardCore, folder: Path, limit: int, metrics: Metrics, log: Log, now: int
) -> "Recorder":
    """Record a core that has not been told anything yet."""

    def take_checkpoint() -> Iterator[Frame] | None:
        return capture(core) if core.running is None else None

    header = Header(version("bigfleet"), SCHEMA)
    recorder = Recorder(folder, limit, header, take_checkpoint, metrics, log)
    recorder.start(now)
    return recorder


class Recorder:
    """The recording of one process. ``limit`` bounds the folder in bytes; 0 records nothing."""

    def __init__(
        self,
        folder: Path,
        limit: int,
        header: Header,
        take_checkpoint: Callable[[], Iterator[Frame] | None],
        metrics: Metrics,
        log: Log,
    ) -> None:
        self._folder = folder
        self._limit = limit
        self._header = header
        self._take_checkpoint = take_checkpoint
        """None while a cycle runs."""
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

    def start(self, now: int) -> None:
        """Begin the first segment, before the core has been told anything."""
        self._take_if_wanted(now)
        while self._advance():
            pass

    def record(self, now: int, events: Sequence[Event], effects: Sequence[Effect]) -> None:
        """Write a batch. When this returns the kernel has it, or the error has been counted."""
        if self._current is not None and self._current.is_removed():
            # Somebody has cleaned up: nobody would find what is written there, and its room is not free.
            self._close_current()
        self._write(now, events, effects)
        if not self._advance():
            self._take_if_wanted(now)

    def keep(self) -> None:
        """Keep what is recorded of late under a name of its own, which does not rotate."""
        segment = self._current
        if segment is None:
            return
        kept = segment.path.with_name(_KEEPING + segment.path.name)
        try:
            if kept.exists():
                return
            if len(list(self._folder.glob(f"{_KEEPING}*"))) >= SEGMENTS_KEPT:
                self._log.warn(
                    "recording not kept: remove those that were kept before", path=str(segment.path)
                )
                return
            # A second name for the same file: what is still written to it is kept as well.
            os.link(segment.path, kept)
        except OSError as error:
            self._failed(kept, error)
            return
        self._log.info("recording kept", path=str(kept))

    def close(self) -> None:
        """End the recording in order."""
        self._limit = 0
        self._drop_next()
        self._close_current()

    def _take_if_wanted(self, now: int) -> None:
        if self._wants(now):
            checkpoint = self._take_checkpoint()
            if checkpoint is not None:
                self._begin(checkpoint, now)

    def _wants(self, now: int) -> bool:
        """Whether it is time for a new segment."""
        if self._limit == 0 or self._next is not None:
            return False
        if self._not_before is not None and now < self._not_before:
            return False
        current = self._current
        return current is None or current.events > max(SEGMENT_EVENTS, current.checkpoint)

    def _begin(self, checkpoint: Iterator[Frame], now: int) -> None:
        """Start a segment with a checkpoint of the core as it is now."""
        # Until it has succeeded it counts as failed: that is when it may be tried again.
        self._not_before = now + RETRY_NS
        path = self._folder
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
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

    def _advance(self) -> bool:
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

    def _write(self, now: int, events: Sequence[Event], effects: Sequence[Effect]) -> None:
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

    def _look(self) -> list["_Kept"]:
        """Find what earlier processes have left in the folder."""
        kept = []
        for path in sorted(self._folder.iterdir()):
            found = _NAME.fullmatch(path.name.removeprefix(_KEEPING))
            if found is None:
                continue
            self._number = max(self._number, int(found[1]))
            if path.name.startswith(_KEEPING):
                continue
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
_KEEPING: Final = "kept-"
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

    def is_removed(self) -> bool:
        return os.fstat(self.file.fileno()).st_nlink == 0

    def rename(self, path: Path) -> None:
        self.path.rename(path)
        self.path = path

    def close(self) -> None:
        with suppress(OSError):
            self.file.close()
