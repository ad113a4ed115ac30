"""A provider over real sockets: codes, identities, health, shutdown, and the limits of patience."""

import asyncio
import datetime
import io
import json
import socket
import sqlite3
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc import aio
from grpc_health.v1 import health_pb2, health_pb2_grpc

from bigfleet_base.api.ext.v1alpha1 import providerinfo_pb2 as info_pb
from bigfleet_base.api.ext.v1alpha1 import providerinfo_pb2_grpc as info_grpc
from bigfleet_base.api.v1alpha1 import provider_pb2 as pb
from bigfleet_base.model import MachineState
from bigfleet_base.telemetry import Logs
from bigfleet_base.wire import TlsCredentials, TransportError, dial
from bigfleet_providerkit import Backend, Host, HostStatus, MachineView, Offering, Operation
from bigfleet_providerkit.offerings import seed_offerings
from bigfleet_providerkit.process import Provider, Serving, StartError, serve_in_process
from bigfleet_providerkit.records import Kind
from bigfleet_providerkit.settings import METHODS, Settings
from tests.component.providerkit.processes import stub
from tests.support.ca import CertificateAuthority
from tests.support.eventually import eventually
from tests.support.rules import rule

S = MachineState
Code = grpc.StatusCode


class Gate(Backend):
    """Every call waits until its gate is open."""

    readiness = "actuator-blocks"

    def __init__(self, count: int = 8) -> None:
        self.open = asyncio.Event()
        self.calls = 0
        self.standard_offerings = seed_offerings(count)

    async def create(self, op: Operation) -> Host:
        return Host(f"host-{op.machine.id}")

    async def configure(self, op: Operation) -> None:
        self.calls += 1
        await self.open.wait()

    async def drain(self, op: Operation) -> None:
        await self.open.wait()

    async def delete(self, op: Operation) -> None:
        await self.open.wait()


@asynccontextmanager
async def serving(backend: Backend, **options: Any) -> AsyncIterator[tuple[Provider, Any]]:
    settings = options.pop("settings", Settings(provider="test"))
    async with (
        serve_in_process(backend, settings, Serving(**{"shutdown_window": 0.2, **options})) as provider,
        dial(provider.address, None) as channel,
    ):
        yield provider, stub(channel)


async def refused(call: Any) -> grpc.StatusCode:
    with pytest.raises(aio.AioRpcError) as caught:
        await call
    code: grpc.StatusCode = caught.value.code()
    return code


async def idle(client: Any, count: int = 1) -> list[str]:
    listed = await client.List(pb.ListFilter(states=[pb.MACHINE_STATE_SPECULATIVE]))
    machines = [machine.id for machine in listed.machines[:count]]
    await asyncio.gather(*(client.Create(pb.CreateRequest(machine_id=machine)) for machine in machines))
    await eventually_async(lambda: _count(client, pb.MACHINE_STATE_IDLE, count))
    return machines


async def _count(client: Any, state: "pb.MachineState.ValueType", count: int) -> bool:
    return len((await client.List(pb.ListFilter(states=[state]))).machines) == count


@rule("provider.P-27")
async def test_each_mistake_has_its_code() -> None:
    async with serving(Gate()) as (_, client):
        [machine] = await idle(client)
        configure = pb.ConfigureRequest(machine_id=machine, cluster_id="c")
        assert (await client.Configure(configure)).machine.state == pb.MACHINE_STATE_CONFIGURING
        other = pb.ConfigureRequest(machine_id=machine, cluster_id="d")
        unknown_state = pb.ListFilter(states=[99])  # type: ignore[list-item]  # not in the enum
        expected = [
            (client.Get(pb.MachineRef()), Code.INVALID_ARGUMENT),
            (client.Get(pb.MachineRef(id="ghost")), Code.NOT_FOUND),
            (client.List(unknown_state), Code.INVALID_ARGUMENT),
            (client.List(pb.ListFilter(states=[pb.MACHINE_STATE_UNSPECIFIED])), Code.INVALID_ARGUMENT),
            (client.Configure(other), Code.ALREADY_EXISTS),
            (client.Drain(pb.DrainRequest(machine_id=machine)), Code.ABORTED),
            (client.Drain(pb.DrainRequest(machine_id="ghost")), Code.NOT_FOUND),
            (
                client.Drain(pb.DrainRequest(machine_id=machine, grace_period_seconds=-1)),
                Code.INVALID_ARGUMENT,
            ),
            (client.Create(pb.CreateRequest(machine_id=machine, shard_id="a/b")), Code.INVALID_ARGUMENT),
        ]
        for call, code in expected:
            assert await refused(call) is code


