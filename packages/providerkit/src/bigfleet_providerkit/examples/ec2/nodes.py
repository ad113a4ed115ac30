"""The instances' Nodes, in clusters that there is a kubeconfig of (provider.md §9, §10)."""

import json

from bigfleet_providerkit.examples.localproc.nodes import Nodes, kubectl


class InstanceNodes(Nodes):
    """What can be seen of a Node from outside; where there is no way in, nothing."""

    async def is_ready(self, cluster: str, node: str) -> bool:
        """Whether the Node says so. Where we cannot look, the bootstrap's word must do."""
        if (kubeconfig := self.kubeconfig(cluster)) is None:
            return True
        ready = '--output=jsonpath={.status.conditions[?(@.type=="Ready")].status}'
        return await kubectl(kubeconfig, "get", "node", node, "--ignore-not-found", ready) == "True"

    async def is_empty(self, cluster: str, node: str) -> bool:
        """Whether no pod is left that could be evicted. Where we cannot look, one may be."""
        if (kubeconfig := self.kubeconfig(cluster)) is None:
            return False
        running = f"--field-selector=spec.nodeName={node},status.phase!=Succeeded,status.phase!=Failed"
        pods = await kubectl(kubeconfig, "get", "pods", "--all-namespaces", running, "--output=json")
        return all(_stays(pod["metadata"]) for pod in json.loads(pods)["items"])


def _stays(pod: dict[str, object]) -> bool:
    """Pods of the node itself are never evicted: those of a DaemonSet, and the kubelet's own."""
    owners, annotations = pod.get("ownerReferences"), pod.get("annotations")
    is_daemon = isinstance(owners, list) and any(owner["kind"] == "DaemonSet" for owner in owners)
    return is_daemon or (isinstance(annotations, dict) and "kubernetes.io/config.mirror" in annotations)
