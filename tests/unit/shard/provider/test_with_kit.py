"""The client and the provider kit, together over real gRPC."""

import asyncio
import io
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from bigfleet.shard.provider import CallFailedError, FailureKind
from bigfleet.shard.provider import listing as listing_module
from bigfleet_base.model import CapacityType, MachineState
from bigfleet_base.telemetry import Logs
from bigfleet_base.wire import TlsCredentials
from bigfleet_base.wire.metadata import encode_assignment, encode_target
from bigfleet_providerkit import Backend, Host, HostStatus, MachineView, Offering, Operation
from bigfleet_providerkit.process import Provider, Serving, serve_in_process
from bigfleet_providerkit.settings import Settings
from tests.support.ca import CertificateAuthority
from tests.support.rules import rule
from tests.unit.shard.provider.scripted import Bench, bench

NOTES = encode_assignment(1000, 8.0, 0.5, "f" * 64, "rack\x00ns")


class Toy(Backend):
    """Machines that exist in a dict; ``gate`` keeps a call of the backend from ending."""

    name = "toy"
    readiness = "actuator-blocks"

    def __init__(self, slots: int = 12) -> None:
        self.slots = slots
        self.hosts: dict[str, str] = {}
        self.gate = asyncio.Event()
        self.gate.set()

    async def offerings(self) -> list[Offering]:
        return [
            Offering(
                "m6i.large", "a", CapacityType.SPOT, self.slots, 0.1, 0.001, {"cpu": "2", "memory": "8Gi"}
            )
        ]

    async def create(self, op: Operation) -> Host:
        await self.gate.wait()
        return Host(self.hosts.setdefault(op.machine.id, f"host-{op.operation_id}"))

    async def configure(self, op: Operation) -> None:
        await self.gate.wait()

    async def drain(self, op: Operation) -> None: ...

    async def delete(self, op: Operation) -> None:
        self.hosts.pop(op.machine.id, None)

    async def inspect(self, machine: MachineView) -> HostStatus:
        return HostStatus.RUNNING if machine.id in self.hosts else HostStatus.GONE


@asynccontextmanager
async def toy(backend: Toy, state: Path | None = None) -> AsyncIterator[Provider]:
    logs = Logs(io.BytesIO())
    async with serve_in_process(backend, Settings(provider="toy"), Serving(state=state), logs) as p:
        yield p


class Mirror:
    """A core that believes everything it is told."""

    def __init__(self, shard: Bench) -> None:
        self.shard = shard
        self.machines: dict[str, Any] = {}

    async def update(self) -> None:
        slices, _ = await self.shard.news()
        for news in slices:
            assert not news.rejected
            self.machines.update({seen.machine.id: seen.machine for seen in news.changed})
            for machine_id in news.gone:
                del self.machines[machine_id]

    async def settled(self, machine_id: str, state: MachineState) -> None:
        async with asyncio.timeout(20):
            while self.machines[machine_id].state is not state:
                await self.update()
                await asyncio.sleep(0.01)


@rule("provider.P-142")
async def test_the_kit_describes_itself() -> None:
    async with toy(Toy()) as provider, bench(provider.address) as shard:
        capabilities = await shard.client.describe()
        assert capabilities.name == "toy"
        assert capabilities.delete and capabilities.cursor and capabilities.tombstones
        assert capabilities.max_blob_bytes == 8 << 20 and capabilities.epoch_floor


@rule("provider.P-132", "provider.P-130", "shard.F6")
@pytest.mark.parametrize("incremental", [False, True])
async def test_a_machine_goes_through_its_life(incremental: bool) -> None:
    async with toy(Toy()) as provider, bench(provider.address, incremental=incremental) as shard:
        client, mirror = shard.client, Mirror(shard)
        await client.describe()
        await client.raise_floor()
        await mirror.update()
        assert len(mirror.machines) == 12
        machine_id = next(id_ for id_, m in mirror.machines.items() if m.capacity_type is CapacityType.SPOT)
        created = await client.create(machine_id, {**NOTES, **encode_target("c1")})
        assert created.observed.machine.state in (MachineState.CREATING, MachineState.IDLE)
        await mirror.settled(machine_id, MachineState.IDLE)
        assert (await client.create(machine_id, {})).operation_id == created.operation_id
        await client.configure(machine_id, "c1", b"blob", NOTES)
        await mirror.settled(machine_id, MachineState.CONFIGURED)
        machine = mirror.machines[machine_id]
        assert (machine.cluster, machine.assigned_priority, machine.assigned_group) == (
            "c1",
            1000,
            "rack\x00ns",
        )
        with pytest.raises(CallFailedError) as caught:
            await client.configure(machine_id, "c2", b"blob", NOTES)
        assert (caught.value.kind, caught.value.code) == (FailureKind.FAILED, "ALREADY_EXISTS")
        await client.drain(machine_id, 0, {})
        await mirror.settled(machine_id, MachineState.IDLE)
        assert mirror.machines[machine_id].assigned_priority == 0
        await client.delete(machine_id, CapacityType.SPOT)
        await mirror.settled(machine_id, MachineState.SPECULATIVE)
        with pytest.raises(CallFailedError) as caught:
            await client.get("nobody")
        assert caught.value.kind is FailureKind.NOT_FOUND