@rule("provider.P-103")
async def test_metadata_of_ten_megabytes_is_refused_and_the_machine_stays_idle() -> None:
    async with serving(Gate()) as (_, client):
        [machine] = await idle(client)
        huge = pb.ConfigureRequest(machine_id=machine, cluster_id="c", shard_metadata={"k": "x" * (10 << 20)})
        assert await refused(client.Configure(huge)) is Code.INVALID_ARGUMENT
        beyond = pb.ConfigureRequest(machine_id=machine, cluster_id="c", bootstrap_blob=b"x" * (17 << 20))
        assert await refused(client.Configure(beyond)) is Code.RESOURCE_EXHAUSTED
        assert (await client.Get(pb.MachineRef(id=machine))).state == pb.MACHINE_STATE_IDLE


@rule("provider.P-12", "provider.P-72")
async def test_five_hundred_configures_are_held_while_reads_go_on(tmp_path: Path) -> None:
    backend = Gate(500)
    async with serving(backend, state=tmp_path / "p.db") as (_, client):
        machines = await idle(client, 500)
        calls = [
            client.Configure(pb.ConfigureRequest(machine_id=machine, cluster_id="c")) for machine in machines
        ]
        acks = await asyncio.gather(*calls)
        assert {ack.machine.state for ack in acks} == {pb.MACHINE_STATE_CONFIGURING}
        await eventually(lambda: backend.calls == 32)
        listed = await client.List(pb.ListFilter(states=[pb.MACHINE_STATE_CONFIGURING]))
        assert len(listed.machines) == 500
        assert (await client.Get(pb.MachineRef(id=machines[0]))).cluster == "c"
        backend.open.set()
        await eventually_async(lambda: _count(client, pb.MACHINE_STATE_CONFIGURED, 500))


@rule("provider.P-12", "provider.P-72", "provider.P-123")
async def test_reads_are_answered_while_five_hundred_calls_wait_for_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(Gate(500), state=tmp_path / "p.db") as (provider, client):
        machines = await idle(client, 500)
        disk = threading.Event()
        write = provider._store.write

        def slow_write(writes: Any) -> None:
            assert disk.wait(30)
            write(writes)

        monkeypatch.setattr(provider._store, "write", slow_write)
        calls = [
            client.Configure(pb.ConfigureRequest(machine_id=machine, cluster_id="c")) for machine in machines
        ]
        try:
            await eventually(lambda: len(provider._driver._waiting) == 500)
            listed = await client.List(pb.ListFilter(), timeout=2)
            assert {S(machine.state) for machine in listed.machines} == {S.IDLE}, "not durable, so not shown"
            assert not (await client.Get(pb.MachineRef(id=machines[0]), timeout=2)).cluster
            assert not any(call.done() for call in calls), "answered before the flush"
        finally:
            disk.set()
        acks = await asyncio.gather(*calls)
        assert {S(ack.machine.state) for ack in acks} == {S.CONFIGURING}


class Blocking(Gate):
    """A backend without async: each call holds a thread."""

    def create(self, op: Operation) -> Host:  # type: ignore[override]  # plain methods are allowed
        return Host("h")

    def drain(self, op: Operation) -> None:  # type: ignore[override]  # as above
        raise RuntimeError("boom")

    async def delete(self, op: Operation) -> None:
        raise SystemExit(3)


@rule("provider.P-80")
async def test_plain_methods_run_in_threads_and_may_raise() -> None:
    backend = Blocking()
    backend.open.set()
    async with serving(backend) as (provider, client):
        [machine] = await idle(client)
        await client.Configure(pb.ConfigureRequest(machine_id=machine, cluster_id="c"))
        await eventually(lambda: _state(provider, machine) is S.CONFIGURED)
        await client.Drain(pb.DrainRequest(machine_id=machine))
        await eventually(lambda: _state(provider, machine) is S.FAILED)
        assert (await client.Get(pb.MachineRef(id=machine))).last_error == "drain:substrate: boom"


