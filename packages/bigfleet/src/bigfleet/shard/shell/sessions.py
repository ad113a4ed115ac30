"""The streams of operators (shard.md §8, wire.md §4).

Three tasks serve a stream. The reader takes frames as they come and passes everything but roll-ups on at
once, so that no answer waits behind one (B1). The ingest task reads one roll-up at a time, always the newest
(I3). The writer sends what the core has given credit for, so that a peer that does not read blocks nobody but
itself (S8).
"""

import asyncio
import time
from collections.abc import Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from typing import Any, Final, TypeAlias, TypeVar

import grpc
from grpc import aio

from bigfleet.shard.core.effects import EndStatus
from bigfleet.shard.core.events import (
    BootstrapAnswered,
    Event,
    HelloRepeated,
    NodeReadiness,
    ReclaimAcked,
    Rollup,
    RollupRefused,
    RollupRepeated,
    SessionClosed,
    SessionOpened,
    Writable,
)
from bigfleet.shard.core.settings import CREDIT, HELLO_TIMEOUT
from bigfleet.shard.provider.texts import foreign
from bigfleet.shard.shell.driver import Driver
from bigfleet.shard.shell.providers import Providers
from bigfleet_base.model import is_valid_id
from bigfleet_base.model.frames import Frame
from bigfleet_base.telemetry import Log, Metrics
from bigfleet_base.telemetry.catalogue import shard as series
from bigfleet_base.wire import IdentityRefusedError, Role, authorise_claim, peer_identity
from bigfleet_base.wire.demand import RollupRefusedError
from bigfleet_base.wire.fields import MalformedMessageError
from bigfleet_base.wire.rollups import NOTHING_ACCEPTED, AcceptedRollup, RawRollup, ReadRollup, read_rollup
from bigfleet_base.wire.session import (
    BootstrapAnswer,
    CordonAck,
    Hello,
    OperatorFrame,
    ReadinessReport,
    Stamp,
    decode_operator_message,
    encode_frame,
)

SLICE_NS: Final = 5_000_000
"""How long the reading of roll-ups may hold the loop in one of its turns."""
MOST_AHEAD: Final = 64
"""Frames of one session that the core may still have to hear of."""
LAST_WORD_S: Final = 2.0
"""How long streams are waited for when the process ends."""
MOMENT_S: Final = 0.05
"""How long an end of the messages may be that of the connection."""

Result = TypeVar("Result")
Context: TypeAlias = "aio.ServicerContext[bytes, bytes]"


class Refused(Exception):  # noqa: N818  # an answer, not an error
    """The stream ends with this status."""

    def __init__(self, code: grpc.StatusCode, text: str) -> None:
        super().__init__(text)
        self.code = code


