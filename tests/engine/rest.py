"""What must be true of the whole life of a still world, as claims that yield what contradicts them.

Each claim looks at the records and the actions of every cycle and works out anew whatever it compares with.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

from bigfleet_base.model import EMPTY, Machine, MachineState, ResourceVector
from tests.engine.fleets import Step
from tests.oracle.results import Action, CycleResult, Key, Kind, Row

TAIL: Final = 40
"""Cycles without an action that count as rest: longer than a parked gang waits until it looks again."""

Claim = Callable[[Sequence[Step]], Iterator[str]]


def goes_quiet(life: Sequence[Step]) -> Iterator[str]:
    """At the end nothing is decided any more."""
    for number, step in enumerate(life[-TAIL:], start=len(life) - TAIL):
        if step.result.decided:
            yield f"cycle {number} still decides {_said(step.result.decided)}"


def buys_nothing_twice(life: Sequence[Step]) -> Iterator[str]:
    """Nothing is acquired for a Need while what was acquired for it before, on its way or bound, is enough.

    What another Need claims is left out: credit goes by eligibility, so a Need of higher precedence may hold
    what was bought for this one.
    """
    for number, step in enumerate(life):
        result = step.result
        for index, (row, assigned) in enumerate(zip(result.rows, result.phase1.needs, strict=True)):
            if assigned.acquired == 0:
                continue
            kept = [
                m
                for m in _bought_for(row, result.machines.values())
                if result.phase1.claimed.get(m.id, index) == index
                and _in_domain(m, row, assigned.same_domain)
            ]
            if _total(kept).covers(row.need.aggregate):
                yield f"cycle {number} buys for {row.need.key} although {[m.id for m in kept]} are enough"


def drains_no_more_than_is_missing(life: Sequence[Step]) -> Iterator[str]:
    """Nothing is preempted for a Need while what drains for it already is enough.

    Strict spread is left out: there a machine may become useless while it drains.
    """
    drains: dict[str, Key] = {}
    for number, step in enumerate(life):
        result = step.result
        drains = {i: key for i, key in drains.items() if result.machines[i].state is MachineState.DRAINING}
        for inversion in result.phase2.needs:
            row, assigned = result.rows[inversion.index], result.phase1.needs[inversion.index]
            spread = row.need.profile.strict_spread is not None and row.need.profile.same is None
            if not inversion.picked or spread:
                continue
            coming = [
                machine
                for i, (cluster, *identity) in drains.items()
                if cluster == row.need.cluster_id
                and tuple(identity) in row.identities
                and _suits(machine := result.machines[i], row)
                and _in_domain(machine, row, assigned.same_domain)
            ]
            if _total(coming).covers(assigned.deficit):
                yield (
                    f"cycle {number} preempts {inversion.picked} for {row.need.key} "
                    f"although {[m.id for m in coming]} are enough"
                )
        drains |= {a.machine: _preemptor(a) for a in result.rails.executed if a.kind is Kind.PREEMPT}


def preempts_not_in_circles(life: Sequence[Step]) -> Iterator[str]:
    """No machine is taken from a Need for another and then back, nor once more from the same for the same.

    All begins anew while a machine is broken: a gang may have to leave its rack because of it. So it does
    where something is taken for a gang that is parked in the very next cycle: §9 forgets its age only after
    that cycle, so what has drained by then goes back to whoever lost it.
    """
    taken: dict[str, set[tuple[Key, Key]]] = {}
    for number, step in enumerate(life):
        result = step.result
        if any(machine.state is MachineState.FAILED for machine in result.machines.values()):
            taken.clear()
        preempts = [a for a in result.rails.executed if a.kind is Kind.PREEMPT]
        for action in preempts:
            loser, winner = _tenant(result.machines[action.machine]), _preemptor(action)
            known = taken.setdefault(action.machine, set())
            if {(loser, winner), (winner, loser)} & known:
                yield f"cycle {number} takes {action.machine} from {loser} for {winner}, as before or back"
            known.add((loser, winner))
        after = life[min(number + 1, len(life) - 1)].result
        if any(_parked(after, _preemptor(action)) for action in preempts):
            taken.clear()


def parks_what_is_hopeless(life: Sequence[Step]) -> Iterator[str]:
    """A gang that no domain can hold ends up parked, but for a look around now and then."""
    for verdict in life[-1].result.verdicts:
        if verdict.satisfied or verdict.profile.same is None or verdict.same_satisfiable:
            continue
        key = (verdict.cluster, verdict.profile.fingerprint, verdict.group)
        parked = sum(_parked(step.result, key) for step in life[-TAIL:])
        if parked < TAIL - 2:
            yield f"{key} is hopeless and was parked in only {parked} of the last {TAIL} cycles"


CLAIMS: Final[tuple[Claim, ...]] = (
    goes_quiet,
    buys_nothing_twice,
    drains_no_more_than_is_missing,
    preempts_not_in_circles,
    parks_what_is_hopeless,
)


def _bought_for(row: Row, machines: Iterable[Machine]) -> list[Machine]:
    """Machines on their way to the Need's cluster, or bound there, that were acquired for this Need."""
    states = (MachineState.CREATING, MachineState.CONFIGURING, MachineState.CONFIGURED)
    return [
        m
        for m in machines
        if m.state in states
        and (m.target_cluster if m.state is MachineState.CREATING else m.cluster) == row.need.cluster_id
        and (m.assigned_need_fingerprint, m.assigned_group) in row.identities
        and _suits(m, row)
    ]


def _suits(machine: Machine, row: Row) -> bool:
    return machine.matches(row.need.profile) and machine.alloc.covers(row.need.min_unit)


def _in_domain(machine: Machine, row: Row, domain: str | None) -> bool:
    same = row.need.profile.same
    return same is None or machine.lookup(same.key) == domain


def _parked(result: CycleResult, key: Key) -> bool:
    return any(row.need.key == key and row.need.acquisition_parked for row in result.rows)


def _tenant(machine: Machine) -> Key:
    return (machine.cluster, machine.assigned_need_fingerprint, machine.assigned_group)


def _preemptor(action: Action) -> Key:
    assert action.preemptor is not None
    return (action.preemptor.cluster, action.preemptor.fingerprint, action.preemptor.group)


def _total(machines: Iterable[Machine]) -> ResourceVector:
    return sum((m.alloc for m in machines), start=EMPTY)


def _said(actions: Iterable[Action]) -> list[str]:
    return [f"{a.kind} {a.machine}" for a in actions]