@rule("provider.P-80")
async def test_a_backend_that_gives_up_on_the_process_fails_one_machine() -> None:
    async with serving(Blocking()) as (provider, client):
        [machine] = await idle(client)
        await client.Delete(pb.DeleteRequest(machine_id=machine))
        await eventually(lambda: _state(provider, machine) is S.FAILED)
        assert (await client.Get(pb.MachineRef(id=machine))).last_error == "delete:substrate: 3"


@rule("provider.P-81", "provider.P-52")
async def test_a_backend_that_hangs_is_cancelled_and_its_machine_failed() -> None:
    settings = Settings(provider="test", timeouts=dict.fromkeys(Kind, 200_000_000))
    async with serving(Gate(), settings=settings) as (provider, client):
        [machine] = await idle(client)
        await client.Configure(pb.ConfigureRequest(machine_id=machine, cluster_id="c"))
        await eventually(lambda: _state(provider, machine) is S.FAILED)
        assert "timeout" in (await client.Get(pb.MachineRef(id=machine))).last_error


class Stuck(Gate):
    """Without async, and without end: a thread that nobody can stop."""

    def __init__(self) -> None:
        super().__init__()
        self.stuck = threading.Event()

    def configure(self, op: Operation) -> None:  # type: ignore[override]  # plain methods are allowed
        if op.cluster_id == "stuck":
            self.stuck.wait(60)


@rule("provider.P-81", "provider.P-51")
async def test_a_thread_that_hangs_fails_its_machine_and_holds_up_no_other() -> None:
    settings = Settings(
        provider="test",
        timeouts=dict.fromkeys(Kind, 200_000_000),
        concurrency=dict.fromkeys(METHODS, 1),
    )
    backend = Stuck()
    try:
        async with serving(backend, settings=settings) as (provider, client):
            stuck, other = await idle(client, 2)
            await client.Configure(pb.ConfigureRequest(machine_id=stuck, cluster_id="stuck"))
            await eventually(lambda: _state(provider, stuck) is S.FAILED)
            assert "timeout" in (await client.Get(pb.MachineRef(id=stuck))).last_error
            await client.Configure(pb.ConfigureRequest(machine_id=other, cluster_id="c"))
            await eventually(lambda: _state(provider, other) is S.CONFIGURED)
    finally:
        backend.stuck.set()


class Forgetful(Gate):
    """Plain methods, one of which hangs whenever it looks at a host."""

    def __init__(self) -> None:
        super().__init__()
        self.looks = 0
        self.stuck = threading.Event()

    def inspect(self, machine: MachineView) -> HostStatus:  # type: ignore[override]  # plain methods are allowed
        self.looks += 1
        self.stuck.wait(60)
        return HostStatus.RUNNING


@rule("provider.P-51")
async def test_a_host_that_cannot_be_looked_at_costs_one_thread_however_long_that_lasts() -> None:
    backend = Forgetful()
    settings = Settings(provider="test", reconcile_interval=10_000_000, describe_timeout=10_000_000)
    try:
        async with serving(backend, settings=settings, metrics_address="127.0.0.1:0") as (provider, client):
            await idle(client)
            # The first is still there; those after it were given up before they began.
            await eventually_async(lambda: _given_up(provider.metrics_port, "inspect", 3))
            assert backend.looks == 1
    finally:
        backend.stuck.set()


async def _given_up(port: int, op: str, count: int) -> bool:
    _, page = await _http(port, "/metrics")
    line = f'bigfleet_provider_substrate_calls_total{{provider="test",op="{op}",outcome="CancelledError"}} '
    return float(page.partition(line)[2].partition("\n")[0] or 0) >= count


class Decorated(Gate):
    """A plain method in front of a coroutine, as decorators leave it behind."""

    def __init__(self) -> None:
        super().__init__()
        self.configured: list[str] = []

    def configure(self, op: Operation) -> Any:
        return self._configure(op)

    async def _configure(self, op: Operation) -> None:
        await self.open.wait()
        self.configured.append(op.machine.id)


