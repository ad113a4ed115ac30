"""The provider's plain HTTP: /healthz, /readyz and /metrics, for probes and scrapers."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Final

from bigfleet_base.telemetry import CONTENT_TYPE
from bigfleet_base.wire import parse_address

Page = Callable[[], tuple[int, str, bytes]]
"""Makes an answer: status, content type, body."""

_MAX_HEAD: Final = 16_384
_DEADLINE_S: Final = 5.0
_MAX_CONNECTIONS: Final = 64
_REASONS: Final = {200: "OK", 404: "Not Found", 405: "Method Not Allowed", 503: "Service Unavailable"}


def text(status: int, body: str) -> tuple[int, str, bytes]:
    """A short plain answer."""
    return status, "text/plain; charset=utf-8", body.encode() + b"\n"


def metrics_page(render: Callable[[], bytes]) -> Page:
    """The page that Prometheus scrapes."""
    return lambda: (200, CONTENT_TYPE, render())


class Web:
    """Answers GET and HEAD, one request a connection."""

    def __init__(self, pages: Mapping[str, Page]) -> None:
        self._pages = pages
        self._open = 0
        self._server: asyncio.Server | None = None

    async def start(self, address: str) -> int:
        """Listen; returns the port."""
        host, _, port = parse_address(address).target.rpartition(":")
        host = host.strip("[]")
        self._server = await asyncio.start_server(
            self._connected, None if host == "::" else host, int(port), limit=_MAX_HEAD
        )
        bound: int = self._server.sockets[0].getsockname()[1]
        return bound

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
            await self._server.wait_closed()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open += 1
        try:
            async with asyncio.timeout(_DEADLINE_S):
                if self._open <= _MAX_CONNECTIONS:
                    head = await reader.readuntil(b"\r\n\r\n")
                    writer.write(self._answer(head.split(b"\r\n", 1)[0].decode("latin-1")))
                    await writer.drain()
        except (TimeoutError, OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass  # a client that does not finish its request gets no answer
        finally:
            self._open -= 1
            writer.close()

    def _answer(self, request_line: str) -> bytes:
        method, _, rest = request_line.partition(" ")
        page = self._pages.get(rest.partition(" ")[0].partition("?")[0])
        if method not in ("GET", "HEAD"):
            status, kind, body = text(405, "only GET")
        elif page is None:
            status, kind, body = text(404, f"there are {', '.join(self._pages)}")
        else:
            status, kind, body = page()
        head = (
            f"HTTP/1.1 {status} {_REASONS[status]}\r\nContent-Type: {kind}\r\n"
            f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        )
        return head.encode() + (b"" if method == "HEAD" else body)
