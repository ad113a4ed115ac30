"""What every phase of one cycle reads, and the words of §2.5, §6 and §10.1 that all phases use."""

from dataclasses import dataclass
from functools import cached_property

from bigfleet_base.model import Machine, Need, ResourceVector, effective_cost
from bigfleet_base.model.lifecycle import Rpc
from bigfleet_base.model.penalty import bound_dollars
from tests.oracle.results import CycleInput, Key, Options, Row
from tests.oracle.world import CREATING, IDLE, Snapshot


@dataclass(frozen=True)
class Context:
    """Snapshot, normalised demand and the inputs of one cycle; never changed by a phase (I16)."""

    snapshot: Snapshot
    rows: tuple[Row, ...]
    reported: frozenset[str]
    inputs: CycleInput
    options: Options

    @property
    def now(self) -> int:
        return self.inputs.now

    @cached_property
    def _known_identities(self) -> frozenset[Key]:
        return frozenset((r.need.cluster_id, *identity) for r in self.rows for identity in r.identities)

    @cached_property
    def _suits(self) -> dict[tuple[str, ResourceVector, str], bool]:
        return {}

    def suits(self, machine: Machine, need: Need) -> bool:
        """§10.2: it matches the Profile and covers ``min_unit``."""
        key = (need.profile.fingerprint, need.min_unit, machine.id)
        known = self._suits.get(key)
        if known is None:
            known = machine.matches(need.profile) and machine.alloc.covers(need.min_unit)
            self._suits[key] = known
        return known

    def held_off(self, machine: Machine, rpc: Rpc) -> bool:
        """The shard wants no such call on this machine at present (§2.5)."""
        return (machine.id, rpc) in self.inputs.held_off

    def foreign(self, machine: Machine, row: Row) -> bool:
        """§10.2: bought for another Need of the same cluster that is in demand."""
        return not is_own(machine, row) and attribution(machine) in self._known_identities

    def ownerless(self, machine: Machine) -> bool:
        """§10.1: a Creating machine credited by eligibility (ruling R15, or its Need has gone)."""
        if not machine.assigned_need_fingerprint:
            return not self.snapshot.memory[machine.id].seen_start
        return self._counts_as_none(attribution(machine))

    def drains_for(self, machine: Machine, row: Row) -> bool:
        """§11 step 3: a Draining machine stamped for this Need."""
        stamp = self.snapshot.memory[machine.id].preempted_for
        return stamp is not None and stamp[0] == row.need.cluster_id and stamp[1:] in row.identities

    def drains_for_nobody(self, machine: Machine) -> bool:
        """§11 step 3: a voluntary drain, or one whose Need has gone."""
        stamp = self.snapshot.memory[machine.id].preempted_for
        return stamp is None or self._counts_as_none(stamp)

    def _counts_as_none(self, stamp: Key) -> bool:
        # §10.1: only the demand of a cluster that has reported can tell that a Need is gone. An
        # attribution without target_cluster names no cluster, so it stays reserved for nobody.
        return stamp not in self._known_identities and stamp[0] in self.reported


def attribution(machine: Machine) -> Key:
    """Whom a machine was bought for; while it has no binding the cluster is its target (§2.5)."""
    unbound = machine.state in (CREATING, IDLE)
    cluster = machine.target_cluster if unbound else machine.cluster
    return (cluster, machine.assigned_need_fingerprint, machine.assigned_group)


def is_own(machine: Machine, row: Row) -> bool:
    """§10.2: attributed to one of the Need's identities and to its cluster."""
    cluster, *identity = attribution(machine)
    return cluster == row.need.cluster_id and tuple(identity) in row.identities


def starts_nothing(need: Need) -> bool:
    """Parked in the sense of §10 and §11, which includes held back (§9)."""
    return need.acquisition_parked or need.held_back


def progresses(machine: Machine, remaining: ResourceVector) -> bool:
    """§10.1: it adds to a dimension still short."""
    alloc = machine.alloc
    return any(amount > 0 and alloc[name] > 0 for name, amount in remaining.items())


def cost(machine: Machine, need: Need) -> float:
    """Effective cost for this Need's interruption bucket (§2.5)."""
    bound = bound_dollars(need.profile.interruption_bucket)
    return effective_cost(machine.price_per_hour, machine.interruption_probability, bound)
