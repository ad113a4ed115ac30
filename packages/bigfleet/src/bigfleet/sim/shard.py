"""A shard process in a simulated world: its real core, and everything around it under virtual time."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from bigfleet.shard.core import effects, events
from bigfleet.shard.core.core import ShardCore
from bigfleet.shard.core.effects import Effect
from bigfleet.shard.core.events import Event, Failure, Observed
from bigfleet.shard.core.settings import CREDIT, Settings
from bigfleet.sim.provider import Answer, Ledger, Provider, Token
from bigfleet.sim.time import Order, VirtualTime
from bigfleet_base.model.frames import Frame

LIST_SLICE: Final = 256


class Peer(Protocol):
    """The operator's end of a session."""

    def receive(self, session: int, frames: Sequence[Frame]) -> bool:
        """Take frames; False when the peer does not read and they stay unwritten."""

    def ended(self, session: int, status: str, text: str) -> None:
        """The shard has ended the stream."""


@dataclass(slots=True)
class Notes:
    """What the shard wrote for people, over all lives of its process."""

    log: list[effects.WriteLog] = field(default_factory=list)
    audit: list[dict[str, effects.AuditValue]] = field(default_factory=list)
    counters: Counter[tuple[str, ...]] = field(default_factory=Counter)
    gauges: dict[tuple[str, ...], float] = field(default_factory=dict)
    observations: dict[tuple[str, ...], list[float]] = field(default_factory=dict)

    def lines(self, msg: str) -> list[dict[str, effects.LogValue]]:
        """The fields of the log lines with this text."""
        return [dict(line.fields) for line in self.log if line.msg == msg]

    def lines_of_audit(self, what: str) -> list[dict[str, effects.AuditValue]]:
        return [line for line in self.audit if line["type"] == what]


Trace = Callable[[int, Event, list[Effect]], None]


