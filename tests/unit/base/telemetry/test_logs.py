"""Log lines: their form, their limit, and that no call ever raises."""

import fcntl
import io
import json
import logging
import os
import re
import subprocess
import sys
import threading
import warnings
from typing import Any, BinaryIO, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bigfleet_base.telemetry import LEVELS, Level, Log, Logs
from bigfleet_base.telemetry.logs import IDENTIFIERS, LOST, MAX_LINE
from tests.support.alarms import within_seconds

SECOND = 10**9
# 2026-06-18T01:36:12.345678901Z
MOMENT = 1_781_746_572_345_678_901


class Capture:
    """A log of its own with clocks that stand still."""

    def __init__(self, level: Level = "debug") -> None:
        self.stream = io.BytesIO()
        self.monotonic = 0
        self.logs = Logs(
            self.stream, level=level, wall_ns=lambda: MOMENT, monotonic_ns=lambda: self.monotonic
        )
        self.log = self.logs.logger("shard", shard_id="shard-0", shard_epoch=7)

    def lines(self) -> list[dict[str, Any]]:
        text = self.stream.getvalue()
        assert text == b"" or text.endswith(b"\n")
        return [json.loads(line) for line in text.splitlines()]


@pytest.fixture
def capture() -> Capture:
    return Capture()


def test_a_line_has_time_level_message_component_and_identifiers(capture: Capture) -> None:
    capture.log.warn("action failed", kind="Bootstrap", machine="m-1", attempt=3)
    assert capture.lines() == [
        {
            "ts": "2026-06-18T01:36:12.345678Z",
            "level": "warn",
            "msg": "action failed",
            "component": "shard",
            "shard_id": "shard-0",
            "shard_epoch": 7,
            "kind": "Bootstrap",
            "machine": "m-1",
            "attempt": 3,
        }
    ]


def test_required_fields_come_first(capture: Capture) -> None:
    capture.log.info("cycle", cycle=60)
    assert list(capture.lines()[0])[:4] == ["ts", "level", "msg", "component"]


def test_time_has_six_digits_in_every_second(capture: Capture) -> None:
    stamps = iter([0, 999, 1_000, SECOND - 1, 1_700_000_000 * SECOND])
    logs = Logs(capture.stream, wall_ns=lambda: next(stamps), monotonic_ns=lambda: 0)
    for number in range(5):
        logs.logger("shard").info(f"line {number}")
    assert [line["ts"] for line in capture.lines()] == [
        "1970-01-01T00:00:00.000000Z",
        "1970-01-01T00:00:00.000000Z",
        "1970-01-01T00:00:00.000001Z",
        "1970-01-01T00:00:00.999999Z",
        "2023-11-14T22:13:20.000000Z",
    ]


def test_bound_fields_are_on_every_line_and_nowhere_else(capture: Capture) -> None:
    bound = capture.log.bind(cluster="c-1", operation_id="7-12")
    bound.info("one")
    capture.log.info("two")
    bound.info("three", cluster="c-2")
    first, second, third = capture.lines()
    assert (first["cluster"], first["operation_id"]) == ("c-1", "7-12")
    assert "cluster" not in second
    assert third["cluster"] == "c-2"


@pytest.mark.parametrize("level", list(LEVELS))
def test_lines_below_the_level_are_not_written(level: Level) -> None:
    capture = Capture(level)
    for name in LEVELS:
        getattr(capture.log, name)(name)
    order = list(LEVELS)
    assert [line["level"] for line in capture.lines()] == order[order.index(level) :]


def test_an_exception_becomes_fields(capture: Capture) -> None:
    try:
        raise ConnectionError("provider gone")
    except ConnectionError as error:
        capture.log.warn("reconcile failed", err=error)
        capture.log.exception("cycle crashed", cycle=3)
    handled, crashed = capture.lines()
    assert handled["err"] == "ConnectionError: provider gone"
    assert "stack" not in handled
    assert crashed["level"] == "error"
    assert crashed["err"] == "ConnectionError: provider gone"
    assert crashed["stack"][0].startswith("Traceback")
    assert crashed["stack"][-1] == "ConnectionError: provider gone"


