"""Calls the backend: coroutines on the loop, plain methods in threads, and feeds as they come."""

import asyncio
import contextlib
import inspect
from collections.abc import AsyncIterator, Callable
from functools import partial
from threading import Thread
from typing import Any, Final

from bigfleet_providerkit.backend import Backend, MachineView, Operation, overrides
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
        # A hung thread cannot be ended, so there is room for as many more as may run at once.
        self._threads = asyncio.Semaphore(threads)
        self._calls: dict[int, asyncio.Task[None]] = {}
        self._under_way: dict[tuple[str, str], asyncio.Task[None]] = {}
        """By method and machine: who hangs is not called again, or each look at a lost host would cost a
        thread, until none was left for anybody."""
        self._blocking: set[int] = set()
        self._given_up: set[int] = set()
        self._methods: dict[str, tuple[Callable[..., Any], bool]] = {}
        """Each method that was called, and whether it is a coroutine's."""
        self._feeds: list[asyncio.Task[None]] = []

    def start_feeds(self) -> None:
        """Begin to listen to what the backend has to say of prices and interruptions."""
        for feed in _FEEDS:
            if overrides(self._backend, feed):
                self._feeds.append(asyncio.get_running_loop().create_task(self._listen(feed)))

    def invoke(self, invoke: Invoke) -> None:
        task = asyncio.get_running_loop().create_task(self._call(invoke))
        self._calls[invoke.call] = task
        task.add_done_callback(partial(self._ended, invoke.call))

    def cancel(self, call: int) -> None:
        """Cancel a coroutine; a thread runs on, and its end is reported when it comes."""
        task = self._calls.get(call)
        if task is not None and call in self._blocking:
            self._given_up.add(call)
        elif task is not None:
            task.cancel()

    async def stop(self) -> None:
        """Cancel what is left, and report nothing of it: the store has what a restart needs."""
        self._deliver = _ignore
        tasks = [*self._calls.values(), *self._feeds]
        for task in tasks:
            task.cancel()
        # A coroutine may refuse to be cancelled; it ends with the process.
        if tasks:
            await asyncio.wait(tasks, timeout=1)

    async def _call(self, invoke: Invoke) -> None:
        loop = asyncio.get_running_loop()
        started = loop.time()
        try:
            returned = Returned(invoke.call, value=await self._alone(invoke))
        except (Exception, asyncio.CancelledError, SystemExit) as error:
            # SystemExit too: a backend that gives up does not decide for the others' machines.
            returned = Returned(invoke.call, error=error)
        outcome = "ok" if returned.error is None else type(returned.error).__name__
        self._observe(invoke.method, outcome, loop.time() - started)
        self._deliver(returned)

    async def _alone(self, invoke: Invoke) -> Any:
        """Make the call, once the one before it of this method and machine has come back."""
        key = (invoke.method, _machine_id(invoke))
        while (earlier := self._under_way.get(key)) is not None:
            await asyncio.wait([earlier])
        self._under_way[key] = self._calls[invoke.call]
        try:
            return await self._value(invoke)
        finally:
            del self._under_way[key]

    async def _value(self, invoke: Invoke) -> Any:
        arguments: tuple[Any, ...] = () if invoke.argument is None else (invoke.argument,)
        if invoke.method == "cleanup":
            arguments += (invoke.failed_kind,)
        method, is_coroutine = self._method(invoke.method)
        if is_coroutine:
            return await method(*arguments)
        async with self._threads:
            self._blocking.add(invoke.call)
            try:
                value = await _in_thread(partial(method, *arguments))
            finally:
                self._blocking.discard(invoke.call)
        if not inspect.isawaitable(value):
            return value
        # A plain method that hands on a coroutine, as many decorators make them, has not done anything yet.
        if invoke.call in self._given_up and inspect.iscoroutine(value):
            value.close()
            raise asyncio.CancelledError
        return await value

    def _ended(self, call: int, task: asyncio.Task[None]) -> None:
        self._calls.pop(call, None)
        self._given_up.discard(call)
        if task.cancelled():
            # Before its first step, so that nothing in it could say so.
            self._deliver(Returned(call, error=asyncio.CancelledError()))

    def _method(self, name: str) -> tuple[Callable[..., Any], bool]:
        if name not in self._methods:
            method = getattr(self._backend, name)
            self._methods[name] = (method, inspect.iscoroutinefunction(method))
        return self._methods[name]

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


def _machine_id(invoke: Invoke) -> str:
    match invoke.argument:
        case Operation(machine) | (MachineView() as machine):
            return machine.id
    return ""


def _in_thread(work: Callable[[], Any]) -> asyncio.Future[Any]:
    """Run blocking work in a thread of its own: those of a pool are waited for when the process ends, and a
    backend that hangs would keep it from ending."""
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[Any] = loop.create_future()

    def run() -> None:
        end: Callable[[], None]
        try:
            end = partial(ended.set_result, work())
        except BaseException as error:
            end = partial(ended.set_exception, _storable(error))
        # The loop may be gone by now, and with it whoever would want to know.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(lambda: None if ended.done() else end())

    Thread(target=run, name="backend", daemon=True).start()
    return ended


def _storable(error: BaseException) -> Exception:
    """A future refuses StopIteration, and SystemExit in a thread is no wish to end the process."""
    if isinstance(error, Exception) and not isinstance(error, StopIteration):
        return error
    return RuntimeError(f"the backend raised {error!r}")


def _ignore(_event: Event) -> None:
    """After the end."""
