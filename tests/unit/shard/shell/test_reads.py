"""Reading the verdicts holds up nobody."""

import asyncio
from typing import Any
from unittest.mock import Mock

import pytest

from bigfleet.shard.core.report import Views
from bigfleet.shard.shell import reads as module
from bigfleet.shard.shell.reads import ROWS_AT_ONCE, Reads
from bigfleet_base.api.v1alpha1.shardread_pb2 import InspectNeedsRequest
from bigfleet_base.wire.views import NeedView, decode_view, encode_view
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
async def test_however_many_read_only_a_few_rows_are_put_together_in_a_turn(
    full_size: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = 50_000 if full_size else 2_000
    views = _views(rows)
    reads = Reads(lambda: views, Mock())
    between = most = 0

    def counted(view: NeedView) -> bytes:
        nonlocal between
        between += 1
        return encode_view(view)

    monkeypatch.setattr(module, "encode_view", counted)

    async def read() -> int:
        seen = 0
        async for frame in reads.inspect_needs(b"", _Plaintext()):  # type: ignore[arg-type]  # a stand-in with what is used
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
    assert most == ROWS_AT_ONCE


@rule("shard.V1")
async def test_a_reader_that_does_not_read_on_holds_up_no_other() -> None:
    views = _views(3 * ROWS_AT_ONCE)
    reads = Reads(lambda: views, Mock())
    slow = reads.inspect_needs(b"", _Plaintext())  # type: ignore[arg-type]  # a stand-in with what is used
    for _ in range(ROWS_AT_ONCE // 2):
        await anext(slow)
    async with asyncio.timeout(10):
        seen = [frame async for frame in reads.inspect_needs(b"", _Plaintext())]  # type: ignore[arg-type]  # the same
    assert len(seen) == 1 + 3 * ROWS_AT_ONCE


async def test_the_limit_cuts_what_is_put_together() -> None:
    views = _views(3 * ROWS_AT_ONCE)
    reads = Reads(lambda: views, Mock())
    for limit in (1, ROWS_AT_ONCE, ROWS_AT_ONCE + 1, 1_000):
        request = InspectNeedsRequest(limit=limit).SerializeToString()
        seen = [frame async for frame in reads.inspect_needs(request, _Plaintext())]  # type: ignore[arg-type]  # the same
        assert len(seen) == 1 + min(limit, 3 * ROWS_AT_ONCE)


@rule("shard.V1")
async def test_a_reader_sees_one_cycle_to_its_end_although_the_next_has_come() -> None:
    current = _views(3 * ROWS_AT_ONCE)
    reads = Reads(lambda: current, Mock())
    frames = reads.inspect_needs(b"", _Plaintext())  # type: ignore[arg-type]  # a stand-in with what is used
    seen = [await anext(frames)]
    current = Views(2, 2)
    seen += [frame async for frame in frames]

    assert len(seen) == 1 + 3 * ROWS_AT_ONCE
