"""The engine behind the judge interface: its values translated into those of the oracle."""

from collections.abc import Generator, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction

from bigfleet.engine.actions import Action as EngineAction
from bigfleet.engine.cells import NO_CALL, Call
from bigfleet.engine.cycle import CycleInputs, Engine
from bigfleet.engine.cycle import CycleResult as EngineResult
from bigfleet.engine.inventory import Changes
from bigfleet.engine.needs import Arrived
from bigfleet.engine.options import Options as EngineOptions
from bigfleet.engine.options import VictimWeights
from bigfleet.engine.plan import Plan
from bigfleet.engine.records import Sidecar
from bigfleet.engine.verdicts import UnmetReason
from bigfleet.engine.verdicts import Verdict as EngineVerdict
from bigfleet_base.model import CapacityType, Machine, MachineState, Need, penalty
from bigfleet_base.model import Preemptor as ModelPreemptor
from bigfleet_base.model.lifecycle import Rpc
from tests.oracle import results as plain

CALLS = {
    Rpc.CREATE: Call.CREATE,
    Rpc.CONFIGURE: Call.CONFIGURE,
    Rpc.DRAIN: Call.DRAIN,
    Rpc.DELETE: Call.DELETE,
}
WIRE = {
    UnmetReason.PREEMPTION_PENDING: UnmetReason.PRIORITY_STARVED,
    UnmetReason.INSUFFICIENT_SUPPLY: UnmetReason.PRIORITY_STARVED,
    UnmetReason.SPREAD_UNSATISFIABLE: UnmetReason.TOPOLOGY_UNSATISFIABLE,
}


def finish(work: Generator[str, None, EngineResult]) -> EngineResult:
    """Run a cycle that is under way to its end."""
    while True:
        try:
            next(work)
        except StopIteration as finished:
            result: EngineResult = finished.value
            return result


class PersistentEngine(Engine):
    """Goes by what changed even where so much has that an engine would rather look at everything, as in a
    small fleet it would in most cycles."""

    def _is_upheaval(self, plan: Plan, arrived: Arrived, changes: Changes) -> bool:
        return changes.everything