@rule("provider.P-02")
async def test_a_plain_method_that_hands_on_a_coroutine_is_not_over_before_it() -> None:
    backend = Decorated()
    async with serving(backend) as (provider, client):
        [machine] = await idle(client)
        await client.Configure(pb.ConfigureRequest(machine_id=machine, cluster_id="c"))
        backend.open.set()
        await eventually(lambda: _state(provider, machine) is S.CONFIGURED)
        assert backend.configured == [machine]


class Nonsense(Gate):
    """Says what no backend may say."""

    readiness = "probe"  # type: ignore[assignment]  # the base class says otherwise

    async def create(self, op: Operation) -> Host:
        return {"ref": op.machine.id} if op.machine.zone == "zone-a" else Host("h")  # type: ignore[return-value]  # on purpose

    async def configure(self, op: Operation) -> None:
        """Done."""

    async def node_ready(self, op: Operation) -> bool:
        return "perhaps"  # type: ignore[return-value]  # on purpose

    async def inspect(self, machine: MachineView) -> HostStatus:
        return 7  # type: ignore[return-value]  # on purpose


@rule("provider.P-80")
async def test_a_backend_that_talks_nonsense_fails_the_machines_it_talks_about() -> None:
    settings = Settings(provider="test", reconcile_interval=50_000_000, quarantine=10_000_000)
    async with serving(Nonsense(), settings=settings) as (provider, client):
        listed = (await client.List(pb.ListFilter())).machines
        bad, good = (next(m.id for m in listed if m.zone == zone) for zone in ("zone-a", "zone-b"))
        for machine in (bad, good):
            await client.Create(pb.CreateRequest(machine_id=machine))
        await eventually(lambda: _state(provider, bad) is S.FAILED and _state(provider, good) is S.IDLE)
        assert "not a Host" in (await client.Get(pb.MachineRef(id=bad))).last_error
        await client.Configure(pb.ConfigureRequest(machine_id=good, cluster_id="c"))
        await eventually(lambda: _state(provider, good) is S.FAILED)
        assert "perhaps" in (await client.Get(pb.MachineRef(id=good))).last_error
        assert len((await client.List(pb.ListFilter())).machines) == len(listed)


def _state(provider: Provider, machine: str) -> MachineState:
    slot = provider.core.get(machine)
    assert slot is not None
    return slot.state


@rule("provider.P-123", "provider.P-34")
async def test_a_store_that_stops_taking_writes_is_seen_and_recovers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(Gate(), state=tmp_path / "p.db") as (provider, client):
        listed = await client.List(pb.ListFilter())
        machine = listed.machines[0].id
        monkeypatch.setattr(provider._store, "_apply", _full)
        request = pb.CreateRequest(machine_id=machine, shard_id="s", shard_epoch=1, sequence_number=1)
        for _ in range(3):
            assert await refused(client.Create(request)) is Code.UNAVAILABLE
        assert (await client.Get(pb.MachineRef(id=machine))).state == pb.MACHINE_STATE_SPECULATIVE
        health = _health(provider)
        await eventually_async(lambda: _status(health, health_pb2.HealthCheckResponse.NOT_SERVING))
        monkeypatch.undo()
        assert (await client.Create(request)).operation_id
        await eventually_async(lambda: _status(health, health_pb2.HealthCheckResponse.SERVING))


@rule("provider.P-123", "provider.P-120")
async def test_a_full_disk_refuses_what_it_cannot_keep_and_loses_nothing(tmp_path: Path) -> None:
    state = tmp_path / "p.db"
    metadata = {"k": "x" * 200_000}
    async with serving(Gate(), state=state) as (provider, client):
        kept, refused_one = await idle(client, 2)
        await client.Configure(pb.ConfigureRequest(machine_id=kept, cluster_id="c", shard_metadata=metadata))
        database: Any = provider._store
        [pages] = database._db.execute("PRAGMA page_count").fetchone()
        database._db.execute(f"PRAGMA max_page_count = {pages}")
        another = pb.ConfigureRequest(machine_id=refused_one, cluster_id="c", shard_metadata=metadata)
        with pytest.raises(aio.AioRpcError) as caught:
            await client.Configure(another)
        assert caught.value.code() is Code.UNAVAILABLE and "store" in (caught.value.details() or "")
        before = await client.List(pb.ListFilter())
        assert S((await client.Get(pb.MachineRef(id=refused_one))).state) is S.IDLE
        database._db.execute(f"PRAGMA max_page_count = {pages * 100}")
        assert (await client.Configure(another)).machine.cluster == "c"
    async with serving(Gate(), state=state) as (_, client):
        after = {machine.id: machine for machine in (await client.List(pb.ListFilter())).machines}
        assert after.keys() == {machine.id for machine in before.machines}
        for machine in (kept, refused_one):
            # The provider restarted before the bootstrap had run; the binding is still there.
            assert (after[machine].cluster, dict(after[machine].shard_metadata)) == ("c", metadata)


