"""Roll-ups from bytes: only what is new is decoded, limits come first, and no bytes do harm."""

import contextlib
import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bigfleet_base.api.v1alpha1 import capacity_pb2 as pb
from bigfleet_base.model import Need, Operator, Profile, Requirement, ResourceVector
from bigfleet_base.wire import rollups
from bigfleet_base.wire.demand import RollupRefusedError, decode_need
from bigfleet_base.wire.fields import MalformedMessageError, fields
from bigfleet_base.wire.rollups import (
    LONG_ROW_BYTES,
    MAX_ROLLUP_BYTES,
    NOTHING_ACCEPTED,
    RawRollup,
    ReadRollup,
    encode_rollup_message,
    find_rollup,
    read_rollup,
)
from tests.support.rules import rule
from tests.unit.base.wire import messages
from tests.unit.base.wire.reading import at_once, envelope, finish, read_bytes, read_message, varint

HELLO = envelope(hello={"cluster_id": "c1"})


def need(number: int) -> Need:
    profile = Profile((Requirement("zone", Operator.IN, ("a", "b")),), priority=number)
    return Need("c1", profile, ResourceVector(cpu=1000 * (number + 1)), ResourceVector(cpu=500))


def sent(*numbers: int, at: int = 1) -> bytes:
    return encode_rollup_message("c1", [need(number) for number in numbers], at)


def rows(read: ReadRollup, before: list[Need]) -> list[Need]:
    """Put a roll-up together as the shard's core does."""
    fresh = iter(read.fresh)
    return [before[place] if place >= 0 else next(fresh) for place in read.order]


@rule("wire.10.3")
def test_a_roll_up_survives_the_wire() -> None:
    read = read_message(sent(1, 2, 3, at=-7))
    assert read.fresh == (need(1), need(2), need(3))
    assert read.order == (-1, -1, -1)
    assert read.timestamp_ns == -7
    assert not read.is_repeated


@rule("shard.I5")
def test_a_repeated_roll_up_is_known_by_its_bytes_whatever_its_time() -> None:
    first = read_message(sent(1, 2, at=1))
    again = read_message(sent(1, 2, at=999_999_999_999), last=first.accepted)
    assert again.is_repeated and again.timestamp_ns == 999_999_999_999
    assert not read_message(sent(2, 1), last=first.accepted).is_repeated
    assert not read_message(sent(1), last=first.accepted).is_repeated
    assert not read_message(sent(), last=first.accepted).is_repeated


def test_a_repeated_roll_up_without_a_time_is_known_too() -> None:
    first = read_message(sent(1, at=0))
    assert read_message(sent(1, at=0), last=first.accepted).is_repeated


def test_a_roll_up_of_nothing_is_no_repetition_of_nothing_accepted() -> None:
    read = read_message(sent())
    assert not read.is_repeated and read.order == ()
    assert read_message(sent(), last=read.accepted).is_repeated


def test_known_rows_are_not_decoded_again(monkeypatch: pytest.MonkeyPatch) -> None:
    first = read_message(sent(1, 2, 3))
    decoded = []

    def decode(row: pb.CapacityNeed, cluster: str, index: int) -> Need:
        decoded.append(index)
        return decode_need(row, cluster, index)

    monkeypatch.setattr(rollups, "decode_need", decode)
    read = read_message(sent(3, 9, 1, 3), last=first.accepted)
    assert decoded == [1]
    assert read.order == (2, -1, 0, 2)
    assert rows(read, [need(1), need(2), need(3)]) == [need(3), need(9), need(1), need(3)]


@given(st.lists(st.lists(st.integers(0, 6), max_size=8), max_size=6))
def test_rows_put_together_from_known_and_fresh_are_those_that_were_sent(demands: list[list[int]]) -> None:
    last, before = NOTHING_ACCEPTED, list[Need]()
    for demand in demands:
        read = read_message(sent(*demand), last=last)
        if read.is_repeated:
            assert before == [need(number) for number in demand]
            continue
        assert rows(read, before) == [need(number) for number in demand]
        last, before = read.accepted, [need(number) for number in demand]


@rule("shard.I2", "ruling.R24")
def test_a_roll_up_of_another_cluster_is_refused_and_one_without_is_the_sessions() -> None:
    with pytest.raises(RollupRefusedError, match="'c2', but this session is 'c1'"):
        read_message(encode_rollup_message("c2", [need(1)], 1))
    read = read_message(encode_rollup_message("", [need(1)], 1))
    assert read.fresh == (need(1),)
    # The name is part of what is compared: the rows of another cluster are no repetition of ours.
    accepted = read_message(sent(1)).accepted
    with pytest.raises(RollupRefusedError):
        read_message(encode_rollup_message("c2", [need(1)], 1), last=accepted)


