"""What a recorded shard did, derived once more from its events and compared with what it did then."""

import argparse
import dataclasses
import json
import math
import re
import sys
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from itertools import islice
from pathlib import Path
from typing import Any, Final

from bigfleet.shard.core.core import ShardCore
from bigfleet.shard.core.effects import Effect
from bigfleet.shard.core.events import CycleFinished, Event
from bigfleet.shard.recording.checkpoint import SCHEMA, restore
from bigfleet.shard.recording.codec import DecodeError
from bigfleet.shard.recording.segments import Batch, DamageError, SegmentError, SegmentReader, digest
from bigfleet_base.telemetry.series import Series

PROGRESS_EVERY: Final = 10_000
"""Batches between two lines of progress."""


class OutputLostError(Exception):
    """Nobody takes what is printed any more."""


@dataclass(frozen=True, slots=True)
class Derived:
    """One event and what came of it."""

    batch: int
    now: int
    event: Event
    effects: list[Effect]


@dataclass(slots=True)
class Difference:
    """The first batch from which something else came than was recorded."""

    batch: int
    now: int
    recorded_effects: int
    derived: list[Derived]
    error: str = ""
    """Of the core, where it did not get through the batch."""


@dataclass(slots=True)
class Summary:
    segment: str
    batches: int = 0
    events: int = 0
    effects: int = 0
    first_ns: int | None = None
    last_ns: int | None = None
    """The times of the first and the last batch."""
    torn_bytes: int = 0
    damaged_at: int | None = None
    """The byte from which on the file is not what was written."""
    difference: Difference | None = None


def add_replay_arguments(parser: argparse.ArgumentParser) -> None:
    """What ``bigfleet shard replay`` is given."""
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help="a segment of a --record-dir")
    parser.add_argument(
        "--output", choices=("text", "json"), default="text", help="form of the summary (default: text)"
    )
    parser.add_argument("--effects", action="store_true", help="print every effect as a line of JSON")
    parser.add_argument(
        "--until", type=_batches, metavar="N", help="stop after the Nth batch of each file (default: none)"
    )


def run_replay(args: argparse.Namespace) -> int:
    """Replay each file by itself. 0: every effect is the same as recorded; 1: not so, or a file cannot be
    read to its end."""
    show = _print_effects if args.effects else _ignore
    code = 0
    for path in args.files:
        try:
            with path.open("rb") as file:
                summary = replay(
                    SegmentReader(file, str(path), SCHEMA),
                    until=args.until,
                    show=show,
                    progress=_print_progress,
                )
        except (OSError, SegmentError) as error:
            reason = f"{path}: cannot be read: {error.strerror}" if isinstance(error, OSError) else error
            print(f"bigfleet shard replay: {reason}", file=sys.stderr)
            code = 1
            continue
        _print(_json(summary) if args.output == "json" else _text(summary))
        if summary.difference is not None or summary.damaged_at is not None:
            code = 1
    return code


def replay(
    segment: SegmentReader,
    *,
    until: int | None = None,
    show: Callable[[Derived], None],
    progress: Callable[[Summary], None],
) -> Summary:
    """Feed a segment's events to a core restored from its checkpoint, up to a batch or the first
    difference."""
    try:
        run = Run(restore(segment.checkpoint()))
    except (DecodeError, ValueError, TypeError) as error:
        raise SegmentError(f"{segment.name}: the checkpoint cannot be read: {error}") from error
    summary = Summary(segment.name)
    try:
        _compare(run, segment, summary, until, show, progress)
    except DamageError as error:
        summary.damaged_at = error.at
    summary.torn_bytes = segment.torn
    return summary


def _compare(
    run: "Run",
    segment: SegmentReader,
    summary: Summary,
    until: int | None,
    show: Callable[[Derived], None],
    progress: Callable[[Summary], None],
) -> None:
    for batch in islice(segment.batches(), until):
        number = summary.batches = summary.batches + 1
        derived, failure = run.take(batch, number)
        effects = [effect for each in derived for effect in each.effects]
        summary.events += len(batch.events)
        summary.effects += len(effects)
        summary.first_ns, summary.last_ns = summary.first_ns or batch.now, batch.now
        for each in derived:
            show(each)
        if failure or digest(effects) != batch.digest:
            summary.difference = Difference(number, batch.now, batch.effects, derived, failure)
            break
        if number % PROGRESS_EVERY == 0:
            progress(summary)
    else:
        if until is None and (failure := run.end()):
            summary.difference = Difference(summary.batches, summary.last_ns or 0, 0, [], failure)


