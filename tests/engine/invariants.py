"""The invariants of engine.md §16 that every single cycle must keep, as checks on its result.

They look only at what went into a cycle and what came out, and work out anew whatever they compare with.
"""

from collections import Counter
from collections.abc import Callable, Iterable

from bigfleet_base.model import EMPTY, CapacityType, Machine, MachineState, Need, ResourceVector
from bigfleet_base.model.lifecycle import Rpc
from tests.engine.execution import STARTS_FROM
from tests.engine.fleets import Step
from tests.oracle.normalise import folded_profile
from tests.oracle.results import CycleResult, Kind, Reason, Row

CALL = {
    Kind.BOOTSTRAP: Rpc.CONFIGURE,
    Kind.PROVISION: Rpc.CREATE,
    Kind.PREEMPT: Rpc.DRAIN,
    Kind.RECLAIM: Rpc.DRAIN,
    Kind.DELETE: Rpc.DELETE,
}


def i1_claims_are_disjoint_and_complete(step: Step) -> None:
    first = step.result.phase1
    claims = [i for assigned in first.needs for i in assigned.claims]
    assert len(claims) == len(set(claims)), "a machine is claimed twice"
    assert set(first.claimed) == set(claims)
    for index, assigned in enumerate(first.needs):
        assert all(first.claimed[i] == index for i in assigned.claims)


def i2_claims_suit_and_make_progress(step: Step) -> None:
    """In some order: the result does not say in which one a Need came to what it holds."""
    for row, machines in _claims(step.result):
        for machine in machines:
            assert machine.matches(row.need.profile), f"{machine.id} does not match"
            assert machine.alloc.covers(row.need.min_unit), f"{machine.id} is too small"
        earlier = list(machines)
        while earlier:
            # Whatever may have come last of all may have come last of fewer, so any such will do.
            last = next((m for m in earlier if _adds(m, _lacking(row, earlier, m))), None)
            assert last is not None, f"{', '.join(m.id for m in earlier)}: some add nothing that is short"
            earlier.remove(last)


def i3_targets_are_in_the_state_their_action_starts_from(step: Step) -> None:
    for action in step.result.decided:
        assert step.result.machines[action.machine].state is STARTS_FROM[action.kind]
        assert (action.machine, CALL[action.kind]) not in step.inputs.held_off


def i4_deficit_is_what_claims_leave(step: Step) -> None:
    for (row, machines), assigned in zip(_claims(step.result), step.result.phase1.needs, strict=True):
        assert all(amount > 0 for amount in assigned.deficit.values())
        assert (assigned.deficit + _sum(machines)).covers(row.need.aggregate)


def i5_plain_needs_acquire_no_more_than_they_miss(step: Step) -> None:
    # Claims of machines that tie stand cell by cell; actions come in the order machines were taken.
    turn = {action.machine: number for number, action in enumerate(step.result.decided)}
    for row, machines in _claims(step.result):
        acquired = [m for m in machines if m.state in (MachineState.IDLE, MachineState.SPECULATIVE)]
        if acquired and row.need.profile.same is None:
            assert machines[-len(acquired) :] == acquired, "credit comes before acquisition"
            last = max(acquired, key=lambda m: turn[m.id])
            assert not _sum(m for m in machines if m is not last).covers(row.need.aggregate)


def i6_a_gang_has_one_domain(step: Step) -> None:
    for index, (row, machines) in enumerate(_claims(step.result)):
        same = row.need.profile.same
        if same is not None:
            domain = step.result.phase1.needs[index].same_domain
            picked = [n.picked for n in step.result.phase2.needs if n.index == index]
            preempted = [step.result.machines[i] for ids in picked for i in ids]
            assert all(m.lookup(same.key) == domain for m in [*machines, *preempted])


