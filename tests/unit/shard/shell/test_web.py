"""The shard's pages: kept up beside it whatever happens to them."""

import asyncio
import json
from io import BytesIO

import pytest

from bigfleet.shard.core.core import ShardCore
from bigfleet.shard.core.settings import Settings
from bigfleet.shard.shell import web
from bigfleet.shard.shell.web import Pages
from bigfleet_base.telemetry import Logs
from bigfleet_base.wire.web import Web
from tests.support.rules import rule


def pages(log: BytesIO) -> Pages:
    core = ShardCore(Settings("shard-0", 1, b"", ("p",)))
    return Pages(core, lambda: b"", lambda: b"", Logs(log).logger("shard"), debug_everywhere=False)


@rule("shard.P1")
@pytest.mark.parametrize("error", [OSError("taken"), ValueError("unforeseen")])
async def test_an_error_while_they_come_up_is_logged_and_they_are_tried_again(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    failures = [error, error]
    start = Web.start

    async def failing(self: Web, address: str) -> int:
        if failures:
            raise failures.pop()
        return await start(self, address)

    monkeypatch.setattr(Web, "start", failing)
    monkeypatch.setattr(web, "FIRST_PAUSE_S", 0.001)
    log = BytesIO()
    served = pages(log)
    async with asyncio.timeout(10):
        await served.serve("127.0.0.1:0")
    await served.stop()
    assert served.port > 0
    lines = [json.loads(line) for line in log.getvalue().splitlines()]
    assert [line["msg"] for line in lines] == ["metrics not served; trying again"] * 2 + ["metrics serving"]
    assert lines[0]["err"] == f"{type(error).__name__}: {error}"
