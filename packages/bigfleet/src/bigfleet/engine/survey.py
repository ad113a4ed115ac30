"""What a Profile could get now, for those who only ask (shard.md §8.3)."""

from collections.abc import Generator, Iterable
from dataclasses import dataclass

from bigfleet.engine.matching import Fit, Matcher
from bigfleet_base.model import MachineState, Profile, ResourceVector

WantedKey = tuple[str, ResourceVector]
"""(fingerprint, unit)."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """A Profile, and what each machine must cover."""

    profile: Profile
    unit: ResourceVector

    @property
    def key(self) -> WantedKey:
        return (self.profile.fingerprint, self.unit)


@dataclass(frozen=True, slots=True)
class Available:
    """Machines that would do, whoever they are meant for."""

    idle: int
    speculative: int
    cheapest: float
    """Lowest price among them; 0 where there is none."""
    displaceable: bool
    """Whether a machine that serves a lower priority would do."""


def survey(matcher: Matcher, wanted: Iterable[Wanted]) -> Generator[int, None, dict[WantedKey, Available]]:
    """Look at the fleet as the cycle saw it."""
    found: dict[WantedKey, Available] = {}
    for want in wanted:
        yield 1
        if want.key not in found:
            found[want.key] = _available(matcher.fit(want.profile, want.unit))
    return found


def _available(fit: Fit) -> Available:
    idle, speculative = fit.pools(MachineState.IDLE), fit.pools(MachineState.SPECULATIVE)
    prices = [pool.machine_class.offer.price_per_hour for pool in (*idle, *speculative)]
    return Available(
        idle.count(),
        speculative.count(),
        min(prices, default=0.0),
        any(
            cell.binding.priority < fit.profile.priority
            for pool in fit.pools(MachineState.CONFIGURED)
            for cell in pool.cells.values()
        ),
    )
