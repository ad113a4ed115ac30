"""The driver: what is done in which order, and what waits for the end of a cycle."""

import asyncio
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Sequence
from typing import Any, cast

import pytest

from bigfleet.shard.core.core import ShardCore
from bigfleet.shard.core.effects import (
    Assignment,
    ConfigureMachine,
    Count,
    CreateMachine,
    DropBlob,
    Effect,
    EndSession,
    EndStatus,
    GetMachine,
    LogLevel,
    Mark,
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
    GetEnded,
    HelloRepeated,
    Listed,
    ListEnded,
    PauseFile,
    ShutdownBegun,
    TimePassed,
)
from bigfleet.shard.shell import driver as module
from bigfleet.shard.shell.auditlog import AuditLog
from bigfleet.shard.shell.driver import Clock, Driver, ProviderCall
from bigfleet_base.model.frames import Frame, HelloAck
from bigfleet_base.telemetry import Logs, Metrics, Role
from bigfleet_base.telemetry.catalogue import shard as series
from tests.support.eventually import eventually
from tests.support.rules import rule

ASSIGNMENT = Assignment(1, 0.0, 0.0, "fp", "")
CREATE = CreateMachine(7, "default", "m-1", ASSIGNMENT, "c1", 10**9)
CONFIGURE = ConfigureMachine(8, "default", "m-1", "c1", "r-1", ASSIGNMENT, 10**9)