@rule("ruling.R24")
@pytest.mark.parametrize(
    ("rollup", "complaint"),
    [
        (pb.ClusterCapacityNeeds(needs=[pb.CapacityNeed()] * 100_001), "more than 100000 needs"),
        (
            pb.ClusterCapacityNeeds(needs=[pb.CapacityNeed(group="g" * 200_000)] * 400),
            f"at most {MAX_ROLLUP_BYTES} are taken",
        ),
    ],
)
def test_limits_are_checked_before_any_row_is_decoded(
    monkeypatch: pytest.MonkeyPatch, rollup: pb.ClusterCapacityNeeds, complaint: str
) -> None:
    monkeypatch.setattr(rollups, "decode_need", lambda *_: pytest.fail("a row was decoded"))
    with pytest.raises(RollupRefusedError, match=complaint):
        read_bytes(rollup.SerializeToString())


def test_a_large_roll_up_is_read_in_many_pieces() -> None:
    message = sent(*range(2_000))
    raw = at_once(find_rollup(message))
    assert raw is not None
    pauses = len(list(read_rollup(raw, "c1", NOTHING_ACCEPTED)))
    # About thirty rows between two pauses.
    assert pauses > 2_000 / 60


def test_a_time_behind_the_rows_is_read_and_never_taken_for_a_repetition() -> None:
    late = pb.ClusterCapacityNeeds(needs=[pb.CapacityNeed()]).SerializeToString()
    late += pb.ClusterCapacityNeeds(timestamp_unix_nanos=5).SerializeToString()
    read = read_bytes(late)
    assert read.timestamp_ns == 5 and len(read.fresh) == 1
    other = late[:-1] + b"\x06"
    assert not read_bytes(other, last=read.accepted).is_repeated


def test_only_the_last_payload_of_an_envelope_counts_and_its_parts_are_one() -> None:
    assert at_once(find_rollup(HELLO)) is None
    assert at_once(find_rollup(sent(1) + HELLO)) is None
    assert read_message(HELLO + sent(1)).fresh == (need(1),)
    halves = sent(1) + sent(2)
    assert read_message(halves).fresh == (need(1), need(2))
    assert at_once(find_rollup(b"")) is None


STRANGE = {
    "number": b"\xf8\x3f\x01",
    "text": b"\xfa\x3f\x02ab",
    "four bytes": b"\xfd\x3f1234",
    "eight bytes": b"\xf9\x3f12345678",
    "group": b"\xfb\x3f\x08\x01\x13\x14\xfc\x3f",
}


@pytest.mark.parametrize("strange", STRANGE.values(), ids=STRANGE)
def test_unknown_fields_are_ignored_however_many(strange: bytes) -> None:
    raw = at_once(find_rollup(sent(1)))
    assert raw is not None
    inner = raw.data[raw.start : raw.end]
    for many in (10, 5_000):
        assert read_message(strange * many + sent(1) + strange * many).fresh == (need(1),)
        assert read_bytes(strange * many + inner + strange * many).fresh == (need(1),)


