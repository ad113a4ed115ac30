"""Our compiled descriptors, from the committed stubs and from the sources, and their rows."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    EnumDescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
    FileDescriptorSet,
    MethodDescriptorProto,
)

import bigfleet_base.api
from bigfleet_base.api.ext.v1alpha1 import providerinfo_pb2
from bigfleet_base.api.v1alpha1 import capacity_pb2, coordinator_pb2, provider_pb2, shard_pb2, shardread_pb2

_MODULES = (capacity_pb2, provider_pb2, shard_pb2, coordinator_pb2, shardread_pb2, providerinfo_pb2)


def stubs() -> FileDescriptorSet:
    """The descriptors inside the committed stubs."""
    files = (FileDescriptorProto.FromString(module.DESCRIPTOR.serialized_pb) for module in _MODULES)
    return FileDescriptorSet(file=files)


def sources() -> FileDescriptorSet:
    """The descriptors of the .proto files as they are now, by another compiler than that of the stubs."""
    proto = Path(bigfleet_base.api.__file__).with_name("proto")
    buf = Path(sys.executable).with_name("buf")
    command = [str(buf), "build", str(proto), "--exclude-source-info", "-o", "-#format=binpb"]
    return FileDescriptorSet.FromString(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)


def rows(file: FileDescriptorProto) -> set[str]:
    """All that the contract fixes about a file, in the form of `contract_table.rows`."""
    found = {f"file {file.name}: syntax {file.syntax}", f"file {file.name}: package {file.package}"}
    found.update(f"file {file.name}: import {path}" for path in file.dependency)
    for service in file.service:
        service_name = f"{file.package}.{service.name}"
        found.add(f"service {service_name}: in file {file.name}")
        found.update(f"service {service_name}: {_method(file, method)}" for method in service.method)
    for message_name, message in messages(file):
        found.add(f"message {message_name}: in file {file.name}")
        found.update(f"message {message_name}: {_field(file, message, field)}" for field in message.field)
        for gap in message.reserved_range:
            found.update(f"message {message_name}: {number} reserved" for number in range(gap.start, gap.end))
    for enum_name, enum in enums(file):
        found.add(f"enum {enum_name}: in file {file.name}")
        found.update(f"enum {enum_name}: {value.number} {value.name}" for value in enum.value)
    return found


def messages(file: FileDescriptorProto) -> Iterator[tuple[str, DescriptorProto]]:
    """All messages of a file, nested ones too, with their names as seen from the package.

    The hidden message behind a map is left out: it is part of the field's type.
    """
    pending = [(message.name, message) for message in file.message_type]
    for name, message in pending:
        if not message.options.map_entry:
            yield name, message
            pending += [(f"{name}.{nested.name}", nested) for nested in message.nested_type]


def enums(file: FileDescriptorProto) -> Iterator[tuple[str, EnumDescriptorProto]]:
    """All enums of a file, nested ones too, with their names as seen from the package."""
    yield from ((enum.name, enum) for enum in file.enum_type)
    for name, message in messages(file):
        yield from ((f"{name}.{enum.name}", enum) for enum in message.enum_type)


def map_entry(message: DescriptorProto, field: FieldDescriptorProto) -> DescriptorProto | None:
    """The hidden message of a map field: its key and its value."""
    for nested in message.nested_type:
        if nested.options.map_entry and field.type_name.endswith(f".{message.name}.{nested.name}"):
            return nested
    return None


def _method(file: FileDescriptorProto, method: MethodDescriptorProto) -> str:
    request = ("stream " if method.client_streaming else "") + _relative(file, method.input_type)
    response = ("stream " if method.server_streaming else "") + _relative(file, method.output_type)
    return f"{method.name} {request} -> {response}"


def _field(file: FileDescriptorProto, message: DescriptorProto, field: FieldDescriptorProto) -> str:
    words = [str(field.number), field.name]
    if entry := map_entry(message, field):
        words.append(f"map<{','.join(_type(file, part) for part in entry.field)}>")
    else:
        words += ["repeated"] if field.label == FieldDescriptorProto.LABEL_REPEATED else []
        words += ["optional"] if field.proto3_optional else []
        words.append(_type(file, field))
    if field.HasField("oneof_index") and not field.proto3_optional:
        words.append(f"oneof {message.oneof_decl[field.oneof_index].name}")
    # The contract uses no options; one that changed the encoding, such as packed, would show here.
    words += [str(field.options)] if field.HasField("options") else []
    return " ".join(words)


def _type(file: FileDescriptorProto, field: FieldDescriptorProto) -> str:
    if field.type in {FieldDescriptorProto.TYPE_MESSAGE, FieldDescriptorProto.TYPE_ENUM}:
        return _relative(file, field.type_name)
    return FieldDescriptorProto.Type.Name(field.type).removeprefix("TYPE_").lower()


def _relative(file: FileDescriptorProto, type_name: str) -> str:
    return type_name.removeprefix(f".{file.package}.")
