"""Kubernetes quantities as exact integers.

A quantity is an unbounded integer count of nano-units (ruling R20): ``"500m"`` is 500_000_000 and
``"1Ki"`` is 1024 * 10**9. Nothing here touches a float, so sums of any length stay exact; what is too
large for a peer is refused where the text crosses the wire, not here.
"""

import re
from typing import Final

NANO: Final = 10**9
"""Nano-units in one whole unit."""

MAX_WIRE_UNITS: Final = 2**63 - 1
"""The largest whole number of units that may cross the wire (ruling R20)."""


class QuantityError(ValueError):
    """A text that is no quantity; the message quotes it and says what is wrong."""


def parse_quantity(text: str) -> int:
    """Read a quantity as nano-units; finer than one nano-unit rounds away from zero.

    >>> parse_quantity("1500m")
    1500000000
    >>> parse_quantity("0.1n")
    1
    """
    match = _QUANTITY.fullmatch(text)
    if match is None:
        raise QuantityError(f"{_quote(text)} is not a quantity (examples: 2, 500m, 1.5, 768Gi, 1e3)")
    sign, whole, fraction, bare_fraction, suffix, exponent = match.groups()
    digits = (whole or "") + (fraction or bare_fraction or "")
    point = len(whole or "")
    if not digits.strip("0"):
        return 0
    scale = 1
    if exponent is not None:
        shift = _exponent(exponent, text)
    elif suffix in _BINARY:
        shift, scale = 0, _BINARY[suffix]
    else:
        shift = _DECIMAL[suffix or ""]
    magnitude = _scaled(digits, point + shift + 9, scale, text)
    return -magnitude if sign == "-" else magnitude


def format_quantity(nano: int, *, binary: bool, largest: str = "E") -> str:
    """Write nano-units in canonical form: the largest suffix that leaves an integer in front of it.

    The binary form falls back to the decimal one below 1024 units and for fractions of a unit, as in
    Kubernetes. ``largest`` stops earlier, for readers that do not know every suffix.
    """
    if nano == 0:
        return "0"
    if binary and nano % NANO == 0 and abs(nano) >= 1024 * NANO:
        mantissa, base, suffixes, last = nano // NANO, 1024, _BINARY_SUFFIXES, largest + "i"
    else:
        mantissa, base, suffixes, last = nano, 1000, _DECIMAL_SUFFIXES, largest
    for suffix in suffixes:
        if suffix == last or mantissa % base:
            return f"{mantissa}{suffix}"
        mantissa //= base
    raise ValueError(f"{largest!r} is no suffix of a quantity")


def prints_binary(resource: str) -> bool:
    """Whether amounts of this resource are written with Ki, Mi, … (operator.md §5.4: fixed by name)."""
    return resource in _BINARY_RESOURCES or resource.startswith("hugepages-")


def milli_from_nano(nano: int) -> int:
    """Nano-units as the engine's milli-units, rounded away from zero, once, on ingest."""
    return -(-nano // 1_000_000) if nano >= 0 else nano // 1_000_000


_QUANTITY: Final = re.compile(
    r"([+-]?)(?:([0-9]+)(?:\.([0-9]*))?|\.([0-9]+))(?:([KMGTPE]i|[numkMGTPE])|[eE]([+-]?[0-9]+))?"
)
_DECIMAL_SUFFIXES: Final[tuple[str, ...]] = ("n", "u", "m", "", "k", "M", "G", "T", "P", "E")
_DECIMAL: Final = {suffix: 3 * power - 9 for power, suffix in enumerate(_DECIMAL_SUFFIXES)}
_BINARY_SUFFIXES: Final[tuple[str, ...]] = ("", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei")
_BINARY: Final = {suffix: 1024**power for power, suffix in enumerate(_BINARY_SUFFIXES) if suffix}
_BINARY_RESOURCES: Final = frozenset({"memory", "ephemeral-storage", "storage"})

# Exact does not mean unbounded work: one short text such as 1e999999999 must not cost gigabytes. No
# value near this bound can cross the wire, and CPython converts this many digits in microseconds.
_MAX_DIGITS: Final = 4_000


def _exponent(digits: str, text: str) -> int:
    negative = digits.startswith("-")
    significant = digits.lstrip("+-").lstrip("0")
    if len(significant) > 9:
        if negative:
            return -(10**9)
        raise _too_large(text)
    value = int(significant or "0")
    return -value if negative else value


def _scaled(digits: str, point: int, scale: int, text: str) -> int:
    """ceil(0.digits * 10**point * scale), with digits that cannot matter never turned into numbers."""
    stripped = digits.lstrip("0")
    point -= len(digits) - len(stripped)
    stripped = stripped.rstrip("0")
    if point > _MAX_DIGITS:
        raise _too_large(text)
    # Below one nano-unit even after the largest binary scale (2**60 < 10**19): rounds up to one.
    if point < -19:
        return 1
    # Digits behind the 64th decimal only decide whether to round up: every binary scale divides 10**64,
    # so no whole nano-unit lies strictly between one kept value and the next.
    kept = max(point, 0) + 64
    head, rest = stripped[:kept], stripped[kept:]
    shift = point - len(head)
    power: int = 10 ** abs(shift)
    if shift >= 0:
        return int(head) * power * scale
    numerator = int(head) * scale + (1 if rest else 0)
    return -(-numerator // power)


def _too_large(text: str) -> QuantityError:
    return QuantityError(f"{_quote(text)} is beyond any quantity this program can hold")


def _quote(text: str) -> str:
    shown = text if len(text) <= 64 else text[:61] + "…"
    return repr(shown)
