"""What a shard sends a provider, and what it makes of the answers."""

from dataclasses import astuple
from typing import Any

import pytest
from google.protobuf.descriptor import FieldDescriptor

from bigfleet_base.api.ext.v1alpha1 import providerinfo_pb2 as info_pb
from bigfleet_base.api.v1alpha1 import provider_pb2 as pb
from bigfleet_base.wire import provider_calls as calls
from tests.support.rules import rule
from tests.unit.base.wire.provider_records import record

TOKEN = calls.Token("shard-0", 3, 17)
NOTES = {"k": "v", "empty": "", "odd\x00": "\u00e9"}


@rule("provider.P-130", "ruling.R15")
@pytest.mark.parametrize(
    ("sent", "message"),
    [
        (calls.encode_create(TOKEN, "m-1", NOTES), pb.CreateRequest(machine_id="m-1", shard_metadata=NOTES)),
        (
            calls.encode_configure(TOKEN, "m-1", "c1", b"\x00blob", NOTES),
            pb.ConfigureRequest(
                machine_id="m-1", cluster_id="c1", bootstrap_blob=b"\x00blob", shard_metadata=NOTES
            ),
        ),
        (
            calls.encode_drain(TOKEN, "m-1", 600, NOTES),
            pb.DrainRequest(machine_id="m-1", grace_period_seconds=600, shard_metadata=NOTES),
        ),
        (calls.encode_delete(TOKEN, "m-1"), pb.DeleteRequest(machine_id="m-1")),
    ],
    ids=["create", "configure", "drain", "delete"],
)
def test_every_mutation_carries_its_arguments_and_the_whole_token(sent: bytes, message: Any) -> None:
    message.shard_id, message.shard_epoch, message.sequence_number = "shard-0", 3, 17
    assert type(message).FromString(sent) == message
    assert {field.name for field, _ in message.ListFields()} == {f.name for f in message.DESCRIPTOR.fields}


def test_reads_carry_no_token() -> None:
    assert pb.MachineRef.FromString(calls.encode_get("m-1")) == pb.MachineRef(id="m-1")
    assert calls.encode_describe() == b""


@rule("provider.P-71")
def test_a_list_asks_from_a_revision_and_never_for_states() -> None:
    assert calls.encode_list(b"", 0) == b""
    asked = pb.ListFilter.FromString(calls.encode_list(b"r", 5))
    assert asked == pb.ListFilter(since_revision=b"r", max_results=5)


def test_the_methods_are_those_of_the_contract() -> None:
    assert calls.PROVIDER_SERVICE + "Create" == "/bigfleet.v1alpha1.CapacityProvider/Create"
    assert calls.INFO_SERVICE + "Describe" == "/bigfleet.ext.v1alpha1.ProviderInfo/Describe"


def test_an_ack_gives_its_operation_and_its_record_in_bytes() -> None:
    given = pb.TransitionAck(operation_id="op", machine=record(1))
    operation_id, raw = calls.decode_ack(given.SerializeToString())
    assert operation_id == "op" and raw is not None and pb.Machine.FromString(raw) == record(1)
    assert calls.decode_ack(pb.TransitionAck(operation_id="op").SerializeToString()) == ("op", None)
    empty = pb.TransitionAck(machine=pb.Machine())
    assert calls.decode_ack(empty.SerializeToString()) == ("", b""), "an empty record is one, and a bad one"


@rule("provider.P-142")
def test_a_description_is_read_field_by_field_and_a_cap_of_zero_is_none() -> None:
    values: dict[int, Any] = {
        FieldDescriptor.CPPTYPE_STRING: "x",
        FieldDescriptor.CPPTYPE_BOOL: True,
        FieldDescriptor.CPPTYPE_INT32: 7,
        FieldDescriptor.CPPTYPE_INT64: 7,
    }
    for field in info_pb.DescribeResponse.DESCRIPTOR.fields:
        if field.name in ("fault_hooks", "timeout_seconds"):
            continue
        message = info_pb.DescribeResponse(**{field.name: values[field.cpp_type]})
        said = calls.decode_description(message.SerializeToString())
        assert [value for value in astuple(said) if value] == [values[field.cpp_type]]
        assert getattr(said, field.name) == values[field.cpp_type]
    assert calls.decode_description(b"").max_blob_bytes is None


def test_a_negative_cap_is_none_and_refuses_nothing() -> None:
    message = info_pb.DescribeResponse(max_metadata_keys=-1, max_metadata_bytes=-1, max_blob_bytes=-(2**63))
    said = calls.decode_description(message.SerializeToString())
    assert (said.max_metadata_keys, said.max_metadata_bytes, said.max_blob_bytes) == (None, None, None)


@pytest.mark.parametrize("decode", [calls.decode_ack, calls.decode_description])
def test_an_answer_that_is_no_message_is_said_to_be_none(decode: Any) -> None:
    with pytest.raises(calls.UndecodableAnswerError, match="the answer is no"):
        decode(b"\xff\xff")
