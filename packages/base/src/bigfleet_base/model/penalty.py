"""Penalty buckets: dollars rounded up to a short ladder so that equal workloads aggregate.

A bucket is its wire number: 0 unspecified, 1 exactly zero, 2 half a dollar, 3…26 the powers of two from
$1 to $8,388,608, 27 pinned. Buckets compare by number.
"""

import math
from typing import Final

from bigfleet_base.model.quantity import NANO

UNSPECIFIED: Final = 0
ZERO: Final = 1
HALF_DOLLAR: Final = 2
ONE_DOLLAR: Final = 3
PINNED: Final = 27

BUCKETS: Final = range(UNSPECIFIED, PINNED + 1)


def bucket_for(nano_dollars: int) -> int:
    """The smallest bucket that holds an amount given as a quantity (nano-dollars)."""
    if nano_dollars <= 0:
        return ZERO
    if 2 * nano_dollars <= NANO:
        return HALF_DOLLAR
    dollars = -(-nano_dollars // NANO)
    return min(ONE_DOLLAR + (dollars - 1).bit_length(), PINNED)


def bound_dollars(bucket: int) -> float:
    """The upper bound that stands for every amount in the bucket; infinite when pinned."""
    match bucket:
        case 0 | 1:
            return 0.0
        case 2:
            return 0.5
        case 27:
            return math.inf
        case _ if ONE_DOLLAR <= bucket < PINNED:
            return float(1 << (bucket - ONE_DOLLAR))
    raise ValueError(f"{bucket} is not a penalty bucket: they are numbered 0 to 27")


def bucket_label(bucket: int) -> str:
    """The bucket as a metric label: ``0``, ``0.5``, ``1``, ``2``, …, ``8388608``, ``pinned``."""
    match bucket:
        case 0:
            return "unspecified"
        case 27:
            return "pinned"
    return f"{bound_dollars(bucket):.10g}"
