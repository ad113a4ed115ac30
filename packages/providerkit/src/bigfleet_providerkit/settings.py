"""What the core is told about its provider."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from bigfleet_providerkit.backend import MAX_BLOB_BYTES
from bigfleet_providerkit.records import Kind
from bigfleet_providerkit.work import NANOS

MAX_METADATA_KEYS: Final = 1_024
MAX_METADATA_BYTES: Final = 4 << 20

DEFAULT_TIMEOUTS: Final[Mapping[Kind, int]] = MappingProxyType(
    {
        Kind.CREATE: 300 * NANOS,
        Kind.CONFIGURE: 300 * NANOS,
        Kind.DRAIN: 600 * NANOS,
        Kind.DELETE: 300 * NANOS,
    }
)
METHODS: Final = ("create", "configure", "node_ready", "drain", "delete", "inspect", "cleanup")
"""The backend methods that are called per machine, each with its own limits."""
DEFAULT_CONCURRENCY: Final = 32


@dataclass(frozen=True, slots=True)
class Capabilities:
    """Which optional methods the backend has."""

    delete: bool = False
    inspect: bool = False
    cleanup: bool = False
    discover: bool = False
    probe: bool = False
    """Readiness is asked of node_ready; otherwise configure waits for it."""


@dataclass(frozen=True, slots=True)
class Settings:
    """Times are nanoseconds."""

    provider: str
    capabilities: Capabilities = Capabilities()
    version: str = "0"
    max_blob_bytes: int = MAX_BLOB_BYTES
    timeouts: Mapping[Kind, int] = field(default_factory=lambda: DEFAULT_TIMEOUTS)
    describe_timeout: int = 30 * NANOS
    """For offerings, discover and inspect."""
    concurrency: Mapping[str, int] = field(
        default_factory=lambda: dict.fromkeys(METHODS, DEFAULT_CONCURRENCY)
    )
    rates: Mapping[str, float] = field(default_factory=dict)
    reconcile_interval: int = 120 * NANOS
    """0 switches it off."""
    quarantine: int = 60 * NANOS
    """How long Failed stays visible before the first repair (provider.md §6.3)."""
    capacity_quarantine: int = 300 * NANOS
    repair_backoff: tuple[int, int] = (30 * NANOS, 1_800 * NANOS)
    allow_shards: frozenset[str] = frozenset()
    """Shards that may mutate; empty for all."""
    compat: bool = False
    """Ruling R2: no epoch floor, and a negative epoch or sequence is an ordinary token."""
    fault_hooks: bool = False
