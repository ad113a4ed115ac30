"""What fleets run: kinds of workload, how often each occurs, and what it asks of machines (scale.md §4)."""

from dataclasses import dataclass
from typing import Final

from bigfleet_base.model import (
    Operator,
    Profile,
    Requirement,
    ResourceVector,
    TopologySpread,
    WhenUnsatisfiable,
    parse_quantity,
    penalty,
)
from bigfleet_base.model.quantity import NANO, milli_from_nano
from bigfleet_base.model.requirement import INSTANCE_TYPE_KEY, ZONE_KEY

RACK_KEY: Final = "topology.bigfleet/rack"
GPU: Final = "nvidia.com/gpu"
ZONES: Final = ("zone-a", "zone-b", "zone-c")


@dataclass(frozen=True, slots=True)
class Size:
    """What one Pod requests, and how often among the Pods of its archetype."""

    resources: ResourceVector
    weight: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Archetype:
    """One kind of workload. Penalties are whole dollars."""

    name: str
    weight: int
    """How often a workload object is of this kind: neither its share of Pods nor of machines."""
    instance_types: tuple[str, ...]
    sizes: tuple[Size, ...]
    priorities: tuple[int, ...]
    interruption_penalty: int
    reclamation_penalty: int
    zones: tuple[str, ...] = ZONES
    pods_per_node: int | None = None
    mean_lifetime_s: int = 0
    """Of one Pod, exponentially distributed; 0: it runs until its workload goes."""
    same: str | None = None
    """The key whose value all machines of one workload must share."""
    gang: tuple[int, int] | None = None
    """Fewest and most Pods of a workload that comes as a gang."""
    allow_partial: bool = False
    """Whether a gang is of use before it is complete."""
    burst_only: bool = False
    """Never part of standing demand: drawn only when a burst names it."""
    spread_chance: float = 0.0
    spread: TopologySpread | None = None
    """The constraint that a share ``spread_chance`` of the workloads carries."""

    def profile(
        self,
        priority: int,
        *,
        instance_types: tuple[str, ...] | None = None,
        same: str | None = None,
        spread: bool = False,
    ) -> Profile:
        """The demand of one workload; it may be narrowed to some of the instance types."""
        requirements = [Requirement(INSTANCE_TYPE_KEY, Operator.IN, instance_types or self.instance_types)]
        if same is not None:
            requirements.append(Requirement(same, Operator.SAME))
        return Profile(
            tuple(requirements),
            (self.spread,) if spread and self.spread is not None else (),
            priority,
            penalty.bucket_for(self.interruption_penalty * NANO),
            penalty.bucket_for(self.reclamation_penalty * NANO),
        )


Catalogue = tuple[Archetype, ...]


def resources(cpu: str = "0", memory: str = "0", gpu: str = "0") -> ResourceVector:
    """A resource vector from quantities as people write them."""
    texts = {"cpu": cpu, "memory": memory, GPU: gpu}
    return ResourceVector({name: milli_from_nano(parse_quantity(text)) for name, text in texts.items()})


def _size(cpu: str, memory: str, gpu: str = "0", weight: int = 1) -> Size:
    return Size(resources(cpu, memory, gpu), weight)


def _by_zone(max_skew: int, when: WhenUnsatisfiable) -> TopologySpread:
    return TopologySpread(ZONE_KEY, when, max_skew)


_ANYWAY: Final = WhenUnsatisfiable.SCHEDULE_ANYWAY
_STRICT: Final = WhenUnsatisfiable.DO_NOT_SCHEDULE

