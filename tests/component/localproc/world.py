"""localproc as a process of its own, and its machines as the operating system sees them."""

import asyncio
import contextlib
import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

from grpc import aio

from bigfleet_base.api.v1alpha1 import provider_pb2 as pb
from bigfleet_base.api.v1alpha1 import provider_pb2_grpc as rpc
from bigfleet_base.model import MachineState
from bigfleet_providerkit.examples.localproc.backend import AGENT, LocalProc
from bigfleet_providerkit.examples.localproc.nodes import Nodes
from bigfleet_providerkit.offerings import seed_offerings
from bigfleet_providerkit.process import Serving, serve_in_process
from bigfleet_providerkit.settings import Settings
from bigfleet_providerkit.work import NANOS
from tests.support.eventually import eventually

START_S = 30.0
TRANSITIONAL = (MachineState.CREATING, MachineState.CONFIGURING, MachineState.DRAINING, MachineState.DELETING)


class Localproc:
    """One deployment: a root, a store, and now and then a process that serves them."""

    def __init__(self, folder: Path, *options: str, hook: str = "") -> None:
        self.root = folder / "machines"
        self.store = folder / "state.db"
        self.socket = folder / "socket"
        self.log = folder / "log"
        (folder / "hook").write_text(hook)
        self._command = [
            *(sys.executable, "-m", "bigfleet_providerkit.examples.localproc"),
            *("--root", str(self.root), "--state", str(self.store), "--bootstrap", str(folder / "hook")),
            *("--addr", f"unix:{self.socket}", "--metrics-addr", "0", *options),
        ]
        self._process: subprocess.Popen[bytes] | None = None
        self._channel: aio.Channel | None = None

    async def start(self) -> "rpc.CapacityProviderAsyncStub":
        """Start it and connect; returns when it serves."""
        self._spawn()
        await eventually(self._listens, seconds=START_S)
        self._channel = aio.insecure_channel(f"unix:{self.socket}")
        await asyncio.wait_for(self._channel.channel_ready(), START_S)
        return rpc.CapacityProviderStub(self._channel)

    async def kill(self) -> None:
        """kill -9: the provider alone, its machines live on."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None
        if self._channel is not None:
            await self._channel.close()
            self._channel = None

    def lose_store(self) -> None:
        for path in self.store.parent.glob(f"{self.store.name}*"):
            path.unlink()

    def forget_bootstrap(self, machine_id: str) -> None:
        """Take away the file that says how the bootstrap ended."""
        [status] = (self.root / machine_id).glob("exit.*")
        status.unlink()

    def agents(self) -> Counter[str]:
        """How many agents really run, by machine."""
        return Counter(machine for _, machine in agents_below(self.root))

    def kill_agent(self, machine_id: str) -> None:
        [pid] = [pid for pid, machine in agents_below(self.root) if machine == machine_id]
        os.kill(pid, signal.SIGKILL)

    def tagged_cluster(self, machine_id: str) -> str:
        """The cluster that the machine's own files name."""
        path = self.root / machine_id / "binding.json"
        return str(json.loads(path.read_text())["cluster"]) if path.exists() else ""

    def in_transition(self) -> int:
        """Transitions that the store of the dead provider holds as under way."""
        places = ", ".join("?" * len(TRANSITIONAL))
        # In a copy: whoever opens the store repairs it, and that is for the next provider to do.
        copy = self.store.parent / "copy"
        copy.mkdir(exist_ok=True)
        for path in self.store.parent.glob(f"{self.store.name}*"):
            shutil.copy(path, copy)
        with contextlib.closing(sqlite3.connect(copy / self.store.name)) as db:
            row = db.execute(f"SELECT count(*) FROM machines WHERE state IN ({places})", TRANSITIONAL)
            count: int = row.fetchone()[0]
        return count

    def _spawn(self) -> None:
        self.socket.unlink(missing_ok=True)
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(self._command, stdout=log, stderr=log, start_new_session=True)

    def _listens(self) -> bool:
        assert self._process is not None and self._process.poll() is None, self.log.read_text()[-4_000:]
        return self.socket.exists()


@asynccontextmanager
async def localproc(folder: Path, *options: str, hook: str = "") -> AsyncIterator[Localproc]:
    """A deployment of which no process is left afterwards."""
    deployment = Localproc(folder, *options, hook=hook)
    try:
        yield deployment
    finally:
        await deployment.kill()
        leaders = {pid for pid, _ in agents_below(deployment.root)}
        for pid, session in list(_processes()):
            if session in leaders:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)


@asynccontextmanager
async def in_process(
    deployment: Localproc, hook: str = "", *, machines: int = 3, nodes: Nodes | None = None
) -> "AsyncIterator[rpc.CapacityProviderAsyncStub]":
    """The deployment's provider inside this process: quick to start, and as real in all that it does."""
    backend = LocalProc(deployment.root, hook, nodes=nodes)
    backend.standard_offerings = seed_offerings(machines)
    settings = Settings(provider="localproc", reconcile_interval=NANOS // 10, quarantine=NANOS // 5)
    serving = Serving(state=deployment.store)
    async with (
        serve_in_process(backend, settings, serving) as provider,
        aio.insecure_channel(provider.address) as channel,
    ):
        yield rpc.CapacityProviderStub(channel)


def is_running(pid: str) -> bool:
    return Path(f"/proc/{pid}").exists()


async def machines(stub: "rpc.CapacityProviderAsyncStub") -> dict[str, pb.Machine]:
    listed = await stub.List(pb.ListFilter(), timeout=10)
    return {machine.id: machine for machine in listed.machines}


def agents_below(root: Path) -> list[tuple[int, str]]:
    """Every agent that really runs: its process and its machine."""
    found = []
    for pid, session in _processes():
        with contextlib.suppress(OSError):
            words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            # What an agent forks has its command line for a moment, but only the agent leads a session.
            if pid == session and words[0] == b"sh" and AGENT.encode() in words:
                home = Path(os.fsdecode(words[words.index(AGENT.encode()) + 1]))
                if home.parent == root:
                    found.append((pid, home.name))
    return found


def _processes() -> Iterator[tuple[int, int]]:
    """Every process and the leader of its session."""
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            with contextlib.suppress(OSError):
                yield int(folder.name), int((folder / "stat").read_text().rpartition(")")[2].split()[3])
