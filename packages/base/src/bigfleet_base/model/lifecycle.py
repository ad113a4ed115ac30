"""The machine state machine, in one table.

A machine is a slot that hardware comes to and leaves. Three states are **stable**: Speculative (a slot
without hardware), Idle (hardware without a cluster), Configured (hardware that serves a cluster). Four are
**transitional**, one for each call that moves a machine between stable states: Create, Configure, Drain,
Delete. A call only ever starts from a stable state and is only ever finished by what the provider says of
the machine, so an edge out of a transitional state is *observed*, never decided. Failed is where a
transition ends that went wrong, or a host that vanished; it is left by an observed repair alone, so that it
is never a dead end and never something to act on.

There is no edge from one cluster to another: a machine changes clusters through Idle.

Two things hang on the table: ``GRID`` says which states have a host and a cluster, and each ``Edge`` says
what it does to the fields of the record and to what is remembered beside it. The state diagram in the
documentation is drawn from it (``docs/state-machine.md``).
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import Enum, StrEnum
from types import MappingProxyType
from typing import Any, Final

from bigfleet_base.model.machine import (
    Defect,
    HostRef,
    InvalidMachineError,
    Machine,
    MachineState,
    check_costs,
)

SPECULATIVE: Final = MachineState.SPECULATIVE
CREATING: Final = MachineState.CREATING
IDLE: Final = MachineState.IDLE
CONFIGURING: Final = MachineState.CONFIGURING
CONFIGURED: Final = MachineState.CONFIGURED
DRAINING: Final = MachineState.DRAINING
DELETING: Final = MachineState.DELETING
FAILED: Final = MachineState.FAILED


class Rpc(StrEnum):
    """The four provider calls that change a machine."""

    CREATE = "Create"
    CONFIGURE = "Configure"
    DRAIN = "Drain"
    DELETE = "Delete"


class Driver(StrEnum):
    """What takes a machine over an edge."""

    ACTION = "action"
    """An action of the engine, just before the call."""
    COMPLETION = "completion"
    """The call's end, seen in its answer or in a later Get or List."""
    FAILURE = "failure"
    """The provider's record says that the call failed or ran out of time."""
    ROLLBACK = "rollback"
    """The shard takes back a call that was never sent or that the provider does not have."""
    HOST_LOSS = "host loss"
    """Observed: the host under a settled machine is gone."""
    REPAIR = "repair"
    """Observed: the provider has cleaned up after a failure."""


class Presence(Enum):
    """Whether a state's records carry a field."""

    EMPTY = "empty"
    SET = "set"
    TOLERATED = "empty, tolerated when observed"
    ANY = "any"


class Memory(StrEnum):
    """Effects on what the inventory remembers beside the record (engine.md §2.5)."""

    STAMP_IDLE_SINCE = "stamp idle_since"
    CLEAR_IDLE_SINCE = "clear idle_since"
    STAMP_SEEN_START = "stamp seen_start"
    STAMP_DRAIN = "stamp preempted_for, drain_deadline, seen_start"
    CLEAR_DRAIN = "clear preempted_for, drain_deadline"
    KEEP_RECLAMATION_VALUE = "keep last_reclamation_value"
    MARK_NOT_DELETABLE = "mark not_deletable"


@dataclass(frozen=True, slots=True)
class Edge:
    """One legal change of state."""

    source: MachineState
    target: MachineState
    driver: Driver
    rpc: Rpc | None
    sets: frozenset[str] = frozenset()
    """Fields the change may give new values to."""
    clears: frozenset[str] = frozenset()
    """Fields that become empty."""
    memory: tuple[Memory, ...] = ()


STABLE: Final = frozenset({SPECULATIVE, IDLE, CONFIGURED})
"""The states an action may start from."""

