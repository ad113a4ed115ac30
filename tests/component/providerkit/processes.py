"""Starting a provider as a process of its own, and talking to it."""

import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Self

from grpc import aio

from bigfleet_base.api.v1alpha1 import provider_pb2_grpc
from bigfleet_base.wire import dial
from tests.support.parts.process import free_port

ROOT = Path(__file__).parents[3]


class ToyProcess:
    """One run of the toy provider; ``kill`` is ``kill -9``."""

    def __init__(
        self, folder: Path, *arguments: str, module: str = "tests.component.providerkit.toy"
    ) -> None:
        self.port = free_port()
        self.address = f"127.0.0.1:{self.port}"
        self._log = (folder / "provider.log").open("ab")
        self.process = subprocess.Popen(
            [
                *(sys.executable, "-m", module),
                *("--addr", self.address, "--metrics-addr", "0"),
                *("--state", str(folder / "provider.db"), "--hosts", str(folder / "hosts"), *arguments),
            ],
            cwd=ROOT,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
            stdout=self._log,
            stderr=subprocess.STDOUT,
        )

    def wait_open(self, seconds: float = 30) -> None:
        """Return at the first accepted connection."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                raise AssertionError(f"the provider ended with {self.process.returncode}")
            try:
                socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
            except OSError:
                time.sleep(0.01)
            else:
                return
        raise TimeoutError("the provider does not listen")

    def channel(self) -> aio.Channel:
        return dial(self.address, None)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            self.kill()
        self._log.close()


def stub(channel: aio.Channel) -> "provider_pb2_grpc.CapacityProviderAsyncStub":
    return provider_pb2_grpc.CapacityProviderStub(channel)
