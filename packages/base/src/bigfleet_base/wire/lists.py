"""The outermost layer of a List, read without decoding what is in it.

A List of 100,000 machines is tens of megabytes; decoded in one go it holds up the event loop for a tenth of a
second and more, and one bad record fails all others. Cut into records first, it can be decoded in slices, and
a record that is not one is nobody else's problem.
"""

from array import array
from collections.abc import Generator
from dataclasses import dataclass, field
from typing import Final

from bigfleet_base.api.v1alpha1 import provider_pb2 as pb
from bigfleet_base.wire.fields import GROUP, MalformedMessageError, fields

MAX_ENTRIES: Final = 2_000_000
"""Machines and removed ids in one List; beyond it a List of empty entries would fill the memory."""

FIELDS_PER_SLICE: Final = 8_192


class ListFramesError(ValueError):
    """The message is cut off or is no protobuf at all; nothing of it is used."""


@dataclass(slots=True)
class ListFrames:
    """Where the records of a List are in its bytes, and what else it says."""

    starts: "array[int]" = field(default_factory=lambda: array("L"))
    ends: "array[int]" = field(default_factory=lambda: array("L"))
    revision: bytes = b""
    removed_ids: list[str] = field(default_factory=list)
    full: bool | None = None

    def __len__(self) -> int:
        return len(self.starts)


def scan_list(data: bytes) -> Generator[None, None, ListFrames]:
    """Find the records of a serialised List; gives way after every slice of fields."""
    frames = ListFrames()
    add_start, add_end = frames.starts.append, frames.ends.append
    size = len(data)
    at = 0
    before_yield = FIELDS_PER_SLICE
    try:
        while at < size:
            # A record's own tag and a length of at most two bytes: nearly every field of a List.
            if data[at] == _MACHINE and (high := data[at + 2] if data[at + 1] > 0x7F else 0) < 0x80:
                low = data[at + 1]
                start = at + 3 if low > 0x7F else at + 2
                at = start + (low & 0x7F | high << 7)
                add_start(start)
                add_end(at)
            elif data[at] & 7 == GROUP:
                at = yield from _skip_group(data, at)
            else:
                at = _read_field(data, at, frames)
            before_yield -= 1
            if not before_yield:
                before_yield = FIELDS_PER_SLICE
                if len(frames) + len(frames.removed_ids) > MAX_ENTRIES:
                    raise ListFramesError(f"the List has more than {MAX_ENTRIES} entries")
                yield
    except IndexError:
        raise ListFramesError("the List is cut off in a number") from None
    if at != size:
        raise ListFramesError(f"the List is cut off: its last field ends at byte {at} of {size}")
    return frames


def _read_field(data: bytes, at: int, frames: ListFrames) -> int:
    """Take note of one field and return where it ends, which may be beyond the message."""
    tag, at = _varint(data, at)
    if tag < _LEAST_TAG or tag >> 32:
        # Protobuf refuses it too. Zeros would read as a provider that has no machine any more.
        raise ListFramesError(f"the List is no protobuf message: tag {tag} before byte {at}")
    wire_type = tag & 7
    if wire_type == _VARINT:
        value, at = _varint(data, at)
        if tag == _FULL:
            frames.full = bool(value)
        return at
    if wire_type in _FIXED:
        return at + _FIXED[wire_type]
    if wire_type != _LENGTH:
        raise ListFramesError(f"the List is no protobuf message: wire type {wire_type} at byte {at}")
    length, at = _varint(data, at)
    end = at + length
    if tag == _MACHINE:
        frames.starts.append(at)
        frames.ends.append(end)
    elif tag == _REVISION:
        frames.revision = data[at:end]
    elif tag == _REMOVED_ID:
        frames.removed_ids.append(data[at:end].decode(errors="replace"))
    return end


def _skip_group(data: bytes, at: int) -> Generator[None, None, int]:
    """Where a group ends: nothing of ours has one, so it is a field of somebody else's, and ignored."""
    pieces = fields(data, at, len(data))
    before_yield = FIELDS_PER_SLICE
    try:
        while True:
            # There is always one more before a group has ended, or an error.
            key, _, end = next(pieces)
            if key:
                return end
            before_yield -= 1
            if not before_yield:
                before_yield = FIELDS_PER_SLICE
                yield
    except MalformedMessageError as error:
        raise ListFramesError(f"the List is no protobuf message: {error}") from None


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while (byte := data[at]) >= 0x80:
        value |= (byte & 0x7F) << shift
        shift += 7
        at += 1
        if shift > 63:
            raise ListFramesError(f"the List is no protobuf message: an endless number at byte {at}")
    return value | byte << shift, at + 1


_VARINT: Final = 0
_LENGTH: Final = 2
_LEAST_TAG: Final = 1 << 3
_FIXED: Final = {1: 8, 5: 4}
_MACHINE: Final = pb.MachineList.MACHINES_FIELD_NUMBER << 3 | _LENGTH
_REVISION: Final = pb.MachineList.REVISION_FIELD_NUMBER << 3 | _LENGTH
_REMOVED_ID: Final = pb.MachineList.REMOVED_IDS_FIELD_NUMBER << 3 | _LENGTH
_FULL: Final = pb.MachineList.FULL_FIELD_NUMBER << 3 | _VARINT
assert _MACHINE < 0x80