class Run:
    """A core driven as the shell drives it: a cycle has its first step before the next event and its last
    right before the event that says so; what lies between does not matter."""

    def __init__(self, core: ShardCore) -> None:
        self.core = core
        self._begun: object = None

    def take(self, batch: Batch, number: int) -> tuple[list[Derived], str]:
        """What comes of a batch, and the error of a core that did not get through it."""
        core, derived = self.core, []
        try:
            for event in batch.events:
                if isinstance(event, CycleFinished) and core.running is not None:
                    core.run_out(event)
                derived.append(Derived(number, batch.now, event, core.handle(event, batch.now)))
            if core.running is not None and core.running is not self._begun:
                self._begun = core.running
                next(core.running, None)
        except Exception:
            # Whatever a core can do wrong is what the reader is looking for.
            return derived, traceback.format_exc()
        return derived, ""

    def end(self) -> str:
        """The error of the cycle that was under way when the record ends, if it has one: it may be what ended
        the record."""
        try:
            for _ in self.core.running or ():
                pass
        except Exception:
            return traceback.format_exc()
        return ""


def _batches(text: str) -> int:
    if not re.fullmatch(r"[0-9]{1,18}", text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of batches: give a whole number")
    return int(text)


def _ignore(_: Derived) -> None:
    pass


def _print_effects(derived: Derived) -> None:
    for effect in derived.effects:
        where = {"batch": derived.batch, "now": derived.now, "event": type(derived.event).__name__}
        _print(json.dumps({**where, "effect": as_json(effect)}))


def _print(text: str) -> None:
    try:
        print(text)
    except OSError as error:
        raise OutputLostError(error.strerror) from error


def _print_progress(summary: Summary) -> None:
    print(
        f"{summary.segment}: {summary.batches} batches, {summary.events} events, {summary.effects} effects",
        file=sys.stderr,
    )


def _json(summary: Summary) -> str:
    fields = as_json(summary)
    del fields["type"]
    return json.dumps(fields)


def _text(summary: Summary) -> str:
    span = ((summary.last_ns or 0) - (summary.first_ns or 0)) / 1e9
    lines = [
        f"{summary.segment}: {summary.batches} batches, {summary.events} events, {summary.effects} effects"
        f" over {span:.1f} s"
    ]
    if summary.torn_bytes:
        lines.append(f"  the last {summary.torn_bytes} bytes are no whole batch and were left out")
    difference = summary.difference
    if summary.damaged_at is not None:
        lines.append(
            f"  damaged at byte {summary.damaged_at}: every effect before it is as recorded, what follows"
            " cannot be judged"
        )
        return "\n".join(lines)
    if difference is None:
        lines.append("  every effect is as recorded")
        return "\n".join(lines)
    lines.append(f"  batch {difference.batch} is the first that differs from the record:")
    for each in difference.derived:
        lines.append(f"    {json.dumps(as_json(each.event))}")
        lines += [f"      -> {json.dumps(as_json(effect))}" for effect in each.effects]
    count = sum(len(each.effects) for each in difference.derived)
    lines.append(f"  {count} effects were derived, {difference.recorded_effects} recorded")
    if difference.error:
        lines.append(f"  the core failed:\n{difference.error}")
    return "\n".join(lines)


def as_json(value: Any) -> Any:
    """Any event or effect in the words of JSON, for people and their tools."""
    if isinstance(value, Series):
        return value.name
    if dataclasses.is_dataclass(value):
        fields = {field.name: as_json(getattr(value, field.name)) for field in dataclasses.fields(value)}
        return {"type": type(value).__name__, **fields}
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return {"type": type(value).__name__, **as_json(value._asdict())}
    if isinstance(value, Enum):
        return value.name
    if isinstance(value, Mapping):
        return {str(key): as_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [as_json(item) for item in value]
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, float) and not math.isfinite(value):
        # JSON has no word for these.
        return str(value)
    return value