def test_exception_without_one_is_an_error_line(capture: Capture) -> None:
    capture.log.exception("nothing happened")
    assert capture.lines()[0].keys().isdisjoint({"err", "stack"})


def test_callers_fields_never_replace_required_ones(capture: Capture) -> None:
    capture.log.bind(ts="bound", level="bound").info(
        "real", ts="x", level=3, msg="y", component="z", event="e", self=1, method_name=2
    )
    [line] = capture.lines()
    assert (line["ts"], line["level"], line["msg"], line["component"]) == (
        "2026-06-18T01:36:12.345678Z",
        "info",
        "real",
        "shard",
    )
    assert (line["ts_"], line["level_"], line["msg_"], line["component_"]) == ("x", 3, "y", "z")
    assert (line["event"], line["self"], line["method_name"]) == ("e", 1, 2)


def test_secrets_are_not_written(capture: Capture) -> None:
    capture.log.bind(token="hunter2").error(
        "token=hunter2 refused",
        user_data=b"hunter2",
        blob="hunter2",
        request={"shard_metadata": {"x": "hunter2"}, "raw": b"hunter2"},
        err=ValueError("Bearer hunter2"),
    )
    assert b"hunter2" not in capture.stream.getvalue()
    assert capture.lines()[0]["blob"] == "[redacted]"


def test_equal_lines_are_limited_to_ten_a_second(capture: Capture) -> None:
    for number in range(25):
        capture.log.warn("action failed", machine="m-1", attempt=number)
        capture.log.warn("action failed", machine="m-2")
        capture.monotonic += 1_000
    lines = capture.lines()
    assert [line["attempt"] for line in lines if line["machine"] == "m-1"] == list(range(10))
    assert not [line for line in lines if "suppressed" in line]
    capture.monotonic = SECOND
    capture.log.warn("action failed", machine="m-1", attempt=25)
    assert capture.lines()[-1]["suppressed"] == 15


@pytest.mark.parametrize("identifier", IDENTIFIERS)
def test_lines_about_different_things_are_not_equal(identifier: str, capture: Capture) -> None:
    for number in range(30):
        capture.log.info("same text", **{identifier: str(number)})
    assert len(capture.lines()) == 30


def test_the_last_count_is_written_when_the_flood_ends(capture: Capture) -> None:
    for _ in range(17):
        capture.log.warn("action failed", machine="m-1", kind="Bootstrap")
    capture.monotonic += SECOND
    capture.log.info("something else")
    summary, other = capture.lines()[10:]
    assert summary == {
        "ts": "2026-06-18T01:36:12.345678Z",
        "level": "warn",
        "msg": "action failed",
        "component": "shard",
        "shard_id": "shard-0",
        "shard_epoch": 7,
        "machine": "m-1",
        "suppressed": 7,
    }
    assert other["msg"] == "something else"


def test_flush_writes_the_counts_that_are_left(capture: Capture) -> None:
    for _ in range(12):
        capture.log.warn("action failed")
    capture.logs.flush()
    capture.logs.flush()
    assert [line.get("suppressed") for line in capture.lines()] == [None] * 10 + [2]


def test_a_field_of_the_callers_that_is_named_suppressed_is_kept(capture: Capture) -> None:
    for _ in range(11):
        capture.log.warn("actuation paused: decided actions suppressed", suppressed=40)
    assert capture.lines()[0]["suppressed"] == 40
    capture.monotonic = SECOND
    capture.log.warn("actuation paused: decided actions suppressed", suppressed=40)
    assert (capture.lines()[-1]["suppressed"], capture.lines()[-1]["suppressed_"]) == (1, 40)


class Evil:
    def __str__(self) -> str:
        raise RuntimeError("no")

    __repr__ = __hash__ = __str__  # type: ignore[assignment]  # every way to look at it fails

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("no")


@pytest.mark.parametrize(
    "fields",
    [
        {"machine": Evil()},
        {"cluster": ["unhashable"]},
        {"err": Evil()},
        {"value": {Evil: Evil()}},
        {"value": "\ud800"},
        {"value\ud800": 1},
        {"value": 10**5000},
        {"": ""},
    ],
    ids=["evil identifier", "list", "evil", "evil inside", "surrogate", "surrogate name", "huge", "empty"],
)
def test_a_log_call_never_raises(fields: dict[str, object], capture: Capture) -> None:
    capture.log.info("odd", **fields)
    [line] = capture.lines()
    assert (line["msg"], line["level"], line["component"]) == ("odd", "info", "shard")


