"""The README of the template, run as it is written."""

import json
import os
import re
import signal
from pathlib import Path

import bigfleet_providerkit.examples.template as example
from tests.component.localproc.test_readme import run, start
from tests.support.eventually import eventually

README = Path(next(iter(example.__path__))) / "README.md"


async def test_its_commands_make_a_provider_and_a_machine(tmp_path: Path) -> None:
    copy, serve, create, look = commands(README)
    run(copy, tmp_path)
    provider = start(serve, tmp_path)
    try:
        await eventually((tmp_path / "mycloud.sock").exists, seconds=30)
        operation = run(create, tmp_path).strip()
        await eventually((tmp_path / "hosts" / operation).exists)
        assert json.loads(run(look, tmp_path)).keys() == {"machine"}
    finally:
        os.killpg(provider.pid, signal.SIGKILL)
        provider.wait()


def commands(path: Path) -> list[str]:
    """What a page gives to the shell, in order."""
    return re.findall(r"^```sh\n(.*?)^```$", path.read_text(), re.DOTALL | re.MULTILINE)
