"""A machine: one slot of capacity through all of its lives (engine.md §2.5)."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum

from bigfleet_base.model.need import Profile
from bigfleet_base.model.requirement import lookup, matches_all
from bigfleet_base.model.resources import EMPTY, ResourceVector


class MachineState(IntEnum):
    """Numbered as on the wire. The rules between them are the table in ``lifecycle``."""

    UNSPECIFIED = 0
    SPECULATIVE = 1
    CREATING = 2
    IDLE = 3
    CONFIGURING = 4
    CONFIGURED = 5
    DRAINING = 6
    DELETING = 7
    FAILED = 8

    @property
    def title(self) -> str:
        """The name in logs, labels and documents: ``Speculative``."""
        return self.name.capitalize()


class CapacityType(IntEnum):
    """Numbered as on the wire; decides how long an idle machine is kept."""

    UNSPECIFIED = 0
    BARE_METAL = 1
    RESERVED = 2
    ON_DEMAND = 3
    SPOT = 4

    @property
    def title(self) -> str:
        """The name in logs and labels: ``BareMetal``."""
        return self.name.title().replace("_", "")


@dataclass(frozen=True, slots=True)
class HostRef:
    """Where a machine really is; empty when both parts are."""

    provider: str = ""
    ref: str = ""

    def __bool__(self) -> bool:
        return bool(self.provider or self.ref)


@dataclass(frozen=True, slots=True)
class Preemptor:
    """The Need a machine is drained for."""

    cluster: str
    priority: int
    need_fingerprint: str
    group: str


@dataclass(frozen=True, slots=True)
class Machine:
    """What is known of one machine. Amounts are milli-units."""

    id: str
    state: MachineState
    host: HostRef = HostRef()
    cluster: str = ""
    """The cluster it is bound to; empty when unbound."""

    instance_type: str = ""
    zone: str = ""
    capacity_type: CapacityType = CapacityType.UNSPECIFIED
    resources: ResourceVector = EMPTY
    allocatable: ResourceVector | None = None
    """Usable capacity; None where the provider gives none."""
    labels: Mapping[str, str] = field(default_factory=dict)
    price_per_hour: float = 0.0
    interruption_probability: float = 0.0
    last_error: str = ""

    assigned_priority: int = 0
    assigned_interruption_penalty: float = 0.0
    assigned_reclamation_penalty: float = 0.0
    assigned_need_fingerprint: str = ""
    assigned_group: str = ""
    target_cluster: str = ""
    """The cluster a Create was made for, while there is no binding yet."""

    @property
    def alloc(self) -> ResourceVector:
        """What the machine counts for: its allocatable, or its base shape where none is given. One that is
        given and comes to nothing is a statement."""
        return self.resources if self.allocatable is None else self.allocatable

    def lookup(self, key: str) -> str | None:
        """The value that a requirement on ``key`` sees."""
        return lookup(key, self.instance_type, self.zone, self.labels)

    def matches(self, profile: Profile) -> bool:
        """Whether every requirement of the Profile is met; size is not part of it."""
        return matches_all(profile.requirements, self.instance_type, self.zone, self.labels)


def effective_cost(price_per_hour: float, interruption_probability: float, penalty: float) -> float:
    """Price plus expected loss; a machine that is never interrupted costs its price, however dear the
    interruption would be (0 × ∞ is 0 here, not NaN)."""
    if interruption_probability == 0:
        return price_per_hour
    return price_per_hour + interruption_probability * max(0.0, penalty)


class Defect(StrEnum):
    """Why a record is no machine; the values are those of the rejection metric."""

    PRICE = "price"
    INTERRUPTION_PROBABILITY = "interruption_probability"
    STRUCTURAL = "structural"


class InvalidMachineError(ValueError):
    """A record that breaks an invariant, with the reason it is counted under."""

    def __init__(self, defect: Defect, message: str) -> None:
        super().__init__(message)
        self.defect = defect


def check_costs(machine: Machine) -> None:
    """Refuse a record whose numbers would poison every cost comparison."""
    if math.isnan(machine.price_per_hour) or machine.price_per_hour < 0:
        raise InvalidMachineError(
            Defect.PRICE,
            f"machine {machine.id!r}: price_per_hour is {machine.price_per_hour}, must be at least 0",
        )
    if not 0.0 <= machine.interruption_probability <= 1.0:
        raise InvalidMachineError(
            Defect.INTERRUPTION_PROBABILITY,
            f"machine {machine.id!r}: interruption_probability is "
            f"{machine.interruption_probability}, must be between 0 and 1",
        )
