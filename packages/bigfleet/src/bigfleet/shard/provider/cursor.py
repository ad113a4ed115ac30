"""What the next List asks for: everything, or what changed since the last one (P-138, shard.md §5)."""

from typing import Final

from bigfleet.shard.provider.retry import SECOND

FULL_INTERVAL: Final = 600 * SECOND

MAX_REVISION_BYTES: Final = 4_096
"""A longer revision is not kept: it is sent back with every request."""


class Cursor:
    """Where a provider's stream of changes was left; in memory only, so a restart begins with everything."""

    def __init__(self, *, incremental: bool, full_interval: int = FULL_INTERVAL) -> None:
        self._incremental = incremental
        self._full_interval = full_interval
        self._revision = b""
        self._full_due = 0

    def since(self, now: int, *, honoured: bool | None) -> bytes:
        """The revision to ask from, empty for everything. ``honoured`` is what the provider says of cursors,
        None if nothing."""
        if not self._incremental or honoured is False or now >= self._full_due:
            return b""
        return self._revision

    def merged(self, revision: bytes, *, complete: bool, now: int, jitter: float) -> None:
        """A List has been merged to its end; until then the old position counts, so that nothing is lost.

        ``jitter`` is in [0, 1) and spreads the full lists of a fleet of shards by a tenth of the interval.
        """
        self._revision = revision if len(revision) <= MAX_REVISION_BYTES else b""
        if complete:
            self._full_due = now + int(self._full_interval * (0.9 + 0.1 * jitter))


def is_complete(full: bool | None, *, asked_for_all: bool) -> bool:
    """Whether what an answer does not name is gone. ``full`` is the answer's own word; a peer that does not
    know the field answers completely when it was asked without cursor and cap (P-70)."""
    return asked_for_all if full is None else full
