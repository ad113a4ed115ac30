"""Roll-ups over the wire: refused ones leave session and demand alone, large ones hold up nobody."""

import asyncio
import time
from pathlib import Path

import pytest

from bigfleet_base.api.v1alpha1 import capacity_pb2 as pb
from bigfleet_base.api.v1alpha1 import shard_pb2
from bigfleet_base.model import Need, Operator, Profile, Requirement, ResourceVector
from bigfleet_base.model.frames import HelloAck, RollupAck
from bigfleet_base.wire.rollups import MAX_ROLLUP_BYTES, encode_rollup_message
from tests.component.shard.world import World, need, running
from tests.support.eventually import eventually
from tests.support.rules import rule


def demand(world: World) -> tuple[Need, ...]:
    return world.shard.core.engine.needs.snapshot()


def rollup(**fields: object) -> bytes:
    return shard_pb2.OperatorMessage(
        rollup=pb.ClusterCapacityNeeds(**fields)  # type: ignore[arg-type] # one field at a time
    ).SerializeToString()


def with_need(**fields: object) -> bytes:
    return rollup(cluster_id="c1", needs=[pb.CapacityNeed(**fields)])  # type: ignore[arg-type] # the same


@rule("shard.I1", "shard.I2", "shard.S10", "ruling.R24")
@pytest.mark.parametrize(
    ("message", "said"),
    [
        (with_need(interruption_penalty_bucket=28), "interruption_penalty_bucket is 28"),
        (with_need(aggregate_resources={"cpu": "4 cores"}), "'4 cores' is not a quantity"),
        (with_need(requirements=[pb.NodeSelectorRequirement(operator=9)]), "operator 9"),  # type: ignore[arg-type] # unknown
        (rollup(cluster_id="c2", needs=[pb.CapacityNeed()]), "'c2', but this session is 'c1'"),
        (rollup(cluster_id="c1", needs=[pb.CapacityNeed()] * 100_001), "more than 100000 needs"),
        (rollup(cluster_id="c1", needs=[pb.CapacityNeed(group="g" * 250_000)] * 270), str(MAX_ROLLUP_BYTES)),
        (b"\x12\x03\x1a\x05\x01", "no roll-up"),
        (b"\x12\x40" + bytes(64), "no roll-up"),
    ],
    ids=["bucket", "quantity", "operator", "cluster", "rows", "bytes", "garbage", "zeros"],
)
async def test_a_refused_roll_up_is_counted_and_changes_nothing(
    tmp_path: Path, message: bytes, said: str
) -> None:
    async with running(tmp_path) as world:
        operator = await world.operator().connect()
        await operator.roll_up(need(cpus=4))
        await operator.received(RollupAck)
        accepted = demand(world)
        await operator.send(message)
        refused = "rollup rejected at ingest validation; keeping last-known-good demand"
        await eventually(lambda: bool(world.logged(refused)))
        [line] = world.logged(refused)
        assert said in line["err"] and line["cluster"] == "c1" and line["level"] == "error"
        assert world.metric('bigfleet_shard_rollups_rejected_total{cluster="c1"}') == 1
        assert demand(world) == accepted
        # The session is up, and what it knows of the accepted rows still holds.
        last = await operator.roll_up(need(cpus=4), need(cpus=8, priority=7))
        await operator.until(lambda frames: RollupAck(last) in frames)
        assert len(operator.of_kind(RollupAck)) == 2
        assert len(demand(world)) == 2


@rule("shard.I2")
async def test_a_roll_up_without_a_cluster_is_the_sessions(tmp_path: Path) -> None:
    async with running(tmp_path) as world:
        operator = await world.operator().connect()
        await operator.roll_up(need(), cluster="")
        await operator.received(RollupAck)
        assert [row.cluster_id for row in demand(world)] == ["c1"]


