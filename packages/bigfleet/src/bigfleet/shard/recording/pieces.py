"""A large state in small pieces: copied at one moment, written a bounded amount at a time.

The copy takes over by reference whatever cannot change (scalars, tuples, frozen dataclasses) and duplicates
only the containers around it, so it is cheap enough to be taken in one go; the writing, which is not, can
then be spread over as many slices as there are pieces. A piece is either the root with its large containers
left empty or some items of one of them, and names where they belong.
"""

import dataclasses
import functools
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Generic, TypeVar

from bigfleet.shard.recording.codec import Codec, DecodeError

T = TypeVar("T")

Path = tuple[str | None, ...]
"""The way to a container: names of fields, and None for the item that was added last."""


class Pieces(Generic[T]):
    """Copies, cuts and joins states of one dataclass."""

    def __init__(self, hint: type[T]) -> None:
        self._root = _node(hint)
        self._codec = Codec[tuple[Path, bytes]](tuple[Path, bytes])

    @property
    def schema(self) -> str:
        return self._root.codec.schema

    def copy(self, state: T) -> T:
        """The state as it is now, untouched by what happens to the original later."""
        copied: T = self._root.copy(state)
        return copied

    def cut(self, state: T, size: int) -> Iterator[bytes]:
        """The pieces, of about so many values, each made when it is asked for."""
        for path, data in _cut(self._root, state, size):
            yield self._codec.encode((path, data))

    def join(self, pieces: Iterable[bytes]) -> T:
        """The state that was cut into these pieces."""
        root: Any = None
        for number, piece in enumerate(pieces):
            path, data = self._codec.decode(piece)
            if number == 0:
                root = self._root.codec.decode(data)
            else:
                _fill(self._root, root, path, data)
        if root is None:
            raise DecodeError("a state without pieces")
        return typing.cast("T", root)


class _Node:
    """What this module knows of one type: whether and how its values are copied, weighed and cut."""

    def __init__(self, hint: Any) -> None:
        self.hint = hint
        self.origin: Any = typing.get_origin(hint) or hint
        self.args = typing.get_args(hint)

    @functools.cached_property
    def codec(self) -> Codec[Any]:
        return Codec(self.hint)

    @functools.cached_property
    def items(self) -> Codec[Any]:
        """Of a container: writes some of what is in it."""
        return Codec(list[tuple[self.args[0], self.args[1]]] if self.origin is dict else list[self.args[0]])  # type: ignore[name-defined]  # made at run time

    @functools.cached_property
    def fields(self) -> dict[str, "_Node"]:
        hints = typing.get_type_hints(self.origin)
        return {field.name: _node(hints[field.name]) for field in dataclasses.fields(self.origin)}

    @functools.cached_property
    def member(self) -> "_Node":
        """Of a container: its values or elements."""
        return _node(self.args[-1])

    @functools.cached_property
    def is_record(self) -> bool:
        """A dataclass whose fields are assigned to."""
        parameters = getattr(self.origin, "__dataclass_params__", None)
        return parameters is not None and not parameters.frozen

    @functools.cached_property
    def is_container(self) -> bool:
        return self.origin in (dict, list, set)

    @functools.cached_property
    def is_union(self) -> bool:
        return self.origin in (typing.Union, types.UnionType)

    @functools.cached_property
    def copy(self) -> Callable[[Any], Any]:
        if self.is_record:
            steps, cls = [(name, node.copy) for name, node in self.fields.items()], self.origin
            return lambda value: cls(*(copy(getattr(value, name)) for name, copy in steps))
        if self.origin is dict and self.member.changes:
            inner = self.member.copy
            return lambda value: {key: inner(item) for key, item in value.items()}
        if self.origin is list and self.member.changes:
            inner = self.member.copy
            return lambda value: [inner(item) for item in value]
        if self.is_container:
            return self.origin.copy  # type: ignore[no-any-return]  # dict.copy, list.copy, set.copy
        if self.is_union:
            copies = {_node(arg).origin: _node(arg).copy for arg in self.args if _node(arg).changes}
            return lambda value: copies[type(value)](value) if type(value) in copies else value
        assert not self.changes, f"{self.hint} holds what changes where nobody copies it"
        return lambda value: value

    @functools.cached_property
    def changes(self) -> bool:
        """Whether a value, or something inside, can change without being replaced."""
        return self.is_record or self.is_container or any(_node(arg).changes for arg in self._plain_args)

    @functools.cached_property
    def weigh(self) -> Callable[[Any], int]:
        """How many values a value is made of."""
        if dataclasses.is_dataclass(self.origin):
            steps = [(name, node.weigh) for name, node in self.fields.items() if node.varies]
            constant = 1 + sum(not node.varies for node in self.fields.values())
            return lambda value: constant + sum(weigh(getattr(value, name)) for name, weigh in steps)
        if self.is_union:
            weighs = {_node(arg).origin: _node(arg).weigh for arg in self.args if _node(arg).varies}
            return lambda value: weighs[type(value)](value) if type(value) in weighs else 1
        if not self.varies:
            return lambda _: 1
        inner = self.member if self.origin is not tuple else _node(self.args[0])
        if not inner.varies:
            return lambda value: 1 + 2 * len(value)
        each = inner.weigh
        if self.origin in (dict, Mapping):
            return lambda value: 1 + len(value) + sum(map(each, value.values()))
        return lambda value: 1 + sum(map(each, value))

    @functools.cached_property
    def varies(self) -> bool:
        return (
            self.is_container
            or self.origin is Mapping
            or (self.origin is tuple and self.args[-1] is Ellipsis)
            or dataclasses.is_dataclass(self.origin)
            or any(_node(arg).varies for arg in self._plain_args)
        )

    @property
    def _plain_args(self) -> list[Any]:
        return [arg for arg in self.args if arg is not Ellipsis]


