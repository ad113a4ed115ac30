"""Fleets of given proportions: the knobs do what they say."""

from collections import Counter

import pytest

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


def test_blocks_of_one_type_in_one_zone_are_racks_of_their_own_where_asked_for() -> None:
    fleet = MixedFleet(machines_total=5_000, clusters=5, racks_per_zone=None)
    found: dict[str, set[tuple[str, str]]] = {}
    for machine in fleet.machines():
        found.setdefault(machine.labels[RACK_KEY], set()).add((machine.instance_type, machine.zone))
    assert len(found) == 5_000 // 50
    assert all(len(kinds) == 1 for kinds in found.values())


def test_otherwise_a_zone_has_ten_racks_with_every_type_in_each() -> None:
    fleet = MixedFleet(machines_total=60_000, clusters=5)
    racks: dict[str, set[str]] = {}
    types: dict[str, set[str]] = {}
    for machine in fleet.machines():
        racks.setdefault(machine.zone, set()).add(machine.labels[RACK_KEY])
        types.setdefault(machine.labels[RACK_KEY], set()).add(machine.instance_type)
    assert [len(found) for found in racks.values()] == [10, 10, 10]
    assert all(len(found) == 40 for found in types.values())


def test_bound_machines_are_stamped_with_a_need_of_their_cluster() -> None:
    rows = {(need.cluster_id, need.profile.fingerprint): need.profile for need in needs(FLEET)}
    bound = [machine for machine in FLEET.machines() if machine.cluster]
    assert bound
    for machine in bound:
        profile = rows[machine.cluster, machine.assigned_need_fingerprint]
        assert machine.assigned_priority == profile.priority
        assert machine.matches(profile)


def test_what_is_being_created_says_for_whom() -> None:
    rows = {(need.cluster_id, need.profile.fingerprint) for need in needs(FLEET)}
    created = [machine for machine in FLEET.machines() if machine.state is MachineState.CREATING]
    assert created
    assert all((m.target_cluster, m.assigned_need_fingerprint) in rows for m in created)


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
    gangs = [n for n in rows if n.group]
    small = [n for n in gangs if n.aggregate["cpu"] <= 8 * n.min_unit["cpu"] and n not in unmet]

    assert len(rows) == 500
    assert (len(unmet), len(gangs), len(small)) == (15, 50, 25)
    assert sum(n in gangs for n in unmet) in (7, 8)
    assert sum(n.profile.strict_spread is not None for n in rows) == 25
    assert {n.profile.interruption_bucket for n in rows} == set(range(1, 28))
    assert {n.profile.reclamation_bucket for n in rows} == set(range(1, 28))
    assert len({n.profile.priority for n in rows}) == 5


def test_clusters_draw_on_the_same_profiles() -> None:
    rows = needs(MixedFleet(machines_total=20_000, clusters=20, profiles=500))
    assert len(rows) == 2_000
    assert len({need.profile.fingerprint for need in rows}) == 500


def asked(fleet: MixedFleet) -> Counter[str]:
    """The machines asked for, by instance type."""
    sizes = {machine.instance_type: machine.alloc["cpu"] for machine in fleet.machines()}
    found: Counter[str] = Counter()
    for need in needs(fleet):
        [instance_type] = need.profile.requirements[0].values
        found[instance_type] += need.aggregate["cpu"] // sizes.get(instance_type, 8 * need.min_unit["cpu"])
    return found


def test_the_demand_as_a_whole_is_as_large_as_the_fleet() -> None:
    fleet = MixedFleet(machines_total=50_000, clusters=10)
    assert asked(fleet).total() == pytest.approx(50_000, rel=0.05)


@pytest.mark.parametrize("demand", [10, 50, 100])
def test_one_type_is_scarce_one_abundant_and_of_the_others_there_is_enough(demand: int) -> None:
    fleet = MixedFleet(machines_total=50_000, clusters=10, demand=demand)
    found = asked(fleet)
    each = 50_000 // 40
    assert found["type-00"] == pytest.approx(2 * each, rel=0.1)
    assert found["type-01"] == pytest.approx(each / 2, rel=0.1)
    for n in range(2, 40):
        assert found[f"type-{n:02}"] == pytest.approx(each * demand * 0.91 / 100, rel=0.2, abs=0.03 * each)


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
        ({"small_gangs": 50, "spread": 50}, "leave no plain ones"),
        ({"large_gangs": 1, "unmet": 3}, "half of 3 % unmet Needs is more than the 1 % large gangs"),
    ],
)
def test_shares_that_do_not_add_up_are_refused(knobs: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        MixedFleet(machines_total=100, clusters=1, **knobs)  # type: ignore[arg-type] # one knob at a time
