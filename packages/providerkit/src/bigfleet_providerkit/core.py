"""The provider's core: events and the time in; store writes, answers and backend calls out.

A batch of events is one ``step``. What it returns must be made durable, and then ``commit`` gives the effects
to perform; if that fails, ``rollback`` gives the answers that say so, and nothing has happened::

    writes = core.step(events, now)
    store.write(writes)
    perform(core.commit().effects)

Between ``step`` and its end only ``get`` and ``list_machines`` may be called; they show what is committed.
"""

from collections.abc import Callable, Sequence

from bigfleet_base.model import MachineState
from bigfleet_providerkit.calls import Calls
from bigfleet_providerkit.effects import (
    Answer,
    Call,
    Cancel,
    Code,
    DropTombstones,
    Event,
    Image,
    LateResult,
    Noticed,
    Outcome,
    Panicked,
    Returned,
    Write,
)
from bigfleet_providerkit.inventory import DescribeError, Inventory
from bigfleet_providerkit.listing import Listed, Listing, Walk
from bigfleet_providerkit.records import Kind, Slot
from bigfleet_providerkit.repair import Repair
from bigfleet_providerkit.settings import Settings
from bigfleet_providerkit.state import State
from bigfleet_providerkit.transitions import KIND_OF, Transitions
from bigfleet_providerkit.work import TimedOut, Work


class Core:
    """Everything a provider decides. ``jitter`` draws from [0, 1)."""

    def __init__(self, settings: Settings, image: Image, jitter: Callable[[], float]) -> None:
        self.settings = settings
        self._state = State(image)
        self._work = Work(settings.concurrency, settings.rates)
        self._inventory = Inventory(settings, self._state, self._work)
        parts = (settings, self._state, self._work, self._inventory, jitter)
        self._transitions = Transitions(*parts)
        self._repair = Repair(*parts)
        self._transitions.on_failed = self._inventory.on_failed = self._repair.plan
        self._calls = Calls(settings, self._state, self._transitions)
        self._events: Sequence[Event] = ()
        self._held: list[Event] = []
        self._ended: set[int] = set()
        """Backend calls that came back in this batch."""
        self._now = 0
        self._in_step = False
        self.failure = ""
        """Why the provider cannot start, once that is known."""

    def start(self, now: int) -> None:
        """Describe the inventory and take up what a restart interrupted; ``ready`` says when that is done."""
        for slot in self._state.slots.committed.values():
            if slot.state in KIND_OF:
                self._transitions.resume(slot, now)
            elif slot.state is MachineState.FAILED:
                self._repair.plan(slot, now)
        self._inventory.describe(now)
        self._work.wake(now)

    @property
    def ready(self) -> bool:
        """Whether the port may open (P-127)."""
        return self._inventory.described and not self._transitions.uncertain and not self.failure

    @property
    def listing(self) -> Listing:
        """Counts for the metrics."""
        return self._state.listing

    @property
    def inflight(self) -> dict[Kind, int]:
        """Transitions under way, by kind."""
        return self._transitions.inflight

    @property
    def acting(self) -> bool:
        """Whether the backend is at work on a machine, or will be: most transitions take several calls."""
        return any(self.inflight.values()) or self._work.acting

    def get(self, machine_id: str) -> Slot | None:
        """A machine as committed, or None where Get answers NOT_FOUND."""
        return self._state.listing.get(machine_id)

    def list_machines(self, states: frozenset[MachineState], max_results: int, since: bytes) -> Listed:
        """The answer to List."""
        return self._state.listing.answer(states, max_results, since)

    def ask_list(self, states: frozenset[MachineState], max_results: int, since: bytes) -> Listed | Walk:
        """The same, or the walk that leads to it, for those who must not take long at once."""
        return self._state.listing.ask(states, max_results, since)

    def next_deadline(self) -> int | None:
        """When ``step`` has something to do without an event; 0 for at once."""
        return 0 if self._held or self._inventory.backlog else self._work.next_deadline()

    def step(self, events: Sequence[Event], now: int) -> Sequence[Write]:
        """Stage what the events and the time bring; returns what must be made durable."""
        assert not self._in_step, "the last step was neither committed nor rolled back"
        self._in_step = True
        self._events = [*self._held, *events]
        self._held = []
        self._ended.clear()
        self._now = now
        for event in self._events:
            self._guarded(lambda event=event: self._handle(event, now), event)  # type: ignore[misc]  # a default argument binds the loop variable
        for due in self._work.due(now):
            self._guarded(lambda due=due: due(now), None)  # type: ignore[misc]  # as above
        self._guarded(self._inventory.work_off, None)
        if revision := self._state.listing.overdue_tombstones(now):
            self._state.write(DropTombstones(revision))
            self._state.later(lambda: self._state.listing.drop_tombstones(revision))
        return self._state.writes()

    def commit(self) -> Outcome:
        """The writes are durable: apply the batch; returns what is to be performed now."""
        assert self._in_step
        self._in_step = False
        self._work.settle_timers()
        effects, reports = self._state.commit()
        effects += self._work.dispatch(self._now, self._timed_out)
        return Outcome(effects, reports)

    def rollback(self) -> Outcome:
        """The writes failed: forget the batch, and keep all but the calls for the next one."""
        assert self._in_step
        self._in_step = False
        self._work.restore_timers()
        self._state.rollback()
        self._held = [event for event in self._events if not isinstance(event, Call)]
        unavailable = "the provider's store does not take writes; try again"
        answers = [
            Answer(event.number, Code.UNAVAILABLE, unavailable)
            for event in self._events
            if isinstance(event, Call)
        ]
        return Outcome(answers, ())

    def _guarded(self, handle: Callable[[], None], event: Event | None) -> None:
        """Handle one event whole or not at all."""
        savepoint = self._state.savepoint()
        try:
            handle()
        except DescribeError as error:
            self._state.undo_to(savepoint)
            self.failure = str(error)
        except Exception as error:
            self._state.undo_to(savepoint)
            self._state.report(Panicked(error))
            if isinstance(event, Call):
                self._state.effect(
                    Answer(event.number, Code.INTERNAL, "the provider has a defect; see its log")
                )

    def _handle(self, event: Event, now: int) -> None:
        match event:
            case Call():
                self._calls.handle(event, now)
            case Returned():
                self._returned(event, now)
            case Noticed():
                self._inventory.noticed(event.notice)

    def _returned(self, event: Returned, now: int) -> None:
        job = self._work.running(event.call)
        late = self._work.lingering(event.call)
        self._state.later(lambda: self._work.ended(event.call))
        if job is not None:
            job.end(event.value, event.error, now)
            self._ended.add(event.call)
        elif late is not None:
            self._state.report(LateResult(late.machine_id, late.method))

    def _timed_out(self, call: int, now: int) -> None:
        job = self._work.running(call)
        # A call may come back in the very batch in which its time is over.
        if job is None or call in self._ended:
            return
        self._state.later(lambda: self._work.abandon(call))
        self._state.effect(Cancel(call))
        job.end(None, TimedOut("the backend did not answer in time"), now)
