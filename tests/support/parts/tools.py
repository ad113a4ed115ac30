"""Where the programs are that `make tools` builds."""

from pathlib import Path

BIN = Path(__file__).resolve().parents[3] / "tools" / "bin"


class MissingToolError(Exception):
    """A program the test needs has not been built."""


def tool(name: str) -> Path:
    """The path of a built program, or of the folder of kwok's stages.

    A missing one is an error and never a reason to skip: a green run must mean that the test ran.
    """
    path = BIN / name
    if not path.exists():
        raise MissingToolError(
            f"{name} is not built (no {path.parent.name}/{name} in tools). Run: make tools"
        )
    return path
