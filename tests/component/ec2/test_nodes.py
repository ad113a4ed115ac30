"""Looking at Nodes with kubectl, which is played by a script here."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from bigfleet_base.api.v1alpha1 import provider_pb2 as pb
from bigfleet_base.model import MachineState
from bigfleet_providerkit.examples.ec2 import backend
from bigfleet_providerkit.examples.ec2.nodes import InstanceNodes
from tests.component.ec2.cloud import Cloud
from tests.component.ec2.world import in_process
from tests.support.eventually import eventually
from tests.support.rules import rule

DAEMON = {"metadata": {"ownerReferences": [{"kind": "ReplicaSet"}, {"kind": "DaemonSet"}]}}
MIRROR = {"metadata": {"annotations": {"kubernetes.io/config.mirror": "x"}}}
POD = {"metadata": {"ownerReferences": [{"kind": "ReplicaSet"}]}}
KUBECTL = """#!/bin/sh
echo "$*" >>{folder}/asked
case "$*" in
    *"get node"*jsonpath*) cat {folder}/ready ;;
    *"get node"*) echo node/x ;;
    *"get pods"*) cat {folder}/pods ;;
esac
"""


class Cluster:
    """A cluster c1 as kubectl shows it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.kubeconfigs = folder / "kubeconfigs"
        self.kubeconfigs.mkdir()
        (self.kubeconfigs / "c1").touch()
        (folder / "kubectl").write_text(KUBECTL.format(folder=folder))
        (folder / "kubectl").chmod(0o755)
        (folder / "asked").touch()
        self.set_ready("")
        self.set_pods()

    def set_ready(self, status: str) -> None:
        (self._folder / "ready").write_text(status)

    def set_pods(self, *pods: dict[str, Any]) -> None:
        # Whole or not at all: the provider may be reading it.
        (self._folder / "pods.part").write_text(json.dumps({"items": pods}))
        (self._folder / "pods.part").replace(self._folder / "pods")

    def asked(self) -> str:
        return (self._folder / "asked").read_text()


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    return Cluster(tmp_path)


async def test_a_node_is_ready_when_the_cluster_says_so(cluster: Cluster) -> None:
    nodes = InstanceNodes(cluster.kubeconfigs, "p")
    for status, expected in (("", False), ("False", False), ("Unknown", False), ("True", True)):
        cluster.set_ready(status)
        assert await nodes.is_ready("c1", "m-1") is expected
    assert await nodes.is_ready("no kubeconfig", "m-1")


async def test_a_node_is_empty_when_nothing_is_left_to_evict(cluster: Cluster) -> None:
    nodes = InstanceNodes(cluster.kubeconfigs, "p")
    for pods, expected in (((), True), ((DAEMON, MIRROR), True), ((DAEMON, POD), False)):
        cluster.set_pods(*pods)
        assert await nodes.is_empty("c1", "m-1") is expected
    assert not await nodes.is_empty("no kubeconfig", "m-1")
    assert "spec.nodeName=m-1" in cluster.asked()


@rule("provider.P-110", "provider.P-113")
async def test_a_drain_ends_when_the_last_pod_is_gone_and_takes_the_node_with_it(
    cloud: Cloud, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backend, "_EMPTY_POLL_S", 0.05)
    cluster.set_pods(POD)
    async with in_process(cloud, kubeconfigs=cluster.kubeconfigs) as shard:
        idle = await shard.idle(await shard.slot())
        await shard.configure(idle.id)
        await eventually(lambda: "jsonpath" in cluster.asked())
        assert (await shard.get(idle.id)).state == pb.MACHINE_STATE_CONFIGURING
        cluster.set_ready("True")
        await shard.until(idle.id, MachineState.CONFIGURED)
        stops = cloud.count("StopInstances")
        await shard.drain(idle.id, grace=3600)
        await eventually(lambda: "get pods" in cluster.asked())
        assert "patch node" in cluster.asked() and cloud.count("StopInstances") == stops
        cluster.set_pods(DAEMON)
        await shard.until(idle.id, MachineState.IDLE)
        assert f"delete node {idle.id}" in cluster.asked()
