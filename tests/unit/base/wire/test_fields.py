"""The fields of a message: what passes for one is what protobuf takes for one."""

import pytest
from google.protobuf.message import DecodeError
from hypothesis import example, given
from hypothesis import strategies as st

from bigfleet_base.api.v1alpha1 import coordinator_pb2 as pb
from bigfleet_base.wire.fields import MalformedMessageError, fields
from tests.support.rules import rule
from tests.unit.base.wire.reading import varint

LARGEST_NUMBER = 2**29 - 1


def is_read(data: bytes) -> bool:
    try:
        list(fields(data, 0, len(data)))
    except MalformedMessageError:
        return False
    return True


def is_protobuf(data: bytes) -> bool:
    """Whether protobuf takes it; the message's own fields are bytes, so that no content matters."""
    try:
        pb.SnapshotSaveChunk.FromString(data)
    except DecodeError:
        return False
    return True


def overlong(value: int, size: int) -> bytes:
    """A number in more bytes than it needs."""
    return bytes([value >> 7 * place & 0x7F | 0x80 for place in range(size - 1)]) + bytes(
        [value >> 7 * (size - 1)]
    )


numbers = st.integers(1, 20) | st.sampled_from([1_000, LARGEST_NUMBER])
varints = st.integers(0, 2**64 - 1).map(varint) | st.sampled_from([overlong(1, 10), b"\xff" * 9 + b"\x7f"])
scalars = st.one_of(
    st.builds(lambda number, content: varint(number << 3) + content, numbers, varints),
    st.builds(
        lambda number, content: varint(number << 3 | 1) + content, numbers, st.binary(min_size=8, max_size=8)
    ),
    st.builds(
        lambda number, content: varint(number << 3 | 2) + varint(len(content)) + content,
        numbers,
        st.binary(max_size=200),
    ),
    st.builds(
        lambda number, content: varint(number << 3 | 5) + content, numbers, st.binary(min_size=4, max_size=4)
    ),
)


def grouped(inner: st.SearchStrategy[bytes]) -> st.SearchStrategy[bytes]:
    group = st.builds(
        lambda number, content: varint(number << 3 | 3) + b"".join(content) + varint(number << 3 | 4),
        numbers,
        st.lists(inner, max_size=4),
    )
    return scalars | group


well_formed = st.lists(st.recursive(scalars, grouped, max_leaves=8), max_size=6).map(b"".join)


@rule("shard.I1")
@given(st.binary(max_size=40) | st.tuples(well_formed, st.binary(max_size=12), well_formed).map(b"".join))
@example(bytes(2))
@example(bytes(64))
@example(varint(1 << 3) + b"\x01" + b"\x02\x00")
@example(varint(1 << 32) + b"\x01")
@example(overlong(1 << 3, 6) + b"\x01")
@example(b"\x0a" + overlong(1, 6) + b"x")
@example(b"\x0b" * 101 + b"\x0c" * 101)
def test_only_what_protobuf_takes_is_read(data: bytes) -> None:
    assert not is_read(data) or is_protobuf(data)


@given(well_formed)
@example(b"\x0b" * 100 + b"\x0c" * 100)
def test_what_protobuf_takes_is_read(data: bytes) -> None:
    assert is_protobuf(data) and is_read(data)


@rule("shard.I1")
@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        (bytes(64), "tag 0 at byte 0"),
        (b"\x08\x01\x05abcd", "tag 5 at byte 2"),
        (varint(1 << 32) + b"\x01", "tag 4294967296 at byte 0"),
        (overlong(1 << 3, 6) + b"\x01", "tag 8 at byte 0"),
        (b"\x0a" + overlong(1, 6) + b"x", "a length of 6 bytes"),
        (b"\x08" + b"\x80" * 10 + b"\x01", "does not end"),
        (b"\x08\x80", "cut off in a number"),
        (b"\x0a\x05abc", "ends at byte 7 of 5"),
        (b"\x0b" * 101 + b"\x0c" * 101, "groups in groups in groups at byte 100"),
        (b"\x0b\x08\x01", "cut off in a group"),
        (b"\x0b\x14", "has not begun at byte 1"),
        (b"\x0c", "has not begun at byte 0"),
        (b"\x0b\x0a\x05\x0c", "ends at byte 8 of 4"),
        (b"\x0e\x00", "wire type 6"),
        (b"\x0f\x00", "wire type 7"),
    ],
)
def test_what_is_no_message_is_refused_with_the_place(data: bytes, complaint: str) -> None:
    assert not is_protobuf(data)
    with pytest.raises(MalformedMessageError, match=complaint):
        list(fields(data, 0, len(data)))


def test_a_group_comes_in_pieces_that_pass_for_no_field() -> None:
    data = b"\x08\x01" + b"\x13" + b"\x08\x02\x1b\x1c" + b"\x14" + b"\x08\x03"
    assert [key for key, _, _ in fields(data, 0, len(data))] == [8, 0, 0, 0, 0, 0x14, 8]