def _node(hint: Any) -> _Node:
    if hint not in _nodes:
        _nodes[hint] = _Node(hint)
    return _nodes[hint]


_nodes: dict[Any, _Node] = {}


@dataclass(slots=True)
class _Large:
    """A container that is left for later pieces."""

    node: _Node
    path: Path
    value: Any


def _cut(node: _Node, value: Any, size: int) -> Iterator[tuple[Path, bytes]]:
    later: list[_Large] = []
    yield (), node.codec.encode(_shell(node, (), value, size, later))
    for large in later:
        yield from _cut_items(large, size)


def _shell(node: _Node, path: Path, value: Any, size: int, later: list[_Large]) -> Any:
    """A value small enough to be written whole: its large containers are empty, and are named in
    ``later``."""
    if node.is_record:
        emptied = {
            name: _shell(inner, (*path, name), getattr(value, name), size, later)
            for name, inner in node.fields.items()
        }
        return node.origin(**emptied)
    if node.is_container and not _is_small(node, value, size):
        later.append(_Large(node, path, value))
        return node.origin()
    return value


def _is_small(node: _Node, value: Any, size: int) -> bool:
    """Found out without looking at many items: a large state must not be weighed in one go."""
    return (not node.member.varies or len(value) <= _FEW) and node.weigh(value) <= size


_FEW: Final = 8


def _cut_items(large: _Large, size: int) -> Iterator[tuple[Path, bytes]]:
    node, path = large.node, large.path
    is_dict, member, encode = node.origin is dict, node.member, node.items.encode
    some: list[Any] = []
    weight = 0
    for item in large.value.items() if is_dict else large.value:
        value = item[1] if is_dict else item
        added = member.weigh(value)
        if some and weight + added > size:
            yield path, encode(some)
            some, weight = [], 0
        if added <= size:
            some.append(item)
            weight += added
            continue
        later: list[_Large] = []
        shell = _shell(member, (*path, None), value, size, later)
        yield path, encode([(item[0], shell) if is_dict else shell])
        for inner in later:
            yield from _cut_items(inner, size)
    if some:
        yield path, encode(some)


def _fill(node: _Node, value: Any, path: Path, data: bytes) -> None:
    for step in path:
        try:
            if step is not None:
                node, value = node.fields[step], getattr(value, step)
            else:
                node, value = node.member, next(reversed(value.values() if node.origin is dict else value))
        except (KeyError, AttributeError, TypeError, StopIteration, IndexError) as error:
            raise DecodeError(f"a piece of the state belongs to {path}, which is nowhere") from error
    if not node.is_container:
        raise DecodeError(f"a piece of the state belongs to {path}, which holds no items")
    items = node.items.decode(data)
    if node.origin is list:
        value.extend(items)
    else:
        value.update(items)
