"""The demo as its users run it: real processes, and a summary that comes from their endpoints."""

import contextlib
import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest
from rich.console import Console

from bigfleet.cli.demo import CLUSTERS, main
from bigfleet.cli.demo_view import draw

LIMIT_S = 120


@contextlib.contextmanager
def _running(*arguments: str) -> Iterator["subprocess.Popen[str]"]:
    process = subprocess.Popen(
        [sys.executable, "-m", "bigfleet.cli.demo", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # Some of its users are behind a proxy, which has nothing to do with what is on their machine.
        env={**os.environ, "http_proxy": "http://127.0.0.1:9", "no_proxy": "example.com"},
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            process.communicate(timeout=LIMIT_S)


def _started(process: "subprocess.Popen[str]") -> dict[str, int]:
    """The process ids of the parts, once all have been started."""
    assert process.stderr is not None
    found: dict[str, int] = {}
    while len(found) < 2 + len(CLUSTERS):
        line = process.stderr.readline()
        assert line, f"the demo ended: {process.wait()}"
        if match := re.match(r"started (\S+) \(process (\d+)\)", line):
            found[match[1]] = int(match[2])
    return found


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def _summary(text: str) -> dict[str, Any]:
    summary: dict[str, Any] = json.loads(text.splitlines()[-1])
    return summary


def test_headless_it_ends_by_itself_with_one_json_object_from_the_endpoints() -> None:
    with _running("--headless", "--for", "12s", "--output", "json") as process:
        parts = _started(process)
        out, _ = process.communicate(timeout=LIMIT_S)

    seen = _summary(out)
    assert process.returncode == 0
    assert set(seen["processes"].values()) == {"running"}
    assert seen["sessions"] == 3
    assert seen["provider"] == {"answers": True, "machines": 32}
    assert sum(n for kinds in seen["machines"].values() for n in kinds.values()) == 32
    assert seen["machines"]["Configured"]
    assert seen["needs"]["met"] >= 1
    assert {"Bootstrap", "Provision"} <= seen["actions"].keys()
    assert seen["dollars_per_hour"] > 0
    assert seen["last_actions"]
    assert not [name for name, pid in parts.items() if _is_alive(pid)]


def test_a_provider_that_dies_is_seen_in_the_summary() -> None:
    with _running("--headless", "--for", "12s", "--output", "json") as process:
        parts = _started(process)
        time.sleep(4)
        os.kill(parts["provider"], signal.SIGKILL)
        out, _ = process.communicate(timeout=LIMIT_S)

    seen = _summary(out)
    assert seen["processes"]["provider"] == "exited -9"
    assert seen["provider"] == {"answers": False, "machines": 0}
    assert seen["processes"]["shard"] == "running", "the shard goes on without it"
    assert seen["sessions"] == 3


def test_ctrl_c_stops_everything() -> None:
    with _running("--headless", "--for", "10m") as process:
        parts = _started(process)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=LIMIT_S)

    assert process.returncode == 0
    assert not [name for name, pid in parts.items() if _is_alive(pid)]


def test_a_second_ctrl_c_leaves_nothing_behind_either() -> None:
    with _running("--headless", "--for", "10m") as process:
        parts = _started(process)
        # One that takes its time, so that there is somebody to be impatient with.
        os.kill(parts["shard"], signal.SIGSTOP)
        process.send_signal(signal.SIGINT)
        assert process.stderr is not None
        assert process.stderr.readline() == "stopping\n"
        while _is_alive(parts["training"]) and process.poll() is None:
            process.send_signal(signal.SIGINT)
        os.kill(parts["shard"], signal.SIGCONT)
        _, rest = process.communicate(timeout=LIMIT_S)

    assert (process.returncode, rest) == (0, "")
    assert not [name for name, pid in parts.items() if _is_alive(pid)]


@pytest.mark.parametrize("terminal", ["none", "dumb"])
def test_without_a_terminal_it_does_not_run_unseen(
    terminal: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    if terminal == "dumb":
        monkeypatch.setenv("TERM", "dumb")
        monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    with pytest.raises(SystemExit) as ended:
        main([])

    assert ended.value.code == 2
    assert "give --headless --for" in capsys.readouterr().err


def test_headless_without_an_end_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--headless"])

    assert ended.value.code == 2
    assert "--headless needs --for" in capsys.readouterr().err


def test_the_screen_shows_machines_money_needs_and_actions() -> None:
    console = Console(width=120, record=True, file=io.StringIO())
    seen = {
        "seconds": 3.0,
        "processes": {"shard": "running", "provider": "exited -9"},
        "machines": {"Configured": {"Spot": 3}, "Idle": {"OnDemand": 1}},
        "dollars_per_hour": 1.25,
        "needs": {
            "met": 0,
            "unmet": 1,
            "reasons": {"priority_starved": 1},
            "rows": [
                {
                    "cluster": "shop",
                    "wants": "standard-4: cpu 8",
                    "priority": 1000,
                    "machines": 1,
                    "met": False,
                    "reason": "priority_starved",
                }
            ],
        },
        "sessions": 1,
        "last_actions": [
            {"cycle": 4, "kind": "Preempt", "machine_id": "m-1", "cluster": "batch", "outcome": "success"}
        ],
    }
    console.print(draw(seen))
    text = console.export_text()

    for expected in ("1.25 $/hour", "Configured", "priority_starved", "Preempt", "m-1", "provider exited -9"):
        assert expected in text
