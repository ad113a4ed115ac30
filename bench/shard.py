"""A shard process under load: sessions, roll-ups, machines (shard.md §2–§8, the bars of the project).

The shard is a process of its own; this one plays operators over the real wire, and a fake provider runs as a
third. Figures come from the operators' own clocks, from the shard's audit log, and from ``shard_child``.
"""

import argparse
import asyncio
import contextlib
import json
import math
import os
import random
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
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
from bigfleet_base.wire.rollups import encode_rollup_message

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
        bound = [_binding(row) for number in range(serving) for row in _base(f"load-{number}", rows)]
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
        await _until(lambda: load.hello >= count, 300)
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
    base = _base(cluster, rows, ABSENT if mode == "unmet" else SERVED)

    def demand(_: float) -> Sequence[Need]:
        nonlocal turn
        turn += 1
        if mode == "unchanged":
            return base
        if mode == "all":
            # A Profile is new if it would take a type that it would not before.
            return _base(cluster, rows, SERVED, f"{turn}-{cluster}")
        if mode == "few":
            # Two rows in a hundred change each minute of six roll-ups: one in a hundred is another once, and
            # then as it was.
            changed = {(turn // 6 * 7 + n) % rows for n in range(-(-rows // 100))} if turn % 6 == 0 else {}
            return [_moved(row, turn) if n in changed else row for n, row in enumerate(base)]
        return [*(_moved(row, turn) for row in base[:3]), *base[3:]]

    return demand


def _base(cluster: str, rows: int, *kinds: str) -> list[Need]:
    found = []
    for number in range(rows):
        requirement = Requirement(INSTANCE_TYPE_KEY, Operator.IN, kinds or (SERVED,))
        found.append(Need(cluster, Profile((requirement,), priority=number), SOME * 5, SOME))
    return found


def _moved(row: Need, turn: int) -> Need:
    return replace(row, aggregate=SOME * (turn % 7 + 2))


def _binding(row: Need) -> dict[str, Any]:
    """A machine that serves a row, as the provider has it."""
    profile = row.profile
    return {
        "cluster": row.cluster_id,
        "metadata": encode_assignment(profile.priority, 0.0, 0.0, profile.fingerprint, ""),
    }


# The measurements


async def rollups(count: int, mode: str, seconds: float) -> harness.Result:
    """Sessions with a roll-up every ten seconds: the share of a core, and how long acks take."""
    with running(1_000, serving=0 if mode == "unmet" else count) as shard:
        async with sessions(shard, count, mode, 10.0) as load:
            await asyncio.sleep(12)
            load.forget()
            before, began = shard.measure(), time.monotonic()
            await asyncio.sleep(seconds)
            after, took = shard.measure(), time.monotonic() - began
            acks, sent = load.acks(), load.rollups()
    _expect(len(acks) >= 0.8 * sent, f"{len(acks)} acks for {sent} roll-ups")
    return harness.Result(
        f"sessions-{count}-{mode}",
        {
            "cpu_share": (after["cpu_s"] - before["cpu_s"]) / took,
            "rollups_per_s": sent / took,
            "ack_p99_ms": _p99(acks) * 1000,
            "stall_ms": after["stall_ms"],
        },
        {"sessions": count, "rows": ROWS},
        1,
    )


async def saturation(count: int, seconds: float) -> harness.Result:
    """As many changed roll-ups as the shard takes, three of fifteen rows each."""
    with running(1_000, serving=count) as shard:
        async with sessions(shard, count, "three", 10_000.0) as load:
            calls = await _raw_streams(load, count)
            before, began = shard.measure(), time.monotonic()
            acked = await _saturate(calls, seconds)
            after, took = shard.measure(), time.monotonic() - began
    cpu = after["cpu_s"] - before["cpu_s"]
    return harness.Result(
        f"saturation-{count}",
        {"rollups_per_s": acked / took, "cpu_share": cpu / took, "us_per_rollup": 1e6 * cpu / max(1, acked)},
        {"sessions": count},
        1,
    )


async def _raw_streams(load: Load, count: int) -> list["aio.StreamStreamCall[bytes, bytes]"]:
    """Take over the sessions of the load with streams that send as fast as they are acked."""
    from bigfleet.scale.operators import PROTOCOL, SESSION
    from bigfleet_base.wire.session import Hello, encode_operator_message

    for task in load.tasks:
        task.cancel()
    await asyncio.gather(*load.tasks, return_exceptions=True)
    calls = []
    for number in range(count):
        call: aio.StreamStreamCall[bytes, bytes] = load.channels[number % len(load.channels)].stream_stream(
            SESSION
        )()
        await call.write(encode_operator_message(Hello(f"load-{number}", PROTOCOL)))
        calls.append(call)
    return calls


async def _saturate(calls: Sequence["aio.StreamStreamCall[bytes, bytes]"], seconds: float) -> int:
    from bigfleet_base.model.frames import RollupAck
    from bigfleet_base.wire.session import decode_frame

    end = time.monotonic() + seconds
    acked = 0
    # Made before the clock runs: the generator must not be what is measured.
    texts = {
        number: [
            encode_rollup_message(f"load-{number}", _demand_at(f"load-{number}", turn), turn + 1)
            for turn in range(8)
        ]
        for number in range(len(calls))
    }

    async def one(number: int, call: "aio.StreamStreamCall[bytes, bytes]") -> None:
        nonlocal acked
        turn = 0
        while time.monotonic() < end:
            await call.write(texts[number][turn % 8])
            turn += 1
            while True:
                data = await call.read()
                if not isinstance(data, bytes):
                    return
                if isinstance(decode_frame(data), RollupAck):
                    acked += 1
                    break

    await asyncio.gather(*(one(n, call) for n, call in enumerate(calls)))
    for call in calls:
        call.cancel()
    return acked


def _demand_at(cluster: str, turn: int) -> Sequence[Need]:
    base = _base(cluster, ROWS)
    return [*(_moved(row, turn) for row in base[:3]), *base[3:]]


async def first_calls(machines: int, load_sessions: int, tries: int) -> harness.Result:
    """From a roll-up to the first provider call it leads to, by the shard's own audit log."""
    metrics: dict[str, float] = {}
    with running(machines) as shard:
        metrics |= await _first_calls(shard, "lone", tries)
    # A shard that serves clusters waits for all of them before it buys, so they come first.
    with running(machines, serving=load_sessions) as shard:
        async with sessions(shard, load_sessions, "three", 10.0):
            await asyncio.sleep(12)
            metrics |= await _first_calls(shard, "critical", tries)
            metrics |= await _first_calls(shard, "loaded", tries)
    return harness.Result(
        f"first-call-{machines}", metrics, {"machines": machines, "sessions": load_sessions}, tries
    )


async def _first_calls(shard: Shard, name: str, tries: int) -> dict[str, float]:
    waits: dict[str, list[float]] = {"bought": [], "idle": []}
    for number in range(tries):
        for kind in waits:
            cluster = f"{name}-{kind}-{number}"
            priority = 1_000_000 if name == "critical" else 1000
            need = Need(
                cluster,
                Profile((Requirement(INSTANCE_TYPE_KEY, Operator.IN, (kind,)),), priority=priority),
                UNIT,
                UNIT,
            )
            operator = ScriptedOperator(cluster, lambda _, rows=(need,): rows, rollup_interval=3600)  # type: ignore[misc]  # a default binds the loop's value
            channel = dial(shard.address, None)
            if name == "lone":
                await _until_alone(shard)
            task = asyncio.create_task(operator.run(channel))
            waits[kind].append(await _first_call(shard, cluster))
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await channel.close()
            # More than a window between two tries: the second in one would rightly wait for its end.
            await asyncio.sleep(random.uniform(1.1, 2.1))  # noqa: S311  # spreads load
    return {f"rollup_to_call_p99_ms_{name}_{kind}": 1000 * _p99(found) for kind, found in waits.items()}


async def _until_alone(shard: Shard) -> None:
    """A lone roll-up has no other cause for a cycle near it: neither in the second before nor right after."""
    while True:
        age = time.time() - await _gauge(shard, "bigfleet_shard_last_cycle_timestamp_seconds")
        if 1.1 < age < 7:
            return
        await asyncio.sleep(0.1)


async def _first_call(shard: Shard, cluster: str) -> float:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        accepted = emitted = None
        for line in _audit(shard.audit):
            if line.get("cluster") != cluster:
                continue
            if line["type"] == "rollup.accepted":
                accepted = line["t"]
            if line["type"] == "action.emitted":
                emitted = line["t"]
        if accepted is not None and emitted is not None:
            return float(emitted - accepted) / 1e9
        await asyncio.sleep(0.05)
    raise harness.WrongAnswerError(f"{cluster} was never served")


async def actions(count: int, in_flight: int) -> harness.Result:
    """Demand for many machines at once: how many actions are executed in a second."""
    with running(
        2 * count,
        "--execute-concurrency",
        str(in_flight),
        "--cycle-interval",
        "1s",
        latency="uniform(1ms,5ms)",
    ) as shard:
        rows = [
            Need(
                "big",
                Profile((Requirement(INSTANCE_TYPE_KEY, Operator.IN, ("idle",)),), priority=1000),
                UNIT * count,
                UNIT,
            )
        ]
        operator = ScriptedOperator("big", lambda _: rows, rollup_interval=3600)
        channel = dial(shard.address, None)
        before, began = shard.measure(), time.monotonic()
        task = asyncio.create_task(operator.run(channel))
        await _until(
            lambda: sum(state == "Configured" for state in operator.tally.nodes.values()) >= count, 900
        )
        after, took = shard.measure(), time.monotonic() - began
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await channel.close()
        results = [line for line in _audit(shard.audit) if line["type"] == "action.result"]
    _expect(sum(line["outcome"] == "success" for line in results) >= count, "not every action succeeded")
    return harness.Result(
        f"actions-{count}",
        {
            "actions_per_s": count / took,
            "cpu_share": (after["cpu_s"] - before["cpu_s"]) / took,
            "stall_ms": after["stall_ms"],
        },
        {"actions": count, "in_flight": in_flight},
        1,
    )


async def storm(count: int) -> harness.Result:
    """Operators that come back all at once: how long until each holds a session."""
    with running(1_000, serving=count) as shard:
        shard.measure()
        began = time.monotonic()
        async with sessions(shard, count, "unchanged", 10.0):
            took = time.monotonic() - began
        stall = shard.measure()["stall_ms"]
    return harness.Result(
        f"storm-{count}", {"all_connected_s": took, "stall_ms": stall}, {"sessions": count}, 1
    )


async def big(machines: int, seconds: float, rows: int = 240) -> harness.Result:
    """A large inventory at rest, with roll-ups going on: cycles, stalls, memory.

    Every hundredth cycle looks at everything, so the time is long enough for one of them: it is the worst.
    """
    empty = 0
    with running(100) as shard:
        empty = shard.rss()
    with running(machines - 20 * rows, serving=20, rows=rows) as shard:
        async with sessions(shard, 20, "few", 10.0, rows) as load:
            await asyncio.sleep(15)
            load.forget()
            shard.measure()
            await asyncio.sleep(3 * seconds)
            after = shard.measure()
            acks = load.acks()
        size = shard.rss()
    return harness.Result(
        f"machines-{machines}",
        {
            "cycle_p99_ms": _p99(after["cycles_ms"]),
            "cycle_worst_ms": max(after["cycles_ms"]),
            "stall_ms": after["stall_ms"],
            "ack_p99_ms": _p99(acks) * 1000,
            "bytes_per_machine": (size - empty) / machines,
        },
        {"machines": machines, "cycles": len(after["cycles_ms"])},
        1,
    )


async def full_passes(machines: int, count: int, seconds: float, rows: int = 5) -> harness.Result:
    """Cycles that look at everything, one after the other: what roll-ups notice of it."""
    with running(
        machines - count * rows, "--cycle-interval", "1s", serving=count, rows=rows, full=True
    ) as shard:
        async with sessions(shard, count, "three", 10.0, rows) as load:
            await asyncio.sleep(15)
            load.forget()
            before, began = shard.measure(), time.monotonic()
            await asyncio.sleep(seconds)
            after, took = shard.measure(), time.monotonic() - began
            acks = load.acks()
    return harness.Result(
        f"full-passes-{machines}",
        {
            "cpu_share": (after["cpu_s"] - before["cpu_s"]) / took,
            "cycle_p50_ms": statistics.median(after["cycles_ms"]),
            "ack_p99_ms": _p99(acks) * 1000,
            "stall_ms": after["stall_ms"],
        },
        {"machines": machines, "sessions": count, "needs": count * rows},
        1,
    )


async def flat(minutes: float) -> harness.Result:
    """A long run: memory, open files and tasks must not grow."""
    with running(2_000, "--cycle-interval", "2s", serving=200) as shard:
        async with sessions(shard, 200, "all", 2.0):
            await asyncio.sleep(30)
            first, files = shard.rss(), shard.files()
            for _ in range(round(minutes * 6)):
                await asyncio.sleep(10)
            last, files_after = shard.rss(), shard.files()
            tasks = await _gauge(shard, "bigfleet_process_tasks")
    return harness.Result(
        "flat",
        {
            "rss_slope_mb_per_min": (last - first) / 2**20 / minutes,
            "files_grown": files_after - files,
            "tasks": tasks,
        },
        {"minutes": round(minutes)},
        1,
    )


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--small", action="store_true", help="every measurement, at a size of seconds")
    parser.add_argument("--only", action="append", help="shapes whose name begins so; repeatable")
    parser.add_argument(
        "--tries", type=int, default=30, help="roll-ups of each kind whose first call is timed (30)"
    )
    parser.add_argument("--check", action="store_true", help="fail when dearer than the baseline")
    parser.add_argument("--minutes", type=float, default=10, help="of the long run (10)")
    parser.add_argument("--one", metavar="NAME", help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    plan = _plan(options.small, options.minutes, options.tries)
    if options.one:
        result = asyncio.run(dict(plan)[options.one]())
        print(json.dumps(result.as_json()))
        return 0
    calibration = harness.calibrate()
    results = []
    for name, _ in plan:
        if options.only and not any(name.startswith(prefix) for prefix in options.only):
            continue
        harness.progress(f"{name} …")
        results.append(_in_its_own_process(name, argv))
        figures = "  ".join(f"{k} {v:,.2f}" for k, v in results[-1].metrics.items())
        harness.progress(f"{name}: {figures}")
    document = harness.report("shard", results, calibration)
    for result in results:
        print(result.name, "  ".join(f"{name}={value:,.2f}" for name, value in result.metrics.items()))
    return 1 if harness.is_dearer(document, "shard") and options.check else 0


def _in_its_own_process(name: str, argv: Sequence[str] | None) -> harness.Result:
    """gRPC keeps to the first event loop of a process, so each measurement gets a process."""
    done = subprocess.run(  # noqa: S603  # this very module
        [sys.executable, "-m", "bench.shard", *(sys.argv[1:] if argv is None else argv), "--one", name],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return harness.Result(**json.loads(done.stdout.splitlines()[-1]))


Measurement = Callable[[], Coroutine[Any, Any, harness.Result]]


def _plan(small: bool, minutes: float, tries: int) -> list[tuple[str, Measurement]]:
    seconds = 5.0 if small else 60.0
    counts = (20,) if small else (200, 1_000, 3_000)
    plan: list[tuple[str, Measurement]] = [
        (f"sessions-{count}-{mode}", lambda c=count, m=mode: rollups(c, m, seconds))  # type: ignore[misc]  # a default binds the loop's value
        for count in counts
        for mode in ("unchanged", "three", "all")
    ]
    unmet = 20 if small else 1_000
    plan += [
        (f"sessions-{unmet}-unmet", lambda: rollups(unmet, "unmet", seconds)),
        ("saturation", lambda: saturation(20 if small else 1_000, seconds / 2)),
        (
            "first-call",
            lambda: first_calls(200 if small else 10_000, 20 if small else 1_000, 2 if small else tries),
        ),
        ("actions", lambda: actions(200 if small else 10_000, 100)),
        ("storm", lambda: storm(50 if small else 3_000)),
        ("machines", lambda: big(2_000, seconds, rows=24) if small else big(250_000, seconds)),
        (
            "full-passes",
            lambda: full_passes(2_000 if small else 250_000, 20 if small else 1_000, seconds),
        ),
        ("flat", lambda: flat(0.2 if small else minutes)),
    ]
    return plan


def _audit(path: Path) -> Iterator[dict[str, Any]]:
    with path.open("rb") as file:
        for line in file:
            if line.endswith(b"\n"):
                yield json.loads(line)


def _p99(values: Sequence[float]) -> float:
    return sorted(values)[math.ceil(0.99 * len(values)) - 1] if values else float("nan")


def _expect(holds: bool, message: str) -> None:
    if not holds:
        raise harness.WrongAnswerError(message)


async def _until(condition: Callable[[], bool], limit_s: float) -> None:
    deadline = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() > deadline:
            raise harness.WrongAnswerError("what was waited for did not happen")
        await asyncio.sleep(0.02)


async def _gauge(shard: Shard, name: str) -> float:
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


if __name__ == "__main__":
    sys.exit(main())
