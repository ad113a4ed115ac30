"""Roll-ups: what is refused, what is kept, and that nothing else can happen."""

import contextlib
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bigfleet_base.api.v1alpha1 import capacity_pb2 as pb
from bigfleet_base.model import (
    Need,
    Operator,
    Profile,
    Requirement,
    ResourceVector,
    TopologySpread,
    WhenUnsatisfiable,
)
from bigfleet_base.wire.demand import RollupRefusedError, encode_rollup
from tests.support.rules import rule
from tests.unit.base.wire import messages
from tests.unit.base.wire.reading import read_bytes

GANG = Need(
    "c1",
    Profile(
        (
            Requirement("topology.bigfleet/rack", Operator.SAME),
            Requirement("zone", Operator.IN, ("a", "b")),
            Requirement("arch", Operator.NOT_IN, ("arm64",)),
            Requirement("gpu", Operator.EXISTS),
            Requirement("spot", Operator.DOES_NOT_EXIST),
        ),
        (
            TopologySpread("zone", WhenUnsatisfiable.DO_NOT_SCHEDULE, 1),
            TopologySpread("rack", WhenUnsatisfiable.UNSPECIFIED, 3),
        ),
        priority=-5,
        interruption_bucket=16,
        reclamation_bucket=27,
    ),
    aggregate=ResourceVector({"cpu": 96_500, "memory": 768 * 1024**3 * 1000, "nvidia.com/gpu": 8_000}),
    min_unit=ResourceVector({"cpu": 500}),
    group="topology.bigfleet/rack\x00ml\x00abc",
)


def decode_rollup(rollup: pb.ClusterCapacityNeeds, cluster: str) -> list[Need]:
    """The rows of a message, as a session of this cluster reads them."""
    return list(read_bytes(rollup.SerializeToString(), cluster).fresh)


def row(**changes: object) -> pb.ClusterCapacityNeeds:
    """A roll-up of two good rows, the second one changed."""
    rollup = encode_rollup("c1", [GANG, GANG], 1)
    rollup.needs[1].MergeFrom(pb.CapacityNeed(**changes))  # type: ignore[arg-type] # one field at a time
    return rollup


@rule("wire.10.3")
def test_a_need_survives_the_wire_with_all_its_fields() -> None:
    sent = encode_rollup("c1", [GANG], 42)
    assert sent.timestamp_unix_nanos == 42
    assert decode_rollup(pb.ClusterCapacityNeeds.FromString(sent.SerializeToString()), "c1") == [GANG]


def test_amounts_are_written_in_canonical_form() -> None:
    written = encode_rollup("c1", [GANG], 0).needs[0].aggregate_resources
    assert dict(written) == {"cpu": "96500m", "memory": "768Gi", "nvidia.com/gpu": "8"}


@rule("ruling.R24")
@pytest.mark.parametrize(
    ("rollup", "complaint"),
    [
        (
            row(requirements=[pb.NodeSelectorRequirement(key="k")]),
            r"needs\[1\]: requirements\[5\]: operator 0",
        ),
        (row(requirements=[pb.NodeSelectorRequirement(operator=6)]), "operator 6"),  # type: ignore[arg-type] # unknown
        (row(interruption_penalty_bucket=28), "interruption_penalty_bucket is 28, must be 0 to 27"),
        (row(reclamation_penalty_bucket=-1), "reclamation_penalty_bucket is -1"),
        (
            row(aggregate_resources={"cpu": "12 dollars"}),
            r"aggregate_resources\['cpu'\]: '12 dollars' is not",
        ),
        (row(min_unit={"cpu": ""}), r"min_unit\['cpu'\]: '' is not a quantity"),
        (row(aggregate_resources={"cpu": "-1"}), r"'-1' is negative"),
        (row(min_unit={"cpu": "-1n"}), r"'-1n' is negative"),
        (row(aggregate_resources={"cpu": "9223372036854775808"}), r"more than 2\^63-1 units"),
        (row(min_unit={"cpu": "9223372036854775807.000000001"}), r"more than 2\^63-1 units"),
        (row(min_unit={"cpu": "1e30"}), r"more than 2\^63-1 units"),
        (row(min_unit={"cpu": "1e999999999"}), "beyond any quantity"),
        (row(spread=[pb.TopologySpread(when_unsatisfiable=3)]), "when_unsatisfiable 3"),  # type: ignore[arg-type] # unknown
        (
            row(requirements=[pb.NodeSelectorRequirement(operator=pb.NodeSelectorRequirement.OPERATOR_SAME)]),
            "2 Same requirements",
        ),
    ],
)
def test_one_bad_value_refuses_the_whole_roll_up_and_is_named(
    rollup: pb.ClusterCapacityNeeds, complaint: str
) -> None:
    with pytest.raises(RollupRefusedError, match=complaint):
        decode_rollup(rollup, "c1")


