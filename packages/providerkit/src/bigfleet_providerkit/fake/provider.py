"""The fake under virtual time: core, store and substrate in one object without a clock, a thread or a socket.

::

    provider = FakeProvider(Knobs(seed=7), offerings)
    provider.advance(NANOS)                       # it describes its inventory and serves
    provider.send(Call(1, Kind.CREATE, machine_id))
    answers = provider.advance(provider.now)      # the ack, once it is durable
    provider.advance(60 * NANOS)                  # the host comes up
    provider.crash(); provider.restart()          # everything but store and substrate is lost

``next_deadline`` says when something will happen by itself, so that a simulation of many parts can go from
one event to the next.
"""

import hashlib
import heapq
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from enum import Enum
from typing import Any, Final

from bigfleet_base.model import MachineState
from bigfleet_providerkit.backend import Offering
from bigfleet_providerkit.core import Core
from bigfleet_providerkit.effects import Answer, Call, Cancel, Code, Effect, Event, Invoke, Noticed, Returned
from bigfleet_providerkit.errors import BackendError
from bigfleet_providerkit.fake.boundary import Boundary, Crossing, LaggingList
from bigfleet_providerkit.fake.hosts import Step
from bigfleet_providerkit.fake.knobs import Knobs
from bigfleet_providerkit.fake.substrate import Substrate
from bigfleet_providerkit.listing import Listed
from bigfleet_providerkit.settings import Capabilities, Settings
from bigfleet_providerkit.store import MemoryStore, Store

CAPABILITIES: Final = Capabilities(delete=True, inspect=True, cleanup=True, discover=True, probe=True)


class Unavailable(Exception):  # noqa: N818  # named as the status that a caller over gRPC gets
    """The provider is down, or the call was lost."""


class CrashPoint(Enum):
    """Where in a batch the provider dies."""

    BEFORE_WRITE = "before-write"
    AFTER_WRITE = "after-write"
    """What it decided is durable, and nobody was told."""


