"""The example provider, run as a user runs it and looked at from outside."""

import asyncio
from collections import Counter
from pathlib import Path

import pytest

from bigfleet_base.api.v1alpha1 import provider_pb2 as pb
from bigfleet_base.api.v1alpha1 import provider_pb2_grpc as rpc
from bigfleet_base.model import MachineState
from bigfleet_providerkit import run_provider
from bigfleet_providerkit.examples.localproc import LocalProc
from bigfleet_providerkit.examples.localproc.computer import own_offerings
from bigfleet_providerkit.offerings import check_offerings
from tests.component.localproc.world import Localproc, in_process, is_running, localproc, machines
from tests.support.eventually import eventually
from tests.support.rules import rule

METADATA = {"bigfleet.lucy.sh/assigned-group": "a\0b", "key": "värde"}


async def until(stub: "rpc.CapacityProviderAsyncStub", machine_id: str, state: MachineState) -> pb.Machine:
    """The machine, once it is in the state."""
    async with asyncio.timeout(20):
        while True:
            machine: pb.Machine = await stub.Get(pb.MachineRef(id=machine_id))
            if MachineState(machine.state) is state:
                return machine
            await asyncio.sleep(0.01)


async def idle(stub: "rpc.CapacityProviderAsyncStub") -> str:
    machine_id = min(await machines(stub))
    await stub.Create(pb.CreateRequest(machine_id=machine_id))
    await until(stub, machine_id, MachineState.IDLE)
    return machine_id


async def configured(stub: "rpc.CapacityProviderAsyncStub", cluster: str = "c1") -> str:
    machine_id = await idle(stub)
    request = pb.ConfigureRequest(
        machine_id=machine_id, cluster_id=cluster, bootstrap_blob=b"secret", shard_metadata=METADATA
    )
    await stub.Configure(request)
    await until(stub, machine_id, MachineState.CONFIGURED)
    return machine_id


def files(deployment: Localproc, machine_id: str) -> set[str]:
    return {path.name for path in (deployment.root / machine_id).iterdir()}


@rule("provider.P-01", "provider.P-98")
async def test_a_machine_is_one_agent_from_create_to_delete(tmp_path: Path) -> None:
    async with localproc(tmp_path) as deployment, in_process(deployment) as stub:
        assert deployment.agents() == Counter()
        machine_id = await configured(stub)
        assert deployment.agents() == {machine_id: 1}
        await stub.Drain(pb.DrainRequest(machine_id=machine_id))
        await until(stub, machine_id, MachineState.IDLE)
        assert deployment.agents() == {machine_id: 1}
        await stub.Delete(pb.DeleteRequest(machine_id=machine_id))
        await until(stub, machine_id, MachineState.SPECULATIVE)
        assert deployment.agents() == Counter()
        assert not (deployment.root / machine_id).exists()


