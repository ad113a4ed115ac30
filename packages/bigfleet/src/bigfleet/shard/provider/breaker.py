"""The circuit breaker of one provider (P-140).

After five calls in a row without an answer mutations are held back for 10 s. Then one is let through as a
trial; when it fails too, the pause doubles, up to two minutes. Reads are never held back, so List keeps
looking, and the first answer of any kind ends it all.
"""

from enum import Enum, auto
from typing import Final

from bigfleet.shard.provider.retry import SECOND

FAILURES_TO_OPEN: Final = 5
FIRST_PAUSE: Final = 10 * SECOND
LONGEST_PAUSE: Final = 120 * SECOND


class Permit(Enum):
    """With which right an attempt is sent."""

    READ = auto()
    MUTATION = auto()
    TRIAL = auto()
    """The one mutation that may find out whether the provider is back."""


class Breaker:
    """Give every attempt a permit, and tell how it went with the same permit."""

    def __init__(self) -> None:
        self._failures = 0
        self._pause = 0
        self._until = 0
        self._on_trial = False

    @property
    def is_open(self) -> bool:
        """Whether mutations are held back, a trial excepted."""
        return self._pause > 0

    def admit(self, now: int) -> Permit | None:
        """A permit for a mutation, or None when it must not be sent."""
        if not self.is_open:
            return Permit.MUTATION
        if not self.would_admit(now):
            return None
        self._on_trial = True
        return Permit.TRIAL

    def would_admit(self, now: int) -> bool:
        """Whether a mutation would get a permit."""
        return not self.is_open or (now >= self._until and not self._on_trial)

    def answered(self) -> None:
        """The provider has answered an attempt, whatever it said."""
        self._failures = self._pause = 0
        self._on_trial = False

    def failed(self, permit: Permit, now: int) -> None:
        """An attempt had no answer."""
        if permit is Permit.TRIAL:
            self._on_trial = False
            self._open(min(2 * self._pause, LONGEST_PAUSE), now)
        # While it is open, calls that were under way when it opened, and reads, tell nothing new.
        elif not self.is_open:
            self._failures += 1
            if self._failures >= FAILURES_TO_OPEN:
                self._open(FIRST_PAUSE, now)

    def abandoned(self, permit: Permit) -> None:
        """Nobody will know how the attempt went: its caller gave up."""
        if permit is Permit.TRIAL:
            self._on_trial = False

    def _open(self, pause: int, now: int) -> None:
        self._pause = pause
        self._until = now + pause
