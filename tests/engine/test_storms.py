"""Histories in which everything moves at once, and short ones in which everybody wants the same.

What a provider shows of a machine may change at any time, and so may what an operator asks for, while a cycle
runs or between two; a cycle may be given up half-way. All of it is decided by changes, by everything and by
the oracle, which knows nothing of slices and of what was given up (see ``storms``).
"""

import pytest

from tests.engine.differential import first_difference
from tests.engine.storms import first_difference_in_storm, generate_contest, generate_storm
from tests.support.rules import rule


@rule("engine.I1", "engine.I15", "engine.I16")
@pytest.mark.timeout(2 * 3600)
def test_storms_are_decided_as_by_the_oracle(full_size: bool) -> None:
    for seed in range(3000 if full_size else 16):
        difference = first_difference_in_storm(generate_storm(seed))
        assert difference is None, f"seed {seed} differs in {difference}"


@rule("engine.I1", "engine.I15")
@pytest.mark.timeout(2 * 3600)
def test_contests_are_decided_as_by_the_oracle(full_size: bool) -> None:
    """Needs spread strictly, or preempt, over machines that hardly differ."""
    for seed in range(20_000 if full_size else 100):
        difference = first_difference(generate_contest(seed))
        assert difference is None, f"seed {seed} differs in {difference}"
