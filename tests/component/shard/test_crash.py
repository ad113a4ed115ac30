"""What is left of a shard that a defect of its own has ended."""

import asyncio
import json
from collections.abc import Generator
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest

from bigfleet.cli.bigfleet import main
from bigfleet.engine.plan import Plan
from bigfleet.shard.shell.process import ShardProcess, run_shard
from bigfleet_base.telemetry import Logs
from tests.component.shard.world import need, running
from tests.support.rules import rule

FATAL: int = 777
"""The priority of demand that the planted bug does not survive."""


@rule("shard.R8", "shard.P1")
async def test_a_defect_in_the_middle_of_a_cycle_comes_again_in_a_replay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    decide = Plan.run

    def fail(self: Plan, arrived: Any, *others: Any) -> Generator[int | str, None, Any]:
        yield "phase1"
        if any(row.profile.priority == FATAL for row in arrived.come.values()):
            raise AssertionError("a defect")
        return (yield from decide(self, arrived, *others))

    monkeypatch.setattr(Plan, "run", fail)
    record = tmp_path / "record"
    async with running(tmp_path, record_dir=record, record_max_bytes=1 << 24) as world:
        operator = await world.operator().connect()
        await operator.roll_up(need(priority=FATAL))
        with pytest.raises(AssertionError, match="a defect"):
            async with asyncio.timeout(20):
                await world.shard.crashed()
    [segment] = record.iterdir()
    assert main(["shard", "replay", str(segment)]) == 1
    assert "AssertionError: a defect" in capsys.readouterr().out


@rule("shard.P1")
async def test_what_has_ended_a_shard_is_in_its_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(*_: object) -> None:
        raise AssertionError("a defect")

    async with running(tmp_path) as world:
        monkeypatch.setattr(ShardProcess, "crashed", fail)
        options = replace(world.shard._options, data_dir=tmp_path / "other")
        log = BytesIO()
        with pytest.raises(AssertionError, match="a defect"):
            await run_shard(options, Logs(log))
    *said, stopped = map(json.loads, log.getvalue().splitlines())
    # Its provider may have fenced it meanwhile: another shard of its name is there.
    [failed] = [line for line in said if line["msg"] == "shard failed"]
    assert failed["level"] == "error" and failed["shard_epoch"] == 1
    assert failed["err"] == "AssertionError: a defect" and "in fail" in "".join(failed["stack"])
    assert stopped["msg"] == "shard stopped"
