"""The provider kit under load, and the shard's client in front of it (provider.md §12.3, §16).

A provider process with a store on disk and a backend that does nothing. Calls come from a plain stub; lists
are read by the shard's own client, validated to the last record, and handed to a core that only counts.
Lists take the clock's time, since two processes share the work; ``…_cpu_…`` is the client's processor time,
which a busy machine blurs less.
"""

import argparse
import asyncio
import gc
import io
import os
import subprocess
import sys
import tempfile
import time
import tracemalloc
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from grpc import aio

from bench import harness
from bigfleet.shard.provider import Fence
from bigfleet.shard.provider.client import ProviderClient
from bigfleet.shard.provider.endpoints import Endpoint
from bigfleet.shard.provider.listing import ListSlice
from bigfleet_base.api.v1alpha1 import provider_pb2 as pb
from bigfleet_base.api.v1alpha1 import provider_pb2_grpc as grpc_stubs
from bigfleet_base.telemetry import Logs, Metrics, Role
from bigfleet_base.wire import dial
from bigfleet_providerkit import Backend, Host, Operation, run_provider

SIZES: Final = (10_000, 100_000)
IN_FLIGHT: Final = (64, 500)
CALLS: Final = 6_000
CHANGED: Final = 0.01


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
        "--size",
        type=harness.count,
        action="append",
        metavar="N",
        help=f"machines, at least {CALLS}; repeatable (default 10000, 100000)",
    )
    parser.add_argument("--repeat", type=harness.count, default=5, help="lists of each size, the best counts")
    parser.add_argument("--check", action="store_true", help="fail when dearer than the baseline")
    options = parser.parse_args(argv)
    if min(options.size or SIZES) < CALLS:
        parser.error(f"--size: the calls take {CALLS} machines, one after the other")
    calibration = harness.calibrate()
    results = [asyncio.run(_measure(size, options.repeat)) for size in options.size or SIZES]
    document = harness.report("provider", results, calibration)
    names = sorted({name for result in results for name in result.metrics})
    rows = [[result.name, *(f"{result.metrics[name]:,.2f}" for name in names)] for result in results]
    print(harness.table(["shape", *names], rows))
    return 1 if harness.is_dearer(document, "provider") and options.check else 0


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
                return await _with(process.pid, channel, address, state, size, repeat)
        finally:
            process.terminate()
            process.wait()


async def _with(
    pid: int, channel: aio.Channel, address: str, state: Path, size: int, repeat: int
) -> harness.Result:
    client: Any = grpc_stubs.CapacityProviderStub(channel)
    await asyncio.wait_for(channel.channel_ready(), 120)
    machines, metrics = await _full_lists(client, address, size, repeat)
    metrics |= await _reads_during_lists(pid, address, machines[0], repeat)
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
    changed = round(size * CHANGED)
    async with _shard(address, incremental=True) as shard:
        await shard.list(size)
        deltas = []
        for start in range(done, done + repeat * changed, changed):
            await _load(create, machines[start : start + changed], 64, sequence)
            sequence += changed
            await _settled(client, pb.MACHINE_STATE_IDLE, start + changed - done)
            deltas.append(await shard.list(changed, is_delta=True))
    metrics["delta_list_s"] = min(delta.seconds for delta in deltas)
    metrics["delta_list_cpu_s"] = min(delta.cpu_seconds for delta in deltas)
    metrics["calls_per_s"] = metrics[f"calls_per_s_{IN_FLIGHT[-1]}"]
    metrics["bytes_per_machine"] = _resident(pid) / size
    metrics["store_bytes_per_machine"] = (
        sum(path.stat().st_size for path in state.parent.glob("provider.db*")) / size
    )
    counts = {"machines": size, "calls": 2 * CALLS, "changed": changed}
    return harness.Result(f"provider-{size // 1000}k", metrics, counts, repeat)


