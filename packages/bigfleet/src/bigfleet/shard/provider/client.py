"""Calls to one provider: fenced, tried again, held back by the breaker, validated, counted."""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Generator, Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Final, TypeAlias, TypeVar

from grpc import aio

from bigfleet.shard.provider.breaker import Breaker, Permit
from bigfleet.shard.provider.capabilities import Capabilities
from bigfleet.shard.provider.cursor import FULL_INTERVAL, Cursor
from bigfleet.shard.provider.endpoints import Endpoint
from bigfleet.shard.provider.failures import TRANSPORT_CODES, CallFailedError, FailureKind, classify
from bigfleet.shard.provider.fence import Fence
from bigfleet.shard.provider.lanes import Lanes
from bigfleet.shard.provider.ledger import Ledger
from bigfleet.shard.provider.listing import ListEnd, ListRun, ListSlice, read_missing, read_page
from bigfleet.shard.provider.metrics import ProviderMetrics
from bigfleet.shard.provider.report import RecordReport
from bigfleet.shard.provider.retry import CALL_BUDGET, LIST_BUDGET, SECOND, Attempts
from bigfleet_base.model import CapacityType
from bigfleet_base.telemetry import Log, Metrics
from bigfleet_base.wire import (
    LastingChannel,
    ListFramesError,
    ObservedMachine,
    RecordDecoder,
    Rejected,
    TlsCredentials,
)
from bigfleet_base.wire import provider_calls as calls
from bigfleet_base.wire.records import STRUCTURAL, UNDECODABLE

Request: TypeAlias = Callable[[int], bytes]
"""Called for each attempt with its sequence number, so that each carries a token of its own (P-130)."""
Merge: TypeAlias = Callable[[ListSlice], Awaitable[None]]
Ending = TypeVar("Ending")


@dataclass(frozen=True, slots=True)
class Ack:
    """A mutation was accepted, now or by an earlier attempt."""

    operation_id: str
    observed: ObservedMachine
    """The machine as the provider has it, in whichever state: the call may have ended already."""


