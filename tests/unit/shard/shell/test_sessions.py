"""Reading roll-ups: many at once hold the loop no longer than one."""

import asyncio
import threading
from collections.abc import Callable, Generator
from unittest.mock import Mock

import pytest

from bigfleet.shard.shell import sessions as module
from bigfleet.shard.shell.sessions import Sessions
from bigfleet_base.telemetry import Metrics, Role
from bigfleet_base.wire.demand import RollupRefusedError
from bigfleet_base.wire.rollups import AcceptedRollup, RawRollup, ReadRollup
from bigfleet_base.wire.session import CordonAck, Stamp, encode_operator_message
from tests.support.eventually import eventually
from tests.support.rules import rule

RAW = RawRollup(b"", 0, 0)
READ = ReadRollup(0, (), (), AcceptedRollup(b"digest", {}))


class Bench:
    """Sessions whose roll-ups take as many slices as a test says, and what was read in which turn."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, slices: Callable[[str], int]) -> None:
        self.read: list[str] = []
        self.turns: list[list[str]] = []
        self.sessions = Sessions(Mock(), Mock(), Stamp(1), Metrics(Role.SHARD), Mock())

        def reading(raw: RawRollup, cluster: str, last: AcceptedRollup) -> Generator[bool, None, ReadRollup]:
            for _ in range(slices(cluster)):
                self.read.append(cluster)
                yield False
            return READ

        # Whatever a step takes, it fills a slice.
        monkeypatch.setattr(module, "SLICE_NS", 0)
        monkeypatch.setattr(module, "read_rollup", reading)
        self.reading = reading

    def begin(self, cluster: str) -> asyncio.Task[ReadRollup]:
        return asyncio.ensure_future(self.sessions._read_rollup(Mock(cluster=cluster), RAW))

    async def watch(self) -> None:
        """Somebody else who wants a turn."""
        while True:
            self.read.clear()
            await asyncio.sleep(0)
            self.turns.append(list(self.read))


@rule("shard.B1", "shard.S10")
async def test_however_many_roll_ups_are_read_a_turn_of_the_loop_reads_one_slice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = Bench(monkeypatch, lambda cluster: 50)
    other = asyncio.ensure_future(bench.watch())
    assert await asyncio.gather(*(bench.begin(f"c{number}") for number in range(24))) == [READ] * 24
    other.cancel()
    assert max(map(len, bench.turns)) == 1
    assert sum(map(len, bench.turns)) == 24 * 50


@rule("shard.S10")
async def test_readers_take_turns_so_that_a_short_roll_up_does_not_wait_for_a_long_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bench = Bench(monkeypatch, lambda cluster: 2 if cluster == "short" else 1_000)
    long = [bench.begin(f"long-{number}") for number in range(3)]
    await asyncio.sleep(0)
    await bench.begin("short")
    assert bench.read.count("short") == 2
    assert len(bench.read) <= 20 and not any(task.done() for task in long)
    for task in long:
        task.cancel()
    await asyncio.gather(*long, return_exceptions=True)


async def test_a_reader_that_is_cancelled_holds_up_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(monkeypatch, lambda cluster: 100)
    gone = [bench.begin(f"gone-{number}") for number in range(3)]
    stays = bench.begin("stays")
    for turns, task in enumerate(gone):
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
    assert await stays == READ
    assert all(task.cancelled() for task in gone)


@rule("wire.10.4", "shard.S10")
async def test_long_rows_are_decoded_beside_the_loop_one_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(monkeypatch, lambda cluster: 1)
    short = bench.reading
    threads: list[threading.Thread] = []
    at_work = most = 0
    gate = threading.Event()

    def reading(raw: RawRollup, cluster: str, last: AcceptedRollup) -> Generator[bool, None, ReadRollup]:
        nonlocal at_work, most
        yield True
        at_work += 1
        most = max(most, at_work)
        gate.wait(20)
        threads.append(threading.current_thread())
        at_work -= 1
        yield False
        assert threading.current_thread() is threading.main_thread()
        return READ

    monkeypatch.setattr(module, "read_rollup", reading)
    long = [bench.begin(f"c{number}") for number in range(3)]
    await eventually(lambda: at_work == 1)
    # Whoever has none goes on reading meanwhile.
    monkeypatch.setattr(module, "read_rollup", short)
    assert await bench.begin("short") == READ
    gate.set()
    assert await asyncio.gather(*long) == [READ] * 3
    assert most == 1 and threading.main_thread() not in threads


async def test_a_long_row_that_is_refused_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(monkeypatch, lambda cluster: 1)

    def reading(raw: RawRollup, cluster: str, last: AcceptedRollup) -> Generator[bool, None, ReadRollup]:
        yield True
        raise RollupRefusedError("no")

    monkeypatch.setattr(module, "read_rollup", reading)
    with pytest.raises(RollupRefusedError, match="no"):
        await bench.begin("c1")


@rule("shard.B1")
async def test_a_frame_with_one_field_waits_for_no_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench(monkeypatch, lambda cluster: 1)
    many = b"\xf8\x3f\x01" * 200
    answer = encode_operator_message(CordonAck("i-1", 1))
    async with bench.sessions._turn:
        assert await bench.sessions._decode(answer) == CordonAck("i-1", 1)
        strange = asyncio.ensure_future(bench.sessions._decode(many + answer))
        await asyncio.sleep(0)
        assert not strange.done()
    assert await strange == CordonAck("i-1", 1)
