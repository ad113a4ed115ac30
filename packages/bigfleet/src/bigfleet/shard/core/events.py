"""What happens to a shard, as values: everything the core ever learns, in the order it learns it.

Events are recorded and replayed, so they hold values of ``model`` and plain data alone, nothing secret (blobs
and foreign metadata stay with the shell under the request's id) and only what has changed.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

from bigfleet_base.model import Machine, Need, Preemptor

# Sessions. A session has a number that is never used twice in a process; the shell has checked the Hello and
# the certificate before it tells of one.


@dataclass(frozen=True, slots=True)
class SessionOpened:
    session: int
    cluster: str
    peer: str
    protocol: str


@dataclass(frozen=True, slots=True)
class HelloRepeated:
    """A second Hello of the same cluster on the stream: acknowledged, nothing else (S1)."""

    session: int


@dataclass(frozen=True, slots=True)
class SessionClosed:
    """The stream has ended, whoever ended it; ``error`` is empty for a peer that closed it in order."""

    session: int
    error: str = ""


@dataclass(frozen=True, slots=True)
class Writable:
    """The shell has written so many frames of the session."""

    session: int
    frames: int


@dataclass(frozen=True, slots=True)
class Rollup:
    """A roll-up that decoded. ``order`` builds its rows: n >= 0 stands for row n of the last accepted
    roll-up, -1 for the next of ``fresh``. ``digest`` stands for its bytes without the time."""

    session: int
    timestamp_ns: int
    digest: bytes
    fresh: tuple[Need, ...]
    order: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class RollupRepeated:
    """A roll-up that is byte for byte the last accepted one (I5)."""

    session: int
    timestamp_ns: int


@dataclass(frozen=True, slots=True)
class RollupRefused:
    """A roll-up that was refused whole; the last good demand stays (I1)."""

    session: int
    error: str


@dataclass(frozen=True, slots=True)
class BootstrapAnswered:
    """An operator's answer. The shell keeps the blob under the id until the core uses or drops it."""

    session: int
    request_id: str
    ttl_s: int
    error: str = ""


@dataclass(frozen=True, slots=True)
class ReclaimAcked:
    session: int
    instruction_id: str
    nodes_started: int


@dataclass(frozen=True, slots=True)
class NodeReadiness:
    session: int
    machine_id: str
    node_name: str
    ready: bool


# Providers. ``started`` is when the request was sent: what it says is not newer than that.


@dataclass(frozen=True, slots=True)
class Observed:
    """A provider's record. What its metadata assigns is in the machine's own fields."""

    machine: Machine
    instruction_id: str = ""
    preemptor: Preemptor | None = None


@dataclass(frozen=True, slots=True)
class Failure:
    """A call that did not succeed; ``kind`` is a ``FailureKind``'s value."""

    kind: str
    code: str
    details: str
    sequence: int = 0
    attempt: int = 1
    """The number of the last attempt; 0 if there was none."""


@dataclass(frozen=True, slots=True)
class FloorRaised:
    """The answer to the fence call; None: older processes are fenced, or the provider has no floor (F6)."""

    provider: str
    failure: Failure | None = None


@dataclass(frozen=True, slots=True)
class Listed:
    """Some of what a List has to tell. Ids in ``gone`` are named once, and are gone until they come back;
    ``rejected`` names the ids of records that were refused: they count as seen."""

    provider: str
    started: int
    changed: tuple[Observed, ...] = ()
    gone: tuple[str, ...] = ()
    rejected: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ListEnded:
    """All news of a List have been told."""

    provider: str
    started: int
    complete: bool


@dataclass(frozen=True, slots=True)
class ListFailed:
    provider: str
    error: str


@dataclass(frozen=True, slots=True)
class CallEnded:
    """The answer to a mutation: the provider's record of the machine, or a failure."""

    op: int
    observed: Observed | None = None
    failure: Failure | None = None


@dataclass(frozen=True, slots=True)
class GetEnded:
    """The answer to a Get."""

    provider: str
    machine_id: str
    started: int
    observed: Observed | None = None
    failure: Failure | None = None


class BreakerState(StrEnum):
    """Which mutations a provider is sent."""

    CLOSED = "closed"
    """All."""
    OPEN = "open"
    """None."""
    TRIAL = "trial"
    """One, to find out whether it answers again."""


@dataclass(frozen=True, slots=True)
class BreakerChanged:
    """Mutations to a provider are held back, or no longer."""

    provider: str
    state: BreakerState


# The process


@dataclass(frozen=True, slots=True)
class TimePassed:
    """A time the core asked for has come, or simply some time has passed."""


@dataclass(frozen=True, slots=True)
class CycleFinished:
    """The cycle that ``RunCycle`` started has been run to its end. The times are for the metrics alone."""

    total_ns: int = 0
    phases_ns: tuple[tuple[str, int], ...] = ()
    """By the label of the series; ``reconcile`` is the time spent in merging Lists since the last cycle."""
    put_off: bool = False
    """Whether it did not compare itself with a full pass as it should have, for a critical Need that came
    meanwhile: what comes when is not the same in a replay."""


@dataclass(frozen=True, slots=True)
class PauseFile:
    """Whether the file ``PAUSE`` is there."""

    present: bool


@dataclass(frozen=True, slots=True)
class ShutdownBegun:
    """From here on nothing is started; calls that were sent may still be answered (P2)."""


@dataclass(frozen=True, slots=True)
class CallsAbandoned:
    """The last event of a shutdown: calls that are not answered yet will not be."""


Event: TypeAlias = (
    SessionOpened
    | HelloRepeated
    | SessionClosed
    | Writable
    | Rollup
    | RollupRepeated
    | RollupRefused
    | BootstrapAnswered
    | ReclaimAcked
    | NodeReadiness
    | FloorRaised
    | Listed
    | ListEnded
    | ListFailed
    | CallEnded
    | GetEnded
    | BreakerChanged
    | TimePassed
    | CycleFinished
    | PauseFile
    | ShutdownBegun
    | CallsAbandoned
)
