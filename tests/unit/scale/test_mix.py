"""Fleets of given proportions: the knobs do what they say, and the engine has all its decisions to make."""

from collections import Counter

import pytest

from bigfleet.engine.actions import ActionKind
from bigfleet.engine.cycle import CycleInputs, CycleResult, Engine
from bigfleet.engine.options import PARK_AFTER, SECOND
from bigfleet.engine.verdicts import UnmetReason
from bigfleet.scale import RACK_KEY, MixedFleet
from bigfleet_base.model import CapacityType, Machine, MachineState, Need
from bigfleet_base.model.lifecycle import check

FLEET = MixedFleet(machines_total=5_000, clusters=5)


def needs(fleet: MixedFleet) -> list[Need]:
    return [need for _, rows in fleet.rollups() for need in rows]


def classes(machines: list[Machine]) -> int:
    return len(
        {
            (m.instance_type, m.zone, m.capacity_type, m.alloc, m.price_per_hour, m.interruption_probability)
            for m in machines
        }
    )


def test_states_have_their_shares() -> None:
    states = Counter(machine.state for machine in FLEET.machines())
    assert states == {
        MachineState.CONFIGURED: 3_000,
        MachineState.IDLE: 1_000,
        MachineState.SPECULATIVE: 750,
        MachineState.CREATING: 100,
        MachineState.CONFIGURING: 100,
        MachineState.DRAINING: 50,
    }


def test_machines_are_valid_and_unique_and_quota_is_elastic() -> None:
    machines = list(FLEET.machines())
    for machine in machines:
        check(machine)
        if machine.state is MachineState.SPECULATIVE:
            assert machine.capacity_type in (CapacityType.ON_DEMAND, CapacityType.SPOT)
    assert len({machine.id for machine in machines}) == 5_000


def test_types_zones_and_kinds_of_capacity_give_the_classes() -> None:
    fleet = MixedFleet(machines_total=20_000, clusters=5, instance_types=40, zones=3)
    assert classes(list(fleet.machines())) == 40 * 3 * 3


def test_a_rack_holds_one_type_in_one_zone() -> None:
    found: dict[str, set[tuple[str, str]]] = {}
    for machine in FLEET.machines():
        found.setdefault(machine.labels[RACK_KEY], set()).add((machine.instance_type, machine.zone))
    assert len(found) == 5_000 // 50
    assert all(len(kinds) == 1 for kinds in found.values())


def test_unique_hosts_leave_no_two_machines_of_one_class() -> None:
    fleet = MixedFleet(machines_total=500, clusters=1, unique_hosts=True)
    machines = list(fleet.machines())
    pinned = [
        need for need in needs(fleet) if sum(machine.matches(need.profile) for machine in machines) == 1
    ]

    assert classes(machines) == 500
    assert len(pinned) == 1


def test_needs_have_their_shares() -> None:
    rows = needs(FLEET)
    present = {machine.instance_type for machine in FLEET.machines()}
    unmet = [n for n in rows if not present & set(n.profile.requirements[0].values)]
    gangs = [n for n in rows if n.group and n not in unmet]
    large = [n for n in gangs if n.aggregate["cpu"] > 8 * n.min_unit["cpu"]]

    assert len(rows) == 500
    assert (len(unmet), len(gangs), len(large)) == (25, 50, 25)
    assert sum(n.profile.strict_spread is not None for n in rows) == 25
    assert {n.profile.interruption_bucket for n in rows} == set(range(1, 28))
    assert len({n.profile.priority for n in rows}) == 5


@pytest.mark.parametrize("demand", [10, 50, 100])
def test_the_demand_is_the_share_asked_for(demand: int) -> None:
    fleet = MixedFleet(machines_total=50_000, clusters=5, demand=demand)
    have = sum(machine.alloc["cpu"] for machine in fleet.machines())
    assert sum(need.aggregate["cpu"] for need in needs(fleet)) == pytest.approx(have * demand / 100, rel=0.15)


def test_equal_settings_give_equal_fleets_and_another_seed_another_one() -> None:
    again = MixedFleet(machines_total=5_000, clusters=5)
    other = MixedFleet(machines_total=5_000, clusters=5, seed=2)

    assert list(FLEET.machines()) == list(again.machines())
    assert list(FLEET.rollups()) == list(again.rollups())
    assert list(FLEET.machines()) != list(other.machines())
    assert list(FLEET.rollups()) != list(other.rollups())


@pytest.mark.parametrize(
    ("knobs", "message"),
    [
        ({"states": {MachineState.IDLE: 99}}, "99 % in all, must be 100 %"),
        ({"small_gangs": 50, "unmet": 50}, "leave no plain ones"),
    ],
)
def test_shares_that_do_not_add_up_are_refused(knobs: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        MixedFleet(machines_total=100, clusters=1, **knobs)  # type: ignore[arg-type] # one knob at a time


def test_the_engine_finds_every_kind_of_decision_in_it() -> None:
    engine = Engine()
    for machine in FLEET.machines():
        engine.inventory.insert(machine, 0)
    for cluster, rows in FLEET.rollups():
        engine.needs.apply_rollup(cluster, rows, 0)
    first = _cycle(engine, 0)
    for number in range(1, PARK_AFTER):
        _cycle(engine, number)
    last = _cycle(engine, PARK_AFTER)

    assert {action.kind for action in first.decided} == set(ActionKind)
    assert any(verdict.demand.members is not None for verdict in first.verdicts), "no gang folded"
    assert {verdict.reason for verdict in first.verdicts} >= {
        UnmetReason.NONE,
        UnmetReason.NO_MATCHING_SUPPLY,
        UnmetReason.TOPOLOGY_UNSATISFIABLE,
    }
    assert any(verdict.demand.need.acquisition_parked for verdict in last.verdicts), "no gang parked"


def _cycle(engine: Engine, number: int) -> CycleResult:
    return engine.run(CycleInputs(now=(700 + 10 * number) * SECOND))
