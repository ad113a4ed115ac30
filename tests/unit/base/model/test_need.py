"""Profiles, their fingerprints, and the aggregation of rows."""

import hashlib
import json
import random
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bigfleet_base.model import (
    EMPTY,
    Need,
    Operator,
    Profile,
    Requirement,
    ResourceVector,
    TopologySpread,
    WhenUnsatisfiable,
    aggregate_rows,
)
from tests.support.rules import rule

T = TypeVar("T")
FINGERPRINTS = Path(__file__).parent / "vectors" / "fingerprints.json"

texts = st.text(st.sampled_from('ab"\\,\x00é𝄞]['), max_size=4)
requirements = st.builds(
    Requirement,
    texts,
    st.sampled_from([o for o in Operator if o is not Operator.SAME]),
    st.lists(texts, max_size=3).map(tuple),
)
spreads = st.builds(
    TopologySpread, texts, st.sampled_from(WhenUnsatisfiable), st.integers(-(2**31), 2**31 - 1)
)
profiles = st.builds(
    Profile,
    st.lists(requirements, max_size=3).map(tuple),
    st.lists(spreads, max_size=2).map(tuple),
    st.integers(-(2**31), 2**31 - 1),
    st.integers(1, 27),
    st.integers(1, 27),
)


@rule("ruling.R20")
def test_pinned_fingerprints() -> None:
    """Persisted by providers, so they may never change: the file was hashed outside this program."""
    cases = json.loads(FINGERPRINTS.read_text(encoding="utf-8"))
    assert len(cases) >= 10
    for case in cases:
        profile = Profile(
            tuple(Requirement(key, Operator(op), tuple(values)) for key, op, values in case["requirements"]),
            tuple(TopologySpread(key, WhenUnsatisfiable(when), skew) for key, when, skew in case["spread"]),
            case["priority"],
            case["interruption_bucket"],
            case["reclamation_bucket"],
        )
        assert hashlib.sha256(case["canonical"].encode()).hexdigest() == case["fingerprint"]
        assert profile.fingerprint == case["fingerprint"], case["canonical"]


@rule("ruling.R20")
@given(profiles, profiles)
def test_equal_profiles_have_equal_fingerprints_and_different_ones_do_not(a: Profile, b: Profile) -> None:
    assert (a == b) == (a.fingerprint == b.fingerprint)


@given(profiles, st.randoms(use_true_random=False))
def test_the_order_a_peer_lists_things_in_is_forgotten(profile: Profile, rng: random.Random) -> None:
    def shuffled(items: tuple[T, ...]) -> tuple[T, ...]:
        return tuple(rng.sample(items * 2, 2 * len(items)))

    again = Profile(
        shuffled(tuple(replace(r, values=shuffled(r.values)) for r in profile.requirements)),
        shuffled(profile.spread),
        profile.priority,
        profile.interruption_bucket,
        profile.reclamation_bucket,
    )
    assert again == profile


def test_a_profile_has_at_most_one_same_requirement() -> None:
    rack = Requirement("rack", Operator.SAME)
    assert Profile((rack, rack)).same == rack
    with pytest.raises(ValueError, match="at most one Same"):
        Profile((rack, Requirement("row", Operator.SAME)))


def test_the_binding_spread_is_the_first_strict_one_in_canonical_order() -> None:
    soft = TopologySpread("a", WhenUnsatisfiable.SCHEDULE_ANYWAY, 1)
    strict = TopologySpread("c", WhenUnsatisfiable.DO_NOT_SCHEDULE, 1)
    first = TopologySpread("b", WhenUnsatisfiable.DO_NOT_SCHEDULE, 2)
    assert Profile(spread=(strict, soft, first)).strict_spread == first
    assert Profile(spread=(soft,)).strict_spread is None


rows = st.lists(
    st.builds(
        Need,
        st.sampled_from(["c1", "c2"]),
        st.sampled_from([Profile(), Profile(priority=5)]),
        st.dictionaries(st.sampled_from("xy"), st.integers(0, 9)).map(ResourceVector),
        st.dictionaries(st.sampled_from("xy"), st.integers(0, 9)).map(ResourceVector),
        st.sampled_from(["", "g"]),
        st.integers(0, 3),
    ),
    max_size=8,
)


@rule("engine.I18")
@given(rows, st.randoms(use_true_random=False))
def test_aggregation_does_not_depend_on_order(needs: list[Need], rng: random.Random) -> None:
    shuffled = rng.sample(needs, len(needs))
    assert {n.key: n for n in aggregate_rows(needs)} == {n.key: n for n in aggregate_rows(shuffled)}


@rule("engine.I18")
@given(rows)
def test_aggregation_sums_demand_and_keeps_the_largest_unit(needs: list[Need]) -> None:
    merged = aggregate_rows(needs)
    assert [n.key for n in merged] == list(dict.fromkeys(n.key for n in needs)), "first-seen order, once each"
    for need in merged:
        members = [n for n in needs if n.key == need.key]
        assert need.aggregate == sum((n.aggregate for n in members), EMPTY)
        for name in "xy":
            assert need.min_unit[name] == max(n.min_unit[name] for n in members)
        assert need.arrival_ns == min((n.arrival_ns for n in members if n.arrival_ns), default=0)
