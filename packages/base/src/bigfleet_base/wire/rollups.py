"""Roll-ups as the shard reads them: from bytes, in slices, and only what is new in them.

A thousand operators repeat their demand every ten seconds, and most of it has not changed. So a roll-up is
told from the last accepted one by a digest, its rows from the rows of that one by their bytes, and what is
left is decoded row by row with pauses in which other work can run.
"""

import hashlib
from array import array
from collections.abc import Generator, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from google.protobuf.message import DecodeError

from bigfleet_base.api.v1alpha1 import capacity_pb2 as capacity
from bigfleet_base.api.v1alpha1 import shard_pb2 as pb
from bigfleet_base.model import Need
from bigfleet_base.wire.demand import RollupRefusedError, decode_need, encode_rollup
from bigfleet_base.wire.fields import LENGTH, VARINT, MalformedMessageError, fields, read_varint, signed, tag

MAX_ROLLUP_BYTES: Final = 64 * 1024 * 1024
MAX_ROLLUP_ROWS: Final = 100_000
"""Above either limit a roll-up is refused before its rows are looked at (ruling R24)."""
LONG_ROW_BYTES: Final = 1 << 18
"""A row is decoded in one go. One of this size, with the names of a thousand hosts, takes ten milliseconds,
and a larger one is better decoded beside the loop."""


@dataclass(frozen=True, slots=True)
class RawRollup:
    """Where in some bytes a roll-up is."""

    data: bytes
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class AcceptedRollup:
    """What is kept of the last accepted roll-up of a cluster, to know it and its rows again."""

    digest: bytes
    """Of its bytes without the time."""
    rows: Mapping[bytes, int]
    """Which row has these bytes; of equal rows the last."""


@dataclass(frozen=True, slots=True)
class ReadRollup:
    """A roll-up that may be accepted.

    ``order`` builds its rows: n >= 0 stands for row n of the last accepted roll-up, -1 for the next of
    ``fresh``.
    """

    timestamp_ns: int
    fresh: tuple[Need, ...]
    order: tuple[int, ...]
    accepted: AcceptedRollup
    """To keep, should it be accepted."""
    is_repeated: bool = False
    """Whether it is byte for byte the last accepted one; its rows are left out then."""


NOTHING_ACCEPTED: Final = AcceptedRollup(b"", {})


def encode_rollup_message(cluster_id: str, needs: Iterable[Need], timestamp_ns: int) -> bytes:
    """A roll-up as an operator sends it: equal demand gives equal bytes, so that the shard can tell."""
    message = pb.OperatorMessage(rollup=encode_rollup(cluster_id, needs, timestamp_ns))
    return message.SerializeToString(deterministic=True)


def find_rollup(message: bytes) -> Generator[bool, None, RawRollup | None]:
    """The roll-up in a serialised OperatorMessage; None when it carries something else.

    Gives way as ``read_rollup`` does; MalformedMessageError when it is no message.
    """
    last, start, end = 0, 0, 0
    joined: bytearray | None = None
    for count, (key, content, past) in enumerate(fields(message, 0, len(message)), start=1):
        if count % _FRAME_FIELDS_PER_SLICE == 0:
            yield False
        if key not in _PAYLOADS:
            continue
        # A later payload takes the place of an earlier one; parts of one payload belong together.
        if key != last:
            last, start, end, joined = key, content, past, None
        elif key == _ROLLUP:
            joined = bytearray(message[start:end]) if joined is None else joined
            joined += message[content:past]
    if last != _ROLLUP:
        return None
    return RawRollup(message, start, end) if joined is None else RawRollup(bytes(joined), 0, len(joined))


def read_rollup(
    raw: RawRollup, session_cluster: str, last: AcceptedRollup
) -> Generator[bool, None, ReadRollup]:
    """Read a roll-up of a session, given the last accepted one; gives way after bounded work.

    It yields whether the next step is a long row, which is better taken in a thread.

    Refuses exactly what wire.md §9 refuses, and all of the roll-up with it: half a roll-up would read as the
    withdrawal of the other half.
    """
    try:
        return (yield from _read(raw, session_cluster, last))
    except MalformedMessageError as error:
        raise RollupRefusedError(f"no roll-up: {error}") from None