def test_a_message_that_is_no_text_does_not_raise(capture: Capture) -> None:
    for msg in (None, 3, b"bytes", Evil(), ["list"]):
        capture.log.info(cast("str", msg))
    assert len(capture.lines()) == 5


@given(st.dictionaries(st.text(st.characters(codec=None)), st.text(st.characters(codec=None))), st.text())
def test_any_text_gives_one_line_that_parses(fields: dict[str, str], msg: str) -> None:
    capture = Capture()
    capture.log.info(msg, **fields)
    [line] = capture.lines()
    assert line.keys() >= {"ts", "level", "msg", "component", "shard_id"}


def test_a_line_is_bounded(capture: Capture) -> None:
    capture.log.info("big", machine="m-1", **{f"field{number}": "x" * 4000 for number in range(90)})
    [line] = capture.lines()
    assert len(capture.stream.getvalue()) < MAX_LINE
    assert line["cut_bytes"] > 300_000
    assert (line["msg"], line["machine"], line["shard_id"]) == ("big", "m-1", "shard-0")


class BrokenStream(io.BytesIO):
    def write(self, _line: object) -> int:
        raise BrokenPipeError


@pytest.mark.parametrize("stream", [BrokenStream(), io.BytesIO()])
def test_a_stream_that_is_gone_does_not_raise(stream: BinaryIO) -> None:
    logs = Logs(stream)
    if not isinstance(stream, BrokenStream):
        stream.close()
    for _ in range(11):
        logs.logger("shard").error("nobody hears this")
    logs.flush()


def test_lines_of_many_threads_do_not_mix() -> None:
    capture = Capture()

    def work(number: int) -> None:
        for step in range(200):
            capture.log.info("step", machine=f"m-{number}-{step}", filler="x" * 500)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({line["machine"] for line in capture.lines()}) == 800


def test_lines_go_to_standard_output_at_once() -> None:
    code = (
        "import os; from bigfleet_base.telemetry import Logs\n"
        "Logs().logger('operator', cluster='c-1').info('operator started', rollup_interval='10s')\n"
        "os._exit(0)"
    )
    env = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    run = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, check=True)
    line = json.loads(run.stdout)
    assert line["msg"] == "operator started"
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", line["ts"])
    assert run.stderr == b""


def test_text_form_is_one_readable_line(capture: Capture) -> None:
    logs = Logs(capture.stream, form="text", wall_ns=lambda: MOMENT)
    logs.logger("shard", shard_id="s-0").warn("shortfalls detected", count=2, top=["a", "b"], token="hunter2")
    logs.logger("shard").info("two\nlines\x1b[31m", **{"a\nb": "c\nd"})
    first, second = capture.stream.getvalue().decode().splitlines()
    assert first == (
        '2026-06-18T01:36:12.345678Z warn  shard: shortfalls detected shard_id="s-0" count=2 top=["a","b"] '
        'token="[redacted]"'
    )
    assert second.isprintable()


def test_lines_of_libraries_take_the_same_form(capture: Capture) -> None:
    with capture.logs.capture("shard"):
        logging.getLogger("grpc._channel").warning("retrying %s in %d s", "10.0.0.7:443", 5)
    [line] = capture.lines()
    assert line == {
        "ts": "2026-06-18T01:36:12.345678Z",
        "level": "warn",
        "msg": "retrying 10.0.0.7:443 in 5 s",
        "component": "shard",
        "logger": "grpc._channel",
    }


@pytest.mark.parametrize(
    ("number", "level"),
    [(5, None), (10, "debug"), (20, "info"), (25, "info"), (30, "warn"), (40, "error"), (50, "error")],
)
def test_levels_of_libraries_become_ours(number: int, level: str | None, capture: Capture) -> None:
    with capture.logs.capture("shard"):
        logging.getLogger("aiohttp").log(number, "text")
    assert [line["level"] for line in capture.lines()] == ([level] if level else [])