async def _full_lists(
    client: Any, address: str, size: int, repeat: int
) -> tuple[list[str], dict[str, float]]:
    """The ids, and what it costs a shard that knows nothing yet to list them all."""
    whole = await client.List(pb.ListFilter())
    lists = []
    for _ in range(repeat):
        async with _shard(address) as shard:
            lists.append(await shard.list(size))
    async with _shard(address) as shard:
        tracemalloc.start()
        await shard.list(size)
        gc.collect()
        kept, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        again = [await shard.list(0, size) for _ in range(repeat)]
    return [machine.id for machine in whole.machines], {
        "list_s": min(run.seconds for run in lists),
        "list_cpu_s": min(run.cpu_seconds for run in lists),
        "list_mb": whole.ByteSize() / 1e6,
        "unchanged_list_s": min(run.seconds for run in again),
        "stall_ms": min(run.stall_ms for run in lists),
        "stall_cpu_ms": max(run.stall_cpu_ms for run in lists),
        "client_bytes_per_machine": kept / size,
    }


@dataclass(frozen=True, slots=True)
class _Listed:
    """One List, as the shard's event loop saw it."""

    seconds: float
    cpu_seconds: float
    stall_ms: float
    """The longest turn of the loop."""
    stall_cpu_ms: float
    """The same without the time that other processes took."""


class _Shard:
    """The shard's client, and a core that counts what it is told."""

    def __init__(self, client: ProviderClient) -> None:
        self._client = client
        self._longest = self._longest_cpu = 0

    async def list(self, news: int, records: int | None = None, *, is_delta: bool = False) -> _Listed:
        """List, and insist on this much news out of this many records (as many, if not said)."""
        told = 0

        async def count(part: ListSlice) -> None:
            nonlocal told
            told += len(part.changed)

        gc.collect()
        gc.freeze()
        turns = asyncio.create_task(self._watch())
        started, used = time.perf_counter(), time.process_time()
        end = await self._client.list(count)
        seconds, cpu = time.perf_counter() - started, time.process_time() - used
        turns.cancel()
        gc.unfreeze()
        if (told, end.records, end.complete) != (news, news if records is None else records, not is_delta):
            raise harness.WrongAnswerError(f"a List told {told} news of {end.records}, expected {news}")
        return _Listed(seconds, cpu, self._longest / 1e6, self._longest_cpu / 1e6)

    async def _watch(self) -> None:
        longest = longest_cpu = 0
        last, last_cpu = time.perf_counter_ns(), time.thread_time_ns()
        while True:
            # Asleep for a moment, since a watch that always runs would slow down what it watches.
            await asyncio.sleep(0.001)
            now, now_cpu = time.perf_counter_ns(), time.thread_time_ns()
            self._longest = longest = max(longest, now - last)
            self._longest_cpu = longest_cpu = max(longest_cpu, now_cpu - last_cpu)
            last, last_cpu = now, now_cpu


@asynccontextmanager
async def _shard(address: str, *, incremental: bool = False) -> AsyncIterator[_Shard]:
    client = ProviderClient(
        Endpoint("bench", address),
        Fence("s", 1),
        None,
        Metrics(Role.SHARD),
        Logs(io.BytesIO()).logger("shard", shard_id="s", shard_epoch=1),
        incremental=incremental,
    )
    try:
        await client.describe()
        yield _Shard(client)
    finally:
        await client.close()


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


async def _reads_during_lists(pid: int, address: str, machine: str, repeat: int) -> dict[str, float]:
    """What a List costs the provider, and how long others wait for a Get meanwhile."""
    async with dial(address, None) as lists, dial(address, None) as gets:
        # Bytes as they come: what a client makes of them must not be counted here.
        method: Any = lists.unary_unary("/bigfleet.v1alpha1.CapacityProvider/List")
        client: Any = grpc_stubs.CapacityProviderStub(gets)
        await client.Get(pb.MachineRef(id=machine))
        longest: list[float] = []
        used = _cpu_seconds(pid)
        for _ in range(repeat):
            listing = asyncio.ensure_future(method(b""))
            waits = [0.0]
            while not listing.done():
                started = time.perf_counter()
                await client.Get(pb.MachineRef(id=machine))
                waits.append(time.perf_counter() - started)
            await listing
            longest.append(max(waits))
    return {
        "list_provider_cpu_s": (_cpu_seconds(pid) - used) / repeat,
        "get_ms_during_list": min(longest) * 1000,
    }


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
