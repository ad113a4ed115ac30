"""Machines that are Nodes of a real API server, with the real kwok for their kubelet."""

import asyncio
import itertools
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from grpc import aio

import bigfleet_providerkit.examples.kwoknodes as example
from bigfleet_base.api.v1alpha1 import provider_pb2 as pb
from bigfleet_base.api.v1alpha1 import provider_pb2_grpc as rpc
from bigfleet_base.model import CapacityType, MachineState
from bigfleet_providerkit import MachineView, Offering, Operation, Retryable, run_provider
from bigfleet_providerkit.examples.kwoknodes.backend import KwokNodes
from bigfleet_providerkit.process import Serving, StartError, serve_in_process
from bigfleet_providerkit.records import Kind
from bigfleet_providerkit.settings import DEFAULT_TIMEOUTS, Settings
from bigfleet_providerkit.work import NANOS
from tests.component.localproc.test_localproc import all_in, until
from tests.component.localproc.test_readme import run, start
from tests.component.localproc.world import TRANSITIONAL, machines
from tests.component.template.test_readme import commands
from tests.support.eventually import eventually
from tests.support.parts import KubeApiserver, KubeControlPlane
from tests.support.parts.tools import BIN
from tests.support.rules import rule

METADATA = {"bigfleet.lucy.sh/assigned-group": "a\0b", "key": "värde"}
AT_REST = (MachineState.SPECULATIVE, MachineState.IDLE)
QUARANTINE_S = 1
SIZE = {"cpu": "8", "memory": "32Gi"}

_numbers = itertools.count(1)


@dataclass
class Deployment:
    """A provider of its own on a shared server: its machines' names are nobody else's."""

    server: KubeApiserver
    folder: Path
    count: int = 2
    kubeconfig: Path | None = None
    name: str = field(default_factory=lambda: f"kwoknodes-{next(_numbers)}")

    @property
    def store(self) -> Path:
        return self.folder / "state.db"

    @property
    def offering(self) -> Offering:
        labels = {"topology.bigfleet/rack": "r1"}
        return Offering(self.name, "z1", CapacityType.ON_DEMAND, self.count, 1.0, None, SIZE, SIZE, labels)

    @asynccontextmanager
    async def serve(self, **timeouts: float) -> "AsyncIterator[rpc.CapacityProviderAsyncStub]":
        backend = KwokNodes(self.kubeconfig or self.server.kubeconfig, self.name)
        backend.standard_offerings = [self.offering]
        given = {Kind(kind): round(seconds * NANOS) for kind, seconds in timeouts.items()}
        settings = Settings(
            provider=self.name,
            timeouts={**DEFAULT_TIMEOUTS, **given},
            reconcile_interval=NANOS // 5,
            quarantine=NANOS // 2,
        )
        async with (
            serve_in_process(backend, settings, Serving(state=self.store)) as provider,
            aio.insecure_channel(provider.address) as channel,
        ):
            yield rpc.CapacityProviderStub(channel)

    def lose_store(self) -> None:
        for path in self.folder.glob("state.db*"):
            path.unlink()

    async def nodes(self) -> dict[str, Any]:
        """What the API server has of ours."""
        listed = await self.get("nodes", f"--selector=bigfleet.lucy.sh/provider={self.name}")
        return {node["metadata"]["name"]: node for node in listed["items"]}

    async def get(self, *arguments: str) -> Any:
        return await asyncio.to_thread(self.server.get, *arguments)

    async def kubectl(self, *arguments: str, stdin: Mapping[str, Any] | None = None) -> str:
        return await asyncio.to_thread(lambda: self.server.kubectl(*arguments, stdin=stdin))


@pytest.fixture
def deployment(kube_control_plane: KubeControlPlane, tmp_path: Path) -> Deployment:
    return Deployment(kube_control_plane, tmp_path)


