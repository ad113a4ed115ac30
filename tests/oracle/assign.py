"""Phase 1: credit what is bound or on its way, then acquire (§10)."""

import math
from collections.abc import Callable, Iterable
from dataclasses import replace

from bigfleet_base.model import EMPTY, Machine, MachineState, Requirement, ResourceVector
from bigfleet_base.model.lifecycle import Rpc
from tests.oracle.context import Context, cost, is_own, progresses, starts_nothing
from tests.oracle.domains import Domain, coverage, ranked
from tests.oracle.preempt import could_be_free_sooner, score
from tests.oracle.results import Action, Assigned, DomainCoverage, Kind, Phase1Result, Row
from tests.oracle.spread import Skew, strict_spread
from tests.oracle.world import CONFIGURED, CONFIGURING, CREATING, DRAINING, IDLE, SPECULATIVE

CALLS = {IDLE: Rpc.CONFIGURE, SPECULATIVE: Rpc.CREATE}


def phase1(context: Context) -> Phase1Result:
    """Credit every Need, then let every Need acquire, both in the order of precedence (§10.6)."""
    walk = _Phase1(context)
    order = sorted(range(len(context.rows)), key=lambda i: (*_precedence_descending(context.rows[i]), i))
    for index in order:
        walk.credit(index)
    for index in order:
        walk.acquire(index)
    return walk.result()


def _precedence_descending(row: Row) -> tuple[int, int, int]:
    profile = row.need.profile
    return (-profile.priority, -profile.interruption_bucket, -profile.reclamation_bucket)