def i7_strict_spread_keeps_its_skew(step: Step) -> None:
    result = step.result
    inversions = {n.index: n for n in result.phase2.needs}
    for index, (row, machines) in enumerate(_claims(result)):
        spread = row.need.profile.strict_spread
        if spread is None or row.need.profile.same is not None:
            continue
        skew = max(1, spread.max_skew)
        counts = {
            v: 0 for m in _spread_pool(result, row.need) if (v := m.lookup(spread.topology_key)) is not None
        }
        for machine in machines:
            value = machine.lookup(spread.topology_key)
            if value is None:
                assert machine.state not in (MachineState.IDLE, MachineState.SPECULATIVE)
                continue
            counts[value] = counts.get(value, 0) + 1
            if machine.state in (MachineState.IDLE, MachineState.SPECULATIVE):
                assert counts[value] - min(counts.values()) <= skew
        if index in inversions:
            taken = [*inversions[index].counted, *inversions[index].picked]
            for machine in (result.machines[i] for i in taken):
                value = machine.lookup(spread.topology_key)
                assert value is not None
                counts[value] = counts.get(value, 0) + 1
                assert counts[value] - min(counts.values()) <= skew


def i8_reclaim_is_what_nobody_claims(step: Step) -> None:
    result = step.result
    claimed, preempted = set(result.phase1.claimed), _targets(result, Kind.PREEMPT)
    expected = {
        m.id
        for m in result.machines.values()
        if m.state is MachineState.CONFIGURED
        and m.cluster in step.reported
        and m.id not in claimed | preempted
        and (m.id, Rpc.DRAIN) not in step.inputs.held_off
    }
    assert _targets(result, Kind.RECLAIM) == expected
    assert not _targets(result, Kind.DELETE) & claimed
    assert len(result.decided) == len({a.machine for a in result.decided}), "two actions for one machine"


def i9_configured_machines_are_kept_reclaimed_or_preempted(step: Step) -> None:
    result = step.result
    leaving = _targets(result, Kind.RECLAIM) | _targets(result, Kind.PREEMPT)
    for machine in result.machines.values():
        if machine.state is MachineState.CONFIGURED and machine.id not in leaving:
            kept_by_right = (
                machine.id in result.phase1.claimed
                or machine.cluster not in step.reported
                or (machine.id, Rpc.DRAIN) in step.inputs.held_off
            )
            assert kept_by_right, f"{machine.id} is neither kept, reclaimed nor preempted"


def i13_no_lower_need_holds_what_a_higher_one_could_use(step: Step) -> None:
    result = step.result
    for index, row in enumerate(result.rows):
        need, deficit = row.need, result.phase1.needs[index].deficit
        plain = need.profile.same is None and need.profile.strict_spread is None
        if not plain or need.held_back or deficit.is_zero():
            continue
        for other, machines in _claims(result):
            if _precedence(other.need) < _precedence(need):
                for machine in machines:
                    if machine.state in (MachineState.IDLE, MachineState.SPECULATIVE):
                        useful = machine.matches(need.profile) and machine.alloc.covers(need.min_unit)
                        assert not (useful and _adds(machine, deficit)), f"{machine.id} went to a lower Need"


def i14_preemption_respects_rank(step: Step) -> None:
    result = step.result
    seen: set[str] = set()
    for inversion in result.phase2.needs:
        need = result.rows[inversion.index].need
        started = list(inversion.picked)
        if need.acquisition_parked or need.held_back:
            assert not started and result.phase1.needs[inversion.index].acquired == 0
        if need.profile.same is not None and result.phase1.needs[inversion.index].same_domain is None:
            assert not started
        for machine_id in started:
            assert machine_id not in seen
            seen.add(machine_id)
            claimant = result.phase1.claimed.get(machine_id)
            if claimant is not None:
                assert result.rows[claimant].need.profile.priority < need.profile.priority
    for action in result.decided:
        if action.reason == "phase2.inversion":
            assert action.preemptor is not None
            machine, claimant = result.machines[action.machine], result.phase1.claimed.get(action.machine)
            rank = machine.assigned_priority
            if claimant is not None:
                rank = max(rank, result.rows[claimant].need.profile.priority)
            assert rank < action.preemptor.priority
    assert seen == result.phase2.picked == _targets(result, Kind.PREEMPT)


def i17_folding_keeps_demand(step: Step) -> None:
    before: Counter[tuple[str, str, str]] = Counter()
    after: Counter[tuple[str, str, str]] = Counter()
    for need in step.demand:
        _tally(before, need)
    for row in step.result.rows:
        _tally(after, row.need)
    assert before == after
    for row in step.result.rows:
        if row.member_aggregate is not None:
            pool = [*_spread_pool(step.result, row.need)]
            assert any(m.alloc.covers(row.need.min_unit) for m in pool), "folded onto no machine"


