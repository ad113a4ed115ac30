"""A BigFleet capacity provider. It runs as it is; replace what is marked TODO, from top to bottom.

The kit does the rest: protocol, fencing, idempotency, durable state, restarts, repair, List, TLS, metrics.
Every method may be cut off anywhere and is called again with the same ``operation_id``: each has to find what
an earlier run has made. That is what tags and the substrate's idempotency tokens are for.
"""

import argparse
import asyncio
import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from bigfleet_providerkit import (
    UNBOUND,
    Backend,
    Binding,
    DiscoveredHost,
    Host,
    HostStatus,
    MachineView,
    NotFound,
    Operation,
    run_provider,
)


class MyCloud(Backend):
    """A capacity provider for MyCloud."""  # TODO: the first line of --help

    name = "mycloud"  # TODO: the deployment's name; --provider sets another for each region
    version = "0.1.0"
    # The kit asks node_ready until it says True. "actuator-blocks" instead: configure returns when it would.
    readiness = "probe"

    def __init__(self, cloud: "ToyCloud") -> None:
        # TODO: your client. Write methods whose calls block without async: the kit has threads for them.
        self._cloud = cloud

    @classmethod
    def add_options(cls, parser: argparse.ArgumentParser) -> None:
        # TODO: a region, an endpoint, a file with credentials
        parser.add_argument("--hosts", metavar="DIR", default="hosts", help="where the toy keeps its hosts")

    @classmethod
    def from_options(cls, options: argparse.Namespace) -> Backend:
        # TODO: without credentials raise ValueError with what to do; never fall back to anything simulated
        return cls(ToyCloud(Path(options.hosts)))

    async def discover(self) -> Sequence[DiscoveredHost]:
        # TODO: every host of ours, by tag; this is how bindings survive the loss of --state
        hosts = self._cloud.find()
        return [
            DiscoveredHost(tags["machine"], Host(ref, binding=_binding(tags))) for ref, tags in hosts.items()
        ]

    async def create(self, op: Operation) -> Host:
        # TODO: start a host of op.machine.instance_type in op.machine.zone and wait until it runs; raise
        # InsufficientCapacity when there is none to be had, Retryable when throttled
        ref = await self._cloud.launch(op.operation_id, {"machine": op.machine.id})
        return Host(ref)

    async def configure(self, op: Operation) -> None:
        # TODO: hand op.bootstrap_blob (a secret, for no log) to the host and run it. The binding is tagged
        # before, so that nobody takes the host for free while the bootstrap runs.
        metadata = json.dumps(dict(op.machine.metadata))
        await self._cloud.tag(op.machine.host_ref, {"cluster": op.cluster_id, "metadata": metadata})
        await self._cloud.tag(op.machine.host_ref, {"joined": op.cluster_id})

    async def node_ready(self, op: Operation) -> bool:
        # TODO: whether the cluster's API server says that the node is Ready
        return self._cloud.tags(op.machine.host_ref).get("joined") == op.cluster_id

    async def drain(self, op: Operation) -> None:
        # TODO: let the workloads end within op.grace_seconds, then kill them; remove what the cluster left
        # (credentials, kubelet state, pod data, the Node in it), and the tags last
        await self._cloud.untag(op.machine.host_ref, "joined", "cluster", "metadata")

    async def delete(self, op: Operation) -> None:
        # TODO: give the host back; remove this method if yours never are (bare metal). By tag, not by ref: of
        # a create that failed nobody knows the ref.
        for ref in self._cloud.find(op.machine.id):
            await self._cloud.terminate(ref)

    async def inspect(self, machine: MachineView) -> HostStatus:
        # TODO: ask the substrate, and raise when it does not answer: a host must not be GONE by mistake
        hosts = self._cloud.find(machine.id)
        if not hosts or machine.host_ref not in ("", *hosts):
            return HostStatus.GONE
        is_joined = any(tags.get("joined") == machine.cluster != "" for tags in hosts.values())
        return HostStatus.BOOTSTRAPPED if is_joined else HostStatus.RUNNING


def _binding(tags: Mapping[str, str]) -> Binding | None:
    """Whom a host serves; None while it is joining, which the kit never takes for free."""
    if "cluster" not in tags:
        return UNBOUND
    return Binding(tags["cluster"], json.loads(tags["metadata"])) if "joined" in tags else None


_PAUSE_S = 0.03  # what answers at once hides the mistakes that matter


class ToyCloud:
    """Hosts that are files of tags. TODO: delete this class, and with it goes the last of the toy."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    async def launch(self, token: str, tags: Mapping[str, str]) -> str:
        await asyncio.sleep(_PAUSE_S)
        if not (self._folder / token).exists():  # the same token twice is the same host
            self._write(token, tags)
        return token

    def find(self, machine_id: str = "") -> dict[str, dict[str, str]]:
        hosts = {path.name: self.tags(path.name) for path in self._folder.iterdir() if path.suffix != ".new"}
        return {ref: tags for ref, tags in hosts.items() if machine_id in ("", tags["machine"])}

    def tags(self, ref: str) -> dict[str, str]:
        if not (self._folder / ref).is_file():
            raise NotFound(f"there is no host {ref}")  # which ends a drain and a delete well
        found: dict[str, str] = json.loads((self._folder / ref).read_text())
        return found

    async def tag(self, ref: str, tags: Mapping[str, str]) -> None:
        await asyncio.sleep(_PAUSE_S)
        self._write(ref, {**self.tags(ref), **tags})

    async def untag(self, ref: str, *names: str) -> None:
        await asyncio.sleep(_PAUSE_S)
        self._write(ref, {name: value for name, value in self.tags(ref).items() if name not in names})

    async def terminate(self, ref: str) -> None:
        await asyncio.sleep(_PAUSE_S)
        (self._folder / ref).unlink(missing_ok=True)

    def _write(self, ref: str, tags: Mapping[str, str]) -> None:
        new = self._folder / f"{ref}.new"
        new.write_text(json.dumps(dict(tags)))
        os.replace(new, self._folder / ref)


if __name__ == "__main__":
    sys.exit(run_provider(MyCloud))
