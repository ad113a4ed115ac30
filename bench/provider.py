"""The provider kit under load: durable calls, lists, deltas, memory (provider.md §12.3).

A provider process with a store on disk and a backend that does nothing; a client that validates what it
reads as a shard does.
"""

import argparse
import asyncio
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, Final

from grpc import aio

from bench import harness
from bigfleet_base.api.v1alpha1 import provider_pb2 as pb
from bigfleet_base.api.v1alpha1 import provider_pb2_grpc as grpc_stubs
from bigfleet_base.wire import decode_machine, dial
from bigfleet_providerkit import Backend, Host, Operation, run_provider

SIZES: Final = (10_000, 100_000)
IN_FLIGHT: Final = (64, 500)
CALLS: Final = 6_000
CHANGED: Final = 0.01
SLICE: Final = 250
"""Records validated before the client's loop gets a turn (design.md §5, trap 3)."""


class Nothing(Backend):
    """A substrate on which everything succeeds at once."""

    name = "bench"
    readiness = "actuator-blocks"

    async def create(self, op: Operation) -> Host:
        return Host(f"host-{op.machine.id}")

    async def configure(self, op: Operation) -> None:
        """Done."""

    async def drain(self, op: Operation) -> None:
        """Done."""

    async def delete(self, op: Operation) -> None:
        """Done."""


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--size", type=int, action="append", help="machines; repeatable (default 10000, 100000)"
    )
    parser.add_argument("--repeat", type=int, default=5, help="lists of each size, the best counts")
    parser.add_argument("--check", action="store_true", help="fail when dearer than the baseline")
    options = parser.parse_args(argv)
    calibration = harness.calibrate()
    results = [asyncio.run(_measure(size, options.repeat)) for size in options.size or SIZES]
    document = harness.report("provider", results, calibration)
    names = sorted({name for result in results for name in result.metrics})
    rows = [[result.name, *(f"{result.metrics[name]:,.2f}" for name in names)] for result in results]
    print(harness.table(["shape", *names], rows))
    dearer = [
        change
        for change in harness.compare(document, harness.baseline("provider"))
        if change.ratio > harness.TOLERANCE
    ]
    for change in dearer:
        print(f"{change.shape} {change.metric}: {change.value:,.2f}, baseline {change.baseline:,.2f}")
    return 1 if dearer and options.check else 0


async def _measure(size: int, repeat: int) -> harness.Result:
    harness.progress(f"{size} machines")
    with tempfile.TemporaryDirectory() as folder:
        state = Path(folder) / "provider.db"
        address = f"unix:{folder}/provider.sock"
        process = subprocess.Popen(  # noqa: ASYNC220, S603  # our own program, before anything else runs
            [
                *(sys.executable, "-m", "bench.provider", "serve", "--addr", address, "--metrics-addr", "0"),
                *("--state", str(state), "--seed-count", str(size), "--log-level", "warn"),
                *("--max-concurrent", "1000"),
            ],
            stdout=subprocess.DEVNULL,
        )
        try:
            async with dial(address, None) as channel:
                return await _with(process.pid, channel, state, size, repeat)
        finally:
            process.terminate()
            process.wait()


