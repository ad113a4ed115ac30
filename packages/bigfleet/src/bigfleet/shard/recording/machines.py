"""Machines in bulk, column by column: what many of them share is written once.

A fleet repeats itself: a thousand machines have a handful of offers, label sets and bindings between them. A
block holds, for each field, the distinct values and which machine has which.
"""

import dataclasses
import typing
from collections.abc import Iterable, Iterator
from itertools import islice
from operator import attrgetter
from typing import Any, Final

from bigfleet.engine.records import Entry, Sidecar
from bigfleet.shard.recording.codec import Codec, DecodeError
from bigfleet_base.model import Machine

MAX_BLOCK: Final = 10_000


def encode_blocks(entries: Iterable[Entry], size: int) -> Iterator[bytes]:
    """Blocks of so many machines, each made when it is asked for."""
    assert size <= MAX_BLOCK
    rest = iter(entries)
    while some := list(islice(rest, size)):
        yield CODEC.encode((len(some), tuple(_column(list(map(field, some))) for field in _FIELDS)))


def decode_block(data: bytes) -> Iterator[Entry]:
    """The machines of a block, in the order they were given in."""
    count, columns = CODEC.decode(data)
    if not 0 < count <= MAX_BLOCK:
        raise DecodeError(f"a block of {count} machines")
    for row in zip(*(_expand(column, count) for column in columns), strict=True):
        yield Entry(Machine(*row[:_OF_MACHINE]), Sidecar(*row[_OF_MACHINE:]))


_Column = tuple[list[Any], list[int]]
"""The distinct values, and which of them each machine has: nothing when all have one or each its own."""


def _column(values: list[Any]) -> _Column:
    # Told apart by identity: equal numbers are not always the same (1 and 1.0), and what the inventory shares
    # between machines is one object.
    keys = list(map(id, values))
    distinct = dict(zip(keys, values, strict=True))
    if len(distinct) in (1, len(values)):
        return list(distinct.values()), []
    places = {key: place for place, key in enumerate(distinct)}
    return list(distinct.values()), list(map(places.__getitem__, keys))


def _expand(column: _Column, count: int) -> list[Any]:
    distinct, index = column
    if len(distinct) == 1:
        return distinct * count
    values = [distinct[place] for place in index if 0 <= place < len(distinct)] if index else distinct
    if len(values) != count:
        raise DecodeError(f"a column of {len(values)} in a block of {count} machines")
    return values


def _hints(cls: type, prefix: str) -> dict[str, Any]:
    hints = typing.get_type_hints(cls)
    return {f"{prefix}.{field.name}": hints[field.name] for field in dataclasses.fields(cls)}


_HINTS: Final = _hints(Machine, "machine") | _hints(Sidecar, "sidecar")
_FIELDS: Final = [attrgetter(name) for name in _HINTS]
_OF_MACHINE: Final = len(dataclasses.fields(Machine))

CODEC: Final = Codec[tuple[int, tuple[_Column, ...]]](
    tuple[int, tuple[tuple(tuple[list[hint], list[int]] for hint in _HINTS.values())]]  # type: ignore[misc, valid-type]  # made at run time
)
