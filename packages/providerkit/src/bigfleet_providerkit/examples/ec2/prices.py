"""What instances cost: USD an hour, on-demand from a file and spot from EC2."""

import json
import math
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from bigfleet_base.model import CapacityType
from bigfleet_providerkit.examples.ec2.api import Api

_COLD_SPOT_FACTOR: Final = 0.3
"""Of the on-demand price, where EC2 gives no spot price (P-95)."""


class Prices:
    """The prices in force. Whatever cannot be read or asked for stays as it was."""

    def __init__(self, api: Api, path: Path | None) -> None:
        self._api = api
        self._path = path
        self._spot: dict[tuple[str, str], float] = {}
        self.on_demand = read_prices(path) if path is not None else {}

    def of(self, instance_type: str, zone: str, capacity_type: CapacityType) -> float | None:
        """The price in force, or None if nobody knows."""
        listed = self.on_demand.get(instance_type)
        if capacity_type is not CapacityType.SPOT:
            return listed
        cold = None if listed is None else round(listed * _COLD_SPOT_FACTOR, 6)
        return self._spot.get((instance_type, zone), cold)

    def read_again(self) -> None:
        """Take what is new in the file."""
        if self._path is not None:
            self.on_demand = read_prices(self._path)

    async def ask(self, spot_types: Iterable[str]) -> None:
        """Take the market's prices from EC2."""
        if not (types := sorted(set(spot_types))):
            return
        history = await self._api.pages(
            "describe_spot_price_history",
            "SpotPriceHistory",
            InstanceTypes=types,
            ProductDescriptions=["Linux/UNIX"],
            # From now on: the price in force, once for each zone.
            StartTime=datetime.now(UTC),
        )
        for row in history:
            self._spot[row["InstanceType"], row["AvailabilityZone"]] = float(row["SpotPrice"])


def read_prices(path: Path) -> dict[str, float]:
    """The file of on-demand prices: a JSON object of instance types and USD an hour."""
    try:
        document = json.loads(path.read_bytes())
    except OSError as error:
        raise ValueError(f"cannot read {path} (--prices): {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} (--prices) is not JSON: {error}") from error
    if not isinstance(document, dict):
        raise ValueError(f"{path} (--prices) must be an object of instance types and USD an hour")
    for kind, price in document.items():
        is_number = isinstance(price, int | float) and not isinstance(price, bool)
        if not is_number or not math.isfinite(price) or price <= 0:
            raise ValueError(f"{path} (--prices): {kind} costs {price!r}; it must be USD an hour, above 0")
    return document
