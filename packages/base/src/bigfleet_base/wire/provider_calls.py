"""The calls of a shard to a provider, and their answers, as bytes.

Records in answers stay bytes: ``RecordDecoder`` and ``scan_list`` take them apart. An answer is None when it
is OK and has no message, which gRPC lets pass.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from google.protobuf.message import DecodeError

from bigfleet_base.api.ext.v1alpha1 import providerinfo_pb2 as info_pb
from bigfleet_base.api.v1alpha1 import provider_pb2 as pb

PROVIDER_SERVICE: Final = f"/{pb.DESCRIPTOR.services_by_name['CapacityProvider'].full_name}/"
INFO_SERVICE: Final = f"/{info_pb.DESCRIPTOR.services_by_name['ProviderInfo'].full_name}/"


class UndecodableAnswerError(ValueError):
    """An answer that is not the message it should be."""


@dataclass(frozen=True, slots=True)
class Token:
    """What fences a mutation (wire.md §8.1)."""

    shard_id: str
    epoch: int
    sequence: int


@dataclass(frozen=True, slots=True)
class Description:
    """What a provider says of itself (wire.md §13.1); None for a cap that it does not have."""

    name: str
    version: str
    delete: bool
    cursor: bool
    tombstones: bool
    epoch_floor: bool
    max_metadata_keys: int | None
    max_metadata_bytes: int | None
    max_blob_bytes: int | None


def encode_create(token: Token, machine_id: str, metadata: Mapping[str, str]) -> bytes:
    return pb.CreateRequest(
        machine_id=machine_id,
        shard_id=token.shard_id,
        shard_epoch=token.epoch,
        sequence_number=token.sequence,
        shard_metadata=metadata,
    ).SerializeToString()


def encode_configure(
    token: Token, machine_id: str, cluster_id: str, blob: bytes, metadata: Mapping[str, str]
) -> bytes:
    return pb.ConfigureRequest(
        machine_id=machine_id,
        cluster_id=cluster_id,
        bootstrap_blob=blob,
        shard_id=token.shard_id,
        shard_epoch=token.epoch,
        sequence_number=token.sequence,
        shard_metadata=metadata,
    ).SerializeToString()


def encode_drain(token: Token, machine_id: str, grace_seconds: int, metadata: Mapping[str, str]) -> bytes:
    return pb.DrainRequest(
        machine_id=machine_id,
        grace_period_seconds=grace_seconds,
        shard_id=token.shard_id,
        shard_epoch=token.epoch,
        sequence_number=token.sequence,
        shard_metadata=metadata,
    ).SerializeToString()


def encode_delete(token: Token, machine_id: str) -> bytes:
    return pb.DeleteRequest(
        machine_id=machine_id,
        shard_id=token.shard_id,
        shard_epoch=token.epoch,
        sequence_number=token.sequence,
    ).SerializeToString()


def encode_get(machine_id: str) -> bytes:
    return pb.MachineRef(id=machine_id).SerializeToString()


def encode_list(since: bytes, max_results: int) -> bytes:
    """Never with ``states``: a machine that leaves them would not be seen to leave (provider.md P-71)."""
    return pb.ListFilter(since_revision=since, max_results=max_results).SerializeToString()


def encode_describe() -> bytes:
    return info_pb.DescribeRequest().SerializeToString()


def message_in(answer: bytes | None) -> bytes:
    """The message of an answer. None is no empty one: an empty List says that all machines are gone."""
    if answer is None:
        raise UndecodableAnswerError("the answer is OK and has no message")
    return answer


def decode_ack(answer: bytes | None) -> tuple[str, bytes | None]:
    """The operation's id and the record that came with it, if one did."""
    try:
        ack = pb.TransitionAck.FromString(message_in(answer))
    except DecodeError:
        raise UndecodableAnswerError("the answer is no TransitionAck message") from None
    return ack.operation_id, ack.machine.SerializeToString() if ack.HasField("machine") else None


def decode_description(answer: bytes | None) -> Description:
    try:
        info = info_pb.DescribeResponse.FromString(message_in(answer))
    except DecodeError:
        raise UndecodableAnswerError("the answer is no DescribeResponse message") from None
    return Description(
        name=info.name,
        version=info.version,
        delete=info.delete,
        cursor=info.cursor,
        tombstones=info.tombstones,
        epoch_floor=info.epoch_floor,
        max_metadata_keys=_cap(info.max_metadata_keys),
        max_metadata_bytes=_cap(info.max_metadata_bytes),
        max_blob_bytes=_cap(info.max_blob_bytes),
    )


def _cap(said: int) -> int | None:
    """Nothing at all fits below a negative cap, so it can only mean that there is none."""
    return said if said > 0 else None
