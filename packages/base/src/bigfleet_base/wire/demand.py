"""Demand between operator and shard: roll-ups and the requirements inside them."""

import functools
from collections.abc import Iterable, Mapping
from typing import Final, cast

from bigfleet_base.api.v1alpha1 import capacity_pb2 as pb
from bigfleet_base.model import (
    Need,
    Operator,
    Profile,
    QuantityError,
    Requirement,
    ResourceVector,
    TopologySpread,
    WhenUnsatisfiable,
    penalty,
)
from bigfleet_base.wire.quantities import decode_demand, encode_resources


class RollupRefusedError(ValueError):
    """A roll-up that is refused whole; the message names the first row and field at fault."""


def decode_need(row: pb.CapacityNeed, cluster_id: str, index: int) -> Need:
    """The row with this place in a roll-up, before aggregation and without an arrival time."""
    try:
        profile = _decode_profile(row)
        if profile.same is not None and not row.group:
            raise ValueError("a Same requirement without a group")
        return Need(
            cluster_id,
            profile,
            aggregate=_decode_amounts("aggregate_resources", row.aggregate_resources),
            min_unit=_decode_amounts("min_unit", row.min_unit),
            group=row.group,
        )
    except ValueError as error:
        raise RollupRefusedError(f"needs[{index}]: {error}") from None


def encode_rollup(cluster_id: str, needs: Iterable[Need], timestamp_ns: int) -> pb.ClusterCapacityNeeds:
    """A roll-up of these rows, in their order."""
    return pb.ClusterCapacityNeeds(
        cluster_id=cluster_id,
        timestamp_unix_nanos=timestamp_ns,
        needs=[encode_need(need) for need in needs],
    )


def encode_need(need: Need) -> pb.CapacityNeed:
    """One row; its cluster and what only the shard knows of it stay behind."""
    profile = need.profile
    return pb.CapacityNeed(
        requirements=encode_requirements(profile.requirements),
        aggregate_resources=encode_resources(need.aggregate),
        priority=profile.priority,
        spread=[
            pb.TopologySpread(
                topology_key=s.topology_key, max_skew=s.max_skew, when_unsatisfiable=_WHEN_NUMBER[s.when]
            )
            for s in profile.spread
        ],
        interruption_penalty_bucket=_bucket_number(profile.interruption_bucket),
        reclamation_penalty_bucket=_bucket_number(profile.reclamation_bucket),
        min_unit=encode_resources(need.min_unit),
        group=need.group,
    )


def encode_requirements(requirements: Iterable[Requirement]) -> list[pb.NodeSelectorRequirement]:
    """Requirements as every message that carries some has them."""
    return [
        pb.NodeSelectorRequirement(key=r.key, operator=_OPERATOR_NUMBER[r.operator], values=r.values)
        for r in requirements
    ]


def decode_requirements(requirements: Iterable[pb.NodeSelectorRequirement]) -> tuple[Requirement, ...]:
    """Requirements from any message; an operator that is not one of the five is an error."""
    decoded = []
    for index, r in enumerate(requirements):
        operator = _OPERATORS.get(r.operator)
        if operator is None:
            raise ValueError(f"requirements[{index}]: operator {r.operator} is none of 1 to 5")
        decoded.append(Requirement(r.key, operator, tuple(r.values)))
    return tuple(decoded)


def _decode_profile(row: pb.CapacityNeed) -> Profile:
    requirements = tuple([r.SerializeToString(deterministic=True) for r in row.requirements])
    spread = tuple([s.SerializeToString(deterministic=True) for s in row.spread])
    size = sum(map(len, requirements)) + sum(map(len, spread))
    make = _profile if size <= _SMALL_PROFILE else _profile.__wrapped__
    return make(
        requirements,
        spread,
        row.priority,
        row.interruption_penalty_bucket,
        row.reclamation_penalty_bucket,
    )


@functools.lru_cache(maxsize=16_384)
def _profile(
    requirements: tuple[bytes, ...],
    spread: tuple[bytes, ...],
    priority: int,
    interruption: int,
    reclamation: int,
) -> Profile:
    """One object for equal Profiles: roll-up after roll-up wants more or less of the same."""
    decoded = decode_requirements(map(pb.NodeSelectorRequirement.FromString, requirements))
    same = sum(r.operator is Operator.SAME for r in decoded)
    if same > 1:
        raise ValueError(f"{same} Same requirements, at most one is taken")
    return Profile(
        decoded,
        tuple([_decode_spread(pb.TopologySpread.FromString(each)) for each in spread]),
        priority,
        _decode_bucket("interruption_penalty_bucket", interruption),
        _decode_bucket("reclamation_penalty_bucket", reclamation),
    )


def _decode_spread(spread: pb.TopologySpread) -> TopologySpread:
    when = _WHEN.get(spread.when_unsatisfiable)
    if when is None:
        raise ValueError(f"spread: when_unsatisfiable {spread.when_unsatisfiable} is none of 0 to 2")
    return TopologySpread(spread.topology_key, when, spread.max_skew)


def _decode_bucket(field: str, bucket: int) -> int:
    if bucket not in penalty.BUCKETS:
        raise ValueError(f"{field} is {bucket}, must be 0 to 27")
    # A peer's "unset" and zero dollars are one bucket, before any fingerprint is taken (ruling R8).
    return bucket or penalty.ZERO


def _decode_amounts(field: str, texts: Mapping[str, str]) -> ResourceVector:
    try:
        return decode_demand(texts)
    except QuantityError as error:
        raise ValueError(f"{field}{error}") from None


def _bucket_number(bucket: int) -> "pb.PenaltyBucket.ValueType":
    return cast("pb.PenaltyBucket.ValueType", bucket)


_SMALL_PROFILE: Final = 1_024
"""Bytes up to which a Profile is kept, so that what is kept is bounded."""
_OPERATORS: Final = {
    pb.NodeSelectorRequirement.OPERATOR_IN: Operator.IN,
    pb.NodeSelectorRequirement.OPERATOR_NOT_IN: Operator.NOT_IN,
    pb.NodeSelectorRequirement.OPERATOR_EXISTS: Operator.EXISTS,
    pb.NodeSelectorRequirement.OPERATOR_DOES_NOT_EXIST: Operator.DOES_NOT_EXIST,
    pb.NodeSelectorRequirement.OPERATOR_SAME: Operator.SAME,
}
_OPERATOR_NUMBER: Final = {operator: number for number, operator in _OPERATORS.items()}
_WHEN: Final = {
    pb.TopologySpread.WHEN_UNSATISFIABLE_UNSPECIFIED: WhenUnsatisfiable.UNSPECIFIED,
    pb.TopologySpread.WHEN_UNSATISFIABLE_DO_NOT_SCHEDULE: WhenUnsatisfiable.DO_NOT_SCHEDULE,
    pb.TopologySpread.WHEN_UNSATISFIABLE_SCHEDULE_ANYWAY: WhenUnsatisfiable.SCHEDULE_ANYWAY,
}
_WHEN_NUMBER: Final = {when: number for number, when in _WHEN.items()}
