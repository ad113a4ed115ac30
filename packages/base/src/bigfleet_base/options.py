"""Options of a process: flags, environment and a file, one name each.

A flag wins over its environment variable, that over the TOML file given with ``--config``, and that over the
default. Whoever declares the options uses ``argparse``; this reads them.
"""

import argparse
import re
import tomllib
from collections.abc import Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, NoReturn


class UsageError(Exception):
    """A mistake in flags, environment or file; the message names it and says what to do."""


class OneLineParser(argparse.ArgumentParser):
    """Tells a mistake in one line; all that there is to know is in ``--help``."""

    origins: Mapping[str, str] = MappingProxyType({})
    """Where options come from that were not given as flags, by name and in words."""

    def named(self, name: str) -> str:
        """The option as whoever has given it knows it."""
        return self.origins.get(name, f"--{name}")

    def error(self, message: str) -> NoReturn:
        if found := _ARGUMENT.match(message):
            names = found[1].removeprefix("--").split("/--")
            origin = next((self.origins[name] for name in names if name in self.origins), "")
            message = origin + message[found.end() :] if origin else message
        self.exit(2, f"{self.prog}: {message}; see {self.prog} --help\n")


def new_parser(description: str, prefix: str, prog: str | None = None) -> OneLineParser:
    """A parser that ``parse`` can read, with its option for the file."""
    parser = OneLineParser(
        prog=prog,
        description=description,
        allow_abbrev=False,
        epilog=f"Every option can also be set as {prefix}NAME or in the TOML file of --config.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--config", metavar="FILE", default="", help="TOML file with the same names")
    return parser


def parse(
    parser: argparse.ArgumentParser, argv: Sequence[str], environment: Mapping[str, str], prefix: str
) -> argparse.Namespace:
    """The options in force; UsageError for a mistake, SystemExit for one that argparse has explained."""
    # To ask for help is no setting that a file or an environment could have.
    flags = {
        flag[2:]: action
        for action in parser._actions
        for flag in action.option_strings
        if len(flag) > 2 and not isinstance(action, argparse._HelpAction)
    }
    variables = {name: prefix + name.upper().replace("-", "_") for name in flags}
    given: dict[str, Any] = {
        name: environment[variable] for name, variable in variables.items() if variable in environment
    }
    del flags["config"]  # a file names no other
    from_environment = given.pop("config", "")
    config = parser.parse_known_args(argv)[0].config or from_environment
    settings = _from_file(config)
    if unknown := sorted(settings.keys() - flags.keys()):
        raise UsageError(f"{config} (--config) has {unknown[0]!r}, which is no option")
    named = {part[2:].partition("=")[0] for part in argv if part.startswith("--")}
    lower = {name: value for name, value in {**settings, **given}.items() if name not in named}
    origins = {
        name: f"{variables[name]} in the environment" if name in given else f"{name} in {config} (--config)"
        for name in lower
    }
    if isinstance(parser, OneLineParser):
        parser.origins = origins
    # As flags in front of the real ones, so that there is one reader with one set of checks and messages.
    return parser.parse_args([*_as_flags(lower, flags, origins), *argv])


def duration(text: str) -> int:
    """Nanoseconds of a duration as Go writes it: ``2s``, ``1h30m``, ``250ms``; ``0`` needs no unit."""
    if text == "0":
        return 0
    if not _DURATION.fullmatch(text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a duration (examples: 2s, 5m, 1h30m, 250ms)")
    return round(sum(Fraction(number) * _UNITS[unit] for number, unit in _PART.findall(text)))


def truth(text: str) -> bool:
    """What may stand for on and off."""
    if text.lower() not in _TRUTHS:
        raise argparse.ArgumentTypeError(f"{text!r} is neither true nor false")
    return _TRUTHS[text.lower()]


def _as_flags(
    values: Mapping[str, Any], flags: Mapping[str, argparse.Action], origins: Mapping[str, str]
) -> list[str]:
    written = []
    for name, value in values.items():
        action = flags[name]
        if action.nargs == 0:
            if str(value).lower() not in _TRUTHS:
                raise UsageError(f"{origins[name]} is {value!r}; it must be true or false")
            written += [f"--{name}"] if _TRUTHS[str(value).lower()] else []
        elif isinstance(value, list) and isinstance(action, argparse._AppendAction):
            written += [f"--{name}={part}" for part in value]
        elif isinstance(value, dict | list):
            raise UsageError(f"{name} must be a single value (file of --config)")
        else:
            text = str(value).lower() if isinstance(value, bool) else str(value)
            written.append(f"--{name}={text}")
    return written


def _from_file(path: str) -> dict[str, Any]:
    if not path:
        return {}
    try:
        return tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"cannot read {path} (--config): {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path} (--config) is not TOML: {error}") from error


_ARGUMENT: Final = re.compile(r"argument (--[^: ]+)")
_TRUTHS: Final = {"true": True, "1": True, "t": True, "false": False, "0": False, "f": False, "": False}
_UNITS: Final = {
    "ns": 1,
    "us": 1_000,
    "ms": 1_000_000,
    "s": 10**9,
    "m": 60 * 10**9,
    "h": 3_600 * 10**9,
}
_PART: Final = re.compile(r"([0-9]{1,100}(?:\.[0-9]{1,100})?)(ns|us|ms|s|m|h)")
_DURATION: Final = re.compile(rf"(?:{_PART.pattern})+")
