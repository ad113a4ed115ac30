"""Our descriptors are the contract: nothing missing, nothing more, nothing moved."""

from collections.abc import Callable, Iterator
from functools import partial

import pytest
from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
    FileDescriptorSet,
)

from tests.support.rules import rule
from tests.unit.base.api import contract_table, descriptors

CONTRACT = contract_table.rows(contract_table.BASE + contract_table.OURS)


@rule("wire.10.2")
@pytest.mark.parametrize("compiled", [descriptors.stubs, descriptors.sources])
def test_descriptors_equal_the_tables_of_the_specification(compiled: Callable[[], FileDescriptorSet]) -> None:
    assert set().union(*map(descriptors.rows, compiled().file)) == CONTRACT


@rule("wire.10.2")
def test_every_single_change_to_a_descriptor_is_a_difference() -> None:
    unseen = []
    tried = 0
    for part in _parts(descriptors.stubs()):
        others = CONTRACT - descriptors.rows(part)
        for change, mutant in _mutants(part):
            tried += 1
            if others | descriptors.rows(mutant) == CONTRACT:
                unseen.append(change)
    assert not unseen
    # A field alone has five ways to go wrong, so fewer mutants than this means that some were not made.
    assert tried > 3 * len(CONTRACT)


@rule("ruling.R1")
def test_fields_of_ours_in_shared_messages_are_numbered_from_1000() -> None:
    shared = {row.partition(":")[0] for row in contract_table.rows(contract_table.BASE)}
    ours = contract_table.rows(contract_table.OURS)
    numbers = [
        int(fact.split()[0])
        for subject, _, fact in (row.partition(": ") for row in ours)
        if subject in shared and subject.startswith("message ") and not fact.startswith("in file ")
    ]
    assert numbers
    assert min(numbers) >= 1000


def _parts(compiled: FileDescriptorSet) -> Iterator[FileDescriptorProto]:
    """Each file as many small ones: its head, and every message, enum and service of it alone."""
    for file in compiled.file:
        part = partial(FileDescriptorProto, name=file.name, package=file.package, syntax=file.syntax)
        yield part(dependency=file.dependency)
        yield from (part(message_type=[message]) for message in file.message_type)
        yield from (part(enum_type=[enum]) for enum in file.enum_type)
        yield from (part(service=[service]) for service in file.service)


def _mutants(part: FileDescriptorProto) -> Iterator[tuple[str, FileDescriptorProto]]:
    """Copies of the part with one change each, and what was changed."""
    for index in range(len(list(_changes(part)))):
        mutant = FileDescriptorProto()
        mutant.CopyFrom(part)
        name, change = list(_changes(mutant))[index]
        change()
        yield f"{part.name}: {name}", mutant


_Changes = Iterator[tuple[str, Callable[[], object]]]


def _changes(file: FileDescriptorProto) -> _Changes:
    yield "rename file", partial(setattr, file, "name", "moved.proto")
    yield "change package", partial(setattr, file, "package", "bigfleet.v1alpha2")
    yield "change syntax", partial(setattr, file, "syntax", "proto2")
    for index, path in enumerate(file.dependency):
        yield f"drop import {path}", partial(file.dependency.pop, index)
    for message in file.message_type:
        yield f"rename {message.name}", partial(setattr, message, "name", "Renamed")
        yield f"drop {message.name}", partial(file.ClearField, "message_type")
        yield from _message_changes(message)
    for name, enum in descriptors.enums(file):
        yield f"rename {name}", partial(setattr, enum, "name", "Renamed")
        for index, value in enumerate(enum.value):
            yield f"drop {value.name}", partial(enum.value.pop, index)
            yield f"renumber {value.name}", partial(setattr, value, "number", 999)
            yield f"rename {value.name}", partial(setattr, value, "name", "RENAMED")
    for service in file.service:
        yield f"rename {service.name}", partial(setattr, service, "name", "Renamed")
        yield f"drop {service.name}", partial(file.ClearField, "service")
        for index, method in enumerate(service.method):
            name = f"{service.name}.{method.name}"
            yield f"drop {name}", partial(service.method.pop, index)
            yield f"rename {name}", partial(setattr, method, "name", "Renamed")
            yield f"other request of {name}", partial(setattr, method, "input_type", ".x.Other")
            yield f"other response of {name}", partial(setattr, method, "output_type", ".x.Other")
            flipped = not method.client_streaming
            yield f"flip request stream of {name}", partial(setattr, method, "client_streaming", flipped)
            flipped = not method.server_streaming
            yield f"flip response stream of {name}", partial(setattr, method, "server_streaming", flipped)


def _message_changes(message: DescriptorProto) -> _Changes:
    for index, gap in enumerate(message.reserved_range):
        name = f"{message.name} reserved {gap.start}"
        yield f"drop {name}", partial(message.reserved_range.pop, index)
        yield f"shift {name}", partial(setattr, gap, "start", gap.end)
    for oneof in message.oneof_decl:
        if not oneof.name.startswith("_"):
            yield f"rename oneof {message.name}.{oneof.name}", partial(setattr, oneof, "name", "renamed")
    for index, field in enumerate(message.field):
        name = f"{message.name}.{field.name}"
        yield f"drop {name}", partial(message.field.pop, index)
        yield f"renumber {name}", partial(setattr, field, "number", 999)
        yield f"rename {name}", partial(setattr, field, "name", "renamed")
        yield f"set an option of {name}", partial(setattr, field.options, "packed", False)
        if entry := descriptors.map_entry(message, field):
            yield f"retype key of {name}", partial(_retype, entry.field[0])
            yield f"retype value of {name}", partial(_retype, entry.field[1])
            continue
        yield f"retype {name}", partial(_retype, field)
        yield f"relabel {name}", partial(_relabel, field)
        if field.type_name:
            yield f"point {name} elsewhere", partial(setattr, field, "type_name", ".x.Other")
        if field.HasField("oneof_index") and not field.proto3_optional:
            yield f"take {name} out of its oneof", partial(field.ClearField, "oneof_index")
        elif field.label != FieldDescriptorProto.LABEL_REPEATED:
            flipped = not field.proto3_optional
            yield f"flip presence of {name}", partial(setattr, field, "proto3_optional", flipped)


def _retype(field: FieldDescriptorProto) -> None:
    field.ClearField("type_name")
    is_string = field.type == FieldDescriptorProto.TYPE_STRING
    field.type = FieldDescriptorProto.TYPE_BYTES if is_string else FieldDescriptorProto.TYPE_STRING


def _relabel(field: FieldDescriptorProto) -> None:
    is_repeated = field.label == FieldDescriptorProto.LABEL_REPEATED
    field.label = FieldDescriptorProto.LABEL_OPTIONAL if is_repeated else FieldDescriptorProto.LABEL_REPEATED
