"""Resource maps: quantity texts on the wire, milli-unit vectors inside."""

from collections.abc import Mapping
from functools import lru_cache
from typing import Final

from bigfleet_base.model.quantity import (
    MAX_WIRE_UNITS,
    NANO,
    QuantityError,
    format_quantity,
    milli_from_nano,
    parse_quantity,
    prints_binary,
)
from bigfleet_base.model.resources import ResourceVector


def decode_demand(texts: Mapping[str, str]) -> ResourceVector:
    """Read demand strictly; a QuantityError names the resource and what is wrong with its text."""
    amounts = {}
    for name, text in texts.items():
        try:
            milli = _milli(text)
        except QuantityError as error:
            raise QuantityError(f"[{name!r}]: {error}") from None
        if milli < 0:
            raise QuantityError(f"[{name!r}]: {text!r} is negative")
        if milli > _MAX_MILLI and parse_quantity(text) > MAX_WIRE_UNITS * NANO:
            raise QuantityError(f"[{name!r}]: {text[:64]!r} is more than 2^63-1 units")
        amounts[name] = milli
    return ResourceVector(amounts)


def decode_supply(texts: Mapping[str, str]) -> ResourceVector:
    """Read what a machine offers leniently: an amount that does not parse, or is negative, is none."""
    items = tuple(texts.items())
    # A fleet has few sizes of machine, and none of them is long to tell.
    is_usual = sum(len(name) + len(text) for name, text in items) <= 512
    return _cached_supply(items) if is_usual else _supply(items)


def encode_resources(vector: ResourceVector) -> dict[str, str]:
    """Write a vector in canonical form, the suffixes fixed by the resource's name."""
    return _encode(vector, "E")


def encode_offer(vector: ResourceVector) -> dict[str, str]:
    """Write a machine's vector with suffixes up to G and Gi, all that readers of offers know
    (provider.md §7)."""
    return _encode(vector, "G")


def _encode(vector: ResourceVector, largest: str) -> dict[str, str]:
    # As when they are read: few sizes, none of them long to tell.
    is_usual = sum(map(len, vector)) <= 512
    return dict(_cached_texts(vector, largest) if is_usual else _texts(vector, largest))


@lru_cache(maxsize=4_096)
def _cached_texts(vector: ResourceVector, largest: str) -> Mapping[str, str]:
    return _texts(vector, largest)


def _texts(vector: ResourceVector, largest: str) -> Mapping[str, str]:
    return {
        name: format_quantity(milli * 1_000_000, binary=prints_binary(name), largest=largest)
        for name, milli in sorted(vector.items())
    }


@lru_cache(maxsize=4_096)
def _cached_supply(items: tuple[tuple[str, str], ...]) -> ResourceVector:
    return _supply(items)


def _supply(items: tuple[tuple[str, str], ...]) -> ResourceVector:
    amounts = {}
    for name, text in items:
        try:
            amounts[name] = max(0, _milli(text))
        except QuantityError:
            continue
    return ResourceVector(amounts)


def _milli(text: str) -> int:
    # Fleets repeat a few hundred texts; a long one is never among them and must not fill the cache.
    return _cached_milli(text) if len(text) <= 32 else milli_from_nano(parse_quantity(text))


@lru_cache(maxsize=16_384)
def _cached_milli(text: str) -> int:
    return milli_from_nano(parse_quantity(text))


# Rounding up to milli-units can hide a fraction above the bound, so amounts this large are looked at again.
_MAX_MILLI: Final = MAX_WIRE_UNITS * 1000 - 1
