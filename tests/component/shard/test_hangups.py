"""Peers that hang up while the core has yet to hear of what they sent."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from bigfleet.shard.core.events import Event, Rollup, SessionClosed, SessionOpened
from bigfleet_base.model.frames import RollupAck
from tests.component.shard.world import World, need, running
from tests.support.eventually import eventually
from tests.support.rules import rule


@asynccontextmanager
async def busy_core(world: World) -> AsyncIterator[None]:
    """The core hears of nothing meanwhile, as in a long slice of a cycle."""
    driver = world.shard.driver
    kept = driver._handle_some, driver._advance
    driver._handle_some = driver._advance = lambda *_: None  # type: ignore[method-assign,assignment]  # a stand-in
    try:
        yield
    finally:
        driver._handle_some, driver._advance = kept  # type: ignore[method-assign]  # a stand-in
        driver._wake.set()


async def is_waiting(world: World, kind: type[Event]) -> None:
    await eventually(lambda: any(isinstance(event, kind) for event, _ in world.shard.driver._events))


@rule("shard.I5", "shard.S3")
@pytest.mark.parametrize("cpus", [4, 16])
async def test_a_roll_up_whose_stream_ended_on_its_way_does_not_confuse_the_next(
    tmp_path: Path, cpus: int
) -> None:
    async with running(tmp_path) as world:
        first = await world.operator().connect()
        await first.roll_up(need(cpus=4), need(cpus=8, priority=7))
        await first.received(RollupAck)
        async with busy_core(world):
            await first.roll_up(need(cpus=12))
            await is_waiting(world, Rollup)
            await first.hang_up()
            await is_waiting(world, SessionClosed)
        second = await world.operator().connect()
        # Once the very bytes that were accepted before the lost one, once rows that it did not have.
        last = await second.roll_up(need(cpus=cpus), need(cpus=8, priority=7))
        await second.until(lambda frames: RollupAck(last) in frames)

        rows = world.shard.core.engine.needs.snapshot()
        assert sorted(row.aggregate["cpu"] for row in rows) == sorted([1000 * cpus, 8000])


@rule("shard.S3", "shard.X9")
async def test_a_peer_that_hangs_up_right_after_its_hello_leaves_no_session(tmp_path: Path) -> None:
    async with running(tmp_path) as world:
        await (await world.operator().connect()).roll_up(need(cpus=4))
        await eventually(lambda: world.shard.core.sessions.active() == 1)
        async with busy_core(world):
            hasty = await world.operator("c2").connect()
            await is_waiting(world, SessionOpened)
            await hasty.hang_up()
            await asyncio.wait_for(hasty.status(), 10)
        await eventually(lambda: world.shard.core.sessions.lost_since("c2") is not None)

        assert world.shard.core.sessions.active() == 1
