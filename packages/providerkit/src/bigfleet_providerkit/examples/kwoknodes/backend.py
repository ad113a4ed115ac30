"""Machines that are Node objects and nothing else: kwok plays the kubelet of each.

A machine that serves no cluster is a reservation, known to the kit's store alone. One that serves a cluster
is a Node there, named as the machine is. Its annotations are the substrate's tags: the cluster, the metadata
and the operation that made it, from which a lost store is recovered.
"""

import argparse
import asyncio
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from bigfleet_providerkit.backend import Backend, DiscoveredHost, Host, HostStatus, MachineView, Operation
from bigfleet_providerkit.errors import BackendError, Retryable, Terminal
from bigfleet_providerkit.examples.kwoknodes.api import Api
from bigfleet_providerkit.examples.kwoknodes.kubeconfig import KubeconfigError, read_kubeconfig
from bigfleet_providerkit.examples.kwoknodes.nodes import (
    NODES,
    PROVIDER_LABEL,
    binding_of,
    cluster_of,
    is_ready,
    manifest,
    operation_of,
    provider_id,
)
from bigfleet_providerkit.examples.kwoknodes.pods import empty_node

_LABEL_VALUE: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")


class KwokNodes(Backend):
    """An example provider: machines are Nodes in a real API server, with kwok for a kubelet."""

    name = "kwoknodes"
    readiness = "probe"

    def __init__(self, kubeconfig: Path, provider: str = name) -> None:
        """``kubeconfig`` is a file that all clusters share, or a folder with one for each under its id."""
        self._kubeconfig = kubeconfig
        self._provider = provider
        self._was_discovered = False

    @classmethod
    def add_options(cls, parser: argparse.ArgumentParser) -> None:
        help_text = "kubeconfig of all clusters, or a folder with one for each under the cluster's id"
        parser.add_argument("--kubeconfig", metavar="PATH", default="", help=help_text)

    @classmethod
    def from_options(cls, options: argparse.Namespace) -> Backend:
        if not options.kubeconfig:
            raise ValueError(
                "--kubeconfig is missing; name a kubeconfig, or a folder with one for each cluster"
            )
        path = Path(options.kubeconfig).resolve()
        if not path.exists():
            raise ValueError(f"{options.kubeconfig} (--kubeconfig) does not exist")
        provider = options.provider or cls.name
        if not _LABEL_VALUE.fullmatch(provider):
            raise ValueError(f"--provider {provider!r} cannot be the value of a Node's label; choose another")
        return cls(path, provider)

    async def discover(self) -> Sequence[DiscoveredHost]:
        found = await asyncio.gather(*map(self._nodes, self._kubeconfigs()))
        self._was_discovered = True
        return [
            DiscoveredHost(name := node["metadata"]["name"], Host(name, binding=binding_of(node)))
            for nodes in found
            for node in nodes
        ]

    async def create(self, op: Operation) -> Host:
        return Host(op.machine.id)

    async def configure(self, op: Operation) -> None:
        node = manifest(op.machine, op.cluster_id, op.operation_id, self._provider)
        async with self._api(op.cluster_id) as api:
            if await api.create(NODES, node):
                return
            existing = await api.get(_path(op.machine))
            if existing is not None and not self._is_ours(existing, op.machine):
                raise Terminal(f"cluster {op.cluster_id} has a Node {op.machine.id} that is not ours")
            if existing is None or operation_of(existing) != op.operation_id:
                # Left by a Configure that was given up on while the server was still working at it.
                await api.delete(_path(op.machine))
                raise Retryable("an earlier Node of this machine is being removed", after=0.1)

    async def node_ready(self, op: Operation) -> bool:
        async with self._api(op.cluster_id) as api:
            node = await api.get(_path(op.machine))
        return node is not None and is_ready(node)

    async def drain(self, op: Operation) -> None:
        await self._remove(op.machine, op.grace_seconds)

    async def delete(self, op: Operation) -> None:
        if op.machine.cluster:  # only when a repair calls: a machine that is deleted in earnest serves nobody
            await self._remove(op.machine, 0)

    async def inspect(self, machine: MachineView) -> HostStatus:
        if not machine.cluster:
            return HostStatus.RUNNING
        async with self._api(machine.cluster) as api:
            node = await api.get(_path(machine))
        is_there = node is not None and self._is_ours(node, machine) and cluster_of(node) == machine.cluster
        return HostStatus.BOOTSTRAPPED if is_there else HostStatus.GONE

    async def _nodes(self, kubeconfig: Path) -> Sequence[Mapping[str, Any]]:
        """The Nodes of ours that a cluster has."""
        try:
            async with Api(read_kubeconfig(kubeconfig)) as api:
                listed = await api.get(NODES, labelSelector=f"{PROVIDER_LABEL}={self._provider}")
        except (BackendError, KubeconfigError):
            # At the start every cluster must answer: a machine that we miss would be made twice. Later the
            # store knows them all, and one cluster's outage must not blind us to the others.
            if not self._was_discovered:
                raise
            return ()
        nodes: Sequence[Mapping[str, Any]] = listed["items"] if listed else ()
        return nodes

    async def _remove(self, machine: MachineView, grace_seconds: float) -> None:
        """Take the Node out of its cluster, which collects the lease itself: the Node is its owner."""
        async with self._api(machine.cluster) as api:
            node = await api.get(_path(machine))
            if node is None or not self._is_ours(node, machine):
                return
            await api.patch(_path(machine), {"spec": {"unschedulable": True}})
            await empty_node(api, machine.id, grace_seconds)
            await api.delete(_path(machine))

    def _is_ours(self, node: Mapping[str, Any], machine: MachineView) -> bool:
        return bool(node["spec"].get("providerID") == provider_id(self._provider, machine.id))

    def _kubeconfigs(self) -> list[Path]:
        if not self._kubeconfig.is_dir():
            return [self._kubeconfig]
        # A mounted secret has folders of its own among its files, with names that begin with dots.
        return sorted(
            path for path in self._kubeconfig.iterdir() if path.is_file() and not path.name.startswith(".")
        )

    def _api(self, cluster: str) -> Api:
        # Read each time: credentials are renewed under the same name.
        path = self._kubeconfig / cluster if self._kubeconfig.is_dir() else self._kubeconfig
        if not path.is_file():
            raise Retryable(
                f"there is no kubeconfig for cluster {cluster} in {self._kubeconfig}; put it there"
            )
        return Api(read_kubeconfig(path))


def _path(machine: MachineView) -> str:
    return f"{NODES}/{machine.id}"
