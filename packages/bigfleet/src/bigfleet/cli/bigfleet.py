"""The ``bigfleet`` command."""

import argparse
import sys
from collections.abc import Sequence
from importlib import metadata
from typing import Final

USAGE: Final = """\
usage: bigfleet COMMAND [OPTION ...]

commands:
  shard          decide for a slice of machines and drive their providers
  shard replay   derive again what a recorded shard did, and compare
  check-config   read the options of a command as it would, and say what is wrong with them
  version        print the version
  help           print this text

`bigfleet COMMAND --help` lists the options of a command. Each can also be set as BIGFLEET_NAME in the
environment, or in the TOML file given with --config.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit status: 0, 1 for a failure, 2 for a call that cannot be understood."""
    name, *rest = (sys.argv[1:] if argv is None else list(argv)) or [""]
    match name:
        case "help" | "-h" | "--help":
            print(USAGE, end="")
            return 0
        case "version" | "--version":
            print(metadata.version("bigfleet"))
            return 0
        case "shard" if rest[:1] == ["replay"]:
            return _replay(rest[1:])
        case "shard":
            return _shard(rest)
        case "check-config":
            return _check_config(rest)
    print(
        f"bigfleet: there is no command {name!r}\n" if name else "bigfleet: a command is missing\n",
        file=sys.stderr,
    )
    print(USAGE, end="", file=sys.stderr)
    return 2


def _shard(argv: Sequence[str]) -> int:
    from bigfleet.cli import shard

    try:
        return shard.run(argv)
    except shard.USER_ERRORS as error:
        return _failed(error)


def _replay(argv: Sequence[str]) -> int:
    from bigfleet.shard.recording.replay import add_replay_arguments, run_replay

    parser = argparse.ArgumentParser(
        "bigfleet shard replay",
        description="Feed a recording to the shard's core and compare what comes of it.",
    )
    add_replay_arguments(parser)
    return run_replay(parser.parse_args(argv))


def _check_config(argv: Sequence[str]) -> int:
    from bigfleet.cli import shard

    if argv[:1] != ["shard"]:
        print("usage: bigfleet check-config shard [OPTION ...]", file=sys.stderr)
        return 0 if argv[:1] in (["-h"], ["--help"]) else 2
    try:
        print(shard.check(argv[1:]))
    except shard.USER_ERRORS as error:
        return _failed(error)
    return 0


def _failed(error: Exception) -> int:
    print(f"bigfleet: {error}", file=sys.stderr)
    return 1
