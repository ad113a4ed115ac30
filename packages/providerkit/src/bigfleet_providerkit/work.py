"""Backend calls: queued per method, limited in number and rate, timed, and cancelled (provider.md §12.3).

Nothing here survives a restart, and nothing changes while a batch is staged: handlers submit through
``State.later``.
"""

import heapq
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from bigfleet_providerkit.effects import Effect, Invoke

NANOS: Final = 1_000_000_000


class TimedOut(Exception):  # noqa: N818  # an outcome of a call, beside the backend's own
    """The backend call did not end in time."""


@dataclass(eq=False, slots=True)
class Job:
    """One backend call to be made."""

    method: str
    machine_id: str
    prepare: Callable[[int], tuple[Any, int]]
    """At the moment of the call: its argument and the nanoseconds it may take."""
    end: Callable[[Any, BaseException | None, int], None]
    """Handles the value or error, within a batch."""
    failed_kind: str = ""
    call: int = 0


@dataclass(slots=True)
class _Bucket:
    """A token bucket that holds a second's worth of calls."""

    rate: float
    tokens: float
    filled: int

    def wait(self, now: int) -> int:
        """Take a token and return 0, or the nanoseconds until there is one."""
        burst = max(1.0, self.rate)
        self.tokens = min(burst, self.tokens + (now - self.filled) * self.rate / NANOS)
        self.filled = now
        # A hair of tolerance: the sum of many small fillings must not keep a due call waiting for ever.
        if self.tokens >= 1.0 - 1e-9:
            self.tokens -= 1.0
            return 0
        return max(1, round((1.0 - self.tokens) * NANOS / self.rate))


@dataclass
class Work:
    """What is queued, running, or waiting for its time."""

    limits: Mapping[str, int]
    """Calls at once, by method."""
    rates: Mapping[str, float]
    """Calls a second, by method; none for no limit."""
    _queues: dict[str, deque[Job]] = field(default_factory=dict)
    _running: dict[int, Job] = field(default_factory=dict)
    _active: dict[str, int] = field(default_factory=dict)
    _lingering: dict[int, Job] = field(default_factory=dict)
    _busy: dict[str, int] = field(default_factory=dict)
    _buckets: dict[str, _Bucket] = field(default_factory=dict)
    _timers: list[tuple[int, int, Callable[[int], None]]] = field(default_factory=list)
    _popped: list[tuple[int, int, Callable[[int], None]]] = field(default_factory=list)
    _numbers: int = 0
    _stale: int = 0

    def submit(self, job: Job) -> None:
        """Make the call as soon as limits allow."""
        self._queues.setdefault(job.method, deque()).append(job)

    def at(self, when: int, due: Callable[[int], None]) -> None:
        """Run a handler, within a batch, once it is this late."""
        self._numbers += 1
        heapq.heappush(self._timers, (when, self._numbers, due))

    def wake(self, when: int) -> None:
        """Ask for a step, for what is queued."""
        self.at(when, _nothing)

    def next_deadline(self) -> int | None:
        return self._timers[0][0] if self._timers else None

    def due(self, now: int) -> list[Callable[[int], None]]:
        """Handlers whose time has come; ``restore`` puts them back if their batch fails."""
        while self._timers and self._timers[0][0] <= now:
            self._popped.append(heapq.heappop(self._timers))
        return [handler for _, _, handler in self._popped]

    def settle_timers(self) -> None:
        self._popped = []

    def restore_timers(self) -> None:
        for timer in self._popped:
            heapq.heappush(self._timers, timer)
        self._popped = []

    def running(self, call: int) -> Job | None:
        return self._running.get(call)

    @property
    def acting(self) -> bool:
        """Whether a call is under way that may change the substrate."""
        return any(job.method not in _HARMLESS for job in self._running.values())

    def lingering(self, call: int) -> Job | None:
        """The job of a call that was given up on and has not come back."""
        return self._lingering.get(call)

    def lingers_on(self, machine_id: str) -> bool:
        """Whether such a call may still touch the machine's host."""
        return machine_id in self._busy

    def ended(self, call: int) -> None:
        """Forget a call that has come back."""
        job = self._running.pop(call, None)
        if job is not None:
            self._active[job.method] -= 1
            self._forget_deadline()
            return
        late = self._lingering.pop(call, None)
        if late is not None and late.method not in _HARMLESS:
            self._busy[late.machine_id] -= 1
            if not self._busy[late.machine_id]:
                del self._busy[late.machine_id]

    def abandon(self, call: int) -> None:
        """Stop waiting for a call: its place is free, but its machine is not until it has come back."""
        job = self._running.pop(call)
        self._active[job.method] -= 1
        self._forget_deadline()
        self._lingering[call] = job
        if job.method not in _HARMLESS:
            self._busy[job.machine_id] = self._busy.get(job.machine_id, 0) + 1

    def dispatch(self, now: int, timed_out: Callable[[int, int], None]) -> list[Effect]:
        """Start what limits and rates allow."""
        effects: list[Effect] = []
        for method, queue in self._queues.items():
            limit = self.limits.get(method, 1)
            while queue and self._active.get(method, 0) < limit:
                if wait := self._wait(method, now):
                    self.wake(now + wait)
                    break
                job = queue.popleft()
                argument, timeout = job.prepare(now)
                self._numbers += 1
                job.call = self._numbers
                self._running[job.call] = job
                self._active[method] = self._active.get(method, 0) + 1
                self.at(now + timeout, _Deadline(job.call, timed_out))
                effects.append(Invoke(job.call, method, argument, job.failed_kind))
        return effects

    def active(self, method: str) -> int:
        return self._active.get(method, 0)

    def _forget_deadline(self) -> None:
        # Timeouts are minutes and calls milliseconds: the deadlines of ended calls would pile up.
        self._stale += 1
        if self._stale > len(self._timers) // 2 + 1_000:
            self._timers = [
                timer
                for timer in self._timers
                if not isinstance(timer[2], _Deadline) or timer[2].call in self._running
            ]
            heapq.heapify(self._timers)
            self._stale = 0

    def _wait(self, method: str, now: int) -> int:
        rate = self.rates.get(method, 0.0)
        if not rate:
            return 0
        bucket = self._buckets.get(method)
        if bucket is None:
            bucket = self._buckets[method] = _Bucket(rate, max(1.0, rate), now)
        return bucket.wait(now)


_HARMLESS: Final = ("inspect", "node_ready", "offerings", "discover")
"""Methods that only look: whenever they come back, the host is as it was."""


@dataclass(slots=True)
class _Deadline:
    call: int
    timed_out: Callable[[int, int], None]

    def __call__(self, now: int) -> None:
        self.timed_out(self.call, now)


def _nothing(_now: int) -> None:
    """Time to dispatch again."""
