"""Everything a BigFleet capacity provider needs but the machines.

Subclass ``Backend`` and hand it to ``run_provider``.
"""

from collections.abc import Sequence

import bigfleet_base  # noqa: F401  # before anything here can load grpc: it pins TLS 1.3
from bigfleet_base.model import CapacityType
from bigfleet_providerkit.backend import (
    UNBOUND,
    Backend,
    Binding,
    CleanupResult,
    DiscoveredHost,
    Host,
    HostStatus,
    Interruption,
    MachineView,
    Offering,
    Operation,
    PriceUpdate,
)
from bigfleet_providerkit.errors import (
    BackendError,
    InsufficientCapacity,
    NotFound,
    Retryable,
    Terminal,
    Unauthorized,
)


def run_provider(backend: type[Backend], argv: Sequence[str] | None = None) -> int:
    """Run a backend as a process: command line, store, TLS, health, metrics; returns the exit status."""
    # Here and not above: importing the package loads no gRPC.
    from bigfleet_providerkit.cli import main

    return main(backend, argv)


__all__ = [
    "UNBOUND",
    "Backend",
    "BackendError",
    "Binding",
    "CapacityType",
    "CleanupResult",
    "DiscoveredHost",
    "Host",
    "HostStatus",
    "InsufficientCapacity",
    "Interruption",
    "MachineView",
    "NotFound",
    "Offering",
    "Operation",
    "PriceUpdate",
    "Retryable",
    "Terminal",
    "Unauthorized",
    "run_provider",
]
