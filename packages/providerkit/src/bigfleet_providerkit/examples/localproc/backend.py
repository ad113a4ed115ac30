"""Machines that are process trees: an agent in a session of its own, and whatever its bootstrap starts.

A machine is a directory below ``--root``. Its files are the substrate's tags: like the processes they outlive
the provider, and every method finds in them what an earlier run of it, cut off anywhere, has left behind.

==================  ==================================================================================
``lock``            held by the agent as long as it lives, so that there is never a second one
``ref``             ``pid@starttime`` of the agent, which leads the session of all its machine's processes
``binding.json``    the cluster, its metadata, and the operation that bound the machine to it
``blob``            the bootstrap blob, beside the script ``bootstrap`` that is run with the cluster's id
``exit.OPERATION``  the exit status of that script
==================  ==================================================================================
"""

import argparse
import asyncio
import fcntl
import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Sequence, Set
from importlib.resources import files
from pathlib import Path
from typing import Final

from bigfleet_providerkit.backend import (
    UNBOUND,
    Backend,
    Binding,
    DiscoveredHost,
    Host,
    HostStatus,
    MachineView,
    Offering,
    Operation,
)
from bigfleet_providerkit.errors import NotFound, Terminal
from bigfleet_providerkit.examples.localproc.computer import own_offerings, send_signal, session_members
from bigfleet_providerkit.examples.localproc.nodes import JOIN, Nodes

AGENT: Final = "bigfleet-localproc-agent"
"""Stands in every agent's command line, before its directory."""
_AGENT_SCRIPT: Final = files(__package__).joinpath("agent.sh").read_text()
_DEFAULT_HOOK: Final = "# Joins cluster $1 with what is in ./blob; status 0 means that the node is Ready.\n"
_POLL_S: Final = 0.01


