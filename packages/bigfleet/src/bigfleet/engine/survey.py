"""What a Profile could get now, for those who only ask (shard.md §8.3)."""

from collections.abc import Generator, Iterable
from dataclasses import dataclass

from bigfleet.engine.stock import Stock
from bigfleet.engine.supply import Supply
from bigfleet_base.model import MachineState, Need, Profile, ResourceVector

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


def survey(supply: Supply, wanted: Iterable[Wanted]) -> Generator[int, None, dict[WantedKey, Available]]:
    """Look at the fleet as the cycle saw it."""
    found: dict[WantedKey, Available] = {}
    for want in wanted:
        yield 1
        if want.key not in found:
            found[want.key] = _available(supply, want)
    return found


def _available(supply: Supply, want: Wanted) -> Available:
    need = Need("", want.profile, want.unit, want.unit)
    idle = supply.suitable_in(need, MachineState.IDLE)
    speculative = supply.suitable_in(need, MachineState.SPECULATIVE)
    prices = [stock.cell.machine_class.offer.price_per_hour for stock in (*idle, *speculative)]
    return Available(
        _count(idle),
        _count(speculative),
        min(prices, default=0.0),
        any(
            stock.cell.binding.priority < want.profile.priority
            for stock in supply.suitable_in(need, MachineState.CONFIGURED)
        ),
    )


def _count(stocks: Iterable[Stock]) -> int:
    return sum(len(stock.ids) for stock in stocks)
