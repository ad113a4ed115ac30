"""What a Profile could get now, for those who only ask (shard.md §8.3)."""

from collections.abc import Generator, Iterable
from dataclasses import dataclass

from bigfleet.engine.cells import Pool
from bigfleet.engine.matching import Matcher
from bigfleet.engine.states import CONFIGURED, IDLE, SPECULATIVE
from bigfleet_base.model import Profile, ResourceVector

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
    lowest: dict[Pool, int] = {}
    for want in wanted:
        yield 1
        if want.key not in found:
            found[want.key] = _available(want, matcher, lowest)
    return found


def _available(want: Wanted, matcher: Matcher, lowest: dict[Pool, int]) -> Available:
    """``lowest`` keeps the lowest priority that each pool serves, for whoever asks next."""
    fit = matcher.fit(want.profile, want.unit)
    for pool in fit.pools(CONFIGURED):
        if pool not in lowest:
            lowest[pool] = min(cell.binding.priority for cell in pool.cells.values())
    idle, speculative = fit.pools(IDLE), fit.pools(SPECULATIVE)
    prices = [pool.machine_class.offer.price_per_hour for pool in (*idle, *speculative)]
    return Available(
        idle.count(),
        speculative.count(),
        min(prices, default=0.0),
        any(lowest[pool] < want.profile.priority for pool in fit.pools(CONFIGURED)),
    )
