"""etcd, alone or as a cluster whose members can be killed and brought back."""

import contextlib
import json
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.support.parts.process import (
    HOST,
    PartError,
    Process,
    free_port,
    http_ok,
    wait_until,
    with_free_ports,
)
from tests.support.parts.tools import tool

HEALTHY_SECONDS = 30


class EtcdMember:
    """One server of a cluster."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name = name
        self._folder = folder
        self._client_port = free_port()
        self._peer_port = free_port()
        self._process: Process | None = None
        self._initial_cluster = ""

    @property
    def endpoint(self) -> str:
        return f"http://{HOST}:{self._client_port}"

    @property
    def peer_url(self) -> str:
        return f"http://{HOST}:{self._peer_port}"

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.alive

    @property
    def pid(self) -> int:
        return self._running().pid

    def start(self, initial_cluster: str) -> None:
        """Start without waiting: a member is healthy only once enough of the others are there."""
        self._initial_cluster = initial_cluster
        self._process = Process(
            self.name,
            [
                tool("etcd"),
                f"--name={self.name}",
                f"--data-dir={self._data}",
                f"--listen-client-urls={self.endpoint}",
                f"--advertise-client-urls={self.endpoint}",
                f"--listen-peer-urls={self.peer_url}",
                f"--initial-advertise-peer-urls={self.peer_url}",
                f"--initial-cluster={initial_cluster}",
            ],
            self._folder,
        )

    def wait_healthy(self) -> None:
        self._running().wait_healthy(lambda: http_ok(self._client_port, "/health"), HEALTHY_SECONDS)

    def kill(self) -> None:
        """kill -9: what a crash or a lost host looks like to the others."""
        if self._process:
            self._process.kill()

    def restart(self) -> None:
        """Bring a killed member back with its data, on the addresses the others know."""
        assert not self.alive, f"{self.name} is still running"
        self.start(self._initial_cluster)
        self.wait_healthy()

    def etcdctl(self, *arguments: str) -> str:
        """What etcdctl prints, asked of this member alone."""
        return _etcdctl([self.endpoint], arguments)

    def close(self) -> None:
        """End the member and remove its data (64 MB or more); the log stays."""
        self.kill()
        shutil.rmtree(self._data, ignore_errors=True)

    @property
    def _data(self) -> Path:
        return self._folder / f"{self.name}.data"

    def _running(self) -> Process:
        assert self._process is not None, f"{self.name} was never started"
        return self._process


class EtcdCluster:
    """`size` members on loopback."""

    def __init__(self, folder: Path, size: int = 3) -> None:
        self.members: list[EtcdMember] = []
        self._folder = folder
        self._size = size

    def __enter__(self) -> Self:
        with_free_ports(self._start)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for member in self.members:
            member.close()

    @property
    def endpoints(self) -> list[str]:
        """The client addresses of all members, dead ones too: what a client is configured with."""
        return [member.endpoint for member in self.members]

    def leader(self, seconds: float = 15) -> EtcdMember:
        """The living member that the others follow, waiting for an election that is under way."""
        found: list[EtcdMember] = []

        def elected() -> bool:
            with contextlib.suppress(PartError):
                found[:] = self._leaders()
            return bool(found)

        wait_until(elected, seconds, "etcd to have a leader")
        return found[0]

    def etcdctl(self, *arguments: str) -> str:
        """What etcdctl prints, asked of the members that are alive."""
        return _etcdctl([member.endpoint for member in self.members if member.alive], arguments)

    def _start(self) -> None:
        for member in self.members:
            member.close()
        names = [f"etcd-{number}" for number in range(self._size)]
        self.members = [EtcdMember(name, self._folder) for name in names]
        initial_cluster = ",".join(f"{member.name}={member.peer_url}" for member in self.members)
        try:
            for member in self.members:
                member.start(initial_cluster)
            for member in self.members:
                member.wait_healthy()
        except BaseException:
            for member in self.members:
                member.close()
            raise

    def _leaders(self) -> list[EtcdMember]:
        # The followers may still name one that was killed, or none; only what a member says of itself counts.
        statuses = json.loads(self.etcdctl("endpoint", "status", "--write-out=json"))
        leading = {
            status["Endpoint"]
            for status in statuses
            if status["Status"].get("leader") == status["Status"]["header"]["member_id"]
        }
        return [member for member in self.members if member.alive and member.endpoint in leading]


class Etcd(EtcdCluster):
    """A single server."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, size=1)

    @property
    def endpoint(self) -> str:
        return self.members[0].endpoint

    @property
    def pid(self) -> int:
        return self.members[0].pid


def _etcdctl(endpoints: Sequence[str], arguments: Sequence[str]) -> str:
    done = subprocess.run(
        [tool("etcdctl"), f"--endpoints={','.join(endpoints)}", "--command-timeout=10s", *arguments],
        env={},
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    if done.returncode != 0:
        raise PartError(f"etcdctl {' '.join(arguments)} failed: {done.stderr.strip()}")
    return done.stdout
