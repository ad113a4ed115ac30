"""The limit on equal log lines: ten a second each, and a count of those left out."""

from collections import OrderedDict, deque
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar

LINES_PER_SECOND: Final = 10
SECOND_NS: Final = 10**9

# Keys seen within the last second; beyond this, the longest silent one is forgotten early.
MAX_KEYS: Final = 4096

Key = TypeVar("Key", bound=Hashable)


class RateLimit(Generic[Key]):
    """Decides which lines are written. Time is a monotonic number of nanoseconds."""

    def __init__(self) -> None:
        self._recent: OrderedDict[Key, _Recent] = OrderedDict()

    def admit(self, key: Key, now: int) -> int | None:
        """None if the line must not be written, else how many equal ones were left out before it."""
        recent = self._recent.get(key)
        if recent is None:
            recent = self._recent[key] = _Recent()
        self._recent.move_to_end(key)
        recent.seen = now
        if len(recent.written) == LINES_PER_SECOND and now - recent.written[0] < SECOND_NS:
            recent.suppressed += 1
            return None
        recent.written.append(now)
        suppressed, recent.suppressed = recent.suppressed, 0
        return suppressed

    def overdue(self, now: int) -> Iterator[tuple[Key, int]]:
        """Forget keys that have been silent for a second, and give those of them with lines left out that no
        later line has reported, with their number."""
        while self._recent:
            key, recent = next(iter(self._recent.items()))
            if now - recent.seen < SECOND_NS and len(self._recent) <= MAX_KEYS:
                return
            del self._recent[key]
            if recent.suppressed:
                yield key, recent.suppressed


@dataclass(slots=True)
class _Recent:
    written: deque[int] = field(default_factory=lambda: deque(maxlen=LINES_PER_SECOND))
    seen: int = 0
    suppressed: int = 0
