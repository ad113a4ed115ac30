"""Options of a command: flags, environment and a file, one name each.

A flag wins over its environment variable ``BIGFLEET_NAME``, that over the TOML file of ``--config``, and that
over the default.
"""

import argparse
import re
import tomllib
from collections.abc import Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any, Final

PREFIX: Final = "BIGFLEET_"


class UsageError(Exception):
    """A mistake in flags, environment or file; the message names it and says what to do."""


class Parser:
    """The options of one command, each declared once."""

    def __init__(self, command: str, description: str) -> None:
        self._parser = argparse.ArgumentParser(
            prog=f"bigfleet {command}",
            description=description,
            allow_abbrev=False,
            epilog=f"Every option can also be set as {PREFIX}NAME or in the TOML file of --config.",
            formatter_class=argparse.ArgumentDefaultsHelpFormatter,
        )
        self._names: set[str] = set()
        self.add("config", "", "TOML file with the same names", metavar="FILE")

    def add(self, name: str, default: Any, text: str, **more: Any) -> None:
        """An option that takes a value."""
        self._names.add(name)
        self._parser.add_argument(f"--{name}", default=default, help=text, **more)

    def switch(self, name: str, default: bool, text: str) -> None:
        """An option that is on or off: ``--name``, ``--name=true``, ``--name=false``."""
        self._names.add(name)
        self._parser.add_argument(
            f"--{name}", nargs="?", type=_truth, const=True, default=default, metavar="BOOL", help=text
        )

    def parse(self, argv: Sequence[str], environment: Mapping[str, str]) -> argparse.Namespace:
        """The options in force; UsageError for a mistake, SystemExit for one that argparse has explained."""
        given = {name: environment[_variable(name)] for name in self._names if _variable(name) in environment}
        config = self._parser.parse_known_args(argv)[0].config or given.get("config", "")
        given.pop("config", None)
        settings = _from_file(config)
        if unknown := sorted(settings.keys() - self._names):
            raise UsageError(f"{config} (--config) has {unknown[0]!r}, which is no option")
        for name, value in settings.items():
            if isinstance(value, dict | list):
                raise UsageError(f"{config} (--config): {name} must be a single value")
        # As flags in front of the real ones, so that there is one reader with one set of checks and messages.
        lower = [f"--{name}={_written(value)}" for name, value in {**settings, **given}.items()]
        return self._parser.parse_args([*lower, *argv])


def duration(text: str) -> int:
    """Nanoseconds of a duration as Go writes it: ``2s``, ``1h30m``, ``250ms``; ``0`` needs no unit."""
    if text == "0":
        return 0
    if not _DURATION.fullmatch(text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a duration (examples: 2s, 5m, 1h30m, 250ms)")
    return round(sum(Fraction(number) * _TIMES[unit] for number, unit in _DURATION_PART.findall(text)))


def size(text: str) -> int:
    """Bytes of ``256MiB``, ``1GiB``, ``0``."""
    match = _SIZE.fullmatch(text)
    if match is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not a size (examples: 256MiB, 1GiB, 0)")
    return int(match[1]) * _SIZES[match[2] or ""]


def whole_number(text: str) -> int:
    """A number that is not negative."""
    if not re.fullmatch(r"[0-9]{1,18}", text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 0")
    return int(text)


def fraction(text: str) -> Fraction:
    """An exact share: 0.29 of 100 machines are 29."""
    try:
        share = Fraction(text)
    except (ValueError, ZeroDivisionError):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number") from None
    if not 0 <= share <= 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a share: give a number from 0 to 1")
    return share


def _truth(text: str) -> bool:
    if text.lower() not in _TRUTHS:
        raise argparse.ArgumentTypeError(f"{text!r} is neither true nor false")
    return _TRUTHS[text.lower()]


def _written(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _variable(name: str) -> str:
    return PREFIX + name.upper().replace("-", "_")


def _from_file(path: str) -> dict[str, Any]:
    if not path:
        return {}
    try:
        return tomllib.loads(Path(path).read_text())
    except OSError as error:
        raise UsageError(f"cannot read {path} (--config): {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} (--config) is not TOML: {error}") from error


_TRUTHS: Final = {"true": True, "1": True, "t": True, "false": False, "0": False, "f": False}
_TIMES: Final = {
    "ns": 1,
    "us": 1_000,
    "ms": 1_000_000,
    "s": 10**9,
    "m": 60 * 10**9,
    "h": 3_600 * 10**9,
}
_DURATION_PART: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ns|us|ms|s|m|h)")
_DURATION: Final = re.compile(rf"(?:{_DURATION_PART.pattern})+")
_SIZE: Final = re.compile(r"([0-9]{1,12})(KiB|MiB|GiB)?")
_SIZES: Final = {"": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
