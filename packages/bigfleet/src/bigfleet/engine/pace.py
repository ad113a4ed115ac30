"""How long work is cut, so that whoever runs a cycle can let others have their turn (design: slices)."""

from collections.abc import Callable, Generator, Iterable, Iterator
from itertools import islice
from typing import Any, Final, TypeVar

Item = TypeVar("Item")

Work = Generator[int, None, None]
"""A phase in progress: it yields how much it has worked, in rows or what takes as long as one, so that its
caller can pause it."""

_PIECE: Final = 8
"""Rows that are worked on between two looks at the clock, where each takes microseconds."""
_LET_GO: Final = 64
"""Items that are let go of meanwhile."""


def pieces(items: Iterable[Item]) -> Iterator[list[Item]]:
    """A few at a time."""
    rest = iter(items)
    while piece := list(islice(rest, _PIECE)):
        yield piece


def emptied(items: dict[Any, Any] | list[Any]) -> Work:
    """Let go of all items, a few at a time."""
    take = items.popitem if isinstance(items, dict) else items.pop
    while items:
        for _ in range(min(_LET_GO, len(items))):
            take()
        yield 1


def resorted(before: list[Item], items: dict[Item, None], key: Callable[[Item], Any]) -> list[Item]:
    """Items in order, given most of them in order: what is nearly sorted is sorted quickly."""
    kept = [item for item in before if item in items]
    if len(kept) < len(items):
        known = set(kept)
        kept += [item for item in items if item not in known]
    kept.sort(key=key)
    return kept
