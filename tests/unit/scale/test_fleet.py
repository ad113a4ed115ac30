"""Fleets drawn from a catalogue: the tiers hold what the demand takes, and every run gives the same fleet."""

from collections import Counter
from fractions import Fraction

import pytest

from bigfleet.scale import RACK_KEY, REALISTIC, CatalogueFleet, Listing, PriceBook
from bigfleet_base.model import CapacityType, MachineState
from bigfleet_base.model.lifecycle import check
from bigfleet_base.model.requirement import ZONE_KEY

SMALL = CatalogueFleet(pods=50_000, clusters=2)


def test_the_published_five_thousand_machine_fleet_has_its_three_tiers() -> None:
    states = Counter(machine.state for machine in CatalogueFleet(pods=500_000, clusters=20).machines())
    assert states == {
        MachineState.CONFIGURED: 5_784,
        MachineState.IDLE: 1_156,
        MachineState.SPECULATIVE: 17_352,
    }


def test_a_cluster_of_25000_pods_has_as_many_gangs_as_its_weights_make() -> None:
    gangs: Counter[str] = Counter()
    for _, rows in CatalogueFleet(pods=500_000, clusters=20).rollups():
        gangs.update(need.group.rpartition("-")[0] for need in rows if need.group)

    assert gangs["memory-cache"] / 20 == pytest.approx(110, rel=0.05)
    assert gangs["stateful-db"] / 20 == pytest.approx(110, rel=0.05)
    assert gangs["gpu-training-small"] / 20 == pytest.approx(1.8, rel=0.3)
    assert gangs["gpu-training-medium"] / 20 == pytest.approx(1.0, rel=0.3)
    assert "gpu-training-large" not in gangs


def test_equal_settings_give_equal_fleets_and_another_seed_another_demand() -> None:
    again = CatalogueFleet(pods=50_000, clusters=2)
    other = CatalogueFleet(pods=50_000, clusters=2, seed=2)

    assert list(SMALL.machines()) == list(again.machines())
    assert list(SMALL.rollups()) == list(again.rollups())
    assert list(SMALL.rollups()) != list(other.rollups())


def test_the_demand_of_a_cluster_depends_on_no_other_cluster() -> None:
    more = CatalogueFleet(pods=100_000, clusters=4)
    assert dict(more.rollups())["c01"] == dict(SMALL.rollups())["c01"]


def test_every_pod_is_in_exactly_one_need() -> None:
    for cluster, rows in SMALL.rollups():
        workloads = list(SMALL.workloads(cluster))
        pods = sum(workload.replicas for workload in workloads)
        asked = sum(w.size.resources["cpu"] * w.replicas for w in workloads)

        # Only a last gang, which is never cut short, may go beyond.
        assert 25_000 <= pods < 25_000 + 16
        assert sum(need.aggregate["cpu"] for need in rows) == asked


def test_a_gang_is_never_cut_short() -> None:
    crowded = CatalogueFleet(pods=300, clusters=100)
    gangs = [
        workload
        for cluster, _ in crowded.rollups()
        for workload in crowded.workloads(cluster)
        if workload.archetype.gang is not None
    ]
    assert gangs
    for workload in gangs:
        fewest, most = workload.archetype.gang or (0, 0)
        assert fewest <= workload.replicas <= most


def test_rows_of_a_rollup_are_aggregated() -> None:
    for _, rows in SMALL.rollups():
        assert len({need.key for need in rows}) == len(rows)


def test_configured_machines_cover_what_their_clusters_ask_for() -> None:
    fleet = CatalogueFleet(pods=500_000, clusters=20)
    bound = sum(m.alloc["cpu"] for m in fleet.machines() if m.state is MachineState.CONFIGURED)
    asked = sum(need.aggregate["cpu"] for _, rows in fleet.rollups() for need in rows)
    assert bound == pytest.approx(asked, rel=0.05)


def test_machines_are_valid_unique_and_of_every_archetype_in_every_tier() -> None:
    machines = list(SMALL.machines())
    for machine in machines:
        check(machine)
    assert len({machine.id for machine in machines}) == len(machines)
    standing = {t for a in REALISTIC if not a.burst_only for t in a.instance_types}
    for state in (MachineState.CONFIGURED, MachineState.IDLE, MachineState.SPECULATIVE):
        assert {m.instance_type for m in machines if m.state is state} == standing


def test_bound_machines_are_dealt_evenly() -> None:
    fleet = CatalogueFleet(pods=500_000, clusters=20)
    shares = Counter(machine.cluster for machine in fleet.machines() if machine.cluster)
    assert len(shares) == 20
    assert max(shares.values()) - min(shares.values()) <= len(REALISTIC)


def test_machines_for_gangs_fill_racks_of_fifty_and_a_rack_lies_in_one_zone() -> None:
    machines = list(CatalogueFleet(pods=5_000_000, clusters=20, configured=Fraction(0)).machines())
    zones: dict[str, set[str | None]] = {}
    for machine in machines:
        zones.setdefault(machine.labels[RACK_KEY], set()).add(machine.lookup(ZONE_KEY))
    assert all(len(found) == 1 for found in zones.values())
    assert len(zones) == 30
    databases = [m for m in machines if m.state is MachineState.IDLE and m.instance_type == "r6i.4xlarge"]
    assert len({m.labels[RACK_KEY] for m in databases}) == -(-2 * len(databases) // 50)


def test_prices_are_those_of_the_tiers_unless_a_book_lists_the_type() -> None:
    book = PriceBook({"m6i.large": Listing(on_demand=0.5, spot_factor=0.25, spot_probability=0.02)})
    plain = CatalogueFleet(pods=50_000, clusters=2, spot=100)
    priced = CatalogueFleet(pods=50_000, clusters=2, spot=100, prices=book)

    def prices(fleet: CatalogueFleet, capacity_type: CapacityType) -> set[tuple[float, float]]:
        return {
            (m.price_per_hour, m.interruption_probability)
            for m in fleet.machines()
            if m.capacity_type is capacity_type and m.instance_type == "m6i.large"
        }

    assert prices(plain, CapacityType.BARE_METAL) == prices(priced, CapacityType.BARE_METAL) == {(0.0, 0.0)}
    assert prices(plain, CapacityType.ON_DEMAND) == {(1.0, 0.05)}
    assert prices(plain, CapacityType.SPOT) == {(0.3, 0.3)}
    assert prices(priced, CapacityType.ON_DEMAND) == {(0.5, 0.05)}
    assert prices(priced, CapacityType.SPOT) == {(0.125, 0.02)}
