"""Machine records that keep the invariants of the state machine, whatever their state."""

from typing import Any, Final

from bigfleet_base.model import HostRef, Machine, MachineState, ResourceVector

PROVIDER: Final = "scale"
_HOSTLESS: Final = frozenset({MachineState.SPECULATIVE, MachineState.CREATING})


def mint(machine_id: str, state: MachineState, resources: ResourceVector, **fields: Any) -> Machine:
    """A machine with a host where its state asks for one; ``fields`` are those of the record."""
    # The reference is the id itself: a fleet of millions does not need a second text for every machine.
    host = HostRef() if state in _HOSTLESS else HostRef(PROVIDER, machine_id)
    return Machine(machine_id, state, host, resources=resources, **fields)


def cluster_names(count: int) -> list[str]:
    """``c00``, ``c01``, …: wide enough that their order as texts is their order as numbers, because equal
    Needs are served in the order of their clusters' names."""
    width = max(2, len(str(count - 1)))
    return [f"c{number:0{width}}" for number in range(count)]
