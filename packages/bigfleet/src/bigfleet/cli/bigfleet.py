"""The ``bigfleet`` command."""

import os
import sys
from collections.abc import Sequence
from importlib import metadata
from typing import Final

from bigfleet_base.options import OneLineParser

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


INTERRUPTED: Final = 130
"""What shells make of an end by SIGINT."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; returns the exit status: 0, 1 for a failure, 2 for a call that cannot be understood, 130
    for one that Ctrl-C has ended."""
    try:
        status = _command(argv)
    except SystemExit:
        if _is_written_out():
            raise
        return 1
    except KeyboardInterrupt:
        return INTERRUPTED
    return status if _is_written_out() else 1


def _command(argv: Sequence[str] | None) -> int:
    name, *rest = (sys.argv[1:] if argv is None else list(argv)) or [""]
    match name:
        case "help" | "-h" | "--help":
            return _say(USAGE)
        case "version" | "--version":
            return _say(metadata.version("bigfleet") + "\n")
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
    from bigfleet.shard.recording.replay import OutputLostError, add_replay_arguments, run_replay

    parser = OneLineParser(
        "bigfleet shard replay",
        description="Feed a recording to the shard's core and compare what comes of it.",
    )
    add_replay_arguments(parser)
    args = parser.parse_args(argv)
    try:
        return run_replay(args)
    except OutputLostError as error:
        return _output_lost(error)


def _check_config(argv: Sequence[str]) -> int:
    from bigfleet.cli import shard

    if argv[:1] != ["shard"]:
        print("usage: bigfleet check-config shard [OPTION ...]", file=sys.stderr)
        return 0 if argv[:1] in (["-h"], ["--help"]) else 2
    try:
        found = shard.check(argv[1:])
    except shard.USER_ERRORS as error:
        return _failed(error)
    return _say(found + "\n")


def _failed(error: Exception) -> int:
    print(f"bigfleet: {error}", file=sys.stderr)
    return 1


def _say(text: str) -> int:
    try:
        print(text, end="")
    except OSError as error:
        return _output_lost(error.strerror)
    return 0


def _is_written_out() -> bool:
    """Whether all that was printed has found its way; if not, that has been said."""
    try:
        if sys.stdout is not None:
            sys.stdout.flush()
    except OSError as error:
        _output_lost(error.strerror)
        return False
    return True


def _output_lost(why: object) -> int:
    print(f"bigfleet: cannot write to standard output: {why}", file=sys.stderr)
    # What is left in the buffer would be complained of once more at the very end.
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.close(nowhere)
    return 1
