"""Sessions under good and bad peers: replaced, flooded, slow."""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import replace
from itertools import cycle
from pathlib import Path

import pytest

from bigfleet.shard.core.events import BootstrapAnswered, Event
from bigfleet.shard.core.settings import CREDIT
from bigfleet.shard.shell import sessions
from bigfleet_base.model import MachineState, Need, Profile, ResourceVector
from bigfleet_base.model.frames import (
    BootstrapRequest,
    Frame,
    HelloAck,
    NodeState,
    ReclaimInstruction,
    Resync,
    RollupAck,
)
from bigfleet_base.wire import channel
from bigfleet_base.wire.session import BootstrapAnswer, CordonAck, ReadinessReport, encode_operator_message
from bigfleet_providerkit.backend import Binding
from bigfleet_providerkit.fake import FakeBackend, Knobs, Preseed
from tests.component.shard.world import OFFERINGS, Operator, need, running
from tests.support.eventually import eventually
from tests.support.rules import rule
from tests.unit.base.wire.relay import relay

REFUSED = "rollup rejected at ingest validation; keeping last-known-good demand"


def bound_to(cluster: str, count: int, padding: int = 0) -> FakeBackend:
    """A fake whose machines serve a cluster already."""
    offering = replace(OFFERINGS[0], count=count, labels={"padding": "x" * padding})
    return FakeBackend(Knobs(preseed=[Preseed("standard-4", 0, [Binding(cluster, {})] * count)]), [offering])


async def configure(operator: Operator, machines: int) -> None:
    """Answer for this many machines, until they are Configured."""
    for number in range(1, machines + 1):
        request = await operator.received(BootstrapRequest, number)
        answer = BootstrapAnswer(request.request_id, b"blob", 60)
        await operator.send(encode_operator_message(answer))
    await operator.until(lambda frames: has_state(frames, MachineState.CONFIGURED, machines))


def has_state(frames: Sequence[Frame], state: MachineState, times: int = 1) -> bool:
    return sum(isinstance(frame, NodeState) and frame.state is state for frame in frames) >= times


@rule("shard.19.1")
async def test_a_slot_becomes_a_node_of_the_cluster_that_asked(tmp_path: Path) -> None:
    async with running(tmp_path) as world:
        operator = await world.operator().connect()
        await operator.received(Resync)
        await operator.roll_up(need(cpus=4))
        await configure(operator, 1)
        states = [frame.state for frame in operator.of_kind(NodeState)]
        assert states == [MachineState.CONFIGURING, MachineState.CONFIGURED]
        assert world.metric('bigfleet_shard_actions_total{kind="Provision"}') == 1
        assert world.metric('bigfleet_shard_actions_total{kind="Bootstrap"}') == 1


async def test_a_drain_is_told_and_goes_on_when_it_is_acknowledged(tmp_path: Path) -> None:
    async with running(tmp_path) as world:
        operator = await world.operator().connect()
        await operator.roll_up(need(cpus=4))
        await configure(operator, 1)
        await operator.roll_up()
        instruction = await operator.received(ReclaimInstruction)
        await operator.send(encode_operator_message(CordonAck(instruction.instruction_id, 1)))
        await operator.until(lambda frames: has_state(frames, MachineState.IDLE))
        assert not world.logged("reclaim not acknowledged; draining")


@rule("shard.S3")
async def test_the_newest_session_of_a_cluster_wins(tmp_path: Path) -> None:
    async with running(tmp_path) as world:
        first = await world.operator().connect()
        await first.received(HelloAck)
        second = await world.operator().connect()
        await second.received(HelloAck)
        code, text = await first.status()
        assert code == "ABORTED" and "newer session" in text
        await second.roll_up(need())
        await second.received(RollupAck)
        assert world.shard.core.sessions.active() == 1
        assert world.metric('bigfleet_shard_session_lifecycle_total{event="replaced"}') == 1