class Sessions:
    """All sessions of the shard, and what is kept of each cluster's last accepted roll-up."""

    def __init__(
        self, driver: Driver, providers: Providers, stamp: Stamp, metrics: Metrics, log: Log
    ) -> None:
        self._driver = driver
        self._providers = providers
        self._stamp = stamp
        self._metrics = metrics
        self._log = log
        self._numbers = count(1)
        self._open: dict[int, _Session] = {}
        self._closing = ""
        self._turn = asyncio.Lock()
        """Held by the one who reads a roll-up; first come, first served."""
        self._beside = ThreadPoolExecutor(1, "long-row")
        """One, so that several long rows keep the interpreter from the loop no more than one."""
        self._accepted: dict[str, AcceptedRollup] = {}
        """One for each cluster that the core has accepted something of, which bounds it."""

    async def serve(self, _requests: object, context: Context) -> None:
        """One stream, from its first frame to its status."""
        try:
            if self._closing:
                raise Refused(grpc.StatusCode.UNAVAILABLE, self._closing)
            hello = await self._greet(context)
        except Refused as refused:
            await context.abort(refused.code, str(refused))
        session = _Session(next(self._numbers), hello.cluster, context)
        self._open[session.number] = session
        try:
            await self._serve(session, hello.protocol)
        except Refused as refused:
            await context.abort(refused.code, str(refused))
        finally:
            del self._open[session.number]

    def send(self, session: int, frames: Sequence[Frame]) -> None:
        """Have frames written, in this order."""
        known = self._open.get(session)
        # One that has ended is about to tell the core so.
        if known is not None:
            known.outgoing.extend(frames)
            known.has_outgoing.set()

    def end(self, session: int, status: EndStatus, text: str) -> None:
        """End a stream from our side."""
        known = self._open.get(session)
        if known is not None:
            known.end(Refused(grpc.StatusCode[status.value], text))

    async def end_all(self, text: str) -> None:
        """End every stream and refuse new ones; returns when the peers could have heard it."""
        self._closing = text
        self._beside.shutdown(wait=False, cancel_futures=True)
        for session in list(self._open.values()):
            session.end(Refused(grpc.StatusCode.UNAVAILABLE, text))
        deadline = time.monotonic() + LAST_WORD_S
        while self._open and time.monotonic() < deadline:  # noqa: ASYNC110  # streams end one by one
            await asyncio.sleep(0.005)

    async def _greet(self, context: Context) -> Hello:
        """The first frame, if it is what it must be (S1, S2, S10)."""
        try:
            async with asyncio.timeout(HELLO_TIMEOUT / 1e9):
                data = await _read(context)
        except TimeoutError:
            raise _invalid(f"no Hello within {HELLO_TIMEOUT // 10**9} s") from None
        if data is None:
            raise _invalid("the stream ended before its Hello")
        try:
            hello = await self._decode(data)
        except MalformedMessageError as error:
            raise _invalid(f"the first frame: {error}") from None
        if not isinstance(hello, Hello):
            raise _invalid("the first frame must be a Hello")
        if not is_valid_id(hello.cluster):
            raise _invalid(
                f"cluster_id {hello.cluster[:64]!r}: give 1 to 253 of the characters A-Z a-z 0-9 . _ -"
            )
        try:
            authorise_claim(peer_identity(context), Role.CLUSTER, hello.cluster)
        except IdentityRefusedError as error:
            self._metrics.counter(series.SESSION_IDENTITY_REJECTED).inc()
            self._log.error(
                "operator session identity rejected",
                cluster=hello.cluster,
                presented_identity=presented_identity(context),
                err=error,
            )
            raise Refused(grpc.StatusCode.PERMISSION_DENIED, str(error)) from None
        return hello

    async def _serve(self, session: "_Session", protocol: str) -> None:
        opened = SessionOpened(session.number, session.cluster, session.context.peer(), foreign(protocol))
        closed = SessionClosed(session.number, "the connection was lost")
        loop, tasks = asyncio.get_running_loop(), list[asyncio.Task[None]]()
        try:
            await self._driver.handled(opened)
            for work in (self._read_frames, self._ingest, self._write_frames):
                tasks.append(loop.create_task(work(session)))
            ends: list[asyncio.Future[Any]] = [*tasks, session.ended]
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            closed = SessionClosed(session.number, _why(tasks, session))
        finally:
            # Also when gRPC cancels this, at any moment: the peer is gone, and the core has heard of it.
            for task in tasks:
                task.cancel()
            self._driver.submit(closed)
            await asyncio.gather(*tasks, return_exceptions=True)
        if session.ended.done():
            raise session.ended.result()
        for task in tasks:
            if not task.cancelled() and isinstance(error := task.exception(), Refused):
                raise error

    async def _read_frames(self, session: "_Session") -> None:
        while (data := await _read(session.context)) is not None:
            try:
                frame = await self._decode(data)
            except MalformedMessageError as error:
                self._log.warn("operator message handling", cluster=session.cluster, err=error)
                continue
            match frame:
                case RawRollup():
                    session.newest = frame
                    session.has_rollup.set()
                    session.all_read.clear()
                case BootstrapAnswer():
                    # The first answer counts; one more while its blob waits for its call is nobody's (B2).
                    if frame.error or self._providers.keep_blob(frame.request_id, frame.blob):
                        reason = foreign(frame.error)
                        await self._tell(
                            session, BootstrapAnswered(session.number, frame.request_id, frame.ttl_s, reason)
                        )
                case CordonAck(instruction_id, nodes):
                    await self._tell(session, ReclaimAcked(session.number, instruction_id, nodes))
                case ReadinessReport(machine_id, node, ready):
                    await self._tell(session, NodeReadiness(session.number, machine_id, node, ready))
                case Hello(cluster):
                    if cluster != session.cluster:
                        raise _invalid(f"a second Hello of {cluster[:64]!r} on {session.cluster!r}'s stream")
                    await self._tell(session, HelloRepeated(session.number))
                case None:
                    self._log.debug(
                        "operator message handling", cluster=session.cluster, err="unknown payload"
                    )
        # A peer that has said all it had to say may wait for its answer.
        await session.all_read.wait()
        # A lost connection looks like an orderly end at first; gRPC tells which it is a moment later, by
        # cancelling the stream.
        await asyncio.sleep(MOMENT_S)

    async def _tell(self, session: "_Session", event: Event) -> None:
        """Pass an event on at once, but never let a peer fill the queue of the core."""
        session.told = (session.told + 1) % MOST_AHEAD
        if session.told:
            self._driver.submit(event)
        else:
            await self._driver.handled(event)

    async def _ingest(self, session: "_Session") -> None:
        while True:
            if session.newest is None:
                session.all_read.set()
            await session.has_rollup.wait()
            session.has_rollup.clear()
            raw, session.newest = session.newest, None
            assert raw is not None
            try:
                read = await self._read_rollup(session, raw)
            except RollupRefusedError as error:
                await self._driver.handled(RollupRefused(session.number, foreign(str(error))))
                continue
            # Its bytes, tens of megabytes perhaps, are not needed while the core thinks.
            del raw
            await self._tell_rollup(session, read)

    async def _read_rollup(self, session: "_Session", raw: RawRollup) -> ReadRollup:
        last = self._last_accepted(session.cluster)
        return await self._in_slices(read_rollup(raw, session.cluster, last))

    async def _decode(self, data: bytes) -> OperatorFrame | None:
        """A frame, at once if it is like any other: answers wait for no turn (B1)."""
        decoding = decode_operator_message(data)
        try:
            next(decoding)
        except StopIteration as stop:
            frame: OperatorFrame | None = stop.value
            return frame
        return await self._in_slices(decoding)

    async def _in_slices(self, work: Generator[bool, None, Result]) -> Result:
        while True:
            # One reader in a turn of the loop: with a slice for each, answers would wait for all of them.
            async with self._turn:
                begun = time.perf_counter_ns()
                try:
                    is_long = next(work)
                    while not is_long and time.perf_counter_ns() - begun < SLICE_NS:
                        is_long = next(work)
                except StopIteration as stop:
                    result: Result = stop.value
                    return result
                await asyncio.sleep(0)
            if is_long:
                await asyncio.get_running_loop().run_in_executor(self._beside, next, work)

    def _last_accepted(self, cluster: str) -> AcceptedRollup:
        """What a roll-up may be compared with: what the core has. A stream that ended with a roll-up on its
        way could not write down what became of it."""
        known = self._accepted.get(cluster, NOTHING_ACCEPTED)
        return known if known.digest == self._driver.core.accepted_digest(cluster) else NOTHING_ACCEPTED

    async def _tell_rollup(self, session: "_Session", read: ReadRollup) -> None:
        if read.is_repeated:
            await self._driver.handled(RollupRepeated(session.number, read.timestamp_ns))
            return
        digest = read.accepted.digest
        await self._driver.handled(Rollup(session.number, read.timestamp_ns, digest, read.fresh, read.order))
        # A roll-up that the guard holds is not the one that later ones are compared with (I5).
        if self._driver.core.accepted_digest(session.cluster) == digest:
            self._accepted[session.cluster] = read.accepted

    async def _write_frames(self, session: "_Session") -> None:
        written = 0
        while True:
            await session.has_outgoing.wait()
            session.has_outgoing.clear()
            frames, session.outgoing = session.outgoing, []
            for frame in frames:
                await session.context.write(encode_frame(frame, self._stamp))
                written += 1
                if written >= CREDIT // 2:
                    self._driver.submit(Writable(session.number, written))
                    written = 0