@rule("shard.S10")
@pytest.mark.parametrize(
    "field",
    [
        *STRANGE.values(),
        b"\x10\x01",
        b"\x0a\x02c1",
        b"\x1a\x00",
        b"\xfb\x3f" + b"\x08\x01" * 500 + b"\xfc\x3f",
    ],
    ids=[*STRANGE, "time", "cluster", "row", "large group"],
)
def test_every_field_of_a_roll_up_is_work_after_which_others_have_their_turn(field: bytes) -> None:
    data = field * (200_000 // len(field))
    steps = list(read_rollup(RawRollup(data, 0, len(data)), "c1", NOTHING_ACCEPTED))
    # A field takes half a microsecond or more, so a step stays below two milliseconds.
    assert len(steps) >= sum(1 for _ in fields(data, 0, len(data))) // 2_048 - 1


@rule("shard.S10")
@pytest.mark.parametrize("field", [*STRANGE.values(), b"\x12\x02\x10\x01"], ids=[*STRANGE, "part"])
def test_a_frame_of_many_fields_is_looked_at_in_pieces(field: bytes) -> None:
    data = field * 1_000
    found = find_rollup(data)
    assert len(list(found)) >= 1_000 // 64
    assert len(list(find_rollup(sent(1)))) == 0


def test_a_roll_up_in_many_parts_is_one() -> None:
    raw = at_once(find_rollup(sent(1)))
    assert raw is not None
    part = b"\x12\x02\x10\x01"
    rows_of_one = raw.data[raw.start : raw.end]
    split = part * 3_000 + b"\x12" + varint(len(rows_of_one)) + rows_of_one + part
    assert read_message(split).fresh == (need(1),) and read_message(split).timestamp_ns == 1
    assert read_message(split + HELLO + sent(2)).fresh == (need(2),)


@rule("wire.10.4")
def test_a_row_of_any_size_is_taken_and_a_long_one_is_announced() -> None:
    hosts = tuple(f"node-{number:06}.rack-{number % 99:02}.example.internal" for number in range(8_000))
    long = replace(need(1), profile=Profile((Requirement("kubernetes.io/hostname", Operator.NOT_IN, hosts),)))
    message = encode_rollup_message("c1", [need(1), long, need(2)], 1)
    assert len(message) > LONG_ROW_BYTES
    raw = at_once(find_rollup(message))
    assert raw is not None
    assert list(read_rollup(raw, "c1", NOTHING_ACCEPTED)).count(True) == 1
    read = read_message(message)
    assert read.fresh == (need(1), long, need(2))
    assert list(read_rollup(raw, "c1", replace(read.accepted, digest=b"another"))).count(True) == 1
    ordinary = at_once(find_rollup(sent(*range(1_000))))
    assert ordinary is not None and True not in list(read_rollup(ordinary, "c1", NOTHING_ACCEPTED))


@rule("ruling.R24")
def test_a_row_as_large_as_a_roll_up_may_be_is_taken() -> None:
    row = pb.CapacityNeed(group="g" * (MAX_ROLLUP_BYTES - 32))
    read = read_bytes(pb.ClusterCapacityNeeds(needs=[row]).SerializeToString())
    assert len(read.fresh[0].group) == MAX_ROLLUP_BYTES - 32
    row.group += "g" * 32
    with pytest.raises(RollupRefusedError, match=f"at most {MAX_ROLLUP_BYTES} are taken"):
        read_bytes(pb.ClusterCapacityNeeds(needs=[row]).SerializeToString())


@pytest.mark.parametrize(
    "data",
    [
        b"\x12",
        b"\x12\x05abc",
        b"\x12\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",
        b"\x13",
        b"\x17\x00",
        b"\xff" * 20,
    ],
)
def test_bytes_that_are_no_message_are_refused(data: bytes) -> None:
    with pytest.raises(MalformedMessageError):
        at_once(find_rollup(data))


@pytest.mark.parametrize("data", [b"\x1a\x05abc", b"\x0a\xff", b"\x10", b"\x0a\x7f", b"\x1a\x02\xff\xff"])
def test_bytes_that_are_no_roll_up_are_refused(data: bytes) -> None:
    with pytest.raises(RollupRefusedError):
        read_bytes(data)


@rule("ruling.R24")
@given(messages.rollups, st.randoms(use_true_random=False), st.integers(1, 6))
def test_mutated_bytes_are_read_or_refused(
    rollup: pb.ClusterCapacityNeeds, rng: random.Random, flips: int
) -> None:
    data = bytearray(sent(1, 2) + envelope(rollup=rollup))
    for _ in range(flips):
        where = rng.randrange(len(data))
        match rng.randrange(3):
            case 0:
                data[where] = rng.randrange(256)
            case 1:
                del data[where]
            case _:
                data.insert(where, rng.randrange(256))
    last = read_message(sent(1, 2)).accepted
    with contextlib.suppress(RollupRefusedError, MalformedMessageError):
        raw = at_once(find_rollup(bytes(data)))
        if raw is not None:
            read = read_bytes(raw.data[raw.start : raw.end], last=last)
            assert sum(place < 0 for place in read.order) == len(read.fresh)


@given(messages.rollups)
def test_the_scanner_agrees_with_protobuf(rollup: pb.ClusterCapacityNeeds) -> None:
    rollup.cluster_id = "c1"
    data = rollup.SerializeToString()
    try:
        read = read_bytes(data)
    except RollupRefusedError:
        return
    assert read.timestamp_ns == rollup.timestamp_unix_nanos
    assert len(read.order) == len(rollup.needs)
    assert read_bytes(data, last=read.accepted).is_repeated
    other = replace(read.accepted, digest=b"another")
    again = read_bytes(data, last=other)
    assert again.fresh == () and all(
        rollup.needs[place] == rollup.needs[index] for index, place in enumerate(again.order)
    )


def test_a_roll_up_may_lie_inside_other_bytes() -> None:
    raw = at_once(find_rollup(sent(1)))
    assert raw is not None
    inner = raw.data[raw.start : raw.end]
    within = RawRollup(b"\xff\xff" + inner + b"\xff", 2, 2 + len(inner))
    assert finish(within, "c1", NOTHING_ACCEPTED).accepted.digest == read_bytes(inner).accepted.digest
