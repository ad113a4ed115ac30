"""``bigfleet shard`` as a process of its own."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

ROOT = Path(__file__).parents[3]


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run ``bigfleet`` with something that ends by itself."""
    return subprocess.run(
        [sys.executable, "-m", "bigfleet.cli", *arguments],
        cwd=ROOT,
        env=clean_environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def redirected(where: str, *arguments: str, is_buffered: bool = True) -> subprocess.CompletedProcess[str]:
    """Run ``bigfleet`` with its standard output redirected as a shell writes it."""
    return subprocess.run(
        ["/bin/sh", "-c", f'exec "$@" {where}', "sh", sys.executable, "-m", "bigfleet.cli", *arguments],
        cwd=ROOT,
        env={**clean_environment(), "PYTHONUNBUFFERED": "" if is_buffered else "1"},
        stderr=subprocess.PIPE,
        text=True,
        timeout=60,
        check=False,
    )


def clean_environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("BIGFLEET_")}


class ShardProgram:
    """One run of ``bigfleet shard`` on loopback ports that it picks itself. Its log can be read here unless
    it goes to ``out``."""

    def __init__(self, folder: Path, *arguments: str, out: int | None = None) -> None:
        folder.mkdir(exist_ok=True)
        self._out = folder / f"shard-{time.monotonic_ns()}.log"
        self.errors = self._out.with_suffix(".err")
        with self._out.open("wb") as log, self.errors.open("wb") as errors:
            self.process = subprocess.Popen(
                [
                    *(sys.executable, "-m", "bigfleet.cli", "shard"),
                    *("--listen", "127.0.0.1:0", "--metrics-addr", "127.0.0.1:0"),
                    *("--data-dir", str(folder / "data"), *arguments),
                ],
                cwd=ROOT,
                env=clean_environment(),
                stdout=log if out is None else out,
                stderr=errors,
            )

    def lines(self, msg: str) -> list[dict[str, Any]]:
        """The lines of its log with this message."""
        whole = self._out.read_bytes().rpartition(b"\n")[0].splitlines()
        return [line for line in map(json.loads, whole) if line["msg"] == msg]

    def until(self, msg: str, times: int = 1) -> dict[str, Any]:
        """The n-th line with this message, as soon as it is there."""
        self.wait_for(lambda: len(self.lines(msg)) >= times)
        return self.lines(msg)[times - 1]

    def wait_for(self, condition: Callable[[], bool], seconds: float = 40) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            if self.process.poll() is not None:
                raise AssertionError(
                    f"the shard ended with {self.process.returncode}: {self.errors.read_text()}"
                )
            if time.monotonic() > deadline:
                raise TimeoutError(self._out.read_text())
            time.sleep(0.02)

    @property
    def address(self) -> str:
        return str(self.until("listening")["addr"])

    @property
    def metrics_address(self) -> str:
        return str(self.until("metrics serving")["addr"])

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def ended(self, seconds: float = 20) -> int:
        """Its exit status."""
        return self.process.wait(seconds)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