class _Phase1:
    def __init__(self, context: Context) -> None:
        self.context = context
        count = len(context.rows)
        self.claimed: dict[str, int] = {}
        self.claims: list[list[Machine]] = [[] for _ in range(count)]
        self.remaining = [row.need.aggregate for row in context.rows]
        self.domain: list[str | None] = [None] * count
        self.satisfiable = [False] * count
        self.candidates: list[tuple[DomainCoverage, ...]] = [()] * count
        self.spread_stopped = [False] * count
        self.consumed: set[str] = set()
        self.relied_on: set[str] = set()

    # §10.2 the pre-pass

    def credit(self, index: int) -> None:
        row = self.context.rows[index]
        same = row.need.profile.same
        if same is None:
            self._claim_creditable(index, self._visiting_order(row))
        else:
            self._credit_gang(index, row, same)

    def _visiting_order(self, row: Row) -> list[Machine]:
        """Creditable machines that suit and are free, those of other Needs last."""
        snapshot, cluster = self.context.snapshot, row.need.cluster_id
        creating = snapshot.in_state(CREATING)
        machines = [
            *snapshot.bound(cluster, CONFIGURED),
            *snapshot.bound(cluster, CONFIGURING),
            *(m for m in creating if is_own(m, row)),
            *(m for m in creating if self.context.ownerless(m)),
        ]
        free = [m for m in machines if m.id not in self.claimed and self.context.suits(m, row.need)]
        return _first(free, lambda m: not self.context.foreign(m, row))

    def _claim_creditable(self, index: int, machines: Iterable[Machine]) -> None:
        """Claim in order until covered; a foreign machine only beyond what own Idle ones will cover."""
        row = self.context.rows[index]
        for machine in machines:
            short = self.remaining[index]
            if self.context.foreign(machine, row):
                short -= self._set_aside(index)
            if progresses(machine, short):
                self._claim(index, machine)

    def _set_aside(self, index: int) -> ResourceVector:
        """The ``alloc`` of the Need's own Idle machines that it would acquire itself."""
        row = self.context.rows[index]
        if starts_nothing(row.need):
            return EMPTY
        own = [m for m in self._acquirable(row, IDLE) if is_own(m, row)]
        return sum((m.alloc for m in own if self._in_domain(index, m)), start=EMPTY)

    def _acquirable(self, row: Row, *states: MachineState) -> list[Machine]:
        """Candidates of §10.4 that are free, by state and id."""
        return [
            m
            for m in self.context.snapshot.in_state(*states)
            if m.id not in self.claimed
            and not self.context.held_off(m, CALLS[m.state])
            and self.context.suits(m, row.need)
        ]

    def _in_domain(self, index: int, machine: Machine) -> bool:
        same = self.context.rows[index].need.profile.same
        return same is None or machine.lookup(same.key) == self.domain[index]

    def _claim(self, index: int, machine: Machine) -> None:
        self.claimed[machine.id] = index
        self.claims[index].append(machine)
        self.remaining[index] -= machine.alloc

    # §10.2 gangs

    def _credit_gang(self, index: int, row: Row, same: Requirement) -> None:
        want = row.need.aggregate
        domains = self._first_domains(row, same)
        ranking = ranked(domains.values(), want)
        self.candidates[index] = tuple(coverage(d, want) for d in ranking)
        chosen = ranking[0] if ranking else None
        satisfiable = chosen is not None and chosen.total.covers(want)
        if not satisfiable and not starts_nothing(row.need):
            chosen = self._second_choice(row, same, domains) or chosen
        if chosen is None:
            return
        self.domain[index] = chosen.value
        self.satisfiable[index] = satisfiable
        self._claim_creditable(index, _first(chosen.members, lambda m: is_own(m, row)))
        if not starts_nothing(row.need):
            self._consume(index, row, chosen)

    def _first_domains(self, row: Row, same: Requirement) -> dict[str, Domain]:
        """Steps 1 and 2: what counts already, and what could be acquired."""
        domains: dict[str, Domain] = {}
        for machine in self._visiting_order(row):
            domain = _domain_of(domains, machine, same)
            domain.members.append(machine)
            domain.add(machine, creditable=True, own=is_own(machine, row))
        if not starts_nothing(row.need):
            for machine in self._acquirable(row, IDLE, SPECULATIVE):
                if machine.id not in self.consumed:
                    own = machine.state is IDLE and is_own(machine, row)
                    _domain_of(domains, machine, same).add(machine, creditable=own, own=own)
        return domains

    def _second_choice(self, row: Row, same: Requirement, first: dict[str, Domain]) -> Domain | None:
        """Step 3: the best domain that drains and preemptions would make satisfiable, if there is one."""
        context, need = self.context, row.need
        domains = {v: replace(d, first_total=d.total, added=[]) for v, d in first.items()}

        def eligible(machine: Machine) -> bool:
            return context.suits(machine, need) and machine.id not in self.relied_on

        counted_already = {m.id for d in first.values() for m in d.members}
        preemptible = [
            m
            for m in context.snapshot.in_state(CONFIGURED)
            if self._rank(m) < need.profile.priority
            and m.id not in counted_already
            and not context.held_off(m, Rpc.DRAIN)
            and eligible(m)
        ]
        for machine in filter(eligible, context.snapshot.in_state(DRAINING)):
            own = context.drains_for(machine, row)
            rivals = [m for m in preemptible if m.lookup(same.key) == machine.lookup(same.key)]
            if own or (
                context.drains_for_nobody(machine) and not could_be_free_sooner(context, row, machine, rivals)
            ):
                domain = _domain_of(domains, machine, same)
                domain.add(machine, creditable=own, own=own)
                domain.added.append(machine)
        best_first = sorted(preemptible, key=lambda m: (-score(context.options, row, m), m.id))
        for machine in best_first:
            domain = _domain_of(domains, machine, same)
            domain.add(machine, creditable=False, own=False)
            domain.added.append(machine)

        best = ranked(domains.values(), need.aggregate, second=True)[:1]
        return best[0] if best and best[0].total.covers(need.aggregate) else None

    def _rank(self, machine: Machine) -> int:
        """§11, by the claims made so far."""
        claimant = self.claimed.get(machine.id)
        if claimant is None:
            return machine.assigned_priority
        return max(machine.assigned_priority, self.context.rows[claimant].need.profile.priority)

    def _consume(self, index: int, row: Row, chosen: Domain) -> None:
        """Steps 6 and 7: keep later gangs from counting on what this one will take."""
        short = self.remaining[index]
        for machine in self._candidate_order(row):
            if (
                self._in_domain(index, machine)
                and machine.id not in self.consumed
                and progresses(machine, short)
            ):
                self.consumed.add(machine.id)
                short -= machine.alloc
        for machine in chosen.added:
            if progresses(machine, short):
                self.relied_on.add(machine.id)
                short -= machine.alloc

    # §10.4 acquisition

    def acquire(self, index: int) -> None:
        row = self.context.rows[index]
        if starts_nothing(row.need):
            return
        spread = strict_spread(row)
        if spread is not None:
            skew = Skew(self.context, row, spread, self.claims[index])
            for machines in self._passes(row):
                self._acquire_spread(index, machines, skew)
            self.spread_stopped[index] = any(
                progresses(m, self.remaining[index]) and skew.domain(m) is not None
                for m in self._candidate_order(row)
            )
            return
        if row.need.profile.same is not None and self.domain[index] is None:
            return
        for machine in self._candidate_order(row):
            if self.remaining[index].is_zero():
                return
            if self._in_domain(index, machine) and progresses(machine, self.remaining[index]):
                self._claim(index, machine)

    def _candidate_order(self, row: Row) -> list[Machine]:
        return [machine for machines in self._passes(row) for machine in machines]

    def _passes(self, row: Row) -> list[list[Machine]]:
        """The four passes of §10.4, each in its order."""
        idle = sorted(self._acquirable(row, IDLE), key=lambda m: self._candidate_key(row, m))
        speculative = sorted(self._acquirable(row, SPECULATIVE), key=lambda m: self._candidate_key(row, m))
        own = [m for m in idle if is_own(m, row)]
        others = [m for m in idle if not is_own(m, row)]
        return [
            own + [m for m in others if math.isfinite(cost(m, row.need))],
            [m for m in speculative if math.isfinite(cost(m, row.need))],
            [m for m in others if not math.isfinite(cost(m, row.need))],
            [m for m in speculative if not math.isfinite(cost(m, row.need))],
        ]

    def _candidate_key(self, row: Row, machine: Machine) -> tuple[float, float, float, str]:
        last_value = self.context.snapshot.memory[machine.id].last_reclamation_value
        return (*_cost_key(row, machine), last_value, machine.id)

    # §10.5 spread

    def _acquire_spread(self, index: int, machines: list[Machine], skew: Skew) -> None:
        row = self.context.rows[index]
        left = list(machines)
        while True:
            heads: dict[str, Machine] = {}
            for machine in left:
                value = skew.domain(machine)
                if value is not None and progresses(machine, self.remaining[index]):
                    heads.setdefault(value, machine)
            eligible = [(value, head) for value, head in heads.items() if skew.admits(head)]
            if not eligible:
                return
            _, taken = min(eligible, key=lambda e: (not is_own(e[1], row), *_cost_key(row, e[1]), e[0]))
            self._claim(index, taken)
            skew.add(taken)
            left.remove(taken)

    # §10.7 outputs

    def result(self) -> Phase1Result:
        actions: list[Action] = []
        needs: list[Assigned] = []
        for index, row in enumerate(self.context.rows):
            acquired = [m for m in self.claims[index] if m.state in CALLS]
            actions += [_acquisition(row, machine) for machine in acquired]
            needs.append(
                Assigned(
                    claims=tuple(m.id for m in self.claims[index]),
                    deficit=self.remaining[index],
                    acquired=len(acquired),
                    same_domain=self.domain[index],
                    same_satisfiable=self.satisfiable[index],
                    candidates=self.candidates[index],
                    spread_stopped=self.spread_stopped[index],
                )
            )
        return Phase1Result(tuple(actions), tuple(needs), dict(self.claimed))


def _acquisition(row: Row, machine: Machine) -> Action:
    """§2.6: an Idle machine is bootstrapped, a Speculative one provisioned."""
    idle = machine.state is IDLE
    return Action(
        kind=Kind.BOOTSTRAP if idle else Kind.PROVISION,
        machine=machine.id,
        cluster=row.need.cluster_id,
        reason="phase1.idle" if idle else "phase1.speculative",
        profile=row.need.profile,
        group=row.need.group,
    )


def _domain_of(domains: dict[str, Domain], machine: Machine, same: Requirement) -> Domain:
    value = machine.lookup(same.key)
    assert value is not None, "a machine that suits a gang has a value for its key"
    return domains.setdefault(value, Domain(value))


def _first(machines: list[Machine], preferred: Callable[[Machine], bool]) -> list[Machine]:
    """A stable partition."""
    return [m for m in machines if preferred(m)] + [m for m in machines if not preferred(m)]


def _cost_key(row: Row, machine: Machine) -> tuple[float, float]:
    """Effective cost; the price tells two infinite ones apart (§10.4)."""
    effective = cost(machine, row.need)
    return (effective, 0.0 if math.isfinite(effective) else machine.price_per_hour)