@rule("ruling.R24")
def test_a_gang_without_a_group_is_refused() -> None:
    rollup = encode_rollup("c1", [GANG], 1)
    rollup.needs[0].group = ""
    with pytest.raises(RollupRefusedError, match="Same requirement without a group"):
        decode_rollup(rollup, "c1")


@rule("ruling.R24")
def test_a_roll_up_for_another_cluster_is_refused() -> None:
    with pytest.raises(RollupRefusedError, match="'c2', but this session is 'c1'"):
        decode_rollup(pb.ClusterCapacityNeeds(cluster_id="c2"), "c1")


@rule("ruling.R24")
def test_a_roll_up_at_the_row_limit_is_taken() -> None:
    rows = pb.ClusterCapacityNeeds(cluster_id="c1", needs=[pb.CapacityNeed(priority=1)] * 100_000)
    assert len(decode_rollup(rows, "c1")) == 100_000


@rule("ruling.R20")
def test_the_largest_amount_is_taken_and_fractions_round_up_once() -> None:
    texts = {"a": "9223372036854775807", "b": "0.1m", "c": "7Ei", "d": "1001u", "e": "-0"}
    needs = decode_rollup(row(aggregate_resources=texts), "c1")
    amounts = needs[1].aggregate
    assert amounts["a"] == (2**63 - 1) * 1000
    assert amounts["b"] == 1
    assert amounts["c"] == 7 * 1024**6 * 1000
    assert amounts["d"] == 2
    assert "e" not in amounts


@rule("ruling.R8")
def test_an_unset_penalty_is_zero_dollars_before_the_fingerprint_is_taken() -> None:
    unset = pb.CapacityNeed(aggregate_resources={"cpu": "1"})
    zero = pb.CapacityNeed(
        aggregate_resources={"cpu": "1"},
        interruption_penalty_bucket=pb.PENALTY_BUCKET_ZERO,
        reclamation_penalty_bucket=pb.PENALTY_BUCKET_ZERO,
    )
    first, second = decode_rollup(pb.ClusterCapacityNeeds(cluster_id="c1", needs=[unset, zero]), "c1")
    assert first == second and first.profile.fingerprint == second.profile.fingerprint


def test_an_empty_roll_up_and_an_empty_need_are_legal() -> None:
    assert decode_rollup(pb.ClusterCapacityNeeds(cluster_id="c1"), "c1") == []
    assert decode_rollup(pb.ClusterCapacityNeeds(cluster_id="c1", needs=[pb.CapacityNeed()]), "c1") == [
        Need("c1", Profile(), ResourceVector())
    ]


@given(messages.rollups)
def test_any_message_is_decoded_or_refused(rollup: pb.ClusterCapacityNeeds) -> None:
    try:
        needs = decode_rollup(rollup, "c1")
    except RollupRefusedError:
        return
    assert len(needs) == len(rollup.needs)
    again = encode_rollup("c1", needs, rollup.timestamp_unix_nanos)
    assert decode_rollup(again, "c1") == needs


@given(messages.rollups, st.randoms(use_true_random=False), st.integers(1, 6))
def test_mutated_bytes_never_crash_the_decoder(
    rollup: pb.ClusterCapacityNeeds, rng: random.Random, flips: int
) -> None:
    data = bytearray(rollup.SerializeToString() + encode_rollup("c1", [GANG], 1).SerializeToString())
    for _ in range(flips):
        where = rng.randrange(len(data))
        match rng.randrange(3):
            case 0:
                data[where] = rng.randrange(256)
            case 1:
                del data[where]
            case _:
                data.insert(where, rng.randrange(256))
    with contextlib.suppress(RollupRefusedError):
        read_bytes(bytes(data), "c1")


def named(length: int) -> Need:
    """A Need whose Profile takes about so many bytes to tell."""
    profile = Profile((Requirement("kind", Operator.IN, ("x" * length,)),))
    return Need("c1", profile, ResourceVector({"cpu": 1_000}), ResourceVector({"cpu": 1_000}))


def test_equal_profiles_of_two_rollups_are_one_object() -> None:
    message = encode_rollup("c1", [named(900)], 1)
    (first,), (second,) = decode_rollup(message, "c1"), decode_rollup(message, "c1")
    assert first.profile is second.profile


def test_a_long_profile_is_read_anew_and_never_kept() -> None:
    message = encode_rollup("c1", [named(1_024)], 1)
    (first,), (second,) = decode_rollup(message, "c1"), decode_rollup(message, "c1")
    assert first.profile == second.profile
    assert first.profile is not second.profile