@rule("shard.I3", "shard.S10")
async def test_of_a_flood_of_roll_ups_the_last_counts_and_others_keep_their_time(tmp_path: Path) -> None:
    async with running(tmp_path) as world:
        flooder = await world.operator("flood").connect()
        other = await world.operator("calm").connect()
        await flooder.received(HelloAck)
        stop = asyncio.Event()

        async def flood() -> None:
            for cpus in cycle((1, 2, 3)):
                if stop.is_set():
                    break
                await flooder.roll_up(*(need("flood", cpus=cpus, priority=row) for row in range(200)))

        flooding = asyncio.ensure_future(flood())
        await flooder.received(RollupAck, 3)
        waits = []
        for number in range(1, 6):
            begun = time.monotonic()
            await other.roll_up(need("calm", cpus=number))
            await other.received(RollupAck, number)
            waits.append(time.monotonic() - begun)
        stop.set()
        await flooding
        last = await flooder.roll_up(*(need("flood", cpus=7, priority=row) for row in range(200)))
        await flooder.until(lambda frames: RollupAck(last) in frames)
        assert len(flooder.of_kind(RollupAck)) < last, "every one of a flood was read"
        # Alone it takes milliseconds; the bound leaves room for a busy machine.
        assert max(waits) < 2, waits
        rows = [row for row in world.shard.core.engine.needs.snapshot() if row.cluster_id == "flood"]
        assert len(rows) == 200 and {row.aggregate["cpu"] for row in rows} == {7_000}


@rule("shard.I3")
async def test_a_waiting_roll_up_is_replaced_and_never_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = asyncio.Event()
    read = []
    real = sessions.Sessions._read_rollup

    async def slow(self: sessions.Sessions, session: object, raw: object) -> object:
        read.append(raw)
        await gate.wait()
        return await real(self, session, raw)  # type: ignore[arg-type]  # passed through as they came

    monkeypatch.setattr(sessions.Sessions, "_read_rollup", slow)
    async with running(tmp_path) as world:
        operator = await world.operator().connect()
        await operator.received(HelloAck)
        await operator.roll_up(need(cpus=1))
        await eventually(lambda: len(read) == 1)
        await operator.roll_up(need(cpus=2))
        await operator.roll_up(need(cpus=3))
        [session] = world.shard.sessions._open.values()
        await eventually(lambda: session.newest is not None and b"3" in session.newest.data)
        gate.set()
        await operator.received(RollupAck, 2)
        assert [ack.timestamp_ns for ack in operator.of_kind(RollupAck)] == [1, 3]


@rule("shard.B1")
async def test_an_answer_does_not_wait_behind_a_roll_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = asyncio.Event()
    real = sessions.Sessions._read_rollup
    blocked: list[bool] = []

    async def stuck(self: sessions.Sessions, session: object, raw: object) -> object:
        if blocked:
            await gate.wait()
        return await real(self, session, raw)  # type: ignore[arg-type]  # passed through as they came

    monkeypatch.setattr(sessions.Sessions, "_read_rollup", stuck)
    async with running(tmp_path) as world:
        operator = await world.operator().connect()
        await operator.roll_up(need())
        request = await operator.received(BootstrapRequest)
        blocked.append(True)
        await operator.roll_up(need(cpus=8))
        await operator.send(encode_operator_message(BootstrapAnswer(request.request_id, b"blob")))
        await operator.until(lambda frames: has_state(frames, MachineState.CONFIGURED))
        assert len(operator.of_kind(RollupAck)) == 1
        gate.set()


@rule("wire.10.14", "shard.B2")
async def test_answers_that_nobody_asked_for_are_forgotten(tmp_path: Path) -> None:
    async with running(tmp_path) as world:
        operator = await world.operator().connect()
        for number in range(20):
            await operator.send(encode_operator_message(BootstrapAnswer(f"nobody-{number}", b"x" * 1000)))
        await operator.send(encode_operator_message(CordonAck("nobody", 1)))
        await operator.send(encode_operator_message(ReadinessReport("nobody", "node", True)))
        await operator.roll_up(need())
        await operator.received(RollupAck)
        assert not world.shard.providers._blobs


