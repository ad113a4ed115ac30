"""Which records of a provider have been passed on, so that only news are (shard.md §5).

Per machine a place in three columns instead of the record itself: a hash of its bytes, a hash of its content,
and the number of the answer that named it last. 500,000 records would be 300 MB.
"""

from array import array
from collections.abc import Iterator
from itertools import islice
from typing import Final

MAX_MACHINES: Final = 1_000_000
"""Twice the largest shard; ids come from a stranger and must not grow memory without end."""

_UNKNOWN: Final = 0


class Ledger:
    """What the shard's core was last told by List, one entry for each machine id."""

    def __init__(self) -> None:
        self._places: dict[str, int] = {}
        self._free: list[int] = []
        self._bytes = array("q")
        self._content = array("q")
        self._named_in = array("I")
        self._answer = 0
        self._first_answer = 0

    def __len__(self) -> int:
        return len(self._places)

    def begin_list(self) -> None:
        """A new List begins; it may have several answers."""
        self._first_answer = self._answer + 1

    def begin_answer(self) -> None:
        """An answer to the List is being read."""
        self._answer += 1

    def is_same(self, machine_id: str, raw: bytes) -> bool:
        """Whether this answer names the machine for the first time, and in the bytes that were passed on;
        it is named then."""
        place = self._places.get(machine_id)
        if place is None or self._bytes[place] != _hash(raw) or self._named_in[place] == self._answer:
            return False
        self._named_in[place] = self._answer
        return True

    def is_known(self, machine_id: str) -> bool:
        return machine_id in self._places

    def is_named(self, machine_id: str) -> bool:
        """Whether this answer has named the machine already."""
        place = self._places.get(machine_id)
        return place is not None and self._named_in[place] == self._answer

    def name(self, machine_id: str) -> None:
        """This answer names the machine. Nothing is remembered of one that was never passed on."""
        place = self._places.get(machine_id)
        if place is not None:
            self._named_in[place] = self._answer

    def has_content(self, machine_id: str, raw: bytes, canonical: bytes) -> bool:
        """Whether this content was passed on, in other bytes; these are remembered then, and the machine is
        named.

        A peer may write a map in another order each time, and such a record is no news.
        """
        place = self._places[machine_id]
        if self._content[place] != _hash(canonical):
            return False
        self._bytes[place] = _hash(raw)
        self._named_in[place] = self._answer
        return True

    def pass_on(self, machine_id: str, raw: bytes, canonical: bytes | None) -> bool:
        """Remember a record that is passed on; False when there is no room for another machine.

        ``canonical`` is the content in a fixed order, for machines whose bytes have differed before.
        """
        place = self._places.get(machine_id)
        if place is None:
            if len(self._places) >= MAX_MACHINES:
                return False
            place = self._places[machine_id] = self._take_place()
        self._bytes[place] = _hash(raw)
        self._content[place] = _UNKNOWN if canonical is None else _hash(canonical)
        self._named_in[place] = self._answer
        return True

    def forget_record(self, machine_id: str) -> None:
        """Let the next List pass this machine on whatever it says.

        After a call, or a record that came another way, what List passed on last is no longer what the core
        holds; taken for unchanged, it would never correct the core.
        """
        place = self._places.get(machine_id)
        if place is not None:
            self._bytes[place] = self._content[place] = _UNKNOWN

    def remove(self, machine_id: str) -> None:
        """The machine was passed on as gone."""
        place = self._places.pop(machine_id, None)
        if place is not None:
            self._free.append(place)

    def missing(self, step: int) -> Iterator[list[str]]:
        """The machines that no answer of this List has named, found ``step`` machines at a time.

        No machine may be added or removed before the iterator is used up.
        """
        places, named_in, first = iter(self._places.items()), self._named_in, self._first_answer
        for _ in range(0, len(self._places), step):
            yield [machine_id for machine_id, place in islice(places, step) if named_in[place] < first]

    def _take_place(self) -> int:
        if self._free:
            return self._free.pop()
        self._bytes.append(_UNKNOWN)
        self._content.append(_UNKNOWN)
        self._named_in.append(0)
        return len(self._bytes) - 1


def _hash(data: bytes) -> int:
    # 64 bits, keyed by the process: a record taken for unchanged by accident happens once in 10^19 changes.
    return hash(data) or 1