class FakeProvider:
    """One provider. Times are nanoseconds; ``trace`` is told everything that passes the core's border."""

    def __init__(
        self,
        knobs: Knobs,
        offerings: Sequence[Offering],
        settings: Settings | None = None,
        *,
        now: int = 0,
        store: Store | None = None,
        trace: Callable[[str], None] | None = None,
    ) -> None:
        self.now = now
        self.substrate = Substrate(knobs)
        self.substrate.offer(offerings, now)
        self.store: Store = store or MemoryStore(hashlib.sha256(f"{knobs.seed}".encode()).digest()[:8])
        self._knobs = knobs
        self._settings = replace(settings or Settings(provider="fake"), capabilities=CAPABILITIES)
        self._trace = trace
        self._boundary = Boundary(knobs)
        self._jitter = random.Random(f"{knobs.seed}/jitter")  # noqa: S311  # a fake's dice
        self._core: Core | None = None
        self._lagging: LaggingList | None = None
        self._crash_at: CrashPoint | None = None
        self._arriving: list[Call] = []
        self._waiting: dict[int, Crossing] = {}
        self._steps: dict[int, Step] = {}
        self._agenda: list[tuple[int, int, Answer | int]] = []
        """Answers on their way back, and backend calls by number, when they are due."""
        self._entries = 0
        self.restart()

    @property
    def serving(self) -> bool:
        """Whether its port would be open."""
        return self._core is not None and self._core.ready

    # ---- what callers do

    def send(self, call: Call) -> None:
        """Make a mutating call; its answer comes out of ``advance``. Its number is used once."""
        crossing = self._boundary.cross()
        self._waiting[call.number] = crossing
        if crossing.is_lost or not self.serving:
            self._answer(Answer(call.number, Code.UNAVAILABLE, "the call did not reach the provider"))
        else:
            self._arriving.append(call)

    def get(self, machine_id: str) -> bytes | None:
        """The record that Get answers with, None for NOT_FOUND; Unavailable when the call is lost."""
        slot = self._reached().get(machine_id)
        return None if slot is None else slot.record

    def list_machines(
        self, states: frozenset[MachineState] = frozenset(), max_results: int = 0, since: bytes = b""
    ) -> Listed:
        """What List answers with; Unavailable when the call is lost."""
        core = self._reached()
        if self._lagging is not None:
            return self._lagging.answer(states, max_results, since, self.now)
        return core.list_machines(states, max_results, since)

    # ---- what passes time

    def next_deadline(self) -> int | None:
        """When ``advance`` has something to do."""
        if self._arriving:
            return self.now
        own = self._agenda[0][0] if self._agenda else None
        core = self._core.next_deadline() if self._core is not None else None
        due = [at for at in (own, core, self.substrate.next_event()) if at is not None]
        return max(self.now, min(due)) if due else None

    def advance(self, to: int) -> list[Answer]:
        """Let time pass, from one event to the next; returns the answers that arrived, in order."""
        answers: list[Answer] = []
        while (at := self.next_deadline()) is not None and at <= to:
            self.now = at
            answers += self._happen()
        self.now = max(self.now, to)
        return answers

    # ---- what a simulation does to it

    def crash(self) -> None:
        """kill -9. Callers lose their connection; store and substrate are as they are."""
        self._note("crash")
        self._core = self._lagging = self._crash_at = None
        self._steps.clear()
        self.substrate.abandon_all()
        self._agenda = [entry for entry in self._agenda if isinstance(entry[2], Answer)]
        heapq.heapify(self._agenda)
        self._arriving.clear()
        for number in list(self._waiting):
            self._answer(Answer(number, Code.UNAVAILABLE, "the connection was lost"))

    def crash_next(self, point: CrashPoint) -> None:
        """Crash in the middle of the next batch that writes something."""
        self._crash_at = point

    def restart(self) -> None:
        """Start the process on what the store holds."""
        assert self._core is None, "it has not crashed"
        self._note("start")
        self._core = Core(self._settings, self.store.load(), self._jitter.random)
        self._core.start(self.now)

    def fail_machine(self, machine_id: str) -> None:
        """Break a machine: see ``Substrate.fail_machine``."""
        self.substrate.fail_machine(machine_id, self.now)

    def complete(self, machine_id: str) -> None:
        """Let a staged transition end well."""
        self.substrate.complete(machine_id, self.now)

    def stock_out(self, offering: str, duration: int) -> None:
        """No machine of these offerings can be made for so long."""
        self.substrate.stock_out(offering, self.now + duration)

    # ---- inside

    def _reached(self) -> Core:
        crossing = self._boundary.cross()
        if self._core is None or not self._core.ready or crossing.is_lost or crossing.is_answer_lost:
            raise Unavailable
        return self._core

    def _happen(self) -> list[Answer]:
        """Everything that is due now, as one batch of events."""
        self.substrate.tick(self.now)
        events: list[Event] = list(self._arriving)
        self._arriving.clear()
        answers: list[Answer] = []
        while self._agenda and self._agenda[0][0] <= self.now:
            _, _, due = heapq.heappop(self._agenda)
            if isinstance(due, Answer):
                self._note(due)
                answers.append(due)
            elif (step := self._steps.get(due)) is not None and step.at is not None and step.at <= self.now:
                del self._steps[due]
                events.append(self._ended(due, step))
        for queue in (self.substrate.interruptions, self.substrate.price_updates):
            if self._core is not None:
                events += [Noticed(notice) for notice in queue]
            queue.clear()
        if self._core is not None:
            self._step(self._core, events)
        return answers

    def _step(self, core: Core, events: Sequence[Event]) -> None:
        for event in events:
            self._note(event)
        writes = core.step(events, self.now)
        point = self._crash_at if writes else None
        if point is CrashPoint.BEFORE_WRITE:
            self.crash()
            return
        self.store.write(writes)
        if point is CrashPoint.AFTER_WRITE:
            self.crash()
            return
        for effect in core.commit().effects:
            self._perform(effect)
        if self._knobs.list_stale and core.ready:
            self._lagging = self._lagging or LaggingList(core, self._knobs.list_stale)
            self._lagging.observe(self.now)

    def _perform(self, effect: Effect) -> None:
        self._note(effect)
        match effect:
            case Answer():
                self._answer(effect)
            case Invoke(call, method, argument, failed_kind):
                step = self.substrate.begin(method, argument, failed_kind, self.now)
                step.changed = lambda: self._plan_end(call, step)
                self._steps[call] = step
                self._plan_end(call, step)
            case Cancel(call):
                if (cancelled := self._steps.get(call)) is not None:
                    cancelled.cancel(self.now)
                    self._plan_end(call, cancelled)

    def _ended(self, call: int, step: Step) -> Returned:
        self.substrate.ended(step)
        try:
            value: Any = step.end(self.now)
        except BackendError as error:
            return Returned(call, error=error)
        return Returned(call, value)

    def _note(self, what: object) -> None:
        if self._trace is not None:
            self._trace(f"{self.now} {what}")

    def _answer(self, answer: Answer) -> None:
        crossing = self._waiting.pop(answer.number)
        if crossing.is_answer_lost:
            answer = Answer(answer.number, Code.UNAVAILABLE, "the answer was lost")
        self._plan(self.now + crossing.delay, answer)

    def _plan_end(self, call: int, step: Step) -> None:
        if step.at is not None:
            self._plan(step.at, call)

    def _plan(self, at: int, due: Answer | int) -> None:
        self._entries += 1
        heapq.heappush(self._agenda, (at, self._entries, due))