@rule("shard.F6", "provider.P-32")
async def test_an_older_process_is_fenced_by_the_first_call_of_a_newer_one() -> None:
    async with toy(Toy()) as provider, bench(provider.address) as old, bench(provider.address) as new:
        new.fence.epoch = 4
        await old.client.raise_floor()
        await new.client.raise_floor()
        mirror = Mirror(old)
        await mirror.update()
        with pytest.raises(CallFailedError) as caught:
            await old.client.create(next(iter(mirror.machines)), {})
        assert caught.value.kind is FailureKind.FENCED
        with pytest.raises(CallFailedError) as caught:
            await old.client.raise_floor()
        assert caught.value.kind is FailureKind.FENCED


@rule("provider.P-68", "provider.P-138")
async def test_a_list_in_pages_is_the_list(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listing_module, "PAGE_RECORDS", 5)
    async with toy(Toy()) as provider, bench(provider.address) as paged, bench(provider.address) as whole:
        await paged.client.describe()
        mirrors = Mirror(paged), Mirror(whole)
        for mirror in mirrors:
            await mirror.update()
        assert mirrors[0].machines == mirrors[1].machines and len(mirrors[0].machines) == 12
        await paged.client.create(next(iter(mirrors[0].machines)), {})
        await mirrors[0].settled(next(iter(mirrors[0].machines)), MachineState.IDLE)
        await mirrors[1].update()
        assert mirrors[0].machines == mirrors[1].machines


@rule("provider.P-68", "provider.P-70")
async def test_a_provider_that_has_forgotten_removals_is_still_read_in_pages(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(listing_module, "PAGE_RECORDS", 5)
    async with toy(Toy()) as provider, bench(provider.address) as shard:
        provider.core.listing.drop_tombstones(provider.core.listing.head)
        await shard.client.describe()
        slices, end = await shard.news()
        assert end.records == 12, "asked for page by page, and for nothing twice"
        assert end.complete and sum(len(news.changed) for news in slices) == 12


@rule("provider.P-141", "provider.P-21")
async def test_many_machines_are_created_at_once_without_fencing_each_other() -> None:
    backend = Toy()
    async with toy(backend) as provider, bench(provider.address) as shard:
        mirror = Mirror(shard)
        await mirror.update()
        acks = await asyncio.gather(*(shard.client.create(id_, {}) for id_ in mirror.machines))
        assert len({ack.operation_id for ack in acks}) == 12
        for machine_id in list(mirror.machines):
            await mirror.settled(machine_id, MachineState.IDLE)
        assert len(backend.hosts) == 12


@rule("ruling.R15", "provider.P-137")
async def test_a_fresh_client_reads_what_an_earlier_one_had_noted() -> None:
    backend = Toy()
    async with toy(backend) as provider:
        async with bench(provider.address) as shard:
            mirror = Mirror(shard)
            await mirror.update()
            backend.gate.clear()
            machine_id = next(iter(mirror.machines))
            await shard.client.create(machine_id, {**NOTES, **encode_target("c9")})
        async with bench(provider.address) as shard:
            mirror = Mirror(shard)
            await mirror.update()
            machine = mirror.machines[machine_id]
            assert (machine.target_cluster, machine.assigned_group) == ("c9", "rack\x00ns")
        backend.gate.set()


async def test_a_blob_above_the_cap_is_refused_before_it_is_sent() -> None:
    async with toy(Toy()) as provider, bench(provider.address) as shard:
        await shard.client.describe()
        for blob, notes in ((bytes((8 << 20) + 1), {}), (b"", {"k": "x" * 10_000_000})):
            with pytest.raises(CallFailedError, match="not sent") as caught:
                await shard.client.configure("m", "c1", blob, notes)
            assert caught.value.kind is FailureKind.REFUSED


@rule("provider.P-69", "provider.P-138")
async def test_a_provider_that_lost_its_store_is_listed_anew(tmp_path: Path) -> None:
    backend = Toy()
    async with toy(backend, tmp_path / "a.db") as provider:
        port = provider.address.rpartition(":")[2]
        async with bench(provider.address, incremental=True) as shard:
            mirror = Mirror(shard)
            await mirror.update()
            before = dict(mirror.machines)
            await provider.stop()
            logs = Logs(io.BytesIO())
            again = Serving(address=f"127.0.0.1:{port}", state=tmp_path / "b.db")
            settings = Settings(provider="toy")
            async with serve_in_process(Toy(6), settings, again, logs), asyncio.timeout(30):
                while len(mirror.machines) != 6:
                    try:
                        await mirror.update()
                    except CallFailedError:
                        await asyncio.sleep(0.1)
            assert mirror.machines.items() <= before.items()


async def test_over_tls_the_shard_is_who_its_certificate_says(tmp_path: Path) -> None:
    authority = CertificateAuthority()
    serving = Serving(tls=TlsCredentials(authority.issue().write(tmp_path / "provider"), None))
    right = TlsCredentials(authority.issue("bigfleet://shard/shard-0").write(tmp_path / "right"), None)
    wrong = TlsCredentials(authority.issue("bigfleet://shard/shard-1").write(tmp_path / "wrong"), None)
    async with serve_in_process(Toy(), Settings(provider="toy"), serving, Logs(io.BytesIO())) as provider:
        async with bench(provider.address, tls=right) as shard:
            mirror = Mirror(shard)
            await mirror.update()
            await shard.client.create(next(iter(mirror.machines)), {})
        async with bench(provider.address, tls=wrong) as shard:
            with pytest.raises(CallFailedError) as caught:
                await shard.client.create(next(iter(mirror.machines)), {})
            assert (caught.value.kind, caught.value.code) == (FailureKind.REFUSED, "PERMISSION_DENIED")
