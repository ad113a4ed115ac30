"""Which classes suit which Needs, asked once and remembered (engine.md §6)."""

from bigfleet.engine.cells import MachineClass
from bigfleet_base.model import Profile, ResourceVector

_MOST_ANSWERS = 4_000_000
"""Answers kept before the cache starts anew; classes come and go with prices."""


class Matcher:
    """Profile × class, cached across cycles."""

    def __init__(self) -> None:
        self._answers: dict[tuple[str, ResourceVector], dict[int, bool]] = {}
        self._count = 0

    def suits(self, profile: Profile, min_unit: ResourceVector, machine_class: MachineClass) -> bool:
        """Whether a machine of the class meets the Profile and covers the largest unit alone."""
        known = self._answers.setdefault((profile.fingerprint, min_unit), {})
        answer = known.get(machine_class.number)
        if answer is None:
            if self._count >= _MOST_ANSWERS:
                self._answers.clear()
                known = self._answers.setdefault((profile.fingerprint, min_unit), {})
                self._count = 0
            answer = known[machine_class.number] = machine_class.alloc.covers(min_unit) and all(
                r.matches(machine_class.lookup(r.key)) for r in profile.requirements
            )
            self._count += 1
        return answer