@rule("shard.I5")
async def test_a_repeated_roll_up_is_acknowledged_with_its_own_time_and_wakes_nobody(tmp_path: Path) -> None:
    async with running(tmp_path) as world:
        operator = await world.operator().connect()
        await operator.roll_up(need(cpus=4), need(priority=5))
        await operator.received(RollupAck)
        woken = world.metric('bigfleet_shard_cycle_trigger_total{cause="rollup"}')
        before = demand(world)
        for number in range(2, 5):
            sent = await operator.roll_up(need(cpus=4), need(priority=5))
            assert (await operator.received(RollupAck, number)).timestamp_ns == sent
        assert demand(world) == before
        await asyncio.sleep(0)
        assert world.metric('bigfleet_shard_cycle_trigger_total{cause="rollup"}') <= max(1, woken)


@rule("shard.I5", "shard.R2")
async def test_a_held_roll_up_is_not_what_later_ones_are_compared_with(tmp_path: Path) -> None:
    async with running(tmp_path) as world:
        operator = await world.operator().connect()
        rows = [need(priority=number) for number in range(40)]
        await operator.roll_up(*rows)
        await operator.received(RollupAck)
        for number in (2, 3):
            await operator.roll_up()
            await operator.received(RollupAck, number)
            assert len(demand(world)) == 40
        # One row changed: the other 39 are taken from the accepted roll-up, not from the held one.
        await operator.roll_up(*rows[:39], need(priority=99))
        await operator.received(RollupAck, 4)
        assert {row.profile.priority for row in demand(world)} == {*range(39), 99}
        for number in (5, 6, 7):
            await operator.roll_up()
            await operator.received(RollupAck, number)
        assert demand(world) == ()


@rule("wire.10.4")
async def test_a_large_roll_up_is_applied_and_others_are_answered_meanwhile(
    tmp_path: Path, full_size: bool
) -> None:
    # 20 MiB, as an operator with many hostname pins would send.
    rows = 100 if full_size else 20
    padding = tuple(f"host-{number:06d}-{'x' * 220}" for number in range(850))
    large = [
        Need(
            "large",
            Profile((Requirement("kubernetes.io/hostname", Operator.NOT_IN, padding),), priority=number),
            ResourceVector(cpu=1000),
        )
        for number in range(rows)
    ]
    async with running(tmp_path) as world:
        operator = await world.operator("large").connect()
        other = await world.operator("small").connect()
        await other.received(HelloAck)
        await operator.send(encode_rollup_message("large", large, 5))
        waits = []
        number = 0
        while not operator.of_kind(RollupAck):
            number += 1
            begun = time.monotonic()
            await other.roll_up(need("small", cpus=number))
            await other.received(RollupAck, number)
            waits.append(time.monotonic() - begun)
        assert operator.of_kind(RollupAck) == [RollupAck(5)]
        assert len([row for row in demand(world) if row.cluster_id == "large"]) == rows
        assert max(waits) < 2, waits


@rule("wire.10.4")
@pytest.mark.parametrize("hosts", [8_000, 90_000], ids=["304 KiB", "20 MiB"])
async def test_a_roll_up_of_one_long_row_is_applied_and_its_session_stays_up(
    tmp_path: Path, hosts: int
) -> None:
    length = 38 if hosts == 8_000 else 230
    names = tuple(f"host-{number:06d}".ljust(length, "x") for number in range(hosts))
    profile = Profile((Requirement("kubernetes.io/hostname", Operator.NOT_IN, names),))
    async with running(tmp_path) as world:
        operator = await world.operator().connect()
        await operator.send(encode_rollup_message("c1", [Need("c1", profile, ResourceVector(cpu=1000))], 5))
        await operator.received(RollupAck)
        [row] = demand(world)
        assert row.profile == profile
        await operator.roll_up(need())
        await operator.received(RollupAck, 2)


async def test_a_roll_up_counts_although_its_sender_says_no_more(tmp_path: Path) -> None:
    rows = [need(priority=number) for number in range(5_000)]
    async with running(tmp_path) as world:
        operator = await world.operator().connect()
        sent = await operator.roll_up(*rows)
        await operator.half_close()
        assert await operator.status() == ("OK", "")
        assert operator.of_kind(RollupAck) == [RollupAck(sent)]
        assert len(demand(world)) == len(rows)