# Calibrated by machines, not by Pods: a whole-node gang Pod is a machine while a hundred small Pods share
# one, so weights are proportional to machine share × Pods per node ÷ mean replicas.
REALISTIC: Final[Catalogue] = (
    Archetype(
        name="tiny-stateless",
        weight=16073,
        pods_per_node=100,
        sizes=(_size("400m", "500Mi", weight=60), _size("300m", "384Mi", weight=40)),
        instance_types=("m6i.large", "m6i.xlarge"),
        priorities=(100,),
        interruption_penalty=32,
        reclamation_penalty=64,
        spread_chance=0.45,
        spread=_by_zone(2, _ANYWAY),
    ),
    Archetype(
        name="cpu-service",
        weight=2755,
        pods_per_node=100,
        sizes=(_size("2200m", "8500Mi", weight=70), _size("4200m", "16500Mi", weight=30)),
        instance_types=("m6i.xlarge", "m6i.2xlarge"),
        priorities=(1000,),
        interruption_penalty=1024,
        reclamation_penalty=8192,
        spread_chance=0.75,
        spread=_by_zone(1, _STRICT),
    ),
    Archetype(
        name="cpu-batch",
        weight=1378,
        pods_per_node=100,
        sizes=(_size("4", "8Gi", weight=60), _size("8", "16Gi", weight=40)),
        instance_types=("c6i.4xlarge", "c6i.8xlarge", "n2-standard-32"),
        priorities=(100,),
        interruption_penalty=64,
        reclamation_penalty=256,
        mean_lifetime_s=600,
        spread_chance=0.15,
        spread=_by_zone(2, _ANYWAY),
    ),
    Archetype(
        name="memory-cache",
        weight=2000,
        pods_per_node=100,
        sizes=(_size("2", "16Gi"),),
        instance_types=("r6i.xlarge", "r6i.2xlarge"),
        priorities=(1000,),
        interruption_penalty=4096,
        reclamation_penalty=16384,
        same=RACK_KEY,
        gang=(3, 5),
        allow_partial=True,
    ),
    Archetype(
        name="stateful-db",
        weight=2000,
        pods_per_node=100,
        sizes=(_size("8", "32Gi"),),
        instance_types=("r6i.2xlarge", "r6i.4xlarge"),
        priorities=(1000,),
        interruption_penalty=8192,
        reclamation_penalty=32768,
        same=RACK_KEY,
        gang=(3, 5),
        allow_partial=True,
    ),
    Archetype(
        name="gpu-inference",
        weight=100,
        pods_per_node=8,
        sizes=(_size("8", "32Gi", "1"),),
        instance_types=("a3-highgpu-8g", "a2-highgpu-8g"),
        priorities=(1000,),
        interruption_penalty=4096,
        reclamation_penalty=8192,
        spread_chance=0.5,
        spread=_by_zone(2, _ANYWAY),
    ),
    Archetype(
        name="gpu-training-small",
        weight=32,
        pods_per_node=1,
        sizes=(_size("64", "256Gi", "8"),),
        instance_types=("a3-highgpu-8g",),
        priorities=(1000,),
        interruption_penalty=16384,
        reclamation_penalty=32768,
        same=RACK_KEY,
        gang=(2, 8),
    ),
    Archetype(
        name="gpu-training-medium",
        weight=18,
        pods_per_node=1,
        sizes=(_size("64", "256Gi", "8"),),
        instance_types=("a3-highgpu-8g",),
        priorities=(1000,),
        interruption_penalty=32768,
        reclamation_penalty=65536,
        same=RACK_KEY,
        gang=(8, 16),
    ),
    # Its expected standing number is about one, which would make every run a coin toss; a weight of zero
    # would not remove it, because the gang floor does not look at weights.
    Archetype(
        name="gpu-training-large",
        weight=1,
        pods_per_node=1,
        sizes=(_size("128", "512Gi", "8"),),
        instance_types=("a3-highgpu-8g",),
        priorities=(1000,),
        interruption_penalty=65536,
        reclamation_penalty=131072,
        same=ZONE_KEY,
        gang=(64, 256),
        burst_only=True,
    ),
    Archetype(
        name="critical-realtime",
        weight=230,
        pods_per_node=100,
        sizes=(_size("4", "8Gi"),),
        instance_types=("c6i.4xlarge", "m6i.2xlarge"),
        priorities=(1_000_000,),
        interruption_penalty=65536,
        reclamation_penalty=65536,
        spread_chance=1.0,
        spread=_by_zone(1, _STRICT),
    ),
)
