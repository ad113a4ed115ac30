"""A segment: one file with a checkpoint and the batches of events that followed it.

The file begins with eight bytes that name its form. Then come frames: length, checksum, kind, body. The first
is the header, then those of the checkpoint, among them batches that were written while it was being taken,
then batches alone. A process that dies in the middle of a write leaves a frame that runs past the end of the
file: there the segment ends, and everything before it holds. A frame that is all there and does not match its
checksum is damage: what follows it cannot be judged.
"""

import hashlib
import struct
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import BinaryIO, Final

from bigfleet.shard.core.effects import Effect
from bigfleet.shard.core.events import Event
from bigfleet.shard.recording.codec import Codec, DecodeError

MAGIC: Final = b"BIGFREC\x01"
"""The last byte is the version of the framing; what the frames hold has a version in the header."""


class Kind(IntEnum):
    HEADER = 1
    STATE = 2
    """A piece of the state at the checkpoint."""
    MACHINES = 3
    """A block of the machines at the checkpoint."""
    COMPLETE = 4
    """The checkpoint is whole."""
    BATCH = 5


class SegmentError(Exception):
    """A file that cannot be replayed; the message says why and what to do."""


class DamageError(SegmentError):
    """A frame that is not what was written."""

    def __init__(self, name: str, at: int) -> None:
        super().__init__(f"{name}: damaged at byte {at}: what follows cannot be judged")
        self.at = at


@dataclass(frozen=True, slots=True)
class Header:
    product: str
    """The version of BigFleet that wrote the segment."""
    schema: str
    """Stands for the shape of everything in it."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Events that were taken together, and what came of them."""

    now: int
    events: tuple[Event, ...]
    effects: int
    digest: bytes


@dataclass(frozen=True, slots=True)
class Frame:
    kind: Kind
    body: bytes


def batch(now: int, events: Sequence[Event], effects: Sequence[Effect]) -> Batch:
    """The record of some events; the effects are represented by their digest."""
    return Batch(now, tuple(events), len(effects), digest(effects))


def digest(effects: Sequence[Effect]) -> bytes:
    return hashlib.blake2b(_EFFECTS.encode(effects), digest_size=16).digest()


def frame(kind: Kind, body: bytes) -> bytes:
    """One frame as it is written."""
    return _HEAD.pack(len(body), zlib.crc32(body, kind), kind) + body


HEADERS: Final = Codec[Header](Header)
BATCHES: Final = Codec[Batch](Batch)
_EFFECTS: Final = Codec[Sequence[Effect]](tuple[Effect, ...])
_HEAD: Final = struct.Struct("<IIB")


class SegmentReader:
    """Reads a segment from a file that can be rewound."""

    def __init__(self, file: BinaryIO, name: str, schema: str) -> None:
        self._file = file
        self._size = file.seek(0, 2)
        file.seek(0)
        self.name = name
        self.torn = 0
        """Bytes of a frame at the end that runs past it; known once the batches have been read."""
        if file.read(len(MAGIC)) != MAGIC:
            raise SegmentError(
                f"{name}: not a recording that this version reads; give it a file of a shard's --record-dir"
            )
        self.header = self._read_header()
        if self.header.schema != schema:
            raise SegmentError(
                f"{name}: recorded by bigfleet {self.header.product}, whose events have another shape; replay"
                " it with that version"
            )
        self._start = file.tell()

    def checkpoint(self) -> Iterator[Frame]:
        """The frames of the checkpoint."""
        self._file.seek(self._start)
        try:
            for each in self._frames():
                if each.kind is Kind.COMPLETE:
                    return
                if each.kind is not Kind.BATCH:
                    yield each
        except DamageError as error:
            raise SegmentError(
                f"{self.name}: the checkpoint is damaged at byte {error.at}: nothing in the file can be"
                " replayed; take another segment"
            ) from error
        raise SegmentError(
            f"{self.name}: the checkpoint is not whole, the file ends in the middle of it: it was cut off, or"
            " the process ended while the checkpoint was being taken; then the segment before it holds the"
            " same events"
        )

    def batches(self) -> Iterator[Batch]:
        """The batches in order, up to the last whole one; DamageError behind the last before damage."""
        self._file.seek(self._start)
        for each in self._frames():
            if each.kind is Kind.BATCH:
                try:
                    yield BATCHES.decode(each.body)
                except DecodeError as error:
                    raise SegmentError(f"{self.name}: a batch that cannot be read: {error}") from error

    def _read_header(self) -> Header:
        try:
            first = next(self._frames(), None)
            if first is not None and first.kind is Kind.HEADER:
                return HEADERS.decode(first.body)
        except (DamageError, DecodeError):
            pass
        raise SegmentError(f"{self.name}: the header is damaged; nothing in the file can be read")

    def _frames(self) -> Iterator[Frame]:
        while True:
            start = self._file.tell()
            head = self._file.read(_HEAD.size)
            if not head:
                self.torn = 0
                return
            if len(head) < _HEAD.size:
                break
            length, checksum, kind = _HEAD.unpack(head)
            if kind not in _KINDS:
                raise DamageError(self.name, start)
            if length > self._size - self._file.tell():
                break
            body = self._file.read(length)
            if zlib.crc32(body, kind) != checksum:
                raise DamageError(self.name, start)
            yield Frame(Kind(kind), body)
        self.torn = self._size - start


_KINDS: Final = frozenset(Kind)
