"""The catalogue gives the fleets it is calibrated for, and every function counts the same machines."""

import random
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bigfleet.scale import GPU, REALISTIC, Archetype, Size, resources
from bigfleet.scale.sizing import (
    allocation,
    apportion,
    draw_replicas,
    effective_machines,
    gang_floor,
    machine_resources,
    machine_shares,
    mean_replicas,
    pod_shares,
    pods_per_machine,
)

BY_NAME = {archetype.name: archetype for archetype in REALISTIC}


def archetype(**fields: object) -> Archetype:
    defaults: dict[str, object] = {
        "name": "any",
        "weight": 1,
        "instance_types": ("t",),
        "sizes": (Size(resources("1", "1Gi")),),
        "priorities": (0,),
        "interruption_penalty": 0,
        "reclamation_penalty": 0,
    }
    return Archetype(**(defaults | fields))  # type: ignore[arg-type] # a keyword for every field


@pytest.mark.parametrize(
    ("name", "machines", "pods"),
    [
        ("tiny-stateless", 66.4, 75.5),
        ("cpu-service", 11.4, 12.9),
        ("cpu-batch", 5.7, 6.5),
        ("memory-cache", 1.55, 1.76),
        ("stateful-db", 1.55, 1.76),
        ("gpu-inference", 5.2, 0.47),
        ("gpu-training-small", 3.1, 0.035),
        ("gpu-training-medium", 4.2, 0.047),
        ("gpu-training-large", 0, 0),
        ("critical-realtime", 0.95, 1.08),
    ],
)
def test_realistic_mix_has_the_calibrated_shares(name: str, machines: float, pods: float) -> None:
    assert float(machine_shares(REALISTIC)[name] * 100) == pytest.approx(machines, abs=0.5)
    assert float(pod_shares(REALISTIC)[name] * 100) == pytest.approx(pods, abs=0.05)


def test_shares_are_exact_and_add_up_to_one() -> None:
    assert sum(pod_shares(REALISTIC).values()) == 1
    assert sum(machine_shares(REALISTIC).values()) == 1


@pytest.mark.parametrize(("pods", "machines"), [(500_000, 5_784), (5_000_000, 56_892), (50_000_000, 567_973)])
def test_pods_take_the_published_number_of_machines(pods: int, machines: int) -> None:
    assert effective_machines(REALISTIC, pods) == machines


def test_gang_floor_is_the_largest_gang_in_every_zone_and_none_for_bursts() -> None:
    floors = {name: gang_floor(a) for name, a in BY_NAME.items() if gang_floor(a)}
    assert floors == {
        "memory-cache": 15,
        "stateful-db": 15,
        "gpu-training-small": 24,
        "gpu-training-medium": 48,
    }


def test_a_small_fleet_is_raised_to_the_gang_floors() -> None:
    split = allocation(REALISTIC, 100)
    assert split["gpu-training-medium"] == 48
    assert sum(split.values()) > 100


@given(st.integers(10_000, 1_000_000))
def test_a_large_fleet_is_split_without_remainder(machines: int) -> None:
    assert sum(allocation(REALISTIC, machines).values()) == machines


@given(st.integers(0, 1000), st.lists(st.integers(0, 50), min_size=1).filter(any))
def test_apportioning_keeps_the_total_and_every_quota(total: int, weights: list[int]) -> None:
    shares = {str(n): Fraction(weight, sum(weights)) for n, weight in enumerate(weights)}
    split = apportion(total, shares)

    assert sum(split.values()) == total
    assert all(abs(split[name] - total * share) < 1 for name, share in shares.items())


def test_mean_replicas_are_those_of_the_bands_and_of_the_gang_range() -> None:
    assert mean_replicas(BY_NAME["cpu-service"]) == Fraction("21.375")
    assert mean_replicas(BY_NAME["gpu-training-medium"]) == 12


def test_drawn_replicas_have_the_mean_they_are_counted_with() -> None:
    rng = random.Random(1)
    for name, tolerance in (("cpu-service", 0.05), ("gpu-training-small", 0.02)):
        drawn = [draw_replicas(BY_NAME[name], rng) for _ in range(20_000)]
        assert sum(drawn) / len(drawn) == pytest.approx(float(mean_replicas(BY_NAME[name])), rel=tolerance)


def test_pods_with_devices_have_a_machine_to_themselves_unless_the_node_says_otherwise() -> None:
    gpu = (Size(resources("8", "32Gi", "1")),)
    assert pods_per_machine(archetype(), density=50) == 50
    assert pods_per_machine(archetype(sizes=gpu), density=50) == 1
    assert pods_per_machine(archetype(sizes=gpu, pods_per_node=8), density=50) == 8


def test_a_machine_is_as_large_as_its_pods() -> None:
    tiny, inference = BY_NAME["tiny-stateless"], BY_NAME["gpu-inference"]
    assert [machine_resources(tiny, size)["cpu"] for size in tiny.sizes] == [40_000, 30_000]
    assert machine_resources(inference, inference.sizes[0])[GPU] == 8_000
