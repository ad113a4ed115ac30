"""Provider records for tests."""

from collections.abc import Iterable
from typing import Any

from bigfleet_base.api.v1alpha1 import provider_pb2 as pb
from bigfleet_base.wire.metadata import encode_assignment

ASSIGNMENT = encode_assignment(1000, 8.0, 0.5, "f" * 64, "")


def record(number: int = 1, **changes: Any) -> pb.Machine:
    """A Configured machine of a small fleet, as a provider publishes it."""
    return pb.Machine(
        **{
            "id": f"m-{number}",
            "state": pb.MACHINE_STATE_CONFIGURED,
            "host": pb.HostRef(provider="aws-eu-west-1", ref=f"i-{number:012x}"),
            "instance_type": "m6i.4xlarge",
            "zone": f"eu-west-1{'abc'[number % 3]}",
            "capacity_type": pb.CAPACITY_TYPE_ON_DEMAND,
            "price_per_hour": 0.768,
            "interruption_probability": 0.001,
            "resources": pb.Resources(resources={"cpu": "16", "memory": "64Gi"}),
            "allocatable": pb.Resources(resources={"cpu": "15890m", "memory": "60Gi", "pods": "110"}),
            "labels": {"topology.kubernetes.io/region": "eu-west-1", "topology.bigfleet/rack": "r7"},
            "cluster": "c1",
            "shard_metadata": ASSIGNMENT,
            **changes,
        }
    )


def idle(number: int = 1, **changes: Any) -> pb.Machine:
    return record(number, **{"state": pb.MACHINE_STATE_IDLE, "cluster": "", "shard_metadata": {}, **changes})


def message(machines: Iterable[pb.Machine] = (), **fields: Any) -> bytes:
    """A serialised List."""
    return pb.MachineList(machines=machines, **fields).SerializeToString()
