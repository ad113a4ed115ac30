"""The catalogue of the engine's benchmark shapes (engine.md §18) and the fleets made of it.

Nothing is drawn: item *i* of an archetype takes its instance type, zone, size, priority and rack in turn, so
that outcomes can be stated to the machine.
"""

from collections.abc import Iterator
from fractions import Fraction
from typing import Any, Final

from bigfleet.scale.catalogue import RACK_KEY, ZONES, Archetype, Catalogue, Size, resources
from bigfleet.scale.minting import cluster_names, mint
from bigfleet.scale.sizing import apportion
from bigfleet_base.model import CapacityType, Machine, MachineState, Need

RACKS: Final = 8

_PENALTY: Final = 8192


def _gpus(*counts: str) -> tuple[Size, ...]:
    return tuple(Size(resources(gpu=count)) for count in counts)


def _sizes(*shapes: tuple[str, str]) -> tuple[Size, ...]:
    return tuple(Size(resources(cpu, memory)) for cpu, memory in shapes)


def _archetype(
    name: str, weight: int, types: tuple[str, ...], sizes: tuple[Size, ...], **rest: Any
) -> Archetype:
    return Archetype(
        name=name,
        weight=weight,
        instance_types=types,
        sizes=sizes,
        interruption_penalty=_PENALTY,
        reclamation_penalty=_PENALTY,
        **rest,
    )


R6: Final[Catalogue] = (
    _archetype("gpu-training", 5, ("a3-highgpu-8g",), _gpus("8", "16"), priorities=(1000,), same=RACK_KEY),
    _archetype(
        "gpu-inference", 15, ("a3-highgpu-1g", "a2-highgpu-1g"), _gpus("1", "2"), priorities=(100, 1000)
    ),
    _archetype(
        "cpu-batch",
        35,
        ("c6i.4xlarge", "c6i.8xlarge", "n2-standard-32"),
        _sizes(("4", "8Gi"), ("8", "16Gi"), ("16", "32Gi"), ("32", "64Gi")),
        priorities=(100,),
    ),
    _archetype(
        "cpu-service",
        30,
        ("m6i.large", "m6i.xlarge", "m6i.2xlarge"),
        _sizes(("2", "8Gi"), ("4", "16Gi"), ("8", "32Gi"), ("16", "64Gi")),
        priorities=(1000,),
    ),
    _archetype(
        "memory-db",
        10,
        ("r6i.xlarge", "r6i.2xlarge"),
        _sizes(("4", "32Gi"), ("4", "64Gi"), ("8", "128Gi")),
        priorities=(1000,),
        zones=ZONES[:2],
        same=RACK_KEY,
    ),
    _archetype(
        "critical-realtime",
        5,
        ("c6i.4xlarge", "m6i.2xlarge"),
        _sizes(("8", "16Gi"), ("16", "32Gi")),
        priorities=(1_000_000,),
    ),
)

_BY_HUNDRED: Final = tuple(archetype for archetype in R6 for _ in range(archetype.weight))


def idle_by_archetype(count: int) -> Iterator[Machine]:
    """Idle bare metal, archetype after archetype, each with its share of the count."""
    split = apportion(count, {archetype.name: Fraction(archetype.weight, 100) for archetype in R6})
    number = 0
    for archetype in R6:
        for i in range(split[archetype.name]):
            yield _machine(f"idle-{number}", MachineState.IDLE, archetype, i)
            number += 1


def configured(clusters: int, each: int) -> Iterator[Machine]:
    """Bare metal bound to clusters, each with the same number."""
    for cluster, i, archetype in _rows(clusters, each):
        size = archetype.sizes[i % len(archetype.sizes)].resources
        yield _machine(
            f"cfg-{cluster}-{i}", MachineState.CONFIGURED, archetype, i, cluster=cluster, allocatable=size
        )


def idle(count: int) -> Iterator[Machine]:
    """Idle bare metal, the archetypes mixed."""
    for i in range(count):
        yield _machine(f"idle-{i}", MachineState.IDLE, _BY_HUNDRED[i % 100], i)


def speculative(count: int) -> Iterator[Machine]:
    """A quota of on-demand machines at a dollar an hour, the archetypes mixed."""
    for i in range(count):
        yield _machine(
            f"spec-{i}",
            MachineState.SPECULATIVE,
            _BY_HUNDRED[i % 100],
            i,
            capacity_type=CapacityType.ON_DEMAND,
            price_per_hour=1.0,
        )


def demand(clusters: int, each: int, *, requests: int = 1, all_same: bool = False) -> Iterator[Need]:
    """Needs of ``requests`` equal requests, cluster after cluster. A Need that must stay in one rack is a
    gang of its own."""
    profiles = {
        (archetype.name, instance_type, priority, same): archetype.profile(
            priority, instance_types=(instance_type,), same=same
        )
        for archetype in R6
        for instance_type in archetype.instance_types
        for priority in archetype.priorities
        for same in (None, RACK_KEY)
    }
    for cluster, i, archetype in _rows(clusters, each):
        size = archetype.sizes[i % len(archetype.sizes)].resources
        same = RACK_KEY if all_same else archetype.same
        instance_type = archetype.instance_types[i % len(archetype.instance_types)]
        priority = archetype.priorities[i % len(archetype.priorities)]
        yield Need(
            cluster,
            profiles[archetype.name, instance_type, priority, same],
            size * requests,
            size,
            group="" if same is None else f"g-{i}",
        )


def _rows(clusters: int, each: int) -> Iterator[tuple[str, int, Archetype]]:
    """(cluster, index inside it, archetype): the archetype goes by the index over all clusters."""
    for number, cluster in enumerate(cluster_names(clusters)):
        for i in range(each):
            yield cluster, i, _BY_HUNDRED[(number * each + i) % 100]


def _machine(machine_id: str, state: MachineState, archetype: Archetype, i: int, **fields: Any) -> Machine:
    fields.setdefault("capacity_type", CapacityType.BARE_METAL)
    return mint(
        machine_id,
        state,
        archetype.sizes[i % len(archetype.sizes)].resources,
        instance_type=archetype.instance_types[i % len(archetype.instance_types)],
        zone=archetype.zones[i % len(archetype.zones)],
        labels={RACK_KEY: f"rack-{archetype.name}-{i % RACKS}"},
        **fields,
    )
