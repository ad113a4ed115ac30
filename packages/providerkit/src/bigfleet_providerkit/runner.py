"""Calls the backend: coroutines on the loop, plain methods in threads, and feeds as they come."""

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

from bigfleet_providerkit.backend import Backend, overrides
from bigfleet_providerkit.effects import Event, Invoke, Noticed, Returned

_FEEDS: Final = ("prices", "interruptions")
_FEED_PAUSE_S: Final = (1.0, 300.0)


class Runner:
    """Turns Invoke into Returned. Whatever a backend raises or returns is handed on as it is."""

    def __init__(
        self,
        backend: Backend,
        deliver: Callable[[Event], None],
        observe: Callable[[str, str, float], None],
        feed_failed: Callable[[str, BaseException], None],
        threads: int,
    ) -> None:
        self._backend = backend
        self._deliver = deliver
        self._observe = observe
        self._feed_failed = feed_failed
        # A hung thread cannot be ended, so the pool has room for as many more as may run at once.
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="backend")
        self._calls: dict[int, asyncio.Task[None]] = {}
        self._blocking: set[int] = set()
        self._feeds: list[asyncio.Task[None]] = []

    def start_feeds(self) -> None:
        """Begin to listen to what the backend has to say of prices and interruptions."""
        for feed in _FEEDS:
            if overrides(self._backend, feed):
                self._feeds.append(asyncio.get_running_loop().create_task(self._listen(feed)))

    def invoke(self, invoke: Invoke) -> None:
        task = asyncio.get_running_loop().create_task(self._call(invoke))
        self._calls[invoke.call] = task
        task.add_done_callback(lambda _: self._calls.pop(invoke.call, None))

    def cancel(self, call: int) -> None:
        """Cancel a coroutine; a thread runs on, and its end is reported when it comes."""
        task = self._calls.get(call)
        if task is not None and call not in self._blocking:
            task.cancel()

    async def finish(self, seconds: float) -> None:
        """Let calls under way come to their end."""
        if self._calls:
            await asyncio.wait(list(self._calls.values()), timeout=seconds)

    async def stop(self) -> None:
        """Cancel what is left, and report nothing of it: the store has what a restart needs."""
        self._deliver = _ignore
        tasks = [*self._calls.values(), *self._feeds]
        for task in tasks:
            task.cancel()
        # A coroutine may refuse to be cancelled; it ends with the process.
        if tasks:
            await asyncio.wait(tasks, timeout=1)
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _call(self, invoke: Invoke) -> None:
        loop = asyncio.get_running_loop()
        started = loop.time()
        arguments: tuple[Any, ...] = () if invoke.argument is None else (invoke.argument,)
        if invoke.method == "cleanup":
            arguments += (invoke.failed_kind,)
        method = getattr(self._backend, invoke.method)
        returned = Returned(invoke.call)
        try:
            if inspect.iscoroutinefunction(method):
                value = await method(*arguments)
            else:
                self._blocking.add(invoke.call)
                value = await loop.run_in_executor(self._threads, method, *arguments)
            returned = Returned(invoke.call, value=value)
        except asyncio.CancelledError as error:
            returned = Returned(invoke.call, error=error)
        except Exception as error:
            returned = Returned(invoke.call, error=error)
        finally:
            self._blocking.discard(invoke.call)
        outcome = "ok" if returned.error is None else type(returned.error).__name__
        self._observe(invoke.method, outcome, loop.time() - started)
        self._deliver(returned)

    async def _listen(self, feed: str) -> None:
        first, last = _FEED_PAUSE_S
        pause = first
        while True:
            try:
                notices: AsyncIterator[Any] = getattr(self._backend, feed)()
                async for notice in notices:
                    self._deliver(Noticed(notice))
                    pause = first
                return
            except Exception as error:
                self._feed_failed(feed, error)
            await asyncio.sleep(pause)
            pause = min(last, pause * 2)


def _ignore(_event: Event) -> None:
    """After the end."""