def _full(*_: object) -> None:
    raise sqlite3.OperationalError("database or disk is full")


def _health(provider: Provider) -> Any:
    return provider._health


async def _status(health: Any, wanted: int) -> bool:
    return bool(health._server_status.get("") == wanted)


async def eventually_async(condition: Callable[[], Any], seconds: float = 20) -> None:
    async with asyncio.timeout(seconds):
        while not await condition():  # noqa: ASYNC110  # the condition has no event to wait for
            await asyncio.sleep(0.01)


async def test_the_provider_describes_itself() -> None:
    async with (
        serve_in_process(Gate(), Settings(provider="test", compat=True), Serving()) as provider,
        dial(provider.address, None) as channel,
    ):
        described = await info_grpc.ProviderInfoStub(channel).Describe(info_pb.DescribeRequest())
        assert (described.name, described.delete, described.cursor, described.tombstones) == (
            "test",
            True,
            True,
            True,
        )
        assert (described.max_metadata_keys, described.max_metadata_bytes) == (1024, 4 << 20)
        assert described.max_blob_bytes == 8 << 20 and not described.epoch_floor
        assert dict(described.timeout_seconds) == {
            "create": 300,
            "configure": 300,
            "drain": 600,
            "delete": 300,
        }


# ---- starting and stopping


class Slow(Gate):
    async def offerings(self) -> list[Offering]:
        await asyncio.sleep(0.5)
        return list(self.standard_offerings)


@rule("provider.P-127")
async def test_the_port_is_closed_until_the_first_list_is_complete() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    opened = asyncio.create_task(_first_connection(port))
    async with serving(Slow(64), address=f"127.0.0.1:{port}") as (_, client):
        refusals = await opened
        assert refusals > 5
        assert len((await client.List(pb.ListFilter())).machines) == 64


async def _first_connection(port: int) -> int:
    refusals = 0
    while True:
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            refusals += 1
            await asyncio.sleep(0.01)
        else:
            writer.close()
            return refusals


@rule("provider.P-126")
async def test_shutdown_tells_the_probes_first_finishes_and_is_bounded() -> None:
    backend = Gate()
    async with serve_in_process(backend, None, Serving(shutdown_window=0.2)) as provider:
        async with dial(provider.address, None) as channel:
            client = stub(channel)
            [machine] = await idle(client)
            await client.Configure(pb.ConfigureRequest(machine_id=machine, cluster_id="c"))
            health: Any = health_pb2_grpc.HealthStub(channel)
            stopping = asyncio.create_task(provider.stop())
            await asyncio.sleep(0)
            answer = await health.Check(health_pb2.HealthCheckRequest())
            assert answer.status == health_pb2.HealthCheckResponse.NOT_SERVING
            assert (await client.Get(pb.MachineRef(id=machine))).cluster == "c"
            assert await refused(client.Drain(pb.DrainRequest(machine_id=machine))) is Code.UNAVAILABLE
        async with asyncio.timeout(10):
            await stopping


@rule("provider.P-126")
async def test_a_transition_that_ends_within_the_window_is_not_cut_short(tmp_path: Path) -> None:
    class Joining(Gate):
        readiness = "probe"  # type: ignore[assignment]  # the base class says otherwise
        asked = 0

        async def node_ready(self, op: Operation) -> bool:
            self.asked += 1
            return self.asked > 2

    backend = Joining()
    async with serving(backend, state=tmp_path / "s.db", shutdown_window=30) as (provider, client):
        [machine] = await idle(client)
        await client.Configure(pb.ConfigureRequest(machine_id=machine, cluster_id="c"))
        await eventually(lambda: backend.calls == 1)
        stopping = asyncio.create_task(provider.stop())
        await eventually(lambda: not provider._service.serving)
        backend.open.set()
        async with asyncio.timeout(20):
            await stopping
    async with serving(backend, state=tmp_path / "s.db") as (_, client):
        assert S((await client.Get(pb.MachineRef(id=machine))).state) is S.CONFIGURED


