"""A shard in this loop when its parts fail, pause or stop."""

import asyncio
import json
import socket
from pathlib import Path
from typing import Any

import pytest

from bigfleet.shard.core.effects import WriteAudit
from bigfleet.shard.core.events import Event
from bigfleet.shard.provider.endpoints import Endpoint
from bigfleet.shard.shell import process
from bigfleet.shard.shell.datadir import DataDirError
from bigfleet.shard.shell.process import ShardProcess
from bigfleet_base.model import MachineState
from bigfleet_base.model.frames import BootstrapRequest, HelloAck, NodeState, Resync, RollupAck
from bigfleet_base.telemetry import Logs
from bigfleet_base.wire.session import BootstrapAnswer, encode_operator_message
from bigfleet_providerkit.fake import FakeBackend, Knobs, Latency
from tests.component.shard.traces import replayed
from tests.component.shard.world import OFFERINGS, SECOND, need, running
from tests.support.eventually import eventually
from tests.support.rules import rule


@rule("shard.P1")
async def test_a_metrics_port_that_is_taken_costs_the_pages_alone_and_they_come_when_it_is_free(
    tmp_path: Path,
) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        async with running(tmp_path, metrics_address=f"127.0.0.1:{port}") as world:
            operator = await world.operator().connect()
            await operator.roll_up(need())
            await operator.received(RollupAck)
            await operator.received(BootstrapRequest)
            [line, *_] = world.logged("metrics not served; trying again")
            assert line["level"] == "error"
            taken.close()
            await eventually(lambda: world.shard.pages.port == port)


@rule("shard.X4")
async def test_the_state_shows_who_is_connected_what_is_under_way_and_how_long_things_take(
    tmp_path: Path,
) -> None:
    async with running(tmp_path, metrics_address="127.0.0.1:0") as world:
        operator = await world.operator().connect()
        await operator.roll_up(need(cpus=4))
        request = await operator.received(BootstrapRequest)
        await eventually(lambda: world.shard.pages.port > 0)
        state = await state_page(world.shard.pages.port)
        assert list(state["peers"]) == ["c1"] and "127.0.0.1" in state["peers"]["c1"]
        [operation] = state["operations"]
        assert operation.pop("op_id").startswith("1-") and operation.pop("seconds") >= 0
        assert operation == {
            "kind": "Bootstrap",
            "machine": request.machine_id,
            "cluster": "c1",
            "waits_for": "blob",
            "attempt": 0,
            "err": "",
        }
        cycles = state["sketches"]["bigfleet_shard_cycle_duration_seconds start"]
        assert cycles["count"] > 0 and 0 < cycles["0.5"] <= cycles["1.0"]
        assert state["sketches"]["bigfleet_shard_drain_phase_seconds 5m"]["1.0"] is None


async def state_page(port: int) -> Any:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"GET /debug/state HTTP/1.1\r\n\r\n")
    async with asyncio.timeout(20):
        answer = await reader.read()
    writer.close()
    return json.loads(answer.partition(b"\r\n\r\n")[2])


@rule("shard.P1")
async def test_the_death_of_the_loop_around_the_core_ends_the_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path) as world:
        crashed = asyncio.ensure_future(world.shard.crashed())
        operator = await world.operator().connect()
        await operator.received(HelloAck)
        assert not crashed.done()

        def fail(event: Event, now: int) -> list[object]:
            raise AssertionError("a defect")

        monkeypatch.setattr(world.shard.core, "handle", fail)
        with pytest.raises(AssertionError, match="a defect"):
            async with asyncio.timeout(20):
                await crashed


@rule("shard.P1")
async def test_the_death_of_a_provider_call_ends_the_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path) as world:
        crashed = asyncio.ensure_future(world.shard.crashed())

        async def fail(*_: object) -> None:
            raise AssertionError("a defect")

        monkeypatch.setattr(world.shard.providers, "_list", fail)
        with pytest.raises(AssertionError, match="a defect"):
            async with asyncio.timeout(20):
                await crashed


