"""Structured logs: one JSON object a line.

Every line has ``ts``, ``level``, ``msg`` and ``component``, and the identifiers bound to its logger. ``msg``
is a fixed text that people and runbooks search for; what varies goes into fields. Equal lines are limited to
ten a second; the next that is written says how many were ``suppressed``. A call never raises and never shows
a secret (``redact``). Nor does it wait for a reader that has stopped: lines are lost then, and counted in a
line of their own::

    logs = Logs()
    log = logs.logger("shard", shard_id="shard-0", shard_epoch=7)
    log.warn("action failed", kind="Bootstrap", machine="m-1", err=error)
"""

import logging
import sys
import time
from collections.abc import Callable, Iterator, MutableMapping
from contextlib import contextmanager, suppress
from functools import lru_cache
from threading import RLock
from typing import Any, BinaryIO, Final, Literal

import orjson
import structlog

from bigfleet_base.telemetry import redact
from bigfleet_base.telemetry.output import Output
from bigfleet_base.telemetry.ratelimit import SECOND_NS, RateLimit

Level = Literal["debug", "info", "warn", "error"]
Form = Literal["json", "text"]

LEVELS: Final[dict[Level, int]] = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warn": logging.WARNING,
    "error": logging.ERROR,
}

IDENTIFIERS: Final = (
    *("shard_id", "shard_epoch", "cluster", "machine"),
    *("operation_id", "coordinator_term", "trace_id"),
)
"""What a line is about."""

MAX_LINE: Final = 65_536
LOST: Final = "log lines lost: there was no room for them"

_HEAD: Final = ("level", "msg", "component")
# Lines that agree in these are equal to the rate limit.
_SAMENESS: Final = ("msg", "level", "component", *IDENTIFIERS)
# The field in which a library's message comes before its arguments were put in, for the rate limit.
_TEMPLATE: Final = "\0template"

_Event = MutableMapping[str, Any]


class Log(structlog.BoundLoggerBase):
    """The logger of one component. ``bind`` returns one whose lines all carry more fields."""

    def debug(self, msg: str, /, **fields: object) -> None:
        self._emit("debug", msg, fields)

    def info(self, msg: str, /, **fields: object) -> None:
        self._emit("info", msg, fields)

    def warn(self, msg: str, /, **fields: object) -> None:
        self._emit("warn", msg, fields)

    def error(self, msg: str, /, **fields: object) -> None:
        self._emit("error", msg, fields)

    def exception(self, msg: str, /, **fields: object) -> None:
        """An error line with the exception being handled in ``err`` and ``stack``."""
        self._emit("error", msg, fields, sys.exception())

    def _emit(
        self, level: Level, msg: str, fields: dict[str, Any], error: BaseException | None = None
    ) -> None:
        logs: Logs = self._logger
        if LEVELS[level] < logs.threshold:
            return
        try:
            for name in (*_HEAD, "ts"):
                _keep_apart(fields, name)
            if error is not None:
                fields.setdefault("err", error)
                fields["stack"] = redact.stack(error)
            fields["level"], fields["msg"] = level, msg
            (line,), _ = self._process_event(level, None, fields)
            logs.write(line)
        except structlog.DropEvent:
            pass
        except Exception as failure:
            # A defect in what is logged, or in here, must not become one of the caller.
            component = self._context.get("component")
            with suppress(Exception):
                logs.write_fields(level=level, msg=msg, component=component, log_failure=failure)


