"""What goes into the core and what comes out of it.

In: events. Out: store writes and, to be performed only once those are durable, effects. Reports tell metrics
and logs what happened; whether anyone listens changes nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, TypeAlias

from bigfleet_providerkit.backend import Interruption, MachineView, Operation, PriceUpdate
from bigfleet_providerkit.records import Kind, Slot

# ---- events


@dataclass(frozen=True, slots=True)
class Token:
    """Who sends a mutation, and when in that sender's life."""

    shard_id: str = ""
    epoch: int = 0
    sequence: int = 0

    def is_zero(self) -> bool:
        """The token of tools and tests, which is not fenced (P-26)."""
        return not self.shard_id and not self.epoch and not self.sequence


@dataclass(frozen=True, slots=True)
class Call:
    """One of the four mutating calls, past the check of the caller's certificate."""

    number: int
    """Chosen by the shell, to find the caller that the answer goes to."""
    kind: Kind
    machine_id: str
    token: Token = Token()
    cluster_id: str = ""
    blob: bytes = field(default=b"", repr=False)
    metadata: dict[str, str] = field(default_factory=dict, repr=False)
    grace: int = 0


@dataclass(frozen=True, slots=True)
class Returned:
    """A backend call ended: with a value, or with an error."""

    call: int
    value: Any = None
    error: BaseException | None = None


@dataclass(frozen=True, slots=True)
class Noticed:
    """The backend's feeds said something."""

    notice: PriceUpdate | Interruption


Event: TypeAlias = Call | Returned | Noticed


# ---- effects


class Code(Enum):
    """The status of an answer, named as gRPC's."""

    OK = "OK"
    INVALID_ARGUMENT = "INVALID_ARGUMENT"
    NOT_FOUND = "NOT_FOUND"
    ALREADY_EXISTS = "ALREADY_EXISTS"
    FAILED_PRECONDITION = "FAILED_PRECONDITION"
    ABORTED = "ABORTED"
    UNIMPLEMENTED = "UNIMPLEMENTED"
    PERMISSION_DENIED = "PERMISSION_DENIED"
    RESOURCE_EXHAUSTED = "RESOURCE_EXHAUSTED"
    INTERNAL = "INTERNAL"
    UNAVAILABLE = "UNAVAILABLE"


@dataclass(frozen=True, slots=True)
class Answer:
    """The end of a call."""

    number: int
    code: Code
    message: str = ""
    ack: bytes = b""
    operation_id: str = ""


@dataclass(frozen=True, slots=True)
class Invoke:
    """Call a method of the backend; its end comes back as ``Returned``."""

    call: int
    method: str
    argument: Operation | MachineView | None = None
    failed_kind: str = ""
    """The second argument of ``cleanup``."""


@dataclass(frozen=True, slots=True)
class Cancel:
    """Stop a backend call if that is possible. It still has to come back as ``Returned``."""

    call: int


# ---- reports, for metrics and logs


@dataclass(frozen=True, slots=True)
class Accepted:
    kind: Kind
    machine_id: str
    operation_id: str
    shard_id: str
    cluster: str


@dataclass(frozen=True, slots=True)
class Replayed:
    kind: Kind
    machine_id: str
    operation_id: str
    shard_id: str


@dataclass(frozen=True, slots=True)
class Refused:
    kind: Kind
    machine_id: str
    shard_id: str
    code: Code
    message: str


@dataclass(frozen=True, slots=True)
class Settled:
    """A transition ended; ``outcome`` is ``ok`` or the class of its ``last_error``."""

    kind: Kind
    machine_id: str
    operation_id: str
    outcome: str
    seconds: float
    last_error: str = ""


@dataclass(frozen=True, slots=True)
class HostLost:
    machine_id: str
    last_error: str


@dataclass(frozen=True, slots=True)
class RepairTried:
    machine_id: str
    outcome: str
    detail: str = ""


@dataclass(frozen=True, slots=True)
class LateResult:
    """A backend call that had been given up on came to its end after all."""

    machine_id: str
    method: str


@dataclass(frozen=True, slots=True)
class Reconciled:
    outcome: str
    detail: str = ""


@dataclass(frozen=True, slots=True)
class PriceRefreshed:
    outcome: str
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Interrupted:
    machine_id: str
    imminent: bool


@dataclass(frozen=True, slots=True)
class Withheld:
    """An offering leaves the lists because the substrate has no capacity for it."""

    offer: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Panicked:
    """A defect: an event that could not be handled. Nothing of it was applied."""

    error: BaseException


Report: TypeAlias = (
    Accepted
    | Replayed
    | Refused
    | Settled
    | HostLost
    | RepairTried
    | LateResult
    | Reconciled
    | PriceRefreshed
    | Interrupted
    | Withheld
    | Panicked
)
Effect: TypeAlias = Answer | Invoke | Cancel


# ---- store writes


@dataclass(frozen=True, slots=True)
class PutMachine:
    """Keep a machine, its marks apart. ``relisted`` takes away the tombstone it had."""

    slot: Slot
    relisted: bool = False


@dataclass(frozen=True, slots=True)
class RemoveMachine:
    """A machine leaves the lists, and with ``forget`` the store; its tombstone stays behind."""

    machine_id: str
    revision: int
    forget: bool


@dataclass(frozen=True, slots=True)
class PutMark:
    machine_id: str
    shard_id: str
    epoch: int
    sequence: int


@dataclass(frozen=True, slots=True)
class PutFloor:
    shard_id: str
    epoch: int


@dataclass(frozen=True, slots=True)
class DropTombstones:
    """Forget every tombstone up to this revision."""

    revision: int


Write: TypeAlias = PutMachine | RemoveMachine | PutMark | PutFloor | DropTombstones


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a batch of events comes to, once its writes are durable or have failed."""

    effects: Sequence[Effect]
    reports: Sequence[Report]


@dataclass(slots=True)
class Image:
    """All that a store holds, as the core starts from it."""

    incarnation: bytes
    """8 random bytes, drawn when the store was made."""
    slots: dict[str, Slot] = field(default_factory=dict)
    floors: dict[str, int] = field(default_factory=dict)
    tombstones: dict[str, int] = field(default_factory=dict)
    """Revision of the removal, by id."""
    dropped_revision: int = 0
    """The highest revision of a tombstone that was dropped."""
    fresh: bool = True
    """Nothing was ever written to it."""
