"""Named situations that random fleets must reach, so that agreement means something.

Each is a claim about one cycle of the oracle. ``reached`` names those that a step shows; the differential run
counts the fleets that reach each of them and fails if one is too rare to be tested by chance.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

from bigfleet_base.model import HostRef, Machine, MachineState
from bigfleet_base.model.lifecycle import Rpc
from tests.engine.fleets import Step
from tests.oracle.context import Context, attribution, cost, is_own, progresses
from tests.oracle.results import Assigned, CycleResult, Inversion, Kind, Reason, Row
from tests.oracle.spread import strict_spread
from tests.oracle.world import Snapshot

S = MachineState


@dataclass(frozen=True)
class Scene:
    """One step with the snapshot its cycle saw."""

    step: Step
    snapshot: Snapshot
    held: bool
    """The guard held a roll-up of this step."""
    before: CycleResult | None
    """The cycle before."""

    @property
    def result(self) -> CycleResult:
        return self.step.result

    @cached_property
    def context(self) -> Context:
        return Context(
            self.snapshot, self.result.rows, self.step.reported, self.step.inputs, self.step.options
        )

    @cached_property
    def rows(self) -> list[tuple[Row, Assigned]]:
        return list(zip(self.result.rows, self.result.phase1.needs, strict=True))

    @cached_property
    def gangs(self) -> list[tuple[Row, Assigned]]:
        return [(row, got) for row, got in self.rows if row.need.profile.same is not None]

    def machines(self, ids: tuple[str, ...], *states: MachineState) -> list[Machine]:
        found = [self.snapshot.machines[i] for i in ids]
        return [m for m in found if not states or m.state in states]

    def suitable(self, row: Row, *states: MachineState) -> list[Machine]:
        return [m for m in self.snapshot.in_state(*states) if self.context.suits(m, row.need)]

    @cached_property
    def inversions(self) -> list[tuple[Row, Inversion]]:
        return [(self.result.rows[n.index], n) for n in self.result.phase2.needs]


Test = Callable[[Scene], bool]


def reached(scene: Scene) -> Iterator[str]:
    """The situations this step is in."""
    for name, test in SITUATIONS.items():
        if test(scene):
            yield name


def _reason(reason: Reason) -> Test:
    return lambda scene: any(v.reason is reason for v in scene.result.verdicts)


def _decided(kind: Kind, reason: str = "") -> Test:
    return lambda scene: any(a.kind is kind and reason in a.reason for a in scene.result.decided)


def _tie_across_classes(scene: Scene) -> bool:
    for row, got in scene.rows:
        for taken in scene.machines(got.claims, S.IDLE, S.SPECULATIVE):
            for other in scene.suitable(row, taken.state):
                if cost(other, row.need) == cost(taken, row.need) and (
                    (other.instance_type, other.zone, other.alloc)
                    != (taken.instance_type, taken.zone, taken.alloc)
                ):
                    return True
    return False


def _own_before_cheaper(scene: Scene) -> bool:
    for row, got in scene.gangs:
        same = row.need.profile.same
        assert same is not None
        own = [m for m in scene.machines(got.claims, S.CONFIGURED) if is_own(m, row)]
        for other in scene.suitable(row, S.CONFIGURED):
            if (
                other.cluster == row.need.cluster_id
                and other.id not in got.claims
                and other.lookup(same.key) == got.same_domain
                and any(other.price_per_hour <= m.price_per_hour for m in own)
            ):
                return True
    return False


def _foreign_claimed(scene: Scene) -> bool:
    return any(
        scene.context.foreign(m, row)
        for row, got in scene.rows
        for m in scene.machines(got.claims, S.CONFIGURED, S.CONFIGURING)
    )


def _foreign_left_alone(scene: Scene) -> bool:
    return any(
        got.acquired
        and any(
            m.cluster == row.need.cluster_id and scene.context.foreign(m, row) and m.id not in got.claims
            for m in scene.suitable(row, S.CONFIGURED, S.CONFIGURING)
        )
        for row, got in scene.rows
    )


def _own_idle_taken(scene: Scene) -> bool:
    return any(is_own(m, row) for row, got in scene.rows for m in scene.machines(got.claims, S.IDLE))


def _creating(test: Callable[[Scene, Row, Machine], bool]) -> Test:
    return lambda scene: any(
        test(scene, row, m) for row, got in scene.rows for m in scene.machines(got.claims, S.CREATING)
    )


def _displaced(scene: Scene) -> bool:
    for row, got in scene.rows:
        if got.deficit.is_zero():
            continue
        for other, theirs in scene.rows:
            if _precedence(other) > _precedence(row) and any(
                scene.context.suits(m, row.need) for m in scene.machines(theirs.claims, S.IDLE, S.SPECULATIVE)
            ):
                return True
    return False


def _precedence(row: Row) -> tuple[int, int, int]:
    profile = row.need.profile
    return (profile.priority, profile.interruption_bucket, profile.reclamation_bucket)


def _second_ranking(scene: Scene) -> bool:
    return any(
        row.need.profile.same is not None
        and not scene.result.phase1.needs[n.index].same_satisfiable
        and (n.picked or n.counted)
        for row, n in scene.inversions
    )


def _gangs_part_ways(scene: Scene) -> bool:
    domains = {(row.need.profile.fingerprint, got.same_domain) for row, got in scene.gangs if got.same_domain}
    return len(domains) > len({fingerprint for fingerprint, _ in domains})


def _drain_of_another(scene: Scene) -> bool:
    return any(
        not n.deficit.is_zero()
        and any(
            not scene.context.drains_for(m, row) and not scene.context.drains_for_nobody(m)
            for m in scene.suitable(row, S.DRAINING)
        )
        for row, n in scene.inversions
    )


def _counted(stamped: bool) -> Test:
    return lambda scene: any(
        scene.context.drains_for(m, row) == stamped
        for row, n in scene.inversions
        for m in scene.machines(n.counted)
    )


def _drain_too_late(scene: Scene) -> bool:
    return any(
        n.picked
        and any(
            m.id not in n.counted and scene.context.drains_for_nobody(m) and progresses(m, row.need.aggregate)
            for m in scene.suitable(row, S.DRAINING)
        )
        for row, n in scene.inversions
    )


def _spread_over_domains(scene: Scene) -> bool:
    for row, got in scene.rows:
        spread = strict_spread(row)
        taken = scene.machines(got.claims, S.IDLE, S.SPECULATIVE)
        if spread is not None and len({m.lookup(spread.topology_key) for m in taken}) > 1:
            return True
    return False


def _pinned_passes_idle(scene: Scene) -> bool:
    return any(
        any(math.isfinite(cost(m, row.need)) for m in scene.machines(got.claims, S.SPECULATIVE))
        and any(math.isinf(cost(m, row.need)) for m in scene.suitable(row, S.IDLE))
        for row, got in scene.rows
    )


def _held_off_passed_over(scene: Scene) -> bool:
    held = scene.step.inputs.held_off
    return any(
        got.acquired
        and any(
            (m.id, Rpc.CONFIGURE if m.state is S.IDLE else Rpc.CREATE) in held
            for m in scene.suitable(row, S.IDLE, S.SPECULATIVE)
        )
        for row, got in scene.rows
    )


def _too_small_passed_over(scene: Scene) -> bool:
    return any(
        got.acquired
        and any(
            m.matches(row.need.profile) and not m.alloc.covers(row.need.min_unit)
            for m in scene.snapshot.in_state(S.IDLE, S.SPECULATIVE)
        )
        for row, got in scene.rows
    )


def _twins_taken(scene: Scene) -> bool:
    return any(
        count > 1
        for _, got in scene.rows
        for count in Counter(
            _but_for_its_id(m) for m in scene.machines(got.claims, S.IDLE, S.SPECULATIVE)
        ).values()
    )


def _twins_parted(scene: Scene) -> bool:
    claimed = Counter(_but_for_its_id(m) for _, got in scene.rows for m in scene.machines(got.claims))
    free = scene.snapshot.in_state(S.CONFIGURED, S.IDLE, S.SPECULATIVE)
    there = Counter(map(_but_for_its_id, free))
    return any(0 < claimed[kind] < count for kind, count in there.items())


def _but_for_its_id(machine: Machine) -> str:
    return repr(replace(machine, id="", host=HostRef()))


def _shortfall_returns(scene: Scene) -> bool:
    if scene.before is None:
        return False
    absent = {key for key, part in scene.before.carried.ledger.items() if not part.visible}
    return any(part.visible and key in absent for key, part in scene.result.carried.ledger.items())


SITUATIONS: Final[dict[str, Test]] = {
    "equal-cost tie across classes": _tie_across_classes,
    "own-first gang credit": _own_before_cheaper,
    "foreign machine claimed": _foreign_claimed,
    "foreign machine left alone": _foreign_left_alone,
    "own Idle machine bootstrapped": _own_idle_taken,
    "machine in creation credited to its Need": _creating(lambda _, row, m: is_own(m, row)),
    "unattributed machine in flight": _creating(lambda _, row, m: not m.assigned_need_fingerprint),
    "machine in creation whose Need is gone": _creating(
        lambda _, row, m: bool(m.assigned_need_fingerprint) and not is_own(m, row)
    ),
    "gangs folded": lambda s: any(f.folded for f in s.result.carried.folds.values()),
    "gangs un-folded": lambda s: any(f.ever_folded and not f.folded for f in s.result.carried.folds.values()),
    "fold hysteresis counting": lambda s: any(f.fitting_ticks for f in s.result.carried.folds.values()),
    "gang parked": lambda s: any(row.need.acquisition_parked for row, _ in s.rows),
    "gang re-probes": lambda s: any(age >= 32 and age % 32 == 0 for age in s.result.carried.parking.values()),
    "gangs of one Profile part ways": _gangs_part_ways,
    "domain by the second ranking": _second_ranking,
    "displaced by precedence": _displaced,
    "pinned work passes interruptible Idle": _pinned_passes_idle,
    "too small for min_unit": _too_small_passed_over,
    "held off and passed over": _held_off_passed_over,
    "twins taken together": _twins_taken,
    "twins part ways": _twins_parted,
    "strict spread over several domains": _spread_over_domains,
    "excess before victim": _decided(Kind.PREEMPT, "excess"),
    "priority inversion": _decided(Kind.PREEMPT, "inversion"),
    "credit of draining victims": _counted(stamped=True),
    "credit of a voluntary drain": _counted(stamped=False),
    "voluntary drain ends too late": _drain_too_late,
    "drain stamped for another Need": _drain_of_another,
    "reclaim": _decided(Kind.RECLAIM),
    "hold expiry": _decided(Kind.DELETE),
    "cap hit": lambda s: s.result.rails.capped > 0,
    "guard held": lambda s: s.held,
    "action limit": lambda s: s.result.rails.deferred > 0,
    "action queue full": lambda s: s.result.rails.dropped > 0,
    "machine busy": lambda s: s.result.rails.deduped > 0,
    "paused": lambda s: s.result.rails.suppressed > 0,
    "dry run": lambda s: s.result.rails.dry_run > 0,
    "held back": lambda s: any(row.need.held_back for row, _ in s.rows),
    "cycle between ticks": lambda s: not s.step.inputs.tick,
    "shortfall returns": _shortfall_returns,
    "sums beyond 64 bits": lambda s: any(
        amount > 2**63 for row, _ in s.rows for amount in row.need.aggregate.values()
    ),
    "attribution differs from claimant": lambda s: any(
        attribution(m)[1] and not is_own(m, row)
        for row, got in s.rows
        for m in s.machines(got.claims, S.CONFIGURED)
    ),
    **{f"reason {reason.value}": _reason(reason) for reason in Reason},
}
