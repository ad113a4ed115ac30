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

MAX_ENTRIES: Final = 2_000_000
"""Machines and removed ids in one List; beyond it a List of empty entries would fill the memory."""

FIELDS_PER_SLICE: Final = 8_192


class FramesError(ValueError):
    """The message is cut off or is no protobuf at all; nothing of it is used."""


@dataclass(slots=True)
class Frames:
    """Where things are in a List."""

    starts: "array[int]" = field(default_factory=lambda: array("L"))
    ends: "array[int]" = field(default_factory=lambda: array("L"))
    revision: bytes = b""
    removed: list[bytes] = field(default_factory=list)
    full: bool | None = None

    def __len__(self) -> int:
        return len(self.starts)


def scan(data: bytes) -> Generator[None, None, Frames]:
    """Find the records of a serialised MachineList; gives way after every slice of fields."""
    frames = Frames()
    size = len(data)
    at = 0
    fields = 0
    while at < size:
        tag, at = _varint(data, at)
        wire_type = tag & 7
        if wire_type == _LENGTH:
            length, at = _varint(data, at)
            end = at + length
            if end > size:
                raise FramesError(f"the List is cut off: an entry at byte {at} ends at {end} of {size}")
            if tag == _MACHINE:
                frames.starts.append(at)
                frames.ends.append(end)
            elif tag == _REVISION:
                frames.revision = data[at:end]
            elif tag == _REMOVED_ID:
                frames.removed.append(data[at:end])
            at = end
        elif wire_type == _VARINT:
            value, at = _varint(data, at)
            if tag == _FULL:
                frames.full = bool(value)
        elif wire_type in _FIXED:
            at += _FIXED[wire_type]
        else:
            raise FramesError(f"the List is no protobuf message: wire type {wire_type} at byte {at}")
        fields += 1
        if fields % FIELDS_PER_SLICE == 0:
            if len(frames.starts) + len(frames.removed) > MAX_ENTRIES:
                raise FramesError(f"the List has more than {MAX_ENTRIES} entries")
            yield
    if at != size:
        raise FramesError("the List is cut off in its last field")
    return frames


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    try:
        while (byte := data[at]) >= 0x80:
            value |= (byte & 0x7F) << shift
            shift += 7
            at += 1
            if shift > 63:
                raise FramesError(f"the List is no protobuf message: an endless number at byte {at}")
        return value | byte << shift, at + 1
    except IndexError:
        raise FramesError("the List is cut off in a number") from None


_VARINT: Final = 0
_LENGTH: Final = 2
_FIXED: Final = {1: 8, 5: 4}
_MACHINE: Final = pb.MachineList.MACHINES_FIELD_NUMBER << 3 | _LENGTH
_REVISION: Final = pb.MachineList.REVISION_FIELD_NUMBER << 3 | _LENGTH
_REMOVED_ID: Final = pb.MachineList.REMOVED_IDS_FIELD_NUMBER << 3 | _LENGTH
_FULL: Final = pb.MachineList.FULL_FIELD_NUMBER << 3 | _VARINT