def _read(raw: RawRollup, session_cluster: str, last: AcceptedRollup) -> Generator[bool, None, ReadRollup]:
    if (size := raw.end - raw.start) > MAX_ROLLUP_BYTES:
        raise RollupRefusedError(f"{size} bytes, at most {MAX_ROLLUP_BYTES} are taken")
    timestamp, stamp_start, stamp_end = _find_stamp(raw)
    digest = yield from _digest(raw, stamp_start, stamp_end)
    if digest == last.digest:
        return ReadRollup(timestamp, (), (), last, is_repeated=True)
    starts, ends, timestamp = yield from _scan(raw, session_cluster)
    fresh: list[Need] = []
    order: list[int] = []
    rows: dict[bytes, int] = {}
    effort = 0
    for index, start in enumerate(starts):
        is_long = ends[index] - start > LONG_ROW_BYTES
        if is_long:
            yield True
        row = raw.data[start : ends[index]]
        known = last.rows.get(row, -1)
        if known < 0:
            fresh.append(_decode_row(row, session_cluster, index))
            effort += _ROW_EFFORT + len(row)
        order.append(known)
        rows[row] = index
        effort += _KNOWN_ROW_EFFORT
        if is_long or effort > _EFFORT_PER_SLICE:
            effort = 0
            yield False
    return ReadRollup(timestamp, tuple(fresh), tuple(order), AcceptedRollup(digest, rows))


def _find_stamp(raw: RawRollup) -> tuple[int, int, int]:
    """The time of a roll-up and where its field is: behind the cluster's name, where every writer of
    protobuf puts it. Found elsewhere it counts as content, and the roll-up is never taken for a repeated
    one."""
    data, at = raw.data, raw.start
    if at < raw.end and data[at] == _CLUSTER:
        length, start = read_varint(data, at + 1)
        at = start + length
    if at < raw.end and data[at] == _STAMP:
        value, end = read_varint(data, at + 1)
        if end <= raw.end:
            return signed(value), at, end
    return 0, raw.start, raw.start


def _digest(raw: RawRollup, skip_from: int, skip_to: int) -> Generator[bool, None, bytes]:
    digest = hashlib.blake2b(digest_size=16)
    with memoryview(raw.data) as view:
        digest.update(view[raw.start : skip_from])
        for start in range(skip_to, raw.end, _HASHED_PER_SLICE):
            digest.update(view[start : min(start + _HASHED_PER_SLICE, raw.end)])
            if start + _HASHED_PER_SLICE < raw.end:
                yield False
    return digest.digest()


def _scan(
    raw: RawRollup, session_cluster: str
) -> Generator[bool, None, tuple["array[int]", "array[int]", int]]:
    """Where the rows are, and when the roll-up was made; refused if it is another cluster's."""
    starts, ends = array("L"), array("L")
    cluster, timestamp = "", 0
    for count, (key, start, end) in enumerate(fields(raw.data, raw.start, raw.end), start=1):
        if key == _NEED:
            if len(starts) == MAX_ROLLUP_ROWS:
                raise RollupRefusedError(f"more than {MAX_ROLLUP_ROWS} needs")
            starts.append(start)
            ends.append(end)
        elif key == _CLUSTER:
            cluster = raw.data[start : min(end, start + _MAX_SHOWN)].decode(errors="replace")
        elif key == _STAMP:
            timestamp = signed(read_varint(raw.data, start)[0])
        # All fields count, whatever they are: none is too many, and none holds up anybody.
        if count % _FIELDS_PER_SLICE == 0:
            yield False
    # An empty one stands for the session's own (shard.md I2).
    if cluster and cluster != session_cluster:
        raise RollupRefusedError(f"cluster_id is {cluster!r}, but this session is {session_cluster!r}'s")
    return starts, ends, timestamp


def _decode_row(row: bytes, cluster: str, index: int) -> Need:
    try:
        message = capacity.CapacityNeed.FromString(row)
    except DecodeError:
        raise RollupRefusedError(f"needs[{index}]: no CapacityNeed message") from None
    return decode_need(message, cluster, index)


_PAYLOADS: Final = frozenset(
    tag(field.number, LENGTH) for field in pb.OperatorMessage.DESCRIPTOR.oneofs_by_name["payload"].fields
)
_ROLLUP: Final = tag(pb.OperatorMessage.ROLLUP_FIELD_NUMBER, LENGTH)
_CLUSTER: Final = tag(capacity.ClusterCapacityNeeds.CLUSTER_ID_FIELD_NUMBER, LENGTH)
_STAMP: Final = tag(capacity.ClusterCapacityNeeds.TIMESTAMP_UNIX_NANOS_FIELD_NUMBER, VARINT)
_NEED: Final = tag(capacity.ClusterCapacityNeeds.NEEDS_FIELD_NUMBER, LENGTH)

# Clusters' names have at most 253 characters; what is longer is none and need not be copied whole.
_MAX_SHOWN: Final = 256

# Work between two pauses, a millisecond or two each: bytes hashed, fields passed over, and decoding in units
# of a byte of row.
_HASHED_PER_SLICE: Final = 1 << 20
_FIELDS_PER_SLICE: Final = 2_048
_FRAME_FIELDS_PER_SLICE: Final = 64
"""A frame is looked at as soon as it comes, whoever is reading. Ordinary ones have one field."""
_EFFORT_PER_SLICE: Final = 32_768
_ROW_EFFORT: Final = 1_024
_KNOWN_ROW_EFFORT: Final = 16