class _Session:
    """One stream. What it holds for its peer is bounded by the core's credit, what it holds of its peer by
    one roll-up waiting and one being read."""

    def __init__(self, number: int, cluster: str, context: Context) -> None:
        self.number = number
        self.cluster = cluster
        self.context = context
        self.ended: asyncio.Future[Refused] = asyncio.get_running_loop().create_future()
        self.outgoing: list[Frame] = []
        self.has_outgoing = asyncio.Event()
        self.newest: RawRollup | None = None
        self.has_rollup = asyncio.Event()
        self.all_read = asyncio.Event()
        """No roll-up waits or is being read."""
        self.told = 0

    def end(self, status: Refused) -> None:
        if not self.ended.done():
            self.ended.set_result(status)


def presented_identity(context: Context) -> str:
    """Who a refused peer claims to be, for the log."""
    try:
        return str(peer_identity(context))
    except IdentityRefusedError as error:
        return str(error)


async def _read(context: Context) -> bytes | None:
    """The next message; None when the peer has closed its side."""
    data: object = await context.read()
    return data if isinstance(data, bytes) else None


def _why(tasks: "Sequence[asyncio.Task[None]]", session: _Session) -> str:
    """Why a stream has ended; empty when its peer closed it in order, or we did at our end."""
    if session.ended.done():
        refused = session.ended.result()
        return "" if refused.code is grpc.StatusCode.UNAVAILABLE else str(refused)
    return next((str(error) for task in tasks if task.done() and (error := task.exception())), "")


def _invalid(text: str) -> Refused:
    return Refused(grpc.StatusCode.INVALID_ARGUMENT, text)
