"""What is remembered while Needs are served has a limit, however many places and kinds of Needs there are.

That decisions stay the same when a limit is reached is judged in ``test_crowds``.
"""

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from bigfleet.engine import domains, supply
from bigfleet.engine.cycle import CycleInputs, Engine
from bigfleet.engine.matching import Fit
from bigfleet.engine.supply import Place, Supply
from bigfleet_base.model import Machine, MachineState, Need, ResourceVector, TopologySpread, WhenUnsatisfiable
from tests.engine.dsl import RACK_KEY, gang, idle, need, units, vector

HOST_KEY = "kubernetes.io/hostname"


def test_orders_of_domains_are_forgotten_when_many_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    racks, most, known = 30, 100, list[int]()
    monkeypatch.setattr(domains, "_MOST_KNOWN", most)
    _watch(monkeypatch, domains.Gangs, "_free", lambda gangs: known.append(_known(gangs)))
    machines = [idle(f"m-{n}-{i}", labels={RACK_KEY: f"rack-{n}"}) for n in range(racks) for i in range(9)]
    sizes = [gang("c", 2 + n, group=f"g-{n}") for n in range(20)]

    _decide(machines, sizes)

    assert 2 * racks < max(known) <= most


def test_kinds_of_gangs_are_forgotten_when_many_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    known = list[int]()
    monkeypatch.setattr(domains, "_MOST_FREES", 3)
    _watch(monkeypatch, domains.Gangs, "_free", lambda gangs: known.append(len(gangs._frees)))
    machines = [idle(f"m-{n}", labels={RACK_KEY: f"rack-{n}"}) for n in range(10)]
    kinds = [gang("c", 2, group=f"g-{n}", unit=ResourceVector(cpu=1000 - n)) for n in range(10)]

    _decide(machines, kinds)

    assert max(known) == 3


def test_offers_and_shelves_are_forgotten_when_there_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    offers, shelves = list[int](), list[int]()
    monkeypatch.setattr(supply, "_MOST_OFFERS", 4)
    monkeypatch.setattr(supply, "_MOST_SHELVES", 2)
    _watch(monkeypatch, Supply, "_offer", lambda s: offers.append(len(s.offers)))
    _watch(monkeypatch, Supply, "shelf", lambda s: shelves.append(len(s.shelves)))

    decided = _decide(_hosts(20), [_spread(n) for n in range(5)])

    assert decided == 10 and max(offers) == 4 and max(shelves) == 2


def test_hosts_that_are_sold_out_are_not_looked_into(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = list[Place]()
    first_cost = Supply.first_cost

    def noted(self: Supply, fit: Fit, state: MachineState, affordable: bool, place: Place) -> Any:
        asked.append(place)
        return first_cost(self, fit, state, affordable, place)

    monkeypatch.setattr(Supply, "first_cost", noted)

    decided = _decide(_hosts(20), [need("c", 20 * 4 - 4, priority=9000), *(_spread(n) for n in range(5))])

    assert decided == 20 and set(asked) == {(HOST_KEY, "host-19")}


def _hosts(count: int) -> list[Machine]:
    size = vector(cpu=4, memory="16Gi")
    return [idle(f"m-{n:02}", labels={HOST_KEY: f"host-{n:02}"}, size=size) for n in range(count)]


def _spread(number: int) -> Need:
    """Each of a kind of its own."""
    over_hosts = TopologySpread(HOST_KEY, WhenUnsatisfiable.DO_NOT_SCHEDULE, 1)
    unit = ResourceVector(cpu=1000, memory=1000 + number)
    return need("c", units(8), over_hosts, group=f"g-{number}", unit=unit)


def _decide(machines: Sequence[Machine], needs: Sequence[Need]) -> int:
    """How many actions one cycle decides."""
    engine = Engine()
    for machine in machines:
        engine.inventory.insert(machine, 0)
    engine.needs.apply_rollup("c", list(needs), 0)
    return len(engine.run(CycleInputs(now=0)).decided)


def _known(gangs: domains.Gangs) -> int:
    return sum(free.size() for free in gangs._frees.values())


def _watch(monkeypatch: pytest.MonkeyPatch, owner: type, method: str, look: Callable[[Any], None]) -> None:
    """Look at the owner each time the method has been called."""
    original = getattr(owner, method)

    def watched(self: Any, *arguments: Any) -> Any:
        answer = original(self, *arguments)
        look(self)
        return answer

    monkeypatch.setattr(owner, method, watched)
