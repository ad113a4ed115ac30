"""A scripted operator as a process: what whoever started it gets to see."""

import signal
import subprocess
import sys
from pathlib import Path

from tests.component.shard.programs import ROOT, clean_environment
from tests.support.eventually import eventually
from tests.support.parts.process import free_port


async def test_a_shard_that_is_not_there_is_told_of_and_a_signal_ends_it(tmp_path: Path) -> None:
    address = f"127.0.0.1:{free_port()}"
    with (tmp_path / "err").open("wb") as err:
        operator = subprocess.Popen(  # noqa: ASYNC220  # it is only ever polled
            [
                *(sys.executable, "-m", "bigfleet.scale.operators", "--cluster", "red"),
                *("--shard", address, "--script", "docs/examples/demand.json"),
            ],
            cwd=ROOT,
            env=clean_environment(),
            stderr=err,
        )
    try:
        said = f"red: no session with {address}: UNAVAILABLE: "
        await eventually(lambda: said in (tmp_path / "err").read_text(), seconds=40)
        operator.send_signal(signal.SIGTERM)
        await eventually(lambda: operator.poll() is not None, seconds=40)
    finally:
        operator.kill()
    assert operator.wait() == 0
