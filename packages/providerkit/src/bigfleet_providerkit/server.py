"""The gRPC face of a provider: requests to events, answers to statuses, records as they are kept."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any, Final, Protocol, TypeAlias, TypeVar

import grpc
from grpc import aio

from bigfleet_base.api.ext.v1alpha1 import providerinfo_pb2 as info_pb
from bigfleet_base.api.v1alpha1 import provider_pb2 as pb
from bigfleet_base.model import MachineState
from bigfleet_base.wire import IdentityRefusedError, Role, authorise_claim, peer_identity
from bigfleet_providerkit import effects
from bigfleet_providerkit.core import Core
from bigfleet_providerkit.driver import Driver
from bigfleet_providerkit.effects import Answer, Call, Code, Token
from bigfleet_providerkit.listing import Listed
from bigfleet_providerkit.metrics import Telemetry
from bigfleet_providerkit.records import Kind
from bigfleet_providerkit.settings import MAX_METADATA_BYTES, MAX_METADATA_KEYS
from bigfleet_providerkit.work import NANOS

SERVICE: Final = "bigfleet.v1alpha1.CapacityProvider"
INFO_SERVICE: Final = "bigfleet.ext.v1alpha1.ProviderInfo"
_READS: Final = ("Get", "List", "Describe")
_SLICE: Final = 4_000
"""Records of a List that are put together without letting others have a turn."""

Context: TypeAlias = "aio.ServicerContext[Any, Any]"
Request = TypeVar("Request")


class Refused(Exception):  # noqa: N818  # an answer, not an error
    """The call ends with this status."""

    def __init__(self, code: Code, message: str) -> None:
        super().__init__(message)
        self.code = code


class MakeService(Protocol):
    """What makes the face of a provider; the fake's is not always to be reached."""

    def __call__(
        self, core: Core, driver: Driver, telemetry: Telemetry, *, is_plaintext: bool
    ) -> "Service": ...


