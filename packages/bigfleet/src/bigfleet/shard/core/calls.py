"""The four calls that change a machine: where each starts, what it carries, what may answer it."""

import hashlib
from dataclasses import replace
from typing import Any, Final

from bigfleet.engine.cells import Call
from bigfleet.engine.options import RECLAIM_GRACE_S
from bigfleet.shard.core.effects import (
    Assignment,
    ConfigureMachine,
    CreateMachine,
    DeleteMachine,
    DrainMachine,
    Effect,
)
from bigfleet.shard.core.operations import Operation
from bigfleet_base.model import HostRef, IllegalTransitionError, Machine, MachineState, Profile, transition
from bigfleet_base.model.lifecycle import EDGES, Driver, Rpc, edge
from bigfleet_base.model.penalty import bound_dollars

START: Final = {e.rpc: e for e in EDGES if e.driver is Driver.ACTION}
"""The edge that a call begins with."""

HOLDS: Final = {
    Rpc.CREATE: Call.CREATE,
    Rpc.CONFIGURE: Call.CONFIGURE,
    Rpc.DRAIN: Call.DRAIN,
    Rpc.DELETE: Call.DELETE,
}
"""The same calls in the engine's terms, which are those of hold-offs."""

_ANSWERS: Final = {
    Rpc.CREATE: (MachineState.CREATING, MachineState.IDLE),
    Rpc.CONFIGURE: (MachineState.CONFIGURING, MachineState.CONFIGURED),
    Rpc.DRAIN: (MachineState.DRAINING, MachineState.IDLE),
    Rpc.DELETE: (MachineState.DELETING, MachineState.SPECULATIVE),
}
"""What a record shows after a call that was taken, besides Failed."""


def call(op: Operation, machine: Machine, budget_ns: int) -> Effect:
    """The call that an operation has come to."""
    match op.rpc:
        case Rpc.CREATE:
            return CreateMachine(op.number, op.provider, machine.id, assignment(op), op.cluster, budget_ns)
        case Rpc.CONFIGURE:
            return ConfigureMachine(
                op.number, op.provider, machine.id, op.cluster, op.request_id, assignment(op), budget_ns
            )
        case Rpc.DRAIN:
            return DrainMachine(
                op.number,
                op.provider,
                machine.id,
                grace_s(op),
                op.instruction_id,
                op.action.preemptor,
                budget_ns,
            )
        case Rpc.DELETE:
            return DeleteMachine(op.number, op.provider, machine.id, machine.capacity_type, budget_ns)


def assignment(op: Operation) -> Assignment:
    """What the machine will carry for its Need; penalties as the bounds of their buckets."""
    return Assignment(
        profile(op).priority,
        bound_dollars(profile(op).interruption_bucket),
        bound_dollars(profile(op).reclamation_bucket),
        profile(op).fingerprint,
        op.action.group,
    )


def stamps(op: Operation) -> dict[str, Any]:
    """What the machine is marked with when the call begins, so that it counts for its Need at once (X1)."""
    match op.rpc:
        case Rpc.CREATE:
            return {
                "assigned_need_fingerprint": profile(op).fingerprint,
                "assigned_group": op.action.group,
                "target_cluster": op.cluster,
            }
        case Rpc.CONFIGURE:
            values = assignment(op)
            return {
                "cluster": op.cluster,
                "assigned_priority": values.priority,
                "assigned_interruption_penalty": values.interruption_penalty,
                "assigned_reclamation_penalty": values.reclamation_penalty,
                "assigned_need_fingerprint": values.need_fingerprint,
                "assigned_group": values.group,
            }
        case Rpc.DRAIN | Rpc.DELETE:
            return {}


def profile(op: Operation) -> Profile:
    assert op.action.profile is not None
    return op.action.profile


def grace_s(op: Operation) -> int:
    return RECLAIM_GRACE_S if op.action.grace_s is None else op.action.grace_s


def request_id(seed: bytes, number: int) -> str:
    """Of a process's n-th bootstrap request: nobody who has not seen it can name it."""
    return hashlib.blake2b(seed + number.to_bytes(8, "big"), digest_size=16).hexdigest()


def is_answer(op: Operation, seen: Machine) -> bool:
    """Whether a record can be the answer to the operation's call."""
    if seen.id != op.machine_id or seen.cluster not in ("", op.cluster):
        return False
    return seen.state is MachineState.FAILED or seen.state in _ANSWERS[op.rpc]


def is_done(op: Operation, machine: Machine) -> bool:
    """Whether a machine that is not where the operation starts leaves it nothing to do (E5)."""
    match op.rpc:
        case Rpc.CREATE:
            return False
        case Rpc.CONFIGURE:
            wanted = op.action.profile
            return (
                machine.state is MachineState.CONFIGURED
                and machine.cluster == op.cluster
                and wanted is not None
                and machine.assigned_need_fingerprint == wanted.fingerprint
            )
        case Rpc.DRAIN | Rpc.DELETE:
            return True


def is_edge(source: MachineState, target: MachineState) -> bool:
    try:
        edge(source, target)
    except IllegalTransitionError:
        return False
    return True


def taken_back(machine: Machine) -> Machine:
    """A machine in transition as it was before: its call was not sent or had no effect (shard.md §6.1)."""
    match machine.state:
        case MachineState.CREATING:
            return replace(
                machine,
                state=MachineState.SPECULATIVE,
                host=HostRef(),
                assigned_need_fingerprint="",
                assigned_group="",
                target_cluster="",
            )
        case MachineState.DRAINING:
            return replace(machine, state=MachineState.CONFIGURED)
        case _:
            return transition(machine, MachineState.IDLE)
