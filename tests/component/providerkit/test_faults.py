"""Fault hooks: each fault comes on request, and never without ``--fault-hooks`` (conformance.md §3.2)."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from bigfleet_base.api.ext.v1alpha1 import providerinfo_pb2 as info_pb
from bigfleet_base.api.ext.v1alpha1 import providerinfo_pb2_grpc as info_grpc
from bigfleet_base.api.v1alpha1 import provider_pb2 as pb
from bigfleet_base.model import MachineState
from bigfleet_base.wire import dial
from bigfleet_providerkit import Backend, Host, HostStatus, MachineView, Offering, Operation
from bigfleet_providerkit.backend import Interruption
from bigfleet_providerkit.faults import CREATE_LABEL, with_fault_hooks
from bigfleet_providerkit.offerings import seed_offerings
from bigfleet_providerkit.process import Serving, serve_in_process
from bigfleet_providerkit.records import Kind
from bigfleet_providerkit.settings import Settings
from tests.component.providerkit.processes import ToyProcess, stub
from tests.support.eventually import eventually
from tests.support.rules import rule

S = MachineState
TIMEOUT_S = 0.5
SELECTORS = (
    *("fault-error", "fault-timeout", "fault-slow-ok", "fault-drain-error", "fault-readiness-block"),
    *("fault-host-loss", "fault-ready-after-1s", "fault-drain-after-9s", "fault-interruption"),
)


class Plain(Backend):
    """The least a backend can be: nobody can ask it whether a node is ready or a host there."""

    readiness = "actuator-blocks"

    def __init__(self) -> None:
        self.standard_offerings = seed_offerings(len(SELECTORS))
        self.hosts: set[str] = set()
        self.described = 0

    async def offerings(self) -> Sequence[Offering]:
        self.described += 1
        return self.standard_offerings

    async def create(self, op: Operation) -> Host:
        self.hosts.add(op.machine.id)
        return Host(f"host-{op.machine.id}")

    async def configure(self, op: Operation) -> None:
        """Done."""

    async def drain(self, op: Operation) -> None:
        """Done."""

    async def delete(self, op: Operation) -> None:
        self.hosts.discard(op.machine.id)


class Probed(Plain):
    """A backend with everything, some of it plain and so run in threads."""

    readiness = "probe"  # type: ignore[assignment]  # the base class of this test says otherwise

    async def node_ready(self, op: Operation) -> bool:
        return True

    def inspect(self, machine: MachineView) -> HostStatus:  # type: ignore[override]  # plain is allowed
        return HostStatus.RUNNING if machine.id in self.hosts else HostStatus.GONE

    def drain(self, op: Operation) -> None:  # type: ignore[override]  # as above
        """Done."""


@pytest.fixture(params=[Plain, Probed])
def backend(request: pytest.FixtureRequest) -> Plain:
    made: Plain = request.param()
    return made


@asynccontextmanager
async def serving(backend: Backend, *, hooks: bool = True) -> AsyncIterator[Any]:
    timeout = round(TIMEOUT_S * 1e9)
    settings = Settings(
        provider="test",
        timeouts=dict.fromkeys(Kind, timeout),
        reconcile_interval=100_000_000,
        quarantine=200_000_000,
        fault_hooks=hooks,
    )
    given = with_fault_hooks(backend) if hooks else backend
    async with (
        serve_in_process(given, settings, Serving(shutdown_window=0.1)) as provider,
        dial(provider.address, None) as channel,
    ):
        yield stub(channel)


async def slot(client: Any, fault: str = "") -> str:
    """A free slot, with the label if one is named."""
    listed = await client.List(pb.ListFilter(states=[pb.MACHINE_STATE_SPECULATIVE]))
    found: str = next(m.id for m in listed.machines if m.labels.get(CREATE_LABEL, "") == fault)
    return found


async def until(client: Any, machine: str, holds: Callable[[pb.Machine], bool]) -> pb.Machine:
    async with asyncio.timeout(20):
        while True:
            record: pb.Machine = await client.Get(pb.MachineRef(id=machine))
            if holds(record):
                return record
            await asyncio.sleep(0.01)


async def settled(client: Any, machine: str) -> pb.Machine:
    moving = (S.CREATING, S.CONFIGURING, S.DRAINING, S.DELETING)
    return await until(client, machine, lambda record: S(record.state) not in moving)


async def configured(client: Any, cluster: str) -> pb.Machine:
    """What becomes of a machine that is configured for the cluster."""
    machine = await slot(client)
    await client.Create(pb.CreateRequest(machine_id=machine))
    assert S((await settled(client, machine)).state) is S.IDLE
    await client.Configure(pb.ConfigureRequest(machine_id=machine, cluster_id=cluster))
    return await settled(client, machine)


@rule("provider.P-80", "conformance.X701")
@pytest.mark.parametrize(
    ("cluster", "said"),
    [
        ("fault-error", "configure:substrate: fault requested"),
        ("fault-timeout", "configure:timeout:"),
        ("fault-slow-ok", "configure:timeout:"),
        ("fault-readiness-block", "configure:readiness:"),
    ],
)
async def test_a_configure_fails_as_its_cluster_id_asks(backend: Plain, cluster: str, said: str) -> None:
    async with serving(backend) as client:
        record = await configured(client, cluster)
        assert S(record.state) is S.FAILED and record.last_error.startswith(said), record.last_error


@rule("provider.P-52", "conformance.X701")
async def test_the_late_success_of_a_slow_configure_is_not_taken(backend: Plain) -> None:
    async with serving(backend) as client:
        failed = await configured(client, "fault-slow-ok")
        end = time.monotonic() + TIMEOUT_S + 1
        # As long as the call is out, and then some.
        while time.monotonic() < end:
            record = await client.Get(pb.MachineRef(id=failed.id))
            assert S(record.state) is not S.CONFIGURED
            await asyncio.sleep(0.02)


@rule("provider.P-82", "conformance.X701")
async def test_a_drain_fails_as_its_cluster_id_asked(backend: Plain) -> None:
    async with serving(backend) as client:
        bound = await configured(client, "fault-drain-error")
        assert S(bound.state) is S.CONFIGURED
        await client.Drain(pb.DrainRequest(machine_id=bound.id))
        record = await settled(client, bound.id)
        assert S(record.state) is S.FAILED and record.last_error.startswith("drain:substrate:")


@rule("conformance.X702", "conformance.X701")
async def test_a_host_is_lost_after_its_machine_was_configured_and_the_slot_comes_back(
    backend: Plain,
) -> None:
    async with serving(backend) as client:
        bound = await configured(client, "fault-host-loss")
        lost = await until(client, bound.id, lambda record: S(record.state) is S.FAILED)
        assert lost.last_error.startswith("host:host-lost:") and lost.cluster == "fault-host-loss"
        assert bound.id not in backend.hosts, "the host is really gone"
        await until(client, bound.id, lambda record: S(record.state) is S.SPECULATIVE)


@rule("conformance.X701")
async def test_a_node_is_ready_when_its_cluster_id_says(backend: Plain) -> None:
    async with serving(backend) as client:
        assert S((await configured(client, "fault-ready-after-0s")).state) is S.CONFIGURED
        late = await configured(client, "fault-ready-after-9s")
        assert S(late.state) is S.FAILED and late.last_error.startswith("configure:readiness:")


@rule("provider.P-85", "conformance.X704")
async def test_a_drain_takes_as_long_as_its_cluster_id_says(backend: Plain) -> None:
    async with serving(backend) as client:
        patient, hasty = [await configured(client, "fault-drain-after-1s") for _ in range(2)]
        await client.Drain(pb.DrainRequest(machine_id=patient.id, grace_period_seconds=5))
        await client.Drain(pb.DrainRequest(machine_id=hasty.id))
        record = await settled(client, hasty.id)
        assert S(record.state) is S.FAILED and record.last_error.startswith("drain:timeout:")
        assert S((await settled(client, patient.id)).state) is S.IDLE


class Hinting(Plain):
    """Has notices of its own, and its feed breaks down now and then."""

    async def interruptions(self) -> AsyncIterator[Interruption]:
        for machine in list(self.hosts):
            yield Interruption(machine, imminent=False)
        raise OSError("the feed broke down")


@rule("provider.P-96", "conformance.X804")
@pytest.mark.parametrize("made", [Plain, Probed, Hinting])
async def test_notice_is_given_when_a_cluster_id_asks_for_it(made: type[Plain]) -> None:
    async with serving(made()) as client:
        other = await configured(client, "c1")
        bound = await configured(client, "fault-interruption")
        noticed = await until(client, bound.id, lambda record: record.interruption_probability > 0.9)
        assert S(noticed.state) is S.CONFIGURED
        if made is Hinting:
            await until(client, other.id, lambda record: record.interruption_probability == 0.5)


@rule("provider.P-86", "conformance.X705")
async def test_the_blob_that_a_failing_configure_repeats_is_not_passed_on(backend: Plain) -> None:
    async with serving(backend) as client:
        machine = await slot(client)
        await client.Create(pb.CreateRequest(machine_id=machine))
        await settled(client, machine)
        blob = b"join with 0123456789"
        await client.Configure(
            pb.ConfigureRequest(machine_id=machine, cluster_id="fault-error", bootstrap_blob=blob)
        )
        said = (await settled(client, machine)).last_error
        assert "the blob was" in said and "0123456789" not in said


@rule("provider.P-80", "provider.P-81", "conformance.X701")
@pytest.mark.parametrize(
    ("fault", "said"), [("error", "create:substrate: fault requested"), ("hang", "create:timeout:")]
)
async def test_a_create_fails_as_the_label_of_its_slot_says(backend: Plain, fault: str, said: str) -> None:
    async with serving(backend) as client:
        machine = await slot(client, fault)
        await client.Create(pb.CreateRequest(machine_id=machine))
        record = await settled(client, machine)
        assert S(record.state) is S.FAILED and record.last_error.startswith(said)


async def test_without_the_hooks_no_cluster_id_means_anything(backend: Plain) -> None:
    async with serving(backend, hooks=False) as client:
        bound = [await configured(client, cluster) for cluster in SELECTORS]
        assert {S(record.state) for record in bound} == {S.CONFIGURED}
        looks = backend.described
        await eventually(lambda: backend.described >= looks + 3)
        for record in bound:
            assert S((await client.Get(pb.MachineRef(id=record.id))).state) is S.CONFIGURED
            await client.Drain(pb.DrainRequest(machine_id=record.id))
            assert S((await settled(client, record.id)).state) is S.IDLE


@pytest.mark.parametrize("hooks", [True, False])
async def test_the_flag_adds_the_slots_shortens_the_timeouts_and_is_told_to_whoever_asks(
    tmp_path: Path, hooks: bool
) -> None:
    options = ["--seed-count", "4", *(["--fault-hooks", "--timeout-drain", "7s"] if hooks else [])]
    with ToyProcess(tmp_path, *options) as provider:
        provider.wait_open()
        async with provider.channel() as channel:
            described = await info_grpc.ProviderInfoStub(channel).Describe(info_pb.DescribeRequest())
            listed = await stub(channel).List(pb.ListFilter())
    labels = sorted(m.labels[CREATE_LABEL] for m in listed.machines if CREATE_LABEL in m.labels)
    assert described.fault_hooks is hooks
    assert labels == (["error"] * 6 + ["hang"] * 2 if hooks else [])
    assert len(listed.machines) == 4 + len(labels)
    short = {"create": 2, "configure": 2, "drain": 7, "delete": 2}
    usual = {"create": 300, "configure": 300, "drain": 600, "delete": 300}
    assert dict(described.timeout_seconds) == (short if hooks else usual)
