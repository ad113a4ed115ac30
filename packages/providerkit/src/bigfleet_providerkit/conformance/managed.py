"""A provider that the suite starts, kills and stops itself (conformance.md §3.2)."""

import asyncio
import contextlib
import os
import random
import shlex
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from grpc import StatusCode, aio
from grpc_health.v1 import health_pb2, health_pb2_grpc

from bigfleet_providerkit.conformance.connection import Connection, Tls, UnreachableError

BOOT_S: Final = 20.0
_STOP_S: Final = 15.0
_SHOWN_LINES: Final = 15
_READ_BYTES: Final = 1 << 16
_HOST: Final = "127.0.0.1"
_PORTS: Final = range(20_000, 30_000)
"""Below those that systems hand out by themselves, to clients and to servers that ask for any."""


class Managed:
    """One provider command with a state of its own; every boot is on another port."""

    def __init__(self, command: str, seed_count: int, extra: Sequence[str], tls: Tls | None) -> None:
        self._words = [*shlex.split(command), *extra]
        self._seed_count = seed_count
        self._tls = tls
        self.folder = Path(tempfile.mkdtemp(prefix="bigfleet-conformance-"))
        self.state = self.folder / "state.db"
        self._log = self.folder / "output.log"
        # It writes into a pipe and the suite into the log: so a provider whose files can no longer be written
        # (X1005) can still say so.
        self._pipe = self.folder / "output"
        os.mkfifo(self._pipe)
        # Open for writing, too, or it would be at its end whenever nobody else has it open.
        self._said = os.open(self._pipe, os.O_RDWR | os.O_NONBLOCK)
        self._process: subprocess.Popen[bytes] | None = None
        self._claim: socket.socket | None = None

    async def boot(self) -> str:
        """Start it and return its address once it serves; UnreachableError with its last words if not."""
        self._let_go()
        asyncio.get_running_loop().add_reader(self._said, self._listen)
        self._claim = _claim_port()
        address = f"{_HOST}:{self._claim.getsockname()[1]}"
        values = {"{addr}": address, "{state}": str(self.state), "{seed_count}": str(self._seed_count)}
        try:
            with self._pipe.open("wb") as output:
                self._process = subprocess.Popen(  # noqa: ASYNC220, S603  # short, and the user's own command
                    [_filled(word, values) for word in self._words],
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    # Of its own, so that a signal reaches what a wrapper has started and not us.
                    start_new_session=True,
                )
        except OSError as error:
            raise UnreachableError(f"--provider-cmd cannot be started: {error}") from error
        try:
            async with asyncio.timeout(BOOT_S):
                await self._serving(address)
        except TimeoutError:
            raise UnreachableError(
                f"the provider of --provider-cmd does not serve on {address} after {BOOT_S:g} s"
                f"{self.last_words()}"
            ) from None
        return address

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        """Of the process, which leads a session and a group of its own."""
        assert self._process is not None, "it was started"
        return self._process.pid

    def kill(self) -> None:
        """``kill -9``: the next boot finds what the process had made durable."""
        if self._process is not None:
            self._signal(signal.SIGKILL)
            self._process.wait()
            self._process = None

    async def stop(self) -> None:
        """End it, and leave nothing behind."""
        try:
            if self._process is not None:
                self._signal(signal.SIGTERM)
                loop = asyncio.get_running_loop()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    await loop.run_in_executor(None, self._process.wait, _STOP_S)
        finally:
            self.kill()
            self._let_go()
            if self._said >= 0:
                asyncio.get_running_loop().remove_reader(self._said)
                os.close(self._said)
                self._said = -1
            shutil.rmtree(self.folder, ignore_errors=True)

    def output(self) -> str:
        """Everything it has written so far."""
        self._listen()
        return self._log.read_text(errors="replace") if self._log.exists() else ""

    def _listen(self) -> None:
        """Put what it has written since into the log."""
        with contextlib.suppress(BlockingIOError):
            while self._said >= 0:
                said = os.read(self._said, _READ_BYTES)
                with self._log.open("ab") as log:
                    log.write(said)

    def _signal(self, number: int) -> None:
        assert self._process is not None
        # Once it is known to have ended, its number may be somebody else's.
        if self._process.poll() is None:
            os.killpg(self._process.pid, number)

    def _let_go(self) -> None:
        if self._claim is not None:
            self._claim.close()
            self._claim = None

    async def _serving(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        while True:
            if self._process is not None and (status := self._process.poll()) is not None:
                raise UnreachableError(
                    f"the provider of --provider-cmd ended with status {status}{self.last_words()}"
                )
            with contextlib.suppress(OSError):
                _, writer = await asyncio.open_connection(host, int(port))
                writer.close()
                if await self._is_healthy(address):
                    return
            await asyncio.sleep(0.02)

    async def _is_healthy(self, address: str) -> bool:
        connection = Connection(address, self._tls)
        try:
            stub: Any = health_pb2_grpc.HealthStub(connection.channel)  # the published types lack Check
            answer = await stub.Check(health_pb2.HealthCheckRequest(), timeout=5)
        except aio.AioRpcError as error:
            # No health service, or none for the whole server: then an open port has to do.
            return error.code() in (StatusCode.UNIMPLEMENTED, StatusCode.NOT_FOUND)
        else:
            return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)
        finally:
            await connection.close()

    def last_words(self) -> str:
        """Its last lines, to be put behind a sentence."""
        lines = self.output().strip().splitlines()[-_SHOWN_LINES:]
        return "; its last lines:\n  " + "\n  ".join(lines) if lines else "; it wrote nothing"


def _filled(word: str, values: dict[str, str]) -> str:
    for name, value in values.items():
        word = word.replace(name, value)
    return word


def _claim_port() -> socket.socket:
    """A free port, this suite's own for as long as the socket is open.

    Seconds pass until the provider listens, and whoever took the port meanwhile would be taken for it:
    another provider, with machines of the same names. The claim is the UDP port of the same number, which
    keeps all suites of this computer off it, and not the provider.
    """
    for port in random.sample(_PORTS, len(_PORTS)):
        claim = socket.socket(type=socket.SOCK_DGRAM)
        try:
            claim.bind((_HOST, port))
            with socket.socket() as probe:
                probe.bind((_HOST, port))
        except OSError:
            claim.close()
        else:
            return claim
    raise UnreachableError(f"no port of {_PORTS.start} to {_PORTS.stop - 1} is free for the provider")
