"""One running program: started on loopback, watched until healthy, logged, and always ended."""

import atexit
import contextlib
import http.client
import os
import random
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

HOST = "127.0.0.1"

T = TypeVar("T")


class PartError(Exception):
    """A part did not start, did not become healthy or ended; the text has the end of its log."""


class PortTakenError(PartError):
    """Somebody else took the port between choosing it and listening on it."""


class Process:
    """A program with its log. `kill` ends it; so does the death of this process, whatever the cause."""

    def __init__(self, name: str, command: Sequence[str | Path], folder: Path) -> None:
        self.name = name
        self.log = folder / f"{name}.log"
        self._log_start = self.log.stat().st_size if self.log.exists() else 0
        # The caller's environment stays outside: ETCD_*, KUBECONFIG or a proxy would change what is tested.
        environment = {"PATH": os.defpath, "HOME": str(folder), "TMPDIR": str(folder)}
        self._popen = _spawner.submit(_spawn, command, self.log, environment).result()
        _running.add(self)

    @property
    def pid(self) -> int:
        return self._popen.pid

    @property
    def alive(self) -> bool:
        return self._popen.poll() is None

    def wait_healthy(self, healthy: Callable[[], bool], seconds: float) -> None:
        """Return once `healthy` answers true; kill the process and raise when it does not in time."""

        def settled() -> bool:
            return not self.alive or healthy()

        try:
            wait_until(settled, seconds, f"{self.name} to become healthy")
        except TimeoutError as error:
            self.kill()
            raise PartError(f"{error}\n{self.log_end()}") from None
        if not self.alive:
            self.kill()
            end = self.log_end()
            kind = PortTakenError if "address already in use" in end else PartError
            raise kind(f"{self.name} ended with status {self._popen.returncode} before it was healthy\n{end}")

    def kill(self) -> None:
        """End the program and all of its group with SIGKILL; the second time nothing happens.

        Parts are thrown away, so nobody waits for them to shut down in order.
        """
        if self in _running:  # afterwards the number may belong to somebody else
            _running.remove(self)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)
            self._popen.wait()

    def log_end(self, lines: int = 20) -> str:
        with self.log.open(errors="replace") as file:
            file.seek(self._log_start)
            last = file.readlines()[-lines:]
        return f"the last lines of {self.log}:\n" + "".join(f"  {line.rstrip()}\n" for line in last)


def wait_until(condition: Callable[[], bool], seconds: float, what: str) -> None:
    """Ask until `condition` is true; raise TimeoutError naming `what` when it is not within `seconds`."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {seconds:g} s in vain for {what}")
        time.sleep(0.05)


def http_ok(port: int, path: str, tls: ssl.SSLContext | None = None) -> bool:
    """Whether a part on loopback answers 200, directly: no proxy of the environment is asked."""
    connection = (
        http.client.HTTPSConnection(HOST, port, timeout=2, context=tls)
        if tls
        else http.client.HTTPConnection(HOST, port, timeout=2)
    )
    with contextlib.closing(connection):
        try:
            connection.request("GET", path)
            return connection.getresponse().status == http.HTTPStatus.OK
        except (OSError, http.client.HTTPException):
            return False


def free_port() -> int:
    """A port nobody listens on, from below the range that outgoing connections use.

    A member that is killed must find its port free when it comes back, so it must not be one that the
    kernel may hand to some client in the meantime.
    """
    for _ in range(1000):
        port = random.randrange(10_000, _first_ephemeral_port())
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind((HOST, port))
            return port
    raise PartError("found no free port on loopback")


def with_free_ports(start: Callable[[], T], attempts: int = 5) -> T:
    """Call `start`, which chooses its ports itself, again when one of them was taken meanwhile."""
    for _ in range(attempts - 1):
        with contextlib.suppress(PortTakenError):
            return start()
    return start()


def _first_ephemeral_port() -> int:
    return int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])


# Becomes the program, after asking the kernel to kill it when its parent dies. The parent may have died
# before the request, so that is checked afterwards.
_EXEC = """
import ctypes, os, signal, sys
PR_SET_PDEATHSIG = 1
ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
if os.getppid() != int(sys.argv[1]):
    sys.exit("the process that started this part is gone")
os.execv(sys.argv[2], sys.argv[2:])
"""

# The kernel means the parent *thread*: a part started by a thread that ends would die with it. So one thread
# that lives as long as this process starts them all.
_spawner = ThreadPoolExecutor(max_workers=1, thread_name_prefix="parts")

_running: set[Process] = set()


def _spawn(command: Sequence[str | Path], log: Path, environment: dict[str, str]) -> subprocess.Popen[bytes]:
    wrapper = [sys.executable, "-I", "-S", "-c", _EXEC, str(os.getpid())]
    with log.open("ab") as output:
        return subprocess.Popen(
            [*wrapper, *map(str, command)],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment,
            cwd=log.parent,
            start_new_session=True,
        )


@atexit.register
def _kill_all() -> None:
    for process in list(_running):
        process.kill()
