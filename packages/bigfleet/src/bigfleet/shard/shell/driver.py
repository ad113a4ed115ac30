"""Owns the core and the time: events in, effects performed, cycles run in slices (design.md §1, trap 5)."""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, Protocol, TypeAlias

from bigfleet.shard.core.core import ShardCore
from bigfleet.shard.core.effects import (
    ConfigureMachine,
    Count,
    CreateMachine,
    DeleteMachine,
    DrainMachine,
    DropBlob,
    Effect,
    EndSession,
    EndStatus,
    GetMachine,
    KeepRecording,
    ListProvider,
    Mark,
    Observe,
    RaiseFloor,
    RunCycle,
    SendFrames,
    Show,
    WriteAudit,
    WriteLog,
)
from bigfleet.shard.core.events import (
    CallEnded,
    CycleFinished,
    Event,
    Failure,
    GetEnded,
    Listed,
    ListEnded,
    PauseFile,
    ShutdownBegun,
    TimePassed,
)
from bigfleet.shard.provider import FailureKind
from bigfleet.shard.shell.auditlog import AuditLog
from bigfleet_base.model.frames import Frame
from bigfleet_base.telemetry import Log, Metrics
from bigfleet_base.telemetry.catalogue import shard as series
from bigfleet_base.telemetry.series import GaugeSeries

SLICE_NS: Final = 5_000_000
"""How long a cycle may hold the loop before sessions and providers have their turn."""
BATCH_NS: Final = 5_000_000
"""The same for events: those of a reconnect storm come by the thousand."""

Mutation: TypeAlias = CreateMachine | ConfigureMachine | DrainMachine | DeleteMachine
ProviderCall: TypeAlias = Mutation | GetMachine | RaiseFloor | ListProvider