@pytest.fixture
def kwokless(kube_apiserver: KubeApiserver, tmp_path: Path) -> Deployment:
    """On a server where nobody makes Nodes Ready but the test."""
    return Deployment(kube_apiserver, tmp_path)


async def by_state(stub: "rpc.CapacityProviderAsyncStub") -> dict[MachineState, set[str]]:
    found: dict[MachineState, set[str]] = {state: set() for state in MachineState}
    for machine in (await machines(stub)).values():
        found[MachineState(machine.state)].add(machine.id)
    return found


async def idle(stub: "rpc.CapacityProviderAsyncStub") -> str:
    machine_id = min(await machines(stub))
    await stub.Create(pb.CreateRequest(machine_id=machine_id))
    await until(stub, machine_id, MachineState.IDLE)
    return machine_id


async def configured(
    stub: "rpc.CapacityProviderAsyncStub", metadata: Mapping[str, str] = METADATA, cluster: str = "c1"
) -> str:
    machine_id = await idle(stub)
    await stub.Configure(
        pb.ConfigureRequest(
            machine_id=machine_id, cluster_id=cluster, bootstrap_blob=b"secret", shard_metadata=metadata
        )
    )
    await until(stub, machine_id, MachineState.CONFIGURED)
    return machine_id


def ready(node: Any) -> bool:
    return any(c["type"] == "Ready" and c["status"] == "True" for c in node["status"].get("conditions", ()))


def pod(name: str, namespace: str, node: str, **labels: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace, "labels": labels},
        "spec": {"containers": [{"name": "main", "image": "unused"}], "nodeName": node},
    }


@rule("provider.P-113", "provider.P-01", "provider.P-98")
async def test_a_machine_is_a_ready_node_from_configured_until_it_is_drained(deployment: Deployment) -> None:
    async with deployment.serve() as stub:
        machine = await idle(stub)
        assert not await deployment.nodes()
        await stub.Configure(pb.ConfigureRequest(machine_id=machine, cluster_id="c1"))
        await until(stub, machine, MachineState.CONFIGURED)
        [(name, node)] = (await deployment.nodes()).items()
        assert name == machine and ready(node)
        assert node["spec"]["providerID"] == f"bigfleet://{deployment.name}/{machine}"
        assert node["status"]["allocatable"] == node["status"]["capacity"] == {**SIZE, "pods": "110"}
        assert node["metadata"]["labels"].items() >= {
            ("node.kubernetes.io/instance-type", deployment.name),
            ("topology.kubernetes.io/zone", "z1"),
            ("kubernetes.io/hostname", machine),
            ("topology.bigfleet/rack", "r1"),
        }
        await stub.Drain(pb.DrainRequest(machine_id=machine))
        await until(stub, machine, MachineState.IDLE)
        assert not await deployment.nodes()
        await stub.Delete(pb.DeleteRequest(machine_id=machine))
        freed = await until(stub, machine, MachineState.SPECULATIVE)
        assert not freed.HasField("host")


async def test_it_needs_no_more_rights_than_its_readme_names_and_none_on_leases(
    deployment: Deployment, plane_namespace: str
) -> None:
    deployment.kubeconfig = await _least_privileged(deployment, plane_namespace)
    async with deployment.serve() as stub:
        machine = await configured(stub)
        await deployment.kubectl("create", "--filename=-", stdin=pod("web", plane_namespace, machine))
        await stub.Drain(pb.DrainRequest(machine_id=machine, grace_period_seconds=600))
        await until(stub, machine, MachineState.IDLE)
        assert not await deployment.nodes()


