"""The plain HTTP of a process, for probes, scrapers and people: a few pages, GET and HEAD alone."""

import asyncio
import ipaddress
from collections.abc import Callable, Collection, Mapping
from typing import Final, TypeAlias

from bigfleet_base.wire.address import parse_http_address

Answer: TypeAlias = tuple[int, str, bytes]
"""Status, content type, body."""
Page: TypeAlias = Callable[[], Answer]

_MAX_HEAD: Final = 16_384
_DEADLINE_S: Final = 5.0
_MAX_CONNECTIONS: Final = 64
_REASONS: Final = {
    200: "OK",
    403: "Forbidden",
    404: "Not Found",
    405: "Method Not Allowed",
    500: "Internal Server Error",
    503: "Service Unavailable",
}


def text(status: int, body: str) -> Answer:
    """A short plain answer."""
    return status, "text/plain; charset=utf-8", body.encode() + b"\n"


class Web:
    """Answers one request a connection. Pages in ``local`` are shown to this machine only; ``failed`` is told
    of a page that could not be made."""

    def __init__(
        self,
        pages: Mapping[str, Page],
        local: Collection[str] = (),
        failed: Callable[[str, Exception], None] = lambda _path, _error: None,
    ) -> None:
        self._pages = pages
        self._failed = failed
        self._local = frozenset(local)
        self._open: dict[asyncio.StreamWriter, bool] = {}
        """The connections, oldest first, and whether the request has come."""
        self._server: asyncio.Server | None = None

    async def start(self, address: str) -> int:
        """Listen; returns the port."""
        host, _, port = parse_http_address(address).target.rpartition(":")
        host = host.strip("[]")
        self._server = await asyncio.start_server(
            self._connected, None if host == "::" else host, int(port), limit=_MAX_HEAD
        )
        bound: int = self._server.sockets[0].getsockname()[1]
        return bound

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()
            for writer in self._open:
                writer.transport.abort()
            await self._server.wait_closed()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._make_room()
        self._open[writer] = False
        try:
            async with asyncio.timeout(_DEADLINE_S):
                head = await reader.readuntil(b"\r\n\r\n")
                self._open[writer] = True
                line = head.split(b"\r\n", 1)[0].decode("latin-1")
                # The answer counts as taken when none of it is left here.
                writer.transport.set_write_buffer_limits(0)
                writer.write(self._answer(line, is_local=_is_local(writer.get_extra_info("peername"))))
                await writer.drain()
            writer.close()
        except (TimeoutError, OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass  # a client that does not finish its request gets no answer
        finally:
            self._open.pop(writer, None)
            if not writer.is_closing():
                # To close would wait for a client that does not read, and keep its page as long.
                writer.transport.abort()

    def _make_room(self) -> None:
        """Probes come through however many hold a connection: the oldest goes, first of those without a
        request."""
        if len(self._open) >= _MAX_CONNECTIONS:
            oldest = min(self._open, key=self._open.__getitem__)
            del self._open[oldest]
            oldest.transport.abort()

    def _answer(self, request_line: str, *, is_local: bool) -> bytes:
        method, _, rest = request_line.partition(" ")
        path = rest.partition(" ")[0].partition("?")[0]
        page = self._pages.get(path)
        if method not in ("GET", "HEAD"):
            status, kind, body = text(405, "only GET")
        elif page is None:
            status, kind, body = text(404, f"there are {', '.join(self._pages)}")
        elif path in self._local and not is_local:
            status, kind, body = text(403, "shown on this machine only; start with --debug-endpoints")
        else:
            try:
                status, kind, body = page()
            except Exception as error:  # a page that fails must not look like a network that does
                self._failed(path, error)
                status, kind, body = text(500, f"{type(error).__name__}: {error}")
        head = (
            f"HTTP/1.1 {status} {_REASONS[status]}\r\nContent-Type: {kind}\r\n"
            f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        )
        return head.encode() + (b"" if method == "HEAD" else body)


def _is_local(peer: object) -> bool:
    if not isinstance(peer, tuple):
        return False
    ip = ipaddress.ip_address(str(peer[0]).partition("%")[0])
    mapped = ip.ipv4_mapped if isinstance(ip, ipaddress.IPv6Address) else None
    return (mapped or ip).is_loopback
