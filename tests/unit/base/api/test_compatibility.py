"""Peers that know less than we do still understand us, and we them."""

from collections.abc import Callable, Iterator, MutableSequence
from functools import partial
from typing import TypeVar

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.descriptor_pb2 import DescriptorProto, FileDescriptorSet
from google.protobuf.descriptor_pool import Default, DescriptorPool
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from bigfleet_base.api.v1alpha1 import capacity_pb2
from tests.support.rules import rule
from tests.unit.base.api import contract_table, descriptors

PACKAGE = "bigfleet.v1alpha1"
FIRST_NUMBER_OF_OURS = 1000

T = TypeVar("T")

# A gang's identity as an operator writes it: topology key, NUL, selector.
GROUP = "example.com/rack\0job=tränen"


@rule("wire.10.3")
def test_a_need_with_every_field_survives_a_round_trip() -> None:
    need = _need_with_every_field()
    assert {field.name for field, _ in need.ListFields()} == {field.name for field in need.DESCRIPTOR.fields}

    parsed = capacity_pb2.CapacityNeed.FromString(need.SerializeToString())

    assert parsed == need
    assert parsed.group == GROUP


@rule("wire.10.3")
def test_a_reader_without_the_group_field_still_parses_a_need() -> None:
    compiled = descriptors.stubs()
    (old,) = [m for file in compiled.file for name, m in descriptors.messages(file) if name == "CapacityNeed"]
    _keep(old.field, lambda field: field.name != "group")
    need = _need_with_every_field()

    parsed = _message_class(_pool(compiled), "CapacityNeed").FromString(need.SerializeToString())

    assert "group" not in parsed.DESCRIPTOR.fields_by_name
    need.ClearField("group")
    assert _known(parsed) == _known(need)


@rule("wire.10.3")
def test_a_need_has_the_bytes_that_protobuf_and_the_field_numbers_dictate() -> None:
    need = capacity_pb2.CapacityNeed(
        priority=-1,
        interruption_penalty_bucket=capacity_pb2.PENALTY_BUCKET_PINNED,
        min_unit={"cpu": "1"},
        group="k\0s",
    )
    by_hand = [
        b"\x18" + b"\xff" * 9 + b"\x01",  # field 3, varint
        b"\x30\x1b",  # field 6, varint 27
        b"\x42\x08\x0a\x03cpu\x12\x011",  # field 8, an entry of key and value
        b"\x4a\x03k\0s",  # field 9
    ]
    assert need.SerializeToString() == b"".join(by_hand)


@rule("ruling.R1")
def test_the_base_peer_of_these_tests_is_built_from_the_shared_tables_alone() -> None:
    peer = _base_descriptors()
    assert set().union(*map(descriptors.rows, peer.file)) == contract_table.rows(contract_table.BASE)


@rule("ruling.R1")
def test_a_base_peer_parses_every_message_with_all_extensions_set_and_sees_the_shared_part() -> None:
    peers = _pool(_base_descriptors())
    sent: set[str] = set()
    for name in _shared_messages():
        for sample in _samples(Default().FindMessageTypeByName(f"{PACKAGE}.{name}")):
            seen = _message_class(peers, name).FromString(sample.SerializeToString())
            sent |= _remove_extensions(sample)
            assert _known(seen) == _known(sample)
    assert sent == _extension_fields()


@rule("ruling.R1")
def test_we_parse_every_message_of_a_base_peer_unchanged_and_see_no_extension() -> None:
    peers = _pool(_base_descriptors())
    for name in _shared_messages():
        for sample in _samples(peers.FindMessageTypeByName(f"{PACKAGE}.{name}")):
            seen = _message_class(Default(), name).FromString(sample.SerializeToString())
            assert _known(seen) == _known(sample)
            assert not _remove_extensions(seen)


def _need_with_every_field() -> capacity_pb2.CapacityNeed:
    return capacity_pb2.CapacityNeed(
        requirements=[
            capacity_pb2.NodeSelectorRequirement(
                key="example.com/rack",
                operator=capacity_pb2.NodeSelectorRequirement.OPERATOR_SAME,
                values=["r1", "r2"],
            )
        ],
        aggregate_resources={"cpu": "9600", "memory": "768Gi"},
        priority=-10,
        spread=[
            capacity_pb2.TopologySpread(
                topology_key="topology.kubernetes.io/zone",
                max_skew=1,
                when_unsatisfiable=capacity_pb2.TopologySpread.WHEN_UNSATISFIABLE_DO_NOT_SCHEDULE,
            )
        ],
        interruption_penalty_bucket=capacity_pb2.PENALTY_BUCKET_HALF_DOLLAR,
        reclamation_penalty_bucket=capacity_pb2.PENALTY_BUCKET_PINNED,
        min_unit={"cpu": "96"},
        group=GROUP,
    )


