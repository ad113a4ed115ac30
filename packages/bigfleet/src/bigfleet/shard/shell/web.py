"""The shard's pages: probes, metrics and a look inside (shard.md §15, observability.md §8)."""

import asyncio
from collections.abc import Callable
from typing import Final

import orjson

from bigfleet.shard.core.core import ShardCore
from bigfleet_base.model import ResourceVector
from bigfleet_base.telemetry import CONTENT_TYPE, Log
from bigfleet_base.telemetry.sketch import QUANTILES, unpack_sketches
from bigfleet_base.wire import bound_address
from bigfleet_base.wire.quantities import encode_resources
from bigfleet_base.wire.web import Answer, Web, text

FIRST_PAUSE_S: Final = 1.0
LONGEST_PAUSE_S: Final = 60.0


class Pages:
    """Kept up beside the shard: a port that is taken costs the pages and nothing else (P1)."""

    def __init__(
        self,
        core: ShardCore,
        render: Callable[[], bytes],
        sketches: Callable[[], bytes],
        log: Log,
        *,
        debug_everywhere: bool,
    ) -> None:
        self._core = core
        self._sketches = sketches
        self._log = log
        self.stopping = False
        self.port = 0
        """0 until the pages are served."""
        debug = ("/debug/state", "/debug/sketches")
        self._web = Web(
            {
                "/healthz": lambda: text(200, "ok"),
                "/readyz": self._ready,
                "/metrics": lambda: (200, CONTENT_TYPE, render()),
                "/debug/state": self._state,
                "/debug/sketches": lambda: (200, "application/octet-stream", sketches()),
            },
            local=() if debug_everywhere else debug,
            failed=lambda path, error: log.error("page failed", path=path, err=error),
        )

    async def serve(self, address: str) -> None:
        """Listen, however long that takes; returns when the pages are up."""
        pause = FIRST_PAUSE_S
        while True:
            try:
                self.port = await self._web.start(address)
            except Exception as error:  # whatever it is, it must not end unseen
                self._log.error("metrics not served; trying again", addr=address, err=error, pause_s=pause)
            else:
                self._log.info("metrics serving", addr=bound_address(address, self.port))
                return
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE_S)

    async def stop(self) -> None:
        await self._web.stop()

    def _ready(self) -> Answer:
        if self.stopping:
            return text(503, "shutting down")
        ready, why = self._core.ready()
        return text(200, "ok") if ready else text(503, why)

    def _state(self) -> Answer:
        state = self._core.debug_state()
        for need in state["needs"]:
            # As people write it; a number could be longer than JSON's readers, and ours, can take.
            need["aggregate"] = encode_resources(ResourceVector(need["aggregate"]))
        state["sketches"] = {
            name: {"count": sketch.count, **dict(zip(map(str, QUANTILES), sketch.quantiles(), strict=True))}
            for name, sketch in unpack_sketches(self._sketches()).items()
        }
        body = orjson.dumps(state, option=orjson.OPT_NON_STR_KEYS | orjson.OPT_INDENT_2)
        return 200, "application/json", body
