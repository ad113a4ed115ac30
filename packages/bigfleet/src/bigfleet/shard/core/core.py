"""The shard's core: events and the time in, effects out (design.md §1).

Each part has one subject and remembers all it knows in its ``state``; ``ShardCore`` sends every event to the
parts it concerns, lets them act on what has become possible, and starts cycles.
"""

from collections.abc import Generator
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, Final

from bigfleet.engine.actions import Action
from bigfleet.engine.cycle import CycleInputs, CycleResult, Engine
from bigfleet.engine.options import SECOND
from bigfleet.shard.core import events
from bigfleet.shard.core.clock import Clock, ClockState
from bigfleet.shard.core.context import Cause, Context, Timer, Timers
from bigfleet.shard.core.effects import Effect, KeepRecording, LogLevel, RunCycle
from bigfleet.shard.core.events import Event
from bigfleet.shard.core.execute import Executor, ExecutorState
from bigfleet.shard.core.fleet import Fleet, FleetState
from bigfleet.shard.core.gates import Gates, GatesState
from bigfleet.shard.core.hints import Hints, HintsState
from bigfleet.shard.core.ingest import Ingest, IngestState
from bigfleet.shard.core.outbox import Outboxes, OutboxesState
from bigfleet.shard.core.reconcile import Reconcile, ReconcileState
from bigfleet.shard.core.report import Reporter, ReportState, Views
from bigfleet.shard.core.sessions import Sessions, SessionsState
from bigfleet.shard.core.settings import Settings
from bigfleet_base.model import MachineState
from bigfleet_base.model.frames import HelloAck, RollupAck
from bigfleet_base.telemetry.catalogue import shard as series


@dataclass(slots=True)
class CoreState:
    """All that a core remembers besides the engine."""

    now: int = 0
    cycle: int = 0
    audit_seq: int = 0
    started: bool = False
    pause_file: bool = False
    stopping: bool = False
    held_lists: list[str] = field(default_factory=list)
    """Providers whose List was due while a cycle ran."""
    timers: Timers = field(default_factory=Timers)
    fleet: FleetState = field(default_factory=FleetState)
    clock: ClockState = field(default_factory=ClockState)
    sessions: SessionsState = field(default_factory=SessionsState)
    ingest: IngestState = field(default_factory=IngestState)
    outboxes: OutboxesState = field(default_factory=OutboxesState)
    executor: ExecutorState = field(default_factory=ExecutorState)
    reconcile: ReconcileState = field(default_factory=ReconcileState)
    gates: GatesState = field(default_factory=GatesState)
    hints: HintsState = field(default_factory=HintsState)
    report: ReportState = field(default_factory=ReportState)


