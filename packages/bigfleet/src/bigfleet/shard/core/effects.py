"""What a shard wants done, as values; the shell has one ``match`` over them."""

from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

from bigfleet_base.model import CapacityType, Preemptor
from bigfleet_base.model.frames import Frame
from bigfleet_base.telemetry.series import CounterSeries, GaugeSeries, HistogramSeries

# To operators


class EndStatus(StrEnum):
    """How a stream is ended from our side; the names are gRPC's."""

    ABORTED = "ABORTED"
    RESOURCE_EXHAUSTED = "RESOURCE_EXHAUSTED"
    UNAVAILABLE = "UNAVAILABLE"


@dataclass(frozen=True, slots=True)
class EndSession:
    session: int
    status: EndStatus
    text: str


@dataclass(frozen=True, slots=True)
class SendFrames:
    """Write these, in order; tell with ``Writable`` when they are written."""

    session: int
    frames: tuple[Frame, ...]


@dataclass(frozen=True, slots=True)
class DropBlob:
    """Forget the blob of a request: nobody will use it."""

    request_id: str


# To providers. ``op`` is answered by one ``CallEnded``. The time an answer may take is in ``budget_ns``.


@dataclass(frozen=True, slots=True)
class Assignment:
    """The five values that a machine carries for the Need it serves (wire.md §8.5)."""

    priority: int
    interruption_penalty: float
    reclamation_penalty: float
    need_fingerprint: str
    group: str


@dataclass(frozen=True, slots=True)
class CreateMachine:
    op: int
    provider: str
    machine_id: str
    assignment: Assignment
    target_cluster: str
    budget_ns: int


@dataclass(frozen=True, slots=True)
class ConfigureMachine:
    op: int
    provider: str
    machine_id: str
    cluster: str
    request_id: str
    """Whose blob to send, which is used up by this; empty: the local stub (B6)."""
    assignment: Assignment
    budget_ns: int


@dataclass(frozen=True, slots=True)
class DrainMachine:
    op: int
    provider: str
    machine_id: str
    grace_s: int
    instruction_id: str
    preemptor: Preemptor | None
    budget_ns: int


@dataclass(frozen=True, slots=True)
class DeleteMachine:
    op: int
    provider: str
    machine_id: str
    capacity_type: CapacityType
    budget_ns: int


@dataclass(frozen=True, slots=True)
class GetMachine:
    """Answered by ``GetEnded``. One for a machine at a time."""

    provider: str
    machine_id: str


@dataclass(frozen=True, slots=True)
class RaiseFloor:
    """Fence older processes of this shard (F6); answered by ``FloorRaised``."""

    provider: str


@dataclass(frozen=True, slots=True)
class ListProvider:
    """Answered by ``Listed``, any number of them, and one ``ListEnded`` or ``ListFailed``."""

    provider: str


# The process


@dataclass(frozen=True, slots=True)
class RunCycle:
    """Advance ``ShardCore.running`` to its end, a slice at a time, then say ``CycleFinished``."""


@dataclass(frozen=True, slots=True)
class KeepRecording:
    """Do not let the recording of what just happened rotate away."""


class LogLevel(StrEnum):
    DEBUG = "debug"
    INFO = "info"
    WARN = "warn"
    ERROR = "error"


LogValue: TypeAlias = str | int | float | bool | tuple[str, ...] | dict[str, float]


@dataclass(frozen=True, slots=True)
class WriteLog:
    level: LogLevel
    msg: str
    fields: tuple[tuple[str, LogValue], ...] = ()


AuditValue: TypeAlias = str | int | float | None


@dataclass(frozen=True, slots=True)
class WriteAudit:
    """One line of the audit log (shard.md R6), keys in the order of simulator.md §8.2."""

    line: tuple[tuple[str, AuditValue], ...]


@dataclass(frozen=True, slots=True)
class Count:
    series: CounterSeries
    labels: tuple[str, ...] = ()
    by: float = 1


@dataclass(frozen=True, slots=True)
class Observe:
    series: HistogramSeries
    value: float
    labels: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Mark:
    """Set one gauge."""

    series: GaugeSeries
    value: float
    labels: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Show:
    """Set all gauges of a series; label sets that are not named become 0."""

    series: GaugeSeries
    values: tuple[tuple[tuple[str, ...], float], ...]


Effect: TypeAlias = (
    EndSession
    | SendFrames
    | DropBlob
    | CreateMachine
    | ConfigureMachine
    | DrainMachine
    | DeleteMachine
    | GetMachine
    | RaiseFloor
    | ListProvider
    | RunCycle
    | KeepRecording
    | WriteLog
    | WriteAudit
    | Count
    | Observe
    | Mark
    | Show
)
