"""The quota: offerings from a file or built in, checked, and the machine ids that follow from them."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from bigfleet_base.model import CapacityType
from bigfleet_providerkit.backend import Offering
from bigfleet_providerkit.records import Shape, ShapeError, make_shape

HOURS_PER_MONTH: Final = 730
MAX_MACHINES: Final = 1_000_000
"""More than one process should hold."""


class OfferingsError(ValueError):
    """Offerings that cannot be served; the message names the offering and what to do."""


@dataclass(frozen=True, slots=True)
class Offer:
    """An offering, checked: the key of its machines' ids, their shape, and how many there may be."""

    key: str
    shape: Shape
    count: int

    def machine_id(self, index: int) -> str:
        """The same for ever, whatever else the file lists and in whichever order (P-01)."""
        return f"{self.key}-{index}"


def check_offerings(offerings: Sequence[Offering]) -> dict[str, Offer]:
    """The offers by key; OfferingsError when one must not be served."""
    offers: dict[str, Offer] = {}
    for place, offering in enumerate(offerings, start=1):
        if not isinstance(offering, Offering):
            raise OfferingsError(f"offering {place} is {offering!r}, not an Offering")
        where = (
            f"offering {place} ({offering.instance_type or 'no instance_type'}, {offering.zone or 'no zone'})"
        )
        if not _is_count(offering.count):
            raise OfferingsError(
                f"{where}: count is {offering.count!r}; it must be a whole number, at least 0"
            )
        try:
            shape = offering_shape(offering)
        except ShapeError as error:
            raise OfferingsError(f"{where}: {error}") from None
        key = offer_key(shape)
        if key in offers:
            raise OfferingsError(
                f"{where}: an earlier one has the same type, zone, capacity type and labels; add them up"
            )
        offers[key] = Offer(key, shape, offering.count)
    if (total := sum(offer.count for offer in offers.values())) > MAX_MACHINES:
        raise OfferingsError(
            f"the offerings count {total} machines; one provider holds at most {MAX_MACHINES}"
        )
    return offers


def _is_count(value: object) -> bool:
    return isinstance(value, int) and value >= 0


def offering_shape(offering: Offering) -> Shape:
    """What machines of the offering are published as; ShapeError when that must not be."""
    owned = offering.capacity_type is CapacityType.RESERVED and offering.prepaid
    return make_shape(
        offering.instance_type,
        offering.zone,
        offering.capacity_type,
        offering.price_per_hour,
        offering.interruption_probability,
        offering.allocatable,
        offering.resources,
        offering.labels,
        owned=owned,
    )


def offer_key(shape: Shape) -> str:
    """Names an offering by what never changes: a new price, probability or size keeps the machines' ids."""
    identity = json.dumps(
        [shape.instance_type, shape.zone, int(shape.capacity_type), sorted(shape.labels.items())]
    )
    return hashlib.sha256(identity.encode()).hexdigest()[:12]


def hourly_probability(monthly: float) -> float:
    """A month's reclaim rate as the hourly probability that a machine publishes (P-94)."""
    if not 0.0 <= monthly <= 1.0:
        raise ShapeError(f"a monthly rate is between 0 and 1, not {monthly}")
    return float(1 - (1 - monthly) ** (1 / HOURS_PER_MONTH))


