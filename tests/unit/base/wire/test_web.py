"""The plain HTTP of a process."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress

import pytest

from bigfleet_base.wire import web as web_module
from bigfleet_base.wire.transport_errors import AddressError
from bigfleet_base.wire.web import _MAX_CONNECTIONS, Answer, Web, _is_local, text
from tests.support.eventually import eventually


@pytest.fixture
async def port() -> AsyncIterator[int]:
    web = Web({"/healthz": lambda: text(200, "ok"), "/inside": lambda: text(503, "no")}, local=["/inside"])
    yield await web.start("127.0.0.1:0")
    await web.stop()


async def ask(port: int, request: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request)
    async with asyncio.timeout(10):
        answer = await reader.read()
    writer.close()
    return answer


async def test_a_page_is_served_with_its_length(port: int) -> None:
    head, _, body = (await ask(port, b"GET /healthz?x=1 HTTP/1.1\r\nHost: x\r\n\r\n")).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 OK\r\n") and b"Content-Length: 3" in head
    assert body == b"ok\n"


async def test_head_has_no_body_and_everything_else_is_refused(port: int) -> None:
    assert (await ask(port, b"HEAD /healthz HTTP/1.1\r\n\r\n")).endswith(b"\r\n\r\n")
    assert b" 405 " in await ask(port, b"POST /healthz HTTP/1.1\r\n\r\n")
    assert b" 404 " in await ask(port, b"GET /nonsense HTTP/1.1\r\n\r\n")
    assert b" 405 " in await ask(port, b"\x00\xff\r\n\r\n")


async def test_a_head_without_end_is_not_kept(port: int) -> None:
    assert await ask(port, b"GET / HTTP/1.1\r\n" + b"x" * 100_000) == b""


async def silent(port: int, request: bytes = b"") -> asyncio.StreamWriter:
    """A connection whose client sends this much and reads nothing."""
    _, writer = await asyncio.open_connection("127.0.0.1", port, limit=1)
    writer.write(request)
    await writer.drain()
    return writer


async def test_connections_without_a_request_keep_no_probe_out(port: int) -> None:
    held = [await silent(port) for _ in range(_MAX_CONNECTIONS + 3)]
    for _ in range(3):
        assert b" 200 " in await ask(port, b"GET /healthz HTTP/1.1\r\n\r\n")
    for writer in held:
        writer.close()


async def test_of_connections_without_a_request_the_oldest_goes_first(port: int) -> None:
    held = [await asyncio.open_connection("127.0.0.1", port) for _ in range(_MAX_CONNECTIONS)]
    assert b" 200 " in await ask(port, b"GET /healthz HTTP/1.1\r\n\r\n")
    async with asyncio.timeout(10):
        with suppress(ConnectionResetError):
            assert await held[0][0].read() == b""
    held[1][1].write(b"GET /healthz HTTP/1.1\r\n\r\n")
    async with asyncio.timeout(10):
        assert b" 200 " in await held[1][0].read()
    for _, writer in held:
        writer.close()


async def test_a_page_that_nobody_reads_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(web_module, "_DEADLINE_S", 0.2)
    transports: list[asyncio.WriteTransport] = []

    class Watched(Web):
        async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            transports.append(writer.transport)
            await super()._connected(reader, writer)

    web = Watched({"/large": lambda: text(200, "x" * 50_000_000)})
    port = await web.start("127.0.0.1:0")
    writer = await silent(port, b"GET /large HTTP/1.1\r\n\r\n")
    await eventually(lambda: bool(transports) and transports[0].is_closing())
    assert transports[0].get_write_buffer_size() == 0
    await web.stop()
    writer.close()


async def test_pages_for_this_machine_are_shown_to_it_alone(port: int) -> None:
    assert b" 503 " in await ask(port, b"GET /inside HTTP/1.1\r\n\r\n")
    web = Web({"/inside": lambda: text(200, "ok")}, local=["/inside"])
    assert b" 403 " in web._answer("GET /inside HTTP/1.1", is_local=False)


@pytest.mark.parametrize(
    ("peer", "local"),
    [
        (("127.0.0.1", 1), True),
        (("::1", 1, 0, 0), True),
        (("::ffff:127.0.0.1", 1, 0, 0), True),
        (("10.0.0.1", 1), False),
        (("fe80::1%eth0", 1, 0, 2), False),
        (None, False),
    ],
)
def test_this_machine_is_whoever_calls_from_the_loopback(peer: object, local: bool) -> None:
    assert _is_local(peer) is local


@pytest.mark.parametrize("address", ["unix:/tmp/web", "unix-abstract:web", "nowhere"])
async def test_an_address_that_no_scraper_dials_is_refused(address: str) -> None:
    with pytest.raises(AddressError, match="is not usable"):
        await Web({}).start(address)


async def test_a_page_that_fails_says_so() -> None:
    failures: list[str] = []

    def broken() -> Answer:
        raise RuntimeError("no state")

    web = Web({"/state": broken}, failed=lambda path, error: failures.append(f"{path}: {error}"))
    port = await web.start("127.0.0.1:0")
    answer = await ask(port, b"GET /state HTTP/1.1\r\n\r\n")
    await web.stop()

    assert answer.startswith(b"HTTP/1.1 500 Internal Server Error\r\n")
    assert b"RuntimeError: no state" in answer
    assert failures == ["/state: no state"]
