"""The gRPC port of a shard: sessions and reads, both as raw bytes."""

import grpc
from grpc import aio

from bigfleet.shard.shell.reads import Reads
from bigfleet.shard.shell.sessions import Sessions

SHARD_SERVICE = "bigfleet.v1alpha1.Shard"
READ_SERVICE = "bigfleet.v1alpha1.ShardRead"


def add_services(server: aio.Server, sessions: Sessions, reads: Reads) -> None:
    """Serve both. Without serialisers messages stay bytes: a roll-up of megabytes is not decoded in one go,
    and bytes that are no message cost their sender a log line and not its stream."""
    sessions_handler: grpc.RpcMethodHandler[bytes, bytes] = grpc.stream_stream_rpc_method_handler(
        sessions.serve
    )
    reads_handler: grpc.RpcMethodHandler[bytes, bytes] = grpc.unary_stream_rpc_method_handler(
        reads.inspect_needs
    )
    server.add_generic_rpc_handlers(
        (
            grpc.method_handlers_generic_handler(SHARD_SERVICE, {"Session": sessions_handler}),
            grpc.method_handlers_generic_handler(READ_SERVICE, {"InspectNeeds": reads_handler}),
        )
    )