@rule("shard.B2", "shard.S10")
async def test_an_error_in_the_same_breath_as_the_blob_harms_nobody(tmp_path: Path) -> None:
    async with running(tmp_path) as world:
        crashed = asyncio.ensure_future(world.shard.crashed())
        operator = await world.operator().connect()
        await operator.roll_up(need(cpus=4))
        request = await operator.received(BootstrapRequest)
        assert world.shard.providers.keep_blob(request.request_id, b"blob")
        for error in ("", "no"):
            world.shard.driver.submit(BootstrapAnswered(1, request.request_id, 0, error))
        await operator.until(lambda frames: has_state(frames, MachineState.CONFIGURED))
        assert not crashed.done()
        crashed.cancel()


@rule("shard.R8")
async def test_what_an_operator_says_is_kept_cut_and_without_what_looks_like_a_secret(tmp_path: Path) -> None:
    log, record = tmp_path / "audit", tmp_path / "record"
    async with running(tmp_path, audit_log=str(log), record_dir=record, record_max_bytes=1 << 24) as world:
        operator = await world.operator().connect()
        await operator.roll_up(need(cpus=4))
        request = await operator.received(BootstrapRequest)
        error = "cannot render: token=hunter2 " + "x" * 5_000
        await operator.send(encode_operator_message(BootstrapAnswer(request.request_id, b"", 0, error)))
        await operator.roll_up(need(cpus=4), cluster="token=hunter3 " + "x" * 5_000)
        await eventually(lambda: bool(world.logged(REFUSED)))
        await eventually(lambda: "cannot render" in log.read_text())
    written = log.read_bytes() + b"".join(path.read_bytes() for path in record.iterdir())
    assert b"cannot render" in written
    assert b"hunter" not in written and b"x" * 1_024 not in written


@rule("shard.R8", "shard.S10")
async def test_ids_without_end_are_neither_recorded_nor_kept(tmp_path: Path) -> None:
    record = tmp_path / "record"
    async with running(tmp_path, record_dir=record, record_max_bytes=1 << 24) as world:
        operator = await world.operator().connect()
        await operator.received(HelloAck)
        endless = "x" * (1 << 20)
        frames = (
            CordonAck(endless, 1),
            BootstrapAnswer(endless, error="no"),
            ReadinessReport(endless, "node", True),
            ReadinessReport("m-1", endless, True),
        )
        for frame in frames:
            await operator.send(encode_operator_message(frame))
        await operator.roll_up(need())
        await operator.received(RollupAck)
        dropped = [line["err"].split()[1] for line in world.logged("operator message handling")]
        assert dropped == ["instruction_id", "request_id", "machine_id", "node_name"]
        assert all(line["level"] == "warn" for line in world.logged("operator message handling"))
    assert sum(path.stat().st_size for path in record.iterdir()) < 1 << 20


@rule("shard.R8", "ruling.R20")
async def test_the_largest_demand_that_is_taken_is_recorded_like_any_other(tmp_path: Path) -> None:
    record = tmp_path / "record"
    async with running(tmp_path, record_dir=record, record_max_bytes=1 << 24) as world:
        operator = await world.operator().connect()
        most = ResourceVector(cpu=1000 * (2**63 - 1))
        await operator.roll_up(
            *(Need("c1", Profile(priority=n), most, ResourceVector(cpu=1000)) for n in range(3))
        )
        demanded = 'bigfleet_shard_demand_units{priority_class="other"}'
        await eventually(lambda: world.metric(demanded) > 2**64)
        assert world.metric("bigfleet_shard_recording_errors_total") == 0


