"""Events, effects and states to bytes and back, by their type hints alone.

A dataclass becomes an array of its fields in msgpack, one that stands in a union with its name in front.
Nothing is written that its type does not say, and nothing is read that does not fit its type: reading never
runs anything but constructors of the classes that the hint names, so a file from anywhere may be read.

What is read back is the same to the last bit: the order of maps, an int where a float was declared, an
infinity, a tuple as a key. That is what lets a restored core go on byte for byte.
"""

import dataclasses
import enum
import hashlib
import types
import typing
from collections.abc import Callable, Mapping
from fractions import Fraction
from operator import attrgetter
from typing import Any, Final, Generic, TypeAlias, TypeVar

import msgspec

from bigfleet_base.model import ResourceVector
from bigfleet_base.telemetry.catalogue import shard as catalogue
from bigfleet_base.telemetry.series import Series, declared

T = TypeVar("T")


class EncodeError(ValueError):
    """A value that is not of the type it is declared as, or that msgpack has no room for."""


class DecodeError(ValueError):
    """Bytes that are not what they should be."""


class Codec(Generic[T]):
    """Writes and reads values of one type."""

    def __init__(self, hint: Any) -> None:
        form = _form(hint)
        self._plain = form.plain
        self._value = form.value
        self._decoder = msgspec.msgpack.Decoder(form.wire)
        self.schema: Final = _describe(hint, set())
        """The type as text, with all that it is made of: two programs that agree on it read each other."""

    def encode(self, value: T) -> bytes:
        try:
            return _encode(value if self._plain is None else self._plain(value))
        except (TypeError, AttributeError, ValueError, OverflowError) as error:
            raise EncodeError(str(error)) from error

    def decode(self, data: bytes | memoryview) -> T:
        try:
            plain = self._decoder.decode(data)
            value: T = plain if self._value is None else self._value(plain)
        except (msgspec.DecodeError, ValueError, ZeroDivisionError) as error:
            raise DecodeError(str(error)) from error
        return value


def schema_digest(*schemas: str) -> str:
    """Stands for some types, with all that they are made of."""
    return hashlib.blake2b("\n".join(schemas).encode(), digest_size=8).hexdigest()


_Convert = Callable[[Any], Any]

_encode: Final = msgspec.msgpack.Encoder().encode


@dataclasses.dataclass(frozen=True, slots=True)
class _Form:
    """How one type is written."""

    wire: Any
    """What msgspec reads."""
    plain: _Convert | None = None
    """From the value to what msgspec writes; None: it writes the value itself."""
    value: _Convert | None = None
    """From what msgspec has read to the value; None: that is the value."""


_BIG: Final = 1 << 63
"""msgpack ends at 64 bits; sums of milli-units and the terms of fractions do not."""
_AnyInt: TypeAlias = int | bytes
_SCALARS: Final = {
    str: _Form(str),
    int: _Form(int),
    bool: _Form(bool),
    bytes: _Form(bytes),
    types.NoneType: _Form(None),
    None: _Form(None),
    # A whole number in the place of a float stays one.
    float: _Form(float | int),
}
_SERIES: Final = {series.name: series for series in declared(vars(catalogue))}

_cache: dict[tuple[Any, bool], _Form] = {}


def _form(hint: Any, tagged: bool = False) -> _Form:
    key = (hint, tagged)
    if key not in _cache:
        _cache[key] = _build(hint, tagged)
    return _cache[key]


def _build(hint: Any, tagged: bool) -> _Form:
    if hint in _SCALARS:
        return _SCALARS[hint]
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return _union(args)
    if origin is tuple:
        return _tuple(args)
    if origin is list:
        return _list(args[0])
    if origin in (set, frozenset):
        return _set(origin, args[0])
    if origin in (dict, Mapping):
        return _mapping(origin, *args)
    if isinstance(hint, type):
        if issubclass(hint, enum.Flag):
            return _Form(int, value=hint)
        if issubclass(hint, enum.Enum):
            return _Form(hint)
        if issubclass(hint, ResourceVector):
            return _Form(dict[str, _AnyInt], _vector_plain, _vector_value)
        if issubclass(hint, Fraction):
            return _Form(tuple[_AnyInt, _AnyInt], _fraction_plain, _fraction_value)
        if issubclass(hint, Series):
            return _Form(str, attrgetter("name"), _series_value)
        if _is_record(hint):
            return _record(hint, tagged)
    raise TypeError(
        f"values of {hint} cannot be recorded: plain data, values of model, dataclasses and named tuples can"
    )


