"""The fields of a serialised message, found without decoding what is in them.

gRPC hands over messages of up to 256 MiB. Decoded in one go such a message holds up the event loop for a
second, so whoever may be sent one looks at its outermost layer first.
"""

from collections.abc import Iterator
from typing import Final

VARINT: Final = 0
LENGTH: Final = 2
GROUP: Final = 3


class MalformedMessageError(ValueError):
    """The bytes are cut off, or no protobuf message at all."""


def tag(number: int, wire_type: int) -> int:
    """What stands in front of a field."""
    return number << 3 | wire_type


def read_varint(data: bytes, at: int) -> tuple[int, int]:
    """An unsigned number and where it ends."""
    value = shift = 0
    try:
        while (byte := data[at]) >= 0x80:
            value |= (byte & 0x7F) << shift
            shift += 7
            at += 1
            if shift > 63:
                raise MalformedMessageError(f"a number that does not end at byte {at}")
    except IndexError:
        raise MalformedMessageError("cut off in a number") from None
    return value | byte << shift, at + 1


def signed(value: int) -> int:
    """An int64 as it was meant."""
    value &= _UNSIGNED
    return value - (1 << 64) if value >> 63 else value


def fields(data: bytes, at: int, end: int) -> Iterator[tuple[int, int, int]]:
    """The fields between two places: tag, and where its content begins and ends.

    Groups, which nothing of ours has, come in pieces, so that a large one is no single step: all that is in
    one, and its beginning, with the tag 0.

    Whatever protobuf refuses is refused: bytes that pass for a message of unknown fields would read as
    demand for nothing.
    """
    groups: list[int] = []
    """What ends the groups that are open."""
    while at < end:
        first = at
        key, at = read_varint(data, at)
        if key < _LEAST_TAG or key >> 32 or at - first > _LONGEST_32:
            raise MalformedMessageError(f"tag {key} at byte {first}")
        start = at
        wire_type = key & 7
        if wire_type == LENGTH:
            length, start = read_varint(data, at)
            if start - at > _LONGEST_32:
                raise MalformedMessageError(f"a length of {start - at} bytes at byte {at}")
            at = start + length
        elif wire_type == VARINT:
            _, at = read_varint(data, at)
        elif wire_type in _FIXED:
            at += _FIXED[wire_type]
        elif wire_type == GROUP:
            if len(groups) == _DEEPEST:
                raise MalformedMessageError(f"groups in groups in groups at byte {first}")
            groups.append(key + 1)
        elif wire_type == _GROUP_END:
            if not groups or groups.pop() != key:
                raise MalformedMessageError(f"the end of a group that has not begun at byte {first}")
        else:
            raise MalformedMessageError(f"wire type {wire_type} at byte {first}")
        if at > end:
            raise MalformedMessageError(f"cut off: a field ends at byte {at} of {end}")
        yield 0 if groups else key, start, at
    if groups:
        raise MalformedMessageError("cut off in a group")


_LEAST_TAG: Final = tag(1, VARINT)
_LONGEST_32: Final = 5
"""Bytes of a number of 32 bits; tags and lengths have no more."""
_GROUP_END: Final = 4
_DEEPEST: Final = 100
"""Groups in one another; protobuf goes no deeper."""
_FIXED: Final = {1: 8, 5: 4}
_UNSIGNED: Final = (1 << 64) - 1
