"""Pods are scheduled and run on kwok nodes; control planes do not see each other."""

import json
import re
from pathlib import Path
from typing import Any

from tests.support.parts import KubeApiserver, KubeControlPlane, kwok_node, wait_until
from tests.support.parts.tools import BIN


def test_server_reports_the_version_that_the_tools_pin(kube_apiserver: KubeApiserver) -> None:
    go_mod = (BIN.parent / "kubernetes" / "go.mod").read_text()
    pinned = re.search(r"k8s\.io/kubernetes (v\S+)", go_mod)
    assert pinned

    served = json.loads(kube_apiserver.kubectl("get", "--raw", "/version"))
    client = json.loads(kube_apiserver.kubectl("version", "--client", "--output=json"))["clientVersion"]

    for version in (served, client):
        assert version["gitVersion"] == pinned[1]
        assert f"v{version['major']}.{version['minor']}." in pinned[1]


def test_pod_is_bound_by_the_scheduler_and_runs_on_a_kwok_node(
    kube_control_plane: KubeControlPlane, plane_namespace: str
) -> None:
    plane = kube_control_plane
    zone = "topology.kubernetes.io/zone"
    for name in ("a", "b"):
        node = kwok_node(f"{plane_namespace}-{name}", labels={zone: f"{plane_namespace}-{name}"})
        plane.kubectl("create", "--filename=-", stdin=node)
    plane.kubectl("wait", "nodes", f"--selector={zone}", "--for=condition=Ready", "--timeout=30s")

    wanted = {zone: f"{plane_namespace}-b"}
    plane.kubectl("create", "--filename=-", stdin=pod("worker", plane_namespace, node_selector=wanted))

    wait_until_running(plane, "worker", plane_namespace)
    placed = plane.get("pod", "worker", f"--namespace={plane_namespace}")
    assert placed["spec"]["nodeName"] == f"{plane_namespace}-b"
    assert scheduled_by(plane, plane_namespace) == {"default-scheduler"}


def test_two_control_planes_run_side_by_side_without_seeing_each_other(
    kube_control_plane: KubeControlPlane, tmp_path: Path
) -> None:
    with KubeControlPlane(tmp_path) as other:
        for plane, node in ((kube_control_plane, "only-here"), (other, "only-there")):
            plane.create_namespace("side-by-side")
            plane.kubectl("create", "--filename=-", stdin=kwok_node(node))
            plane.kubectl("create", "--filename=-", stdin=pod("twin", "side-by-side", node_name=node))
        for plane in (kube_control_plane, other):
            wait_until_running(plane, "twin", "side-by-side")

        assert "only-there" not in node_names(kube_control_plane)
        assert "only-here" not in node_names(other)

        other.kubectl("delete", "pod", "twin", "--namespace=side-by-side")
        wait_until(lambda: not other.get("pods", "-n=side-by-side")["items"], 30, "the pod to be gone")

    assert kube_control_plane.get("pod", "twin", "-n=side-by-side")["status"]["phase"] == "Running"


def pod(
    name: str, namespace: str, *, node_selector: dict[str, str] | None = None, node_name: str | None = None
) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "containers": [{"name": "main", "image": "unused", "resources": {"requests": {"cpu": "1"}}}],
            "nodeSelector": node_selector,
            "nodeName": node_name,
        },
    }


def wait_until_running(plane: KubeControlPlane, name: str, namespace: str) -> None:
    running = "--for=jsonpath={.status.phase}=Running"
    plane.kubectl("wait", f"pod/{name}", f"--namespace={namespace}", running, "--timeout=30s")


def node_names(plane: KubeControlPlane) -> set[str]:
    return {node["metadata"]["name"] for node in plane.get("nodes")["items"]}


def scheduled_by(plane: KubeControlPlane, namespace: str) -> set[str]:
    """Who reported the binding of a pod; the event follows the binding, so it is waited for."""
    events: list[dict[str, Any]] = []

    def reported() -> bool:
        events[:] = plane.get("events", f"--namespace={namespace}", "--field-selector=reason=Scheduled")[
            "items"
        ]
        return bool(events)

    wait_until(reported, 30, "the Scheduled event")
    return {event.get("reportingComponent") or event["source"]["component"] for event in events}