async def test_a_configure_whose_answer_was_lost_finds_its_node_and_replaces_an_older_one(
    kwokless: Deployment,
) -> None:
    backend = KwokNodes(kwokless.server.kubeconfig, kwokless.name)
    view = MachineView(f"{kwokless.name}-0", "t", "z", CapacityType.ON_DEMAND, {}, SIZE, "ref", "c1", {})
    first = Operation(view, "op-1", timeout=60, cluster_id="c1")
    await backend.configure(first)
    [made] = (await kwokless.nodes()).values()
    await backend.configure(first)
    [kept] = (await kwokless.nodes()).values()
    assert kept["metadata"]["uid"] == made["metadata"]["uid"]
    second = replace(first, operation_id="op-2")
    with pytest.raises(Retryable):
        await backend.configure(second)
    await backend.configure(second)
    [replaced] = (await kwokless.nodes()).values()
    assert replaced["metadata"]["uid"] != made["metadata"]["uid"]


@rule("conformance.X601", "conformance.B708")
async def test_a_machine_is_configured_when_its_node_is_ready_and_not_before(kwokless: Deployment) -> None:
    async with kwokless.serve() as stub:
        machine = await idle(stub)
        await stub.Configure(pb.ConfigureRequest(machine_id=machine, cluster_id="c1"))
        await _until_nodes(kwokless, {machine})
        assert (await by_state(stub))[MachineState.CONFIGURING] == {machine}
        await _make_ready(kwokless, machine)
        await until(stub, machine, MachineState.CONFIGURED)


@rule("provider.P-80", "conformance.X703")
async def test_a_node_that_never_is_ready_fails_the_machine_and_repair_takes_it_away(
    kwokless: Deployment,
) -> None:
    async with kwokless.serve(configure=1.0) as stub:
        machine = await idle(stub)
        await stub.Configure(pb.ConfigureRequest(machine_id=machine, cluster_id="c1"))
        failed = await until(stub, machine, MachineState.FAILED)
        assert failed.last_error.startswith("configure:readiness:")
        repaired = await until(stub, machine, MachineState.IDLE)
        assert (repaired.cluster, repaired.last_error) == ("", "")
        assert not await kwokless.nodes()


@rule("provider.P-122", "provider.P-121")
async def test_a_configure_cut_off_before_ready_is_brought_to_its_end_by_the_next_provider(
    kwokless: Deployment,
) -> None:
    async with kwokless.serve() as stub:
        machine = await idle(stub)
        accepted = await stub.Configure(pb.ConfigureRequest(machine_id=machine, cluster_id="c1"))
        await _until_nodes(kwokless, {machine})
    async with kwokless.serve() as stub:
        await _make_ready(kwokless, machine)
        await until(stub, machine, MachineState.CONFIGURED)
        again = await stub.Configure(pb.ConfigureRequest(machine_id=machine, cluster_id="c1"))
        assert again.operation_id == accepted.operation_id


@rule("provider.P-110", "conformance.X110")
async def test_a_drain_evicts_and_ends_as_soon_as_the_node_is_empty(
    deployment: Deployment, plane_namespace: str
) -> None:
    async with deployment.serve() as stub:
        machine = await configured(stub)
        await deployment.kubectl("create", "--filename=-", stdin=pod("web", plane_namespace, machine))
        running = "--for=jsonpath={.status.phase}=Running"
        await deployment.kubectl("wait", "pod/web", f"--namespace={plane_namespace}", running)
        await stub.Drain(pb.DrainRequest(machine_id=machine, grace_period_seconds=600))
        await until(stub, machine, MachineState.IDLE)
        assert not (await deployment.get("pods", f"--namespace={plane_namespace}"))["items"]


