"""Providers inside this process to try a mistake on, with short times: what is wrong shows soon."""

import os
import signal
import tempfile
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from unittest import mock

from bigfleet_base.telemetry import Logs
from bigfleet_providerkit import process
from bigfleet_providerkit.backend import Backend, Operation
from bigfleet_providerkit.examples.localproc.backend import LocalProc
from bigfleet_providerkit.examples.localproc.computer import send_signal, session_members
from bigfleet_providerkit.fake import FakeBackend
from bigfleet_providerkit.fake.knobs import read_knobs
from bigfleet_providerkit.fake.server import FakeServer
from bigfleet_providerkit.faults import with_fault_hooks
from bigfleet_providerkit.offerings import seed_offerings
from bigfleet_providerkit.process import Provider, Serving
from bigfleet_providerkit.records import Kind
from bigfleet_providerkit.settings import Settings
from bigfleet_providerkit.work import NANOS

SEEDS: Final = 120
RECOVERY_S: Final = 7.0
"""Within this a lost host shows, and a failed machine is repaired."""
_HOSTED_SEEDS: Final = 24
_KUBECTL: Final = """#!/bin/sh
# A cluster whose Nodes are files next to this one: kubectl --server=URL VERB node NAME …
node="$(dirname "$0")/node-$4"
case "$2" in
get) cat "$node" 2> /dev/null || true ;;
create) cat > /dev/null ;;
patch) echo '{"status": {"conditions": [{"type": "Ready", "status": "True"}]}}' > "$node" ;;
delete) rm -f "$node" ;;
esac
"""


@dataclass(frozen=True)
class Served:
    """Where a provider is, and what the suite is told besides."""

    address: str
    options: dict[str, Any] = field(default_factory=dict)


@asynccontextmanager
async def fake(knobs: Sequence[str]) -> AsyncIterator[Served]:
    """The fake with its fault hooks."""
    backend = FakeBackend(read_knobs(knobs))
    with_fault_hooks(backend)
    settings = Settings(
        provider=backend.name,
        timeouts=dict.fromkeys(Kind, 2 * NANOS),
        reconcile_interval=NANOS // 2,
        quarantine=4 * NANOS,
        fault_hooks=True,
    )
    async with _running(backend, FakeServer, SEEDS, settings) as address:
        yield Served(address)


@asynccontextmanager
async def fake_in_a_cluster(knobs: Sequence[str]) -> AsyncIterator[Served]:
    """The fake, with nodes in a cluster that the suite can look at."""
    backend: Any = FakeBackend(read_knobs(knobs))
    with tempfile.TemporaryDirectory(prefix="wrong-provider-") as folder:
        kubectl = Path(folder) / "kubectl"
        kubectl.write_text(_KUBECTL)
        kubectl.chmod(0o700)

        async def node_ready(op: Operation) -> bool:
            return (Path(folder) / f"node-{op.machine.id}").exists()

        backend.node_ready = node_ready
        path = {"PATH": f"{folder}:{os.environ['PATH']}"}
        async with _running(backend, FakeServer, _HOSTED_SEEDS) as address:
            with mock.patch.dict(os.environ, path):
                yield Served(address, {"readiness_oracle": "http://cluster"})


@asynccontextmanager
async def localproc() -> AsyncIterator[Served]:
    """Machines that really run workloads."""
    with machines() as root:
        async with _running(LocalProc(root, ". ./blob\n"), Provider, _HOSTED_SEEDS) as address:
            yield Served(address, {"workloads": str(root.parent)})


@contextmanager
def machines() -> Iterator[Path]:
    """Where machines of localproc may be; whatever a wrong provider leaves running there is ended."""
    with tempfile.TemporaryDirectory(prefix="wrong-provider-") as folder:
        root = Path(folder) / "machines"
        try:
            yield root
        finally:
            for ref in root.glob("*/ref"):
                send_signal(session_members(ref.read_text().strip()), signal.SIGKILL)


@asynccontextmanager
async def _running(
    backend: Backend, provider: type[Any], seeds: int, settings: Settings | None = None
) -> AsyncIterator[str]:
    backend.standard_offerings = seed_offerings(seeds)
    settings = settings or Settings(provider=backend.name)
    log = Logs(level="error").logger("provider", provider=backend.name)
    server: Provider = provider(backend, settings, Serving(shutdown_window=0.0), log)
    # Nobody has to be told in time that it ends.
    with mock.patch.object(process, "_NOTICE_S", 0.0):
        try:
            await server.start()
            yield server.address
        finally:
            await server.stop()
