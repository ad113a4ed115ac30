"""The six calls of the base contract, each leaving evidence."""

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from grpc import StatusCode as Code
from grpc import aio

from bigfleet_base.api.v1alpha1 import provider_pb2 as pb
from bigfleet_base.model import MachineState
from bigfleet_base.telemetry.redact import text as redacted
from bigfleet_base.wire.provider_calls import Token
from bigfleet_providerkit.conformance.checks import CheckFailed
from bigfleet_providerkit.conformance.connection import Connection
from bigfleet_providerkit.conformance.evidence import Evidence
from bigfleet_providerkit.conformance.tokens import ZERO, Tokens

CALL_DEADLINE_S: Final = 30.0
CLUSTER: Final = "conformance-a"
OTHER_CLUSTER: Final = "conformance-b"
_MAX_MESSAGE: Final = 200

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Reply(Generic[T]):
    """What a provider answered."""

    call: str
    """The call as a reader would write it."""
    code: Code
    message: str
    answer: T | None
    """None unless the code is OK."""
    seconds: float

    def __str__(self) -> str:
        said = f" ({self.message})" if self.message else ""
        return f"{self.call} answered {self.code.name}{said}"


Ack = Reply[pb.TransitionAck]


class Client:
    """Calls of one check to one provider."""

    def __init__(self, connection: Connection, tokens: Tokens, evidence: Evidence) -> None:
        self.connection = connection
        self._tokens = tokens
        self._evidence = evidence
        self.last_kind: dict[str, str] = {}
        """Machine id → the kind of its latest mutation."""

    async def create(self, machine_id: str, token: Token | None = None) -> Ack:
        return await self._mutate("Create", pb.CreateRequest(machine_id=machine_id), token)

    async def configure(
        self,
        machine_id: str,
        cluster: str = CLUSTER,
        metadata: Mapping[str, str] | None = None,
        blob: bytes = b"",
        token: Token | None = None,
    ) -> Ack:
        request = pb.ConfigureRequest(
            machine_id=machine_id, cluster_id=cluster, bootstrap_blob=blob, shard_metadata=metadata or {}
        )
        return await self._mutate("Configure", request, token, f", {cluster!r}")

    async def drain(self, machine_id: str, grace: int = 0, token: Token | None = None) -> Ack:
        request = pb.DrainRequest(machine_id=machine_id, grace_period_seconds=grace)
        return await self._mutate("Drain", request, token, f", grace {grace}")

    async def delete(self, machine_id: str, token: Token | None = None) -> Ack:
        return await self._mutate("Delete", pb.DeleteRequest(machine_id=machine_id), token)

    async def get(self, machine_id: str) -> Reply[pb.Machine]:
        reply: Reply[pb.Machine] = await self._call(
            f"Get({machine_id})", "Get", pb.MachineRef(id=machine_id), machine_id
        )
        if reply.answer is not None:
            _is_of(machine_id, reply.answer, reply.call)
        return reply

    async def list(
        self, *states: MachineState, max_results: int = 0, since: bytes = b""
    ) -> Reply[pb.MachineList]:
        request = pb.ListFilter(
            states=[int(state) for state in states],  # type: ignore[misc]  # enums of model have these numbers
            max_results=max_results,
            since_revision=since,
        )
        said = [*(state.name for state in states)]
        said += [f"max_results={max_results}"] if max_results else []
        said += [f"since {len(since)} bytes"] if since else []
        return await self._call(f"List({', '.join(said)})", "List", request, "")

    async def _mutate(self, method: str, request: Any, token: Token | None, more: str = "") -> Ack:
        machine_id = request.machine_id
        token = self._tokens.ordinary() if token is None else token
        request.shard_id, request.shard_epoch, request.sequence_number = (
            token.shard_id,
            token.epoch,
            token.sequence,
        )
        said = "" if token == ZERO else f", token ({token.epoch}, {token.sequence})"
        self.last_kind[machine_id] = method.lower()
        reply: Ack = await self._call(
            f"{method}({machine_id}{more}{said})", method, request, machine_id, token
        )
        # The reference puts up with acknowledgements that show no machine at all.
        if reply.answer is not None and reply.answer.HasField("machine"):
            _is_of(machine_id, reply.answer.machine, reply.call)
        return reply

    async def _call(
        self, call: str, method: str, request: Any, machine_id: str, token: Token = ZERO
    ) -> Reply[Any]:
        stub = self.connection.stub(token.shard_id)
        started = time.perf_counter()
        try:
            answer = await getattr(stub, method)(request, timeout=CALL_DEADLINE_S)
            code, message = Code.OK, ""
        except aio.AioRpcError as error:
            answer, code = None, error.code()
            message = redacted(error.details() or "", _MAX_MESSAGE)
        seconds = time.perf_counter() - started
        self._evidence.call(method, machine_id, token, code.name, message, answer, seconds)
        return Reply(call, code, message, answer, seconds)


def state_of(machine: pb.Machine) -> MachineState:
    """The state of a record; CheckFailed for a number that stands for none."""
    try:
        return MachineState(machine.state)
    except ValueError:
        raise CheckFailed(f"machine {machine.id} has state {machine.state}, which does not exist") from None


def _is_of(machine_id: str, machine: pb.Machine, call: str) -> None:
    if machine.id != machine_id:
        raise CheckFailed(f"{call} answered with the record of machine {machine.id!r}")


def ids(machines: Iterable[pb.Machine]) -> list[str]:
    return [machine.id for machine in machines]
