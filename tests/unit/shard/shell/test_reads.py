"""Reading the verdicts holds up nobody."""

import asyncio
from typing import Any
from unittest.mock import Mock

from bigfleet.shard.core.report import Views
from bigfleet.shard.shell.reads import ROWS_AT_ONCE, Reads
from bigfleet_base.wire.views import decode_view
from tests.shard.lab import Lab, machines, need
from tests.support.rules import rule

READERS = 20


class _Plaintext:
    """The context of a caller without a certificate."""

    def auth_context(self) -> dict[str, Any]:
        return {}


def _views(rows: int) -> Views:
    lab = Lab(machines(1))
    lab.operator("c1", need("c1", 1))
    lab.run(2)
    [verdict] = lab.core.views.verdicts
    return Views(1, 1, [verdict] * rows)


@rule("shard.V1")
async def test_many_readers_of_many_rows_give_way_after_a_few(full_size: bool) -> None:
    rows = 50_000 if full_size else 2_000
    views = _views(rows)
    reads = Reads(lambda: views, Mock())
    between = most = 0

    async def read() -> int:
        nonlocal between
        seen = 0
        async for frame in reads.inspect_needs(b"", _Plaintext()):  # type: ignore[arg-type]  # a stand-in with what is used
            between += 1
            seen += decode_view(frame) is not None
        return seen

    async def cycle() -> None:
        """Somebody who wants a turn, as the loop around the core does."""
        nonlocal between, most
        while True:
            await asyncio.sleep(0)
            most, between = max(most, between), 0

    other = asyncio.create_task(cycle())
    seen = await asyncio.gather(*(read() for _ in range(READERS)))
    other.cancel()

    assert seen == [rows] * READERS
    assert most <= READERS * (ROWS_AT_ONCE + 1), "each reader gives way after a millisecond or two of work"


@rule("shard.V1")
async def test_a_reader_sees_one_cycle_to_its_end_although_the_next_has_come() -> None:
    current = _views(3 * ROWS_AT_ONCE)
    reads = Reads(lambda: current, Mock())
    frames = reads.inspect_needs(b"", _Plaintext())  # type: ignore[arg-type]  # a stand-in with what is used
    seen = [await anext(frames)]
    current = Views(2, 2)
    seen += [frame async for frame in frames]

    assert len(seen) == 1 + 3 * ROWS_AT_ONCE
