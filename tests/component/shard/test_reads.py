"""InspectNeeds over the wire."""

from pathlib import Path

from grpc import aio

from bigfleet_base.api.v1alpha1 import shardread_pb2 as pb
from bigfleet_base.model.frames import RollupAck
from bigfleet_base.wire import dial
from tests.component.shard.world import World, need, running
from tests.support.eventually import eventually
from tests.support.rules import rule


async def inspect(world: World, request: bytes) -> list[pb.InspectNeedsResponse]:
    frames, status = await world.inspect(request)
    assert status == "OK"
    return list(map(pb.InspectNeedsResponse.FromString, frames))


def asked(cluster: str = "", limit: int = 0) -> bytes:
    return pb.InspectNeedsRequest(cluster_id=cluster, limit=limit).SerializeToString()


@rule("shard.V2")
async def test_the_header_comes_first_and_counts_what_the_limit_cuts(tmp_path: Path) -> None:
    async with running(tmp_path) as world:
        for cluster in ("c1", "c2"):
            operator = await world.operator(cluster).connect()
            await operator.roll_up(*(need(cluster, cpus=1, priority=number) for number in range(25)))
            await operator.received(RollupAck)
        await eventually(lambda: len(world.shard.core.views.verdicts) == 50)
        [header, *rows] = await inspect(world, asked(limit=10))
        assert header.header.total_needs == 50 and len(rows) == 10
        assert header.header.cycle > 0 and header.header.computed_at_unix_nanos > 0
        assert [row.need.need.priority for row in rows] == [24, 24, 23, 23, 22, 22, 21, 21, 20, 20]
        [header, *rows] = await inspect(world, asked("c2"))
        assert header.header.total_needs == 25 and {row.need.cluster_id for row in rows} == {"c2"}
        [header] = await inspect(world, asked("c3"))
        assert header.header.total_needs == 0


async def test_a_need_is_shown_with_why_it_is_unmet(tmp_path: Path) -> None:
    async with running(tmp_path) as world:
        operator = await world.operator().connect()
        await operator.roll_up(need(cpus=4000, priority=5))
        await eventually(lambda: any(v.sources.speculative for v in world.shard.core.views.verdicts))
        [_, row] = await inspect(world, asked())
        view = row.need
        assert not view.satisfied and view.cluster_id == "c1" and view.need.priority == 5
        assert view.unmet_detail == "insufficient_supply"
        assert view.unmet_reason == pb.UNMET_REASON_PRIORITY_STARVED
        assert view.matching_supply.speculative + view.matching_supply.idle + view.claimed_machine_count >= 20
        assert view.residual_deficit.resources["cpu"]


async def test_a_bad_request_is_refused(tmp_path: Path) -> None:
    async with running(tmp_path) as world:
        assert (await world.inspect(asked("no/cluster")))[1] == "INVALID_ARGUMENT"
        assert (await world.inspect(b"\xff"))[1] == "INVALID_ARGUMENT"


@rule("wire.10.1")
async def test_only_the_two_methods_of_the_contract_are_there(tmp_path: Path) -> None:
    async with running(tmp_path) as world:
        channel = dial(world.shard.address, None)
        for method in ("/bigfleet.v1alpha1.Shard/Watch", "/bigfleet.v1alpha1.CapacityProvider/List"):
            ask: aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(method)
            assert (await ask(b"").code()).name == "UNIMPLEMENTED"
        await channel.close()
