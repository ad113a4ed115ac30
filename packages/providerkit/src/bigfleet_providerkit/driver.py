"""Runs the core: events in batches, each batch durable before anything of it leaves the process.

While a batch is being written the next one gathers, so the number of disk flushes depends on their duration
and not on the number of calls (group commit).
"""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from bigfleet_providerkit.core import Core
from bigfleet_providerkit.effects import Answer, Call, Cancel, Code, Event, Invoke, Outcome, Report
from bigfleet_providerkit.store import Store
from bigfleet_providerkit.work import NANOS

MAX_BATCH: Final = 512
MAX_WAITING: Final = 10_000
"""Calls waiting for the store; beyond it callers are told to come back."""
FAILURES_TO_NOT_READY: Final = 3
_RETRY_S: Final = (0.05, 5.0)
_CROWD: Final = 8
_GATHER_S: Final = 0.005
"""What a batch costs is mostly its flush: with this many callers it pays to wait this long for more."""


class Driver:
    """The loop around a core. ``invoke`` and ``cancel`` start and stop backend calls."""

    def __init__(
        self,
        core: Core,
        store: Store,
        clock: Callable[[], int],
        invoke: Callable[[Invoke], None],
        cancel: Callable[[int], None],
        report: Callable[[Report], None],
        wrote: Callable[[float, Exception | None], None],
    ) -> None:
        self._core = core
        self._store = store
        self._clock = clock
        self._invoke = invoke
        self._cancel = cancel
        self._report = report
        self._wrote = wrote
        self._events: list[Event] = []
        self._waiting: dict[int, asyncio.Future[Answer]] = {}
        self._numbers = 0
        self._wake = asyncio.Event()
        self._stopping = False
        self._failures = 0
        self._retry_at = 0
        # One thread: transactions are written one after the other.
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="store")

    @property
    def store_works(self) -> bool:
        """False after repeated failures, until a write succeeds."""
        return self._failures < FAILURES_TO_NOT_READY

    def next_number(self) -> int:
        """The number of the next call."""
        self._numbers += 1
        return self._numbers

    async def call(self, call: Call) -> Answer:
        """The answer to a call, once what it says is durable."""
        if self._stopping or len(self._waiting) >= MAX_WAITING:
            reason = "is shutting down" if self._stopping else f"has {MAX_WAITING} calls waiting"
            return Answer(call.number, Code.UNAVAILABLE, f"the provider {reason}; try again")
        answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._waiting[call.number] = answer
        self.deliver(call)
        return await answer

    def deliver(self, event: Event) -> None:
        """Take in an event."""
        self._events.append(event)
        self._wake.set()

    def refuse(self) -> None:
        """Take no further calls; those already taken are answered."""
        self._stopping = True

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await self._due()
            batch, self._events = self._events[:MAX_BATCH], self._events[MAX_BATCH:]
            await self._step(batch)

    async def drained(self) -> None:
        """Return when every call that was taken has its answer."""
        if self._waiting:
            await asyncio.wait(list(self._waiting.values()))

    def close(self) -> None:
        self._writer.shutdown(wait=True)

    async def _due(self) -> None:
        """Return when the core has something to do."""
        self._wake.clear()
        if self._events:
            # Still a turn for everyone else: a full queue must not starve reads.
            await self._gather()
            return
        deadline = self._core.next_deadline()
        if deadline is None:
            await self._wake.wait()
            await self._gather()
            return
        pause = (max(deadline, self._retry_at) - self._clock()) / NANOS
        if pause <= 0:
            await asyncio.sleep(0)
            return
        try:
            async with asyncio.timeout(pause):
                await self._wake.wait()
            await self._gather()
        except TimeoutError:
            pass

    async def _gather(self) -> None:
        """Let a batch fill while others are about to call; a lone caller waits for nobody."""
        crowded = len(self._waiting) >= _CROWD and len(self._events) < MAX_BATCH
        await asyncio.sleep(_GATHER_S if crowded else 0)

    async def _step(self, batch: Sequence[Event]) -> None:
        loop = asyncio.get_running_loop()
        writes = self._core.step(batch, self._clock())
        if not writes:
            self._perform(self._core.commit())
            return
        started = loop.time()
        try:
            # Shielded: a shutdown must not leave core and store in disagreement over a batch.
            await asyncio.shield(loop.run_in_executor(self._writer, self._store.write, writes))
        except Exception as error:
            self._failures += 1
            first, last = _RETRY_S
            pause = min(last, first * 2 ** min(self._failures, 16))
            self._retry_at = self._clock() + round(pause * NANOS)
            self._wrote(loop.time() - started, error)
            self._perform(self._core.rollback())
        else:
            self._failures = 0
            self._retry_at = 0
            self._wrote(loop.time() - started, None)
            self._perform(self._core.commit())

    def _perform(self, outcome: Outcome) -> None:
        for effect in outcome.effects:
            match effect:
                case Answer():
                    waiting = self._waiting.pop(effect.number, None)
                    if waiting is not None and not waiting.done():
                        waiting.set_result(effect)
                case Invoke():
                    self._invoke(effect)
                case Cancel():
                    self._cancel(effect.call)
        for report in outcome.reports:
            self._report(report)