class Logs:
    """Where the lines of a process go.

    ``wall_ns`` stamps the lines; ``monotonic_ns`` drives the limit on equal ones.
    """

    def __init__(
        self,
        stream: BinaryIO | None = None,
        *,
        level: Level = "info",
        form: Form = "json",
        wall_ns: Callable[[], int] = time.time_ns,
        monotonic_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self.threshold = LEVELS[level]
        self._lines = _Lines(stream or sys.stdout.buffer)
        self._lost = 0
        """Lines since the last one that found room."""
        self._form = form
        self._wall_ns = wall_ns
        self._monotonic_ns = monotonic_ns
        self._limit = RateLimit[tuple[object, ...]]()
        # Reentrant, because a signal handler may log while a line is being written.
        self._lock = RLock()

    def logger(self, component: str, **identifiers: object) -> Log:
        """A logger whose lines all carry the component and these fields."""
        return Log(self, (self._admit, _shape, self._render), {"component": component, **identifiers})

    @contextmanager
    def capture(self, component: str) -> Iterator[None]:
        """While the context lasts, take what libraries write through ``logging``, and Python's warnings."""
        root = logging.getLogger()
        handlers, level = root.handlers, root.level
        root.handlers = [_Handler(self.logger(component))]
        root.setLevel(self.threshold)
        logging.captureWarnings(True)
        try:
            yield
        finally:
            logging.captureWarnings(False)
            root.handlers = handlers
            root.setLevel(level)

    def flush(self) -> None:
        """Report lines left out that no later line has reported; for the end of the process."""
        self._report_overdue(self._monotonic_ns() + SECOND_NS)

    def write(self, line: bytes) -> None:
        with self._lock:
            lost = self._lost
            if lost and self._lines.put(self._rendered(level="warn", msg=LOST, component="log", lost=lost)):
                self._lost = 0
            if self._lost or not self._lines.put(line):
                self._lost += 1

    def write_fields(self, **fields: object) -> None:
        """Write a line past the limit."""
        self.write(self._rendered(**fields))

    def _rendered(self, **fields: object) -> bytes:
        return self._render(self, "", _shape(self, "", fields))

    # The three steps below are processors of structlog: (logger, name of the method, event) → event.

    def _admit(self, _logs: object, _level: str, event: _Event) -> _Event:
        now = self._monotonic_ns()
        template = event.pop(_TEMPLATE, event["msg"])
        key = _hashable((template, *map(event.get, _SAMENESS[1:])))
        with self._lock:
            suppressed = self._limit.admit(key, now)
            self._report_overdue(now)
        if suppressed is None:
            raise structlog.DropEvent
        if suppressed:
            _keep_apart(event, "suppressed")
            event["suppressed"] = suppressed
        return event

    def _report_overdue(self, now: int) -> None:
        with self._lock:
            for key, suppressed in self._limit.overdue(now):
                known = {name: value for name, value in zip(_SAMENESS, key, strict=True) if value is not None}
                self.write_fields(**known, suppressed=suppressed)

    def _render(self, _logs: object, _level: str, event: _Event) -> bytes:
        seconds, nanos = divmod(self._wall_ns(), SECOND_NS)
        event = {"ts": f"{_second(seconds)}.{nanos // 1000:06d}Z", **event}
        line = _FORMS[self._form](event)
        if len(line) > MAX_LINE:
            short = {name: event[name] for name in ("ts", *_SAMENESS) if name in event}
            line = _FORMS[self._form](short | {"cut_bytes": len(line)})
        return line


class _Lines:
    """A stream that takes lines as wholes."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._output = _output(stream)
        self._rest = memoryview(b"")
        """Of the last line, which there was no room for."""

    def put(self, line: bytes) -> bool:
        """Whether it is taken: what there is no room for is written before any other line."""
        if self._output is None:
            with suppress(OSError, ValueError):
                self._stream.write(line)
                self._stream.flush()
            return True
        if not self._push(self._output):
            return False
        self._rest = memoryview(line)
        self._push(self._output)
        return True

    def _push(self, output: Output) -> bool:
        """Whether nothing is left of the last line."""
        try:
            while self._rest:
                self._rest = self._rest[output.push(self._rest) :]
        except OSError:
            return False  # nobody can be told that standard output is full or gone
        return True


def _output(stream: BinaryIO) -> Output | None:
    """None for what is no file of the system."""
    try:
        return Output(stream.fileno())
    except (OSError, ValueError):
        return None


class _Handler(logging.Handler):
    """Passes the records of ``logging`` on."""

    def __init__(self, log: Log) -> None:
        super().__init__()
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        try:
            message = record.getMessage()
        except Exception:
            message = "a log record that cannot be printed"
        level: Level = "debug"
        for name, number in LEVELS.items():
            if record.levelno >= number:
                level = name
        error = record.exc_info[1] if record.exc_info else None
        template = record.msg if isinstance(record.msg, str) else message
        self._log._emit(level, message, {"logger": record.name, _TEMPLATE: template}, error)


def _shape(_logs: object, _level: str, event: _Event) -> _Event:
    event.pop("ts", None)  # bound by a caller; the line's own comes last
    head = {name: redact.plain(event.pop(name, None)) for name in _HEAD}
    return head | redact.fields(event)


def _hashable(values: tuple[object, ...]) -> tuple[object, ...]:
    try:
        hash(values)
    except TypeError:
        return tuple(str(redact.plain(value)) for value in values)
    return values


def _keep_apart(fields: _Event, name: str) -> None:
    """Give a field of the caller another name when it would be taken for one of ours."""
    if name in fields:
        fields[f"{name}_"] = fields.pop(name)


@lru_cache(maxsize=2)
def _second(seconds: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))


def _json(event: _Event) -> bytes:
    return orjson.dumps(event) + b"\n"


def _text(event: _Event) -> bytes:
    rest = dict(event)
    ts, level, msg, component = (_printable(rest.pop(name)) for name in ("ts", "level", "msg", "component"))
    fields = "".join(f" {_printable(name)}={orjson.dumps(value).decode()}" for name, value in rest.items())
    return f"{ts} {level:<5} {component}: {msg}{fields}\n".encode()


def _printable(value: object) -> str:
    return value if isinstance(value, str) and value.isprintable() else orjson.dumps(value).decode()


_FORMS: Final[dict[Form, Callable[[_Event], bytes]]] = {"json": _json, "text": _text}
