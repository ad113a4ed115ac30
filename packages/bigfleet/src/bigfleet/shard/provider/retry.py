"""How often, how long and after which pause a call is tried again (P-132)."""

from typing import Final

from bigfleet.shard.provider.failures import TRANSIENT_CODES

SECOND: Final = 1_000_000_000

CALL_BUDGET: Final = 30 * SECOND
LIST_BUDGET: Final = 120 * SECOND
"""What a call may take, all attempts and pauses together, when the caller does not say less (shard.md §5)."""

MAX_ATTEMPTS: Final = 3
FIRST_PAUSE: Final = 1 * SECOND
"""Before the second attempt, cut by jitter to between a half and all of it; doubled before the third. A
channel that lost its peer tries to connect again after a second, so a shorter pause would be spent for
nothing."""


class Attempts:
    """The attempts of one call."""

    def __init__(self, now: int, budget: int) -> None:
        self._deadline = now + budget
        self._failed = 0

    @property
    def number(self) -> int:
        """Of the attempt under way, from 1."""
        return self._failed + 1

    def left(self, now: int) -> int:
        """Nanoseconds that the next attempt may take: all that are left, since a provider has the whole
        budget for its answer (P-12)."""
        return max(0, self._deadline - now)

    def pause(self, code: str, now: int, jitter: float) -> int | None:
        """After a failed attempt, nanoseconds until the next one, or None when there is none.

        ``jitter`` is in [0, 1): without it, all calls that one restart has failed would come back at once.
        """
        self._failed += 1
        if code not in TRANSIENT_CODES or self._failed >= MAX_ATTEMPTS:
            return None
        whole = FIRST_PAUSE << (self._failed - 1)
        pause = whole // 2 + int(whole // 2 * jitter)
        return pause if pause < self.left(now) else None
