"""What is left of a shard that a defect of its own has ended."""

import asyncio
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from bigfleet.cli.bigfleet import main
from bigfleet.engine.plan import Plan
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
