"""Penalty buckets: the published ladder and its round trip."""

import math
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bigfleet_base.model import parse_quantity
from bigfleet_base.model.penalty import BUCKETS, PINNED, ZERO, bound_dollars, bucket_for, bucket_label
from bigfleet_base.model.quantity import NANO
from tests.support.rules import rule

dollars = st.one_of(
    st.integers(-(10**12), 10**17),
    st.builds(lambda k, d: 2**k * NANO + d, st.integers(0, 24), st.integers(-2, 2)),
    st.integers(NANO // 2 - 2, NANO // 2 + 2),
)


@rule("engine.I23")
@given(dollars)
def test_the_bound_of_a_bucket_is_never_below_what_it_holds(nano: int) -> None:
    bucket = bucket_for(nano)
    assert bound_dollars(bucket) >= Fraction(nano, NANO)
    if bucket > ZERO:
        assert bound_dollars(bucket - 1) < Fraction(nano, NANO), "a smaller bucket would do"


@rule("engine.I23")
@given(dollars, dollars)
def test_bucketing_is_monotone(a: int, b: int) -> None:
    assert (bucket_for(a) <= bucket_for(b)) or a > b


@rule("engine.I23")
def test_bucketing_is_idempotent_on_bounds() -> None:
    for bucket in range(ZERO, PINNED):
        assert bucket_for(int(bound_dollars(bucket) * NANO)) == bucket


@rule("crds.CRD-6")
@pytest.mark.parametrize(
    ("text", "bucket"),
    [("0", 1), ("-5", 1), ("500m", 2), ("0.5", 2), ("0.51", 3), ("1", 3), ("1.01", 4), ("8000", 16)]
    + [("8192", 16), ("8193", 17), ("65536", 19), ("1M", 23), ("8388608", 26), ("8388609", 27), ("20M", 27)]
    + [("8k", 16), ("8Ki", 16), ("1n", 2), ("0.500000001", 3), ("8388608.000000001", 27), ("1e300", 27)],
)
def test_published_examples(text: str, bucket: int) -> None:
    assert bucket_for(parse_quantity(text)) == bucket


def test_labels_and_bounds_of_the_whole_ladder() -> None:
    labels = [bucket_label(bucket) for bucket in BUCKETS]
    assert labels == ["unspecified", "0", "0.5", *(str(2**k) for k in range(24)), "pinned"]
    assert bound_dollars(0) == bound_dollars(1) == 0
    assert bound_dollars(27) == math.inf


@pytest.mark.parametrize("bucket", [-1, 28, 1000])
def test_a_number_off_the_ladder_is_refused(bucket: int) -> None:
    with pytest.raises(ValueError, match="0 to 27"):
        bound_dollars(bucket)
