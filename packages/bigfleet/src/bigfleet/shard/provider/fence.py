"""The fencing token of a process (shard.md F2)."""

from dataclasses import dataclass


@dataclass(slots=True)
class Fence:
    """One for all providers of a process. ``draw`` belongs right before an attempt is sent, so that a retry
    is never taken for a replay (P-130)."""

    shard_id: str
    epoch: int
    sequence: int = 0
    """The last one drawn."""

    def draw(self) -> int:
        self.sequence += 1
        return self.sequence
