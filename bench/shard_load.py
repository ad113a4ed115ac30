"""A shard process with its fake provider, and operators that keep it busy over the real wire."""

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from grpc import aio

from bench import harness
from bigfleet.scale.operators import ScriptedOperator
from bigfleet_base.model import Need, Operator, Profile, Requirement, ResourceVector
from bigfleet_base.model.frames import Frame, HelloAck
from bigfleet_base.model.requirement import INSTANCE_TYPE_KEY
from bigfleet_base.wire import dial
from bigfleet_base.wire.metadata import encode_assignment

ROWS: Final = 15
CHANNELS: Final = 50
"""Connections that the sessions of the load share; a process of one core cannot keep thousands alive."""
UNIT: Final = ResourceVector({"cpu": 1000})
SOME: Final = ResourceVector({"cpu": 100})
"""Demand of the load moves by so much: more or less of the one machine that each row has."""
SERVED: Final = "served"
"""The instance type of the machines that serve the load."""
ABSENT: Final = "absent"
"""Of this type there is none."""


@dataclass(slots=True)
class Shard:
    """A shard process with its fake provider."""

    folder: Path
    address: str
    http: str
    process: "subprocess.Popen[bytes]"
    provider: "subprocess.Popen[bytes] | None"

    @property
    def audit(self) -> Path:
        return self.folder / "audit.jsonl"

    def measure(self) -> dict[str, Any]:
        """Processor time so far, and the worst stall and all cycles since the last measurement."""
        path = self.folder / "child.json"
        path.unlink(missing_ok=True)
        self.process.send_signal(signal.SIGUSR2)
        deadline = time.monotonic() + 60
        while not path.exists():
            assert time.monotonic() < deadline and self.process.poll() is None, "the shard does not answer"
            time.sleep(0.02)
        found: dict[str, Any] = json.loads(path.read_text())
        return found

    def rss(self) -> int:
        text = Path(f"/proc/{self.process.pid}/statm").read_text()
        return int(text.split()[1]) * os.sysconf("SC_PAGE_SIZE")

    def files(self) -> int:
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))


