"""What tools may read of a shard: the verdict on each Need (shard.md §12)."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Final, TypeAlias

import grpc
from grpc import aio

from bigfleet.engine.verdicts import Verdict
from bigfleet.shard.core.report import Views
from bigfleet.shard.shell.sessions import presented_identity
from bigfleet_base.model import EMPTY, is_valid_id
from bigfleet_base.telemetry import Log
from bigfleet_base.wire import ADMIN, READONLY, IdentityRefusedError, authorise, peer_identity
from bigfleet_base.wire.fields import MalformedMessageError
from bigfleet_base.wire.views import NeedView, decode_inspection, encode_header, encode_view

ROWS_AT_ONCE: Final = 50
"""Rows that are put together before others have a turn, a millisecond or two of work."""

Context: TypeAlias = "aio.ServicerContext[bytes, bytes]"


class Reads:
    """Serves the last cycle's verdicts. They never change, so a reader holds up nobody (V1)."""

    def __init__(self, views: Callable[[], Views], log: Log) -> None:
        self._views = views
        self._log = log
        self._turn = asyncio.Lock()
        """Held by the one who puts rows together."""

    async def inspect_needs(self, request: bytes, context: Context) -> AsyncIterator[bytes]:
        try:
            authorise(peer_identity(context), READONLY, ADMIN)
        except IdentityRefusedError as error:
            self._log.error(
                "shard rejected read identity",
                rpc="InspectNeeds",
                presented_identity=presented_identity(context),
                err=error,
            )
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, str(error))
        try:
            cluster, limit = decode_inspection(request)
        except MalformedMessageError as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        if cluster and not is_valid_id(cluster):
            await context.abort(
                grpc.StatusCode.INVALID_ARGUMENT, f"cluster_id {cluster[:64]!r} is no cluster's"
            )
        views = self._views()
        verdicts = views.verdicts
        if cluster:
            verdicts = [verdict for verdict in verdicts if verdict.need.cluster_id == cluster]
        yield encode_header(views.cycle, views.computed_at, len(verdicts))
        last = min(limit, len(verdicts)) if limit else len(verdicts)
        for at in range(0, last, ROWS_AT_ONCE):
            # One reader in a turn of the loop; not while it writes, which takes as long as its peer likes.
            async with self._turn:
                rows = [
                    encode_view(_view(verdict)) for verdict in verdicts[at : min(at + ROWS_AT_ONCE, last)]
                ]
                await asyncio.sleep(0)
            for row in rows:
                yield row


def _view(verdict: Verdict) -> NeedView:
    supply, resolution = verdict.supply, verdict.resolution
    return NeedView(
        need=verdict.need,
        groups=verdict.demand.groups,
        satisfied=verdict.satisfied,
        deficit=verdict.deficit,
        claimed=verdict.claimed,
        bootstraps=verdict.sources.idle,
        provisions=verdict.sources.speculative,
        same_domain=verdict.same_domain or "",
        same_satisfiable=verdict.same_satisfiable,
        parked_age=verdict.parked_age,
        age=verdict.age,
        reason=verdict.reason.value,
        detail=verdict.detail,
        supply=None
        if supply is None
        else (supply.idle, supply.configured, supply.speculative, supply.capped),
        victims=len(resolution.picks) if resolution else 0,
        freed=resolution.freed if resolution else EMPTY,
        candidates=[(c.domain, c.coverage_per_mille, c.satisfiable) for c in verdict.candidates],
    )
