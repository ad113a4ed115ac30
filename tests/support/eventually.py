"""Waiting for a condition that nothing announces, with a deadline instead of a guess."""

import asyncio
from collections.abc import Callable


async def eventually(condition: Callable[[], bool], *, seconds: float = 20) -> None:
    """Return as soon as the condition holds; TimeoutError when it still does not after the deadline."""
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110  # the condition has no event to wait for
            await asyncio.sleep(0.005)