GRID: Final = MappingProxyType(
    {
        # state: (host, cluster)
        SPECULATIVE: (Presence.EMPTY, Presence.EMPTY),
        CREATING: (Presence.TOLERATED, Presence.EMPTY),
        IDLE: (Presence.SET, Presence.EMPTY),
        CONFIGURING: (Presence.SET, Presence.SET),
        CONFIGURED: (Presence.SET, Presence.SET),
        DRAINING: (Presence.SET, Presence.SET),
        DELETING: (Presence.SET, Presence.EMPTY),
        FAILED: (Presence.ANY, Presence.ANY),
    }
)

ATTRIBUTION: Final = frozenset({"assigned_need_fingerprint", "assigned_group"})
"""The Need that a machine was bought for."""
ASSIGNMENT: Final = ATTRIBUTION | {
    "assigned_priority",
    "assigned_interruption_penalty",
    "assigned_reclamation_penalty",
}
"""All that a binding writes of the Need it serves."""
OFFER: Final = frozenset(
    {
        "instance_type",
        "zone",
        "capacity_type",
        "resources",
        "allocatable",
        "labels",
        "price_per_hour",
        "interruption_probability",
    }
)
"""What the provider says of the machine itself."""
_BINDING: Final = frozenset({"cluster"}) | ASSIGNMENT
_TARGET: Final = frozenset({"target_cluster"})
_HOST: Final = frozenset({"host"})
_ERROR: Final = frozenset({"last_error"})

EDGES: Final = (
    Edge(
        SPECULATIVE, CREATING, Driver.ACTION, Rpc.CREATE,
        sets=ATTRIBUTION | _TARGET, memory=(Memory.STAMP_SEEN_START,),
    ),
    Edge(
        CREATING, IDLE, Driver.COMPLETION, Rpc.CREATE,
        sets=_HOST | OFFER, memory=(Memory.STAMP_IDLE_SINCE,),
    ),
    Edge(CREATING, FAILED, Driver.FAILURE, Rpc.CREATE, sets=_ERROR | _HOST),
    Edge(
        IDLE, CONFIGURING, Driver.ACTION, Rpc.CONFIGURE,
        sets=_BINDING, clears=_TARGET, memory=(Memory.CLEAR_IDLE_SINCE,),
    ),
    Edge(CONFIGURING, CONFIGURED, Driver.COMPLETION, Rpc.CONFIGURE),
    Edge(
        CONFIGURING, IDLE, Driver.ROLLBACK, Rpc.CONFIGURE,
        clears=_BINDING, memory=(Memory.STAMP_IDLE_SINCE,),
    ),
    Edge(CONFIGURING, FAILED, Driver.FAILURE, Rpc.CONFIGURE, sets=_ERROR),
    Edge(CONFIGURED, DRAINING, Driver.ACTION, Rpc.DRAIN, memory=(Memory.STAMP_DRAIN,)),
    Edge(
        DRAINING, IDLE, Driver.COMPLETION, Rpc.DRAIN,
        clears=_BINDING,
        memory=(Memory.CLEAR_DRAIN, Memory.KEEP_RECLAMATION_VALUE, Memory.STAMP_IDLE_SINCE),
    ),
    Edge(DRAINING, FAILED, Driver.FAILURE, Rpc.DRAIN, sets=_ERROR, memory=(Memory.CLEAR_DRAIN,)),
    Edge(
        IDLE, DELETING, Driver.ACTION, Rpc.DELETE,
        clears=ATTRIBUTION | _TARGET, memory=(Memory.CLEAR_IDLE_SINCE,),
    ),
    Edge(DELETING, SPECULATIVE, Driver.COMPLETION, Rpc.DELETE, sets=OFFER, clears=_HOST),
    Edge(
        DELETING, IDLE, Driver.ROLLBACK, Rpc.DELETE,
        memory=(Memory.MARK_NOT_DELETABLE, Memory.STAMP_IDLE_SINCE),
    ),
    Edge(DELETING, FAILED, Driver.FAILURE, Rpc.DELETE, sets=_ERROR),
    Edge(IDLE, FAILED, Driver.HOST_LOSS, None, sets=_ERROR, memory=(Memory.CLEAR_IDLE_SINCE,)),
    Edge(CONFIGURED, FAILED, Driver.HOST_LOSS, None, sets=_ERROR),
    Edge(
        FAILED, SPECULATIVE, Driver.REPAIR, None,
        sets=OFFER, clears=_HOST | _BINDING | _TARGET | _ERROR,
    ),
    Edge(
        FAILED, IDLE, Driver.REPAIR, None,
        sets=_HOST | OFFER, clears=_BINDING | _TARGET | _ERROR, memory=(Memory.STAMP_IDLE_SINCE,),
    ),
)  # fmt: skip


