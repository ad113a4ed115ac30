"""localproc's machines as Nodes of a real cluster (provider.md §9, §14)."""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from bigfleet_base.api.v1alpha1 import provider_pb2 as pb
from bigfleet_base.model import MachineState
from bigfleet_providerkit.examples.localproc.nodes import Nodes
from tests.component.localproc.test_localproc import files, idle, until
from tests.component.localproc.world import Localproc, in_process, localproc
from tests.support.eventually import eventually
from tests.support.parts import KubeApiserver
from tests.support.parts.tools import BIN
from tests.support.rules import rule


@pytest.fixture
def kubeconfigs(kube_apiserver: KubeApiserver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in which cluster c1 has a kubeconfig, and a PATH with kubectl."""
    folder = tmp_path / "kubeconfigs"
    folder.mkdir()
    (folder / "c1").symlink_to(kube_apiserver.kubeconfig)
    monkeypatch.setenv("PATH", f"{BIN}:{os.environ['PATH']}")
    monkeypatch.setenv("HOME", str(tmp_path))
    return folder


@asynccontextmanager
async def serving(folder: Path, kubeconfigs: Path, hook: str = "") -> AsyncIterator[tuple[Localproc, Any]]:
    nodes = Nodes(kubeconfigs, "localproc")
    async with localproc(folder) as deployment, in_process(deployment, hook, nodes=nodes) as stub:
        yield deployment, stub


def node(server: KubeApiserver, name: str) -> Any:
    """The Node, or None."""
    found = server.get("nodes", f"--field-selector=metadata.name={name}")["items"]
    return found[0] if found else None


@rule("provider.P-113", "conformance.X601")
async def test_a_machine_is_a_ready_node_from_configured_until_it_is_drained(
    kube_apiserver: KubeApiserver, kubeconfigs: Path, tmp_path: Path
) -> None:
    async with serving(tmp_path, kubeconfigs) as (deployment, stub):
        machine = await idle(stub)
        assert node(kube_apiserver, machine) is None
        await stub.Configure(pb.ConfigureRequest(machine_id=machine, cluster_id="c1"))
        record = await until(stub, machine, MachineState.CONFIGURED)
        joined = node(kube_apiserver, machine)
        assert joined["spec"]["providerID"] == f"bigfleet://localproc/{machine}"
        assert joined["metadata"]["labels"]["topology.kubernetes.io/zone"] == record.zone
        assert joined["status"]["allocatable"]["cpu"] == record.allocatable.resources["cpu"]
        assert {c["type"]: c["status"] for c in joined["status"]["conditions"]} == {"Ready": "True"}
        lease = kube_apiserver.get("lease", machine, "--namespace=kube-node-lease")
        assert lease["spec"]["holderIdentity"] == machine
        await stub.Drain(pb.DrainRequest(machine_id=machine))
        await until(stub, machine, MachineState.IDLE)
        assert node(kube_apiserver, machine) is None
        assert files(deployment, machine) == {"lock", "inbox", "ref"}


@rule("provider.P-110")
async def test_a_drain_cordons_the_node_before_its_workloads_are_told_to_end(
    kube_apiserver: KubeApiserver, kubeconfigs: Path, tmp_path: Path
) -> None:
    (tmp_path / "workload").write_text(
        f"trap 'touch {tmp_path}/told; until test -e {tmp_path}/may-end; do sleep 0.05; done; exit' TERM\n"
        f"touch {tmp_path}/runs; while :; do sleep 0.05; done\n"
    )
    hook = f"sh {tmp_path}/workload & until test -e {tmp_path}/runs; do sleep 0.01; done"
    async with serving(tmp_path, kubeconfigs, hook) as (_, stub):
        machine = await idle(stub)
        await stub.Configure(pb.ConfigureRequest(machine_id=machine, cluster_id="c1"))
        await until(stub, machine, MachineState.CONFIGURED)
        await stub.Drain(pb.DrainRequest(machine_id=machine, grace_period_seconds=60))
        await eventually((tmp_path / "told").exists, seconds=30)
        assert node(kube_apiserver, machine)["spec"]["unschedulable"] is True
        (tmp_path / "may-end").touch()
        await until(stub, machine, MachineState.IDLE)


@rule("provider.P-80")
async def test_a_cluster_that_cannot_be_entered_fails_the_machine_and_says_so(
    kubeconfigs: Path, tmp_path: Path
) -> None:
    (kubeconfigs / "c2").write_text("{}")
    async with serving(tmp_path, kubeconfigs) as (_, stub):
        machine = await idle(stub)
        await stub.Configure(pb.ConfigureRequest(machine_id=machine, cluster_id="c2"))
        failed = await until(stub, machine, MachineState.FAILED)
        assert failed.last_error.startswith("configure:substrate:")


async def test_a_cluster_without_a_kubeconfig_has_no_nodes_of_ours(
    kube_apiserver: KubeApiserver, kubeconfigs: Path, tmp_path: Path
) -> None:
    async with serving(tmp_path, kubeconfigs) as (_, stub):
        machine = await idle(stub)
        await stub.Configure(pb.ConfigureRequest(machine_id=machine, cluster_id=".."))
        await until(stub, machine, MachineState.CONFIGURED)
        assert node(kube_apiserver, machine) is None
