"""A provider whose hosts are files, so that a test can count them from outside. Run as a process."""

import argparse
import asyncio
import json
import random
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from bigfleet_providerkit import (
    Backend,
    Binding,
    CleanupResult,
    DiscoveredHost,
    Host,
    HostStatus,
    MachineView,
    Operation,
    run_provider,
)


class Toy(Backend):
    """Hosts are files in a folder, one for each operation that made one."""

    name = "toy"
    readiness = "actuator-blocks"

    def __init__(self, folder: Path, pause: float = 0.03) -> None:
        self._folder = folder
        self._pause = pause
        folder.mkdir(parents=True, exist_ok=True)

    @classmethod
    def add_options(cls, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--hosts", help="folder of the hosts (default: a new temporary one)")
        parser.add_argument("--pause", type=float, default=0.03, help="longest step of a call, seconds")

    @classmethod
    def from_options(cls, options: argparse.Namespace) -> "Toy":
        return cls(Path(options.hosts or tempfile.mkdtemp(prefix="toy-")), options.pause)

    async def discover(self) -> Sequence[DiscoveredHost]:
        return [
            DiscoveredHost(path.name.partition("@")[0], Host(path.name, binding=self._binding(path)))
            for path in self._folder.iterdir()
        ]

    async def create(self, op: Operation) -> Host:
        await self._wait()
        path = self._folder / f"{op.machine.id}@{op.operation_id}"
        if not path.exists():
            path.write_text("{}")
        await self._wait()
        return Host(path.name)

    async def configure(self, op: Operation) -> None:
        await self._wait()
        binding = {"cluster": op.cluster_id, "metadata": dict(op.machine.metadata)}
        self._path(op.machine).write_text(json.dumps(binding))
        await self._wait()

    async def drain(self, op: Operation) -> None:
        await self._wait()
        self._path(op.machine).write_text("{}")
        await self._wait()

    async def delete(self, op: Operation) -> None:
        await self._wait()
        self._remove(op.machine)
        await self._wait()

    async def inspect(self, machine: MachineView) -> HostStatus:
        hosts = self._hosts(machine)
        if not hosts:
            return HostStatus.GONE
        binding = self._binding(hosts[0])
        bound = binding is not None and binding.cluster == machine.cluster != ""
        return HostStatus.BOOTSTRAPPED if bound else HostStatus.RUNNING

    async def cleanup(self, machine: MachineView, failed_kind: str) -> CleanupResult:
        self._remove(machine)
        return CleanupResult.GONE

    async def _wait(self) -> None:
        await asyncio.sleep(random.uniform(0, self._pause))

    def _hosts(self, machine: MachineView) -> list[Path]:
        return sorted(self._folder.glob(f"{machine.id}@*"))

    def _path(self, machine: MachineView) -> Path:
        return self._folder / machine.host_ref

    def _remove(self, machine: MachineView) -> None:
        for path in self._hosts(machine):
            path.unlink(missing_ok=True)

    @staticmethod
    def _binding(path: Path) -> Binding | None:
        try:
            known = json.loads(path.read_text())
        except (OSError, ValueError):
            return None
        return Binding(known.get("cluster", ""), known.get("metadata", {}))


if __name__ == "__main__":
    sys.exit(run_provider(Toy))