class SimShard:
    """Runs a core; ``kill`` and ``restart`` are what a real process goes through."""

    def __init__(
        self,
        time: VirtualTime,
        settings: Settings,
        providers: Sequence[Provider],
        *,
        trace: Trace | None = None,
    ) -> None:
        assert settings.providers == tuple(provider.name for provider in providers)
        self.time = time
        self.settings = settings
        self.providers: Mapping[str, Provider] = {provider.name: provider for provider in providers}
        self.notes = Notes()
        self.calls: list[effects.Effect] = []
        """Every mutation sent, in order."""
        self.list_duration = 0
        self.cycle_duration = 0
        """How long a cycle takes; events come in between."""
        self._trace = trace
        self._life = 0
        self.core: ShardCore | None = None
        self.start()

    @property
    def running(self) -> ShardCore:
        assert self.core is not None, "the shard is down"
        return self.core

    def start(self) -> None:
        """The process starts, with the epoch of its settings."""
        self._life += 1
        self.core = ShardCore(self.settings)
        self._sequence = 0
        self._session_numbers = 0
        self._ledgers = {name: Ledger() for name in self.providers}
        self._peers: dict[int, Peer] = {}
        self._unwritten: dict[int, int] = {}
        self._waiting: list[Event] = []
        self._deadline: int | None = None
        self.submit(events.TimePassed())

    def kill(self) -> None:
        """kill -9: nothing of the process is left; calls that were sent arrive all the same."""
        self.core = None
        peers, self._peers = self._peers, {}
        for session, peer in peers.items():
            peer.ended(session, "UNAVAILABLE", "the connection was lost")

    def restart(self) -> None:
        """Start again on the same data directory: the epoch goes up by one."""
        from dataclasses import replace

        self.settings = replace(self.settings, epoch=self.settings.epoch + 1)
        self.start()

    # What operators do

    def open(self, cluster: str, peer: Peer) -> int | None:
        """Open a session; None while the shard is down."""
        if self.core is None:
            return None
        self._session_numbers += 1
        session = self._session_numbers
        self._peers[session] = peer
        self.submit(events.SessionOpened(session, cluster, f"peer-{session}", "v1alpha1"))
        return session if session in self._peers else None

    def close(self, session: int, error: str = "") -> None:
        """The operator ends the stream, or its network does."""
        if self._peers.pop(session, None) is not None:
            self.submit(events.SessionClosed(session, error))

    def written(self, session: int, frames: int) -> None:
        """A peer that did not read has read so many frames."""
        self._written(session, frames)

    def submit(self, event: Event) -> None:
        """Let the core take an event and perform its effects. Lists and Gets wait for the end of a cycle."""
        if self.core is None:
            return
        if self.core.running is not None and isinstance(
            event, events.Listed | events.ListEnded | events.GetEnded
        ):
            self._waiting.append(event)
            return
        done = self.core.handle(event, self.time.now)
        if self._trace is not None:
            self._trace(self.time.now, event, done)
        life = self._life
        for effect in done:
            self._perform(effect)
            if self._life != life or self.core is None:
                return
        self._plan()

    def _plan(self) -> None:
        core = self.core
        due = None if core is None else core.next_deadline()
        if due is None or due == self._deadline:
            return
        self._deadline = due
        self.time.at(due, Order.SHARD, self._in_this_life(lambda: self._time_passed(due)))

    def _time_passed(self, due: int) -> None:
        if self._deadline == due:
            self._deadline = None
        self.submit(events.TimePassed())

    def _in_this_life(self, happen: Callable[[], None]) -> Callable[[], None]:
        life = self._life

        def guarded() -> None:
            if self.core is not None and self._life == life:
                happen()

        return guarded

    def _perform(self, effect: Effect) -> None:
        notes = self.notes
        match effect:
            case effects.EndSession(session, status, text):
                peer = self._peers.pop(session, None)
                if peer is not None:
                    peer.ended(session, status.value, text)
            case effects.SendFrames(session, frames):
                peer = self._peers.get(session)
                if peer is not None and peer.receive(session, frames):
                    self._written(session, len(frames))
            case effects.DropBlob():
                pass
            case (
                effects.CreateMachine()
                | effects.ConfigureMachine()
                | effects.DrainMachine()
                | effects.DeleteMachine()
            ):
                self.calls.append(effect)
                ledger = self._ledgers[effect.provider]
                self.providers[effect.provider].call(
                    effect, self._token(), self._answer_to(effect.op, effect.machine_id, ledger)
                )
            case effects.GetMachine(provider, machine_id):
                self._get(provider, machine_id)
            case effects.RaiseFloor(provider):
                self._raise_floor(provider)
            case effects.ListProvider(provider):
                started = self.time.now
                self.time.after(
                    self.list_duration,
                    Order.PROVIDER,
                    self._in_this_life(lambda: self._list(provider, started)),
                )
            case effects.RunCycle():
                self._begin_cycle()
                self.time.after(self.cycle_duration, Order.SHARD, self._in_this_life(self._finish_cycle))
            case effects.KeepRecording():
                # Here everything is recorded, or nothing.
                pass
            case effects.WriteLog():
                notes.log.append(effect)
            case effects.WriteAudit(line):
                notes.audit.append(dict(line))
            case effects.Count(series, labels, by):
                notes.counters[series.name, *labels] += by  # type: ignore[assignment]  # counts may be sums
            case effects.Observe(series, value, labels):
                notes.observations.setdefault((series.name, *labels), []).append(value)
            case effects.Mark(series, value, labels):
                notes.gauges[series.name, *labels] = value
            case effects.Show(series, values):
                for key in [key for key in notes.gauges if key[0] == series.name]:
                    notes.gauges[key] = 0
                notes.gauges.update({(series.name, *labels): value for labels, value in values})

    def _written(self, session: int, frames: int) -> None:
        """Credit goes back in lots, as the real shell gives it."""
        count = self._unwritten.get(session, 0) + frames
        self._unwritten[session] = count
        if count >= CREDIT // 2:
            self._unwritten[session] = 0
            event = events.Writable(session, count)
            self.time.after(0, Order.SHARD, self._in_this_life(lambda: self.submit(event)))

    def _token(self) -> Token:
        self._sequence += 1
        return Token(self.settings.shard_id, self.settings.epoch, self._sequence)

    def _answer_to(self, op: int, machine_id: str, ledger: Ledger) -> Callable[[Answer], None]:
        life = self._life

        def answered(answer: Answer) -> None:
            ledger.forget(machine_id)
            if self._life != life or self.core is None:
                return
            if isinstance(answer, Observed):
                self.submit(events.CallEnded(op, observed=answer))
            else:
                self.submit(events.CallEnded(op, failure=answer))

        return answered

    def _get(self, provider: str, machine_id: str) -> None:
        started, life, ledger = self.time.now, self._life, self._ledgers[provider]

        def answered(answer: Answer) -> None:
            ledger.forget(machine_id)
            if self._life != life:
                return
            observed = answer if isinstance(answer, Observed) else None
            failure = answer if isinstance(answer, Failure) else None
            self.submit(events.GetEnded(provider, machine_id, started, observed, failure))

        self.providers[provider].get(machine_id, answered)

    def _raise_floor(self, provider: str) -> None:
        life = self._life

        def answered(answer: Answer) -> None:
            if self._life != life:
                return
            fatal = isinstance(answer, Failure) and answer.kind in ("fenced", "transient", "not sent")
            failure = answer if fatal and isinstance(answer, Failure) else None
            self.submit(events.FloorRaised(provider, failure))

        self.providers[provider].raise_floor(self._token(), answered)

    def _list(self, provider: str, started: int) -> None:
        answer = self.providers[provider].list_all()
        if isinstance(answer, Failure):
            self.submit(events.ListFailed(provider, f"{answer.code}: {answer.details}"))
            return
        records, rejected = answer
        changed, gone = self._ledgers[provider].news(records, rejected)
        for first in range(0, len(changed), LIST_SLICE):
            self.submit(events.Listed(provider, started, changed[first : first + LIST_SLICE]))
        if gone or rejected:
            self.submit(events.Listed(provider, started, gone=gone, rejected=tuple(rejected)))
        self.submit(events.ListEnded(provider, started, complete=True))

    def _begin_cycle(self) -> None:
        """The cycle takes the machines and the demand of now, whatever comes while it runs (C1)."""
        running = self.running.running
        assert running is not None
        next(running, None)

    def _finish_cycle(self) -> None:
        core = self.running
        assert core.running is not None
        for _ in core.running:
            pass
        self.submit(events.CycleFinished(put_off=core.put_off))
        waiting, self._waiting = self._waiting, []
        for event in waiting:
            self.submit(event)
