"""Choosing the one domain of a gang (§10.3)."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from fractions import Fraction

from bigfleet_base.model import EMPTY, Machine, ResourceVector
from tests.oracle.results import DomainCoverage


@dataclass
class Domain:
    """One bucket of §10.2: everything with one value for the gang's key."""

    value: str
    count: int = 0
    total: ResourceVector = EMPTY
    creditable: ResourceVector = EMPTY
    own: ResourceVector = EMPTY
    first_total: ResourceVector = EMPTY
    """``total`` of the first ranking, when this is the second."""
    members: list[Machine] = field(default_factory=list)
    """Creditable machines, in visiting order."""
    added: list[Machine] = field(default_factory=list)
    """What only the second ranking sees: draining machines, then preemptible ones."""

    def add(self, machine: Machine, *, creditable: bool, own: bool) -> None:
        self.count += 1
        self.total += machine.alloc
        if creditable:
            self.creditable += machine.alloc
        if own:
            self.own += machine.alloc


def ranked(domains: Iterable[Domain], want: ResourceVector, *, second: bool = False) -> list[Domain]:
    """Best first, by the strict total order of §10.3."""

    def key(d: Domain) -> tuple[int, Fraction, Fraction, Fraction, Fraction, int, str]:
        creditable, own = score(d.creditable, want, capped=True), score(d.own, want, capped=True)
        if d.total.covers(want):
            first = score(d.first_total, want, capped=True) if second else Fraction(0)
            return (0, -creditable, -own, -first, score(d.total, want), -d.count, d.value)
        return (1, -score(d.total, want, capped=True), -creditable, -own, Fraction(0), -d.count, d.value)

    return sorted((d for d in domains if d.count), key=key)


def score(have: ResourceVector, want: ResourceVector, *, capped: bool = False) -> Fraction:
    """Σ have/want over the dimensions wanted, each ratio limited to 1 when capped."""
    ratios = (Fraction(have[name], amount) for name, amount in want.items() if amount > 0)
    return sum((min(ratio, Fraction(1)) if capped else ratio for ratio in ratios), start=Fraction(0))


def coverage(domain: Domain, want: ResourceVector) -> DomainCoverage:
    """The domain as a verdict shows it (§15)."""
    ratios = [Fraction(domain.total[name], amount) for name, amount in want.items() if amount > 0]
    per_mille = min(1000, int(1000 * min(ratios, default=Fraction(1))))
    return DomainCoverage(domain.value, per_mille, domain.total.covers(want))
