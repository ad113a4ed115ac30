"""A few requests to a Kubernetes API server; what it answers otherwise becomes the kit's errors."""

import asyncio
from types import TracebackType
from typing import Any, Final, Self

import aiohttp

from bigfleet_providerkit.errors import Retryable, Terminal, Unauthorized
from bigfleet_providerkit.examples.kwoknodes.kubeconfig import Access

_TIMEOUT: Final = aiohttp.ClientTimeout(total=10)
_MERGE: Final = "application/merge-patch+json"


class Api:
    """One server, for as long as the context lasts."""

    def __init__(self, access: Access) -> None:
        self._access = access
        headers = {"Authorization": f"Bearer {access.token}"} if access.token else {}
        self._session = aiohttp.ClientSession(headers=headers, timeout=_TIMEOUT)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._session.close()

    async def get(self, path: str, **query: str) -> Any | None:
        """What is there, or None."""
        status, body = await self._request("GET", path, expected=(404,), query=query)
        return body if status != 404 else None

    async def create(self, path: str, body: Any) -> bool:
        """Whether it was made; if not, one of that name exists, or may no longer be changed so."""
        status, _ = await self._request("POST", path, body, expected=(404, 409))
        return status < 300

    async def patch(self, path: str, body: Any) -> None:
        """Merge into what is there, if it is there."""
        await self._request("PATCH", path, body, content_type=_MERGE, expected=(404,))

    async def delete(self, path: str, **options: Any) -> None:
        """Delete what is there, unless it is gone or another one by now."""
        await self._request("DELETE", path, options, expected=(404, 409))

    async def _request(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        expected: tuple[int, ...],
        content_type: str = "application/json",
        query: dict[str, str] | None = None,
    ) -> tuple[int, Any]:
        where = f"{self._access.server}{path}"
        asking = asyncio.ensure_future(self._ask(method, where, body, content_type, query))
        try:
            status, answer = await asyncio.shield(asking)
        except asyncio.CancelledError:
            # The connection of a cancelled request would take its leave in the background, for up to half a
            # minute; a session that is closed ends its connections first.
            await self._session.close()
            asking.cancel()
            await asyncio.wait([asking])
            raise
        except (aiohttp.ClientError, TimeoutError, ValueError) as error:
            raise Retryable(f"{method} {where}: {str(error) or type(error).__name__}") from error
        if status < 300 or status in expected:
            return status, answer
        text = f"{method} {where}: {status} {_message(answer)}"
        if status in (401, 403):
            raise Unauthorized(text)
        if status == 429 or status >= 500:
            raise Retryable(text)
        raise Terminal(text)

    async def _ask(
        self, method: str, where: str, body: Any, content_type: str, query: dict[str, str] | None
    ) -> tuple[int, Any]:
        headers = {"Content-Type": content_type}
        # Without a context of ours aiohttp makes its own; where there is no TLS it does not matter.
        tls = self._access.tls or True
        request = self._session.request(method, where, json=body, params=query, headers=headers, ssl=tls)
        async with request as response:
            return response.status, await response.json(content_type=None)


def _message(answer: Any) -> str:
    return str(answer.get("message", "")) if isinstance(answer, dict) else ""
