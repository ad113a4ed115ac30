"""The first frame of a session, and every other one that is not what it should be."""

import asyncio
from pathlib import Path

import pytest

from bigfleet.shard.shell import sessions
from bigfleet_base.model.frames import HelloAck, RollupAck
from bigfleet_base.wire.rollups import encode_rollup_message
from bigfleet_base.wire.session import BootstrapAnswer, Hello, encode_operator_message
from tests.component.shard.world import need, running
from tests.support.eventually import eventually
from tests.support.rules import rule


@rule("wire.10.5", "shard.S1")
@pytest.mark.parametrize(
    ("first", "said"),
    [
        (encode_rollup_message("c1", [need()], 1), "must be a Hello"),
        (encode_operator_message(BootstrapAnswer("r-1", b"blob")), "must be a Hello"),
        (encode_operator_message(Hello("")), "cluster_id ''"),
        (encode_operator_message(Hello("a/b")), "cluster_id 'a/b'"),
        (encode_operator_message(Hello("ä")), "cluster_id"),
        (encode_operator_message(Hello("c" * 254)), "cluster_id"),
        (b"", "must be a Hello"),
        (b"\xff\xff", "the first frame"),
    ],
)
async def test_a_stream_that_does_not_begin_with_a_good_hello_ends(
    tmp_path: Path, first: bytes, said: str
) -> None:
    async with running(tmp_path) as world:
        operator = world.operator()
        await operator.call()
        await operator.send(first)
        code, text = await operator.status()
        assert code == "INVALID_ARGUMENT" and said in text
        assert world.shard.core.sessions.active() == 0
        assert not world.shard.core.engine.needs.snapshot()


@rule("shard.S10", "shard.S1")
async def test_a_stream_that_says_nothing_ends_by_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "HELLO_TIMEOUT", 200_000_000)
    async with running(tmp_path) as world:
        silent, closed = world.operator(), world.operator()
        await silent.call()
        await closed.call()
        await closed.half_close()
        assert (await silent.status())[0] == "INVALID_ARGUMENT"
        assert (await closed.status())[0] == "INVALID_ARGUMENT"


@rule("shard.S1")
async def test_a_second_hello_is_acknowledged_and_one_of_another_cluster_ends_the_stream(
    tmp_path: Path,
) -> None:
    async with running(tmp_path) as world:
        operator = await world.operator().connect()
        await operator.received(HelloAck)
        await operator.send(encode_operator_message(Hello("c1")))
        await operator.received(HelloAck, 2)
        await operator.send(encode_operator_message(Hello("c2")))
        code, text = await operator.status()
        assert code == "INVALID_ARGUMENT" and "'c2'" in text
        await eventually(lambda: world.shard.core.sessions.active() == 0)


async def test_bytes_that_are_no_message_cost_a_log_line_and_not_the_session(tmp_path: Path) -> None:
    async with running(tmp_path) as world:
        operator = await world.operator().connect()
        await operator.send(b"\xff\xff\xff")
        await operator.send(b"\xf8\x3f\x01")
        sent = await operator.roll_up(need())
        assert (await operator.received(RollupAck)).timestamp_ns == sent
        [line, *_] = world.logged("operator message handling")
        assert line["cluster"] == "c1" and line["level"] == "warn"


async def test_opening_and_closing_are_logged_and_a_lost_connection_is_a_warning(tmp_path: Path) -> None:
    async with running(tmp_path) as world:
        first = await world.operator("c1").connect()
        await first.received(HelloAck)
        await first.half_close()
        await eventually(lambda: bool(world.logged("operator session closed")))
        assert world.logged("operator session opened")[0]["protocol"] == "v1alpha1"
        assert (await first.status())[0] == "OK"
        second = await world.operator("c2").connect()
        await second.received(HelloAck)
        await second.hang_up()
        await eventually(lambda: bool(world.logged("operator session recv error")))
        await eventually(lambda: world.shard.core.sessions.active() == 0)


@rule("shard.S10")
async def test_streams_without_a_hello_harm_nobody_else(tmp_path: Path) -> None:
    async with running(tmp_path) as world:
        silent = [world.operator(f"s{n}") for n in range(50)]
        for operator in silent:
            await operator.call()
        operator = await world.operator().connect()
        async with asyncio.timeout(5):
            await operator.received(HelloAck)
