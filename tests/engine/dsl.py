"""Short words for machines and Needs, so that a scenario reads like its line in engine.md §17.

``1u`` is one machine-sized request: cpu 1. Amounts may be given as a number of units or as a vector.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any, Final

from bigfleet_base.model import (
    EMPTY,
    CapacityType,
    HostRef,
    Machine,
    MachineState,
    Need,
    Operator,
    Profile,
    Requirement,
    ResourceVector,
    TopologySpread,
    WhenUnsatisfiable,
    parse_quantity,
)
from bigfleet_base.model.penalty import PINNED, bound_dollars, bucket_for
from bigfleet_base.model.quantity import NANO, milli_from_nano
from bigfleet_base.model.requirement import INSTANCE_TYPE_KEY, ZONE_KEY

RACK_KEY: Final = "topology.bigfleet/rack"
GPU: Final = "nvidia.com/gpu"

BARE_METAL: Final = CapacityType.BARE_METAL
RESERVED: Final = CapacityType.RESERVED
ON_DEMAND: Final = CapacityType.ON_DEMAND
SPOT: Final = CapacityType.SPOT


def units(count: int) -> ResourceVector:
    return ResourceVector(cpu=1000 * count)


def vector(**texts: str | int) -> ResourceVector:
    """``vector(cpu=16, memory="32Gi", gpu=1)``."""
    names = {"gpu": GPU}
    return ResourceVector(
        {names.get(name, name): milli_from_nano(parse_quantity(str(text))) for name, text in texts.items()}
    )


def types(*names: str) -> Requirement:
    return Requirement(INSTANCE_TYPE_KEY, Operator.IN, names)


def zones(*names: str) -> Requirement:
    return Requirement(ZONE_KEY, Operator.IN, names)


def same_rack(*values: str) -> Requirement:
    return Requirement(RACK_KEY, Operator.SAME, values)


def strict_zones(skew: int = 1) -> TopologySpread:
    return TopologySpread(ZONE_KEY, WhenUnsatisfiable.DO_NOT_SCHEDULE, skew)


def lenient_zones(skew: int = 1) -> TopologySpread:
    return TopologySpread(ZONE_KEY, WhenUnsatisfiable.SCHEDULE_ANYWAY, skew)


def bucket(dollars: float) -> int:
    return PINNED if math.isinf(dollars) else bucket_for(int(dollars * NANO))


def need(
    cluster: str,
    amount: int | ResourceVector,
    *terms: Requirement | TopologySpread,
    priority: int = 1000,
    interruption: float = 0,
    reclamation: float = 0,
    group: str = "",
    unit: ResourceVector | None = None,
) -> Need:
    """A row of demand; counted in units it asks for machines of at least one unit."""
    profile = Profile(
        requirements=tuple(t for t in terms if isinstance(t, Requirement)),
        spread=tuple(t for t in terms if isinstance(t, TopologySpread)),
        priority=priority,
        interruption_bucket=bucket(interruption),
        reclamation_bucket=bucket(reclamation),
    )
    counted = isinstance(amount, int)
    return Need(
        cluster_id=cluster,
        profile=profile,
        aggregate=units(amount) if isinstance(amount, int) else amount,
        min_unit=unit if unit is not None else units(1) if counted else EMPTY,
        group=group,
    )


def gang(
    cluster: str, amount: int | ResourceVector, *terms: Requirement | TopologySpread, **more: Any
) -> Need:
    """A Need that wants all its machines in one rack, unless a term says which key."""
    has_same = any(isinstance(t, Requirement) and t.operator is Operator.SAME for t in terms)
    more.setdefault("group", "g")
    return need(cluster, amount, *(terms if has_same else (same_rack(), *terms)), **more)


def idle(machine_id: str, **fields: Any) -> Machine:
    return _machine(machine_id, MachineState.IDLE, **fields)


def speculative(machine_id: str, **fields: Any) -> Machine:
    return _machine(machine_id, MachineState.SPECULATIVE, **fields)


def creating(machine_id: str, **fields: Any) -> Machine:
    return _machine(machine_id, MachineState.CREATING, **fields)


def configuring(machine_id: str, cluster: str, **fields: Any) -> Machine:
    return _machine(machine_id, MachineState.CONFIGURING, cluster=cluster, **fields)


def configured(machine_id: str, cluster: str, **fields: Any) -> Machine:
    return _machine(machine_id, MachineState.CONFIGURED, cluster=cluster, **fields)


def draining(machine_id: str, cluster: str, **fields: Any) -> Machine:
    return _machine(machine_id, MachineState.DRAINING, cluster=cluster, **fields)


def many(count: int, make: Callable[..., Machine], prefix: str, *args: Any, **fields: Any) -> list[Machine]:
    """``many(3, idle, "a")`` is Idle a-0, a-1, a-2."""
    return [make(f"{prefix}-{i}", *args, **fields) for i in range(count)]


def _machine(
    machine_id: str,
    state: MachineState,
    *,
    cluster: str = "",
    type: str = "std",
    zone: str = "",
    rack: str = "",
    size: int | ResourceVector = 1,
    price: float = 0.0,
    p: float = 0.0,
    kind: CapacityType = BARE_METAL,
    bought_for: Need | None = None,
    stamp: int | None = None,
    interruption: float | None = None,
    reclamation: float | None = None,
    labels: Mapping[str, str] | None = None,
) -> Machine:
    """``bought_for`` attributes the machine and, if it is bound, stamps it as its Bootstrap would have;
    ``stamp``, ``interruption`` and ``reclamation`` set priority and penalties by hand."""
    bound = state in (MachineState.CONFIGURING, MachineState.CONFIGURED, MachineState.DRAINING)
    assigned: dict[str, Any] = {}
    if bought_for is not None:
        profile = bought_for.profile
        assigned = {"assigned_need_fingerprint": profile.fingerprint, "assigned_group": bought_for.group}
        if bound:
            assigned["assigned_priority"] = profile.priority
            assigned["assigned_interruption_penalty"] = bound_dollars(profile.interruption_bucket)
            assigned["assigned_reclamation_penalty"] = bound_dollars(profile.reclamation_bucket)
        else:
            assigned["target_cluster"] = bought_for.cluster_id
    if stamp is not None:
        assigned["assigned_priority"] = stamp
    if interruption is not None:
        assigned["assigned_interruption_penalty"] = float(interruption)
    if reclamation is not None:
        assigned["assigned_reclamation_penalty"] = float(reclamation)
    hostless = state in (MachineState.SPECULATIVE, MachineState.CREATING)
    return Machine(
        id=machine_id,
        state=state,
        host=HostRef() if hostless else HostRef("provider", machine_id),
        cluster=cluster,
        instance_type=type,
        zone=zone,
        capacity_type=kind,
        resources=units(size) if isinstance(size, int) else size,
        labels={**({RACK_KEY: rack} if rack else {}), **(labels or {})},
        price_per_hour=price,
        interruption_probability=p,
        **assigned,
    )