class Service:
    """The six calls of CapacityProvider, and ProviderInfo."""

    def __init__(self, core: Core, driver: Driver, telemetry: Telemetry, *, is_plaintext: bool) -> None:
        self._core = core
        self._driver = driver
        self._telemetry = telemetry
        self._is_plaintext = is_plaintext
        self.serving = True
        """False during shutdown, when every call is answered UNAVAILABLE."""

    def add_to(self, server: aio.Server) -> None:
        """Serve on this server."""
        calls = {
            "Create": self._handler("Create", self._create, pb.CreateRequest),
            "Configure": self._handler("Configure", self._configure, pb.ConfigureRequest),
            "Drain": self._handler("Drain", self._drain, pb.DrainRequest),
            "Delete": self._handler("Delete", self._delete, pb.DeleteRequest),
            "Get": self._handler("Get", self._get, pb.MachineRef),
            "List": self._handler("List", self._list, pb.ListFilter),
        }
        describe = {"Describe": self._handler("Describe", self._describe, info_pb.DescribeRequest)}
        server.add_generic_rpc_handlers(
            (
                grpc.method_handlers_generic_handler(SERVICE, calls),
                grpc.method_handlers_generic_handler(INFO_SERVICE, describe),
            )
        )

    def _handler(
        self, method: str, behaviour: Callable[[Any, Context], Awaitable[bytes]], request: Any
    ) -> Any:
        async def guarded(message: Any, context: Context) -> bytes:
            started = time.perf_counter()
            code, text, answer = Code.OK, "", b""
            try:
                if not self.serving:
                    raise Refused(Code.UNAVAILABLE, "the provider is shutting down; try again")
                answer = await behaviour(message, context)
            except Refused as refused:
                code, text = refused.code, str(refused)
            except Exception as error:
                # One bad call must not look like a dead provider, and must be seen.
                self._telemetry.panicked(error)
                code, text = Code.INTERNAL, "the provider has a defect; see its log"
            self._telemetry.rpc(method, code.value, time.perf_counter() - started)
            if method in _READS:
                self._telemetry.read(method, getattr(message, "id", ""), code, text)
            if code is not Code.OK:
                await context.abort(getattr(grpc.StatusCode, code.value), text)
            return answer

        # No serialiser: behaviours return the bytes of their messages.
        return grpc.unary_unary_rpc_method_handler(guarded, request_deserializer=request.FromString)

    async def _create(self, request: pb.CreateRequest, context: Context) -> bytes:
        return await self._mutate(Kind.CREATE, request, context, metadata=dict(request.shard_metadata))

    async def _configure(self, request: pb.ConfigureRequest, context: Context) -> bytes:
        return await self._mutate(
            Kind.CONFIGURE,
            request,
            context,
            cluster_id=request.cluster_id,
            blob=request.bootstrap_blob,
            metadata=dict(request.shard_metadata),
        )

    async def _drain(self, request: pb.DrainRequest, context: Context) -> bytes:
        return await self._mutate(
            Kind.DRAIN,
            request,
            context,
            grace=request.grace_period_seconds,
            metadata=dict(request.shard_metadata),
        )

    async def _delete(self, request: pb.DeleteRequest, context: Context) -> bytes:
        return await self._mutate(Kind.DELETE, request, context)

    async def _mutate(self, kind: Kind, request: Any, context: Context, **more: Any) -> bytes:
        # Without TLS nobody has an identity, and to ask gRPC for it is not cheap.
        if not self._is_plaintext:
            try:
                authorise_claim(peer_identity(context), Role.SHARD, request.shard_id)
            except IdentityRefusedError as error:
                # The core never hears of it, so nobody else would tell who tried what.
                said = effects.Refused(
                    kind, request.machine_id, request.shard_id, Code.PERMISSION_DENIED, str(error)
                )
                self._telemetry.report(said)
                raise Refused(Code.PERMISSION_DENIED, str(error)) from None
        token = Token(request.shard_id, request.shard_epoch, request.sequence_number)
        call = Call(self._driver.next_number(), kind, request.machine_id, token, **more)
        answer: Answer = await self._driver.call(call)
        if answer.code is not Code.OK:
            raise Refused(answer.code, answer.message)
        return answer.ack

    async def _get(self, request: pb.MachineRef, context: Context) -> bytes:
        if not request.id:
            raise Refused(Code.INVALID_ARGUMENT, "id is empty")
        slot = self._core.get(request.id)
        if slot is None:
            raise Refused(Code.NOT_FOUND, f"no machine {request.id[:128]!r}")
        return slot.record

    async def _list(self, request: pb.ListFilter, context: Context) -> bytes:
        try:
            states = frozenset(MachineState(state) for state in request.states)
        except ValueError as error:
            raise Refused(Code.INVALID_ARGUMENT, f"states: {error}") from None
        if MachineState.UNSPECIFIED in states:
            raise Refused(Code.INVALID_ARGUMENT, "states: UNSPECIFIED is no state of a machine")
        return await _joined(await self._listed(states, request.max_results, request.since_revision))

    async def _listed(self, states: frozenset[MachineState], max_results: int, since: bytes) -> Listed:
        found = self._core.ask_list(states, max_results, since)
        if isinstance(found, Listed):
            return found
        with found:
            found.advance(_SLICE)
            while found.listed is None:
                await asyncio.sleep(0)
                found.advance(_SLICE)
        return found.listed

    async def _describe(self, request: info_pb.DescribeRequest, context: Context) -> bytes:
        settings = self._core.settings
        return info_pb.DescribeResponse(
            name=settings.provider,
            version=settings.version,
            delete=settings.capabilities.delete,
            cursor=True,
            tombstones=True,
            fault_hooks=settings.fault_hooks,
            max_metadata_keys=MAX_METADATA_KEYS,
            max_metadata_bytes=MAX_METADATA_BYTES,
            max_blob_bytes=settings.max_blob_bytes,
            timeout_seconds={kind.value: settings.timeouts[kind] / NANOS for kind in Kind},
            epoch_floor=not settings.compat,
        ).SerializeToString()


async def _joined(listed: Listed) -> bytes:
    # Slots are values: whatever becomes of the machines meanwhile, these records do not change.
    if len(listed.slots) <= _SLICE:
        return listed.message()
    parts = []
    for start in range(0, len(listed.slots), _SLICE):
        parts.append(listed.part(start, start + _SLICE))
        await asyncio.sleep(0)
    message = b"".join((*parts, listed.tail()))
    # gRPC copies it once more, which is a turn's worth of work by itself.
    await asyncio.sleep(0)
    return message
