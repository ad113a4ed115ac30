"""Phase 3: reclaim what nobody claims, release what nobody binds (§12)."""

from collections.abc import Set
from typing import Final

from bigfleet_base.model import CapacityType
from bigfleet_base.model.lifecycle import Rpc
from tests.oracle.context import Context
from tests.oracle.results import Action, Kind
from tests.oracle.world import CONFIGURED, IDLE

RECLAIM_GRACE: Final = 600


def phase3(context: Context, claimed: Set[str], picked: Set[str]) -> tuple[Action, ...]:
    return (*_reclaims(context, claimed, picked), *_releases(context, claimed))


def _reclaims(context: Context, claimed: Set[str], picked: Set[str]) -> list[Action]:
    """Cluster by cluster in reverse keep order, so the dearest goes first."""
    return [
        Action(Kind.RECLAIM, machine.id, cluster, "phase3.excess", grace_s=RECLAIM_GRACE)
        for cluster in context.snapshot.serving_clusters
        if cluster in context.reported
        for machine in reversed(context.snapshot.bound(cluster, CONFIGURED))
        if machine.id not in claimed and machine.id not in picked and not context.held_off(machine, Rpc.DRAIN)
    ]


def _releases(context: Context, claimed: Set[str]) -> list[Action]:
    """Elastic machines that stayed Idle for their hold; no other capacity type has one (ruling R6)."""
    holds = {
        CapacityType.ON_DEMAND: context.options.hold_on_demand_ns,
        CapacityType.SPOT: context.options.hold_spot_ns,
    }
    released: list[Action] = []
    for machine in context.snapshot.in_state(IDLE):
        memory = context.snapshot.memory[machine.id]
        hold = holds.get(machine.capacity_type, 0)
        if (
            machine.id not in claimed
            and hold > 0
            and not memory.not_deletable
            and not context.held_off(machine, Rpc.DELETE)
            and memory.idle_since is not None
            and context.now - memory.idle_since >= hold
        ):
            released.append(Action(Kind.DELETE, machine.id, "", "phase3.release"))
    return released
