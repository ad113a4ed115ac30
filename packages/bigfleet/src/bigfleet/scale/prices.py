"""What machines cost: per tier, as goldens and gates expect, or per instance type from a price book."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from bigfleet_base.model import CapacityType


@dataclass(frozen=True, slots=True)
class Quote:
    """The price of one machine and how likely its provider takes it away."""

    price_per_hour: float
    interruption_probability: float


@dataclass(frozen=True, slots=True)
class Listing:
    """One instance type in a price book."""

    on_demand: float
    """Dollars an hour."""
    spot_factor: float
    """Spot price as a part of the on-demand price."""
    spot_probability: float
    """How likely a spot machine is interrupted within a day."""


_TIERS: Final = {
    CapacityType.BARE_METAL: Quote(0.0, 0.0),
    CapacityType.RESERVED: Quote(0.0, 0.0),
    CapacityType.ON_DEMAND: Quote(1.0, 0.05),
    CapacityType.SPOT: Quote(0.3, 0.3),
}


@dataclass(frozen=True, slots=True)
class PriceBook:
    """Prices by instance type. A type without a listing has the price of its tier, and so has capacity that
    is paid for whether it is used or not."""

    listings: Mapping[str, Listing] = field(default_factory=dict)

    def quote(self, instance_type: str, capacity_type: CapacityType) -> Quote:
        """What a machine of this type and kind of capacity costs."""
        tier = _TIERS[capacity_type]
        listing = self.listings.get(instance_type)
        match capacity_type:
            case CapacityType.ON_DEMAND if listing is not None:
                return Quote(listing.on_demand, tier.interruption_probability)
            case CapacityType.SPOT if listing is not None:
                return Quote(listing.on_demand * listing.spot_factor, listing.spot_probability)
        return tier


TIER_PRICES: Final = PriceBook()
