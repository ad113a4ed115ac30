"""The fake as a backend of the kit: the same substrate, on the real clock."""

import argparse
import asyncio
import json
import secrets
import time
from collections import deque
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

from bigfleet_providerkit.backend import (
    Backend,
    CleanupResult,
    DiscoveredHost,
    Host,
    HostStatus,
    Interruption,
    MachineView,
    Offering,
    Operation,
    PriceUpdate,
)
from bigfleet_providerkit.fake.knobs import Knobs, read_knobs, read_preseed
from bigfleet_providerkit.fake.substrate import Substrate
from bigfleet_providerkit.work import NANOS

_POLL_S: Final = 0.02
T = TypeVar("T")


class FakeBackend(Backend):
    """A provider without machines, for tests and trials."""

    name = "fake"
    readiness = "probe"

    def __init__(self, knobs: Knobs | None = None, offerings: Sequence[Offering] = ()) -> None:
        # A process that starts again on its store finds the hosts of its predecessor.
        self.substrate = Substrate(knobs or Knobs(), secrets.token_hex(4))
        if offerings:
            self.substrate.offer(offerings, time.monotonic_ns())

    @classmethod
    def add_options(cls, parser: argparse.ArgumentParser) -> None:
        add = parser.add_argument
        add("--knob", action="append", metavar="NAME=VALUE", default=[], help="how it behaves; repeatable")
        add("--preseed", metavar="FILE", default="", help="JSON array of machines that exist already")

    @classmethod
    def from_options(cls, options: argparse.Namespace) -> "FakeBackend":
        try:
            document = json.loads(Path(options.preseed).read_bytes()) if options.preseed else []
        except OSError as error:
            raise ValueError(f"cannot read {options.preseed} (--preseed): {error.strerror}") from error
        except (ValueError, RecursionError) as error:
            raise ValueError(f"{options.preseed} (--preseed) is not JSON: {error}") from error
        return cls(read_knobs(options.knob, read_preseed(document)))

    async def offerings(self) -> Sequence[Offering]:
        if not self.substrate.offerings:
            self.substrate.offer(self.standard_offerings, time.monotonic_ns())
        offerings: Sequence[Offering] = await self._run("offerings")
        return offerings

    async def discover(self) -> Sequence[DiscoveredHost]:
        hosts: Sequence[DiscoveredHost] = await self._run("discover")
        return hosts

    async def create(self, op: Operation) -> Host:
        host: Host = await self._run("create", op)
        return host

    async def configure(self, op: Operation) -> None:
        await self._run("configure", op)

    async def node_ready(self, op: Operation) -> bool:
        return bool(await self._run("node_ready", op))

    async def drain(self, op: Operation) -> None:
        await self._run("drain", op)

    async def delete(self, op: Operation) -> None:
        await self._run("delete", op)

    async def inspect(self, machine: MachineView) -> HostStatus:
        status: HostStatus = await self._run("inspect", machine)
        return status

    async def cleanup(self, machine: MachineView, failed_kind: str) -> CleanupResult:
        result: CleanupResult = await self._run("cleanup", machine, failed_kind)
        return result

    async def prices(self) -> AsyncIterator[PriceUpdate]:
        if self.substrate.knobs.price_walk:
            async for update in self._feed(self.substrate.price_updates):
                yield update

    async def interruptions(self) -> AsyncIterator[Interruption]:
        if self.substrate.knobs.spot_hazard:
            async for notice in self._feed(self.substrate.interruptions):
                yield notice

    async def _feed(self, queue: deque[T]) -> AsyncIterator[T]:
        while True:
            self.substrate.tick(time.monotonic_ns())
            while queue:
                yield queue.popleft()
            await asyncio.sleep(_POLL_S)

    async def _run(self, method: str, argument: Any = None, failed_kind: str = "") -> Any:
        step = self.substrate.begin(method, argument, failed_kind, time.monotonic_ns())
        changed = asyncio.Event()
        step.changed = changed.set
        try:
            while step.at is None or step.at > time.monotonic_ns():
                pause = None if step.at is None else (step.at - time.monotonic_ns()) / NANOS
                changed.clear()
                try:
                    async with asyncio.timeout(pause):
                        await changed.wait()
                except TimeoutError:
                    pass
                except asyncio.CancelledError:
                    step.cancel(time.monotonic_ns())
                    # It goes on, so the request to end is settled. Python 3.11.2 ends no timeout by itself
                    # while one is not, and this would go on for ever.
                    if (task := asyncio.current_task()) is not None:
                        task.uncancel()
            return step.end(time.monotonic_ns())
        finally:
            self.substrate.ended(step)
