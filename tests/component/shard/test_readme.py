"""The README's shard section, run as it is written, on ports of its own."""

import json
import os
import re
import signal
import subprocess
from pathlib import Path

from tests.support.eventually import eventually
from tests.support.parts.process import free_port

ROOT = Path(__file__).parents[3]
PORTS = ("9000", "9090", "7780", "8780")


async def test_its_commands_run_a_shard_with_three_clusters_and_replay_it(tmp_path: Path) -> None:
    start, look = _commands()
    for name in (".venv", "docs"):
        (tmp_path / name).symlink_to(ROOT / name)
    script = tmp_path / "script.sh"
    # One shell, as a reader has one; between the two blocks the reader takes a look.
    script.write_text(f"set -m\n{start}\nread -r\n{look}\n")
    with (tmp_path / "stdout").open("w") as out, (tmp_path / "stderr").open("w") as err:
        shell = subprocess.Popen(  # noqa: ASYNC220  # it is only ever polled
            ["bash", str(script)],
            cwd=tmp_path,
            stdin=subprocess.PIPE,
            stdout=out,
            stderr=err,
            text=True,
            start_new_session=True,
        )
    try:
        assert shell.stdin is not None
        with shell.stdin as reader:
            await eventually(lambda: _emitted(tmp_path) >= 6, seconds=90)
            reader.write("\n")
        await eventually(lambda: shell.poll() is not None, seconds=90)
    finally:
        _end(shell)

    # The processes log to the same terminal as the reader's commands.
    lines = (tmp_path / "stdout").read_text().splitlines()
    said = "\n".join(line for line in lines if not line.startswith('{"ts"'))
    state = json.loads(said[said.index("{\n") : said.index("\n}") + 2])
    assert state["sessions"] == 3
    assert state["machines"].keys() - {"Speculative"}, "machines are on their way"
    assert shell.returncode == 0, (tmp_path / "stderr").read_text()
    assert "action.emitted" in said
    assert "bigfleet_shard_actuation_paused 1.0" in said
    assert not (tmp_path / "data" / "PAUSE").exists()
    assert "every effect is as recorded" in said


def _commands() -> tuple[str, str]:
    section = (ROOT / "README.md").read_text().split("## Run a shard", 1)[1].split("\n## ", 1)[0]
    start, look = re.findall(r"^```sh\n(.*?)^```$", section, re.DOTALL | re.MULTILINE)
    for port in PORTS:
        free = free_port()
        start, look = (text.replace(f":{port}", f":{free}") for text in (start, look))
    return start, look


def _emitted(folder: Path) -> int:
    audit = folder / "audit.jsonl"
    return audit.read_text().count("action.emitted") if audit.exists() else 0


def _end(shell: "subprocess.Popen[str]") -> None:
    """End the shell and whatever it started; with job control each job is a group of its own."""
    listed = subprocess.run(
        ["ps", "-s", str(shell.pid), "-o", "pid="],
        capture_output=True,
        text=True,
        check=False,
    ).stdout.split()
    for pid in listed:
        try:
            os.kill(int(pid), signal.SIGKILL)
        except ProcessLookupError:
            continue
    shell.wait(10)
