"""The bucket sets of the histograms, in seconds unless their name says otherwise.

A histogram quantile cannot exceed the highest finite edge and is a guess between two edges, so a series that
a gate or an alert reads must reach to twice the threshold and have two edges near it.
"""


def _doubling(first_ms: int, count: int) -> tuple[float, ...]:
    # Divided last, so that every edge is the float nearest to its decimal and prints as that decimal.
    return tuple((first_ms << k) / 1000 for k in range(count))


def gated(buckets: tuple[float, ...], *thresholds: float) -> tuple[float, ...]:
    """The set with edges at 0.8, 1 and 1.25 times each threshold.

    Edges that double lie too far apart: between 10.24 s and 20.48 s a limit of 15 s can be missed by a third
    either way without showing.
    """
    near = {round(threshold * factor, 6) for threshold in thresholds for factor in (0.8, 1, 1.25)}
    return tuple(sorted(near.union(buckets)))


CYCLE = tuple(sorted(_doubling(1, 20) + _doubling(48, 8)))
"""1 ms to 524 s, with midpoints between 32 ms and 8 s where healthy cycles lie."""

MACHINE = _doubling(10, 16)
FANOUT = _doubling(10, 20)
ROLLUP = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.2, 0.35, 0.5, 0.65, 0.8),
    *(1.0, 1.25, 1.5, 2.0, 3.0, 5.0, 8.0, 16.0, 32.0),
)
NODESTATE = tuple(sorted((*_doubling(1, 17), 0.75, 1.25, 1.5, 1.75)))
BIND = _doubling(100, 16)
RPC = _doubling(1, 16)

COUNT = (0.0, *(float(4**k) for k in range(11)))
"""Numbers of things, from none to a million."""