async def test_a_backend_must_say_how_readiness_is_known() -> None:
    class Silent(Gate):
        readiness = ""  # type: ignore[assignment]  # what the kit must refuse

    with pytest.raises(StartError, match="actuator-blocks"):
        async with serve_in_process(Silent()):
            pass


async def test_a_backend_that_cannot_be_described_does_not_open_the_port() -> None:
    class Broken(Gate):
        async def offerings(self) -> list[Offering]:
            raise RuntimeError("no credentials")

    with pytest.raises(StartError, match="no credentials"):
        async with serve_in_process(Broken()):
            pass


# ---- identities


@rule("provider.P-26", "provider.P-10")
async def test_over_tls_a_caller_acts_for_its_own_shard_only(tmp_path: Path) -> None:
    authority = CertificateAuthority()
    server = TlsCredentials(authority.issue().write(tmp_path / "server"), None)
    shard = TlsCredentials(authority.issue("bigfleet://shard/s1").write(tmp_path / "shard"), None)
    admin = TlsCredentials(authority.issue("bigfleet://admin").write(tmp_path / "admin"), None)
    output = io.BytesIO()
    serving_tls = Serving(tls=server, shutdown_window=0.1)
    async with serve_in_process(Gate(), None, serving_tls, Logs(output)) as provider:
        address = provider.address.replace("127.0.0.1", "localhost")
        async with dial(address, shard) as channel, dial(address, admin) as other:
            client, stranger = stub(channel), stub(other)
            machine = (await client.List(pb.ListFilter())).machines[0].id

            def create(shard_id: str, epoch: int = 1) -> pb.CreateRequest:
                return pb.CreateRequest(
                    machine_id=machine, shard_id=shard_id, shard_epoch=epoch, sequence_number=1
                )

            assert await refused(client.Create(create("s2"))) is Code.PERMISSION_DENIED
            assert (
                await refused(client.Create(pb.CreateRequest(machine_id=machine))) is Code.PERMISSION_DENIED
            )
            assert await refused(client.Create(create("not/valid"))) is Code.PERMISSION_DENIED
            logged = [line for line in map(json.loads, output.getvalue().splitlines()) if "code" in line]
            assert [(line["level"], line["machine"], line.get("shard_id")) for line in logged] == [
                ("warn", machine, "s2"),
                ("warn", machine, None),
                ("warn", machine, "not/valid"),
            ]
            assert await refused(stranger.Create(create("s1"))) is Code.PERMISSION_DENIED
            assert (await client.Get(pb.MachineRef(id=machine))).state == pb.MACHINE_STATE_SPECULATIVE
            # No mark was left by any of them.
            assert (await client.Create(create("s1"))).operation_id
            assert await refused(client.Create(create("s1"))) is Code.FAILED_PRECONDITION


@rule("provider.P-26")
@pytest.mark.parametrize("fault", ["expired", "stranger", "none", "nameless", "two names"])
async def test_over_tls_a_caller_without_a_good_certificate_changes_nothing(
    tmp_path: Path, fault: str
) -> None:
    authority = CertificateAuthority()
    now = datetime.datetime.now(datetime.UTC)
    day = datetime.timedelta(days=1)
    server = TlsCredentials(authority.issue().write(tmp_path / "server"), None)
    good = TlsCredentials(authority.issue("bigfleet://shard/s1").write(tmp_path / "good"), None)
    match fault:
        case "expired":
            leaf = authority.issue("bigfleet://shard/s1", issued=now - 2 * day, expiry=now - day)
        case "stranger":
            leaf = CertificateAuthority().issue("bigfleet://shard/s1")
        case "two names":
            leaf = authority.issue("bigfleet://shard/s1", "bigfleet://shard/s2")
        case _:
            leaf = authority.issue()
    pair = (None, None) if fault == "none" else (leaf.key_pem, leaf.cert_pem)
    trusted = (tmp_path / "good" / "ca.crt").read_bytes()
    bad = grpc.ssl_channel_credentials(trusted, *pair)
    create = pb.CreateRequest(shard_id="s1", shard_epoch=1, sequence_number=1)
    async with serve_in_process(Gate(), None, Serving(tls=server, shutdown_window=0.1)) as provider:
        address = provider.address.replace("127.0.0.1", "localhost")
        async with dial(address, good) as channel, aio.secure_channel(address, bad) as wrong:
            client = stub(channel)
            create.machine_id = (await client.List(pb.ListFilter())).machines[0].id
            code = await refused(stub(wrong).Create(create, timeout=10))
            is_shaken = fault in ("nameless", "two names")
            assert code is (Code.PERMISSION_DENIED if is_shaken else Code.UNAVAILABLE)
            assert S((await client.Get(pb.MachineRef(id=create.machine_id))).state) is S.SPECULATIVE
            assert (await client.Create(create)).operation_id


