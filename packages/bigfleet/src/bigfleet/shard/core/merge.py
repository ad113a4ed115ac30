"""What a provider's record makes of a machine that is known already (shard.md §5 steps 3 and 5)."""

from dataclasses import replace
from typing import Final

from bigfleet_base.model import Machine, MachineState


def agrees(ours: Machine, theirs: Machine) -> bool:
    """Whether the record has the machine where we have it."""
    return ours.state is theirs.state and ours.cluster == theirs.cluster


def is_expected(ours: Machine, theirs: Machine) -> bool:
    """Whether a change is one that providers make in the ordinary course, to be believed at first sight;
    a lagging List shows others, and so does one that has lost its mind (Q2)."""
    if theirs.cluster and theirs.cluster != ours.cluster:
        return False
    return theirs.state is MachineState.FAILED or (ours.state, theirs.state) in _EXPECTED


def merged(ours: Machine, theirs: Machine) -> Machine:
    """The machine with what the provider says of it. What is assigned to it follows the binding (Q4): it is
    ours to keep while the binding lasts, the record's to tell for a binding we have not made."""
    if agrees(ours, theirs):
        return _assigned(theirs, ours, ours.target_cluster)
    if theirs.cluster and (theirs.cluster != ours.cluster or ours.state is MachineState.FAILED):
        # A Failed machine has nothing left to keep: it was cleared when it failed.
        return theirs
    if theirs.state in _BOUND:
        return _assigned(theirs, ours, "")
    if ours.state is MachineState.CREATING and theirs.state is MachineState.IDLE:
        # Whom it was bought for; a purchase has nothing else.
        return _assigned(theirs, ours, ours.target_cluster)
    return _assigned(theirs, _NOBODY, "")


def is_within(machine: Machine, domains: tuple[tuple[str, str], ...]) -> bool:
    """Whether the machine is in one of the domains that the shard is limited to, if it is (Q10)."""
    return not domains or any(machine.lookup(key) == value for key, value in domains)


def _assigned(machine: Machine, like: Machine, target_cluster: str) -> Machine:
    return replace(
        machine,
        assigned_priority=like.assigned_priority,
        assigned_interruption_penalty=like.assigned_interruption_penalty,
        assigned_reclamation_penalty=like.assigned_reclamation_penalty,
        assigned_need_fingerprint=like.assigned_need_fingerprint,
        assigned_group=like.assigned_group,
        target_cluster=target_cluster,
    )


_NOBODY: Final = Machine("", MachineState.UNSPECIFIED)
_EXPECTED: Final = frozenset(
    {
        (MachineState.CREATING, MachineState.IDLE),
        (MachineState.CONFIGURING, MachineState.CONFIGURED),
        (MachineState.DRAINING, MachineState.IDLE),
        (MachineState.DELETING, MachineState.SPECULATIVE),
        (MachineState.FAILED, MachineState.IDLE),
        (MachineState.FAILED, MachineState.SPECULATIVE),
    }
)
_BOUND: Final = frozenset({MachineState.CONFIGURING, MachineState.CONFIGURED, MachineState.DRAINING})