def i20_only_elastic_machines_are_deleted(step: Step) -> None:
    for machine_id in _targets(step.result, Kind.DELETE):
        machine = step.result.machines[machine_id]
        assert machine.capacity_type in (CapacityType.ON_DEMAND, CapacityType.SPOT)


def i24_ledger_adds_up(step: Step) -> None:
    result = step.result
    visible = [part for part in result.carried.ledger.values() if part.visible]
    assert _total(p.deficit for p in visible) == _total(n.deficit for n in result.phase2.unresolved)


def i25_verdicts_agree_with_phase_1(step: Step) -> None:
    result = step.result
    assert len(result.verdicts) == len(result.rows)
    for row, assigned, verdict in zip(result.rows, result.phase1.needs, result.verdicts, strict=True):
        assert (verdict.cluster, verdict.profile, verdict.group) == (
            row.need.cluster_id,
            row.need.profile,
            row.need.group,
        )
        signs = {
            verdict.satisfied,
            assigned.deficit.is_zero(),
            verdict.deficit.is_zero(),
            verdict.reason is Reason.NONE,
            verdict.age == 0,
        }
        assert len(signs) == 1


EVERY_CYCLE: tuple[Callable[[Step], None], ...] = (
    i1_claims_are_disjoint_and_complete,
    i2_claims_suit_and_make_progress,
    i3_targets_are_in_the_state_their_action_starts_from,
    i4_deficit_is_what_claims_leave,
    i5_plain_needs_acquire_no_more_than_they_miss,
    i6_a_gang_has_one_domain,
    i7_strict_spread_keeps_its_skew,
    i8_reclaim_is_what_nobody_claims,
    i9_configured_machines_are_kept_reclaimed_or_preempted,
    i13_no_lower_need_holds_what_a_higher_one_could_use,
    i14_preemption_respects_rank,
    i17_folding_keeps_demand,
    i20_only_elastic_machines_are_deleted,
    i24_ledger_adds_up,
    i25_verdicts_agree_with_phase_1,
)


def i24_ages_rise_by_at_most_one(before: Step, after: Step) -> None:
    for key, part in after.result.carried.ledger.items():
        known = before.result.carried.ledger.get(key)
        assert part.age <= (known.age + 1 if known is not None else 1)


def _claims(result: CycleResult) -> list[tuple[Row, list[Machine]]]:
    return [
        (row, [result.machines[i] for i in assigned.claims])
        for row, assigned in zip(result.rows, result.phase1.needs, strict=True)
    ]


def _targets(result: CycleResult, kind: Kind) -> set[str]:
    return {a.machine for a in result.decided if a.kind is kind}


def _spread_pool(result: CycleResult, need: Need) -> list[Machine]:
    """Machines whose domains §10.5 lists, and that §8 may fold onto: free, or bound to the cluster."""
    free, bound = (
        (MachineState.IDLE, MachineState.SPECULATIVE),
        (MachineState.CONFIGURED, MachineState.CONFIGURING),
    )
    return [
        m
        for m in result.machines.values()
        if (m.state in free or (m.state in bound and m.cluster == need.cluster_id))
        and m.matches(need.profile)
        and m.alloc.covers(need.min_unit)
    ]


def _precedence(need: Need) -> tuple[int, int, int]:
    return (need.profile.priority, need.profile.interruption_bucket, need.profile.reclamation_bucket)


def _lacking(row: Row, machines: list[Machine], without: Machine) -> ResourceVector:
    """What is still short before the last one comes."""
    return row.need.aggregate - _sum(m for m in machines if m is not without)


def _adds(machine: Machine, remaining: ResourceVector) -> bool:
    return remaining - machine.alloc != remaining


def _sum(machines: Iterable[Machine]) -> ResourceVector:
    return _total(m.alloc for m in machines)


def _total(vectors: Iterable[ResourceVector]) -> ResourceVector:
    return sum(vectors, start=EMPTY)


def _tally(counter: Counter[tuple[str, str, str]], need: Need) -> None:
    """Demand by cluster, Profile as if folded, and resource."""
    folded = need.profile if need.profile.same is None else folded_profile(need.profile)
    for name, amount in need.aggregate.items():
        counter[need.cluster_id, folded.fingerprint, name] += amount
