"""A cluster whose Pods react to what the shard does (simulator.md §6).

With demand that never reacts, the chain "reclaim, drain, evict, recreate, roll up" cannot occur, and the
faults that live in it stay invisible.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from bigfleet_base.model import (
    Machine,
    MachineState,
    Need,
    Operator,
    Profile,
    Requirement,
    ResourceVector,
    aggregate_rows,
)
from bigfleet_base.model.penalty import ZERO
from bigfleet_base.model.requirement import INSTANCE_TYPE_KEY, ZONE_KEY

RACK_KEY: Final = "topology.bigfleet/rack"


@dataclass(frozen=True, slots=True)
class Shape:
    """A kind of Pod."""

    name: str
    resources: ResourceVector
    priority: int
    instance_types: tuple[str, ...] = ()
    zones: tuple[str, ...] = ()
    interruption_bucket: int = ZERO
    reclamation_bucket: int = ZERO
    same: str = ""
    """The topology key that all Pods of one object share; empty for Pods that run anywhere."""

    def profile(self) -> Profile:
        requirements = []
        if self.instance_types:
            requirements.append(Requirement(INSTANCE_TYPE_KEY, Operator.IN, self.instance_types))
        if self.zones:
            requirements.append(Requirement(ZONE_KEY, Operator.IN, self.zones))
        if self.same:
            requirements.append(Requirement(self.same, Operator.SAME, ()))
        return Profile(
            tuple(requirements),
            (),
            self.priority,
            self.interruption_bucket,
            self.reclamation_bucket,
        )


@dataclass(slots=True)
class Workload:
    """Objects of one shape; of a gang shape each object is one gang."""

    shape: Shape
    replicas: int
    objects: int = 1


@dataclass(slots=True)
class Pod:
    workload: int
    object: int
    ordinal: int
    created: int
    machine: str = ""


@dataclass(slots=True)
class Cluster:
    """The Pods of one cluster and where they run.

    ``controller_managed``: evicted Pods come back, so demand is conserved. ``cr_per_pod``: demand is what
    runs and waits; without it only what waits, which is a known mistake.
    """

    name: str
    workloads: list[Workload]
    controller_managed: bool = True
    cr_per_pod: bool = True
    pods: list[Pod] = field(default_factory=list)
    evicted: int = 0
    _profiles: dict[str, Profile] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for number in range(len(self.workloads)):
            self._fill(number, 0)

    def scale(self, workload: int, replicas: int, cycle: int) -> None:
        """Change the size of each object: waiting Pods go first, then the newest that run."""
        self.workloads[workload].replicas = replicas
        for obj in range(self.workloads[workload].objects):
            own = [p for p in self.pods if (p.workload, p.object) == (workload, obj)]
            surplus = len(own) - replicas
            if surplus > 0:
                own.sort(key=lambda p: (p.machine != "", -p.created, -p.ordinal))
                gone = {id(pod) for pod in own[:surplus]}
                self.pods = [pod for pod in self.pods if id(pod) not in gone]
        self._fill(workload, cycle)

    def needs(self) -> list[Need]:
        """The roll-up of the cluster's Pods."""
        rows = [self._need(pod) for pod in self.pods if self.cr_per_pod or not pod.machine]
        return aggregate_rows(rows)

    def react(self, machines: Mapping[str, Machine], cycle: int) -> None:
        """Evict Pods whose machine no longer serves the cluster, recreate them and bind what waits."""
        serving = {
            machine_id
            for machine_id, machine in machines.items()
            if machine.state is MachineState.CONFIGURED and machine.cluster == self.name
        }
        kept = []
        for pod in self.pods:
            if pod.machine and pod.machine not in serving:
                self.evicted += 1
                if not self.controller_managed:
                    continue
                pod.machine, pod.created = "", cycle
            kept.append(pod)
        self.pods = kept
        self._bind({machine_id: machines[machine_id] for machine_id in sorted(serving)})

    @property
    def bound(self) -> int:
        return sum(1 for pod in self.pods if pod.machine)

    @property
    def pending(self) -> int:
        return len(self.pods) - self.bound

    def _fill(self, number: int, cycle: int) -> None:
        workload = self.workloads[number]
        for obj in range(workload.objects):
            taken = {p.ordinal for p in self.pods if (p.workload, p.object) == (number, obj)}
            free = (n for n in range(workload.replicas + len(taken)) if n not in taken)
            for _ in range(workload.replicas - len(taken)):
                self.pods.append(Pod(number, obj, next(free), cycle))

    def _need(self, pod: Pod) -> Need:
        shape = self.workloads[pod.workload].shape
        profile = self._profiles.setdefault(shape.name, shape.profile())
        group = f"{shape.name}/{pod.workload}/{pod.object}" if shape.same else ""
        return Need(self.name, profile, shape.resources, shape.resources, group)

    def _priority(self, pod: Pod) -> int:
        return self.workloads[pod.workload].shape.priority

    def _bind(self, machines: Mapping[str, Machine]) -> None:
        free = {machine_id: machine.alloc for machine_id, machine in machines.items()}
        anchors: dict[tuple[int, int], str | None] = {}
        for pod in self.pods:
            if pod.machine:
                shape = self.workloads[pod.workload].shape
                free[pod.machine] = free[pod.machine] - shape.resources
                if shape.same:
                    anchors[pod.workload, pod.object] = machines[pod.machine].lookup(shape.same)
        waiting = [pod for pod in self.pods if not pod.machine]
        waiting.sort(key=lambda p: (-self._priority(p), p.created, p.workload, p.object, p.ordinal))
        for pod in waiting:
            shape = self.workloads[pod.workload].shape
            gang = (pod.workload, pod.object)
            profile = self._profiles.setdefault(shape.name, shape.profile())
            best = _roomiest(
                (
                    (machine_id, free[machine_id])
                    for machine_id, machine in machines.items()
                    if machine.matches(profile)
                    and (gang not in anchors or machine.lookup(shape.same) == anchors[gang])
                ),
                shape.resources,
            )
            if best is None:
                continue
            pod.machine = best
            free[best] = free[best] - shape.resources
            if shape.same and gang not in anchors:
                anchors[gang] = machines[best].lookup(shape.same)


def _roomiest(candidates: Iterable[tuple[str, ResourceVector]], unit: ResourceVector) -> str | None:
    """The machine with most room for this unit; the first id among equals."""
    best, most = None, 0
    for machine_id, room in candidates:
        slots = min((room[name] // amount for name, amount in unit.items() if amount > 0), default=1)
        if slots > most:
            best, most = machine_id, slots
    return best