def _is_record(cls: type) -> bool:
    """Whether its values have fields with names."""
    return dataclasses.is_dataclass(cls) or (issubclass(cls, tuple) and hasattr(cls, "_fields"))


def _field_names(cls: Any) -> list[str]:
    """The fields that make a value; what a class computes itself is computed again."""
    if issubclass(cls, tuple):
        return list(cls._fields)
    return [field.name for field in dataclasses.fields(cls) if field.init]


def _record(cls: type, tagged: bool) -> _Form:
    names = _field_names(cls)
    hints = typing.get_type_hints(cls)
    forms = [_field(cls, name, hints[name]) for name in names]
    wire = msgspec.defstruct(
        cls.__name__,
        [(name, form.wire) for name, form in zip(names, forms, strict=True)],
        tag=cls.__name__ if tagged else None,
        array_like=True,
        forbid_unknown_fields=True,
    )
    return _Form(
        wire, _record_plain(cls.__name__ if tagged else None, names, forms), _record_value(cls, forms)
    )


def _field(cls: type, name: str, hint: Any) -> _Form:
    try:
        return _form(hint)
    except TypeError as error:
        raise TypeError(f"{cls.__name__}.{name}: {error}") from None


def _record_plain(tag: str | None, names: list[str], forms: list[_Form]) -> _Convert:
    head = [] if tag is None else [tag]
    first = len(head)
    steps = [(first + n, form.plain) for n, form in enumerate(forms) if form.plain is not None]
    if not names:
        return lambda _: head
    if len(names) == 1:
        name, convert = names[0], forms[0].plain or (lambda field: field)
        return lambda value: [*head, convert(getattr(value, name))]
    fields = attrgetter(*names)

    def plain(value: Any) -> list[Any]:
        row = [*head, *fields(value)]
        for index, convert in steps:
            row[index] = convert(row[index])
        return row

    return plain


def _record_value(cls: type, forms: list[_Form]) -> _Convert:
    steps = [(n, form.value) for n, form in enumerate(forms) if form.value is not None]
    astuple = msgspec.structs.astuple
    if not steps:
        return lambda struct: cls(*astuple(struct))

    def value(struct: Any) -> Any:
        row = list(astuple(struct))
        for index, convert in steps:
            row[index] = convert(row[index])
        return cls(*row)

    return value


def _union(args: tuple[Any, ...]) -> _Form:
    """Members are told apart by their class when written, and by msgspec, tags included, when read."""
    members = [arg for arg in args if arg is not types.NoneType]
    if len(members) == 1:
        return _optional(_form(members[0]))
    tagged = {arg: _form(arg, tagged=True) for arg in args}
    plains = {arg: form.plain for arg, form in tagged.items() if form.plain is not None}
    if not plains:
        assert all(form.value is None for form in tagged.values()), f"no way to tell {args} apart"
        return _Form(_wires(tagged.values()))
    assert all(dataclasses.is_dataclass(arg) or arg in _SCALARS for arg in args), (
        f"no way to tell {args} apart"
    )
    values = {form.wire: form.value for form in tagged.values() if form.value is not None}

    def plain(value: Any) -> Any:
        convert = plains.get(type(value))
        return value if convert is None else convert(value)

    def back(read: Any) -> Any:
        convert = values.get(type(read))
        return read if convert is None else convert(read)

    return _Form(_wires(tagged.values()), plain, back)


def _optional(form: _Form) -> _Form:
    def maybe(convert: _Convert | None) -> _Convert | None:
        return None if convert is None else lambda value: None if value is None else convert(value)

    return _Form(form.wire | None, maybe(form.plain), maybe(form.value))


def _wires(forms: typing.Iterable[_Form]) -> Any:
    return typing.Union[tuple(form.wire for form in forms)]  # noqa: UP007 - made at run time


