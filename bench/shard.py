"""A shard process under load: sessions, roll-ups, machines (shard.md §2–§8, the bars of the project).

The shard is a process of its own; this one plays operators over the real wire, and a fake provider runs as a
third. Figures come from the operators' own clocks, from the shard's audit log, and from ``shard_child``.
"""

import argparse
import asyncio
import json
import math
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from pathlib import Path
from typing import Any

from grpc import aio

from bench import harness
from bench.shard_load import ROWS, UNIT, Load, Shard, gauge, moved, rows_of, running, sessions, until
from bigfleet.scale.operators import ScriptedOperator
from bigfleet_base.model import Need, Operator, Profile, Requirement
from bigfleet_base.model.requirement import INSTANCE_TYPE_KEY
from bigfleet_base.wire import dial
from bigfleet_base.wire.rollups import encode_rollup_message


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
    base = rows_of(cluster, ROWS)
    return [*(moved(row, turn) for row in base[:3]), *base[3:]]


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
        age = time.time() - await gauge(shard, "bigfleet_shard_last_cycle_timestamp_seconds")
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
        await until(
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
    """A long run: memory, open files and tasks must not grow once everything that is kept is full: 1,500 new
    Profiles a second fill what the matcher keeps in 40 seconds."""
    with running(2_000, "--cycle-interval", "2s", serving=200) as shard:
        async with sessions(shard, 200, "all", 2.0):
            await asyncio.sleep(min(90, 60 * minutes))
            files, tasks = shard.files(), await gauge(shard, "bigfleet_process_tasks")
            sizes = [shard.rss() / 2**20]
            for _ in range(max(1, round(minutes * 6))):
                await asyncio.sleep(10)
                sizes.append(shard.rss() / 2**20)
            files_after = shard.files()
            tasks_after = await gauge(shard, "bigfleet_process_tasks")
    return harness.Result(
        "flat",
        {
            "rss_slope_mb_per_min": 6 * statistics.linear_regression(range(len(sizes)), sizes).slope,
            "rss_most_mb": max(sizes),
            "files_grown": files_after - files,
            "tasks_grown": tasks_after - tasks,
        },
        {"minutes": round(minutes)},
        1,
    )


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--small", action="store_true", help="every measurement, at a size of seconds")
    parser.add_argument("--only", action="append", help="shapes whose name begins so; repeatable")
    parser.add_argument(
        "--tries", type=harness.count, default=30, help="roll-ups of each kind whose first call is timed (30)"
    )
    parser.add_argument("--check", action="store_true", help="fail when dearer than the baseline")
    parser.add_argument("--minutes", type=float, default=10, help="of the long run (10)")
    parser.add_argument("--one", metavar="NAME", help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if not 0 < options.minutes < math.inf:
        parser.error(f"--minutes {options.minutes:g}: a run lasts some time, and ends")
    plan = _plan(options.small, options.minutes, options.tries)
    if options.one:
        result = asyncio.run(dict(plan)[options.one]())
        print(json.dumps(result.as_json()))
        return 0
    names = [name for name, _ in plan]
    for prefix in options.only or ():
        if not any(name.startswith(prefix) for name in names):
            parser.error(f"--only {prefix}: no shape begins so; there are {', '.join(names)}")
    calibration = harness.calibrate()
    results = []
    for name in names:
        if options.only and not name.startswith(tuple(options.only)):
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


if __name__ == "__main__":
    sys.exit(main())