def read_offerings(path: Path) -> list[Offering]:
    """Read the standard file: a JSON array of offerings (provider.md §12.4)."""
    try:
        document = json.loads(path.read_bytes())
    except OSError as error:
        raise OfferingsError(f"cannot read the offerings in {path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise OfferingsError(f"{path} is not JSON: {error}") from error
    if not isinstance(document, list):
        raise OfferingsError(f"{path}: the offerings are a JSON array of objects, not {_kind(document)}")
    offerings = []
    for place, row in enumerate(document, start=1):
        try:
            offerings.append(_offering(row))
        except ValueError as error:
            raise OfferingsError(f"{path}, offering {place}: {error}") from None
    return offerings


def seed_offerings(count: int) -> list[Offering]:
    """``count`` slots over the built-in offerings, one after the other (provider.md §12.5)."""
    rows = [
        (kind, zone, capacity_type)
        for kind in _BUILT_IN
        for zone in ("zone-a", "zone-b", "zone-c")
        for capacity_type in (CapacityType.ON_DEMAND, CapacityType.SPOT, CapacityType.RESERVED)
    ]
    counts = [len(range(place, count, len(rows))) for place in range(len(rows))]
    return [replace(_built_in(*row), count=share) for row, share in zip(rows, counts, strict=True) if share]


_BUILT_IN: Final = {
    # instance type: (cpus, GiB, USD an hour)
    "standard-4": (4, 16, 0.20),
    "standard-16": (16, 64, 0.80),
    "memory-8": (8, 64, 0.55),
    "compute-32": (32, 64, 1.40),
}
_PRICE_FACTOR: Final = {CapacityType.ON_DEMAND: 1.0, CapacityType.SPOT: 0.3, CapacityType.RESERVED: 0.6}


def _built_in(kind: str, zone: str, capacity_type: CapacityType) -> Offering:
    cpus, gib, price = _BUILT_IN[kind]
    size = {"cpu": str(cpus), "memory": f"{gib}Gi", "pods": "110"}
    return Offering(
        instance_type=kind,
        zone=zone,
        capacity_type=capacity_type,
        count=0,
        price_per_hour=round(price * _PRICE_FACTOR[capacity_type], 6),
        allocatable=size,
        resources=size,
        labels={"topology.kubernetes.io/region": "region-1"},
    )


_CAPACITY_TYPES: Final = {
    "on_demand": CapacityType.ON_DEMAND,
    "ondemand": CapacityType.ON_DEMAND,
    "spot": CapacityType.SPOT,
    "reserved": CapacityType.RESERVED,
    "bare_metal": CapacityType.BARE_METAL,
    "metal": CapacityType.BARE_METAL,
}
_TEXTS: Final = ("instance_type", "zone")
_MAPS: Final = ("resources", "allocatable", "labels")
_NUMBERS: Final = ("price_per_hour", "interruption_probability")
_FIELDS: Final = {*_TEXTS, *_MAPS, *_NUMBERS, "count", "capacity_type", "prepaid"}


def _offering(row: Any) -> Offering:
    if not isinstance(row, dict):
        raise ValueError(f"is {_kind(row)}, not an object")
    if unknown := sorted(row.keys() - _FIELDS):
        raise ValueError(f"has a field {unknown[0]!r}; known are {', '.join(sorted(_FIELDS))}")
    for name in ("instance_type", "zone", "count"):
        if name not in row:
            raise ValueError(f"has no {name}")
    for name in _TEXTS:
        if not isinstance(row[name], str):
            raise ValueError(f"{name} is {_kind(row[name])}, not a text")
    for name in _MAPS:
        value = row.get(name, {})
        if not isinstance(value, dict) or not all(isinstance(text, str) for text in value.values()):
            raise ValueError(f"{name} must be an object of texts")
    for name in _NUMBERS:
        number = row.get(name)
        if number is not None and (isinstance(number, bool) or not isinstance(number, int | float)):
            raise ValueError(f"{name} is {_kind(number)}, not a number")
    if isinstance(row["count"], bool) or not isinstance(row["count"], int):
        raise ValueError(f"count is {_kind(row['count'])}, not a whole number")
    given = row.get("capacity_type", "on_demand")
    capacity_type = _CAPACITY_TYPES.get(given.lower().replace("-", "_")) if isinstance(given, str) else None
    if capacity_type is None:
        raise ValueError(f"capacity_type {given!r} is not one of on_demand, spot, reserved, bare_metal")
    return Offering(**{**row, "price_per_hour": row.get("price_per_hour"), "capacity_type": capacity_type})


def _kind(value: object) -> str:
    names = {dict: "an object", list: "an array", str: "a text", bool: "true or false", type(None): "null"}
    return names.get(type(value), "a number")
