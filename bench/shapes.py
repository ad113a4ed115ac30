"""The eight benchmark shapes of engine.md §18, in any fraction of their size.

A shape knows what its outcome must be. At full size that is the table of the specification; below it, only
what follows from the construction: greedy outcomes do not shrink in proportion.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from itertools import chain
from typing import Final

from bigfleet.scale import RACK_KEY, cluster_names, mint, r6, resources
from bigfleet_base.model import (
    CapacityType,
    Machine,
    MachineState,
    Need,
    Operator,
    Profile,
    Requirement,
    penalty,
)
from bigfleet_base.model.quantity import NANO
from bigfleet_base.model.requirement import INSTANCE_TYPE_KEY

FULL: Final = Fraction(1)

_TYPES: Final = ("a3-highgpu-8g", "m6i.large", "c6i.4xlarge", "n2-standard-32", "r6i.xlarge")
_ONE_CPU: Final = resources("1")


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """Machines, demand, what is timed and what must come out."""

    name: str
    phase: int
    """The phase that is timed, after an untimed Phase 1 if it is a later one."""
    machines: Callable[[], Iterator[Machine]]
    needs: Callable[[], Iterator[Need]]
    """Rows as the phases get them: neither aggregated nor folded."""
    expected: dict[str, int]
    """Counts by name; a name with a plus is the sum of the two."""
    reported: bool = True
    """Whether the clusters have reported, so that what they do not need is excess."""
    folds: bool = False
    """Whether a whole cycle, with folding, is of interest beside the phase."""


def shape(name: str, scale: Fraction = FULL) -> Shape:
    """A shape by its name, at a fraction of its size."""
    return SHAPES[name](scale)


def realistic_50k(scale: Fraction) -> Shape:
    return _realistic(
        "Realistic_50K", scale, {"Bootstrap": 48_584, "unsatisfied": 1_416, "unsatisfied Same": 0}
    )


def realistic_50k_all_same(scale: Fraction) -> Shape:
    return _realistic("Realistic_50K_AllSame", scale, {"Bootstrap": 49_980, "unsatisfied": 20}, all_same=True)


def uber5k_late_run(scale: Fraction) -> Shape:
    clusters, each = _split(20, 250, scale)
    expected = {
        "needs": 8 * clusters,
        "credited + excess": clusters * each,
    }
    at_full_size = {
        "classes": 403,
        "profiles": 13,
        "needs with Same": 20,
        "credited": 1_498,
        "Bootstrap": 920,
        "Provision": 11_060,
        "unsatisfied": 158,
        "excess": 3_502,
    }
    return _uber5k(
        "Uber5K_LateRun",
        scale,
        lambda: r6.demand(clusters, 8, requests=3125),
        expected | (at_full_size if scale == 1 else {}),
    )


def uber5k_unaggregated(scale: Fraction) -> Shape:
    clusters, each = _split(20, 12_500, scale)
    needs = clusters * each
    # Every machine is wanted by someone and every Need takes one, as long as a cluster has its full demand.
    whole = each == 12_500
    bound, idle, speculative = _uber5k_machines(scale)
    in_proportion = {
        "needs with Same": needs * 15 // 100,
        "credited": bound,
        "Bootstrap": idle,
        "Provision": speculative,
        "unsatisfied": needs - bound - idle - speculative,
    }
    return _uber5k(
        "Uber5K_Unaggregated",
        scale,
        lambda: r6.demand(clusters, each),
        {"needs": needs, "claimed + unsatisfied": needs, "profiles": 13} | (in_proportion if whole else {}),
    )


def uber50k_bucket_sized_buckets(scale: Fraction) -> Shape:
    rack, clusters = _part(12_500, scale), _part(20_000, scale)
    machines = 8 * rack
    size = resources("4", "32Gi")
    profile = Profile(
        (
            Requirement(INSTANCE_TYPE_KEY, Operator.IN, ("r6i.2xlarge",)),
            Requirement(RACK_KEY, Operator.SAME),
        ),
        priority=1000,
        interruption_bucket=_bucket(8192),
        reclamation_bucket=_bucket(8192),
    )

    def idle() -> Iterator[Machine]:
        for n in range(machines):
            yield mint(
                f"idle-{n}",
                MachineState.IDLE,
                size,
                instance_type="r6i.2xlarge",
                zone="zone-a",
                labels={RACK_KEY: f"rack-mem-{n % 8}"},
                capacity_type=CapacityType.BARE_METAL,
            )

    def demand() -> Iterator[Need]:
        for cluster in cluster_names(clusters):
            yield Need(cluster, profile, size, size, group="gang")

    # A rack that has been drawn on over-commits least, so it is used up before the next one is touched.
    first = min(clusters, rack)
    return Shape(
        name="Uber50K_BucketSizedBuckets",
        phase=1,
        machines=idle,
        needs=demand,
        folds=True,
        expected={
            "machines": machines,
            "classes": 8,
            "profiles": 1,
            "needs": clusters,
            "Bootstrap": clusters,
            "unsatisfied": 0,
            "gangs in rack-mem-0": first,
            "gangs in rack-mem-1": clusters - first,
        },
    )


def phase2_scale_inversions(scale: Fraction) -> Shape:
    machines, needs = _part(100_000, scale), _part(100, scale)

    def demand() -> Iterator[Need]:
        # Clusters without machines of their own, so that Phase 1 leaves all of it to Phase 2.
        for n in range(needs):
            yield Need(f"new-{n:03}", _critical(n), resources("5"), _ONE_CPU)

    return Shape(
        name="Phase2_ScaleInversions",
        phase=2,
        machines=lambda: _serving(machines, 10, CapacityType.BARE_METAL),
        needs=demand,
        reported=False,
        expected={
            "machines": machines,
            "needs": needs,
            "profiles": min(5, needs),
            "Preempt": 5 * needs,
            "Preempt with 10 s": 5 * needs,
            "unresolved": 0,
        },
    )


def phase3_high_demand(scale: Fraction) -> Shape:
    clusters, each, cpu = 50, _part(10_000, scale), _part(3_333, scale)

    def demand() -> Iterator[Need]:
        for number, cluster in enumerate(cluster_names(clusters)):
            for k in range(3):
                yield Need(cluster, _critical(number + k), resources(str(cpu)), _ONE_CPU)

    # Type and cluster both go by the machine's number, so a cluster has machines of one type only and just
    # the first of its Needs can credit any.
    return Shape(
        name="Phase3_HighDemand",
        phase=3,
        machines=lambda: _serving(clusters * each, clusters, CapacityType.ON_DEMAND),
        needs=demand,
        expected={
            "machines": clusters * each,
            "needs": 3 * clusters,
            "profiles": 5,
            "credited": clusters * cpu,
            "unsatisfied": 2 * clusters,
            "Reclaim": clusters * (each - cpu),
        },
    )


def phase3_m29_shape(scale: Fraction) -> Shape:
    clusters, each, cpu = 50, _part(9_000, scale), _part(10_000, scale)
    profile = Profile(
        (Requirement(INSTANCE_TYPE_KEY, Operator.IN, ("a3-highgpu-8g",)),),
        priority=1000,
        interruption_bucket=_bucket(8192),
        reclamation_bucket=_bucket(65536),
    )

    def bound() -> Iterator[Machine]:
        for cluster in cluster_names(clusters):
            for n in range(each):
                yield mint(
                    f"m-{cluster}-{n}",
                    MachineState.CONFIGURED,
                    _ONE_CPU,
                    instance_type="a3-highgpu-8g",
                    capacity_type=CapacityType.BARE_METAL,
                    cluster=cluster,
                    assigned_priority=1_000_000,
                    assigned_interruption_penalty=8192.0,
                    assigned_reclamation_penalty=65536.0,
                )

    def demand() -> Iterator[Need]:
        for cluster in cluster_names(clusters):
            yield Need(cluster, profile, resources(str(cpu)), _ONE_CPU)

    return Shape(
        name="Phase3_M29Shape",
        phase=3,
        machines=bound,
        needs=demand,
        expected={
            "machines": clusters * each,
            "needs": clusters,
            "profiles": 1,
            "credited": clusters * each,
            "unsatisfied": clusters,
            "cpu short": clusters * (cpu - each),
            "Reclaim": 0,
            "Delete": 0,
        },
    )


SHAPES: Final[dict[str, Callable[[Fraction], Shape]]] = {
    "Realistic_50K": realistic_50k,
    "Realistic_50K_AllSame": realistic_50k_all_same,
    "Uber5K_LateRun": uber5k_late_run,
    "Uber5K_Unaggregated": uber5k_unaggregated,
    "Uber50K_BucketSizedBuckets": uber50k_bucket_sized_buckets,
    "Phase2_ScaleInversions": phase2_scale_inversions,
    "Phase3_HighDemand": phase3_high_demand,
    "Phase3_M29Shape": phase3_m29_shape,
}


def _realistic(name: str, scale: Fraction, at_full_size: dict[str, int], *, all_same: bool = False) -> Shape:
    machines = _part(60_000, scale)
    clusters, each = _split(50, 1_000, scale)
    needs = clusters * each
    expected = {"machines": machines, "needs": needs, "credited": 0, "claimed + unsatisfied": needs}
    if scale == 1:
        with_same = needs if all_same else 7_500
        expected |= {"classes": 144, "profiles": 13, "needs with Same": with_same} | at_full_size
    return Shape(
        name=name,
        phase=1,
        machines=lambda: r6.idle_by_archetype(machines),
        needs=lambda: r6.demand(clusters, each, all_same=all_same),
        expected=expected,
    )


def _uber5k(
    name: str, scale: Fraction, needs: Callable[[], Iterator[Need]], expected: dict[str, int]
) -> Shape:
    clusters, each = _split(20, 250, scale)
    bound, idle, speculative = _uber5k_machines(scale)
    return Shape(
        name=name,
        phase=1,
        machines=lambda: chain(r6.configured(clusters, each), r6.idle(idle), r6.speculative(speculative)),
        needs=needs,
        expected={"machines": bound + idle + speculative} | expected,
    )


def _uber5k_machines(scale: Fraction) -> tuple[int, int, int]:
    clusters, each = _split(20, 250, scale)
    return clusters * each, _part(1_000, scale), _part(12_000, scale)


def _serving(count: int, clusters: int, capacity_type: CapacityType) -> Iterator[Machine]:
    """Configured machines of one cpu, five types in turn, at priority 100 and a dollar of each penalty."""
    names = cluster_names(clusters)
    for n in range(count):
        yield mint(
            f"m-{n}",
            MachineState.CONFIGURED,
            _ONE_CPU,
            instance_type=_TYPES[n % 5],
            zone="zone-a",
            capacity_type=capacity_type,
            cluster=names[n % clusters],
            assigned_priority=100,
            assigned_interruption_penalty=1.0,
            assigned_reclamation_penalty=1.0,
        )


def _critical(n: int) -> Profile:
    return Profile(
        (Requirement(INSTANCE_TYPE_KEY, Operator.IN, (_TYPES[n % 5],)),),
        priority=1_000_000,
        interruption_bucket=_bucket(8192),
        reclamation_bucket=penalty.PINNED,
    )


def _bucket(dollars: int) -> int:
    return penalty.bucket_for(dollars * NANO)


def _part(whole: int, scale: Fraction) -> int:
    return max(1, round(whole * scale))


def _split(clusters: int, each: int, scale: Fraction) -> tuple[int, int]:
    """Fewer clusters of full size while there is more than one, then a smaller one: what a cluster asks for
    belongs to the shape, the number of clusters does not."""
    fewer = _part(clusters, scale)
    return fewer, max(1, round(clusters * each * scale / fewer))
