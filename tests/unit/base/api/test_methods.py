"""What a server made from our stubs answers to, by the name a caller puts on the wire."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import grpc
import pytest
from google.protobuf.descriptor_pool import Default
from google.protobuf.message_factory import GetMessageClass

from bigfleet_base.api.ext.v1alpha1.providerinfo_pb2_grpc import add_ProviderInfoServicer_to_server
from bigfleet_base.api.v1alpha1.coordinator_pb2_grpc import add_CoordinatorServicer_to_server
from bigfleet_base.api.v1alpha1.provider_pb2_grpc import add_CapacityProviderServicer_to_server
from bigfleet_base.api.v1alpha1.shard_pb2_grpc import add_ShardServicer_to_server
from bigfleet_base.api.v1alpha1.shardread_pb2_grpc import add_ShardReadServicer_to_server
from tests.support.rules import rule
from tests.unit.base.api import contract_table

CONTRACT = contract_table.rows(contract_table.BASE + contract_table.OURS)

Register = Callable[[Any, grpc.aio.Server], None]

COMPONENTS: dict[str, dict[str, Register]] = {
    "shard": {
        "bigfleet.v1alpha1.Shard": add_ShardServicer_to_server,
        "bigfleet.v1alpha1.ShardRead": add_ShardReadServicer_to_server,
    },
    "provider": {
        "bigfleet.v1alpha1.CapacityProvider": add_CapacityProviderServicer_to_server,
        "bigfleet.ext.v1alpha1.ProviderInfo": add_ProviderInfoServicer_to_server,
    },
    "coordinator": {"bigfleet.v1alpha1.Coordinator": add_CoordinatorServicer_to_server},
}

# Older texts have some of these; the others are near misses.
NEVER_METHODS = ("Watch", "Instruct", "Register", "GenerateBootstrap", "SetQuota", "session", "Sessions", "")
NEVER_SERVICES = ("bigfleet.v1.Shard", "bigfleet.v1alpha1.ProviderInfo", "bigfleet.v1alpha1.shard", "Shard")


@rule("wire.10.1")
@pytest.mark.parametrize("component", COMPONENTS)
async def test_a_server_answers_to_every_method_of_its_services(component: str) -> None:
    names = [path for service in COMPONENTS[component] for path in _methods(service)]
    async with _serving(COMPONENTS[component]) as channel:
        answers = {path: await _call(channel, path) for path in names}
    assert answers == dict.fromkeys(names, grpc.StatusCode.OK)


@rule("wire.10.1")
@pytest.mark.parametrize("component", COMPONENTS)
async def test_a_server_answers_any_other_name_with_unimplemented(component: str) -> None:
    own = COMPONENTS[component]
    foreign = {service for services in COMPONENTS.values() for service in services} - own.keys()
    names = [path for service in foreign for path in _methods(service)]
    names += [f"/{service}/{method}" for service in own for method in NEVER_METHODS]
    names += [f"/{service}/Session" for service in NEVER_SERVICES]
    async with _serving(own) as channel:
        answers = {path: await _call(channel, path) for path in names}
    assert answers == dict.fromkeys(names, grpc.StatusCode.UNIMPLEMENTED)


@rule("wire.10.1")
def test_these_servers_have_all_services_of_the_contract() -> None:
    named = {row.partition(":")[0].split()[1] for row in CONTRACT if row.startswith("service ")}
    assert {service for services in COMPONENTS.values() for service in services} == named


@asynccontextmanager
async def _serving(services: dict[str, Register]) -> AsyncIterator[grpc.aio.Channel]:
    server = grpc.aio.server()
    for service, register in services.items():
        register(_servicer(service), server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            yield channel
    finally:
        await server.stop(grace=None)


async def _call(channel: grpc.aio.Channel, path: str) -> grpc.StatusCode:
    """The status of a call with one empty message; on the wire the four kinds of method look alike.

    A unary call on purpose: one that streams from an iterator reports INTERNAL, of its own making, when the
    server ends it while a message is being written.
    """
    method: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(path)
    call = method(b"")
    try:
        assert await call == b""
    except grpc.aio.AioRpcError as error:
        return error.code()
    return await call.code()


def _methods(service: str) -> dict[str, str]:
    """The signatures of the contract's methods by their full names."""
    facts = [row.partition(": ")[2] for row in CONTRACT if row.startswith(f"service {service}: ")]
    pairs = [fact.split(maxsplit=1) for fact in facts if not fact.startswith("in file ")]
    return {f"/{service}/{method}": signature for method, signature in pairs}


def _servicer(service: str) -> SimpleNamespace:
    """Answers each method with one empty message of the right type."""
    handlers = {}
    for path, signature in _methods(service).items():
        response = signature.split(" -> ")[1]
        type_name = f"{service.rpartition('.')[0]}.{response.removeprefix('stream ')}"
        answer = GetMessageClass(Default().FindMessageTypeByName(type_name))()
        answering = _stream_of if response.startswith("stream ") else _one
        handlers[path.rpartition("/")[2]] = answering(answer)
    return SimpleNamespace(**handlers)


def _one(answer: object) -> Callable[..., object]:
    async def handler(_request: object, _context: object) -> object:
        return answer

    return handler


def _stream_of(answer: object) -> Callable[..., object]:
    async def handler(_requests: object, _context: object) -> AsyncIterator[object]:
        yield answer

    return handler
