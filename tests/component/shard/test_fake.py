"""The fake provider inside a shard's process, as the seed flags describe it."""

import asyncio
from collections import Counter
from contextlib import AsyncExitStack
from dataclasses import replace
from io import BytesIO
from pathlib import Path

import pytest

from bigfleet.cli import fake
from bigfleet.cli.fake import fake_provider
from bigfleet.cli.shard import Seeds, read
from bigfleet.shard.provider.endpoints import Endpoint
from bigfleet.shard.shell.process import ShardProcess
from bigfleet_base.api.v1alpha1 import provider_pb2 as pb
from bigfleet_base.api.v1alpha1 import provider_pb2_grpc
from bigfleet_base.model import MachineState
from bigfleet_base.telemetry import Logs
from bigfleet_base.wire import dial
from tests.component.shard.world import Operator, need
from tests.support.eventually import eventually
from tests.support.rules import rule


def seeds(*flags: str) -> Seeds:
    found = read(flags, {}).seeds
    assert found is not None
    return found


async def listed(address: str) -> list[pb.Machine]:
    async with dial(address, None) as channel:
        stub: provider_pb2_grpc.CapacityProviderAsyncStub = provider_pb2_grpc.CapacityProviderStub(channel)
        return list((await stub.List(pb.ListFilter(), timeout=20)).machines)


def by_state(machines: list[pb.Machine]) -> Counter[str]:
    names = pb.MachineState.Name
    return Counter(
        f"{names(m.state).removeprefix('MACHINE_STATE_')}"
        f" {pb.CapacityType.Name(m.capacity_type).removeprefix('CAPACITY_TYPE_')}"
        for m in machines
    )


async def test_each_tier_is_seeded_and_nothing_else() -> None:
    flags = (
        *("--seed-machines", "5", "--seed-speculative", "7", "--seed-spot", "4", "--id", "shard-1"),
        *("--seed-configured-per-cluster", "2", "--seed-cluster-total", "4", "--seed-cluster-stride", "2"),
        *("--seed-density-multiplier", "3"),
    )
    async with fake_provider(seeds(*flags), Logs(BytesIO()), {}) as address:
        machines = await listed(address)
    assert by_state(machines) == {
        "IDLE BARE_METAL": 5,
        "CONFIGURED BARE_METAL": 4,
        "SPECULATIVE ON_DEMAND": 7,
        "SPECULATIVE SPOT": 4,
    }
    bound = Counter(machine.cluster for machine in machines if machine.cluster)
    assert bound == {"kwok-cluster-1": 2, "kwok-cluster-3": 2}
    prices = {pb.CapacityType.Name(m.capacity_type): m.price_per_hour for m in machines}
    assert prices["CAPACITY_TYPE_SPOT"] < prices["CAPACITY_TYPE_ON_DEMAND"]
    assert machines[0].allocatable.resources["cpu"] == "6" and machines[0].resources.resources["cpu"] == "2"


async def test_slots_vanish_when_they_are_told_to_and_machines_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fake, "_RECONCILE_NS", 10**8)
    flags = ("--seed-machines", "3", "--seed-speculative", "30", "--speculative-shed-multiplier", "0.5")
    shedding = replace(seeds(*flags), shed_at_s=0.01)
    async with fake_provider(shedding, Logs(BytesIO()), {}) as address, asyncio.timeout(20):
        while by_state(await listed(address))["SPECULATIVE ON_DEMAND"] != 15:  # noqa: ASYNC110  # it announces nothing
            await asyncio.sleep(0.05)
        assert by_state(await listed(address))["IDLE BARE_METAL"] == 3


async def test_configured_machines_break_at_the_rate_that_was_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fake, "_RECONCILE_NS", 10**8)
    monkeypatch.setattr(fake, "_TICK_S", 0.05)
    flags = (
        "--seed-configured-per-cluster",
        "5",
        "--seed-cluster-total",
        "1",
        "--failure-rate-per-sec",
        "50",
    )
    async with fake_provider(seeds(*flags), Logs(BytesIO()), {}) as address, asyncio.timeout(20):
        while by_state(await listed(address))["FAILED BARE_METAL"] < 5:  # noqa: ASYNC110  # it announces nothing
            await asyncio.sleep(0.05)


async def test_a_rate_that_breaks_every_machine_at_once_leaves_time_to_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fake, "_RECONCILE_NS", 10**8)
    monkeypatch.setattr(fake, "_TICK_S", 0.05)
    flags = ("--seed-configured-per-cluster", "5", "--seed-cluster-total", "1")
    busy = seeds(*flags, "--failure-rate-per-sec", "1e300")
    async with fake_provider(busy, Logs(BytesIO()), {}) as address, asyncio.timeout(20):
        while by_state(await listed(address))["FAILED BARE_METAL"] < 5:  # noqa: ASYNC110  # it announces nothing
            await asyncio.sleep(0.05)


async def test_a_latency_that_cannot_be_read_is_a_warning() -> None:
    log = BytesIO()
    async with fake_provider(seeds("--seed-speculative", "1"), Logs(log), {fake.LATENCY_VARIABLE: "soon"}):
        pass
    assert b"BIGFLEET_FAKE_CREATE_LATENCY is not used" in log.getvalue()


@rule("shard.B6")
async def test_with_local_bootstrap_machines_are_configured_without_a_session(tmp_path: Path) -> None:
    command = read(
        (
            *("--local-bootstrap", "--seed-machines", "3", "--listen", "127.0.0.1:0", "--metrics-addr", "0"),
            *("--data-dir", str(tmp_path / "data"), "--cycle-interval", "500ms"),
        ),
        {},
    )
    assert command.seeds is not None
    logs = Logs(BytesIO())
    async with fake_provider(command.seeds, logs, {}) as address:
        options = replace(command.shard, providers=(Endpoint("default", address),), plain_providers=True)
        shard = ShardProcess(options, logs)
        try:
            await shard.start()
            operator = await Operator(shard.address, "c1").connect()
            await operator.roll_up(need(cpus=2))
            await eventually(lambda: bool(shard.core.engine.needs.snapshot()))
            await operator.close()
            await eventually(lambda: shard.core.engine.inventory.count(MachineState.CONFIGURED) == 1)
        finally:
            await shard.stop()


@rule("shard.P2")
async def test_transitions_under_way_do_not_hold_up_the_end(tmp_path: Path) -> None:
    command = read(
        (
            *("--local-bootstrap", "--seed-speculative", "3", "--listen", "127.0.0.1:0"),
            *("--metrics-addr", "0", "--data-dir", str(tmp_path / "data"), "--cycle-interval", "500ms"),
        ),
        {},
    )
    assert command.seeds is not None
    logs = Logs(BytesIO())
    async with AsyncExitStack() as stack:
        provider = fake_provider(command.seeds, logs, {fake.LATENCY_VARIABLE: "10m"})
        address = await stack.enter_async_context(provider)
        options = replace(command.shard, providers=(Endpoint("default", address),), plain_providers=True)
        shard = ShardProcess(options, logs)
        stack.push_async_callback(shard.stop)
        await shard.start()
        operator = await Operator(shard.address, "c1").connect()
        await operator.roll_up(need(cpus=2))
        await eventually(lambda: shard.core.engine.inventory.count(MachineState.CREATING) > 0)
        await operator.close()
        async with asyncio.timeout(10):
            await stack.aclose()
