from dataclasses import replace

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bigfleet.engine.records import Entry, Sidecar
from bigfleet.shard.recording.codec import DecodeError
from bigfleet.shard.recording.machines import decode_block, encode_blocks
from bigfleet_base.model import HostRef, Machine, MachineState, ResourceVector
from tests.support.rules import rule
from tests.unit.shard.recording import values

SHAPE = ResourceVector(cpu=64_000, memory=256 << 40)
LABELS = {"rack": "r1", "kernel": "6.1"}
MODEL = Machine(
    "m", MachineState.IDLE, HostRef("p", "i-1"), resources=SHAPE, labels=LABELS, price_per_hour=3.07
)


@rule("shard.R8")
@given(st.lists(values.of(Entry), max_size=8), st.lists(st.integers(0, 7), max_size=12))
def test_machines_come_back_as_they_were(entries: list[Entry], repeated: list[int]) -> None:
    entries += [entries[n] for n in repeated if n < len(entries)]
    read = [entry for block in encode_blocks(entries, 7) for entry in decode_block(block)]
    assert read == entries
    assert repr(read) == repr(entries)


@rule("shard.R8")
def test_equal_numbers_of_different_kinds_stay_apart() -> None:
    entries = [Entry(replace(MODEL, price_per_hour=price), Sidecar()) for price in (1, 1.0, 0.0, -0.0)]
    (block,) = encode_blocks(entries, 500)
    assert [repr(entry.machine.price_per_hour) for entry in decode_block(block)] == [
        "1",
        "1.0",
        "0.0",
        "-0.0",
    ]


def test_what_machines_share_is_written_once() -> None:
    entries = [
        Entry(replace(MODEL, id=f"m-{n:06}", host=HostRef("p", f"i-{n:06}")), Sidecar(idle_since=n))
        for n in range(5 * 500)
    ]
    blocks = list(encode_blocks(entries, 500))
    assert len(blocks) == 5
    assert sum(map(len, blocks)) < 40 * len(entries)


@pytest.mark.parametrize("damage", ["count", "index", "missing", "huge"])
def test_a_block_that_does_not_add_up_is_refused(damage: str) -> None:
    entries = [Entry(replace(MODEL, id=f"m-{n}", zone="ab"[n % 2]), Sidecar()) for n in range(4)]
    (block,) = encode_blocks(entries, 500)
    count, columns = msgspec.msgpack.decode(block)
    zones = next(column for column in columns if column[0] == ["a", "b"])
    match damage:
        case "count":
            count = 3
        case "index":
            zones[1][0] = 2
        case "missing":
            zones[0].clear()
            zones[1].clear()
        case "huge":
            count = 2**40
    with pytest.raises(DecodeError):
        list(decode_block(msgspec.msgpack.encode([count, columns])))