class Core:
    """Says what it is told to say, and remembers what it heard."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.times: list[int] = []
        self.answers: dict[type[Event], list[Effect]] = {}
        self.running: Generator[str, None, None] | None = None
        self.slices = 0
        self.put_off = False
        self.deadline: int | None = None

    def handle(self, event: Event, now: int) -> list[Effect]:
        if isinstance(event, Listed | ListEnded | GetEnded):
            assert self.running is None
        if isinstance(event, CycleFinished):
            self.running = None
        if self.deadline is not None and now >= self.deadline:
            self.deadline = None
        self.events.append(event)
        self.times.append(now)
        effects = self.answers.pop(type(event), [])
        if RunCycle() in effects:
            self.running = self._cycle()
        return effects

    def next_deadline(self) -> int | None:
        return self.deadline

    def _cycle(self) -> Generator[str, None, None]:
        for _ in range(self.slices):
            yield "phase1"


class Outside:
    """Sessions, providers, recorder and audit log, all writing into one list."""

    def __init__(self, done: list[Any]) -> None:
        self.done = done

    def send(self, session: int, frames: Sequence[Frame]) -> None:
        self.done.append(("send", session, tuple(frames)))

    def end(self, session: int, status: EndStatus, text: str) -> None:
        self.done.append(("end", session, status))

    def call(self, effect: ProviderCall) -> None:
        self.done.append(("call", effect))

    def drop_blob(self, request_id: str) -> None:
        self.done.append(("drop", request_id))

    def record(self, now: int, events: Sequence[Event], effects: Sequence[Effect]) -> None:
        self.done.append(("record", tuple(events), len(effects)))

    def keep(self) -> None:
        self.done.append(("keep",))

    def write(self, lines: Sequence[WriteAudit]) -> None:
        self.done.append(("audit", len(list(lines))))

    def close(self) -> None:
        self.done.append(("close",))


class Bench:
    """A driver around a core that can be told what to do."""

    def __init__(self, is_paused: Callable[[], bool] = lambda: False, clock: Clock | None = None) -> None:
        self.core = Core()
        self.done: list[Any] = []
        self.outside = Outside(self.done)
        self.metrics = Metrics(Role.SHARD)
        self.driver = Driver(
            cast("ShardCore", self.core),
            clock or Clock(),
            self.metrics,
            Logs().logger("shard"),
            is_paused=is_paused,
            audit=cast("AuditLog", self.outside),
            recorder=self.outside,
        )

    async def __aenter__(self) -> "Bench":
        self.task = asyncio.ensure_future(self.driver.run(self.outside, self.outside))
        await self.driver.handled(TimePassed())
        self.core.events.clear()
        self.done.clear()
        return self

    async def __aexit__(self, *_: object) -> None:
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)


@rule("shard.R6", "shard.R8")
async def test_events_are_recorded_and_audited_before_anything_is_done() -> None:
    async with Bench() as bench:
        audit = WriteAudit((("type", "action.emitted"),))
        bench.core.answers[HelloRepeated] = [CREATE, audit, SendFrames(1, (HelloAck(),)), audit]
        await bench.driver.handled(HelloRepeated(1))
        assert [entry[0] for entry in bench.done] == ["record", "audit", "call", "send"]
        assert bench.done[1] == ("audit", 2)


async def test_effects_are_performed_in_their_order() -> None:
    async with Bench() as bench:
        bench.core.answers[HelloRepeated] = [
            SendFrames(1, (HelloAck(),)),
            EndSession(1, EndStatus.ABORTED, "gone"),
            GetMachine("default", "m-1"),
            DropBlob("r-1"),
            WriteLog(LogLevel.WARN, "a line", (("machine", "m-1"),)),
            Count(series.ACTIONS_DROPPED, (), 3),
            Mark(series.FENCED, 1),
        ]
        await bench.driver.handled(HelloRepeated(1))
        assert [entry[0] for entry in bench.done[1:]] == ["send", "end", "call", "drop"]
        page = bench.metrics.render().decode()
        assert "bigfleet_shard_actions_dropped_total 3.0" in page and "bigfleet_shard_fenced 1.0" in page


async def test_label_sets_that_are_no_longer_shown_become_0() -> None:
    async with Bench() as bench:
        for values in ((("plain",), 3.0), (("same",), 2.0)), ((("same",), 5.0),):
            bench.core.answers[HelloRepeated] = [Show(series.NEEDS_ROWS, values)]
            await bench.driver.handled(HelloRepeated(1))
        page = bench.metrics.render().decode()
        assert 'bigfleet_shard_needs_rows{kind="plain"} 0.0' in page
        assert 'bigfleet_shard_needs_rows{kind="same"} 5.0' in page


async def test_the_core_is_called_when_it_wants_to_be() -> None:
    async with Bench() as bench:
        bench.core.deadline = due = bench.driver.clock.now() + 30_000_000
        bench.driver.submit(HelloRepeated(1))
        await eventually(lambda: bench.core.events == [HelloRepeated(1), TimePassed()])
        assert bench.core.times[-1] >= due


async def test_what_writes_machines_waits_for_the_end_of_the_cycle_and_nothing_else_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "SLICE_NS", 1)
    async with Bench() as bench:
        bench.core.slices = 50
        bench.core.answers[HelloRepeated] = [RunCycle()]
        bench.driver.submit(HelloRepeated(1))
        bench.driver.submit(Listed("default", 1))
        bench.driver.submit(ListEnded("default", 1, True))
        merged = asyncio.ensure_future(bench.driver.handled(GetEnded("default", "m-1", 1)))
        await bench.driver.handled(CallEnded(1))
        assert not merged.done() and bench.core.running is not None
        await merged
        kinds = [type(event) for event in bench.core.events]
        assert kinds == [HelloRepeated, CallEnded, CycleFinished, Listed, ListEnded, GetEnded]


async def test_others_have_their_turn_between_two_slices_of_a_cycle(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "SLICE_NS", 1)
    async with Bench() as bench:
        bench.core.slices = 100
        bench.core.answers[HelloRepeated] = [RunCycle()]
        bench.driver.submit(HelloRepeated(1))
        turns = 0
        while CycleFinished not in map(type, bench.core.events):
            await asyncio.sleep(0)
            turns += 1
        assert turns > 50


async def test_others_have_their_turn_between_the_events_and_the_slice_that_follows_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with Bench() as bench:
        heard = list[str]()

        def cycle() -> Generator[str, None, None]:
            heard.append("first step")
            asyncio.get_running_loop().call_soon(heard.append, "somebody else")
            yield "phase1"
            heard.append("slice")
            yield "phase2"

        monkeypatch.setattr(bench.core, "_cycle", cycle)
        bench.core.answers[HelloRepeated] = [RunCycle()]
        bench.driver.submit(HelloRepeated(1))
        await eventually(lambda: CycleFinished in map(type, bench.core.events))
        assert heard == ["first step", "somebody else", "slice"]


@rule("shard.R8")
async def test_no_event_comes_between_the_batch_that_begins_a_cycle_and_its_first_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "_QUIET_NS", 0)
    # On a busy machine the least rest may take longer than a slice, and then nobody is heard in it.
    monkeypatch.setattr(module, "SLICE_NS", 200_000_000)
    async with Bench() as bench:
        core, heard = bench.core, list[str]()
        handle = core.handle

        def cycle() -> Generator[str, None, None]:
            heard.append("first step")
            yield "phase1"

        def handle_and_submit_later(event: Event, now: int) -> list[Effect]:
            heard.append(type(event).__name__)
            if isinstance(event, CycleFinished):
                asyncio.get_running_loop().call_soon(bench.driver.submit, HelloRepeated(2))
            return handle(event, now)

        monkeypatch.setattr(core, "_cycle", cycle)
        monkeypatch.setattr(core, "handle", handle_and_submit_later)
        core.answers = {HelloRepeated: [RunCycle()], CycleFinished: [RunCycle()]}
        bench.driver.submit(HelloRepeated(1))
        await eventually(lambda: heard.count("CycleFinished") == 2)
        assert heard[:4] == ["HelloRepeated", "first step", "CycleFinished", "first step"]


async def test_a_cycle_ends_once_whatever_keeps_its_end_from_being_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "SLICE_NS", 1)
    paused = False
    async with Bench(lambda: paused) as bench:
        core = bench.core
        handle = core.handle

        def cycle() -> Generator[str, None, None]:
            nonlocal paused
            yield "phase1"
            paused = True

        def handle_slowly(event: Event, now: int) -> list[Effect]:
            if isinstance(event, PauseFile):
                end = time.perf_counter_ns() + module.BATCH_NS
                while time.perf_counter_ns() < end:
                    pass
            return handle(event, now)

        monkeypatch.setattr(core, "_cycle", cycle)
        monkeypatch.setattr(core, "handle", handle_slowly)
        core.answers[HelloRepeated] = [RunCycle()]
        bench.driver.submit(HelloRepeated(1))
        await eventually(lambda: CycleFinished in map(type, core.events))
        await bench.driver.handled(CallEnded(1))
        kinds = [type(event) for event in core.events]
        assert kinds == [HelloRepeated, PauseFile, CycleFinished, CallEnded]


async def test_the_times_of_a_cycle_are_told_by_phase() -> None:
    async with Bench() as bench:
        bench.core.slices = 3
        bench.core.answers[HelloRepeated] = [RunCycle()]
        await bench.driver.handled(GetEnded("default", "m-1", 1))
        bench.driver.submit(HelloRepeated(1))
        await eventually(lambda: CycleFinished in map(type, bench.core.events))
        [finished] = [event for event in bench.core.events if isinstance(event, CycleFinished)]
        phases = dict(finished.phases_ns)
        assert [name for name, _ in finished.phases_ns] == [
            *("reconcile", "snapread", "phase1", "phase2", "phase3", "emit", "execute")
        ]
        assert phases["reconcile"] > 0 and phases["phase1"] > 0 and phases["phase2"] == 0
        assert finished.total_ns == sum(spent for name, spent in phases.items() if name != "reconcile")


@rule("shard.R3")
async def test_the_pause_file_is_told_and_a_mutation_it_has_come_before_is_not_sent() -> None:
    paused = False
    async with Bench(lambda: paused) as bench:
        bench.core.answers[HelloRepeated] = [CREATE]
        await bench.driver.handled(HelloRepeated(1))
        assert bench.done[-1] == ("call", CREATE)
        paused = True
        bench.core.answers[HelloRepeated] = [CONFIGURE, GetMachine("default", "m-1")]
        await bench.driver.handled(HelloRepeated(1))
        assert ("call", CONFIGURE) not in bench.done and ("drop", "r-1") in bench.done
        assert bench.done[-1][0] == "call", "reads go on"
        await eventually(lambda: CallEnded in map(type, bench.core.events))
        assert bench.core.events.index(PauseFile(True)) < bench.core.events.index(
            next(event for event in bench.core.events if isinstance(event, CallEnded))
        )
        paused = False
        await bench.driver.handled(HelloRepeated(1))
        assert bench.core.events.count(PauseFile(True)) == 1 and PauseFile(False) in bench.core.events


@rule("shard.R3")
async def test_a_pause_file_that_is_gone_at_once_leaves_nothing_paused() -> None:
    looks: list[bool] = []
    async with Bench(lambda: bool(looks and looks.pop(0))) as bench:
        bench.core.answers[HelloRepeated] = [CREATE]
        # Not there before the event, there before the call, gone before the next event.
        looks += [False, True, False]
        bench.driver.submit(HelloRepeated(1))
        await eventually(lambda: PauseFile(False) in bench.core.events)
        assert ("call", CREATE) not in bench.done
        kinds = [event for event in bench.core.events if not isinstance(event, HelloRepeated)]
        assert [kinds[0], type(kinds[1]), kinds[2]] == [PauseFile(True), CallEnded, PauseFile(False)]


@rule("shard.P2")
async def test_after_the_end_has_begun_a_cycle_is_left_where_it_is() -> None:
    async with Bench() as bench:
        bench.core.slices = 3
        bench.core.answers[HelloRepeated] = [RunCycle()]
        bench.driver.submit(HelloRepeated(1))
        await bench.driver.handled(ShutdownBegun())
        for _ in range(5):
            await bench.driver.handled(CallEnded(1))
        assert CycleFinished not in map(type, bench.core.events)


async def test_a_defect_of_the_core_is_not_swallowed(monkeypatch: pytest.MonkeyPatch) -> None:
    async with Bench() as bench:

        def fail(event: Event, now: int) -> list[Effect]:
            raise AssertionError("a defect")

        monkeypatch.setattr(bench.core, "handle", fail)
        bench.driver.submit(HelloRepeated(1))
        with pytest.raises(AssertionError, match="a defect"):
            async with asyncio.timeout(10):
                await bench.task


async def test_a_cycle_ends_by_the_walls_clock_also_after_that_was_set() -> None:
    wall = 1_000 * 10**9
    async with Bench(clock=Clock(lambda: wall)) as bench:
        wall = 5_000 * 10**9
        bench.core.answers[HelloRepeated] = [RunCycle()]
        bench.driver.submit(HelloRepeated(1))
        await eventually(lambda: CycleFinished in map(type, bench.core.events))
        assert "bigfleet_shard_last_cycle_timestamp_seconds 5000.0" in bench.metrics.render().decode()


def test_the_clock_starts_at_the_walls_time_and_never_steps_back() -> None:
    wall, monotonic = 1_000, 50
    clock = Clock(lambda: wall, lambda: monotonic)
    assert clock.now() == 1_000
    wall, monotonic = 10, 80
    assert clock.now() == 1_030


def test_importing_the_shard_loads_no_grpc() -> None:
    code = "import sys, bigfleet.shard, bigfleet.shard.core.core; sys.exit('grpc' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0