class EngineJudge:
    """bigfleet.engine, asked through the judge interface; in every cycle by changes and by everything."""

    def __init__(self, slice_rows: int = 1_000_000) -> None:
        self.engine: Engine = PersistentEngine(full_every=1)
        self._records: dict[str, Machine] = {}
        self._slice_rows = slice_rows

    def insert(self, machine: Machine, now: int, *, preempted_for: plain.Key | None = None) -> None:
        stamp = preempted_for if machine.state is MachineState.DRAINING else None
        self.engine.inventory.insert(machine, now, Sidecar(preempted_for=_stamp(stamp), provider="provider"))
        self._records[machine.id] = machine

    def apply(
        self,
        machine: Machine,
        now: int,
        *,
        started: bool = False,
        preempted_for: plain.Key | None = None,
        drain_deadline: int | None = None,
        delete_unsupported: bool = False,
        observed: bool = False,
    ) -> None:
        inventory = self.engine.inventory
        taken_back = (self._records[machine.id].state, machine.state) in {
            (MachineState.CREATING, MachineState.SPECULATIVE),
            (MachineState.DRAINING, MachineState.CONFIGURED),
        }
        if observed or taken_back:
            inventory.adopt(machine, now, _stamp(preempted_for))
        else:
            inventory.apply(
                machine,
                now,
                started=started,
                preempted_for=_stamp(preempted_for),
                drain_deadline=drain_deadline,
            )
        self._records[machine.id] = machine
        if delete_unsupported:
            inventory.mark_not_deletable("provider", machine.capacity_type)

    def remove(self, machine_id: str) -> None:
        self.engine.inventory.remove(machine_id)
        del self._records[machine_id]

    def machines(self) -> Mapping[str, Machine]:
        # Asked for at every turn, so it is kept beside; ``records`` reads them back from the engine.
        return dict(self._records)

    def records(self) -> Mapping[str, Machine]:
        """All records as the engine's inventory gives them back."""
        inventory = self.engine.inventory
        return {machine_id: inventory.entry(machine_id).machine for machine_id in inventory}

    def memory(self, machine_id: str) -> plain.Memory:
        entry = self.engine.inventory.entry(machine_id)
        sidecar = entry.sidecar
        stamp = sidecar.preempted_for
        return plain.Memory(
            idle_since=sidecar.idle_since,
            last_reclamation_value=sidecar.last_reclamation_value,
            preempted_for=None if stamp is None else (stamp.cluster, stamp.need_fingerprint, stamp.group),
            drain_deadline=sidecar.drain_deadline,
            seen_start=sidecar.seen_start,
            not_deletable=self.engine.inventory.is_not_deletable(machine_id),
        )

    def rollup(self, cluster: str, rows: Sequence[Need], now: int, *, guard: bool = False) -> plain.Ingest:
        # What the wire refuses never reaches the engine; scenarios hand over rows as a peer sends them.
        rows = [_with_known_buckets(row) for row in rows]
        accepted = self.engine.needs.apply_rollup(cluster, rows, now, guard=guard)
        return plain.Ingest.ACCEPTED if accepted else plain.Ingest.HELD

    def demand(self) -> Sequence[Need]:
        return self.engine.needs.snapshot()

    def cycle(self, inputs: plain.CycleInput, options: plain.Options) -> plain.CycleResult:
        machines = self.machines()
        held: dict[str, Call] = {}
        for machine_id, rpc in inputs.held_off:
            held[machine_id] = held.get(machine_id, NO_CALL) | CALLS[rpc]
        for machine_id, calls in held.items():
            if machine_id in self.engine.inventory:
                self.engine.inventory.hold_off(machine_id, calls)
        try:
            work = self.engine.cycle(
                CycleInputs(
                    now=inputs.now,
                    tick=inputs.tick,
                    options=_options(options),
                    blocked=inputs.blocked,
                    without_session=inputs.no_session,
                    busy=inputs.pending.__contains__,
                    free_places=inputs.free_places,
                ),
                self._slice_rows,
            )
            return self._plain(machines, finish(work))
        finally:
            for machine_id in held:
                if machine_id in self.engine.inventory:
                    self.engine.inventory.hold_off(machine_id, NO_CALL)

    def _plain(self, machines: Mapping[str, Machine], result: EngineResult) -> plain.CycleResult:
        assert result.mismatch is None, f"by changes and by everything: {result.mismatch}"
        rows = tuple(
            plain.Row(v.need, v.demand.identities, v.demand.members, v.demand.groups) for v in result.verdicts
        )
        claims: list[list[str]] = [[] for _ in rows]
        for machine_id, index in result.holders.held.items():
            claims[index].append(machine_id)
        first = tuple(
            plain.Assigned(
                claims=tuple(claims[index]),
                deficit=v.deficit,
                acquired=v.sources.idle + v.sources.speculative,
                same_domain=v.same_domain,
                same_satisfiable=v.same_satisfiable,
                candidates=_candidates(v),
                spread_stopped=False,
            )
            for index, v in enumerate(result.verdicts)
        )
        decided = tuple(map(_action, result.decided))
        bought = {plain.Kind.BOOTSTRAP, plain.Kind.PROVISION}
        preempts = tuple(a for a in decided if a.kind is plain.Kind.PREEMPT)
        by_priority = sorted(
            (index for index, v in enumerate(result.verdicts) if v.resolution is not None),
            key=lambda index: -result.verdicts[index].need.profile.priority,
        )
        second = tuple(
            plain.Inversion(
                index=index,
                deficit=found.deficit,
                picked=tuple(pick.machine_id for pick in found.picks),
                counted=found.counted,
                preempted=found.preempted,
                spread_stopped=False,
            )
            for index in by_priority
            if (found := result.verdicts[index].resolution) is not None
        )
        passed = result.passed
        return plain.CycleResult(
            machines=machines,
            rows=rows,
            phase1=plain.Phase1Result(
                tuple(a for a in decided if a.kind in bought), first, dict(result.holders.held)
            ),
            phase2=plain.Phase2Result(preempts, second, frozenset(a.machine for a in preempts)),
            decided=decided,
            rails=plain.Railed(
                executed=tuple(map(_action, passed.actions)),
                deduped=passed.busy,
                capped=passed.capped,
                deferred=passed.deferred,
                dropped=passed.dropped,
                suppressed=passed.suppressed.total(),
                dry_run=passed.rehearsed.total(),
                follow_up=passed.deferred > 0,
            ),
            report=tuple(plain.Shortfall(s.profile, s.deficit, s.age) for s in result.report),
            verdicts=tuple(map(_verdict, result.verdicts)),
            carried=self._carried(),
        )

    def _carried(self) -> plain.Carried:
        engine = self.engine
        return plain.Carried(
            folds={
                key: plain.Fold(f.folded, f.fitting_ticks, f.ever_folded) for key, f in engine.folds.items()
            },
            parking=dict(engine.parking.ages),
            helped=frozenset(engine.parking.helped),
            buckets={c: plain.Bucket(b.tokens, b.filled_at) for c, b in engine.rails.buckets.items()},
            ledger={
                key: plain.Part(
                    profile=p.profile,
                    deficit=p.deficit,
                    age=p.age,
                    visible=not p.deficit.is_zero(),
                    absent_ticks=p.absent,
                )
                for key, p in engine.ledger.parts.items()
            },
            ages=dict(engine.ages),
        )


