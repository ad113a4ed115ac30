"""The fake behind gRPC, with the clock of the world."""

import asyncio
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import grpc
import pytest
from grpc import aio

from bigfleet_base.api.v1alpha1 import provider_pb2 as pb
from bigfleet_base.api.v1alpha1 import provider_pb2_grpc as rpc
from bigfleet_base.model import MachineState
from bigfleet_providerkit.fake import FakeBackend, Knobs
from bigfleet_providerkit.fake.__main__ import main
from bigfleet_providerkit.fake.knobs import read_knobs
from bigfleet_providerkit.fake.server import serve_fake
from bigfleet_providerkit.offerings import check_offerings, seed_offerings
from bigfleet_providerkit.records import Kind
from bigfleet_providerkit.settings import DEFAULT_TIMEOUTS, Settings
from tests.support.eventually import eventually
from tests.support.rules import rule
from tests.unit.providerkit.fake.world import World

OFFERINGS = seed_offerings(12)
IDS = [offer.machine_id(i) for offer in check_offerings(OFFERINGS).values() for i in range(offer.count)]
SECOND = 1_000_000_000


@asynccontextmanager
async def served(
    knobs: Knobs | None = None, **settings: object
) -> AsyncIterator[tuple[FakeBackend, "rpc.CapacityProviderAsyncStub"]]:
    backend = FakeBackend(knobs, OFFERINGS)
    given = replace(Settings(provider="fake"), **settings)  # type: ignore[arg-type]  # a test's shorthand
    async with serve_fake(backend, given) as server, aio.insecure_channel(server.address) as channel:
        yield backend, rpc.CapacityProviderStub(channel)


async def until(stub: "rpc.CapacityProviderAsyncStub", machine_id: str, state: MachineState) -> pb.Machine:
    """The machine, once it is in the state."""
    return await when(stub, machine_id, lambda machine: MachineState(machine.state) is state)


async def when(
    stub: "rpc.CapacityProviderAsyncStub", machine_id: str, holds: Callable[[pb.Machine], bool]
) -> pb.Machine:
    """The machine, once this holds of it."""
    async with asyncio.timeout(20):
        while True:
            machine: pb.Machine = await stub.Get(pb.MachineRef(id=machine_id))
            if holds(machine):
                return machine
            await asyncio.sleep(0.005)


async def listed(stub: "rpc.CapacityProviderAsyncStub") -> dict[str, MachineState]:
    answer = await stub.List(pb.ListFilter())
    return {machine.id: MachineState(machine.state) for machine in answer.machines}


@rule("provider.P-12")
async def test_it_is_asynchronous_and_walks_through_every_state() -> None:
    async with served() as (_, stub):
        ack = await stub.Create(pb.CreateRequest(machine_id=IDS[0]))
        assert MachineState(ack.machine.state) is MachineState.CREATING
        await until(stub, IDS[0], MachineState.IDLE)
        await stub.Configure(
            pb.ConfigureRequest(machine_id=IDS[0], cluster_id="c1", shard_metadata={"k": "v"})
        )
        machine = await until(stub, IDS[0], MachineState.CONFIGURED)
        assert (machine.cluster, dict(machine.shard_metadata)) == ("c1", {"k": "v"})
        await stub.Drain(pb.DrainRequest(machine_id=IDS[0]))
        await until(stub, IDS[0], MachineState.IDLE)
        await stub.Delete(pb.DeleteRequest(machine_id=IDS[0]))
        await until(stub, IDS[0], MachineState.SPECULATIVE)


async def test_a_staged_transition_waits_for_its_completion() -> None:
    async with served(read_knobs(["stage.create=true"])) as (backend, stub):
        await stub.Create(pb.CreateRequest(machine_id=IDS[0]))
        await eventually(lambda: backend.substrate.staged() == [IDS[0]])
        assert (await listed(stub))[IDS[0]] is MachineState.CREATING
        backend.substrate.complete(IDS[0], time.monotonic_ns())
        await until(stub, IDS[0], MachineState.IDLE)


