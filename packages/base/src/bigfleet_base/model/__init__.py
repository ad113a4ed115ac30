"""The values every rule is written in. Standard library only, no I/O, no clock."""

from bigfleet_base.model.ids import ID_PATTERN, is_valid_id
from bigfleet_base.model.lifecycle import IllegalTransitionError, transition
from bigfleet_base.model.machine import (
    CapacityType,
    Defect,
    HostRef,
    InvalidMachineError,
    Machine,
    MachineState,
    Preemptor,
    effective_cost,
)
from bigfleet_base.model.need import Need, Profile, aggregate_rows
from bigfleet_base.model.quantity import QuantityError, format_quantity, parse_quantity
from bigfleet_base.model.requirement import Operator, Requirement, TopologySpread, WhenUnsatisfiable
from bigfleet_base.model.resources import EMPTY, ResourceVector

__all__ = [
    "EMPTY",
    "ID_PATTERN",
    "CapacityType",
    "Defect",
    "HostRef",
    "IllegalTransitionError",
    "InvalidMachineError",
    "Machine",
    "MachineState",
    "Need",
    "Operator",
    "Preemptor",
    "Profile",
    "QuantityError",
    "Requirement",
    "ResourceVector",
    "TopologySpread",
    "WhenUnsatisfiable",
    "aggregate_rows",
    "effective_cost",
    "format_quantity",
    "is_valid_id",
    "parse_quantity",
    "transition",
]