@rule("provider.P-110", "provider.P-111", "conformance.X111")
async def test_a_disruption_budget_holds_for_the_grace_and_no_longer(
    deployment: Deployment, plane_namespace: str
) -> None:
    budget = {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": {"name": "web", "namespace": plane_namespace},
        "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "web"}}},
    }
    async with deployment.serve() as stub:
        machine = await configured(stub)
        for manifest in (budget, pod("web", plane_namespace, machine, app="web")):
            await deployment.kubectl("create", "--filename=-", stdin=manifest)
        guarded = "--for=jsonpath={.status.currentHealthy}=1"
        await deployment.kubectl("wait", "pdb/web", f"--namespace={plane_namespace}", guarded)
        loop = asyncio.get_running_loop()
        started = loop.time()
        await stub.Drain(pb.DrainRequest(machine_id=machine, grace_period_seconds=3))
        await deployment.kubectl("wait", f"node/{machine}", "--for=jsonpath={.spec.unschedulable}=true")
        held = await deployment.get("pod", "web", f"--namespace={plane_namespace}")
        assert "deletionTimestamp" not in held["metadata"]
        await until(stub, machine, MachineState.IDLE)
        assert loop.time() - started >= 3
        assert not (await deployment.get("pods", f"--namespace={plane_namespace}"))["items"]
        assert not await deployment.nodes()


@rule("ruling.R11", "conformance.X702")
async def test_a_node_that_was_taken_away_is_a_lost_host_and_its_slot_comes_back(
    deployment: Deployment,
) -> None:
    async with deployment.serve() as stub:
        machine = await configured(stub)
        await deployment.kubectl("delete", "node", machine)
        lost = await until(stub, machine, MachineState.FAILED)
        assert lost.last_error.startswith("host:host-lost:")
        assert (lost.cluster, dict(lost.shard_metadata)) == ("c1", METADATA)
        await until(stub, machine, MachineState.SPECULATIVE)
        assert machine == await configured(stub)


@rule("provider.P-124", "provider.P-104", "conformance.X1003")
async def test_a_lost_store_is_recovered_from_the_nodes(deployment: Deployment) -> None:
    async with deployment.serve() as stub:
        machine = await configured(stub)
        before = await machines(stub)
    deployment.lose_store()
    async with deployment.serve() as stub:
        assert (await machines(stub)) == before
        assert set(await deployment.nodes()) == {machine}


@rule("provider.P-124", "provider.P-103")
async def test_what_a_node_cannot_hold_is_not_guessed_when_the_store_is_lost(deployment: Deployment) -> None:
    large = {f"key-{n}": "x" * 1_024 for n in range(512)}
    async with deployment.serve() as stub:
        machine = await configured(stub, large)
        bound = (await machines(stub))[machine]
        assert dict(bound.shard_metadata) == large
    deployment.lose_store()
    async with deployment.serve() as stub:
        found = await until(stub, machine, MachineState.FAILED)
        assert found.last_error.startswith("host:binding-unknown:")


async def test_a_node_of_the_same_name_that_is_not_ours_is_left_alone(deployment: Deployment) -> None:
    async with deployment.serve() as stub:
        machine = await idle(stub)
        theirs = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": machine}}
        await deployment.kubectl("create", "--filename=-", stdin=theirs)
        await stub.Configure(pb.ConfigureRequest(machine_id=machine, cluster_id="c1"))
        failed = await until(stub, machine, MachineState.FAILED)
        assert "not ours" in failed.last_error
        await until(stub, machine, MachineState.SPECULATIVE)
        assert (await deployment.get("node", machine))["metadata"]["name"] == machine


async def test_a_cluster_is_joined_once_its_kubeconfig_is_in_the_folder(deployment: Deployment) -> None:
    folder = deployment.folder / "kubeconfigs"
    folder.mkdir()
    deployment.kubeconfig = folder
    async with deployment.serve() as stub:
        machine = await idle(stub)
        await stub.Configure(pb.ConfigureRequest(machine_id=machine, cluster_id="late"))
        (folder / "late").symlink_to(deployment.server.kubeconfig)
        await until(stub, machine, MachineState.CONFIGURED)
        assert set(await deployment.nodes()) == {machine}


