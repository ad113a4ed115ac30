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


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ('pause = "soon"', "pause in {file} (--config): 'soon' is not a duration"),
        ('tls-mode = "c"', "tls-mode in {file} (--config): invalid choice: 'c'"),
    ],
)
def test_a_value_of_the_file_that_cannot_be_read_is_named_by_its_key(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str, said: str
) -> None:
    file = tmp_path / "program.toml"
    file.write_text(content)
    with pytest.raises(SystemExit) as ended:
        read("--config", str(file))
    assert ended.value.code == 2
    [line] = capsys.readouterr().err.splitlines()
    assert line.startswith(f"program: {said.format(file=file)}") and line.endswith("; see program --help")


def test_a_switch_that_is_neither_on_nor_off_is_named_by_its_variable() -> None:
    with pytest.raises(UsageError, match="PROGRAM_LOUD in the environment is 'perhaps'; it must be true"):
        read(PROGRAM_LOUD="perhaps")
