"""How a call to a provider can fail, in the classes that the shard acts on (shard.md F3, X4)."""

from enum import StrEnum
from typing import Final

from bigfleet.shard.provider.texts import foreign


class FailureKind(StrEnum):
    """What the shard may conclude from a failed call."""

    NOT_SENT = "not sent"
    """The provider was not asked, so nothing has changed there."""
    TRANSIENT = "transient"
    """No answer, or one that says to come back; whether the call took effect is unknown."""
    FENCED = "fenced"
    """A newer process with this shard's identity exists: stop, never try again (F4)."""
    NOT_FOUND = "not found"
    NOT_SUPPORTED = "not supported"
    REFUSED = "refused"
    """The request or the caller is wrong, and would be the next time."""
    FAILED = "failed"
    """Any other status: the machine is in another state, or the provider has a defect."""
    BAD_ANSWER = "bad answer"
    """The call was answered with something that is no record of this machine."""


class CallFailedError(Exception):
    """A call that did not succeed, with the status it ended with."""

    def __init__(
        self, rpc: str, kind: FailureKind, code: str, details: str, sequence: int = 0, attempt: int = 1
    ) -> None:
        details = foreign(details)
        super().__init__(f"{rpc}: {code}: {details}")
        self.rpc = rpc
        self.kind = kind
        self.code = code
        """The name of the gRPC status."""
        self.details = details
        self.sequence = sequence
        """The last sequence number that was sent; 0 for none."""
        self.attempt = attempt
        """The number of the last attempt; 0 if there was none."""


TRANSIENT_CODES: Final = frozenset({"UNAVAILABLE", "DEADLINE_EXCEEDED", "CANCELLED", "RESOURCE_EXHAUSTED"})
"""The codes that are worth another attempt (P-132)."""

TRANSPORT_CODES: Final = TRANSIENT_CODES - {"RESOURCE_EXHAUSTED"}
"""The codes of a provider that did not answer. RESOURCE_EXHAUSTED is an answer: one blob above a limit must
not stop the mutations of every other machine."""


def classify(code: str) -> FailureKind:
    """The class of a status that is not OK."""
    if code in TRANSIENT_CODES:
        return FailureKind.TRANSIENT
    return _KINDS.get(code, FailureKind.FAILED)


_KINDS: Final = {
    "FAILED_PRECONDITION": FailureKind.FENCED,
    "NOT_FOUND": FailureKind.NOT_FOUND,
    "UNIMPLEMENTED": FailureKind.NOT_SUPPORTED,
    "INVALID_ARGUMENT": FailureKind.REFUSED,
    "PERMISSION_DENIED": FailureKind.REFUSED,
    "UNAUTHENTICATED": FailureKind.REFUSED,
}
