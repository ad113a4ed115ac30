"""A List of a whole fleet never holds up the event loop."""

import asyncio
import gc
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

import pytest

from bigfleet.shard.provider.listing import ListSlice
from tests.support.rules import rule
from tests.unit.shard.provider.scripted import bench

LONGEST_TURN_MS = 25.0


@asynccontextmanager
async def bulk_provider(count: int, mode: str) -> AsyncIterator[str]:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "tests.unit.shard.provider.bulk_provider",
        str(count),
        mode,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdin is not None and process.stdout is not None
    try:
        yield (await asyncio.wait_for(process.stdout.readline(), 100)).decode().strip()
    finally:
        process.stdin.close()
        await process.wait()


class LongestTurn:
    """The longest turn of the loop, in CPU time of its thread: what other processes take of the machine is
    not the client's doing."""

    def __init__(self) -> None:
        self.ms = 0.0


@contextmanager
def longest_turn() -> Iterator[LongestTurn]:
    loop, longest = asyncio.get_running_loop(), LongestTurn()
    handle: asyncio.Handle | None = None
    last = time.thread_time_ns()

    def beat() -> None:
        nonlocal last, handle
        now = time.thread_time_ns()
        longest.ms = max(longest.ms, (now - last) / 1e6)
        last = now
        handle = loop.call_soon(beat)

    beat()
    try:
        yield longest
    finally:
        assert handle is not None
        handle.cancel()


@pytest.fixture
def frozen() -> Iterator[None]:
    """What the shard's process does after it has loaded: old objects are not walked again and again."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@rule("provider.P-138")
@pytest.mark.usefixtures("frozen")
@pytest.mark.parametrize("mode", ["paged", "whole"])
async def test_no_turn_of_the_loop_is_long_while_a_fleet_is_listed(mode: str, full_size: bool) -> None:
    # An answer that comes as a whole is put together by gRPC in one turn; how long that takes for a large
    # one is not in the client's hands.
    count = 100_000 if full_size and mode == "paged" else 10_500
    changed = 0

    async def merge(news: ListSlice) -> None:
        nonlocal changed
        changed += len(news.changed)

    async with bulk_provider(count, mode) as address, bench(address) as shard:
        await shard.client.describe()
        for expected in (count, count // 100):
            changed = 0
            begun, cpu = time.perf_counter(), time.process_time()
            with longest_turn() as longest:
                end = await shard.client.list(merge)
            print(
                f"{mode}: {end.records} records, {changed} changed: {time.perf_counter() - begun:.2f} s, "
                f"{time.process_time() - cpu:.2f} s of CPU, longest turn {longest.ms:.1f} ms"
            )
            assert (end.records, end.complete, changed) == (count, True, expected)
            assert longest.ms < LONGEST_TURN_MS