@contextlib.contextmanager
def running(
    machines: int,
    *flags: str,
    serving: int = 0,
    rows: int = ROWS,
    full: bool = False,
    latency: str = "uniform(20ms,80ms)",
) -> Iterator[Shard]:
    """A shard over so many speculative and idle machines, and one for every row of the clusters it serves;
    recording and audit on. In a ``full`` one every cycle looks at everything."""
    with tempfile.TemporaryDirectory(prefix="bigfleet-bench-") as name:
        folder = Path(name)
        ports = [_free_port() for _ in range(4)]
        provider = None
        address = f"127.0.0.1:{ports[0]}"
        offerings = [
            {
                "instance_type": kind,
                "zone": "zone-a",
                "capacity_type": "on-demand",
                "count": machines // 2,
                "price_per_hour": 0.2,
                "resources": {"cpu": "1"},
            }
            for kind in ("bought", "idle")
        ]
        bound = [_binding(row) for number in range(serving) for row in rows_of(f"load-{number}", rows)]
        preseed: list[dict[str, Any]] = [{"offering": "idle", "idle": machines // 2}]
        if bound:
            offerings.append({**offerings[0], "instance_type": SERVED, "count": len(bound)})
            preseed.append({"offering": SERVED, "bound": bound})
        (folder / "offerings.json").write_text(json.dumps(offerings))
        (folder / "preseed.json").write_text(json.dumps(preseed))
        log = (folder / "provider.log").open("wb")
        knobs = [f"latency.{step}={latency}" for step in ("create", "configure", "drain", "delete")]
        provider = subprocess.Popen(  # noqa: S603  # our own modules
            [
                sys.executable, "-m", "bigfleet_providerkit.fake", "--addr", address,
                "--metrics-addr", f"127.0.0.1:{ports[1]}", "--max-concurrent", "1000",
                "--offerings", str(folder / "offerings.json"), "--preseed", str(folder / "preseed.json"),
                *(part for knob in knobs for part in ("--knob", knob)),
            ],
            stdout=log, stderr=log,
        )  # fmt: skip
        _wait_for(ports[1], provider, folder / "provider.log")
        shard_log = (folder / "shard.log").open("wb")
        child = subprocess.Popen(  # noqa: S603  # our own modules
            [
                sys.executable, "-m", "bench.shard_child", *(["--full"] if full else []),
                str(folder / "child.json"), "shard",
                "--listen", f"127.0.0.1:{ports[2]}", "--metrics-addr", f"127.0.0.1:{ports[3]}",
                "--provider-addr", address, "--data-dir", str(folder / "data"),
                "--audit-log", str(folder / "audit.jsonl"), "--log-level", "warn", *flags,
            ],
            stdout=shard_log, stderr=shard_log,
        )  # fmt: skip
        shard = Shard(folder, f"127.0.0.1:{ports[2]}", f"127.0.0.1:{ports[3]}", child, provider)
        try:
            _wait_for(ports[3], child, folder / "shard.log")
            _wait_until_ready(shard)
            yield shard
        finally:
            for process in (child, provider):
                process.terminate()
            for process in (child, provider):
                try:
                    process.wait(20)
                except subprocess.TimeoutExpired:
                    process.kill()
            log.close()
            shard_log.close()


# The load


@dataclass(slots=True)
class Load:
    """Operators of this process, and the demand they send."""

    operators: list[ScriptedOperator] = field(default_factory=list)
    tasks: list["asyncio.Task[None]"] = field(default_factory=list)
    channels: list[aio.Channel] = field(default_factory=list)
    hello: int = 0

    def acks(self) -> list[float]:
        return [seconds for operator in self.operators for seconds in operator.tally.ack_seconds]

    def rollups(self) -> int:
        return sum(operator.tally.rollups for operator in self.operators)

    def forget(self) -> None:
        for operator in self.operators:
            operator.tally.ack_seconds.clear()
            operator.tally.rollups = 0


@contextlib.asynccontextmanager
async def sessions(shard: Shard, count: int, mode: str, interval: float, rows: int = ROWS) -> Any:
    """So many operators with as many rows each, all connected."""
    load = Load()

    def heard(frame: Frame) -> None:
        if isinstance(frame, HelloAck):
            load.hello += 1

    load.channels = [dial(shard.address, None) for _ in range(min(CHANNELS, count))]
    for number in range(count):
        operator = ScriptedOperator(
            f"load-{number}",
            _demand(f"load-{number}", mode, rows),
            rollup_interval=interval,
            keep_acks=True,
            heard=heard,
        )
        load.operators.append(operator)
        load.tasks.append(asyncio.create_task(operator.run(load.channels[number % len(load.channels)])))
    try:
        await until(lambda: load.hello >= count, 300)
        yield load
    finally:
        for task in load.tasks:
            task.cancel()
        await asyncio.gather(*load.tasks, return_exceptions=True)
        for channel in load.channels:
            await channel.close()


def _demand(cluster: str, mode: str, rows: int = ROWS) -> Callable[[float], Sequence[Need]]:
    """Rows that one machine each covers, however they change, so that the load is sessions and roll-ups and
    nothing else; or rows for machines that do not exist (``unmet``)."""
    turn = 0
    base = rows_of(cluster, rows, ABSENT if mode == "unmet" else SERVED)

    def demand(_: float) -> Sequence[Need]:
        nonlocal turn
        turn += 1
        if mode == "unchanged":
            return base
        if mode == "all":
            # A Profile is new if it would take a type that it would not before.
            return rows_of(cluster, rows, SERVED, f"{turn}-{cluster}")
        if mode == "few":
            # Two rows in a hundred change each minute of six roll-ups: one in a hundred is another once, and
            # then as it was.
            changed = {(turn // 6 * 7 + n) % rows for n in range(-(-rows // 100))} if turn % 6 == 0 else {}
            return [moved(row, turn) if n in changed else row for n, row in enumerate(base)]
        return [*(moved(row, turn) for row in base[:3]), *base[3:]]

    return demand


def rows_of(cluster: str, rows: int, *kinds: str) -> list[Need]:
    found = []
    for number in range(rows):
        requirement = Requirement(INSTANCE_TYPE_KEY, Operator.IN, kinds or (SERVED,))
        found.append(Need(cluster, Profile((requirement,), priority=number), SOME * 5, SOME))
    return found


def moved(row: Need, turn: int) -> Need:
    return replace(row, aggregate=SOME * (turn % 7 + 2))


def _binding(row: Need) -> dict[str, Any]:
    """A machine that serves a row, as the provider has it."""
    profile = row.profile
    return {
        "cluster": row.cluster_id,
        "metadata": encode_assignment(profile.priority, 0.0, 0.0, profile.fingerprint, ""),
    }


async def until(condition: Callable[[], bool], limit_s: float) -> None:
    deadline = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() > deadline:
            raise harness.WrongAnswerError("what was waited for did not happen")
        await asyncio.sleep(0.02)


async def gauge(shard: Shard, name: str) -> float:
    text = await asyncio.to_thread(_scrape, shard.http)
    line = next(line for line in text.splitlines() if line.startswith(name))
    return float(line.rsplit(" ", 1)[1])


def _scrape(address: str) -> str:
    import urllib.request

    with urllib.request.urlopen(f"http://{address}/metrics", timeout=30) as answer:
        text: str = answer.read().decode()
        return text


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _wait_for(port: int, process: "subprocess.Popen[bytes]", log: Path) -> None:
    deadline = time.monotonic() + 300
    while True:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        if process.poll() is not None or time.monotonic() > deadline:
            raise harness.WrongAnswerError(f"a process did not start:\n{log.read_text()[-2000:]}")
        time.sleep(0.05)


def _wait_until_ready(shard: Shard) -> None:
    import urllib.error
    import urllib.request

    deadline = time.monotonic() + 300
    while time.monotonic() < deadline:
        with (
            contextlib.suppress(urllib.error.URLError, ConnectionError),
            urllib.request.urlopen(f"http://{shard.http}/readyz", timeout=10) as answer,
        ):
            if answer.status == 200:
                return
        time.sleep(0.1)
    raise harness.WrongAnswerError("the shard never became ready")
