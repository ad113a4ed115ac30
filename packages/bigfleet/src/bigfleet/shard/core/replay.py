"""The replay of a cluster's machines to a new session, made as the peer reads (shard.md S5, §8.1)."""

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass

from bigfleet.engine.inventory import Inventory
from bigfleet_base.model import MachineState


@dataclass(slots=True)
class Replay:
    """How far a replay is. Until ``begin`` it stands for every machine bound to the cluster."""

    ids: list[str] | None = None
    """The machines bound when it began, by id."""
    next: int = 0
    until: int = 0
    """The stamp of the last frame that was queued before it began: those go first (S6)."""
    marker: bool = False
    """Whether its end is marked: only what was read from a complete inventory may be swept by."""

    def begin(self, ids: list[str], until: int, *, marker: bool) -> None:
        self.ids, self.until, self.marker = ids, until, marker

    def covers(self, machine_id: str) -> bool:
        """Whether it has yet to show the machine, so that a change to it need not be told."""
        if self.ids is None:
            return True
        place = bisect_left(self.ids, machine_id, lo=self.next)
        return place < len(self.ids) and self.ids[place] == machine_id

    def take(self) -> str | None:
        """The next machine, None at the end."""
        assert self.ids is not None, "the replay has not begun"
        if self.next == len(self.ids):
            return None
        self.next += 1
        return self.ids[self.next - 1]


def bound_machines(inventory: Inventory, cluster: str, newly_bound: Iterable[str]) -> list[str]:
    """The ids of a cluster's machines in order, with those whose binding the index may not show yet."""
    found = [
        machine_id
        for state in MachineState
        for cell in inventory.cluster_cells(cluster, state)
        for machine_id in cell.ids
    ]
    extra = set(newly_bound)
    if extra:
        found += extra.difference(found)
    found.sort()
    return found
