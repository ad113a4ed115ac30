"""A service of all four call kinds and its caller, without stubs: only the transport is under test."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from cryptography import x509
from grpc import (
    GenericRpcHandler,
    StatusCode,
    aio,
    method_handlers_generic_handler,
    stream_stream_rpc_method_handler,
    stream_unary_rpc_method_handler,
    unary_stream_rpc_method_handler,
    unary_unary_rpc_method_handler,
)

from bigfleet_base.wire.channel import MAX_MESSAGE_BYTES, listen
from bigfleet_base.wire.identity import IdentityRefusedError, peer_identity
from bigfleet_base.wire.tls import TlsCredentials

Context = aio.ServicerContext[bytes, bytes]

_DEADLINE_S = 30

KINDS = ("unary_unary", "unary_stream", "stream_unary", "stream_stream")


def handlers() -> GenericRpcHandler:
    return method_handlers_generic_handler(
        "test.Echo",
        {
            "unary_unary": unary_unary_rpc_method_handler(_unary_unary),
            "unary_stream": unary_stream_rpc_method_handler(_unary_stream),
            "stream_unary": stream_unary_rpc_method_handler(_stream_unary),
            "stream_stream": stream_stream_rpc_method_handler(_stream_stream),
            "written": stream_stream_rpc_method_handler(_written),
            "size": unary_unary_rpc_method_handler(_size),
            "zeros": unary_unary_rpc_method_handler(_zeros),
            "serial": unary_unary_rpc_method_handler(_serial),
            "who": unary_unary_rpc_method_handler(_who),
        },
    )


@asynccontextmanager
async def echo_server(
    tls: TlsCredentials | None, *, receive_bytes: int = MAX_MESSAGE_BYTES
) -> AsyncIterator[int]:
    """Serve on a free port of 127.0.0.1 and stop on the way out."""
    server, port = listen("127.0.0.1:0", tls, receive_bytes=receive_bytes)
    server.add_generic_rpc_handlers((handlers(),))
    await server.start()
    try:
        yield port
    finally:
        await server.stop(None)


async def call(channel: aio.Channel, method: str, request: bytes = b"") -> bytes:
    """Make one call of whichever kind the method is and return the last response."""
    path = f"/test.Echo/{method}"
    if method == "unary_stream":
        unary_stream: aio.UnaryStreamMultiCallable[bytes, bytes] = channel.unary_stream(path)
        return [response async for response in unary_stream(request, timeout=_DEADLINE_S)][-1]
    if method == "stream_unary":
        stream_unary: aio.StreamUnaryMultiCallable[bytes, bytes] = channel.stream_unary(path)
        return await stream_unary(_once(request), timeout=_DEADLINE_S)
    if method in ("stream_stream", "written"):
        stream_stream: aio.StreamStreamMultiCallable[bytes, bytes] = channel.stream_stream(path)
        return [response async for response in stream_stream(_once(request), timeout=_DEADLINE_S)][-1]
    unary_unary: aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(path)
    return await unary_unary(request, timeout=_DEADLINE_S)


def session(channel: aio.Channel) -> "aio.StreamStreamCall[bytes, bytes]":
    """Open a stream that answers each message with itself."""
    stream_stream: aio.StreamStreamMultiCallable[bytes, bytes] = channel.stream_stream(
        "/test.Echo/stream_stream"
    )
    return stream_stream(timeout=2 * _DEADLINE_S)


async def exchange(stream: "aio.StreamStreamCall[bytes, bytes]", message: bytes = b"") -> None:
    """Send a message and see it come back."""
    await stream.write(message)
    assert await stream.read() == message


async def _once(request: bytes) -> AsyncIterator[bytes]:
    yield request


async def _unary_unary(request: bytes, _context: Context) -> bytes:
    return request


async def _unary_stream(request: bytes, _context: Context) -> AsyncIterator[bytes]:
    yield request


async def _stream_unary(requests: AsyncIterator[bytes], _context: Context) -> bytes:
    return b"".join([request async for request in requests])


async def _stream_stream(requests: AsyncIterator[bytes], _context: Context) -> AsyncIterator[bytes]:
    async for request in requests:
        yield request


async def _written(_requests: AsyncIterator[bytes], context: Context) -> None:
    await context.write(await context.read())


async def _size(request: bytes, _context: Context) -> bytes:
    return str(len(request)).encode()


async def _zeros(request: bytes, _context: Context) -> bytes:
    return bytes(int(request))


async def _serial(_request: bytes, context: Context) -> bytes:
    """The serial number of the certificate that the caller presented."""
    (leaf,) = context.auth_context()["x509_pem_cert"]
    return str(x509.load_pem_x509_certificate(leaf).serial_number).encode()


async def _who(_request: bytes, context: Context) -> bytes:
    """What every gated method does first."""
    try:
        return str(peer_identity(context)).encode()
    except IdentityRefusedError as error:
        await context.abort(StatusCode.PERMISSION_DENIED, str(error))
