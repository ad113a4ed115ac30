"""Reading a roll-up to its end."""

from collections.abc import Generator
from typing import TypeVar

from bigfleet_base.api.v1alpha1 import shard_pb2
from bigfleet_base.wire.rollups import (
    NOTHING_ACCEPTED,
    AcceptedRollup,
    RawRollup,
    ReadRollup,
    find_rollup,
    read_rollup,
)

Result = TypeVar("Result")


def read_message(message: bytes, cluster: str = "c1", last: AcceptedRollup = NOTHING_ACCEPTED) -> ReadRollup:
    """What a session of the cluster makes of an operator's message."""
    raw = at_once(find_rollup(message))
    assert raw is not None, "no roll-up"
    return finish(raw, cluster, last)


def read_bytes(rollup: bytes, cluster: str = "c1", last: AcceptedRollup = NOTHING_ACCEPTED) -> ReadRollup:
    """The same for the bytes of the roll-up alone."""
    return finish(RawRollup(rollup, 0, len(rollup)), cluster, last)


def finish(raw: RawRollup, cluster: str, last: AcceptedRollup) -> ReadRollup:
    return at_once(read_rollup(raw, cluster, last))


def at_once(work: Generator[bool, None, Result]) -> Result:
    """What comes of work that gives way."""
    while True:
        try:
            next(work)
        except StopIteration as stop:
            result: Result = stop.value
            return result


def envelope(**payload: object) -> bytes:
    return shard_pb2.OperatorMessage(**payload).SerializeToString()  # type: ignore[arg-type] # one payload


def varint(value: int) -> bytes:
    """A number as protobuf writes it."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])