async def test_an_expired_certificate_is_refused_before_anything_is_served(tmp_path: Path) -> None:
    now = datetime.datetime.now(datetime.UTC)
    day = datetime.timedelta(days=1)
    leaf = CertificateAuthority().issue(issued=now - 2 * day, expiry=now - day)
    with pytest.raises(TransportError, match="expired"):
        TlsCredentials(leaf.write(tmp_path), None)


# ---- probes and metrics


async def _http(port: int, path: str) -> tuple[int, str]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
    answer = (await reader.read()).decode()
    writer.close()
    return int(answer.split()[1]), answer


async def test_the_log_has_changes_at_info_reads_at_debug_and_errors_at_warn() -> None:
    output = io.BytesIO()
    logs = Logs(output, level="debug")
    async with (
        serve_in_process(Gate(), Settings(provider="test"), Serving(shutdown_window=0.2), logs) as provider,
        dial(provider.address, None) as channel,
    ):
        client = stub(channel)
        [machine] = await idle(client)
        await client.Get(pb.MachineRef(id=machine))
        await refused(client.Get(pb.MachineRef(id="ghost")))
        await refused(client.Drain(pb.DrainRequest(machine_id=machine)))
    seen = {
        (line["level"], line["msg"], line.get("machine"))
        for line in map(json.loads, output.getvalue().splitlines())
    }
    assert seen >= {
        ("info", "transition accepted", machine),
        ("debug", "read answered", machine),
        ("warn", "read refused", "ghost"),
        ("warn", "call refused", machine),
    }


async def test_a_metrics_port_that_is_taken_refuses_the_start_in_one_line() -> None:
    async with serving(Gate(), metrics_address="127.0.0.1:0") as (provider, _):
        with pytest.raises(StartError, match="--metrics-addr"):
            async with serving(Gate(), metrics_address=f"127.0.0.1:{provider.metrics_port}"):
                pass


async def test_probes_and_metrics_tell_what_happens() -> None:
    backend = Gate()
    async with serving(backend, metrics_address="127.0.0.1:0") as (provider, client):
        port = provider.metrics_port
        assert [(await _http(port, path))[0] for path in ("/healthz", "/readyz", "/nothing")] == [
            200,
            200,
            404,
        ]
        [machine] = await idle(client)
        request = pb.ConfigureRequest(
            machine_id=machine, cluster_id="c", shard_id="s", shard_epoch=1, sequence_number=1
        )
        await client.Configure(request)
        await refused(client.Configure(request))
        status, page = await _http(port, "/metrics")
        assert status == 200
        for line in (
            'bigfleet_provider_rpc_total{provider="test",method="Configure",code="OK"} 1.0',
            'bigfleet_provider_rpc_total{provider="test",method="Configure",code="FAILED_PRECONDITION"} 1.0',
            'bigfleet_provider_fenced_total{provider="test",shard="s"} 1.0',
            'bigfleet_provider_inflight{provider="test",kind="configure"} 1.0',
            'bigfleet_provider_transitions_total{provider="test",kind="create",outcome="ok"} 1.0',
            'bigfleet_provider_substrate_calls_total{provider="test",op="create",outcome="ok"} 1.0',
            'bigfleet_provider_reconcile_total{provider="test",outcome="ok"} 1.0',
        ):
            assert line in page, line