async def test_the_hook_gets_the_cluster_and_the_blob_unmodified_and_no_log_does(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    async with (
        localproc(tmp_path) as deployment,
        in_process(deployment, 'echo "$1" >cluster; cp blob copy') as stub,
    ):
        machine_id = await configured(stub, "blue")
        folder = deployment.root / machine_id
        assert (folder / "cluster").read_text() == "blue\n"
        assert (folder / "copy").read_bytes() == b"secret"
        assert (folder / "blob").stat().st_mode & 0o777 == 0o600
        logged = "".join(capfd.readouterr())
        assert machine_id in logged and "secret" not in logged


@rule("provider.P-80")
async def test_a_hook_that_fails_leaves_the_machine_failed_and_repair_makes_it_idle(tmp_path: Path) -> None:
    async with localproc(tmp_path) as deployment, in_process(deployment, "exit 7") as stub:
        machine_id = await idle(stub)
        await stub.Configure(pb.ConfigureRequest(machine_id=machine_id, cluster_id="c1"))
        failed = await until(stub, machine_id, MachineState.FAILED)
        assert failed.last_error.startswith("configure:substrate:") and "status 7" in failed.last_error
        repaired = await until(stub, machine_id, MachineState.IDLE)
        assert (repaired.last_error, repaired.cluster) == ("", "")
        assert deployment.agents() == {machine_id: 1}


@rule("ruling.R11", "conformance.X702")
async def test_a_killed_agent_is_host_lost_and_its_slot_comes_back(tmp_path: Path) -> None:
    async with localproc(tmp_path) as deployment, in_process(deployment) as stub:
        machine_id = await configured(stub)
        deployment.kill_agent(machine_id)
        lost = await until(stub, machine_id, MachineState.FAILED)
        assert lost.last_error.startswith("host:host-lost:")
        assert (lost.cluster, dict(lost.shard_metadata)) == ("c1", METADATA)
        await until(stub, machine_id, MachineState.SPECULATIVE)
        await configured(stub)
        assert deployment.agents() == {machine_id: 1}


@rule("provider.P-110", "provider.P-113")
async def test_a_drain_lets_workloads_end_by_themselves_and_scrubs_the_machine(tmp_path: Path) -> None:
    hook = f"""mkdir -p kubelet/pki; echo key >kubelet/pki/client.pem; echo token >token
    sh {tmp_path}/workload & until test -s {tmp_path}/pid; do sleep 0.01; done"""
    (tmp_path / "workload").write_text(
        f"trap 'touch {tmp_path}/ended; exit' TERM; echo $$ >{tmp_path}/pid; while :; do sleep 0.05; done"
    )
    async with localproc(tmp_path) as deployment, in_process(deployment, hook) as stub:
        machine_id = await configured(stub)
        pid = (tmp_path / "pid").read_text().strip()
        await stub.Drain(pb.DrainRequest(machine_id=machine_id, grace_period_seconds=30))
        await until(stub, machine_id, MachineState.IDLE)
        assert (tmp_path / "ended").exists()
        await eventually(lambda: not is_running(pid))
        assert files(deployment, machine_id) == {"lock", "inbox", "ref"}


@rule("provider.P-111", "provider.P-112")
async def test_a_workload_that_will_not_end_is_killed_when_its_grace_is_over(tmp_path: Path) -> None:
    hook = f"""(trap '' TERM; exec sleep 600) & echo $! >{tmp_path}/pid"""
    async with localproc(tmp_path) as deployment, in_process(deployment, hook) as stub:
        machine_id = await configured(stub)
        pid = (tmp_path / "pid").read_text().strip()
        assert is_running(pid)
        await stub.Drain(pb.DrainRequest(machine_id=machine_id))
        await until(stub, machine_id, MachineState.IDLE)
        await eventually(lambda: not is_running(pid))


@rule("provider.P-124", "provider.P-104")
async def test_a_lost_store_is_recovered_from_the_machines_themselves(tmp_path: Path) -> None:
    async with localproc(tmp_path) as deployment:
        async with in_process(deployment) as stub:
            machine_id = await configured(stub)
            before = await machines(stub)
        deployment.lose_store()
        async with in_process(deployment) as stub:
            assert (await machines(stub)) == before
            assert deployment.agents() == {machine_id: 1}


@rule("provider.P-124")
async def test_a_machine_of_which_nobody_knows_whom_it_serves_is_not_idle(tmp_path: Path) -> None:
    async with localproc(tmp_path) as deployment:
        async with in_process(deployment) as stub:
            machine_id = await configured(stub)
        deployment.lose_store()
        deployment.forget_bootstrap(machine_id)
        async with in_process(deployment) as stub:
            machine = (await machines(stub))[machine_id]
            assert MachineState(machine.state) is MachineState.FAILED
            assert machine.last_error.startswith("host:binding-unknown:")


@pytest.mark.parametrize(
    ("options", "text"),
    [((), "--root is missing"), (("--root", "r", "--bootstrap", "/nowhere/hook"), "(--bootstrap)")],
)
def test_a_mistake_on_the_command_line_is_explained(
    options: tuple[str, ...], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_provider(LocalProc, options) == 1
    assert text in capsys.readouterr().err


def test_without_a_quota_it_offers_this_computer() -> None:
    [offer] = check_offerings(own_offerings()).values()
    assert offer.count >= 1 and offer.shape.interruption_probability == 0.0


MANY = 200


@rule("provider.P-51", "provider.P-43")
async def test_two_hundred_machines_live_on_one_computer(tmp_path: Path, full_size: bool) -> None:
    async with localproc(tmp_path) as deployment, in_process(deployment, machines=MANY) as stub:
        ids = sorted(await machines(stub))
        assert len(ids) == MANY
        await asyncio.gather(*(stub.Create(pb.CreateRequest(machine_id=i)) for i in ids))
        await all_in(stub, ids, MachineState.IDLE)
        assert deployment.agents() == Counter(ids), "one agent each"
        await asyncio.gather(
            *(stub.Configure(pb.ConfigureRequest(machine_id=i, cluster_id=f"c-{i}")) for i in ids)
        )
        await all_in(stub, ids, MachineState.CONFIGURED)
        assert [deployment.tagged_cluster(i) for i in ids] == [f"c-{i}" for i in ids]
        leaving = ids if full_size else ids[:40]
        await asyncio.gather(*(stub.Drain(pb.DrainRequest(machine_id=i)) for i in leaving))
        await all_in(stub, leaving, MachineState.IDLE)
        await asyncio.gather(*(stub.Delete(pb.DeleteRequest(machine_id=i)) for i in leaving))
        await all_in(stub, leaving, MachineState.SPECULATIVE)
        staying = sorted(set(ids) - set(leaving))
        assert deployment.agents() == Counter(staying)
        assert sorted(path.name for path in deployment.root.iterdir()) == staying


async def all_in(stub: "rpc.CapacityProviderAsyncStub", ids: list[str], state: MachineState) -> None:
    """Return when these machines are in the state."""
    async with asyncio.timeout(120):
        while True:
            known = await machines(stub)
            if {MachineState(known[i].state) for i in ids} == {state}:
                return
            await asyncio.sleep(0.05)
