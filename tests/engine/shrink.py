"""Making a failing fleet small enough to read and to commit.

``shrunk`` takes away whatever the failure does not need: steps, machines, roll-up rows, events. A description
refers to Needs by index only, so what is left keeps its meaning (see ``fleets``).
"""

import copy
from collections.abc import Callable, Iterator
from typing import Any, Final

from tests.engine.fleets import Description

PLAIN: Final[dict[str, Any]] = {
    "for": None,
    "folded": False,
    "preempted_for": None,
    "last_value": 0.0,
    "age": 0,
    "dwell": [1],
    "price": 0.0,
    "p": 0.0,
}
"""Machine fields worth clearing, so that what a failure does not need is not there to be read."""


def shrunk(fleet: Description, fails: Callable[[Description], bool]) -> Description:
    """The smallest description reached by leaving things out one at a time that still fails."""
    assert fails(fleet), "only a failing fleet can be shrunk"
    smaller = True
    while smaller:
        smaller = False
        for candidate in _smaller(fleet):
            if fails(candidate):
                fleet, smaller = candidate, True
                break
    return _without_unused_needs(fleet)


def _smaller(fleet: Description) -> Iterator[Description]:
    for path in _lists(fleet):
        items = _at(fleet, path)
        for size in (len(items) // 2, 1):
            for start in range(0, len(items), size) if size else ():
                candidate = copy.deepcopy(fleet)
                del _at(candidate, path)[start : start + size]
                yield candidate
    for option in fleet["options"]:
        candidate = copy.deepcopy(fleet)
        del candidate["options"][option]
        yield candidate
    for index, machine in enumerate(fleet["machines"]):
        for name, value in PLAIN.items():
            if machine[name] != value:
                candidate = copy.deepcopy(fleet)
                candidate["machines"][index][name] = copy.deepcopy(value)
                yield candidate


def _lists(fleet: Description) -> Iterator[tuple[str | int, ...]]:
    yield ("steps",)
    yield ("machines",)
    for i, step in enumerate(fleet["steps"]):
        yield ("steps", i, "rollups")
        for j in range(len(step["rollups"])):
            yield ("steps", i, "rollups", j, 1)
        for event in ("appear", "vanish", "blocked", "no_session", "held_off", "before", "meanwhile"):
            if event in step:
                yield ("steps", i, event)


def _at(fleet: Description, path: tuple[str | int, ...]) -> list[Any]:
    found: Any = fleet
    for key in path:
        found = found[key]
    assert isinstance(found, list)
    return found


def _without_unused_needs(fleet: Description) -> Description:
    """Needs that nothing refers to any more become empty, so that the indices of the others stay."""
    machines = [*fleet["machines"], *(m for step in fleet["steps"] for m in step["appear"])]
    used = {i for step in fleet["steps"] for _, rows in step["rollups"] for i in rows}
    used |= {i for step in fleet["steps"] for i, _ in step["blocked"]}
    used |= {m["for"] for m in machines}
    used |= {m["preempted_for"][0] for m in machines if m["preempted_for"] is not None}
    blank: Description = {"requirements": [], "spread": [], "aggregate": {}, "min_unit": {}}
    needs = [need if i in used else {**need, **blank} for i, need in enumerate(fleet["needs"])]
    return {**fleet, "needs": needs}