class ShardCore:
    """One shard. ``handle`` is the only way in; what it returns is to be done in that order."""

    def __init__(
        self, settings: Settings, engine: Engine | None = None, state: CoreState | None = None
    ) -> None:
        self.settings = settings
        self.engine = engine or Engine()
        self.running: Generator[str, None, None] | None = None
        """The cycle that ``RunCycle`` asks for: advance it with ``next``, say ``CycleFinished`` at its end.
        It yields the name of the phase that the time since the last step went into."""
        self._state = state or CoreState()
        self.decided: list[Action] = []
        """What the last cycle decided, before the rails."""
        self._work: Generator[str, None, CycleResult] | None = None
        ctx = self._ctx = Context(
            settings,
            self.engine,
            self._state.timers,
            self._state.now,
            self._state.cycle,
            self._state.audit_seq,
        )
        self.fleet = Fleet(ctx, self._state.fleet)
        self.clock = Clock(ctx, self._state.clock)
        self.sessions = Sessions(ctx, self._state.sessions)
        self.ingest = Ingest(ctx, self._state.ingest)
        self.outboxes = Outboxes(ctx, self.fleet, self._state.outboxes)
        self.executor = Executor(ctx, self.fleet, self.sessions, self.outboxes, self._state.executor)
        self.reconcile = Reconcile(
            ctx, self.fleet, self.outboxes, self.executor.is_busy, self._state.reconcile
        )
        self.gates = Gates(ctx, self.reconcile, self.outboxes, self.executor, self._state.gates)
        self.hints = Hints(ctx, self.sessions, self.ingest, self.outboxes, self._state.hints)
        self.reporter = Reporter(ctx, self._state.report)
        self.executor.verify = self.reconcile.verify
        self.executor.released = self.reconcile.released
        self.outboxes.is_accepted = self.executor.is_accepted
        self.fleet.listeners += [self.outboxes.changed, self.ingest.changed]

    # For the shell, which may look but not touch

    @property
    def state(self) -> CoreState:
        """For a checkpoint: valid until the next event."""
        self._state.now, self._state.cycle = self._ctx.now, self._ctx.cycle
        self._state.audit_seq = self._ctx.audit_seq
        return self._state

    @property
    def put_off(self) -> bool:
        """Whether the cycle that has just ended left what it should have compared to the next."""
        return self.engine.put_off > 0

    @property
    def views(self) -> Views:
        """The verdicts of the last cycle; the object never changes."""
        return self.reporter.views

    def next_deadline(self) -> int | None:
        """When the core wants to be called, at the latest."""
        return self._ctx.timers.next()

    def accepted_digest(self, cluster: str) -> bytes | None:
        """Of the cluster's last accepted roll-up: one with the same bytes need not be decoded (I5)."""
        return self.ingest.digest(cluster)

    def is_paused(self) -> bool:
        return self.settings.options.paused or self._state.pause_file or self.executor.fenced

    def is_halted(self) -> bool:
        """Whether nothing more is sent that changes machines: pause, dry run, fence and shutdown."""
        return self.executor.state.halted

    def ready(self) -> tuple[bool, str]:
        """Whether the shard has seen its machines and may act on them, and if not, why (§15)."""
        if self.executor.fenced:
            return False, "fenced: another process has this shard's identity"
        if not self.reconcile.all_listed:
            return False, "first provider reconcile not yet complete"
        return True, ""

    def debug_state(self) -> dict[str, Any]:
        """The core at a glance, for ``/debug/state``."""
        inventory = self.engine.inventory
        return {
            "cycle": self._ctx.cycle,
            "paused": self.is_paused(),
            "fenced": self.executor.fenced,
            "machines": {s.title: n for s in MachineState if (n := inventory.count(s))},
            "needs": [
                {
                    "cluster": need.cluster_id,
                    "fingerprint": need.profile.fingerprint,
                    "group": need.group,
                    "priority": need.profile.priority,
                    "aggregate": dict(need.aggregate.items()),
                }
                for need in self.engine.needs.snapshot()[:_MOST_SHOWN]
            ],
            "shortfalls": [
                {"fingerprint": row.profile.fingerprint, "priority": row.profile.priority, "age": row.age}
                for row in self.reporter.shortfalls
            ],
            "sessions": self.sessions.active(),
            "peers": dict(islice(self.sessions.peers(), _MOST_SHOWN)),
            "actions": {"queued": self.executor.depth(), "in_flight": self.executor.in_flight()},
            "operations": [
                {
                    "op_id": f"{self.settings.epoch}-{op.number}",
                    "kind": op.action.kind.value,
                    "machine": op.machine_id,
                    "cluster": op.cluster,
                    "waits_for": op.step.value,
                    "seconds": (self._ctx.now - op.since) // SECOND,
                    "attempt": op.attempt,
                    "err": op.error,
                }
                for op in self.executor.operations()[:_MOST_SHOWN]
            ],
            "outbox": {name.value: n for name, n in self.outboxes.depths().items()},
        }

    # Events

    def handle(self, event: Event, now: int) -> list[Effect]:
        """Take one event; returns what is to be done, in order."""
        ctx = self._ctx
        # A clock that steps back must not take time back with it.
        ctx.now = max(now, ctx.now)
        ctx.effects = []
        if not self._state.started:
            self._start()
        self._dispatch(event)
        while (due := ctx.timers.due(ctx.now)) is not None:
            self._time_has_come(*due)
        if not self._state.stopping:
            self.executor.pump()
        self.outboxes.flush()
        for cause, urgent in ctx.wakes:
            self.clock.wake(cause, urgent=urgent)
        ctx.wakes.clear()
        if not self._state.stopping:
            cause_taken = self.clock.take()
            if cause_taken is not None:
                self._begin_cycle(cause_taken)
            self.clock.arm()
        effects, ctx.effects = ctx.effects, []
        return effects

    def begin_step(self, now: int) -> list[Effect]:
        """Start a cycle now, whatever the clock says: for a driver that owns the time (L6)."""
        assert self.settings.stepped
        ctx = self._ctx
        ctx.now, ctx.effects = max(now, ctx.now), []
        self._begin_cycle(Cause.TIMER)
        effects, ctx.effects = ctx.effects, []
        return effects

    def _start(self) -> None:
        self._state.started = True
        self.clock.start()
        self._ctx.mark(series.EPOCH, self.settings.epoch)
        if self.settings.options.paused or self.settings.options.dry_run:
            self.executor.halt()
        if self.settings.options.dry_run:
            self.outboxes.halt_instructions(True)
        self.reconcile.start()

    def _dispatch(self, event: Event) -> None:
        match event:
            case events.SessionOpened():
                self._session_opened(event)
            case events.SessionClosed():
                cluster = self.sessions.closed(event)
                if cluster is not None:
                    self.outboxes.closed(cluster)
                    self.hints.forget(cluster)
            case (
                events.HelloRepeated()
                | events.Writable()
                | events.Rollup()
                | events.RollupRepeated()
                | events.RollupRefused()
                | events.BootstrapAnswered()
                | events.ReclaimAcked()
                | events.NodeReadiness()
            ):
                # What a replaced session still had to say is nobody's word any more (S3).
                cluster = self.sessions.cluster_of(event.session)
                if cluster is not None:
                    self._session_event(cluster, event)
                elif isinstance(event, events.BootstrapAnswered):
                    self.executor.unasked(event)
            case events.FloorRaised():
                if not self.reconcile.floor_raised(event):
                    self.executor.fence("Drain", event.failure)
            case events.Listed():
                assert self.running is None, "a List is merged between cycles"
                self.reconcile.listed(event)
            case events.ListEnded():
                assert self.running is None, "a List is merged between cycles"
                self.reconcile.list_ended(event)
                self._look_at_lists()
            case events.ListFailed():
                self.reconcile.list_failed(event)
            case events.CallEnded():
                self.executor.call_ended(event)
            case events.GetEnded():
                if not self.executor.got(event):
                    self.reconcile.got(event)
            case events.BreakerChanged():
                self.executor.breaker_changed(event)
            case events.TimePassed():
                pass
            case events.CycleFinished():
                self._finish_cycle(event)
            case events.PauseFile():
                self._pause_file(event.present)
            case events.ShutdownBegun():
                self._state.stopping = True
                self.executor.halt()
            case events.CallsAbandoned():
                self.executor.abandon_calls()

    def _session_opened(self, event: events.SessionOpened) -> None:
        before = self.sessions.session_of(event.cluster)
        if not self.sessions.opened(event):
            return
        if before is not None:
            self.outboxes.closed(event.cluster)
            self.hints.forget(event.cluster)
        self.outboxes.opened(event.cluster, event.session)
        self.executor.session_opened(event.cluster)

    def _session_event(self, cluster: str, event: Event) -> None:
        match event:
            case events.HelloRepeated():
                self.outboxes.ack(cluster, HelloAck())
            case events.Writable():
                self.outboxes.writable(cluster, event.frames)
            case events.Rollup():
                self.ingest.apply(cluster, self.ingest.rows(cluster, event), event.digest)
                self.outboxes.ack(cluster, RollupAck(event.timestamp_ns))
            case events.RollupRepeated():
                self.ingest.repeat(cluster)
                self.outboxes.ack(cluster, RollupAck(event.timestamp_ns))
            case events.RollupRefused():
                self.ingest.refuse(cluster, event.error)
            case events.BootstrapAnswered():
                self.executor.answered(cluster, event)
            case events.ReclaimAcked():
                # An operator that repeats itself must fill neither the log nor the audit log.
                if self.outboxes.reclaim_acked(cluster, event.instruction_id):
                    self.executor.cordoned(cluster, event)
            case events.NodeReadiness():
                self.outboxes.readiness(cluster, event)

    def _time_has_come(self, timer: Timer, key: str) -> None:
        match timer:
            case Timer.CYCLE:
                self._look_at_lists()
            case Timer.BLOB | Timer.CORDON:
                self.executor.timer(timer, key)
            case Timer.INSTRUCTION | Timer.REMOVED | Timer.OUTBOX:
                self.outboxes.timer(timer, key)
            case Timer.LIST if self.running is not None:
                # What it would merge waits for the end of the cycle, like every List.
                self._state.held_lists.append(key)
            case Timer.LIST | Timer.REREAD | Timer.STUCK:
                self.reconcile.timer(timer, key)
                self._look_at_lists()
            case Timer.SHORTFALLS:
                self.reporter.timer()
            case Timer.HINTS:
                self.hints.tell_more()

    def _look_at_lists(self) -> None:
        """Once the machines are known as well as they will be, replays and gates may open."""
        if self.reconcile.all_listed:
            self.outboxes.lists_complete()
        elif self.reconcile.acting:
            self.outboxes.lists_incomplete()
        if self.reconcile.acting:
            self.gates.listed()

    def _pause_file(self, present: bool) -> None:
        was_paused = self.is_paused()
        self._state.pause_file = present
        if self.is_paused() and not was_paused:
            self.executor.halt()
        elif was_paused and not self.is_paused() and not self._is_over():
            self.executor.resume()

    def _is_over(self) -> bool:
        """Whether nothing will be started any more, pause or not."""
        return self.settings.options.dry_run or self._state.stopping

    # The cycle

    def _begin_cycle(self, cause: Cause) -> None:
        ctx = self._ctx
        ctx.cycle += 1
        ctx.count(series.CYCLE_TRIGGER, cause.value)
        ctx.mark(series.ACTUATION_PAUSED, self.is_paused())
        inputs = CycleInputs(
            now=ctx.now,
            tick=self.clock.tick(),
            options=replace(self.settings.options, paused=self.is_paused()),
            blocked=self.executor.before_cycle(),
            without_session=frozenset() if self.settings.local_bootstrap else self.sessions.without_session(),
            busy=self.executor.is_busy,
            admit=self.gates.admit,
            free_places=self.executor.free_places(),
            judging=self.reporter.judging,
            witness=self.reporter.witness,
            wanted=self.hints.wanted(),
        )
        self._work = self.engine.cycle(inputs, SLICE_ROWS)
        self.running = self._until_its_end()
        ctx.emit(RunCycle())

    def _until_its_end(self) -> Generator[str, None, None]:
        """The cycle without its last step: what it asks of the shard and writes down then is part of
        ``CycleFinished``, however the time before was cut."""
        assert self._work is not None
        for phase in self._work:
            yield phase
            if self.engine.phase == "execute":
                return

    def run_out(self, event: events.CycleFinished) -> None:
        """Run the cycle to the end that a recording tells of, in one go; one that is there stays there."""
        assert self.running is not None, "no cycle is running"
        self.engine.hurried = event.put_off
        for _ in self.running:
            pass

    def _finish_cycle(self, event: events.CycleFinished) -> None:
        self.run_out(event)
        assert self._work is not None
        result = _finish(self._work)
        self.running = self._work = None
        self.decided = result.decided
        if result.mismatch is not None:
            self._ctx.count(series.FULL_PASS_MISMATCHES)
            self._ctx.log(
                LogLevel.ERROR,
                "full pass differs from the incremental cycle; its result is used",
                difference=result.mismatch[:_MOST_TOLD],
            )
            self._ctx.emit(KeepRecording())
        self.clock.finished()
        self.hints.tell(result.available)
        self.executor.enqueue(result.passed.actions, dropped=result.passed.dropped)
        self.ingest.judged(result.changed)
        self.reporter.cycle(result, event.phases_ns, deferred=self.gates.take_deferred())
        if result.passed.deferred:
            self._ctx.wake(Cause.DEFERRED)
        self._gauges(event)
        held, self._state.held_lists = self._state.held_lists, []
        for provider in held:
            self._time_has_come(Timer.LIST, provider)

    def _gauges(self, event: events.CycleFinished) -> None:
        ctx = self._ctx
        ctx.mark(series.ACTION_QUEUE_DEPTH, self.executor.depth())
        ctx.mark(series.EXECUTE_INFLIGHT, self.executor.in_flight())
        ctx.mark(series.ACTIVE_SESSIONS, self.sessions.active())
        ctx.mark(series.UNREADY_NODES, self.outboxes.unready_count())
        ctx.mark(series.FENCED, self.executor.fenced)
        ctx.show(series.OUTBOX_FRAMES, {(name.value,): n for name, n in self.outboxes.depths().items()})
        self.reconcile.show_gauges()
        rows = len(self.views.verdicts)
        ctx.mark(series.PHASE1_PER_NEED, dict(event.phases_ns).get("phase1", 0) / 1e9 / max(1, rows))
        if ctx.cycle > self.settings.warmup_cycles:
            for phase, spent in event.phases_ns:
                ctx.observe(series.CYCLE_PHASE_DURATION, spent / 1e9, phase)
            ctx.observe(series.CYCLE_DURATION, event.total_ns / 1e9)


def _finish(work: Generator[str, None, CycleResult]) -> CycleResult:
    while True:
        try:
            next(work)
        except StopIteration as finished:
            result: CycleResult = finished.value
            return result


_MOST_SHOWN: Final = 1_000
_MOST_TOLD: Final = 2_000
"""Characters of a difference that go into the log."""
SLICE_ROWS: Final = 100
"""Rows between two looks at the clock: a millisecond or two of work, five at worst."""
