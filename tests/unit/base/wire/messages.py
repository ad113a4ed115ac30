"""Strategies for messages as peers might send them: mostly sensible, each field now and then absurd."""

from typing import Any

from hypothesis import strategies as st

from bigfleet_base.api.v1alpha1 import capacity_pb2, provider_pb2

int32 = st.integers(-(2**31), 2**31 - 1)
texts = st.one_of(
    st.sampled_from(["", "a", "rack", "topology.kubernetes.io/zone", "a\x00b"]), st.text(max_size=5)
)
quantities = st.one_of(
    st.sampled_from(
        ["0", "1", "500m", "8Ei", "768Gi", "1e3", "-1", "", "1e30", "12 dollars", "9" * 70, "1n"]
    ),
    st.sampled_from(["9223372036854775807", "9223372036854775808", "9223372036854775807.0000000001"]),
    st.text("0123456789.eE+-numkMGTPEi", max_size=8),
)
amounts = st.dictionaries(st.sampled_from(["cpu", "memory", "nvidia.com/gpu", ""]), quantities, max_size=3)


def mostly(usual: st.SearchStrategy[Any], odd: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(usual, usual, usual, odd)


requirements = st.builds(
    capacity_pb2.NodeSelectorRequirement,
    key=texts,
    operator=mostly(st.integers(1, 5), int32),
    values=st.lists(texts, max_size=3),
)
spreads = st.builds(
    capacity_pb2.TopologySpread,
    topology_key=texts,
    max_skew=int32,
    when_unsatisfiable=mostly(st.integers(0, 2), int32),
)
needs = st.builds(
    capacity_pb2.CapacityNeed,
    requirements=st.lists(requirements, max_size=3),
    aggregate_resources=amounts,
    priority=int32,
    spread=st.lists(spreads, max_size=2),
    interruption_penalty_bucket=mostly(st.integers(0, 27), int32),
    reclamation_penalty_bucket=mostly(st.integers(0, 27), int32),
    min_unit=amounts,
    group=texts,
)
rollups = st.builds(
    capacity_pb2.ClusterCapacityNeeds,
    cluster_id=mostly(st.just("c1"), texts),
    timestamp_unix_nanos=st.integers(-(2**63), 2**63 - 1),
    needs=st.lists(needs, max_size=4),
)
doubles = st.one_of(st.just(0.0), st.just(0.25), st.floats())
metadata = st.dictionaries(
    st.one_of(
        texts,
        st.sampled_from(
            [
                f"bigfleet.lucy.sh/{key}"
                for key in (
                    "assigned-priority",
                    "assigned-interruption-penalty-dollars",
                    "assigned-reclamation-penalty-dollars",
                    "assigned-need-fingerprint",
                    "assigned-group",
                    "target-cluster",
                    "instruction-id",
                    "preemptor-cluster",
                    "preemptor-priority",
                    "preemptor-need-fingerprint",
                    "preemptor-group",
                )
            ]
        ),
    ),
    st.one_of(
        texts, st.sampled_from(["7", "-2147483648", "2147483648", "8.388608e+06", "inf", "nan", "1_0"])
    ),
    max_size=6,
)
resources = st.builds(provider_pb2.Resources, resources=amounts)
machines = st.builds(
    provider_pb2.Machine,
    id=mostly(st.just("m1"), texts),
    state=mostly(st.integers(1, 8), int32),
    host=st.one_of(st.none(), st.builds(provider_pb2.HostRef, provider=texts, ref=texts)),
    instance_type=texts,
    zone=texts,
    capacity_type=mostly(st.integers(0, 4), int32),
    price_per_hour=doubles,
    interruption_probability=doubles,
    resources=st.one_of(st.none(), resources),
    allocatable=st.one_of(st.none(), resources),
    labels=st.dictionaries(texts, texts, max_size=3),
    last_error=texts,
    cluster=texts,
    shard_metadata=metadata,
)
