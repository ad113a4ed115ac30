"""The sketch: right to 1 %, the same however it is merged, bounded, and readable from its bytes."""

import math
import random
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bigfleet_base.telemetry.sketch import (
    QUANTILES,
    RELATIVE_ERROR,
    WINDOW_NS,
    Sketch,
    SketchError,
    WindowedSketch,
    pack_sketches,
    unpack_sketches,
)

SECOND = 10**9
# Rounding of logarithms and powers at the edge of a bucket.
TOLERANCE = RELATIVE_ERROR * (1 + 1e-9)

durations = st.one_of(
    st.floats(min_value=1e-6, max_value=1e6),
    st.sampled_from([0.0, 1e-6, 0.001, 0.010, 1.0, 15.0, 100.0, 1e6]),
)


def sketch_of(values: list[float]) -> Sketch:
    sketch = Sketch()
    for value in values:
        sketch.add(value)
    return sketch


def nearest_rank(values: list[float], quantile: float) -> float:
    return sorted(values)[math.ceil(Fraction(str(quantile)) * len(values)) - 1]


@given(st.lists(durations, min_size=1, max_size=300))
def test_quantiles_are_right_to_one_percent(values: list[float]) -> None:
    for quantile, found in zip(QUANTILES, sketch_of(values).quantiles(), strict=True):
        truth = nearest_rank(values, quantile)
        assert abs(found - truth) <= TOLERANCE * truth


@given(st.integers(min_value=1, max_value=1_000), st.integers())
def test_quantiles_are_right_to_one_percent_over_nine_orders_of_magnitude(size: int, seed: int) -> None:
    source = random.Random(seed)
    values = [10 ** source.uniform(-4, 5) for _ in range(size)]
    for quantile, found in zip(QUANTILES, sketch_of(values).quantiles(), strict=True):
        assert found == pytest.approx(nearest_rank(values, quantile), rel=TOLERANCE)


@given(st.lists(durations, max_size=200), st.lists(durations, max_size=200))
def test_merging_gives_the_sketch_of_everything(left: list[float], right: list[float]) -> None:
    merged = sketch_of(left)
    merged.merge(sketch_of(right))
    together = sketch_of(left + right)
    # Sums of floats depend on their order in the last digits; everything else is equal bit by bit.
    assert merged.total == pytest.approx(together.total)
    merged.total = together.total
    assert merged.to_bytes() == together.to_bytes()


@given(st.lists(durations, min_size=1, max_size=200))
def test_the_largest_observation_is_kept_as_it_is(values: list[float]) -> None:
    assert sketch_of(values).quantiles()[-1] == max(values)


@given(st.lists(durations, max_size=200))
def test_bytes_hold_the_whole_sketch(values: list[float]) -> None:
    sketch = sketch_of(values)
    again = Sketch.from_bytes(sketch.to_bytes())
    assert again.to_bytes() == sketch.to_bytes()
    assert (again.count, again.total, again.maximum) == (sketch.count, sketch.total, sketch.maximum)
    assert str(again.quantiles()) == str(sketch.quantiles())


@given(st.binary(max_size=200), st.lists(durations, max_size=20), st.data())
def test_no_bytes_crash_the_reader(garbage: bytes, values: list[float], data: st.DataObject) -> None:
    whole = bytearray(pack_sketches({"a": sketch_of(values)}))
    for _ in range(data.draw(st.integers(0, 4))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    for raw in (garbage, bytes(whole), bytes(whole[: data.draw(st.integers(0, len(whole)))])):
        try:
            read = unpack_sketches(raw)
        except SketchError:
            continue
        for sketch in read.values():
            sketch.merge(sketch_of(values))
            assert len(sketch.quantiles()) == len(QUANTILES)


@pytest.mark.parametrize(
    ("raw", "complaint"),
    [
        (b"", "at least"),
        (b"XXXX" + sketch_of([1.0]).to_bytes()[4:], "begins with"),
        (sketch_of([1.0]).to_bytes() + b"?", "does not have"),
        (sketch_of([1.0]).to_bytes()[:-8] + b"\x02" + bytes(7), "contradict"),
        (sketch_of([1.0]).to_bytes()[:-10] + b"\xff\x7f\x01" + bytes(7), "contradict"),
    ],
)
def test_bytes_that_are_no_sketch_are_refused_with_a_reason(raw: bytes, complaint: str) -> None:
    with pytest.raises(SketchError, match=complaint):
        Sketch.from_bytes(raw)


@pytest.mark.parametrize("value", [-0.001, math.nan, math.inf, -math.inf])
def test_what_is_no_duration_is_refused(value: float) -> None:
    sketch = Sketch()
    with pytest.raises(ValueError, match="is not a duration"):
        sketch.add(value)
    assert sketch.count == 0


def test_an_empty_sketch_has_no_quantiles() -> None:
    assert all(math.isnan(value) for value in Sketch().quantiles())


def test_values_outside_the_range_are_counted_at_its_ends() -> None:
    assert sketch_of([0.0, 1e-9, 1e-7]).quantiles()[0] == 0.0
    median, *_, largest = sketch_of([1e9, 1e12]).quantiles()
    assert median == pytest.approx(1e6, rel=TOLERANCE)
    assert largest == 1e12


def test_memory_is_bounded_whatever_is_observed(full_size: bool) -> None:
    source = random.Random(1)
    sketch = Sketch()
    for _ in range(1_000_000 if full_size else 50_000):
        sketch.add(10 ** source.uniform(-12, 12))
    assert len(sketch.to_bytes()) < 14_000
    sketch = sketch_of([1e-6 * 1.01**k for k in range(3_000)])
    assert len(sketch._buckets) <= 1383


def test_window_forgets_what_is_older_than_five_minutes() -> None:
    sketch = WindowedSketch()
    sketch.add(7.0, 0)
    sketch.add(3.0, 200 * SECOND)
    assert sketch.window(299 * SECOND).maximum == 7.0
    assert sketch.window(300 * SECOND).maximum == 3.0
    assert sketch.window(600 * SECOND).count == 0
    assert sketch.since_start().count == 2
    assert sketch.since_start().maximum == 7.0


@given(st.lists(st.tuples(st.integers(0, 90 * SECOND), durations), min_size=1, max_size=60))
def test_window_and_start_hold_exactly_what_they_should(steps: list[tuple[int, float]]) -> None:
    sketch = WindowedSketch()
    now, seen = 0, []
    for step, value in steps:
        now += step
        sketch.add(value, now)
        seen.append((now, value))
        inside = sketch.window(now)
        assert inside.count <= sum(1 for at, _ in seen if now - at < WINDOW_NS)
        assert inside.count >= sum(1 for at, _ in seen if now - at <= WINDOW_NS - 30 * SECOND)
        assert sketch.since_start().count == len(seen)
        assert len(sketch._slices) <= 10


def test_time_that_steps_back_a_little_is_counted_now() -> None:
    sketch = WindowedSketch()
    sketch.add(1.0, 30 * SECOND)
    for _ in range(100):
        sketch.add(2.0, 30 * SECOND - 1)
        sketch.add(2.0, 30 * SECOND)
    assert sketch.window(30 * SECOND).count == 201
    assert len(sketch._slices) == 1


def test_named_sketches_survive_the_way_to_another_process() -> None:
    sketches = {"a": sketch_of([1.0, 2.0]), 'b{phase="ü"} 5m': Sketch()}
    read = unpack_sketches(pack_sketches(sketches))
    assert {name: sketch.to_bytes() for name, sketch in read.items()} == {
        name: sketch.to_bytes() for name, sketch in sketches.items()
    }
