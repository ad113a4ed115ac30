"""Every series a BigFleet process exports: one module per role, one constant per series.

Names are a contract with dashboards and alerts. Which of them mean what: observability.md §2–§5.
"""

from enum import StrEnum
from types import MappingProxyType
from typing import Final

from bigfleet_base.telemetry.catalogue import (
    coordinator,
    harness,
    operator,
    podcontroller,
    process,
    provider,
    shard,
)
from bigfleet_base.telemetry.series import Series


class Role(StrEnum):
    """The processes that export metrics."""

    SHARD = "shard"
    COORDINATOR = "coordinator"
    OPERATOR = "operator"
    POD_CONTROLLER = "podcontroller"
    PROVIDER = "provider"
    HARNESS = "harness"
    """Load driver, node creator and simulated operators; never part of a product process."""


TABLES: Final = MappingProxyType[Role, tuple[Series, ...]](
    {
        Role.SHARD: shard.SERIES,
        Role.COORDINATOR: coordinator.SERIES,
        Role.OPERATOR: operator.SERIES,
        Role.POD_CONTROLLER: podcontroller.SERIES,
        Role.PROVIDER: provider.SERIES,
        Role.HARNESS: harness.SERIES,
    }
)
"""The series of each role. Every process has those of ``process`` as well."""

__all__ = [
    "TABLES",
    "Role",
    "coordinator",
    "harness",
    "operator",
    "podcontroller",
    "process",
    "provider",
    "shard",
]