def test_exceptions_of_libraries_become_fields(capture: Capture) -> None:
    with capture.logs.capture("shard"):
        try:
            raise ValueError("in a task")
        except ValueError:
            logging.getLogger("asyncio").exception("Task exception was never retrieved")
    [line] = capture.lines()
    assert line["err"] == "ValueError: in a task"
    assert line["stack"][-1] == "ValueError: in a task"


def test_secrets_in_lines_of_libraries_are_not_written(capture: Capture) -> None:
    with capture.logs.capture("shard"):
        logging.getLogger("aiohttp").warning("header authorization: %s", "Bearer hunter2")
    assert capture.lines()
    assert b"hunter2" not in capture.stream.getvalue()


def test_a_flood_from_one_place_in_a_library_is_limited_although_its_texts_differ(capture: Capture) -> None:
    with capture.logs.capture("shard"):
        for number in range(30):
            logging.getLogger("grpc").warning("stream %d failed", number)
    assert len(capture.lines()) == 10
    capture.monotonic += SECOND
    capture.log.info("else")
    assert capture.lines()[10]["msg"] == "stream %d failed"
    assert capture.lines()[10]["suppressed"] == 20


def test_records_that_cannot_be_printed_do_not_raise(capture: Capture) -> None:
    with capture.logs.capture("shard"):
        logging.getLogger("odd").warning("%d things", "many")
        logging.getLogger("odd").warning(Evil())
        logging.getLogger("odd").warning("%s", Evil())
    assert [line["logger"] for line in capture.lines()] == ["odd"] * 3


def test_warnings_of_python_are_captured(capture: Capture) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        with capture.logs.capture("shard"):
            warnings.warn("old way", DeprecationWarning, stacklevel=1)
    [line] = capture.lines()
    assert line["logger"] == "py.warnings"
    assert "old way" in line["msg"]


def test_capture_ends_with_its_context() -> None:
    capture = Capture()
    root = logging.getLogger()
    before = (list(root.handlers), root.level)
    with capture.logs.capture("shard"):
        assert root.handlers != before[0]
    assert (list(root.handlers), root.level) == before


def test_logger_is_typed_for_what_components_do_with_it(capture: Capture) -> None:
    bound: Log = capture.log.bind(machine="m-1").unbind("machine")
    bound.info("fine")
    assert "machine" not in capture.lines()[0]


def test_a_reader_that_has_stopped_holds_up_nobody_and_learns_how_many_lines_it_has_missed() -> None:
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    with within_seconds(20), os.fdopen(writer, "wb") as stream:
        logs = Logs(stream)
        for number in range(2_000):
            logs.logger("shard").info(f"line {number}", pad="x" * 100)
        read = os.read(reader, 1 << 20)
        for number in range(2_000, 2_005):
            logs.logger("shard").info(f"line {number}")
        read += os.read(reader, 1 << 20)
    os.close(reader)
    lines = [json.loads(line) for line in read.splitlines()]
    [at] = [n for n, line in enumerate(lines) if line["msg"] == LOST]
    assert lines[at]["level"] == "warn" and lines[at]["component"] == "log"
    assert 0 < at < 2_000 and lines[at]["lost"] == 2_000 - at
    assert [line["msg"] for line in lines[:at]] == [f"line {n}" for n in range(at)]
    assert [line["msg"] for line in lines[at + 1 :]] == [f"line {n}" for n in range(2_000, 2_005)]


def test_a_line_that_finds_room_for_its_head_alone_is_ended_before_any_other() -> None:
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 4096)
    read = b""
    with within_seconds(20), os.fdopen(writer, "wb") as stream:
        logs = Logs(stream)
        logs.logger("shard").info("long", texts=["x" * 1_000] * 40)
        for number in range(20):
            read += os.read(reader, 4096)
            logs.logger("shard").info(f"line {number}")
        read += os.read(reader, 4096)
    os.close(reader)
    first, *others = [json.loads(line) for line in read.splitlines()]
    assert len(first["texts"]) == 40
    number = 0
    for line in others:
        assert line["msg"] in (LOST, f"line {number}")
        number += line.get("lost", 1)
    assert number > 10
