"""The benchmark shapes of engine.md §18, in any fraction of their size.

A shape is a snapshot and the rows handed to Phase 1 as listed, without aggregation or folding.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from bigfleet_base.model import (
    CapacityType,
    HostRef,
    Machine,
    MachineState,
    Need,
    Operator,
    Profile,
    Requirement,
    ResourceVector,
)
from bigfleet_base.model.penalty import PINNED, bucket_for
from bigfleet_base.model.quantity import NANO
from bigfleet_base.model.requirement import INSTANCE_TYPE_KEY
from tests.oracle import World
from tests.oracle.context import Context
from tests.oracle.results import CycleInput, Options, Row

RACK: Final = "topology.bigfleet/rack"
GIB: Final = 2**30 * 1000
DOLLARS_8192: Final = bucket_for(8192 * NANO)
FIVE_TYPES: Final = ("a3-highgpu-8g", "m6i.large", "c6i.4xlarge", "n2-standard-32", "r6i.xlarge")


@dataclass(frozen=True)
class Archetype:
    name: str
    weight: int
    types: tuple[str, ...]
    zones: str
    sizes: tuple[ResourceVector, ...]
    priorities: tuple[int, ...]
    same_rack: bool = False


def gpus(count: int) -> ResourceVector:
    return ResourceVector({"nvidia.com/gpu": 1000 * count})


def shape(cpu: int, gib: int) -> ResourceVector:
    return ResourceVector(cpu=1000 * cpu, memory=GIB * gib)


CATALOGUE: Final = (
    Archetype("gpu-training", 5, ("a3-highgpu-8g",), "abc", (gpus(8), gpus(16)), (1000,), same_rack=True),
    Archetype(
        "gpu-inference", 15, ("a3-highgpu-1g", "a2-highgpu-1g"), "abc", (gpus(1), gpus(2)), (100, 1000)
    ),
    Archetype(
        "cpu-batch",
        35,
        ("c6i.4xlarge", "c6i.8xlarge", "n2-standard-32"),
        "abc",
        (shape(4, 8), shape(8, 16), shape(16, 32), shape(32, 64)),
        (100,),
    ),
    Archetype(
        "cpu-service",
        30,
        ("m6i.large", "m6i.xlarge", "m6i.2xlarge"),
        "abc",
        (shape(2, 8), shape(4, 16), shape(8, 32), shape(16, 64)),
        (1000,),
    ),
    Archetype(
        "memory-db",
        10,
        ("r6i.xlarge", "r6i.2xlarge"),
        "ab",
        (shape(4, 32), shape(4, 64), shape(8, 128)),
        (1000,),
        same_rack=True,
    ),
    Archetype(
        "critical-realtime",
        5,
        ("c6i.4xlarge", "m6i.2xlarge"),
        "abc",
        (shape(8, 16), shape(16, 32)),
        (1_000_000,),
    ),
)


def realistic(machines: int, clusters: int, needs_each: int, *, all_same: bool = False) -> Context:
    """Realistic_50K: Idle bare metal in table order, single-request Needs."""
    inventory = ((archetype, i) for archetype in CATALOGUE for i in range(machines * archetype.weight // 100))
    idle = [
        catalogued(f"idle-{n}", MachineState.IDLE, archetype, i) for n, (archetype, i) in enumerate(inventory)
    ]
    assert len(idle) == machines
    return context(idle, _demand(clusters, needs_each, times=1, all_same=all_same))


def uber5k(
    clusters: int, configured: int, idle: int, speculative: int, needs_each: int, *, times: int
) -> Context:
    """Uber5K: bound machines of every cluster, some Idle ones and a large quota to buy from."""
    machines = [
        catalogued(f"cfg-{cluster_id(c)}-{i}", MachineState.CONFIGURED, archetype, i, cluster=cluster_id(c))
        for c, i, archetype in _rows(clusters, configured)
    ]
    machines += [
        catalogued(f"idle-{i}", MachineState.IDLE, archetype, i) for _, i, archetype in _rows(1, idle)
    ]
    machines += [
        catalogued(
            f"spec-{i}",
            MachineState.SPECULATIVE,
            archetype,
            i,
            capacity_type=CapacityType.ON_DEMAND,
            price_per_hour=1.0,
        )
        for _, i, archetype in _rows(1, speculative)
    ]
    assert len(machines) == clusters * configured + idle + speculative
    return context(machines, _demand(clusters, needs_each, times=times))


def uber50k(machines: int, clusters: int) -> Context:
    """Uber50K_BucketSizedBuckets: one gang of one machine per cluster, eight equal racks."""
    size = shape(4, 32)
    idle = [
        machine(
            f"idle-{n}",
            MachineState.IDLE,
            size,
            instance_type="r6i.2xlarge",
            zone="zone-a",
            labels={RACK: f"rack-mem-{n % 8}"},
        )
        for n in range(machines)
    ]
    wanted = _profile("r6i.2xlarge", 1000, same_rack=True)
    return context(idle, [Need(f"c{c:06}", wanted, size, size, group="g") for c in range(clusters)])


def scale_inversions(machines: int, needs: int, deficit: int) -> Context:
    """Phase2_ScaleInversions: short Needs of new clusters over a fleet at priority 100; nobody reported."""
    configured = [
        machine(
            f"m-{n}",
            MachineState.CONFIGURED,
            shape(1, 0),
            instance_type=FIVE_TYPES[n % 5],
            zone="zone-a",
            cluster=cluster_id(n % 10),
            assigned_priority=100,
            assigned_interruption_penalty=1.0,
            assigned_reclamation_penalty=1.0,
        )
        for n in range(machines)
    ]
    demand = [
        Need(
            f"new-{n:03}",
            _profile(FIVE_TYPES[n % 5], 1_000_000, reclamation=PINNED),
            shape(deficit, 0),
            shape(1, 0),
        )
        for n in range(needs)
    ]
    return context(configured, demand, reported=())


def high_demand(machines: int, clusters: int, cpu: int) -> Context:
    """Phase3_HighDemand: type and cluster both go by the index, so a cluster has one type only."""
    configured = [
        machine(
            f"m-{n}",
            MachineState.CONFIGURED,
            shape(1, 0),
            instance_type=FIVE_TYPES[n % 5],
            cluster=cluster_id(n % clusters),
            capacity_type=CapacityType.ON_DEMAND,
            assigned_priority=100,
            assigned_interruption_penalty=1.0,
            assigned_reclamation_penalty=1.0,
        )
        for n in range(machines)
    ]
    demand = [
        Need(
            cluster_id(c),
            _profile(FIVE_TYPES[(c + k) % 5], 1_000_000, reclamation=PINNED),
            shape(cpu, 0),
            shape(1, 0),
        )
        for c in range(clusters)
        for k in range(3)
    ]
    return context(configured, demand)


def m29(clusters: int, each: int, cpu: int) -> Context:
    """Phase3_M29Shape: every cluster wants more than it has."""
    configured = [
        machine(
            f"m-{c}-{n}",
            MachineState.CONFIGURED,
            shape(1, 0),
            instance_type="a3-highgpu-8g",
            cluster=cluster_id(c),
            assigned_priority=1_000_000,
            assigned_interruption_penalty=8192.0,
            assigned_reclamation_penalty=65536.0,
        )
        for c in range(clusters)
        for n in range(each)
    ]
    profile = _profile("a3-highgpu-8g", 1000, reclamation=bucket_for(65536 * NANO))
    return context(
        configured, [Need(cluster_id(c), profile, shape(cpu, 0), shape(1, 0)) for c in range(clusters)]
    )


def context(
    machines: Iterable[Machine], demand: Iterable[Need], reported: Iterable[str] | None = None
) -> Context:
    """Phase input with the rows in the order listed; every cluster has reported unless said otherwise."""
    world = World()
    for m in machines:
        world.insert(m, 0)
    rows = tuple(Row(need, frozenset({(need.profile.fingerprint, need.group)})) for need in demand)
    clusters = {row.need.cluster_id for row in rows} if reported is None else set(reported)
    return Context(world.snapshot(), rows, frozenset(clusters), CycleInput(now=0), Options())


def cluster_id(number: int) -> str:
    return f"c{number:02}"


def catalogued(machine_id: str, state: MachineState, archetype: Archetype, i: int, **fields: Any) -> Machine:
    """Item i of an archetype: every attribute goes round by the index."""
    return machine(
        machine_id,
        state,
        archetype.sizes[i % len(archetype.sizes)],
        instance_type=archetype.types[i % len(archetype.types)],
        zone=f"zone-{archetype.zones[i % len(archetype.zones)]}",
        labels={RACK: f"rack-{archetype.name}-{i % 8}"},
        **fields,
    )


def machine(machine_id: str, state: MachineState, size: ResourceVector, **fields: Any) -> Machine:
    hostless = state is MachineState.SPECULATIVE
    fields.setdefault("capacity_type", CapacityType.BARE_METAL)
    host = HostRef() if hostless else HostRef("bench", machine_id)
    return Machine(machine_id, state, host=host, resources=size, **fields)


def _demand(clusters: int, needs_each: int, *, times: int, all_same: bool = False) -> Iterator[Need]:
    for c, i, archetype in _rows(clusters, needs_each):
        size = archetype.sizes[i % len(archetype.sizes)]
        same = all_same or archetype.same_rack
        profile = _profile(
            archetype.types[i % len(archetype.types)],
            archetype.priorities[i % len(archetype.priorities)],
            same_rack=same,
        )
        yield Need(cluster_id(c), profile, size * times, size, group=f"g-{c}-{i}" if same else "")


def _rows(clusters: int, each: int) -> Iterator[tuple[int, int, Archetype]]:
    """(cluster, index inside it, archetype by the global index)."""
    by_hundred = [archetype for archetype in CATALOGUE for _ in range(archetype.weight)]
    for c in range(clusters):
        for i in range(each):
            yield c, i, by_hundred[(c * each + i) % 100]


def _profile(
    instance_type: str, priority: int, *, same_rack: bool = False, reclamation: int = DOLLARS_8192
) -> Profile:
    requirements = [Requirement(INSTANCE_TYPE_KEY, Operator.IN, (instance_type,))]
    if same_rack:
        requirements.append(Requirement(RACK, Operator.SAME))
    return Profile(
        tuple(requirements),
        priority=priority,
        interruption_bucket=DOLLARS_8192,
        reclamation_bucket=reclamation,
    )
