"""Options of a process: where they may stand, and how a mistake is told."""

import argparse
from pathlib import Path

import pytest

from bigfleet_base.options import UsageError, duration, new_parser, parse


def read(*argv: str, **environment: str) -> argparse.Namespace:
    parser = new_parser("A program.", "PROGRAM_", "program")
    parser.add_argument("--pause", type=duration, default="1s")
    parser.add_argument("--loud", action="store_true")
    parser.add_argument("--mode", "--tls-mode", choices=("a", "b"))
    return parse(parser, argv, environment, "PROGRAM_")


def test_help_is_asked_for_on_the_command_line_alone(tmp_path: Path) -> None:
    assert read(PROGRAM_HELP="1").pause == 10**9
    file = tmp_path / "program.toml"
    file.write_text("help = true\n")
    with pytest.raises(UsageError, match="'help', which is no option"):
        read("--config", str(file))


def test_a_file_names_no_other_file_and_the_environment_may(tmp_path: Path) -> None:
    file = tmp_path / "program.toml"
    file.write_text('config = "other.toml"\n')
    with pytest.raises(UsageError, match="'config', which is no option"):
        read("--config", str(file))
    file.write_text('pause = "3s"\n')
    assert read(PROGRAM_CONFIG=str(file)).pause == 3 * 10**9
