"""The shard's pages: kept up beside it whatever happens to them."""

import asyncio
import json
from io import BytesIO

import pytest

from bigfleet.shard.core.core import ShardCore
from bigfleet.shard.core.settings import Settings
from bigfleet.shard.shell import web
from bigfleet.shard.shell.web import Pages
from bigfleet_base.model import Need, Profile, ResourceVector
from bigfleet_base.telemetry import Logs
from bigfleet_base.wire.web import Web
from tests.support.rules import rule


def a_core() -> ShardCore:
    return ShardCore(Settings("shard-0", 1, b"", ("p",)))


def pages(log: BytesIO, core: ShardCore | None = None) -> Pages:
    return Pages(
        core or a_core(), lambda: b"", lambda: b"", Logs(log).logger("shard"), debug_everywhere=False
    )


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


async def test_amounts_that_no_number_of_json_can_hold_are_shown() -> None:
    core = a_core()
    wanted = ResourceVector({"cpu": 1000 * (2**63 - 1), "memory": 1000 * 2**35})
    core.engine.needs.replace("c1", [Need("c1", Profile(priority=1), wanted, ResourceVector(cpu=1))], 0)
    served = pages(BytesIO(), core)
    await served.serve("127.0.0.1:0")
    reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
    writer.write(b"GET /debug/state HTTP/1.1\r\n\r\n")
    async with asyncio.timeout(10):
        head, _, body = (await reader.read()).partition(b"\r\n\r\n")
    writer.close()
    await served.stop()
    assert b" 200 " in head.splitlines()[0]
    [need] = json.loads(body)["needs"]
    assert need["aggregate"] == {"cpu": "9223372036854775807", "memory": "32Gi"}
