"""kill -9 of a real provider under load: nothing that was acknowledged is lost, nothing is done twice."""

import asyncio
import random
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc import aio

from bigfleet_base.api.v1alpha1 import provider_pb2 as pb
from bigfleet_base.model import MachineState
from tests.component.providerkit.processes import ToyProcess, stub
from tests.support.rules import rule

S = MachineState
MACHINES = 24
IN_FLIGHT = 10
TRANSITIONAL = {S.CREATING, S.CONFIGURING, S.DRAINING, S.DELETING}


class Load:
    """A shard that drives every machine round and round, and remembers what it was told."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.epoch = 0
        self.sequence = 0
        self.acked: dict[str, tuple[int, int]] = {}
        self.bound: dict[str, tuple[str, dict[str, str]]] = {}
        self.operations: dict[tuple[str, str], str] = {}
        self.minted: dict[str, tuple[str, str]] = {}
        self.acks = 0

    async def drive(self, client: Any, machine: str) -> None:
        while True:
            record = await client.Get(pb.MachineRef(id=machine))
            match S(record.state):
                case S.SPECULATIVE:
                    await self.call(client.Create, pb.CreateRequest, "Create", machine)
                case S.IDLE:
                    if self.random.random() < 0.3:
                        await self.call(client.Delete, pb.DeleteRequest, "Delete", machine)
                    else:
                        binding = (f"c{self.random.randrange(9)}", {"n": f"{self.random.random()}\0"})
                        more = {"cluster_id": binding[0], "shard_metadata": binding[1]}
                        self.bound[machine] = binding
                        await self.call(client.Configure, pb.ConfigureRequest, "Configure", machine, **more)
                case S.CONFIGURED:
                    await self.call(client.Drain, pb.DrainRequest, "Drain", machine)
                case _:
                    await asyncio.sleep(0.002)

    async def call(self, method: Any, request: Any, kind: str, machine: str, **more: Any) -> None:
        self.sequence += 1
        token = (self.epoch, self.sequence)
        message = request(
            machine_id=machine, shard_id="s", shard_epoch=token[0], sequence_number=token[1], **more
        )
        ack = await method(message)
        self.acks += 1
        self.acked[machine] = max(token, self.acked.get(machine, (0, 0)))
        known = self.minted.setdefault(ack.operation_id, (machine, kind))
        assert known == (machine, kind), "an operation id was given out twice"
        self.operations[(machine, kind)] = ack.operation_id

    async def run(self, channel: aio.Channel, machines: list[str]) -> None:
        client = stub(channel)
        tasks = [asyncio.create_task(self.drive(client, machine)) for machine in machines]
        for result in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(result, AssertionError):
                raise result
            assert isinstance(result, aio.AioRpcError), result
            assert result.code() is grpc.StatusCode.UNAVAILABLE, result


async def killed_once(folder: Path, load: Load, machines: list[str], calls: int) -> None:
    # A kill interrupts every bootstrap under way, and those machines stay Failed for the quarantine: after a
    # few kills there would be nothing left to drive.
    flags = ("--seed-count", str(MACHINES), "--pause", "0.05", "--quarantine", "500ms")
    with ToyProcess(folder, *flags) as provider:
        provider.wait_open()
        async with provider.channel() as channel:
            load.epoch += 1
            load.sequence = 0
            running = asyncio.create_task(load.run(channel, machines))
            enough = load.acks + calls
            async with asyncio.timeout(60):
                while load.acks < enough or await in_flight(channel) < IN_FLIGHT:
                    assert not running.done(), running.result()
                    await asyncio.sleep(0.001)
            provider.kill()
            await running


async def in_flight(channel: aio.Channel) -> int:
    listed = await stub(channel).List(pb.ListFilter())
    return sum(S(machine.state) in TRANSITIONAL for machine in listed.machines)


async def settled(client: Any) -> dict[str, Any]:
    async with asyncio.timeout(30):
        while True:
            listed = await client.List(pb.ListFilter())
            machines = {machine.id: machine for machine in listed.machines}
            if not TRANSITIONAL & {S(machine.state) for machine in machines.values()}:
                return machines
            await asyncio.sleep(0.02)


@rule(
    "provider.P-120", "provider.P-121", "provider.P-122", "provider.P-123", "provider.P-127", "provider.P-29"
)
@pytest.mark.timeout(3_600)
async def test_a_killed_provider_loses_nothing_and_doubles_nothing(tmp_path: Path, full_size: bool) -> None:
    hosts = tmp_path / "hosts"
    seeds = range(200 if full_size else 4)
    load = Load(0)
    with ToyProcess(tmp_path, "--seed-count", str(MACHINES)) as provider:
        provider.wait_open()
        async with provider.channel() as channel:
            # The first List after the first accepted connection is complete (P-127).
            machines = [machine.id for machine in (await stub(channel).List(pb.ListFilter())).machines]
    assert len(machines) == MACHINES
    for seed in seeds:
        print(f"seed {seed}")
        load.random.seed(seed)
        await killed_once(tmp_path, load, machines, load.random.randrange(20, 200))
        with ToyProcess(tmp_path, "--seed-count", str(MACHINES), "--quarantine", "100ms") as provider:
            provider.wait_open()
            async with provider.channel() as channel:
                client = stub(channel)
                first = await client.List(pb.ListFilter())
                assert {machine.id for machine in first.machines} == set(machines)
                for machine in first.machines:
                    assert S(machine.state) is not S.CONFIGURING or machine.cluster
                for machine_id, token in load.acked.items():
                    with pytest.raises(aio.AioRpcError) as stale:
                        await client.Drain(
                            pb.DrainRequest(
                                machine_id=machine_id,
                                shard_id="s",
                                shard_epoch=token[0],
                                sequence_number=token[1],
                            )
                        )
                    assert stale.value.code() is grpc.StatusCode.FAILED_PRECONDITION
                records = await settled(client)
                by_machine: dict[str, list[str]] = {}
                for path in hosts.iterdir():
                    by_machine.setdefault(path.name.partition("@")[0], []).append(path.name)
                for machine_id, record in records.items():
                    found = by_machine.get(machine_id, [])
                    assert len(found) <= 1, f"seed {seed}: {machine_id} has hosts {found}"
                    if S(record.state) in (S.IDLE, S.CONFIGURED):
                        assert found == [record.host.ref], f"seed {seed}: {record}"
                    if S(record.state) is S.SPECULATIVE:
                        assert not found, f"seed {seed}: the host of {machine_id} is forgotten"
                    if S(record.state) is S.CONFIGURED:
                        cluster, metadata = load.bound[machine_id]
                        assert (record.cluster, dict(record.shard_metadata)) == (cluster, metadata)
