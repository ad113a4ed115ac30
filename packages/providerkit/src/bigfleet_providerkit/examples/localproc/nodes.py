"""The machines' Nodes, in clusters that there is a kubeconfig of (provider.md §9, P-113)."""

import asyncio
import json
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any, Final

from bigfleet_providerkit.backend import MachineView
from bigfleet_providerkit.errors import Retryable

JOIN: Final = files(__package__).joinpath("node.sh").read_text()
"""The bootstrap that registers a Node; it runs the hook ``./hook`` first."""


class Nodes:
    """Nodes of clusters whose kubeconfig is in a folder, under the cluster's id. Named as their machines."""

    def __init__(self, folder: Path | None, provider: str) -> None:
        self._folder = folder
        self._provider = provider

    def kubeconfig(self, cluster: str) -> Path | None:
        """The way into a cluster, if there is one."""
        path = self._folder / cluster if self._folder is not None else None
        return path if path is not None and path.is_file() else None

    def files(self, machine: MachineView, kubeconfig: Path) -> Mapping[str, bytes]:
        """What JOIN reads."""
        labels = {
            **machine.labels,
            "kubernetes.io/hostname": machine.id,
            "node.kubernetes.io/instance-type": machine.instance_type,
            "topology.kubernetes.io/zone": machine.zone,
        }
        node = {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": {"name": machine.id, "labels": labels},
            "spec": {"providerID": f"bigfleet://{self._provider}/{machine.id}"},
        }
        size = {"pods": "110", **machine.allocatable}
        ready = {"type": "Ready", "status": "True", "reason": "AgentRuns", "message": "the agent runs"}
        status = {"status": {"capacity": size, "allocatable": size, "conditions": [ready]}}
        return {
            "kubeconfig": str(kubeconfig).encode(),
            "node.json": _json(node),
            "status.json": _json(status),
        }

    async def cordon(self, cluster: str, machine_id: str) -> None:
        """Keep new pods away from the machine."""
        if (kubeconfig := self.kubeconfig(cluster)) is not None:
            patch = _json({"spec": {"unschedulable": True}}).decode()
            # A Node that is not there needs no cordon: the bootstrap never came so far, or we did already.
            if await kubectl(kubeconfig, "get", "node", machine_id, "--ignore-not-found", "--output=name"):
                await kubectl(kubeconfig, "patch", "node", machine_id, f"--patch={patch}")

    async def remove(self, cluster: str, machine_id: str) -> None:
        """Take the Node out of the cluster."""
        if (kubeconfig := self.kubeconfig(cluster)) is not None:
            gone = ("--ignore-not-found", "--wait=false")
            await kubectl(kubeconfig, "delete", "node", machine_id, *gone)
            await kubectl(kubeconfig, "delete", "lease", machine_id, "--namespace=kube-node-lease", *gone)


async def kubectl(kubeconfig: Path, *arguments: str) -> str:
    """What kubectl prints; Retryable when it fails, for clusters come and go."""
    pipe = asyncio.subprocess.PIPE
    try:
        process = await asyncio.create_subprocess_exec(
            "kubectl", f"--kubeconfig={kubeconfig}", *arguments, stdout=pipe, stderr=pipe
        )
    except FileNotFoundError:
        raise Retryable(
            "kubectl is not installed; without it no Node can be taken out of a cluster"
        ) from None
    output, complaint = await process.communicate()
    if process.returncode != 0:
        raise Retryable(f"kubectl {arguments[0]}: {complaint.decode(errors='replace').strip()}")
    return output.decode()


def _json(value: Any) -> bytes:
    return json.dumps(value).encode()
