"""What InspectNeeds shows of a Need."""

from dataclasses import replace

import pytest

from bigfleet_base.api.v1alpha1 import shardread_pb2 as pb
from bigfleet_base.model import EMPTY, Need, Operator, Profile, Requirement, ResourceVector
from bigfleet_base.wire.fields import MalformedMessageError
from bigfleet_base.wire.views import (
    NeedView,
    SeenNeed,
    decode_inspection,
    decode_view,
    encode_header,
    encode_view,
)
from tests.support.rules import rule

NEED = Need(
    "c1",
    Profile((Requirement("rack", Operator.SAME),), priority=5),
    ResourceVector(cpu=8_000),
    ResourceVector(cpu=1_000),
    group="g\x001",
    arrival_ns=77,
    acquisition_parked=True,
)
UNMET = NeedView(
    need=NEED,
    groups=(),
    satisfied=False,
    deficit=ResourceVector(cpu=3_000),
    claimed=5,
    bootstraps=2,
    provisions=3,
    same_domain="r1",
    same_satisfiable=True,
    parked_age=8,
    age=9,
    reason="spread",
    detail="spread",
    supply=(1, 2, 3, True),
    victims=4,
    freed=ResourceVector(cpu=4_000),
    candidates=(("r1", 1000, True), ("r2", 375, False)),
)


def shown(view: NeedView) -> pb.NeedView:
    return pb.InspectNeedsResponse.FromString(encode_view(view)).need


def test_all_fields_of_an_unmet_need_are_shown() -> None:
    view = shown(UNMET)
    assert view.need.group == "g\x001" and view.need.priority == 5
    assert dict(view.need.aggregate_resources) == {"cpu": "8"}
    assert view.cluster_id == "c1" and view.arrival_unix_nanos == 77
    assert view.profile_fingerprint == NEED.profile.fingerprint
    assert not view.satisfied and dict(view.residual_deficit.resources) == {"cpu": "3"}
    assert (view.claimed_machine_count, view.bootstrap_count, view.provision_count) == (5, 2, 3)
    assert view.same_domain == "r1" and view.same_satisfiable and view.acquisition_parked
    assert (view.parked_age_cycles, view.age_cycles_unmet) == (8, 9)
    assert view.matching_supply == pb.MatchingSupply(idle=1, configured=2, speculative=3, capped=True)
    assert view.preemption.victims_found == 4
    assert dict(view.preemption.capacity_freed.resources) == {"cpu": "4"}
    assert [(c.domain, c.coverage_per_mille, c.satisfiable) for c in view.same_candidates] == [
        ("r1", 1000, True),
        ("r2", 375, False),
    ]


def test_a_satisfied_need_shows_no_supply_no_victims_and_no_reason() -> None:
    view = shown(
        replace(
            UNMET, satisfied=True, deficit=EMPTY, reason="", detail="", supply=None, victims=0, candidates=()
        )
    )
    assert view.unmet_reason == pb.UNMET_REASON_UNSPECIFIED and view.unmet_detail == ""
    assert not view.HasField("matching_supply") and not view.HasField("preemption")
    assert not view.same_candidates


@pytest.mark.parametrize(
    ("reason", "number"),
    [
        ("priority_starved", 1),
        ("no_matching_supply", 2),
        ("topology_unsatisfiable", 3),
        ("preemption_exhausted", 4),
        ("spread", 3),
        ("insufficient_supply", 1),
        ("preemption_pending", 1),
    ],
)
def test_finer_reasons_fold_into_those_of_the_base_contract(reason: str, number: int) -> None:
    view = shown(replace(UNMET, reason=reason, detail="no_session"))
    assert view.unmet_reason == number and view.unmet_detail == "no_session"


def test_gangs_that_were_folded_are_still_named_up_to_a_bound() -> None:
    folded = replace(NEED, group="")
    assert shown(replace(UNMET, need=folded, groups=("a", "b"))).need.group == "a,b"
    many = tuple(f"g{n}" for n in range(5_000))
    assert shown(replace(UNMET, need=folded, groups=many)).need.group.count(",") == 99


@rule("shard.V2")
def test_the_header_says_how_many_there_are_before_the_limit() -> None:
    header = pb.InspectNeedsResponse.FromString(encode_header(0, 5, 25)).header
    assert (header.cycle, header.computed_at_unix_nanos, header.total_needs) == (0, 5, 25)


def test_a_limit_below_nothing_is_none() -> None:
    assert decode_inspection(pb.InspectNeedsRequest(cluster_id="c", limit=-4).SerializeToString()) == ("c", 0)
    assert decode_inspection(pb.InspectNeedsRequest(limit=4).SerializeToString()) == ("", 4)
    with pytest.raises(MalformedMessageError):
        decode_inspection(b"\x0a\xff")


def test_a_reader_gets_back_what_it_shows() -> None:
    assert decode_view(encode_header(3, 4, 5)) is None
    assert decode_view(encode_view(UNMET)) == SeenNeed(
        "c1", NEED.profile.requirements, ResourceVector(cpu=8_000), 5, 5, satisfied=False, reason="spread"
    )
