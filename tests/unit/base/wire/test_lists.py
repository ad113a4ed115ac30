"""A List cut into records without decoding them."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bigfleet_base.api.v1alpha1 import provider_pb2 as pb
from bigfleet_base.wire import ListFrames, ListFramesError, scan_list
from bigfleet_base.wire import lists as module
from bigfleet_base.wire.lists import FIELDS_PER_SLICE
from tests.unit.base.wire import messages
from tests.unit.base.wire.provider_records import idle, message


def cut(data: bytes) -> tuple[ListFrames, list[bytes], int]:
    """The frames, the records in them, and how often the scan gave way."""
    scanning, turns = scan_list(data), 0
    while True:
        try:
            next(scanning)
            turns += 1
        except StopIteration as stop:
            frames: ListFrames = stop.value
            records = [data[start:end] for start, end in zip(frames.starts, frames.ends, strict=True)]
            return frames, records, turns


@given(
    st.lists(messages.machines, max_size=8),
    st.binary(max_size=300),
    st.lists(st.text(max_size=200), max_size=8),
    st.none() | st.booleans(),
)
def test_the_records_are_those_that_protobuf_finds(
    machines: list[pb.Machine], revision: bytes, removed: list[str], full: bool | None
) -> None:
    data = message(machines, revision=revision, removed_ids=removed, full=full)
    frames, records, _ = cut(data)
    parsed = pb.MachineList.FromString(data)
    assert [pb.Machine.FromString(raw) for raw in records] == list(parsed.machines)
    assert frames.revision == parsed.revision
    assert frames.removed_ids == list(parsed.removed_ids)
    assert frames.full == (parsed.full if parsed.HasField("full") else None)


def test_fields_of_a_later_contract_are_passed_over() -> None:
    varint, fixed64, text, fixed32 = (
        b"\xc8\x3e\x96\x01",
        b"\xc9\x3e" + bytes(8),
        b"\xca\x3e\x02hi",
        b"\xcd\x3e",
    )
    group = b"\xc3\x3e" + varint + b"\x0b" + text + message([idle(9)]) + b"\x0c" + b"\xc4\x3e"
    data = varint + message([idle(1)]) + fixed64 + text + group + message([idle(2)]) + fixed32 + bytes(4)
    assert [each.id for each in pb.MachineList.FromString(data).machines] == ["m-1", "m-2"]
    assert [pb.Machine.FromString(raw).id for raw in cut(data)[1]] == ["m-1", "m-2"]


def test_an_empty_answer_is_an_empty_list() -> None:
    assert len(cut(b"")[0]) == 0


@given(st.binary(max_size=60), st.integers(0, 400))
def test_whatever_arrives_is_frames_or_an_error(noise: bytes, at: int) -> None:
    data = message([idle(1), idle(2)], revision=b"r")
    at %= len(data)
    for mutant in (noise, data[:at], data[:at] + noise + data[at + len(noise) :]):
        with contextlib.suppress(ListFramesError):
            cut(mutant)


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        (message([idle(1)])[:-1], "cut off: its last field ends at byte"),
        (b"\x0a", "cut off in a number"),
        (b"\x0a\xff", "cut off in a number"),
        (b"\xc9\x3e\x00", "cut off: its last field ends at byte 10 of 3"),
        (b"\xff" * 11, "an endless number"),
        (b"\x0b", "cut off in a group"),
        (b"\x0b\x14", "the end of a group that has not begun"),
        (b"\x0c", "wire type 4"),
        (bytes(64), "tag 0 before byte 1"),
        (b"\x8a\x80\x80\x80\x80\x80\x01\x00", "tag 4398046511114 before byte 7"),
    ],
)
def test_a_message_that_is_none_is_refused_with_the_place(data: bytes, complaint: str) -> None:
    with pytest.raises(ListFramesError, match=complaint):
        cut(data)


def test_the_scan_gives_way_after_every_slice_of_fields() -> None:
    assert cut(b"\x0a\x00" * (3 * FIELDS_PER_SLICE))[2] == 3


def test_the_scan_gives_way_inside_a_large_group() -> None:
    assert cut(b"\x0b" + b"\x08\x00" * (3 * FIELDS_PER_SLICE) + b"\x0c")[2] == 3


def test_a_list_of_more_entries_than_its_bound_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FIELDS_PER_SLICE", 10)
    monkeypatch.setattr(module, "MAX_ENTRIES", 100)
    assert len(cut(b"\x0a\x00" * 100)[0]) == 100
    with pytest.raises(ListFramesError, match="more than 100 entries"):
        cut(b"\x0a\x00" * 200)
    with pytest.raises(ListFramesError, match="more than 100 entries"):
        cut(message(removed_ids=["x"] * 200))
