"""Reading a roll-up to its end."""

from bigfleet_base.api.v1alpha1 import shard_pb2
from bigfleet_base.wire.rollups import (
    NOTHING_ACCEPTED,
    AcceptedRollup,
    RawRollup,
    ReadRollup,
    find_rollup,
    read_rollup,
)


def read_message(message: bytes, cluster: str = "c1", last: AcceptedRollup = NOTHING_ACCEPTED) -> ReadRollup:
    """What a session of the cluster makes of an operator's message."""
    raw = find_rollup(message)
    assert raw is not None, "no roll-up"
    return finish(raw, cluster, last)


def read_bytes(rollup: bytes, cluster: str = "c1", last: AcceptedRollup = NOTHING_ACCEPTED) -> ReadRollup:
    """The same for the bytes of the roll-up alone."""
    return finish(RawRollup(rollup, 0, len(rollup)), cluster, last)


def finish(raw: RawRollup, cluster: str, last: AcceptedRollup) -> ReadRollup:
    reading = read_rollup(raw, cluster, last)
    while True:
        try:
            next(reading)
        except StopIteration as stop:
            read: ReadRollup = stop.value
            return read


def envelope(**payload: object) -> bytes:
    return shard_pb2.OperatorMessage(**payload).SerializeToString()  # type: ignore[arg-type] # one payload


def varint(value: int) -> bytes:
    """A number as protobuf writes it."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])
