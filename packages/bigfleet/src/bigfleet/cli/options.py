"""Options of the ``bigfleet`` commands."""

import argparse
import math
import re
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any, Final

from bigfleet_base import options
from bigfleet_base.options import UsageError, new_parser, parse, truth

PREFIX: Final = "BIGFLEET_"
LARGEST: Final = 2**63 - 1
"""Of numbers and nanoseconds: they are signed and have 64 bits on the wire and in the recording."""

__all__ = ["PREFIX", "Parser", "UsageError", "amount", "duration", "fraction", "size", "whole_number"]


class Parser:
    """The options of one command, each declared once."""

    def __init__(self, command: str, description: str) -> None:
        self._parser = new_parser(description, PREFIX, f"bigfleet {command}")

    def add(self, name: str, default: Any, text: str, **more: Any) -> None:
        """An option that takes a value."""
        self._parser.add_argument(f"--{name}", default=default, help=text, **more)

    def switch(self, name: str, default: bool, text: str) -> None:
        """An option that is on or off: ``--name``, ``--name=true``, ``--name=false``."""
        self._parser.add_argument(
            f"--{name}", nargs="?", type=truth, const=True, default=default, metavar="BOOL", help=text
        )

    def parse(self, argv: Sequence[str], environment: Mapping[str, str]) -> argparse.Namespace:
        """The options in force; UsageError for a mistake, SystemExit for one that argparse has explained."""
        return parse(self._parser, argv, environment, PREFIX)

    def named(self, name: str) -> str:
        """An option as whoever has given it knows it: a flag, a variable, a key of the file."""
        return self._parser.named(name)


def duration(text: str) -> int:
    """Nanoseconds that fit into 63 bits, as all times do."""
    nanos = options.duration(text)
    if nanos > LARGEST:
        raise argparse.ArgumentTypeError(f"{text!r} is too long: give less than 292 years")
    return nanos


def size(text: str) -> int:
    """Bytes of ``256MiB``, ``1GiB``, ``0``."""
    match = _SIZE.fullmatch(text)
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size (examples: 256MiB, 1GiB, 0)")
    return int(match[1]) * _SIZES[match[2] or ""]


def whole_number(text: str) -> int:
    """A number that is not negative, and fits into 63 bits."""
    if not re.fullmatch(r"[0-9]{1,1000}", text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 0")
    if int(text) > LARGEST:
        raise argparse.ArgumentTypeError(f"{text!r} is more than {LARGEST}")
    return int(text)


def amount(text: str) -> float:
    """A number that is neither negative nor without end, and need not be whole."""
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 <= number < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of at least 0")
    return number


def fraction(text: str) -> Fraction:
    """An exact share: 0.29 of 100 machines are 29."""
    # An exact number with an exponent of eight digits takes minutes to make.
    if len(text.strip().lower().partition("e")[2].lstrip("+-")) > _EXPONENT_DIGITS:
        raise argparse.ArgumentTypeError(f"{text!r} has an exponent of more than {_EXPONENT_DIGITS} digits")
    try:
        share = Fraction(text)
    except (ValueError, ZeroDivisionError):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number") from None
    if not 0 <= share <= 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a share: give a number from 0 to 1")
    return share


_EXPONENT_DIGITS: Final = 2
_SIZE: Final = re.compile(r"([0-9]{1,12})(KiB|MiB|GiB)?")
_SIZES: Final = {"": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
