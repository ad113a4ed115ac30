"""How an operation can end, and what follows from a provider call that failed (shard.md X4, X7)."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from bigfleet.shard.provider import FailureKind


class Outcome(StrEnum):
    """The ends of an operation; the values are those of the metric. Its label has two more that nothing leads
    to, ``transition_raced_to_idle`` and ``other`` (X6)."""

    SUCCESS = "success"
    """Done, accepted, or nothing left to do."""
    CANCELED = "ctx_canceled"
    """Dropped or abandoned by pause, dry run, fence or shutdown (R3)."""
    FENCED = "fenced"
    NO_SESSION = "no_session"
    TRANSITION_ERROR = "transition_error"
    """The call was answered with something that is no record of this machine on its way."""
    BLOB_ERROR = "blob_error"
    """No answer to the bootstrap request in time."""
    BLOB_EXPIRED = "blob_expired"
    """Two blobs in a row were too old before they could be used (B3)."""
    UNSATISFIABLE = "unsatisfiable"
    """The operator says that it cannot make a blob."""
    PROVIDER_ERROR = "provider_error"
    PROVIDER_TRANSIENT = "provider_transient"
    STALE_STATE = "stale_state"
    INVENTORY_MISS = "inventory_miss"
    MISSING_PROFILE = "missing_profile"


@dataclass(frozen=True, slots=True)
class Consequence:
    """What a failed call means for its operation and its machine."""

    outcome: Outcome
    sent: bool = True
    """Whether the provider may have done something: then the machine is verified, else it is taken back."""
    hold_off: bool = False


CONSEQUENCES: Final = {
    FailureKind.NOT_SENT: Consequence(Outcome.PROVIDER_TRANSIENT, sent=False),
    FailureKind.TRANSIENT: Consequence(Outcome.PROVIDER_TRANSIENT),
    FailureKind.FENCED: Consequence(Outcome.FENCED),
    FailureKind.NOT_FOUND: Consequence(Outcome.INVENTORY_MISS),
    FailureKind.NOT_SUPPORTED: Consequence(Outcome.PROVIDER_ERROR, hold_off=True),
    FailureKind.REFUSED: Consequence(Outcome.PROVIDER_ERROR, hold_off=True),
    FailureKind.FAILED: Consequence(Outcome.PROVIDER_ERROR, hold_off=True),
    FailureKind.BAD_ANSWER: Consequence(Outcome.TRANSITION_ERROR, hold_off=True),
}
assert CONSEQUENCES.keys() == set(FailureKind), "a kind of failure without a consequence"
