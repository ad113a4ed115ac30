"""A TCP relay between a client and a server that can speak any TLS version onwards, or fall silent."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from bigfleet_base.wire.tls import TlsFiles


def client_context(files: TlsFiles, version: ssl.TLSVersion) -> ssl.SSLContext:
    """Mutual TLS of exactly one version, as a client other than gRPC speaks it."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(files.ca)
    context.load_cert_chain(files.cert, files.key)
    context.minimum_version = context.maximum_version = version
    context.set_alpn_protocols(["h2"])
    return context


class Relay:
    """Passes bytes on until ``silence``; from then on it keeps connections open and loses what they say."""

    def __init__(self, port: int, context: ssl.SSLContext | None) -> None:
        self._port = port
        self._context = context
        self._silent = False
        self._open: dict[asyncio.Task[None], list[asyncio.StreamWriter]] = {}
        self.connections = 0
        self.bytes_from_client = 0

    @property
    def open_connections(self) -> int:
        return len(self._open)

    def silence(self) -> None:
        self._silent = True

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        ends = self._open[task] = [writer]
        self.connections += 1
        try:
            onward_reader, onward_writer = await asyncio.open_connection(
                "127.0.0.1",
                self._port,
                ssl=self._context,
                server_hostname="localhost" if self._context else None,
            )
            ends.append(onward_writer)
            from_server = asyncio.create_task(self._copy(onward_reader, ends, to=writer))
            await self._copy(reader, ends, to=onward_writer, from_client=True)
            await from_server
        except OSError:
            pass  # a refused handshake: the client sees its own connection end
        finally:
            _abort(ends)
            del self._open[task]

    async def stop(self) -> None:
        for ends in self._open.values():
            _abort(ends)
        await asyncio.gather(*self._open)

    async def _copy(
        self,
        reader: asyncio.StreamReader,
        ends: list[asyncio.StreamWriter],
        *,
        to: asyncio.StreamWriter,
        from_client: bool = False,
    ) -> None:
        try:
            while data := await reader.read(65_536):
                if from_client:
                    self.bytes_from_client += len(data)
                if not self._silent:
                    to.write(data)
                    await to.drain()
        except OSError:
            pass  # a lost peer is an end like any other
        _abort(ends)


def _abort(ends: list[asyncio.StreamWriter]) -> None:
    for writer in ends:
        writer.transport.abort()


@asynccontextmanager
async def relay(port: int, context: ssl.SSLContext | None = None) -> AsyncIterator[tuple[Relay, int]]:
    """Relay from a free port of 127.0.0.1, over TLS when a context is given, to a port of 127.0.0.1."""
    running = Relay(port, context)
    server = await asyncio.start_server(running.serve, "127.0.0.1", 0)
    try:
        yield running, server.sockets[0].getsockname()[1]
    finally:
        server.close()
        await running.stop()
        await server.wait_closed()
