"""Machines that Lists no longer name, and the guard that keeps them for a while (shard.md Q7).

An empty answer of a provider that is just starting looks like a fleet that has vanished. So a removal of a
few is believed at once, and one of many only after three Lists, and after a sample of the machines has been
asked for one by one.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

CONFIRMATIONS: Final = 3
"""Lists in a row that must lack a machine which the guard keeps."""
SAMPLE: Final = 10
"""Machines that are asked for before the guard gives way."""
ALWAYS_FEW: Final = 10
"""As many may always go, unless they are more than half."""


@dataclass(slots=True)
class RemovalsState:
    """Of one provider. All are ids of its machines."""

    missing: dict[str, int] = field(default_factory=dict)
    """How many Lists in a row have lacked the machine; -1: the List under way has named it, in a record that
    was refused."""
    held: int = 0
    """Machines that the guard kept when the last List ended."""
    group: list[str] = field(default_factory=list)
    """Those that go when the sample is confirmed."""
    sample: set[str] = field(default_factory=set)
    """Of these it is not known yet."""


class Removals:
    """Decides which machines of one provider are gone."""

    def __init__(self, state: RemovalsState) -> None:
        self.state = state

    def missing(self, machine_id: str) -> None:
        """A List lacks the machine; until it is seen again, so do those that follow."""
        self.state.missing.setdefault(machine_id, 0)

    def seen(self, machine_id: str) -> None:
        """A List names the machine: it is there, and the next List that lacks it will say so."""
        if self.state.missing.pop(machine_id, None) is not None and machine_id in self.state.sample:
            self._start_again()

    def forget(self, machine_id: str) -> None:
        """The machine is no longer known."""
        self.state.missing.pop(machine_id, None)
        self.state.sample.discard(machine_id)

    def refused(self, machine_id: str) -> None:
        """The machine was named in a record that was refused: it is there, for this List (Q3)."""
        if machine_id in self.state.missing:
            self.state.missing[machine_id] = -1

    def is_gone(self, machine_id: str) -> bool:
        """Whether the last List that could tell has lacked the machine."""
        return self.state.missing.get(machine_id, 0) > 0

    def list_ended(self, machines: int, is_told: Callable[[str], bool]) -> list[str]:
        """Count a List; returns the machines that are gone for good. ``is_told`` says whether the List can
        tell of a machine: not if it is older than what we did to it."""
        missing = self.state.missing
        for machine_id, lists in missing.items():
            missing[machine_id] = lists + 1 if lists < 0 or is_told(machine_id) else lists
        gone = [machine_id for machine_id, lists in missing.items() if lists > 0]
        if not is_mass(len(gone), machines):
            self.state.held = 0
            self._end_sampling()
            return gone
        self.state.held = len(gone)
        return []

    def draw_sample(self) -> list[str]:
        """The machines to be asked for now: none while an answer is out, or nothing held is due."""
        state = self.state
        if state.sample or not state.held:
            return []
        state.group = sorted(m for m, lists in state.missing.items() if lists >= CONFIRMATIONS)
        drawn = evenly_spaced(state.group, SAMPLE)
        state.sample = set(drawn)
        return drawn

    def confirmed(self, machine_id: str) -> list[str]:
        """The provider was asked for a machine and does not have it; returns those that go with it once the
        whole sample is confirmed."""
        state = self.state
        if machine_id not in state.sample:
            return []
        state.sample.discard(machine_id)
        if state.sample:
            return []
        gone = [m for m in state.group if self.is_gone(m)]
        state.held -= len(gone)
        self._end_sampling()
        return gone

    def found(self, machine_id: str) -> None:
        """The provider was asked for a machine and gave any other answer. It stays among the missing: Lists
        lack it all the same, and will not say so again."""
        if machine_id in self.state.sample:
            self._start_again()

    def _start_again(self) -> None:
        self.state.missing = {machine_id: min(lists, 0) for machine_id, lists in self.state.missing.items()}
        self._end_sampling()

    def _end_sampling(self) -> None:
        self.state.group, self.state.sample = [], set()


def is_mass(missing: int, machines: int) -> bool:
    """Whether so many of a provider's machines are too many to be believed gone at once."""
    return (missing > ALWAYS_FEW and 20 * missing > machines) or 2 * missing > machines


def evenly_spaced(ids: list[str], count: int) -> list[str]:
    """So many of the ids, the first and the last among them."""
    if len(ids) <= count:
        return list(ids)
    return [ids[place * (len(ids) - 1) // (count - 1)] for place in range(count)]
