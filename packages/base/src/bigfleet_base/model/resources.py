"""Resource vectors: amounts by resource name, compared by value, an absent name being zero.

The arithmetic does not care about the unit. The operator adds nano-units; the engine works in
milli-units, rounded up once on ingest (engine.md §2.1).
"""

from collections.abc import Collection, ItemsView, Iterable, Iterator, KeysView, Mapping, ValuesView
from typing import Final


class ResourceVector(Mapping[str, int]):
    """An immutable vector without zero entries, so that equal amounts are equal objects."""

    __slots__ = ("_amounts", "_hash")
    _hash: int
    """Not there before somebody asks."""

    def __init__(self, amounts: Mapping[str, int] | None = None, /, **named: int) -> None:
        merged = {**(amounts or {}), **named}
        self._amounts: Final = {name: amount for name, amount in merged.items() if amount}

    def __getitem__(self, name: str) -> int:
        """The amount of one resource; zero when the vector does not mention it."""
        return self._amounts.get(name, 0)

    def __iter__(self) -> Iterator[str]:
        return iter(self._amounts)

    def __len__(self) -> int:
        return len(self._amounts)

    def __contains__(self, name: object) -> bool:
        return name in self._amounts

    # As a Mapping does, at a fraction of the time.

    def keys(self) -> KeysView[str]:
        return self._amounts.keys()

    def values(self) -> ValuesView[int]:
        return self._amounts.values()

    def items(self) -> ItemsView[str, int]:
        return self._amounts.items()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ResourceVector) and self._amounts == other._amounts

    def __hash__(self) -> int:
        try:
            return self._hash
        except AttributeError:
            self._hash = hash(frozenset(self._amounts.items()))
            return self._hash

    def __repr__(self) -> str:
        return f"ResourceVector({self._amounts})"

    def __add__(self, other: "ResourceVector") -> "ResourceVector":
        if not self._amounts:
            return other
        if not other._amounts:
            return self
        total = dict(self._amounts)
        for name, amount in other._amounts.items():
            total[name] = total.get(name, 0) + amount
        return _of(total) if all(total.values()) else ResourceVector(total)

    @staticmethod
    def total(vectors: "Iterable[ResourceVector]") -> "ResourceVector":
        """All of them together."""
        total: dict[str, int] = {}
        for vector in vectors:
            for name, amount in vector._amounts.items():
                total[name] = total.get(name, 0) + amount
        return ResourceVector(total)

    @staticmethod
    def common(vectors: "Iterable[ResourceVector]") -> "ResourceVector":
        """What each of them has at least, above zero."""
        first, *others = (vector._amounts for vector in vectors)
        least = {name: min([amount, *(o.get(name, 0) for o in others)]) for name, amount in first.items()}
        return ResourceVector({name: amount for name, amount in least.items() if amount > 0})

    def __sub__(self, other: "ResourceVector") -> "ResourceVector":
        """What is left, never below zero; resources that only ``other`` names vanish."""
        return self.less(other, 1)

    def __mul__(self, times: int) -> "ResourceVector":
        return _of({name: amount * times for name, amount in self._amounts.items()}) if times else EMPTY

    def less(self, each: "ResourceVector", count: int) -> "ResourceVector":
        """What is left after ``count`` times ``each``, never below zero."""
        taken = each._amounts
        left: dict[str, int] = {}
        for name, amount in self._amounts.items():
            rest = amount - taken.get(name, 0) * count
            if rest > 0:
                left[name] = rest
        return _of(left)

    def pieces(self, each: "ResourceVector") -> int:
        """How many of ``each`` still make progress towards this much: none if nothing wanted grows."""
        have = each._amounts
        most = 0
        for name, amount in self._amounts.items():
            size = have.get(name, 0)
            # Divided only where so many do not do yet: that takes longest.
            if size > 0 and amount > most * size:
                most = -(-amount // size)
        return most

    def takes_all(self, total: "ResourceVector", least: "ResourceVector") -> bool:
        """Whether this much wants every one of some pieces, in whatever order they come: they are ``total``
        together, each has at least ``least``, and without the last one something is still missing."""
        have, each = total._amounts, least._amounts
        for name, amount in self._amounts.items():
            size = each.get(name)
            if size is not None and amount > have.get(name, 0) - size:
                return True
        return False

    def columns(self, vectors: "Collection[ResourceVector]") -> list[tuple[list[int], int]]:
        """For every resource wanted: how much of it each of the vectors has, and how much is wanted."""
        return [
            ([vector._amounts.get(name, 0) for vector in vectors], amount)
            for name, amount in self._amounts.items()
            if amount > 0
        ]

    def is_within(self, other: "ResourceVector") -> bool:
        """Whether it names nothing that the other does not."""
        return self._amounts.keys() <= other._amounts.keys()

    def maximum(self, other: "ResourceVector") -> "ResourceVector":
        """The larger amount of each resource."""
        names = self._amounts.keys() | other._amounts.keys()
        return ResourceVector({name: max(self[name], other[name]) for name in names})

    def covers(self, want: "ResourceVector") -> bool:
        """Whether every amount wanted above zero is here; an empty wish is always covered."""
        have = self._amounts
        for name, amount in want._amounts.items():  # noqa: SIM110 # a generator takes twice as long
            if amount > 0 and have.get(name, 0) < amount:
                return False
        return True

    def is_zero(self) -> bool:
        """Whether nothing is wanted: no amount above zero."""
        for amount in self._amounts.values():  # noqa: SIM110 # as above
            if amount > 0:
                return False
        return True


def _of(amounts: dict[str, int]) -> ResourceVector:
    """A vector of amounts that are known not to be zero."""
    vector = _new(ResourceVector)
    vector._amounts = amounts  # type: ignore[misc]  # Final, and this is its constructor
    return vector


_new: Final = object.__new__


EMPTY: Final = ResourceVector()