async def _with(pid: int, channel: aio.Channel, state: Path, size: int, repeat: int) -> harness.Result:
    client: Any = grpc_stubs.CapacityProviderStub(channel)
    await asyncio.wait_for(channel.channel_ready(), 120)
    machines, list_s, list_mb, stall_ms = await _lists(client, repeat)
    if len(machines) != size:
        raise harness.WrongAnswerError(f"{len(machines)} machines listed, expected {size}")
    metrics: dict[str, float] = {"list_s": list_s, "list_mb": list_mb, "stall_ms": stall_ms}
    sequence = 0
    done = 0
    for in_flight in IN_FLIGHT:
        chosen = machines[done : done + CALLS // 2]
        done += len(chosen)

        async def create(machine: str, number: int) -> None:
            await client.Create(
                pb.CreateRequest(machine_id=machine, shard_id="s", shard_epoch=1, sequence_number=number)
            )

        async def configure(machine: str, number: int) -> None:
            await client.Configure(
                pb.ConfigureRequest(
                    machine_id=machine,
                    cluster_id="cluster-1",
                    bootstrap_blob=b"x" * 1_024,
                    shard_metadata={f"bigfleet.lucy.sh/key-{n}": "value" for n in range(5)},
                    shard_id="s",
                    shard_epoch=1,
                    sequence_number=number,
                )
            )

        seconds = 0.0
        used = _cpu_seconds(pid)
        for call, settled in ((create, pb.MACHINE_STATE_IDLE), (configure, pb.MACHINE_STATE_CONFIGURED)):
            seconds += await _load(call, chosen, in_flight, sequence)
            sequence += len(chosen)
            await _settled(client, settled, done if call is configure else len(chosen))
        metrics[f"calls_per_s_{in_flight}"] = 2 * len(chosen) / seconds
        # What a busy machine blurs less: the provider's processor time, the ends of transitions included.
        metrics[f"cpu_us_per_call_{in_flight}"] = (_cpu_seconds(pid) - used) / (2 * len(chosen)) * 1e6
    cursor = (await client.List(pb.ListFilter())).revision
    changed = machines[done : done + round(size * CHANGED)]
    await _load(create, changed, 64, sequence)
    await _settled(client, pb.MACHINE_STATE_IDLE, len(changed))
    delta_s = []
    for _ in range(repeat):
        started = time.perf_counter()
        delta = await client.List(pb.ListFilter(since_revision=cursor))
        for record in delta.machines:
            decode_machine(record)
        delta_s.append(time.perf_counter() - started)
    if len(delta.machines) != len(changed):
        raise harness.WrongAnswerError(f"a delta of {len(delta.machines)}, expected {len(changed)}")
    metrics["calls_per_s"] = metrics[f"calls_per_s_{IN_FLIGHT[-1]}"]
    metrics["delta_list_s"] = min(delta_s)
    metrics["bytes_per_machine"] = _resident(pid) / size
    metrics["store_bytes_per_machine"] = (
        sum(path.stat().st_size for path in state.parent.glob("provider.db*")) / size
    )
    counts = {"machines": size, "calls": 2 * CALLS, "changed": len(changed)}
    return harness.Result(f"provider-{size // 1000}k", metrics, counts, repeat)


async def _lists(client: Any, repeat: int) -> tuple[list[str], float, float, float]:
    """Ids, and the best time of a full List with every record validated, its size, the longest stall."""
    best = float("inf")
    longest = 0.0
    for _ in range(repeat):
        started = time.perf_counter()
        watch = asyncio.create_task(_stalls())
        listed = await client.List(pb.ListFilter())
        ids = []
        for start in range(0, len(listed.machines), SLICE):
            ids += [decode_machine(record).machine.id for record in listed.machines[start : start + SLICE]]
            await asyncio.sleep(0)
        best = min(best, time.perf_counter() - started)
        watch.cancel()
        longest = max(longest, await watch)
    return ids, best, listed.ByteSize() / 1e6, longest


async def _stalls() -> float:
    longest = 0.0
    try:
        while True:
            started = time.perf_counter()
            await asyncio.sleep(0.001)
            longest = max(longest, (time.perf_counter() - started) * 1000 - 1)
    except asyncio.CancelledError:
        return longest


async def _load(
    call: Callable[[str, int], Awaitable[None]], machines: Sequence[str], in_flight: int, sequence: int
) -> float:
    work = iter(enumerate(machines, start=sequence + 1))

    async def worker() -> None:
        for number, machine in work:
            await call(machine, number)

    started = time.perf_counter()
    await asyncio.gather(*(worker() for _ in range(in_flight)))
    return time.perf_counter() - started


async def _settled(client: Any, state: Any, count: int) -> None:
    async with asyncio.timeout(60):
        while len((await client.List(pb.ListFilter(states=[state]))).machines) < count:  # noqa: ASYNC110
            await asyncio.sleep(0.05)  # only a List tells


def _cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _resident(pid: int) -> int:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


if __name__ == "__main__":
    if sys.argv[1:2] == ["serve"]:
        sys.exit(run_provider(Nothing, sys.argv[2:]))
    sys.exit(main())