def _tuple(args: tuple[Any, ...]) -> _Form:
    if len(args) == 2 and args[1] is Ellipsis:
        form = _form(args[0])
        return _Form(tuple[form.wire, ...], _each(form.plain, list), _each(form.value, tuple))  # type: ignore[name-defined]  # made at run time
    forms = [_form(arg) for arg in args]
    return _Form(
        tuple[tuple(form.wire for form in forms)],  # type: ignore[misc]  # made at run time
        _position_wise([form.plain for form in forms]),
        _position_wise([form.value for form in forms]),
    )


def _list(arg: Any) -> _Form:
    form = _form(arg)
    return _Form(list[form.wire], _each(form.plain, list), _each(form.value, list))  # type: ignore[name-defined]  # made at run time


def _set(cls: type, arg: Any) -> _Form:
    form = _form(arg)
    convert, back = form.plain, form.value

    def plain(values: Any) -> list[Any]:
        # The order of a set is an accident of the process; that of the encodings is not.
        return sorted(values if convert is None else map(convert, values), key=_encode)

    def value(read: list[Any]) -> Any:
        return cls(read if back is None else map(back, read))

    return _Form(list[form.wire], plain, value)  # type: ignore[name-defined]  # made at run time


def _mapping(origin: type, key_hint: Any, value_hint: Any) -> _Form:
    key, item = _form(key_hint), _form(value_hint)
    to, fro = item.plain, item.value
    if key.plain is None and key.value is None:
        whole = None if origin is dict else dict
        return _Form(
            dict[key.wire, item.wire],  # type: ignore[name-defined]  # made at run time
            whole if to is None else lambda m: {k: to(v) for k, v in m.items()},
            None if fro is None else lambda m: {k: fro(v) for k, v in m.items()},
        )
    pair = _tuple((key_hint, value_hint))
    one, other = pair.plain or tuple, pair.value or tuple
    return _Form(
        list[pair.wire],  # type: ignore[name-defined]  # made at run time
        lambda m: [one(entry) for entry in m.items()],
        lambda read: dict(map(other, read)),
    )


def _each(convert: _Convert | None, container: type) -> _Convert | None:
    return None if convert is None else lambda values: container(map(convert, values))


def _position_wise(converts: list[_Convert | None]) -> _Convert | None:
    if not any(converts):
        return None
    return lambda values: tuple(
        value if convert is None else convert(value) for convert, value in zip(converts, values, strict=True)
    )


def _vector_plain(vector: ResourceVector) -> dict[str, _AnyInt]:
    return {name: _int_plain(vector[name]) for name in vector}


def _vector_value(read: dict[str, _AnyInt]) -> ResourceVector:
    return ResourceVector({name: _int_value(amount) for name, amount in read.items()})


def _fraction_plain(fraction: Fraction) -> tuple[_AnyInt, _AnyInt]:
    return (_int_plain(fraction.numerator), _int_plain(fraction.denominator))


def _fraction_value(read: tuple[_AnyInt, _AnyInt]) -> Fraction:
    return Fraction(_int_value(read[0]), _int_value(read[1]))


def _int_plain(number: int) -> _AnyInt:
    if -_BIG <= number < _BIG:
        return number
    return number.to_bytes(number.bit_length() // 8 + 1, "little", signed=True)


def _int_value(read: _AnyInt) -> int:
    return read if isinstance(read, int) else int.from_bytes(read, "little", signed=True)


def _series_value(name: str) -> Series:
    found = _SERIES.get(name)
    if found is None:
        raise DecodeError(f"there is no series {name!r}")
    return found


def _describe(hint: Any, seen: set[Any]) -> str:
    """The type as text; a record or an enum is spelt out where it is met first."""
    args = typing.get_args(hint)
    if args:
        name = getattr(typing.get_origin(hint), "__name__", "Union")
        return f"{name}[{', '.join(_describe(arg, seen) for arg in args)}]"
    if not isinstance(hint, type):
        return str(hint)
    if hint in seen or not (_is_record(hint) or issubclass(hint, enum.Enum)):
        return hint.__name__
    seen.add(hint)
    if issubclass(hint, enum.Enum):
        return f"{hint.__name__}({', '.join(str(member.value) for member in hint)})"
    if issubclass(hint, Series):
        return "Series"
    hints = typing.get_type_hints(hint)
    inner = (f"{name}: {_describe(hints[name], seen)}" for name in _field_names(hint))
    return f"{hint.__name__}({', '.join(inner)})"
