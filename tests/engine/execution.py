"""Carrying out actions on a judge's inventory, the way a shard with a provider would.

Every change of state goes through the lifecycle table, so a history that breaks the state machine fails
here (I22).
"""

from collections.abc import Mapping
from typing import Final

from bigfleet_base.model import HostRef, Machine, MachineState, transition
from bigfleet_base.model.penalty import bound_dollars
from tests.engine.judge import Judge
from tests.oracle.results import SECOND, Action, Kind

FINISHES: Final[Mapping[MachineState, MachineState]] = {
    MachineState.CREATING: MachineState.IDLE,
    MachineState.CONFIGURING: MachineState.CONFIGURED,
    MachineState.DRAINING: MachineState.IDLE,
    MachineState.DELETING: MachineState.SPECULATIVE,
}
"""Where each transition ends when it succeeds."""

STARTS_FROM: Final[Mapping[Kind, MachineState]] = {
    Kind.BOOTSTRAP: MachineState.IDLE,
    Kind.PROVISION: MachineState.SPECULATIVE,
    Kind.PREEMPT: MachineState.CONFIGURED,
    Kind.RECLAIM: MachineState.CONFIGURED,
    Kind.DELETE: MachineState.IDLE,
}


def start(judge: Judge, action: Action, now: int) -> None:
    """Take the machine over the edge of the action, stamping what engine.md §3 says."""
    machine = judge.machines()[action.machine]
    match action.kind:
        case Kind.BOOTSTRAP:
            assert action.profile is not None
            moved = transition(
                machine,
                MachineState.CONFIGURING,
                cluster=action.cluster,
                assigned_priority=action.profile.priority,
                assigned_interruption_penalty=bound_dollars(action.profile.interruption_bucket),
                assigned_reclamation_penalty=bound_dollars(action.profile.reclamation_bucket),
                assigned_need_fingerprint=action.profile.fingerprint,
                assigned_group=action.group,
            )
            judge.apply(moved, now, started=True)
        case Kind.PROVISION:
            assert action.profile is not None
            moved = transition(
                machine,
                MachineState.CREATING,
                assigned_need_fingerprint=action.profile.fingerprint,
                assigned_group=action.group,
                target_cluster=action.cluster,
            )
            judge.apply(moved, now, started=True)
        case Kind.PREEMPT | Kind.RECLAIM:
            preemptor = action.preemptor
            stamp = None
            if preemptor is not None:
                stamp = (preemptor.cluster, preemptor.fingerprint, preemptor.group)
            judge.apply(
                transition(machine, MachineState.DRAINING),
                now,
                started=True,
                preempted_for=stamp,
                drain_deadline=now + action.grace_s * SECOND,
            )
        case Kind.DELETE:
            judge.apply(transition(machine, MachineState.DELETING), now, started=True)


def finish(judge: Judge, machine_id: str, now: int) -> None:
    """The provider reports the running transition as done."""
    machine = judge.machines()[machine_id]
    target = FINISHES[machine.state]
    host = {"host": host_of(machine)} if machine.state is MachineState.CREATING else {}
    judge.apply(transition(machine, target, **host), now)


def fail(judge: Judge, machine_id: str, now: int) -> None:
    """The provider reports that the transition failed, or that the host is lost."""
    machine = judge.machines()[machine_id]
    judge.apply(transition(machine, MachineState.FAILED, last_error="broken"), now)


def repair(judge: Judge, machine_id: str, now: int) -> None:
    """The provider has cleaned up: back to Idle where there is a host, else to a free slot."""
    machine = judge.machines()[machine_id]
    target = MachineState.IDLE if machine.host else MachineState.SPECULATIVE
    judge.apply(transition(machine, target), now)


def roll_back(judge: Judge, machine_id: str, now: int) -> None:
    """No bootstrap blob came: the machine is Idle again and bound to nobody."""
    judge.apply(transition(judge.machines()[machine_id], MachineState.IDLE), now)


def host_of(machine: Machine) -> HostRef:
    return machine.host or HostRef("provider", machine.id)
