"""What a provider's author writes: a class of a few methods; the rest is the kit's (provider.md §12).

Methods may be ``async`` or plain; plain ones run in a thread. Every method that changes the substrate is
called again with the same ``operation_id`` after a crash, so it must find what its first run has made: hand
the id to the substrate as its idempotency token or put it in a tag. A method that a subclass does not
override is a capability the provider does not have.
"""

import argparse
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, Literal

from bigfleet_base.model import CapacityType

MAX_BLOB_BYTES: Final = 8 << 20
"""The largest bootstrap blob that any provider takes (provider.md §5)."""


@dataclass(frozen=True)
class Offering:
    """A kind of machine and how many of it may exist: the quota. Nothing unlisted is ever created."""

    instance_type: str
    zone: str
    capacity_type: CapacityType
    count: int
    price_per_hour: float | None
    """USD; None is an unknown price, which refuses the start rather than look free."""
    interruption_probability: float | None = None
    """Per hour. None is the default of the capacity type: never 0 for SPOT."""
    allocatable: Mapping[str, str] = field(default_factory=dict)
    resources: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    prepaid: bool = False
    """RESERVED capacity that is paid for already and so may cost 0."""


@dataclass(frozen=True)
class Binding:
    """The cluster a host serves and the metadata it was given, as recovered from the host's own tags."""

    cluster: str
    metadata: Mapping[str, str]


UNBOUND = Binding("", {})
"""The binding of a host that is known to serve nobody."""


@dataclass(frozen=True)
class Host:
    """A host that runs. ``allocatable`` and ``resources`` refine the offering's when given."""

    ref: str
    allocatable: Mapping[str, str] | None = None
    resources: Mapping[str, str] | None = None
    binding: Binding | None = None
    """For recovery alone: None when the substrate cannot tell, and then the host is never taken for idle."""


@dataclass(frozen=True)
class DiscoveredHost:
    """A host that already exists. ``offering`` describes one whose machine id no offering of ours has."""

    machine_id: str
    host: Host
    offering: Offering | None = None


@dataclass(frozen=True)
class MachineView:
    """What the kit knows of a machine."""

    id: str
    instance_type: str
    zone: str
    capacity_type: CapacityType
    labels: Mapping[str, str]
    allocatable: Mapping[str, str]
    """What pods can have of it."""
    host_ref: str
    """Empty while there is no host, also for a create that failed before it said which."""
    cluster: str
    metadata: Mapping[str, str] = field(repr=False)
    """To be kept as a tag beside the cluster, so that a lost store can be recovered (P-124)."""


@dataclass(frozen=True)
class Operation:
    """One transition of one machine, as handed to the backend."""

    machine: MachineView
    operation_id: str
    timeout: float
    """Seconds from now until the kit cancels the call and marks the machine Failed."""
    cluster_id: str = ""
    bootstrap_blob: bytes = field(default=b"", repr=False)
    """A secret: never log it. Empty when a Configure is resumed."""
    grace_seconds: int = 0
    """Of a drain: what is left of it, less each time the drain is tried again."""


class HostStatus(Enum):
    """What ``inspect`` found."""

    RUNNING = "running"
    BOOTSTRAPPED = "bootstrapped"
    """Running, and the bootstrap for ``machine.cluster`` has run to its end."""
    STOPPED = "stopped"
    GONE = "gone"
    UNKNOWN = "unknown"


class CleanupResult(Enum):
    """What ``cleanup`` left behind."""

    GONE = "gone"
    """No host, disk or address is left: the machine becomes a free slot."""
    CLEAN = "clean"
    """The host is healthy and serves nobody: the machine becomes Idle."""
    UNKNOWN = "unknown"
    """It cannot be told; the kit asks again later."""


@dataclass(frozen=True)
class PriceUpdate:
    """A new price or hourly interruption probability for an instance type in a zone; None leaves it alone."""

    instance_type: str
    zone: str
    capacity_type: CapacityType
    price_per_hour: float | None = None
    interruption_probability: float | None = None


@dataclass(frozen=True)
class Interruption:
    """The substrate gives notice: an ``imminent`` kill, or else a hint that one is likely."""

    machine_id: str
    imminent: bool


class Backend:
    """One substrate. Override create, configure, drain, and node_ready (or say that configure waits)."""

    name: str = ""
    """The deployment's name, e.g. ``aws-eu-west-1``; constant for the life of its hosts. ``--provider``."""
    version: str = "0"
    readiness: Literal["probe", "actuator-blocks", ""] = ""
    """``probe``: the kit polls node_ready. ``actuator-blocks``: configure returns when the node is Ready."""
    max_blob_bytes: int = MAX_BLOB_BYTES
    """What the substrate can deliver; a Configure with more is refused before anything is touched."""
    standard_offerings: Sequence[Offering] = ()
    """What ``--offerings`` or ``--seed-count`` named; set before the first call."""

    async def offerings(self) -> Sequence[Offering]:
        """The quota; asked again at every reconcile."""
        return self.standard_offerings

    async def discover(self) -> Sequence[DiscoveredHost]:
        """The hosts of ours that exist, found by their tags."""
        return ()

    async def create(self, op: Operation) -> Host:
        """Make a host and return when it runs."""
        raise NotImplementedError

    async def configure(self, op: Operation) -> None:
        """Deliver the blob unmodified and run the bootstrap for ``op.cluster_id``."""
        raise NotImplementedError

    async def node_ready(self, op: Operation) -> bool:
        """Whether the node has joined ``op.cluster_id`` and is Ready; polled, so answer at once."""
        raise NotImplementedError

    async def drain(self, op: Operation) -> None:
        """Let workloads end within ``op.grace_seconds``, then kill; scrub the host for another cluster."""
        raise NotImplementedError

    async def delete(self, op: Operation) -> None:
        """Tear the host down. Not overridden: Delete answers UNIMPLEMENTED."""
        raise NotImplementedError

    async def inspect(self, machine: MachineView) -> HostStatus:
        """Look at the host. Not overridden: lost hosts go unnoticed."""
        raise NotImplementedError

    async def cleanup(self, machine: MachineView, failed_kind: str) -> CleanupResult:
        """Remove what a failed transition left. Not overridden: the kit makes do with drain and delete."""
        raise NotImplementedError

    def prices(self) -> AsyncIterator[PriceUpdate]:
        """Yield prices as they change."""
        raise NotImplementedError

    def interruptions(self) -> AsyncIterator[Interruption]:
        """Yield notices as they come."""
        raise NotImplementedError

    @classmethod
    def add_options(cls, parser: argparse.ArgumentParser) -> None:
        """Declare the substrate's own command-line options."""

    @classmethod
    def from_options(cls, options: argparse.Namespace) -> "Backend":
        """Make the backend from the parsed options; raise ``ValueError`` for a user's mistake."""
        return cls()


OPTIONAL = ("node_ready", "delete", "inspect", "cleanup", "prices", "interruptions", "discover")


def overrides(backend: Backend, method: str) -> bool:
    """Whether the backend has a method of its own; capabilities derive from it."""
    own: Callable[..., object] | None = getattr(type(backend), method, None)
    return own is not getattr(Backend, method) or method in vars(backend)