class IllegalTransitionError(ValueError):
    """A change of state that the table does not have."""


def edge(source: MachineState, target: MachineState) -> Edge:
    """The edge between two states, or an error that names both."""
    found = _BY_ENDS.get((source, target))
    if found is None:
        raise IllegalTransitionError(f"no edge leads from {source.title} to {target.title}")
    return found


def has_edge(source: MachineState, target: MachineState) -> bool:
    """Whether the table leads from one state to the other."""
    return (source, target) in _BY_ENDS


def transition(machine: Machine, target: MachineState, **values: Any) -> Machine:
    """Take a machine over an edge: clear what the edge clears, set what it may set, check the result."""
    taken = edge(machine.state, target)
    if unexpected := values.keys() - taken.sets:
        raise IllegalTransitionError(
            f"{machine.state.title} → {target.title} sets no {', '.join(sorted(unexpected))}"
        )
    cleared = {name: _EMPTY_VALUES[name] for name in taken.clears}
    moved = replace(machine, state=target, **cleared, **values)
    check(moved)
    return moved


def check(machine: Machine) -> None:
    """Refuse a record that breaks an invariant, saying which; run on every write to an inventory."""
    check_costs(machine)
    if not machine.id:
        raise _structural(machine, "the id is empty")
    # One look at the table for a record that is sound; what is wrong with another one is found out below.
    if (machine.state, bool(machine.host), bool(machine.cluster)) not in _SOUND:
        raise _structural(machine, _misfit(machine))
    if machine.state is FAILED and not machine.last_error:
        raise _structural(machine, "a Failed machine says why in last_error")


def _misfit(machine: Machine) -> str:
    title = machine.state.title
    if machine.state not in GRID:
        return f"{title} is not a state a machine can rest in"
    host, _ = GRID[machine.state]
    name, present = (
        ("cluster", machine.cluster) if _allows(host, bool(machine.host)) else ("host", machine.host)
    )
    return f"a {title} machine has {'no' if present else 'a'} {name}"


def _allows(presence: Presence, present: bool) -> bool:
    return presence is not (Presence.EMPTY if present else Presence.SET)


def _structural(machine: Machine, message: str) -> InvalidMachineError:
    return InvalidMachineError(Defect.STRUCTURAL, f"machine {machine.id!r}: {message}")


_SOUND: Final = frozenset(
    (state, hosted, bound)
    for state, (host, cluster) in GRID.items()
    for hosted in (False, True)
    for bound in (False, True)
    if _allows(host, hosted) and _allows(cluster, bound)
)
"""States with whether there is a host and a cluster, as the grid allows them."""

_BY_ENDS: Final = {(e.source, e.target): e for e in EDGES}
assert len(_BY_ENDS) == len(EDGES), "two edges with the same ends"

_EMPTY_VALUES: Final[Mapping[str, Any]] = MappingProxyType(
    {
        "host": HostRef(),
        "cluster": "",
        "last_error": "",
        "target_cluster": "",
        "assigned_priority": 0,
        "assigned_interruption_penalty": 0.0,
        "assigned_reclamation_penalty": 0.0,
        "assigned_need_fingerprint": "",
        "assigned_group": "",
    }
)
