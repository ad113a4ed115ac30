"""Quantiles of durations that are right to 1 %, in bounded memory, and can be merged.

Histogram quantiles are guesses between two bucket edges; verdicts need better. A sketch counts observations
in buckets whose edges grow by a fixed ratio, chosen so that the middle of a bucket is within 1 % of all that
is in it (DDSketch, VLDB 2019). Merging two sketches adds their counts, so the sketch of a fleet, or of a long
time, is exactly the sketch that one process would have kept.

Anything below a microsecond counts as zero, and anything above eleven days as eleven days, except that the
largest observation is kept as it is.
"""

import math
import struct
from collections import deque
from collections.abc import Mapping
from typing import Final, Self

RELATIVE_ERROR: Final = 0.01
QUANTILES: Final = (0.5, 0.9, 0.99, 1.0)  # rising
WINDOW_NS: Final = 300 * 10**9

_RATIO: Final = (1 + RELATIVE_ERROR) / (1 - RELATIVE_ERROR)
_BUCKETS_PER_E: Final = 1 / math.log(_RATIO)
_LOWEST: Final = 1e-6
_HIGHEST: Final = 1e6
_INDEX_MIN: Final = math.ceil(math.log(_LOWEST) * _BUCKETS_PER_E)
_INDEX_MAX: Final = math.ceil(math.log(_HIGHEST) * _BUCKETS_PER_E)

# Ten slices: what is older than the window leaves it at most 30 s early.
_SLICES: Final = 10
_SLICE_NS: Final = WINDOW_NS // _SLICES

_HEADER: Final = struct.Struct("<4sQQddI")
_BUCKET: Final = struct.Struct("<hQ")
_MAGIC: Final = b"BFS1"
_NAME: Final = struct.Struct("<HI")


class SketchError(ValueError):
    """Bytes that are not a sketch."""


class Sketch:
    """Counts of observations in buckets of growing width. Holds at most 1,383 buckets."""

    __slots__ = ("_buckets", "_zeros", "count", "maximum", "total")

    def __init__(self) -> None:
        self.count = 0
        self.total = 0.0
        self.maximum = 0.0
        self._zeros = 0
        self._buckets: dict[int, int] = {}

    def add(self, value: float) -> None:
        """Count one observation: a finite number of seconds, not negative."""
        if not 0 <= value < math.inf:
            raise ValueError(f"{value} is not a duration: it must be finite and not negative")
        self.count += 1
        self.total += value
        if value > self.maximum:
            self.maximum = value
        if value < _LOWEST:
            self._zeros += 1
            return
        index = min(math.ceil(math.log(value) * _BUCKETS_PER_E), _INDEX_MAX)
        self._buckets[index] = self._buckets.get(index, 0) + 1

    def merge(self, other: "Sketch") -> None:
        """Take in everything the other has counted."""
        self.count += other.count
        self.total += other.total
        self.maximum = max(self.maximum, other.maximum)
        self._zeros += other._zeros
        for index, count in other._buckets.items():
            self._buckets[index] = self._buckets.get(index, 0) + count

    def quantiles(self) -> list[float]:
        """The nearest-rank values of ``QUANTILES``; NaN without observations.

        Never zero for "nothing measured": a gate must not pass because nobody looked.
        """
        if not self.count:
            return [math.nan] * len(QUANTILES)
        found = []
        seen, value = self._zeros, 0.0
        rising = iter(sorted(self._buckets.items()))
        for quantile in QUANTILES:
            rank = math.ceil(quantile * self.count)
            while seen < rank:
                index, count = next(rising)
                seen += count
                value = 2 * _RATIO**index / (_RATIO + 1)
            found.append(self.maximum if rank == self.count else min(value, self.maximum))
        return found

    def to_bytes(self) -> bytes:
        """Little-endian: ``BFS1``, count, zeros (u64), total, maximum (f64), the number of buckets (u32), and
        for each bucket in rising order its index (i16) and count (u64)."""
        return b"".join(
            (
                _HEADER.pack(_MAGIC, self.count, self._zeros, self.total, self.maximum, len(self._buckets)),
                *(_BUCKET.pack(index, count) for index, count in sorted(self._buckets.items())),
            )
        )

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        try:
            magic, count, zeros, total, maximum, size = _HEADER.unpack_from(data)
        except struct.error:
            raise SketchError(f"a sketch has at least {_HEADER.size} bytes, these are {len(data)}") from None
        if magic != _MAGIC:
            raise SketchError(f"a sketch begins with {_MAGIC!r}, these bytes with {magic!r}")
        if len(data) != _HEADER.size + size * _BUCKET.size:
            raise SketchError(f"a sketch of {size} buckets does not have {len(data)} bytes")
        buckets = dict(_BUCKET.iter_unpack(data[_HEADER.size :]))
        if (
            len(buckets) != size
            or zeros + sum(buckets.values()) != count
            or not all(_INDEX_MIN <= index <= _INDEX_MAX for index in buckets)
            or 0 in buckets.values()
            or not (0 <= total < math.inf and 0 <= maximum < math.inf)
        ):
            raise SketchError("the counts of the sketch contradict each other")
        sketch = cls()
        sketch.count, sketch.total, sketch.maximum = count, total, maximum
        sketch._zeros, sketch._buckets = zeros, buckets
        return sketch


class WindowedSketch:
    """A sketch of the last five minutes and one of everything so far."""

    __slots__ = ("_before", "_slices")

    def __init__(self) -> None:
        self._before = Sketch()
        self._slices: deque[tuple[int, Sketch]] = deque()

    def add(self, value: float, now: int) -> None:
        self._current(now).add(value)

    def window(self, now: int) -> Sketch:
        """What was observed in the five minutes before ``now``."""
        self._expire(now // _SLICE_NS)
        merged = Sketch()
        for _, part in self._slices:
            merged.merge(part)
        return merged

    def since_start(self) -> Sketch:
        merged = Sketch()
        for part in (self._before, *(part for _, part in self._slices)):
            merged.merge(part)
        return merged

    def _current(self, now: int) -> Sketch:
        number = now // _SLICE_NS
        # A clock that is read before another and delivered after it goes back a little: same slice.
        if not self._slices or self._slices[-1][0] < number:
            self._expire(number)
            self._slices.append((number, Sketch()))
        return self._slices[-1][1]

    def _expire(self, number: int) -> None:
        while self._slices and self._slices[0][0] <= number - _SLICES:
            self._before.merge(self._slices.popleft()[1])


def pack_sketches(sketches: Mapping[str, Sketch]) -> bytes:
    """Named sketches as the body of ``GET /debug/sketches``: for each the length of its name (u16) and of its
    bytes (u32), little-endian, the name in UTF-8, the bytes."""
    parts = []
    for name, sketch in sketches.items():
        text, body = name.encode(), sketch.to_bytes()
        parts += [_NAME.pack(len(text), len(body)), text, body]
    return b"".join(parts)


def unpack_sketches(data: bytes) -> dict[str, Sketch]:
    sketches = {}
    start = 0
    while start < len(data):
        try:
            name_size, size = _NAME.unpack_from(data, start)
            start += _NAME.size
            name = data[start : start + name_size].decode()
        except (struct.error, UnicodeDecodeError):
            raise SketchError(f"no name of a sketch at byte {start}") from None
        start += name_size
        sketches[name] = Sketch.from_bytes(data[start : start + size])
        start += size
    return sketches
