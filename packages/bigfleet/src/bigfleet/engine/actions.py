"""What the engine decides (engine.md §2.6)."""

from enum import StrEnum
from typing import NamedTuple

from bigfleet_base.model import Preemptor, Profile


class ActionKind(StrEnum):
    """The five things a shard can do to a machine, in the order the action limit takes turns."""

    BOOTSTRAP = "Bootstrap"
    PROVISION = "Provision"
    PREEMPT = "Preempt"
    RECLAIM = "Reclaim"
    DELETE = "Delete"


class Reason(StrEnum):
    """Why an action was decided; it survives to the audit log."""

    IDLE = "phase1.idle"
    SPECULATIVE = "phase1.speculative"
    INVERSION = "phase2.inversion"
    EXCESS_TAKEN = "phase2.excess"
    EXCESS = "phase3.excess"
    RELEASE = "phase3.release"


class Action(NamedTuple):
    """One decision about one machine."""

    kind: ActionKind
    machine_id: str
    reason: Reason
    cluster: str = ""
    """Destination of a Bootstrap or Provision, source of a Preempt or Reclaim."""
    grace_s: int | None = None
    profile: Profile | None = None
    """Of the Need served, with Bootstrap and Provision: for the blob and the stamps."""
    group: str = ""
    preemptor: Preemptor | None = None
    """Of a Preempt: whom the machine is drained for."""
    cost: float | None = None
    """Of a machine acquired: its effective cost per hour for the Need."""
    runner_up_cost: float | None = None
    """The same of the cheapest machine in that state that would have done and was left."""
    victim_score: float | None = None
    """Of a Preempt: how good a victim it was."""
