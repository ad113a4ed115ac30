"""A machine as a Node: what we write into one, and what we read back from it."""

import json
from collections.abc import Mapping
from typing import Any, Final

from bigfleet_providerkit.backend import Binding, MachineView

NODES: Final = "/api/v1/nodes"
PROVIDER_LABEL: Final = "bigfleet.lucy.sh/provider"
_CLUSTER: Final = "bigfleet.lucy.sh/cluster"
_METADATA: Final = "bigfleet.lucy.sh/metadata"
_OPERATION: Final = "bigfleet.lucy.sh/operation"
_KWOK: Final = {"kwok.x-k8s.io/node": "fake"}
"""The annotation that kwok's own manuals select by. With it kwok is the kubelet: it makes the Node Ready,
runs its pods and renews its lease, so nobody here may."""
_MAX_METADATA: Final = 200_000
"""All annotations of an object share 256 KiB."""


def manifest(machine: MachineView, cluster: str, operation_id: str, provider: str) -> dict[str, Any]:
    """The Node of a machine."""
    tags = {_CLUSTER: cluster, _OPERATION: operation_id}
    if len(metadata := json.dumps(dict(machine.metadata))) <= _MAX_METADATA:
        tags[_METADATA] = metadata
    labels = {
        **machine.labels,
        "kubernetes.io/hostname": machine.id,
        "node.kubernetes.io/instance-type": machine.instance_type,
        "topology.kubernetes.io/zone": machine.zone,
        PROVIDER_LABEL: provider,
    }
    size = {"pods": "110", **machine.allocatable}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": machine.id, "labels": labels, "annotations": {**_KWOK, **tags}},
        "spec": {"providerID": provider_id(provider, machine.id)},
        # From the first moment: of a Node without a size kwok makes one of a thousand processors.
        "status": {"capacity": size, "allocatable": size},
    }


def provider_id(provider: str, machine_id: str) -> str:
    return f"bigfleet://{provider}/{machine_id}"


def cluster_of(node: Mapping[str, Any]) -> str:
    """The cluster that a Node was made for."""
    return _annotation(node, _CLUSTER)


def operation_of(node: Mapping[str, Any]) -> str:
    """The Configure that made it."""
    return _annotation(node, _OPERATION)


def is_ready(node: Mapping[str, Any]) -> bool:
    conditions = node.get("status", {}).get("conditions", ())
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)


def binding_of(node: Mapping[str, Any]) -> Binding | None:
    """Whom the machine serves; None where the Node does not tell all of it, or never became Ready (P-124)."""
    metadata = _annotation(node, _METADATA)
    if not metadata or not is_ready(node):
        return None
    return Binding(cluster_of(node), json.loads(metadata))


def _annotation(node: Mapping[str, Any], key: str) -> str:
    return str(node["metadata"].get("annotations", {}).get(key, ""))
