"""Requests to a provider as bytes; a new fencing token for each attempt (P-130)."""

from collections.abc import Callable, Mapping
from typing import TypeAlias

from bigfleet.shard.provider.fence import Fence
from bigfleet_base.api.v1alpha1 import provider_pb2 as pb

Request: TypeAlias = Callable[[int], bytes]
"""Called for each attempt with its sequence number."""


def create(fence: Fence, machine_id: str, metadata: Mapping[str, str]) -> Request:
    return lambda sequence: pb.CreateRequest(
        machine_id=machine_id,
        shard_id=fence.shard_id,
        shard_epoch=fence.epoch,
        sequence_number=sequence,
        shard_metadata=metadata,
    ).SerializeToString()


def configure(
    fence: Fence, machine_id: str, cluster_id: str, blob: bytes, metadata: Mapping[str, str]
) -> Request:
    return lambda sequence: pb.ConfigureRequest(
        machine_id=machine_id,
        cluster_id=cluster_id,
        bootstrap_blob=blob,
        shard_id=fence.shard_id,
        shard_epoch=fence.epoch,
        sequence_number=sequence,
        shard_metadata=metadata,
    ).SerializeToString()


def drain(fence: Fence, machine_id: str, grace_seconds: int, metadata: Mapping[str, str]) -> Request:
    return lambda sequence: pb.DrainRequest(
        machine_id=machine_id,
        grace_period_seconds=grace_seconds,
        shard_id=fence.shard_id,
        shard_epoch=fence.epoch,
        sequence_number=sequence,
        shard_metadata=metadata,
    ).SerializeToString()


def delete(fence: Fence, machine_id: str) -> Request:
    return lambda sequence: pb.DeleteRequest(
        machine_id=machine_id,
        shard_id=fence.shard_id,
        shard_epoch=fence.epoch,
        sequence_number=sequence,
    ).SerializeToString()


def get(machine_id: str) -> Request:
    return lambda _: pb.MachineRef(id=machine_id).SerializeToString()


def changes(since: bytes, max_results: int) -> Request:
    """Never with ``states``: a machine that leaves them would not be seen to leave (P-71)."""
    return lambda _: pb.ListFilter(since_revision=since, max_results=max_results).SerializeToString()


def describe(_: int) -> bytes:
    return b""
