"""A queue of keys in the order they first came."""

from dataclasses import dataclass, field


@dataclass(slots=True)
class KeyQueue:
    """Keys by the stamp they were queued with; stamps rise, and several queues may share one count.

    A plain dict would do but for its head: to find the first key it walks over every one taken before.
    """

    stamps: dict[str, int] = field(default_factory=dict)
    order: list[tuple[int, str]] = field(default_factory=list)
    """All keys from ``head`` on; one that has left since, or was queued anew, is skipped."""
    head: int = 0

    def __len__(self) -> int:
        return len(self.stamps)

    def __contains__(self, key: str) -> bool:
        return key in self.stamps

    def put(self, key: str, stamp: int) -> None:
        assert key not in self.stamps, "a key is queued once"
        self.stamps[key] = stamp
        self.order.append((stamp, key))

    def discard(self, key: str) -> None:
        if self.stamps.pop(key, None) is not None:
            self._tidy()

    def first(self) -> int | None:
        """The stamp of the first key."""
        while self.head < len(self.order):
            stamp, key = self.order[self.head]
            if self.stamps.get(key) == stamp:
                return stamp
            self.head += 1
        return None

    def pop(self) -> str:
        """Take the first key."""
        assert self.first() is not None, "the queue is empty"
        _, key = self.order[self.head]
        self.head += 1
        del self.stamps[key]
        self._tidy()
        return key

    def clear(self) -> None:
        self.stamps.clear()
        self.order.clear()
        self.head = 0

    def _tidy(self) -> None:
        if len(self.order) > 2 * len(self.stamps) + 64:
            self.order = [(stamp, key) for key, stamp in self.stamps.items()]
            self.head = 0