class ProviderClient:
    """One provider of a shard.

    Calls return what the provider says of the machine, or raise CallFailedError; they decide nothing about
    the machine. While ``is_halted``, a call that was sent is waited for and not sent again (shard.md R3).
    Times are nanoseconds of ``now``, a monotonic clock; ``jitter`` gives numbers in [0, 1).
    """

    def __init__(
        self,
        endpoint: Endpoint,
        fence: Fence,
        tls: TlsCredentials | None,
        metrics: Metrics,
        log: Log,
        *,
        insecure: bool = False,
        incremental: bool = False,
        full_interval: int = FULL_INTERVAL,
        call_budget: int = CALL_BUDGET,
        is_halted: Callable[[], bool] = lambda: False,
        now: Callable[[], int] = time.monotonic_ns,
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self.name = endpoint.name
        self.capabilities = Capabilities()
        self._channel = LastingChannel(endpoint.address, tls, insecure=insecure)
        self._fence = fence
        self._metrics = ProviderMetrics(metrics, endpoint.name)
        self._log = log.bind(provider=endpoint.name)
        self._call_budget = call_budget
        self._is_halted = is_halted
        self._now = now
        self._jitter = jitter
        self._breaker = Breaker()
        self._cursor = Cursor(incremental=incremental, full_interval=full_interval)
        self._ledger = Ledger()
        self._decoder = RecordDecoder()
        self._lanes = Lanes()
        self._listing = False
        self._last_list = now()
        self.show_metrics()
        self._log.info("dialing out-of-tree provider", addr=endpoint.address)

    async def close(self) -> None:
        """End the connection and every call on it."""
        await self._channel.close()

    def show_metrics(self) -> None:
        """Bring the gauges up to date; for whoever renders the metrics."""
        age = self._now() - self._last_list
        self._metrics.show(breaker_open=self._breaker.is_open, list_age=age)

    def is_held_back(self) -> bool:
        """Whether a mutation would not be sent now; worth asking before a blob is fetched for it."""
        return not self._breaker.would_admit(self._now())

    def is_on_trial(self) -> bool:
        """Whether one mutation would be sent, to find out whether the provider answers again."""
        return self._breaker.is_open and self._breaker.would_admit(self._now())

    async def describe(self) -> Capabilities:
        """Ask what the provider can do. One that does not say is probed by use (P-142)."""
        try:
            answer = await self._call("Describe", lambda _: calls.encode_describe(), self._call_budget)
            said = calls.decode_description(answer)
        except calls.UndecodableAnswerError:
            self._log.warn("provider describes itself in no known form; going by what it does")
            return self.capabilities
        except CallFailedError as error:
            if error.kind in (FailureKind.TRANSIENT, FailureKind.NOT_SENT):
                raise
            self._log.info("provider does not describe itself; going by what it does", err=error)
            return self.capabilities
        self.capabilities = Capabilities(
            name=said.name,
            version=said.version,
            delete=said.delete,
            cursor=said.cursor,
            tombstones=said.tombstones,
            epoch_floor=said.epoch_floor,
            max_metadata_keys=said.max_metadata_keys,
            max_metadata_bytes=said.max_metadata_bytes,
            max_blob_bytes=said.max_blob_bytes,
            undeletable=self.capabilities.undeletable,
        )
        return self.capabilities

    async def raise_floor(self) -> None:
        """Fence older processes of this shard before the first List, by a Drain of a machine that no provider
        has (shard.md F6). Any answer but a fenced one will do."""
        nobody = f"bigfleet-fence-{self._fence.shard_id}"
        try:
            await self._call(
                "Drain", lambda n: calls.encode_drain(self._token(n), nobody, 0, {}), self._call_budget
            )
        except CallFailedError as error:
            if error.kind in (FailureKind.FENCED, FailureKind.TRANSIENT):
                raise

    async def create(self, machine_id: str, metadata: Mapping[str, str], *, budget: int | None = None) -> Ack:
        self._refuse_excess("Create", metadata)
        return await self._mutate(
            "Create", machine_id, lambda n: calls.encode_create(self._token(n), machine_id, metadata), budget
        )

    async def configure(
        self,
        machine_id: str,
        cluster_id: str,
        blob: bytes,
        metadata: Mapping[str, str],
        *,
        budget: int | None = None,
    ) -> Ack:
        self._refuse_excess("Configure", metadata, blob)
        return await self._mutate(
            "Configure",
            machine_id,
            lambda n: calls.encode_configure(self._token(n), machine_id, cluster_id, blob, metadata),
            budget,
            cluster_id,
        )

    async def drain(
        self, machine_id: str, grace_seconds: int, metadata: Mapping[str, str], *, budget: int | None = None
    ) -> Ack:
        self._refuse_excess("Drain", metadata)
        return await self._mutate(
            "Drain",
            machine_id,
            lambda n: calls.encode_drain(self._token(n), machine_id, grace_seconds, metadata),
            budget,
        )

    async def delete(self, machine_id: str, capacity_type: CapacityType, *, budget: int | None = None) -> Ack:
        if not self.capabilities.can_delete(capacity_type):
            raise CallFailedError(
                "Delete", FailureKind.NOT_SUPPORTED, "UNIMPLEMENTED", "the provider cannot delete; not asked"
            )
        try:
            return await self._mutate(
                "Delete", machine_id, lambda n: calls.encode_delete(self._token(n), machine_id), budget
            )
        except CallFailedError as error:
            # Calls that were under way together learn it together, and it is said once.
            if error.kind is FailureKind.NOT_SUPPORTED and self.capabilities.can_delete(capacity_type):
                self.capabilities.undeletable.add(capacity_type)
                self._log.warn(
                    "provider cannot delete; no further Delete for this capacity type until restart",
                    capacity_type=capacity_type.title,
                )
            raise

    async def get(self, machine_id: str) -> ObservedMachine:
        """One machine as it is now. What the next List says of it is passed on again, also if this fails: who
        asks has not used what the last one said."""
        try:
            answer = await self._call("Get", lambda _: calls.encode_get(machine_id), self._call_budget)
            return self._validated("Get", machine_id, calls.message_in(answer))
        except calls.UndecodableAnswerError as error:
            raise self._rejected("Get", Rejected(machine_id, UNDECODABLE, "", str(error))) from None
        finally:
            self._ledger.forget_record(machine_id)

    async def list(self, merge: Merge) -> ListEnd:
        """Pass on what is new since the last List, a slice at a time; other tasks run in between.

        Nothing more is read before ``merge`` has returned, and a slice that it has not taken to its end is
        passed on again. A failed List moves no cursor. One at a time.
        """
        assert not self._listing, f"two Lists of provider {self.name} at a time"
        self._listing = True
        try:
            report = RecordReport(self._metrics, self._log)
            run = await self._read_pages(merge, report)
        finally:
            self._listing = False
        report.end()
        end = run.end()
        self._cursor.merged(run.revision, complete=end.complete, now=self._now(), jitter=self._jitter())
        self._last_list = self._now()
        self._metrics.listed(end.records, is_delta=not end.complete)
        self.show_metrics()
        return end

    async def _read_pages(self, merge: Merge, report: RecordReport) -> ListRun:
        run = ListRun(
            self._cursor.since(self._now(), honoured=self.capabilities.cursor),
            paged=bool(self.capabilities.cursor and self.capabilities.tombstones),
        )
        budget = LIST_BUDGET
        self._ledger.begin_list()
        while True:
            asked = self._now()
            data, started = await self._fetch(run, budget)
            budget -= self._now() - asked
            page = await self._pass_on(read_page(data, started, self._ledger, self._decoder), merge, report)
            if run.is_last(page):
                break
        if run.shows_missing:
            await self._pass_on(read_missing(started, self._ledger), merge, report)
        return run

    async def _fetch(self, run: ListRun, budget: int) -> tuple[bytes, int]:
        """One answer to a List, and when the attempt that got it was sent."""
        started = 0

        def request(_: int) -> bytes:
            nonlocal started
            started = self._now()
            return calls.encode_list(run.since, run.max_results)

        answer = await self._call("List", request, budget)
        try:
            return calls.message_in(answer), started
        except calls.UndecodableAnswerError as error:
            raise _bad_answer("List", str(error)) from None

    async def _pass_on(
        self, reading: Generator[ListSlice | None, None, Ending], merge: Merge, report: RecordReport
    ) -> Ending:
        with closing(reading):
            while True:
                try:
                    news = next(reading)
                except StopIteration as stop:
                    ending: Ending = stop.value
                    return ending
                except ListFramesError as error:
                    raise _bad_answer("List", str(error)) from error
                if news is not None:
                    report.slice(news)
                    await merge(news)
                await asyncio.sleep(0)

    def _token(self, sequence: int) -> calls.Token:
        return calls.Token(self._fence.shard_id, self._fence.epoch, sequence)

    async def _mutate(
        self,
        rpc: str,
        machine_id: str,
        request: Request,
        budget: int | None,
        cluster_id: str = "",
    ) -> Ack:
        begun = self._now()
        budget = self._call_budget if budget is None else min(budget, self._call_budget)
        async with self._lanes.alone(machine_id):
            try:
                left = budget - (self._now() - begun)
                if left <= 0:
                    raise CallFailedError(
                        rpc,
                        FailureKind.NOT_SENT,
                        "DEADLINE_EXCEEDED",
                        "another call for the machine was first",
                    )
                answer = await self._call(rpc, request, left, mutation=True)
                return self._acknowledged(rpc, machine_id, answer, cluster_id)
            finally:
                self._ledger.forget_record(machine_id)

    async def _call(
        self,
        rpc: str,
        request: Request,
        budget: int,
        *,
        mutation: bool = False,
    ) -> bytes | None:
        """Attempts until an answer, a final status, or the end of the budget. ``request`` is given a fresh
        sequence number for each attempt that is a mutation."""
        attempts = Attempts(self._now(), budget)
        failure: CallFailedError | None = None
        while True:
            permit = self._breaker.admit(self._now()) if mutation else Permit.READ
            if permit is None:
                # The breaker may have opened between two attempts; then it is not known what the first did.
                raise failure or CallFailedError(
                    rpc,
                    FailureKind.NOT_SENT,
                    "UNAVAILABLE",
                    "the provider does not answer; calls are held back",
                    attempt=0,
                )
            sequence = self._fence.draw() if rpc in _FENCED_CALLS else 0
            try:
                return await self._attempt(rpc, request(sequence), attempts, permit)
            except aio.AioRpcError as error:
                code = error.code().name
                details = error.details() or ""
                failure = CallFailedError(rpc, classify(code), code, details, sequence, attempts.number)
            pause = attempts.pause(code, self._now(), self._jitter())
            # A provider that is held back gets one attempt at a time, also of the calls that may look.
            if pause is None or self._breaker.is_open:
                raise failure
            await asyncio.sleep(pause / SECOND)
            if mutation and self._is_halted():
                raise failure

    async def _attempt(self, rpc: str, request: bytes, attempts: Attempts, permit: Permit) -> bytes | None:
        begun = self._now()
        # Answers stay bytes: gRPC would decode a List in one go, and an answer that is no message would look
        # like a failed call.
        method: aio.UnaryUnaryMultiCallable[bytes, bytes | None] = self._channel.current().unary_unary(
            (calls.INFO_SERVICE if rpc == "Describe" else calls.PROVIDER_SERVICE) + rpc
        )
        code = ""
        try:
            answer = await method(request, timeout=attempts.left(begun) / SECOND)
            code = "OK"
        except aio.AioRpcError as error:
            code = error.code().name
            raise
        finally:
            self._note(rpc, code, begun, permit)
        return answer

    def _note(self, rpc: str, code: str, begun: int, permit: Permit) -> None:
        now = self._now()
        was_open = self._breaker.is_open
        if not code:
            self._breaker.abandoned(permit)
            return
        if code in TRANSPORT_CODES:
            self._breaker.failed(permit, now)
        else:
            self._breaker.answered()
        if rpc != "Describe":
            self._metrics.attempt(rpc, code, now - begun)
        if self._breaker.is_open != was_open:
            self.show_metrics()
            if was_open:
                self._log.info("provider answers again; calls are no longer held back")
            else:
                self._log.warn("provider does not answer; mutations are held back", rpc=rpc, code=code)

    def _acknowledged(self, rpc: str, machine_id: str, answer: bytes | None, cluster_id: str) -> Ack:
        try:
            operation_id, raw = calls.decode_ack(answer)
        except calls.UndecodableAnswerError as error:
            raise self._rejected(rpc, Rejected(machine_id, UNDECODABLE, "", str(error))) from None
        if raw is None:
            raise self._rejected(rpc, Rejected(machine_id, STRUCTURAL, "", "the answer has no machine"))
        return Ack(operation_id, self._validated(rpc, machine_id, raw, cluster_id))

    def _validated(self, rpc: str, machine_id: str, raw: bytes, cluster_id: str = "") -> ObservedMachine:
        """The record in an answer, which must be about this machine and, if one is given, this cluster."""
        seen = self._decoder.decode(raw)
        if isinstance(seen, Rejected):
            raise self._rejected(rpc, seen)
        machine = seen.machine
        wrong = ""
        if machine.id != machine_id:
            wrong = f"the answer is about machine {machine.id!r}, not {machine_id!r}"
        elif cluster_id and machine.cluster and machine.cluster != cluster_id:
            wrong = f"machine {machine_id!r} is bound to {machine.cluster!r}, not {cluster_id!r}"
        if wrong:
            raise self._rejected(rpc, Rejected(machine_id, STRUCTURAL, machine.state.title, wrong))
        if seen.notes.malformed:
            RecordReport(self._metrics, self._log).malformed(seen)
        return seen

    def _rejected(self, rpc: str, bad: Rejected) -> CallFailedError:
        RecordReport(self._metrics, self._log).rejected(bad)
        return _bad_answer(rpc, bad.message)

    def _refuse_excess(self, rpc: str, metadata: Mapping[str, str], blob: bytes = b"") -> None:
        excess = self.capabilities.excess(metadata, blob)
        if excess:
            raise CallFailedError(
                rpc, FailureKind.REFUSED, "INVALID_ARGUMENT", f"{excess}; not sent", attempt=0
            )


def _bad_answer(rpc: str, message: str) -> CallFailedError:
    return CallFailedError(rpc, FailureKind.BAD_ANSWER, "OK", message)


_FENCED_CALLS: Final = frozenset({"Create", "Configure", "Drain", "Delete"})
