"""The README of localproc, run as it is written."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import bigfleet_providerkit.examples.localproc as example
from tests.component.localproc.world import agents_below
from tests.support.eventually import eventually

README = Path(next(iter(example.__path__))) / "README.md"


async def test_its_commands_make_a_machine_that_outlives_the_provider(tmp_path: Path) -> None:
    serve, create, look = commands()
    root = tmp_path / "machines"
    provider = start(serve, tmp_path)
    try:
        await eventually((tmp_path / "localproc.sock").exists, seconds=30)
        operation = run(create, tmp_path)
        await eventually(lambda: len(agents_below(root)) == 1)
        os.killpg(provider.pid, signal.SIGKILL)
        provider.wait()
        [(pid, machine)] = agents_below(root)
        [listed, *processes] = run(look, tmp_path).splitlines()
        assert operation.strip() and listed == machine
        assert any(line.startswith(f"{pid} ") for line in processes)
    finally:
        if provider.poll() is None:
            os.killpg(provider.pid, signal.SIGKILL)
            provider.wait()
        for pid, _ in agents_below(root):
            os.kill(pid, signal.SIGKILL)


def commands() -> list[str]:
    """What the README gives to the shell, in order."""
    return re.findall(r"^```sh\n(.*?)^```$", README.read_text(), re.DOTALL | re.MULTILINE)


def run(command: str, folder: Path) -> str:
    """What the command prints."""
    done = subprocess.run(
        ["bash", "-ec", command],
        cwd=folder,
        env=_environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def start(command: str, folder: Path) -> subprocess.Popen[bytes]:
    """The command, running in the background in a session of its own."""
    with (folder / "log").open("wb") as log:
        return subprocess.Popen(
            ["bash", "-ec", command],
            cwd=folder,
            env=_environment(),
            stdout=log,
            stderr=log,
            start_new_session=True,
        )


def _environment() -> dict[str, str]:
    # The reader has activated the environment that the package is installed in.
    return {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