async def test_to_start_every_cluster_must_answer_and_later_an_outage_of_one_hides_no_other(
    deployment: Deployment,
) -> None:
    folder = deployment.folder / "kubeconfigs"
    folder.mkdir()
    deployment.kubeconfig = folder
    (folder / "red").symlink_to(deployment.server.kubeconfig)
    config = json.loads(deployment.server.kubeconfig.read_text())
    config["clusters"][0]["cluster"] = {"server": "http://127.0.0.1:1"}
    dead = json.dumps(config)
    async with deployment.serve() as stub:
        machine = await configured(stub, cluster="red")
        (folder / "dead").write_text(dead)
        await deployment.kubectl("delete", "node", machine)
        await until(stub, machine, MachineState.FAILED)
    with pytest.raises(StartError, match=r"127\.0\.0\.1:1"):
        async with deployment.serve():
            pass


@rule("provider.P-120", "provider.P-122", "provider.P-104")
async def test_a_provider_killed_at_any_moment_loses_and_doubles_nothing(
    deployment: Deployment, full_size: bool
) -> None:
    offers = deployment.folder / "offerings.json"
    row = {
        "instance_type": deployment.name,
        "zone": "z1",
        "count": 8,
        "price_per_hour": 1,
        "allocatable": SIZE,
    }
    offers.write_text(json.dumps([row]))
    asked: dict[str, str] = {}
    promised = (MachineState.FAILED, MachineState.CONFIGURING, MachineState.CONFIGURED)
    for round_ in range(20 if full_size else 3):
        started = time.monotonic()
        async with _process(deployment, offers) as stub:
            for machine_id, cluster in asked.items():
                record = await stub.Get(pb.MachineRef(id=machine_id))
                is_repaired = (
                    MachineState(record.state) in AT_REST and time.monotonic() - started > QUARANTINE_S
                )
                assert is_repaired or (
                    MachineState(record.state) in promised and record.cluster == cluster
                ), record
            await _settle(stub)
            found = await by_state(stub)
            # The Node of a Failed machine waits for its repair; otherwise only the bound have one.
            bound, failed = found[MachineState.CONFIGURED], found[MachineState.FAILED]
            assert bound <= set(await deployment.nodes()) <= bound | failed
            await _drain_all(stub)
            assert not await deployment.nodes()
            ids = sorted(await machines(stub))
            await asyncio.gather(*(stub.Create(pb.CreateRequest(machine_id=i)) for i in ids))
            await all_in(stub, ids, MachineState.IDLE)
            asked = {machine_id: f"c-{round_}-{machine_id}" for machine_id in ids}
            await asyncio.gather(
                *(
                    stub.Configure(pb.ConfigureRequest(machine_id=i, cluster_id=cluster))
                    for i, cluster in asked.items()
                )
            )
            await asyncio.sleep(0.03 * round_)  # somewhere in the middle of it


