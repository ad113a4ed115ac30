"""A provider's options: flags, environment and a file, one name each (provider.md §12.5).

A flag wins over its environment variable, that over the file given with ``--config``, that over the default.
"""

import argparse
import re
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from bigfleet_base.telemetry import LEVELS
from bigfleet_providerkit.backend import Backend
from bigfleet_providerkit.work import NANOS

PREFIX: Final = "BIGFLEET_PROVIDER_"


class UsageError(Exception):
    """A mistake in flags, environment or file; the message names it."""


def duration(text: str) -> int:
    """Nanoseconds of a duration as Go writes it: ``2s``, ``1h30m``, ``250ms``; ``0`` needs no unit."""
    if text == "0":
        return 0
    if not _DURATION.fullmatch(text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a duration (examples: 2s, 5m, 1h30m, 250ms)")
    return round(sum(float(number) * _UNITS[unit] for number, unit in _PART.findall(text)))


def parse(backend: type[Backend], argv: Sequence[str], environment: Mapping[str, str]) -> argparse.Namespace:
    """The options in force; UsageError or SystemExit for a mistake."""
    parser = _parser(backend)
    flags = {
        flag[2:]: action for action in parser._actions for flag in action.option_strings if len(flag) > 2
    }
    given = {name: environment[_variable(name)] for name in flags if _variable(name) in environment}
    config = parser.parse_known_args(argv)[0].config or given.pop("config", "")
    settings = _from_file(config)
    if unknown := sorted(settings.keys() - flags.keys()):
        raise UsageError(f"{config} (--config) has {unknown[0]!r}, which is no option")
    named = {part[2:].partition("=")[0] for part in argv if part.startswith("--")}
    lower = {name: value for name, value in {**settings, **given}.items() if name not in named}
    # As flags in front of the real ones, so that there is one reader with one set of checks and messages.
    return parser.parse_args([*_as_flags(lower, flags), *argv])


def _as_flags(values: Mapping[str, Any], flags: Mapping[str, argparse.Action]) -> list[str]:
    written = []
    for name, value in values.items():
        if flags[name].nargs == 0:
            if str(value).lower() not in _TRUTHS:
                raise UsageError(f"{name} is {value!r} in the environment or file; it must be true or false")
            written += [f"--{name}"] if _TRUTHS[str(value).lower()] else []
        elif isinstance(value, list):
            written += [f"--{name}={part}" for part in value]
        else:
            written.append(f"--{name}={value}")
    return written


def _parser(backend: type[Backend]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=(backend.__doc__ or "A BigFleet capacity provider.").strip().splitlines()[0],
        allow_abbrev=False,
        epilog=f"Every option can also be set as {PREFIX}NAME or in the TOML file of --config.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    add = parser.add_argument
    add("--config", metavar="FILE", default="", help="TOML file with the same names")
    add("--addr", default=":9000", help="where to serve gRPC; without a host on all interfaces")
    add("--provider", metavar="NAME", default="", help="this deployment; constant for the life of its hosts")
    add("--state", metavar="PATH", default="", help="the store; without one all is lost with the process")
    add("--require-state", action="store_true", help="refuse to start without --state")
    add("--restored", action="store_true", help="the store is a backup brought back; give it once")
    add("--offerings", metavar="FILE", default="", help="JSON array of what may be created")
    add("--seed-count", type=int, metavar="N", help="without --offerings: slots of built-in ones, else 32")
    for kind in ("create", "configure", "drain", "delete"):
        default = "10m" if kind == "drain" else "5m"
        add(f"--timeout-{kind}", type=duration, metavar="TIME", help=f"for a {kind}, else {default}")
    add("--reconcile-interval", type=duration, metavar="TIME", default="2m", help="look at hosts; 0 is never")
    add("--quarantine", type=duration, metavar="TIME", default="60s", help="how long Failed stays unrepaired")
    add("--max-concurrent", type=int, metavar="N", default=32, help="backend calls at once, each method")
    add("--rate", type=float, metavar="N", default=0.0, help="backend calls a second, each method; 0 is any")
    add("--shutdown-window", type=duration, metavar="TIME", default="10s", help="for backend calls under way")
    add("--metrics-addr", default=":9090", help="plain HTTP for probes and metrics; 0 is none")
    add("--reflection", action="store_true", help="serve gRPC reflection")
    for name in ("cert", "key", "ca"):
        add(f"--tls-{name}", metavar="FILE", default="", help="all three for mutual TLS")
    add("--insecure", action="store_true", help="allow plaintext beyond this machine")
    add("--allow-shard", action="append", metavar="ID", default=[], help="only these may mutate; repeatable")
    add("--use-fake-backend", action="store_true", help="simulated machines instead of the substrate's")
    add("--fault-hooks", action="store_true", help="for conformance tests: faults on request")
    add("--compat", action="store_true", help="no epoch floor; negative token numbers are ordinary")
    add("--log-level", choices=tuple(LEVELS), default="info", help="least level that is written")
    add("--log-format", choices=("json", "text"), default="json", help="form of the log")
    backend.add_options(parser)
    return parser


def _variable(flag: str) -> str:
    return PREFIX + flag.upper().replace("-", "_")


def _from_file(path: str) -> dict[str, Any]:
    if not path:
        return {}
    try:
        return tomllib.loads(Path(path).read_text())
    except OSError as error:
        raise UsageError(f"cannot read {path} (--config): {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} (--config) is not TOML: {error}") from error


_TRUTHS: Final = {"true": True, "1": True, "false": False, "0": False, "": False}
_UNITS: Final = {"ns": 1, "us": 1_000, "ms": 1_000_000, "s": NANOS, "m": 60 * NANOS, "h": 3_600 * NANOS}
_PART: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ns|us|ms|s|m|h)")
_DURATION: Final = re.compile(rf"(?:{_PART.pattern})+")
