"""What a Need demands of a machine: node-selector requirements and topology spread (engine.md §2.3, §6)."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

INSTANCE_TYPE_KEY: Final = "node.kubernetes.io/instance-type"
ZONE_KEY: Final = "topology.kubernetes.io/zone"


class Operator(StrEnum):
    """How a requirement compares a label; the values are the names used in fingerprints."""

    IN = "In"
    NOT_IN = "NotIn"
    EXISTS = "Exists"
    DOES_NOT_EXIST = "DoesNotExist"
    SAME = "Same"


@dataclass(frozen=True, slots=True, order=True)
class Requirement:
    """One condition on one label. Values are kept sorted and without repetition."""

    key: str
    operator: Operator
    values: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "values", tuple(sorted(set(self.values))))

    def matches(self, value: str | None) -> bool:
        """Whether a label with this value (None: no such label) meets the requirement.

        ``Same`` is judged for the machine alone: that all machines share one value is the business of
        whoever chooses them.
        """
        match self.operator:
            case Operator.IN:
                return value is not None and value in self.values
            case Operator.NOT_IN:
                return value is None or value not in self.values
            case Operator.EXISTS:
                return value is not None
            case Operator.DOES_NOT_EXIST:
                return value is None
            case Operator.SAME:
                return value is not None and (not self.values or value in self.values)


class WhenUnsatisfiable(StrEnum):
    """Only ``DoNotSchedule`` has an effect on decisions."""

    UNSPECIFIED = "Unspecified"
    DO_NOT_SCHEDULE = "DoNotSchedule"
    SCHEDULE_ANYWAY = "ScheduleAnyway"


@dataclass(frozen=True, slots=True, order=True)
class TopologySpread:
    """How evenly machines are to lie over the values of a topology key; ordered as fingerprints are."""

    topology_key: str
    when: WhenUnsatisfiable
    max_skew: int


def lookup(key: str, instance_type: str, zone: str, labels: Mapping[str, str]) -> str | None:
    """The value that requirements on ``key`` see: the two resolved attributes, then the labels."""
    if key == INSTANCE_TYPE_KEY and instance_type:
        return instance_type
    if key == ZONE_KEY and zone:
        return zone
    return labels.get(key)


def matches_all(
    requirements: Iterable[Requirement], instance_type: str, zone: str, labels: Mapping[str, str]
) -> bool:
    """Whether a machine with these attributes meets every requirement (its size is not looked at)."""
    return all(r.matches(lookup(r.key, instance_type, zone, labels)) for r in requirements)
