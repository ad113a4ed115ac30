"""What the parts of the core share: the time, the effects of the event at hand, timers, the engine."""

import heapq
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from bigfleet.engine.cycle import Engine
from bigfleet.shard.core.effects import (
    AuditValue,
    Count,
    Effect,
    LogLevel,
    LogValue,
    Mark,
    Observe,
    Show,
    WriteAudit,
    WriteLog,
)
from bigfleet.shard.core.settings import Settings
from bigfleet_base.telemetry.series import CounterSeries, GaugeSeries, HistogramSeries


class Timer(StrEnum):
    """What a time was asked for; ``core`` sends each to the part that asked."""

    CYCLE = "cycle"
    BLOB = "blob"
    """The answer to a bootstrap request is overdue; the key is the request's id."""
    CORDON = "cordon"
    """The acknowledgement of an instruction is overdue; the key is the instruction's id."""
    INSTRUCTION = "instruction"
    """An instruction has outlived its drain; the key is the machine's id."""
    OUTBOX = "outbox"
    """More frames may be made: what one event sends is limited."""
    LIST = "list"
    """The next List is due; the key is the provider."""
    REREAD = "reread"
    """More Gets may be sent; the key is the provider."""
    STUCK = "stuck"
    """Look at machines that have been in transition for long."""
    REMOVED = "removed"
    """The last word on a machine that is gone is due; the key is its id."""
    SHORTFALLS = "shortfalls"
    HINTS = "hints"
    """More clusters may be told what they could get."""


class Cause(StrEnum):
    """What starts a cycle; the values are those of the metric."""

    TIMER = "timer"
    """The interval is over, or a List has been merged."""
    ROLLUP = "rollup"
    DEFERRED = "deferred"
    DRAIN = "drain"
    """The action queue fell below half after it had been full."""


@dataclass(slots=True)
class Timers:
    """Times asked for, earliest first. A time is never taken back: whoever asked looks whether it still
    matters when it comes."""

    heap: list[tuple[int, int, Timer, str]] = field(default_factory=list)
    count: int = 0

    def at(self, time: int, timer: Timer, key: str = "") -> None:
        self.count += 1
        heapq.heappush(self.heap, (time, self.count, timer, key))

    def next(self) -> int | None:
        return self.heap[0][0] if self.heap else None

    def due(self, now: int) -> tuple[Timer, str] | None:
        """Take the earliest that has come."""
        if not self.heap or self.heap[0][0] > now:
            return None
        _, _, timer, key = heapq.heappop(self.heap)
        return timer, key


AUDIT_KEYS: Final = (
    "machine_id",
    "cluster",
    "from",
    "to",
    "op_id",
    "kind",
    "need_fp",
    "group",
    "priority",
    "reason",
    "outcome",
    "grace_s",
    "cost",
    "runner_up_cost",
    "victim_score",
    "count",
    "pods",
    "err",
)


@dataclass(slots=True)
class Context:
    """Handed to every part of the core."""

    settings: Settings
    engine: Engine
    timers: Timers = field(default_factory=Timers)
    now: int = 0
    """The time of the event at hand, in nanoseconds."""
    cycle: int = 0
    """Cycles begun by this process."""
    audit_seq: int = 0
    effects: list[Effect] = field(default_factory=list)
    """Of the event at hand."""
    wakes: list[tuple[Cause, bool]] = field(default_factory=list)
    """Why the event at hand wants a cycle, and whether that can wait for the end of the window."""

    def emit(self, effect: Effect) -> None:
        self.effects.append(effect)

    def wake(self, cause: Cause, *, urgent: bool = False) -> None:
        """Ask for a cycle before the interval is over; an urgent one need not wait for the window's end."""
        self.wakes.append((cause, urgent))

    def log(self, level: LogLevel, msg: str, **fields: LogValue) -> None:
        self.effects.append(WriteLog(level, msg, tuple(fields.items())))

    def count(self, series: CounterSeries, *labels: str, by: float = 1) -> None:
        self.effects.append(Count(series, labels, by))

    def observe(self, series: HistogramSeries, value: float, *labels: str) -> None:
        self.effects.append(Observe(series, value, labels))

    def mark(self, series: GaugeSeries, value: float, *labels: str) -> None:
        self.effects.append(Mark(series, value, labels))

    def show(self, series: GaugeSeries, values: dict[tuple[str, ...], float]) -> None:
        # In a fixed order: maps are in the order of their history, which a restored core does not have.
        self.effects.append(Show(series, tuple(sorted(values.items()))))

    def audit(self, what: str, **fields: AuditValue) -> None:
        """Write a line in the vocabulary of simulator.md §8.2; fields that are None are left out. ``from``
        is a word of Python's, so it is given as ``from_``."""
        fields["from"] = fields.pop("from_", None)
        head: list[tuple[str, AuditValue]] = [
            ("t", self.now),
            ("seq", self.audit_seq),
            ("cycle", self.cycle),
            ("shard", self.settings.shard_id),
            ("type", what),
        ]
        self.audit_seq += 1
        body = [(key, fields[key]) for key in AUDIT_KEYS if fields.get(key) is not None]
        self.effects.append(WriteAudit((*head, *body)))
