"""The second lock on TLS versions: no call runs on a connection older than TLS 1.3.

The first is ``bigfleet_base._grpc_env``, which lets no such handshake succeed. Two, because the first is a
setting of a library that may change its meaning under us, and this one fails closed if it does.
"""

from __future__ import annotations  # gRPC's handler type is generic for the type checker only

import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from typing import Any, TypeAlias

import grpc
from grpc import aio

_Context: TypeAlias = aio.ServicerContext[Any, Any]
_Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"


class Tls13Only(aio.ServerInterceptor):
    """Answers UNAUTHENTICATED to every call, of all four kinds, that did not come over TLS 1.3."""

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[_Handler | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> _Handler | None:
        handler = await continuation(handler_call_details)
        # None is an unknown method: there is nothing to guard, and gRPC answers UNIMPLEMENTED.
        return None if handler is None else _guarded(handler)


def _guarded(handler: _Handler) -> _Handler:
    kind = f"{_arity(handler.request_streaming)}_{_arity(handler.response_streaming)}"
    build = getattr(grpc, f"{kind}_rpc_method_handler")
    guarded: _Handler = build(
        _guarded_behaviour(getattr(handler, kind)), handler.request_deserializer, handler.response_serializer
    )
    return guarded


def _guarded_behaviour(behaviour: Callable[..., Any]) -> Callable[..., Any]:
    # gRPC calls a behaviour by what it is, so the guard has to be the same kind of function.
    if inspect.isasyncgenfunction(behaviour):

        async def guarded_stream(request: Any, context: _Context) -> AsyncIterator[Any]:
            await _require_tls13(context)
            # Closed with the call, so that the behaviour's ``finally`` does not wait for the collector.
            async with aclosing(behaviour(request, context)) as responses:
                async for response in responses:
                    yield response

        return guarded_stream

    if not inspect.iscoroutinefunction(behaviour):
        raise TypeError(f"{behaviour!r} is not an async function: BigFleet servers run on grpc.aio")

    async def guarded(request: Any, context: _Context) -> Any:
        await _require_tls13(context)
        return await behaviour(request, context)

    return guarded


async def _require_tls13(context: _Context) -> None:
    versions = list(context.auth_context().get("ssl_tls_version", ()))
    if versions != [b"TLSv1.3"]:
        found = b", ".join(versions).decode("ascii", "replace") or "none reported"
        await context.abort(grpc.StatusCode.UNAUTHENTICATED, f"TLS 1.3 is required, not {found}")


def _arity(streaming: bool) -> str:
    return "stream" if streaming else "unary"
