"""One call at a time for each machine (P-141)."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Lanes:
    """A queue for each machine that has calls; none for the others."""

    def __init__(self) -> None:
        self._lanes: dict[str, tuple[asyncio.Lock, int]] = {}

    @asynccontextmanager
    async def alone(self, machine_id: str) -> AsyncIterator[None]:
        """Enter when no other call for this machine is under way, in the order of asking."""
        lock, users = self._lanes.get(machine_id) or (asyncio.Lock(), 0)
        self._lanes[machine_id] = (lock, users + 1)
        try:
            async with lock:
                yield
        finally:
            lock, users = self._lanes.pop(machine_id)
            if users > 1:
                self._lanes[machine_id] = (lock, users - 1)