@rule("shard.P2")
async def test_calls_that_were_sent_are_waited_for_and_applied(tmp_path: Path) -> None:
    slow = FakeBackend(Knobs(rpc_latency=Latency("constant", SECOND // 2)), OFFERINGS)
    log = tmp_path / "audit"
    async with running(tmp_path, backend=slow, audit_log=str(log)) as world:
        operator = await world.operator().connect()
        await operator.roll_up(need(cpus=12))
        await eventually(lambda: world.shard.core.executor.in_flight() == 3)
        await world.shard.stop()
        lines = [json.loads(line) for line in log.read_text().splitlines()]
        for kind in ("action.emitted", "action.result"):
            assert len([line for line in lines if line["type"] == kind]) == 3
        assert {line["outcome"] for line in lines if line["type"] == "action.result"} == {"success"}


@rule("shard.R6", "shard.R8")
async def test_calls_that_nobody_answers_have_an_outcome_when_the_process_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "CALLS_GRACE_S", 0.2)
    log, record = tmp_path / "audit", tmp_path / "record"
    async with running(tmp_path, audit_log=str(log), record_dir=record, record_max_bytes=1 << 24) as world:

        async def hang(*_: object, **__: object) -> None:
            await asyncio.Event().wait()

        monkeypatch.setattr(world.shard.providers._clients["default"], "create", hang)
        operator = await world.operator().connect()
        await operator.roll_up(need(cpus=12))
        await eventually(lambda: world.shard.core.executor.in_flight() == 3)
        await world.shard.stop()
        lines = [json.loads(line) for line in log.read_text().splitlines()]
        emitted = [line["op_id"] for line in lines if line["type"] == "action.emitted"]
        results = {line["op_id"]: line["outcome"] for line in lines if line["type"] == "action.result"}
        assert len(emitted) == 3 and results == dict.fromkeys(emitted, "ctx_canceled")
    for path in record.iterdir():
        replayed(path)


@rule("shard.R8", "shard.P2")
async def test_what_is_done_until_the_last_session_has_ended_is_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, record = tmp_path / "audit", tmp_path / "record"
    async with running(tmp_path, audit_log=str(log), record_dir=record, record_max_bytes=1 << 24) as world:
        operator = await world.operator().connect()
        await operator.received(HelloAck)
        end_all = world.shard.sessions.end_all

        async def after_a_last_roll_up(text: str) -> None:
            await operator.roll_up(need())
            await operator.received(RollupAck)
            await end_all(text)

        with monkeypatch.context() as patch:
            patch.setattr(world.shard.sessions, "end_all", after_a_last_roll_up)
            await world.shard.stop()
    [segment] = record.iterdir()
    recorded = [dict(effect.line) for effect in replayed(segment)[1] if isinstance(effect, WriteAudit)]
    audited = [json.loads(line) for line in log.read_text().splitlines()]
    assert [line["type"] for line in audited] == ["rollup.accepted"] and recorded == audited


@rule("shard.R3")
async def test_a_file_named_pause_stops_everything_that_changes_machines_until_it_is_gone(
    tmp_path: Path,
) -> None:
    pause = tmp_path / "data" / "PAUSE"
    async with running(tmp_path) as world:
        operator = await world.operator().connect()
        await operator.received(Resync)
        pause.touch()
        await operator.roll_up(need(cpus=4))
        suppressed = 'bigfleet_shard_actions_suppressed_total{kind="Provision"}'
        await eventually(lambda: world.metric(suppressed) > 0)
        assert world.metric("bigfleet_shard_actuation_paused") == 1
        assert world.metric('bigfleet_shard_actions_total{kind="Provision"}') == 0
        pause.unlink()
        request = await operator.received(BootstrapRequest)
        pause.touch()
        await eventually(world.shard.core.is_paused)
        await operator.send(encode_operator_message(BootstrapAnswer(request.request_id, b"blob")))
        await eventually(lambda: not world.shard.providers._blobs)
        # A Bootstrap that waited for its blob is taken back: nothing is configured.
        machines = [frame.state for frame in operator.of_kind(NodeState)]
        assert MachineState.CONFIGURED not in machines
        pause.unlink()
        again = await operator.received(BootstrapRequest, 2)
        await operator.send(encode_operator_message(BootstrapAnswer(again.request_id, b"blob")))
        await operator.until(
            lambda frames: [
                f for f in frames if isinstance(f, NodeState) and f.state is MachineState.CONFIGURED
            ]
        )


@rule("shard.F1")
async def test_a_refused_start_leaves_the_folder_free(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "domains").write_text("nonsense")
    with pytest.raises(DataDirError, match="domains"):
        async with running(tmp_path):
            raise AssertionError("it has started")
    (tmp_path / "data" / "domains").write_text('[["topology.kubernetes.io/zone", "elsewhere"]]')
    async with running(tmp_path) as world:
        assert world.shard.settings.epoch == 2
        await eventually(lambda: world.shard.core.ready()[0])
        # Machines of other domains are not this shard's (Q10).
        assert world.shard.core.debug_state()["machines"] == {}
        with pytest.raises(DataDirError, match="in use"):
            ShardProcess(world.shard._options, Logs())


@rule("shard.T2", "shard.S5")
async def test_a_provider_that_is_down_keeps_it_unready_and_sessions_open(tmp_path: Path) -> None:
    async with running(tmp_path) as world:
        await eventually(lambda: world.shard.core.ready()[0])
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{nobody.getsockname()[1]}"
        async with running(tmp_path, providers=(Endpoint("default", address),)) as world:
            operator = await world.operator().connect()
            await operator.roll_up(need())
            await operator.received(RollupAck)
            assert world.shard.core.ready() == (False, "first provider reconcile not yet complete")
            assert not operator.of_kind(Resync)
