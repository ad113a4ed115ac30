"""What a shard tells an operator, as values; ``wire`` turns them into messages and back."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

from bigfleet_base.model.machine import MachineState
from bigfleet_base.model.requirement import Requirement
from bigfleet_base.model.resources import ResourceVector


class Confidence(StrEnum):
    """How sure the shard is that what it offers can be had."""

    NONE = "none"
    LOW = "low"
    """Only by displacing others."""
    MEDIUM = "medium"
    HIGH = "high"


@dataclass(frozen=True, slots=True)
class HelloAck:
    """The session is installed."""


@dataclass(frozen=True, slots=True)
class RollupAck:
    """The roll-up with this timestamp was read, whether it was taken or held by the guard."""

    timestamp_ns: int


@dataclass(frozen=True, slots=True)
class Resync:
    """The end of a replay: what was not shown is not the cluster's (ruling R10)."""


@dataclass(frozen=True, slots=True)
class BootstrapRequest:
    """Ask for the blob that joins one machine to the cluster."""

    request_id: str
    cluster: str
    requirements: tuple[Requirement, ...]
    machine_id: str
    labels: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class ReclaimInstruction:
    """Tell the operator to cordon and drain one node."""

    instruction_id: str
    node: str
    """The node's name, or the machine's id while nobody has told the name."""
    grace_s: int
    preemptor_priority: int


@dataclass(frozen=True, slots=True)
class NodeState:
    """The state of one machine, for the cluster it is or was bound to."""

    machine_id: str
    cluster: str
    state: MachineState
    provider_id: str
    last_error: str
    labels: Mapping[str, str]
    resources: ResourceVector
    node_name: str


@dataclass(frozen=True, slots=True)
class AvailableCapacity:
    """A hint: what a Profile could get now."""

    fingerprint: str
    requirements: tuple[Requirement, ...]
    resources: ResourceVector
    count: int
    confidence: Confidence
    cost_per_hour: float


Frame: TypeAlias = (
    HelloAck | RollupAck | Resync | BootstrapRequest | ReclaimInstruction | NodeState | AvailableCapacity
)