class Clock:
    """Nanoseconds since 1970 that never step back: the wall's time at the start, and what passed since."""

    def __init__(
        self,
        wall_ns: Callable[[], int] = time.time_ns,
        monotonic_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self._wall_ns = wall_ns
        self._monotonic_ns = monotonic_ns
        self._offset = wall_ns() - monotonic_ns()

    def now(self) -> int:
        return self._monotonic_ns() + self._offset

    def wall(self) -> int:
        """What others take for the time: whoever sets the wall's clock sets this one too."""
        return self._wall_ns()


class Sessions(Protocol):
    """Where frames go."""

    def send(self, session: int, frames: Sequence[Frame]) -> None: ...
    def end(self, session: int, status: EndStatus, text: str) -> None: ...


class Providers(Protocol):
    """Where calls go; each is answered with an event."""

    def call(self, effect: ProviderCall) -> None: ...
    def drop_blob(self, request_id: str) -> None: ...


class Recorder(Protocol):
    """Keeps what the core was told, before anybody sees what came of it."""

    def record(self, now: int, events: Sequence[Event], effects: Sequence[Effect]) -> None: ...
    def keep(self) -> None: ...
    def close(self) -> None: ...


class Driver:
    """The one task that touches the core. ``submit`` may be called by every other task of the loop."""

    def __init__(
        self,
        core: ShardCore,
        clock: Clock,
        metrics: Metrics,
        log: Log,
        *,
        is_paused: Callable[[], bool] = lambda: False,
        audit: AuditLog | None = None,
        recorder: Recorder | None = None,
    ) -> None:
        self.core = core
        self.clock = clock
        self._metrics = metrics
        self._log = log
        self._is_paused = is_paused
        self._audit = audit
        self._recorder = recorder
        self._events: deque[_Entry] = deque()
        """Bounded by those who submit: sessions have credit and one roll-up each, providers the calls that
        the core has asked for."""
        self._first: deque[Event] = deque()
        """What is told before all events, in this order: the file ``PAUSE`` and the calls it has stopped."""
        self._held: list[_Entry] = []
        self._wake = asyncio.Event()
        self._told_pause = False
        self._stopping = False
        self._begun: object = None
        """The cycle that took its first step last."""
        self._is_finishing = False
        """Whether the end of the cycle is among the events."""
        self._shown: dict[GaugeSeries, set[tuple[str, ...]]] = {}
        self._phases = dict.fromkeys(_PHASES, 0)
        self._merge_ns = 0
        self._finish_ns = 0

    def submit(self, event: Event) -> None:
        """Tell the core, soon and in this order."""
        self._events.append((event, None))
        self._wake.set()

    async def handled(self, event: Event) -> None:
        """Tell the core, and return when the effects have been performed."""
        waiter = asyncio.get_running_loop().create_future()
        self._events.append((event, waiter))
        self._wake.set()
        await waiter

    async def run(self, sessions: Sessions, providers: Providers) -> None:
        """Never returns; raises when the core has a defect, after which nothing can be trusted (P1)."""
        self.submit(TimePassed())
        while True:
            self._look_for_pause()
            self._handle_some(sessions, providers)
            if self.core.running is not None and not self._stopping:
                await asyncio.sleep(0)  # events and a slice in one go would hold the loop for both
                self._advance()
            if self.core.running is not None and not self._stopping:
                await self._rest(sessions, providers)
            elif self._first or self._events:
                await asyncio.sleep(0)
            else:
                await self._sleep()

    async def _rest(self, sessions: Sessions, providers: Providers) -> None:
        """Between two slices of a cycle: let others work, for a slice at most.

        A single turn of the loop would not do. To accept one stream takes several, with waits for gRPC's
        thread between them, so that in a reconnect storm every accept would cost slices of its own.
        """
        begun = time.perf_counter_ns()
        await asyncio.sleep(_LEAST_REST_S)
        at = time.perf_counter_ns()
        while at - begun < SLICE_NS:
            self._handle_some(sessions, providers)
            await asyncio.sleep(0)
            before, at = at, time.perf_counter_ns()
            if at - before < _QUIET_NS:
                return

    async def _sleep(self) -> None:
        """Until somebody submits something or the core wants to be called."""
        due = self.core.next_deadline()
        self._wake.clear()
        if due is None:
            await self._wake.wait()
            return
        pause = max(0, due - self.clock.now()) / 1e9
        timer = asyncio.get_running_loop().call_later(pause, self._wake.set)
        try:
            await self._wake.wait()
        finally:
            timer.cancel()

    def _look_for_pause(self) -> None:
        """The file counts from the next event on, and so for every cycle that begins after it."""
        present = self._is_paused()
        if present != self._told_pause:
            self._told_pause = present
            self._first.append(PauseFile(present))

    def _handle_some(self, sessions: Sessions, providers: Providers) -> None:
        batch: list[Event] = []
        effects: list[Effect] = []
        waiters: list[asyncio.Future[None]] = []
        # One time for all of them, as a replay will have it.
        now, begun = self.clock.now(), time.perf_counter_ns()
        while (self._first or self._events) and time.perf_counter_ns() - begun < BATCH_NS:
            event, waiter = (self._first.popleft(), None) if self._first else self._events.popleft()
            if self.core.running is not None and isinstance(event, _BETWEEN_CYCLES):
                self._held.append((event, waiter))
                continue
            batch.append(event)
            effects += self._handle(event, now, batch)
            if waiter is not None:
                waiters.append(waiter)
        if not batch and self._is_due(now):
            batch.append(TimePassed())
            effects += self._handle(TimePassed(), now, batch)
        if batch and self._recorder is not None:
            self._recorder.record(now, batch, effects)
        if self._audit is not None:
            lines = [effect for effect in effects if isinstance(effect, WriteAudit)]
            if lines:
                self._audit.write(lines)
        for effect in effects:
            self._perform(effect, sessions, providers)
        for each in waiters:
            if not each.done():
                each.set_result(None)
        running = self.core.running
        if running is not None and running is not self._begun and not self._stopping:
            # No event may come between: what a cycle sees is what there was after the batch that began it, in
            # a replay too.
            self._begun = running
            self._step()

    def _handle(self, event: Event, now: int, batch: Sequence[Event]) -> list[Effect]:
        begun = time.perf_counter_ns()
        try:
            effects = self.core.handle(event, now)
        except Exception:
            # The one event that everybody will want to see again.
            if self._recorder is not None:
                self._recorder.record(now, batch, [])
            raise
        spent = time.perf_counter_ns() - begun
        if isinstance(event, _BETWEEN_CYCLES):
            self._merge_ns += spent
        elif isinstance(event, CycleFinished):
            self._finish_ns, self._is_finishing = spent, False
            # Alerts compare it with a time of their own.
            self._metrics.gauge(series.LAST_CYCLE_TIMESTAMP).set(self.clock.wall() / 1e9)
        elif isinstance(event, ShutdownBegun):
            # The cycle under way is left where it is: nothing of it has been told to anybody.
            self._stopping = True
        return effects

    def _is_due(self, now: int) -> bool:
        due = self.core.next_deadline()
        return due is not None and due <= now

    def _advance(self) -> None:
        """Run the cycle for a slice."""
        begun = at = time.perf_counter_ns()
        while not self._is_finishing and at - begun < SLICE_NS:
            self._step()
            at = time.perf_counter_ns()

    def _step(self) -> None:
        running = self.core.running
        assert running is not None
        begun = time.perf_counter_ns()
        phase = next(running, None)
        self._phases[phase or _LAST_PHASE] += time.perf_counter_ns() - begun
        if phase is None:
            self._finish_cycle()

    def _finish_cycle(self) -> None:
        # What passing the actions on takes is known only afterwards, so each cycle tells it of the last one.
        self._phases["execute"] = self._finish_ns
        total = sum(self._phases.values())
        phases = (("reconcile", self._merge_ns), *self._phases.items())
        self._phases, self._merge_ns = dict.fromkeys(_PHASES, 0), 0
        self._events.extendleft(reversed(self._held))
        self._events.appendleft((CycleFinished(total, phases, self.core.put_off), None))
        self._held = []
        self._is_finishing = True

    def _perform(self, effect: Effect, sessions: Sessions, providers: Providers) -> None:
        match effect:
            case WriteAudit() | RunCycle():
                pass
            case KeepRecording():
                if self._recorder is not None:
                    self._recorder.keep()
            case SendFrames(session, frames):
                sessions.send(session, frames)
            case EndSession(session, status, text):
                sessions.end(session, status, text)
            case CreateMachine() | ConfigureMachine() | DrainMachine() | DeleteMachine():
                if self._is_paused():
                    self._refuse(effect, providers)
                else:
                    providers.call(effect)
            case GetMachine() | RaiseFloor() | ListProvider():
                providers.call(effect)
            case DropBlob(request_id):
                providers.drop_blob(request_id)
            case WriteLog(level, msg, fields):
                getattr(self._log, level.value)(msg, **dict(fields))
            case Count(counter, labels, by):
                self._metrics.counter(counter, *labels).inc(by)
            case Observe(histogram, value, labels):
                self._metrics.histogram(histogram, *labels).observe(value)
            case Mark(gauge, value, labels):
                self._metrics.gauge(gauge, *labels).set(value)
            case Show(gauge, values):
                self._show(gauge, dict(values))

    def _refuse(self, effect: Mutation, providers: Providers) -> None:
        """The file has come between the decision and the call (R3)."""
        if isinstance(effect, ConfigureMachine):
            providers.drop_blob(effect.request_id)
        if not self._told_pause:
            self._told_pause = True
            self._first.append(PauseFile(True))
        failure = Failure(FailureKind.NOT_SENT.value, "CANCELLED", "the file PAUSE has appeared", attempt=0)
        self._first.append(CallEnded(effect.op, failure=failure))

    def _show(self, gauge: GaugeSeries, values: dict[tuple[str, ...], float]) -> None:
        for labels in self._shown.get(gauge, set()) - values.keys():
            self._metrics.gauge(gauge, *labels).set(0)
        for labels, value in values.items():
            self._metrics.gauge(gauge, *labels).set(value)
        self._shown[gauge] = set(values)


_LEAST_REST_S: Final = 0.002
_QUIET_NS: Final = 100_000
"""A turn of the loop that is shorter had nothing to do."""

_Entry: TypeAlias = "tuple[Event, asyncio.Future[None] | None]"
_BETWEEN_CYCLES: Final = (Listed, ListEnded, GetEnded)
"""Events that write machines a running cycle is looking at; they wait for its end."""
_PHASES: Final = ("snapread", "phase1", "phase2", "phase3", "emit", "execute")
"""Each is told of every cycle, and is 0 where there was nothing to do."""
_LAST_PHASE: Final = "emit"