class LocalProc(Backend):
    """An example provider: machines are process trees on this computer."""

    name = "localproc"
    # configure waits for the hook, whose status 0 is the word that the node is Ready.
    readiness = "actuator-blocks"

    def __init__(
        self,
        root: Path,
        hook: str = _DEFAULT_HOOK,
        quota: Sequence[Offering] = (),
        nodes: Nodes | None = None,
    ) -> None:
        self._root = root
        self._hook = hook
        self._quota = quota
        self._nodes = nodes or Nodes(None, self.name)
        root.mkdir(parents=True, exist_ok=True)

    @classmethod
    def add_options(cls, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--root", metavar="DIR", default="", help="where the machines live")
        parser.add_argument(
            "--bootstrap", metavar="FILE", default="", help="shell script that joins a cluster"
        )
        parser.add_argument(
            "--kubeconfigs", metavar="DIR", default="", help="kubeconfigs by cluster id, for Nodes of our own"
        )

    @classmethod
    def from_options(cls, options: argparse.Namespace) -> Backend:
        if not options.root:
            raise ValueError("--root is missing; name a directory for the machines, on a local file system")
        try:
            hook = Path(options.bootstrap).read_text() if options.bootstrap else _DEFAULT_HOOK
        except OSError as error:
            raise ValueError(f"cannot read {options.bootstrap} (--bootstrap): {error.strerror}") from error
        is_given = options.offerings or options.seed_count is not None
        folder = Path(options.kubeconfigs).resolve() if options.kubeconfigs else None
        if folder is not None and not folder.is_dir():
            raise ValueError(f"{options.kubeconfigs} (--kubeconfigs) is not a directory")
        return cls(
            Path(options.root).resolve(),
            hook,
            () if is_given else own_offerings(),
            Nodes(folder, options.provider or cls.name),
        )

    async def offerings(self) -> Sequence[Offering]:
        return self._quota or self.standard_offerings

    async def discover(self) -> Sequence[DiscoveredHost]:
        alive = [folder for folder in sorted(self._root.iterdir()) if _is_alive(folder)]
        return [
            DiscoveredHost(folder.name, Host(_read(folder / "ref"), binding=_binding(folder)))
            for folder in alive
            if _read(folder / "ref")
        ]

    async def create(self, op: Operation) -> Host:
        folder = self._root / op.machine.id
        await asyncio.to_thread(_start_agent, folder)
        while not (ref := _read(folder / "ref")):
            _require_alive(folder)
            await asyncio.sleep(_POLL_S)
        return Host(ref)

    async def configure(self, op: Operation) -> None:
        folder = self._root / op.machine.id
        _require_alive(folder)
        _write(folder / "blob", op.bootstrap_blob)
        if (kubeconfig := self._nodes.kubeconfig(op.cluster_id)) is None:
            _write(folder / "bootstrap", self._hook.encode())
        else:
            _write(folder / "hook", self._hook.encode())
            _write(folder / "bootstrap", JOIN.encode())
            for name, content in self._nodes.files(op.machine, kubeconfig).items():
                _write(folder / name, content)
        bound = {
            "operation": op.operation_id,
            "cluster": op.cluster_id,
            "metadata": dict(op.machine.metadata),
        }
        _write(folder / "binding.json", json.dumps(bound).encode() + b"\n")
        with (folder / "inbox").open("r+b", buffering=0) as inbox:
            inbox.write(f"{op.operation_id} {op.cluster_id}\n".encode())
        while not (status := _read(folder / f"exit.{op.operation_id}")):
            _require_alive(folder)
            await asyncio.sleep(_POLL_S)
        if status != "0":
            raise Terminal(f"the bootstrap hook ended with status {status}")

    async def drain(self, op: Operation) -> None:
        folder = self._root / op.machine.id
        if not _is_alive(folder):
            raise NotFound(f"no agent in {folder}")
        agent = _read(folder / "ref")
        await self._nodes.cordon(op.cluster_id, op.machine.id)
        send_signal(await _workloads(agent), signal.SIGTERM)
        end = time.monotonic() + op.grace_seconds
        while left := await _workloads(agent):
            if time.monotonic() >= end:
                send_signal(left, signal.SIGKILL)
            await asyncio.sleep(_POLL_S)
        await self._nodes.remove(op.cluster_id, op.machine.id)
        # The binding goes last: as long as something of the cluster may be here, it says so.
        _clear(folder, but={"lock", "inbox", "ref", "binding.json"})
        (folder / "binding.json").unlink(missing_ok=True)

    async def delete(self, op: Operation) -> None:
        folder = self._root / op.machine.id
        while _is_alive(folder):
            send_signal(await asyncio.to_thread(session_members, _read(folder / "ref")), signal.SIGKILL)
            await asyncio.sleep(_POLL_S)
        shutil.rmtree(folder, ignore_errors=True)

    async def inspect(self, machine: MachineView) -> HostStatus:
        folder = self._root / machine.id
        if not _is_alive(folder) or machine.host_ref not in ("", _read(folder / "ref")):
            return HostStatus.GONE
        binding = _binding(folder)
        is_joined = binding is not None and binding.cluster == machine.cluster != ""
        return HostStatus.BOOTSTRAPPED if is_joined else HostStatus.RUNNING


def _start_agent(folder: Path) -> None:
    """Start the machine's agent, unless it runs already; the lock goes to one only, whoever else tries."""
    folder.mkdir(exist_ok=True)
    with (folder / "lock").open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return
        # Whatever an earlier agent left behind when it died has no place on a new machine.
        if ref := _read(folder / "ref"):
            send_signal(session_members(ref), signal.SIGKILL)
        _clear(folder, but={"lock"})
        os.mkfifo(folder / "inbox", 0o600)
        command = ["setsid", "--fork", "sh", "-c", _AGENT_SCRIPT, AGENT, str(folder)]
        quiet = subprocess.DEVNULL
        subprocess.run(command, stdin=lock, stdout=quiet, stderr=quiet, check=True)  # noqa: S603  # no input in it


def _clear(folder: Path, *, but: Set[str]) -> None:
    """Remove what is in a machine's directory, whoever put it there."""
    for path in folder.iterdir():
        if path.name in but:
            continue
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()


async def _workloads(agent: str) -> list[int]:
    return await asyncio.to_thread(session_members, agent, but_leader=True)


def _is_alive(folder: Path) -> bool:
    try:
        with (folder / "lock").open() as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except (FileNotFoundError, NotADirectoryError):
        return False
    return False


def _require_alive(folder: Path) -> None:
    if not _is_alive(folder):
        raise Terminal(f"the agent in {folder} is not there or died")


def _binding(folder: Path) -> Binding | None:
    """Whom the machine serves; None while that is being changed, or after it failed (P-124)."""
    text = _read(folder / "binding.json")
    if not text:
        return UNBOUND
    bound = json.loads(text)
    is_joined = _read(folder / f"exit.{bound['operation']}") == "0"
    return Binding(bound["cluster"], bound["metadata"]) if is_joined else None


def _read(path: Path) -> str:
    """The whole of a one-line file, or nothing while it is not there or not written to its end."""
    try:
        text = path.read_text()
    except FileNotFoundError:
        return ""
    return text[:-1] if text.endswith("\n") else ""


def _write(path: Path, content: bytes) -> None:
    """Put a file there whole or not at all, for our eyes only."""
    part = path.with_name(path.name + ".part")
    with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(content)
    part.replace(path)
