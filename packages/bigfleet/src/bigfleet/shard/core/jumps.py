"""Changes that nobody expected, believed when three Lists in a row have shown them (shard.md Q2)."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from bigfleet.shard.core.events import Observed

OBSERVATIONS: Final = 3


@dataclass(slots=True)
class Jump:
    observed: Observed
    lists: int = 0
    """Lists in a row that have shown the machine there; -1: the record in the List under way was refused."""


@dataclass(slots=True)
class JumpsState:
    """Of one provider. All are ids of its machines."""

    seen: dict[str, Jump] = field(default_factory=dict)


class Jumps:
    """The machines of one provider that are not where we have them."""

    def __init__(self, state: JumpsState) -> None:
        self.state = state

    def see(self, observed: Observed) -> None:
        """A record shows a machine in another place. It counts when its List has ended."""
        machine = observed.machine
        known = self.state.seen.get(machine.id)
        if known is not None and _place(known.observed) == _place(observed):
            known.observed = observed
        else:
            self.state.seen[machine.id] = Jump(observed)

    def forget(self, machine_id: str) -> None:
        """The machine is where we have it, or it is decided otherwise."""
        self.state.seen.pop(machine_id, None)

    def refused(self, machine_id: str) -> None:
        """The machine's record was refused, which breaks the row."""
        if machine_id in self.state.seen:
            self.state.seen[machine_id].lists = -1

    def list_ended(self, is_told: Callable[[str], bool]) -> tuple[list[str], list[str]]:
        """Count a List: a record that was not repeated is unchanged. Returns the jumps that are certain now,
        and the machines of which this List cannot tell: those are no longer followed."""
        for jump in self.state.seen.values():
            jump.lists += 1
        untold = [machine_id for machine_id in self.state.seen if not is_told(machine_id)]
        for machine_id in untold:
            del self.state.seen[machine_id]
        return [machine_id for machine_id in self.state.seen if self.certain(machine_id)], untold

    def certain(self, machine_id: str) -> Observed | None:
        """Where the machine is, if it is certain that it is not where we have it."""
        jump = self.state.seen.get(machine_id)
        return jump.observed if jump is not None and jump.lists >= OBSERVATIONS else None


def _place(observed: Observed) -> tuple[int, str]:
    return observed.machine.state, observed.machine.cluster