async def test_the_readme_runs_as_it_is_written(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    serve, make, look = commands(Path(next(iter(example.__path__))) / "README.md")
    folder = deployment.folder
    (folder / "kubeconfig").symlink_to(deployment.server.kubeconfig)
    monkeypatch.setenv("PATH", f"{BIN}:{os.environ['PATH']}")
    monkeypatch.setenv("HOME", str(folder))
    provider = start(serve, folder)
    try:
        await eventually((folder / "kwoknodes.sock").exists, seconds=30)
        await asyncio.to_thread(run, make, folder)
        [_, row] = (await asyncio.to_thread(run, look, folder)).splitlines()
        assert "Ready" in row.split()
    finally:
        os.killpg(provider.pid, signal.SIGKILL)
        provider.wait()
        await deployment.kubectl("delete", "nodes", "--selector=bigfleet.lucy.sh/provider=kwoknodes")


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ((), "--kubeconfig is missing"),
        (("--kubeconfig", "/nowhere/config"), "(--kubeconfig) does not exist"),
        (("--kubeconfig", "/", "--provider", "_"), "label"),
    ],
)
def test_a_mistake_on_the_command_line_is_explained(
    options: tuple[str, ...], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_provider(KwokNodes, options) == 1
    assert text in capsys.readouterr().err


async def _least_privileged(deployment: Deployment, namespace: str) -> Path:
    """A kubeconfig of somebody who may do what the README asks for."""
    readme = " ".join((Path(next(iter(example.__path__))) / "README.md").read_text().split())
    needs = readme.split("What it must be allowed to do there: ")[1].split(". ")[0]
    rules = [
        {
            "apiGroups": [""],
            "resources": [resource],
            "verbs": re.findall("`([a-z]+)`", verbs),
        }
        for verbs, resource in re.findall(r"((?:`[a-z]+`,? )+)on `([a-z/]+)`", needs)
    ]
    rbac = {"apiVersion": "rbac.authorization.k8s.io/v1"}
    subject = {"kind": "ServiceAccount", "name": "default", "namespace": namespace}
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": deployment.name}
    name = {"metadata": {"name": deployment.name}}
    binding = {"kind": "ClusterRoleBinding", "roleRef": reference, "subjects": [subject]}
    for manifest in ({"kind": "ClusterRole", "rules": rules}, binding):
        await deployment.kubectl("create", "--filename=-", stdin={**rbac, **name, **manifest})
    token = await deployment.kubectl("create", "token", "default", f"--namespace={namespace}")
    config = json.loads(deployment.server.kubeconfig.read_text())
    config["users"][0]["user"] = {"token": token.strip()}
    path = deployment.folder / "least"
    path.write_text(json.dumps(config))
    return path


@asynccontextmanager
async def _process(deployment: Deployment, offers: Path) -> "AsyncIterator[rpc.CapacityProviderAsyncStub]":
    """The provider as a process, which ends by kill -9."""
    socket = deployment.folder / "socket"
    socket.unlink(missing_ok=True)
    command = [
        *(sys.executable, "-m", "bigfleet_providerkit.examples.kwoknodes"),
        *("--kubeconfig", str(deployment.server.kubeconfig), "--provider", deployment.name),
        *("--offerings", str(offers), "--state", str(deployment.store), "--quarantine", f"{QUARANTINE_S}s"),
        *("--addr", f"unix:{socket}", "--metrics-addr", "0"),
    ]
    with (deployment.folder / "log").open("ab") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)  # noqa: ASYNC220  # it is only ever polled
    try:
        await eventually(lambda: process.poll() is not None or socket.exists(), seconds=30)
        assert process.poll() is None, (deployment.folder / "log").read_text()
        async with aio.insecure_channel(f"unix:{socket}") as channel:
            await asyncio.wait_for(channel.channel_ready(), 30)
            yield rpc.CapacityProviderStub(channel)
    finally:
        process.kill()
        process.wait()


async def _settle(stub: "rpc.CapacityProviderAsyncStub") -> None:
    async with asyncio.timeout(30):
        while True:
            found = await by_state(stub)
            if not any(found[state] for state in TRANSITIONAL):
                return
            await asyncio.sleep(0.02)


async def _drain_all(stub: "rpc.CapacityProviderAsyncStub") -> None:
    """Bring every machine to rest with nobody to serve, the Failed ones by their repair."""
    async with asyncio.timeout(30):
        while True:
            found = await by_state(stub)
            if not any(ids for state, ids in found.items() if state not in AT_REST):
                return
            for machine_id in found[MachineState.CONFIGURED]:
                await stub.Drain(pb.DrainRequest(machine_id=machine_id))
            await asyncio.sleep(0.02)


async def _until_nodes(deployment: Deployment, names: set[str]) -> None:
    async with asyncio.timeout(20):
        while True:
            if set(await deployment.nodes()) == names:
                return
            await asyncio.sleep(0.02)


async def _make_ready(deployment: Deployment, node: str) -> None:
    condition = {"type": "Ready", "status": "True", "reason": "Test", "message": "as the test says"}
    patch = json.dumps({"status": {"conditions": [condition]}})
    await deployment.kubectl("patch", "node", node, "--subresource=status", f"--patch={patch}")
