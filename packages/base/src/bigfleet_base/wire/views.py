"""What InspectNeeds shows of each Need (wire.md §6)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from google.protobuf.message import DecodeError

from bigfleet_base.api.v1alpha1 import provider_pb2
from bigfleet_base.api.v1alpha1 import shardread_pb2 as pb
from bigfleet_base.model import EMPTY, Need, Requirement, ResourceVector
from bigfleet_base.wire.demand import decode_requirements, encode_need
from bigfleet_base.wire.fields import MalformedMessageError
from bigfleet_base.wire.quantities import decode_demand, encode_resources

MAX_SHOWN_GROUPS: Final = 100
"""Gangs that are named in the row they were folded into; there may be thousands."""


@dataclass(frozen=True, slots=True)
class NeedView:
    """One Need and what the last cycle gave it."""

    need: Need
    groups: Sequence[str]
    """The gangs that were folded into it."""
    satisfied: bool
    deficit: ResourceVector
    claimed: int
    bootstraps: int
    provisions: int
    same_domain: str
    same_satisfiable: bool
    parked_age: int
    age: int
    reason: str
    """Empty when satisfied, else a key of ``REASONS``."""
    detail: str
    supply: tuple[int, int, int, bool] | None
    """Of an unmet Need: Idle, Configured and Speculative machines that would do, and whether there are
    more."""
    victims: int
    freed: ResourceVector
    candidates: Sequence[tuple[str, int, bool]]
    """Of a gang: its best domains, how many thousandths of it each would cover, and whether it would do."""


REASONS: Final = {
    "": pb.UNMET_REASON_UNSPECIFIED,
    "priority_starved": pb.UNMET_REASON_PRIORITY_STARVED,
    "insufficient_supply": pb.UNMET_REASON_PRIORITY_STARVED,
    "preemption_pending": pb.UNMET_REASON_PRIORITY_STARVED,
    "no_matching_supply": pb.UNMET_REASON_NO_MATCHING_SUPPLY,
    "topology_unsatisfiable": pb.UNMET_REASON_TOPOLOGY_UNSATISFIABLE,
    "spread": pb.UNMET_REASON_TOPOLOGY_UNSATISFIABLE,
    "preemption_exhausted": pb.UNMET_REASON_PREEMPTION_EXHAUSTED,
}
"""The reasons, and the nearest of those that the base contract knows."""


def decode_inspection(request: bytes) -> tuple[str, int]:
    """Whose Needs are asked for (empty: everybody's), and how many at most (0: all)."""
    try:
        message = pb.InspectNeedsRequest.FromString(request)
    except DecodeError as error:
        raise MalformedMessageError(f"no InspectNeedsRequest: {error}") from None
    return message.cluster_id, max(0, message.limit)


def encode_header(cycle: int, computed_at_ns: int, total: int) -> bytes:
    """The first frame of an answer; cycle 0 means that none has run yet."""
    return pb.InspectNeedsResponse(
        header=pb.InspectNeedsHeader(cycle=cycle, computed_at_unix_nanos=computed_at_ns, total_needs=total)
    ).SerializeToString()


def encode_view(view: NeedView) -> bytes:
    """One row of an answer."""
    need = view.need
    row = encode_need(need)
    if view.groups and not row.group:
        row.group = ",".join(view.groups[:MAX_SHOWN_GROUPS])
    message = pb.NeedView(
        need=row,
        cluster_id=need.cluster_id,
        arrival_unix_nanos=need.arrival_ns,
        profile_fingerprint=need.profile.fingerprint,
        satisfied=view.satisfied,
        claimed_machine_count=view.claimed,
        bootstrap_count=view.bootstraps,
        provision_count=view.provisions,
        same_domain=view.same_domain,
        same_satisfiable=view.same_satisfiable,
        acquisition_parked=need.acquisition_parked,
        parked_age_cycles=view.parked_age,
        age_cycles_unmet=view.age,
        unmet_reason=REASONS[view.reason],
        same_candidates=[
            pb.DomainCoverage(domain=domain, coverage_per_mille=share, satisfiable=satisfiable)
            for domain, share, satisfiable in view.candidates
        ],
        unmet_detail=view.detail,
    )
    if view.deficit != EMPTY:
        message.residual_deficit.CopyFrom(_resources(view.deficit))
    if view.supply is not None:
        idle, configured, speculative, capped = view.supply
        message.matching_supply.CopyFrom(
            pb.MatchingSupply(idle=idle, configured=configured, speculative=speculative, capped=capped)
        )
    if view.victims:
        message.preemption.CopyFrom(
            pb.PreemptionSummary(victims_found=view.victims, capacity_freed=_resources(view.freed))
        )
    return pb.InspectNeedsResponse(need=message).SerializeToString()


@dataclass(frozen=True, slots=True)
class SeenNeed:
    """A row of an answer, as somebody who shows it wants it."""

    cluster: str
    requirements: tuple[Requirement, ...]
    aggregate: ResourceVector
    priority: int
    claimed: int
    satisfied: bool
    reason: str
    """Empty when satisfied."""


def decode_view(frame: bytes) -> SeenNeed | None:
    """A row of an answer; None for its header."""
    response = pb.InspectNeedsResponse.FromString(frame)
    if response.WhichOneof("frame") != "need":
        return None
    view = response.need
    reason = pb.UnmetReason.Name(view.unmet_reason).removeprefix("UNMET_REASON_").lower()
    return SeenNeed(
        view.cluster_id,
        decode_requirements(view.need.requirements),
        decode_demand(view.need.aggregate_resources),
        view.need.priority,
        view.claimed_machine_count,
        view.satisfied,
        "" if view.satisfied else view.unmet_detail or reason,
    )


def _resources(vector: ResourceVector) -> provider_pb2.Resources:
    return provider_pb2.Resources(resources=encode_resources(vector))