async def test_a_broken_machine_fails_at_once() -> None:
    async with served(read_knobs(["latency.create=1h"])) as (backend, stub):
        await stub.Create(pb.CreateRequest(machine_id=IDS[0]))
        await eventually(lambda: bool(backend.substrate.hosts))
        backend.substrate.fail_machine(IDS[0], time.monotonic_ns())
        await until(stub, IDS[0], MachineState.FAILED)


@rule("provider.P-52", "provider.P-81")
async def test_a_hung_call_times_out_and_its_late_success_changes_nothing() -> None:
    timeouts = {**DEFAULT_TIMEOUTS, Kind.CONFIGURE: SECOND // 5}
    knobs = read_knobs(["hang.configure.rate=1", "late_success=100ms"])
    async with served(knobs, timeouts=timeouts) as (backend, stub):
        await stub.Create(pb.CreateRequest(machine_id=IDS[0]))
        await until(stub, IDS[0], MachineState.IDLE)
        await stub.Configure(pb.ConfigureRequest(machine_id=IDS[0], cluster_id="c1"))
        failed = await until(stub, IDS[0], MachineState.FAILED)
        [host] = backend.substrate.hosts_of(IDS[0])
        await eventually(lambda: host.bootstrapped_at is not None)
        assert await stub.Get(pb.MachineRef(id=IDS[0])) == failed


async def test_prices_walk_and_reclaimed_spot_machines_are_announced() -> None:
    knobs = read_knobs(["price.walk=0.5", "price.interval=50ms", "spot.hazard=1e6", "spot.notice=1h"])
    async with served(knobs) as (_, stub):
        first = {m.id: m for m in (await stub.List(pb.ListFilter())).machines}
        spot = next(m.id for m in first.values() if m.interruption_probability)
        await stub.Create(pb.CreateRequest(machine_id=spot))
        await when(stub, spot, lambda machine: machine.interruption_probability == 0.99)
        await when(stub, IDS[0], lambda machine: machine.price_per_hour != first[IDS[0]].price_per_hour)


async def test_a_slow_boundary_delays_every_answer() -> None:
    async with served(read_knobs(["rpc.latency=150ms"])) as (_, stub):
        started = time.monotonic()
        await stub.Create(pb.CreateRequest(machine_id=IDS[0]))
        assert time.monotonic() - started >= 0.15


@rule("provider.P-40")
async def test_calls_are_lost_before_or_after_they_took_effect() -> None:
    async with served(read_knobs(["rpc.error_rate=0.5", "latency.create=0s"])) as (backend, stub):
        lost = []
        for machine_id in IDS:
            try:
                await stub.Create(pb.CreateRequest(machine_id=machine_id))
            except aio.AioRpcError as error:
                lost.append((machine_id, error.code()))
        assert 0 < len(lost) < len(IDS)
        assert {code for _, code in lost} == {grpc.StatusCode.UNAVAILABLE}
        accepted = {machine_id for machine_id, _ in lost if backend.substrate.hosts_of(machine_id)}
        assert 0 < len(accepted) < len(lost)


async def test_a_stale_list_shows_what_was() -> None:
    async with served(read_knobs(["list.stale=2s"])) as (_, stub):
        await stub.Create(pb.CreateRequest(machine_id=IDS[0]))
        await until(stub, IDS[0], MachineState.IDLE)
        assert (await listed(stub))[IDS[0]] is MachineState.SPECULATIVE
        async with asyncio.timeout(20):
            while True:
                if (await listed(stub))[IDS[0]] is MachineState.IDLE:
                    break
                await asyncio.sleep(0.02)


async def test_the_same_seed_gives_a_machine_the_same_fate_over_grpc_as_under_virtual_time() -> None:
    knobs = read_knobs(["failure.create.rate=0.5", "seed=3"])
    world = World(knobs, *OFFERINGS)
    expected = {machine_id: world.settled("create", machine_id) for machine_id in IDS}
    assert len(set(expected.values())) == 2
    async with served(knobs) as (_, stub):
        await asyncio.gather(*(stub.Create(pb.CreateRequest(machine_id=i)) for i in reversed(IDS)))
        for machine_id, state in expected.items():
            await until(stub, machine_id, state)


# ---- the command line


@asynccontextmanager
async def process(
    folder: Path, *options: str
) -> "AsyncIterator[tuple[subprocess.Popen[bytes], rpc.CapacityProviderAsyncStub]]":
    """The command, running with a store."""
    address = f"unix:{folder}/socket"
    command = [sys.executable, "-m", "bigfleet_providerkit.fake", "--addr", address, "--metrics-addr", "0"]
    running = start(
        [*command, "--seed-count", "8", "--state", f"{folder}/state.db", *options], folder / "log"
    )
    try:
        async with aio.insecure_channel(address) as channel:
            yield running, rpc.CapacityProviderStub(channel)
    finally:
        running.kill()
        running.wait()


async def test_the_command_runs_with_knobs_and_ready_made_machines(tmp_path: Path) -> None:
    (tmp_path / "preseed.json").write_text(
        '[{"offering": "standard-4/zone-a/on_demand", "bound": [{"cluster": "c1", "metadata": {"k": "v"}}]}]'
    )
    options = (
        "--knob",
        "latency.create=1h",
        "--knob=stage.drain=true",
        "--preseed",
        f"{tmp_path}/preseed.json",
    )
    async with process(tmp_path, *options) as (running, stub):
        answer = await stub.List(pb.ListFilter(), wait_for_ready=True, timeout=30)
        assert len(answer.machines) == 8
        [bound] = [m for m in answer.machines if MachineState(m.state) is MachineState.CONFIGURED]
        assert (bound.cluster, dict(bound.shard_metadata)) == ("c1", {"k": "v"})
        running.terminate()
        assert await asyncio.to_thread(running.wait, 30) == 0


@rule("provider.P-120")
async def test_machines_outlive_the_process_although_they_are_fake(tmp_path: Path) -> None:
    options = ("--reconcile-interval", "50ms")
    async with process(tmp_path, *options) as (running, stub):
        [first, *_] = (await stub.List(pb.ListFilter(), wait_for_ready=True, timeout=30)).machines
        await stub.Create(pb.CreateRequest(machine_id=first.id))
        await until(stub, first.id, MachineState.IDLE)
        await stub.Configure(pb.ConfigureRequest(machine_id=first.id, cluster_id="c1"))
        before = await until(stub, first.id, MachineState.CONFIGURED)
        running.kill()
    (tmp_path / "socket").unlink()
    async with process(tmp_path, *options) as (_, stub):
        answer = await stub.List(pb.ListFilter(), wait_for_ready=True, timeout=30)
        assert before in answer.machines
        await stub.Drain(pb.DrainRequest(machine_id=first.id))
        await until(stub, first.id, MachineState.IDLE)
        await stub.Delete(pb.DeleteRequest(machine_id=first.id))
        await until(stub, first.id, MachineState.SPECULATIVE)


def start(command: list[str], log: Path) -> subprocess.Popen[bytes]:
    with log.open("wb") as output:
        return subprocess.Popen(command, stdout=output, stderr=output)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (["--knob", "latency.create=soon"], "--knob latency.create=soon: 'soon' is not a duration"),
        (["--preseed", "/nowhere/file"], "cannot read /nowhere/file (--preseed)"),
        (["--offerings", "/nowhere/file"], "cannot read the offerings"),
    ],
)
def test_a_mistake_on_the_command_line_is_explained(
    options: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(options) == 1
    assert complaint in capsys.readouterr().err
