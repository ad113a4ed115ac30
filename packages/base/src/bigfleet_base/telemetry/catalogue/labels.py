"""Labels that several roles share."""

from bigfleet_base.model.lifecycle import Rpc
from bigfleet_base.model.machine import CapacityType, MachineState
from bigfleet_base.telemetry.series import Label

STATE = Label("state", tuple(state.title for state in MachineState))

CAPACITY_TYPE = Label(
    "capacity_type", tuple(kind.title for kind in CapacityType if kind is not CapacityType.UNSPECIFIED)
)

VERBS = (*(rpc.value for rpc in Rpc), "Get", "List")
"""The calls of the provider contract."""

CODE = Label(
    "code",
    (
        *("OK", "CANCELLED", "UNKNOWN", "INVALID_ARGUMENT", "DEADLINE_EXCEEDED", "NOT_FOUND"),
        *("ALREADY_EXISTS", "PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION", "ABORTED"),
        *("OUT_OF_RANGE", "UNIMPLEMENTED", "INTERNAL", "UNAVAILABLE", "DATA_LOSS", "UNAUTHENTICATED"),
    ),
)
"""The status codes of gRPC."""

PROVIDER = Label("provider")
SHARD = Label("shard")
OUTCOME = Label("outcome")
