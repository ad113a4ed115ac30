import io
from collections.abc import Sequence
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bigfleet.shard.core.effects import EndSession, EndStatus, RunCycle
from bigfleet.shard.core.events import Event, TimePassed, Writable
from bigfleet.shard.recording.segments import (
    BATCHES,
    HEADERS,
    MAGIC,
    Batch,
    DamageError,
    Frame,
    Header,
    Kind,
    SegmentError,
    SegmentReader,
    batch,
    digest,
    frame,
)
from tests.support.rules import rule
from tests.unit.shard.recording import values

HEADER = frame(Kind.HEADER, HEADERS.encode(Header("1.2.3", "shape")))
STATE, MACHINES = Frame(Kind.STATE, b"state"), Frame(Kind.MACHINES, b"machines")
FIRST = batch(10, [TimePassed()], [RunCycle()])
SECOND = batch(20, [Writable(1, 2), Writable(1, 3)], [])


def written(part: Frame | Batch) -> bytes:
    return frame(part.kind, part.body) if isinstance(part, Frame) else frame(Kind.BATCH, BATCHES.encode(part))


def file_of(parts: Sequence[Frame | Batch]) -> bytes:
    return MAGIC + HEADER + b"".join(map(written, parts))


COMPLETE = Frame(Kind.COMPLETE, b"")
WHOLE = file_of([STATE, FIRST, MACHINES, COMPLETE, SECOND])


def reader(data: bytes, schema: str = "shape") -> SegmentReader:
    return SegmentReader(io.BytesIO(data), "a.rec", schema)


@rule("shard.R8")
def test_checkpoint_and_batches_are_read_apart_although_they_were_written_together() -> None:
    segment = reader(WHOLE)
    assert list(segment.checkpoint()) == [STATE, MACHINES]
    assert list(segment.batches()) == [FIRST, SECOND]
    assert list(segment.checkpoint()) == [STATE, MACHINES]
    assert segment.header == Header("1.2.3", "shape")


@rule("shard.R8")
def test_a_torn_end_takes_only_the_batch_it_tears() -> None:
    start = len(file_of([STATE, COMPLETE, FIRST]))
    data = file_of([STATE, COMPLETE, FIRST, SECOND])
    for length in range(start, len(data)):
        segment = reader(data[:length])
        assert list(segment.batches()) == [FIRST]
        assert segment.torn == length - start


@rule("shard.R8")
@given(st.data())
def test_a_damaged_byte_is_no_torn_end_and_is_named(data: st.DataObject) -> None:
    whole = bytearray(file_of([STATE, COMPLETE, FIRST, SECOND]))
    start = len(file_of([STATE, COMPLETE]))
    # Behind the length, which can be damaged into one that runs past the end.
    place = data.draw(st.integers(start + 4, start + len(written(FIRST)) - 1))
    whole[place] ^= data.draw(st.integers(1, 255))
    segment = reader(bytes(whole))
    with pytest.raises(DamageError, match=rf"a\.rec: damaged at byte {start}: .* cannot be judged"):
        list(segment.batches())
    assert segment.torn == 0


@given(st.data())
def test_no_batch_is_read_from_a_damaged_byte_on(data: st.DataObject) -> None:
    whole = bytearray(file_of([STATE, COMPLETE, FIRST, SECOND]))
    start = len(file_of([STATE, COMPLETE, FIRST]))
    place = data.draw(st.integers(start, len(whole) - 1))
    whole[place] ^= data.draw(st.integers(1, 255))
    segment = reader(bytes(whole))
    batches = segment.batches()
    assert next(batches) == FIRST
    # A damaged length can seem to run past the end.
    with suppress(DamageError):
        assert list(batches) == [] and segment.torn == len(whole) - start


def test_a_damaged_checkpoint_says_so() -> None:
    data = bytearray(WHOLE)
    place = len(file_of([STATE, FIRST]))
    data[place + 10] ^= 1
    with pytest.raises(SegmentError, match=rf"a\.rec: the checkpoint is damaged at byte {place}: "):
        list(reader(bytes(data)).checkpoint())


def test_a_checkpoint_that_was_never_finished_is_refused_and_says_where_to_look() -> None:
    with pytest.raises(SegmentError, match=r"a\.rec: .* not whole.* segment before it"):
        list(reader(file_of([STATE, FIRST])).checkpoint())


@rule("shard.R8")
def test_a_recording_of_another_shape_names_the_version_that_reads_it() -> None:
    with pytest.raises(SegmentError, match=r"recorded by bigfleet 1\.2\.3.* replay it with that version"):
        reader(WHOLE, schema="another")


@pytest.mark.parametrize("data", [b"", b"BIGFREC", b"BIGFREC\x02" + HEADER, b"\x00" * 100])
def test_a_file_that_is_no_recording_is_refused(data: bytes) -> None:
    with pytest.raises(SegmentError, match="not a recording"):
        reader(data)


@pytest.mark.parametrize("header", [b"", HEADER[:-1], HEADER[:-1] + b"x", written(STATE)])
def test_a_recording_without_its_header_is_refused(header: bytes) -> None:
    with pytest.raises(SegmentError, match="header is damaged"):
        reader(MAGIC + header)


def test_a_header_that_cannot_be_read_is_refused() -> None:
    with pytest.raises(SegmentError, match="header is damaged"):
        reader(MAGIC + frame(Kind.HEADER, b"\xc1"))


def test_a_batch_that_cannot_be_read_is_refused_although_its_checksum_is_right() -> None:
    segment = reader(MAGIC + HEADER + frame(Kind.BATCH, b"\x90"))
    with pytest.raises(SegmentError, match="batch that cannot be read"):
        list(segment.batches())


@given(st.lists(values.of(Event), max_size=4), st.integers(0, 2**63 - 1))
def test_any_batch_is_read_as_it_was_written(events: list[Event], now: int) -> None:
    one = batch(now, events, [RunCycle()])
    assert list(reader(file_of([one])).batches()) == [one]


@rule("shard.R8")
def test_the_digest_knows_order_and_content_of_effects() -> None:
    one, other = EndSession(1, EndStatus.ABORTED, "x"), EndSession(2, EndStatus.ABORTED, "x")
    digests = {digest(effects) for effects in ([], [one], [other], [one, other], [other, one])}
    assert len(digests) == 5
    assert all(len(each) == 16 for each in digests)