def _with_known_buckets(row: Need) -> Need:
    profile = row.profile
    known = replace(
        profile,
        interruption_bucket=profile.interruption_bucket or penalty.ZERO,
        reclamation_bucket=profile.reclamation_bucket or penalty.ZERO,
    )
    return replace(row, profile=known)


def _stamp(key: plain.Key | None) -> ModelPreemptor | None:
    # Scenarios stamp a drain with the Need alone; its priority is carried for the provider's notes only.
    return None if key is None else ModelPreemptor(key[0], 0, key[1], key[2])


def _options(options: plain.Options) -> EngineOptions:
    return EngineOptions(
        cycle_interval_ns=options.cycle_interval_ns,
        reclaim_cap=Fraction(repr(options.reclaim_cap_fraction)),
        guard=options.guard,
        paused=options.paused,
        dry_run=options.dry_run,
        max_actions=options.max_actions_per_cycle,
        idle_hold_ns={
            CapacityType.ON_DEMAND: options.hold_on_demand_ns,
            CapacityType.SPOT: options.hold_spot_ns,
        },
        weights=VictimWeights(
            options.weight_priority,
            options.weight_drain,
            options.weight_interruption,
            options.weight_reclamation,
        ),
        estimated_drain_s=options.estimated_drain_s,
    )


def _action(action: EngineAction) -> plain.Action:
    preemptor = action.preemptor
    return plain.Action(
        kind=plain.Kind(action.kind.value),
        machine=action.machine_id,
        cluster=action.cluster,
        reason=action.reason.value,
        grace_s=action.grace_s or 0,
        profile=action.profile,
        group=action.group,
        preemptor=None
        if preemptor is None
        else plain.Preemptor(
            preemptor.priority, preemptor.cluster, preemptor.need_fingerprint, preemptor.group
        ),
    )


def _verdict(v: EngineVerdict) -> plain.Verdict:
    need = v.need
    return plain.Verdict(
        cluster=need.cluster_id,
        profile=need.profile,
        aggregate=need.aggregate,
        min_unit=need.min_unit,
        arrival_ns=need.arrival_ns,
        group=need.group,
        member_groups=v.demand.groups,
        satisfied=v.satisfied,
        deficit=v.deficit,
        claimed=v.claimed,
        bootstrap=v.sources.idle,
        provision=v.sources.speculative,
        same_domain=v.same_domain,
        same_satisfiable=v.same_satisfiable,
        acquisition_parked=need.acquisition_parked,
        parked_age=v.parked_age,
        age=v.age,
        reason=plain.Reason[v.reason.name],
        wire_reason=plain.Reason[WIRE.get(v.reason, v.reason).name],
        unmet_detail=v.detail,
        matching_supply=None
        if v.supply is None
        else plain.MatchingSupply(v.supply.idle, v.supply.speculative, v.supply.configured, v.supply.capped),
        preemption=(
            plain.PreemptionSummary(len(v.resolution.picks), v.resolution.freed)
            if v.resolution is not None and v.resolution.picks
            else None
        ),
        candidates=_candidates(v),
    )


def _candidates(v: EngineVerdict) -> tuple[plain.DomainCoverage, ...]:
    return tuple(plain.DomainCoverage(c.domain, c.coverage_per_mille, c.satisfiable) for c in v.candidates)