@rule("shard.S10")
async def test_a_flood_of_small_frames_does_not_fill_the_cores_queue(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path) as world:
        operator = await world.operator().connect()
        await operator.received(HelloAck)
        driver = world.shard.driver
        longest = 0
        submit = driver.submit

        def watched(event: Event) -> None:
            nonlocal longest
            submit(event)
            longest = max(longest, len(driver._events))

        monkeypatch.setattr(driver, "submit", watched)
        for number in range(2_000):
            await operator.send(encode_operator_message(ReadinessReport(f"m-{number}", "node", True)))
        await operator.roll_up(need())
        await operator.received(RollupAck)
        assert 0 < longest <= sessions.MOST_AHEAD + 8


@rule("shard.S5")
async def test_on_connect_every_machine_of_the_cluster_is_shown_and_then_the_marker(tmp_path: Path) -> None:
    async with running(tmp_path, backend=bound_to("c1", 30)) as world:
        operator = await world.operator().connect()
        await operator.received(Resync)
        assert isinstance(operator.frames[0], HelloAck) and isinstance(operator.frames[-1], Resync)
        shown = operator.of_kind(NodeState)
        assert len({frame.machine_id for frame in shown}) == len(shown) == 30


@rule("shard.S8", "shard.C4", "shard.S10")
async def test_a_peer_that_reads_nothing_holds_up_nobody_and_fills_no_memory(
    tmp_path: Path, full_size: bool
) -> None:
    count = 5_000 if full_size else 1_500
    async with running(tmp_path, backend=bound_to("c1", count, padding=200)) as world:
        await eventually(lambda: world.shard.core.ready()[0])
        slow = world.operator("c1")
        slow.is_reading = False
        await slow.connect()
        await eventually(lambda: len(world.shard.sessions._open) == 1)
        [session] = world.shard.sessions._open.values()
        await eventually(lambda: bool(session.outgoing))
        other = await world.operator("c2").connect()
        await other.roll_up(need("c2"))
        await other.received(RollupAck)
        assert len(session.outgoing) <= CREDIT
        assert session.number in world.shard.sessions._open
        # Once it reads, all of it is there.
        await slow.begin_reading()
        await slow.received(Resync, seconds=60)
        assert len(slow.of_kind(NodeState)) == count


@rule("shard.S3", "shard.S8")
async def test_a_peer_that_reads_nothing_can_be_replaced(tmp_path: Path) -> None:
    async with running(tmp_path, backend=bound_to("c1", 1_500, padding=200)) as world:
        await eventually(lambda: world.shard.core.ready()[0])
        slow = world.operator("c1")
        slow.is_reading = False
        await slow.connect()
        await eventually(lambda: len(world.shard.sessions._open) == 1)
        [session] = world.shard.sessions._open.values()
        await eventually(lambda: bool(session.outgoing))
        new = await world.operator("c1").connect()
        await new.received(Resync, seconds=60)
        await eventually(lambda: session.number not in world.shard.sessions._open)
        assert world.shard.core.sessions.active() == 1
        await slow.begin_reading()
        assert (await slow.status())[0] == "ABORTED"


@rule("shard.S9")
async def test_a_session_whose_network_has_fallen_silent_is_removed(
    tmp_path: Path, full_size: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The numbers of the specification in the nightly tier, a twentieth of them otherwise.
    speed = 1 if full_size else 20
    monkeypatch.setattr(channel, "KEEPALIVE_TIME_S", channel.KEEPALIVE_TIME_S / speed)
    monkeypatch.setattr(channel, "KEEPALIVE_TIMEOUT_S", channel.KEEPALIVE_TIMEOUT_S / speed)
    async with running(tmp_path) as world, relay(int(world.shard.address.rpartition(":")[2])) as (wire, port):
        operator = await Operator(f"127.0.0.1:{port}", "c1").connect()
        world.operators.append(operator)
        await operator.received(HelloAck)
        wire.silence()
        await eventually(lambda: world.shard.core.sessions.active() == 0, seconds=45 / speed + 5)
        assert world.metric('bigfleet_shard_session_lifecycle_total{event="removed"}') == 1
