"""A shard that tells how long its loop stood still: ``python -m bench.shard_child [--full] FILE shard …``.

With ``--full`` every cycle looks at everything. Every 5 ms a task asks for its turn; how late it gets it is
the stall. SIGUSR2 writes the worst since the last time to FILE, with the processor time used and what each
cycle since then took.
"""

import asyncio
import json
import os
import signal
import sys
import time
from collections.abc import Generator
from pathlib import Path

from bigfleet.cli.bigfleet import main
from bigfleet.engine.cycle import CycleInputs, CycleResult, Engine
from bigfleet.shard.core.core import ShardCore
from bigfleet.shard.core.events import CycleFinished
from bigfleet.shard.shell import process

EVERY_S = 0.005
_cycles_ms: list[float] = []


async def _watch(path: Path) -> None:
    worst = 0.0

    def tell() -> None:
        nonlocal worst
        used = os.times()
        measured = {"stall_ms": worst * 1000, "cpu_s": used.user + used.system, "cycles_ms": _cycles_ms}
        draft = path.with_suffix(".draft")
        draft.write_text(json.dumps(measured))
        draft.replace(path)
        worst = 0.0
        _cycles_ms.clear()

    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR2, tell)
    while True:
        asked = time.perf_counter()
        await asyncio.sleep(EVERY_S)
        worst = max(worst, time.perf_counter() - asked - EVERY_S)


def _time_cycles() -> None:
    finish = ShardCore._finish_cycle

    def timed(self: ShardCore, event: CycleFinished) -> None:
        _cycles_ms.append(event.total_ns / 1e6)
        finish(self, event)

    ShardCore._finish_cycle = timed  # type: ignore[method-assign]  # a benchmark looks inside


def _look_at_everything() -> None:
    cycle = Engine.cycle

    def full(self: Engine, inputs: CycleInputs, slice_rows: int = 1000) -> Generator[str, None, CycleResult]:
        self.start_over()
        return cycle(self, inputs, slice_rows)

    Engine.cycle = full  # type: ignore[method-assign]  # what nobody wants but a benchmark


def _run(path: Path, argv: list[str]) -> int:
    start = process.ShardProcess.start

    async def watched(self: process.ShardProcess) -> None:
        await start(self)
        self._begin(_watch(path))

    _time_cycles()
    process.ShardProcess.start = watched  # type: ignore[method-assign]  # a benchmark looks inside
    return main(argv)


if __name__ == "__main__":
    _, *arguments = sys.argv
    if arguments[0] == "--full":
        arguments.pop(0)
        _look_at_everything()
    sys.exit(_run(Path(arguments[0]), arguments[1:]))