def _base_descriptors() -> FileDescriptorSet:
    base = FileDescriptorSet(file=(file for file in descriptors.stubs().file if file.package == PACKAGE))
    for file in base.file:
        _keep(file.message_type, lambda message: message.name not in {"MachineSelector", "NodeReadiness"})
        for message in file.message_type:
            _keep(message.field, lambda field: field.number < FIRST_NUMBER_OF_OURS)
            used = {field.type_name.rpartition(".")[2] for field in message.field}
            _keep(message.nested_type, partial(_is_named_in, used))
            # The compiler gives each `optional` field a oneof of its own, named after it.
            _keep(message.oneof_decl, lambda oneof: not oneof.name.startswith("_"))
    return base


def _is_named_in(names: set[str], message: DescriptorProto) -> bool:
    return message.name in names


def _keep(items: MutableSequence[T], wanted: Callable[[T], bool]) -> None:
    for index in reversed(range(len(items))):
        if not wanted(items[index]):
            del items[index]


def _pool(compiled: FileDescriptorSet) -> DescriptorPool:
    pool = DescriptorPool()
    for file in compiled.file:
        pool.Add(file)
    return pool


def _message_class(pool: DescriptorPool, name: str) -> type[Message]:
    return GetMessageClass(pool.FindMessageTypeByName(f"{PACKAGE}.{name}"))


def _shared_messages() -> list[str]:
    subjects = {row.partition(":")[0] for row in contract_table.rows(contract_table.BASE)}
    return sorted(subject.removeprefix("message ") for subject in subjects if subject.startswith("message "))


def _extension_fields() -> set[str]:
    shared = set(_shared_messages())
    words = [row.split() for row in contract_table.rows(contract_table.OURS)]
    return {
        f"{PACKAGE}.{subject.rstrip(':')}.{field}"
        for kind, subject, number, field, *_ in words
        if kind == "message" and subject.rstrip(":") in shared and number.isdigit()
    }


def _known(message: Message) -> bytes:
    """The message without unknown fields, in an encoding that is equal for equal messages."""
    copy = type(message).FromString(message.SerializeToString())
    copy.DiscardUnknownFields()
    return copy.SerializeToString(deterministic=True)


def _remove_extensions(message: Message) -> set[str]:
    """Clear our fields in the message and those within it; the full names of those that were set."""
    removed = set()
    for field, value in message.ListFields():
        if field.number >= FIRST_NUMBER_OF_OURS:
            removed.add(field.full_name)
            message.ClearField(field.name)
        elif field.message_type and not field.message_type.GetOptions().map_entry:
            for inner in value if field.is_repeated else [value]:
                removed |= _remove_extensions(inner)
    return removed


def _samples(descriptor: Descriptor) -> Iterator[Message]:
    """Messages with every field set, one for each choice of a oneof."""
    choices = [field for oneof in descriptor.oneofs if oneof.name[0] != "_" for field in oneof.fields]
    always = [field for field in descriptor.fields if field not in choices]
    for chosen in [[choice] for choice in choices] or [[]]:
        message = GetMessageClass(descriptor)()
        for field in always + chosen:
            _set(message, field)
        yield message


def _set(message: Message, field: FieldDescriptor) -> None:
    inner = field.message_type
    if inner and inner.GetOptions().map_entry:
        key, value = (_scalar(inner.fields_by_name[name]) for name in ("key", "value"))
        getattr(message, field.name)[key] = value
    elif inner and field.is_repeated:
        getattr(message, field.name).extend(_samples(inner))
    elif inner:
        getattr(message, field.name).CopyFrom(next(_samples(inner)))
    elif field.is_repeated:
        getattr(message, field.name).extend([_scalar(field), _scalar(field)])
    else:
        setattr(message, field.name, _scalar(field))


def _scalar(field: FieldDescriptor) -> object:
    if field.enum_type:
        return field.enum_type.values[-1].number
    return {
        FieldDescriptor.TYPE_STRING: "a\0é",
        FieldDescriptor.TYPE_BYTES: b"\0\xff",
        FieldDescriptor.TYPE_INT32: -(2**31),
        FieldDescriptor.TYPE_INT64: 2**63 - 1,
        FieldDescriptor.TYPE_DOUBLE: 1.5,
        FieldDescriptor.TYPE_BOOL: True,
    }[field.type]
