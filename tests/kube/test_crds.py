"""The CRDs on a real API server: what it accepts, refuses, prunes and shows to kubectl."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from bigfleet_base.model import parse_quantity
from bigfleet_base.model.penalty import bound_dollars, bucket_for
from tests.kube.objects import (
    available_capacity,
    capacity_request,
    create,
    refused,
    rows,
    set_status,
    upcoming_node,
)
from tests.support.parts import KubeApiserver, KubeControlPlane, wait_until
from tests.support.rules import rule

EXAMPLES = Path(__file__).parent / "examples"


@rule("crds.CRD-1")
def test_three_kinds_are_served_with_their_short_names_and_scopes(kube_apiserver: KubeApiserver) -> None:
    listed = rows(kube_apiserver.kubectl("api-resources", "--api-group=bigfleet.lucy.sh"))

    assert [(row["NAME"], row["SHORTNAMES"], row["NAMESPACED"], row["KIND"]) for row in listed] == [
        ("availablecapacities", "avc", "false", "AvailableCapacity"),
        ("capacityrequests", "cr,crs", "true", "CapacityRequest"),
        ("upcomingnodes", "upn", "false", "UpcomingNode"),
    ]


def test_category_lists_all_three_kinds(kube_apiserver: KubeApiserver, namespace: str) -> None:
    create(kube_apiserver, capacity_request(namespace, namespace))
    create(kube_apiserver, available_capacity(namespace))
    create(kube_apiserver, upcoming_node(namespace))

    listed = kube_apiserver.kubectl("get", "fleet", f"--namespace={namespace}", "--output=name").split()

    assert {line.partition(".")[0] for line in listed if line.endswith(f"/{namespace}")} == {
        "availablecapacity",
        "capacityrequest",
        "upcomingnode",
    }


@rule("crds.CRD-2")
def test_request_without_status_is_shown_with_a_blank_phase(
    kube_apiserver: KubeApiserver, namespace: str
) -> None:
    create(kube_apiserver, capacity_request(namespace, priority=7))

    (row,) = rows(kube_apiserver.kubectl("get", "cr", f"--namespace={namespace}"))

    assert list(row) == ["NAME", "PHASE", "PRIORITY", "AGE"]
    assert (row["NAME"], row["PHASE"], row["PRIORITY"]) == ("request", "", "7")


@rule("crds.CRD-3")
def test_field_selector_finds_exactly_what_was_stamped_pending(
    kube_apiserver: KubeApiserver, namespace: str
) -> None:
    for name in ("pending", "acknowledged", "never-stamped"):
        create(kube_apiserver, capacity_request(namespace, name))
    stamp(kube_apiserver, namespace, "pending", {"phase": "Pending"})
    stamp(kube_apiserver, namespace, "acknowledged", {"phase": "Acknowledged"})

    found = kube_apiserver.get("cr", "-A", "--field-selector=status.phase=Pending")["items"]

    assert [item["metadata"]["name"] for item in found if item["metadata"]["namespace"] == namespace] == [
        "pending"
    ]
    assert {item["status"]["phase"] for item in found} == {"Pending"}


@rule("crds.CRD-4")
@pytest.mark.parametrize("field", ["priority", "resources"])
def test_request_without_a_required_field_is_refused_by_its_name(
    kube_apiserver: KubeApiserver, namespace: str, field: str
) -> None:
    incomplete = capacity_request(namespace)
    del incomplete["spec"][field]

    with refused(f"spec.{field}: Required value"):
        create(kube_apiserver, incomplete)


@rule("crds.CRD-5")
def test_empty_resources_and_negative_priority_are_accepted(
    kube_apiserver: KubeApiserver, namespace: str
) -> None:
    create(kube_apiserver, capacity_request(namespace, resources={}, priority=-10))

    assert stored(kube_apiserver, namespace)["spec"] == {"resources": {}, "priority": -10}


@rule("crds.CRD-6")
@pytest.mark.parametrize("penalty", [8192, "8192"])
def test_penalty_is_accepted_as_number_and_as_text_and_means_the_same(
    kube_apiserver: KubeApiserver, namespace: str, penalty: int | str
) -> None:
    create(kube_apiserver, capacity_request(namespace, interruptionPenalty=penalty))

    kept = stored(kube_apiserver, namespace)["spec"]["interruptionPenalty"]

    assert kept == penalty
    assert bound_dollars(bucket_for(parse_quantity(str(kept)))) == 8192


@rule("crds.CRD-7")
@pytest.mark.parametrize("field", ["interruptionPenalty", "reclamationPenalty"])
def test_penalty_that_is_no_quantity_is_refused(
    kube_apiserver: KubeApiserver, namespace: str, field: str
) -> None:
    nonsense = capacity_request(namespace)
    nonsense["spec"][field] = "12 dollars"

    with refused(rf'spec.{field}: Invalid value: "12 dollars": .*should match'):
        create(kube_apiserver, nonsense)


@pytest.mark.parametrize("quantity", [10**20, 1.5, "abc", "1 Gi", "1KB"])
def test_resource_that_is_no_quantity_is_refused(
    kube_apiserver: KubeApiserver, namespace: str, quantity: Any
) -> None:
    with refused("spec.resources.cpu"):
        create(kube_apiserver, capacity_request(namespace, resources={"cpu": quantity}))


@pytest.mark.parametrize("quantity", [0, -3, "-3", "500m", "1e3", "1.5Gi", "1e1.5", "1e30", "9" * 400])
def test_every_quantity_that_the_pattern_allows_is_stored_as_written(
    kube_apiserver: KubeApiserver, namespace: str, quantity: int | str
) -> None:
    create(kube_apiserver, capacity_request(namespace, resources={"cpu": quantity}))

    assert stored(kube_apiserver, namespace)["spec"]["resources"] == {"cpu": quantity}


def test_null_resource_is_dropped_without_a_word(kube_apiserver: KubeApiserver, namespace: str) -> None:
    create(kube_apiserver, capacity_request(namespace, resources={"cpu": None}))

    assert stored(kube_apiserver, namespace)["spec"]["resources"] == {}


@rule("crds.CRD-8")
@pytest.mark.parametrize("phase", ["Shortfall", ""])
def test_unknown_phase_is_refused_with_the_known_ones(
    kube_apiserver: KubeApiserver, namespace: str, phase: str
) -> None:
    create(kube_apiserver, capacity_request(namespace))

    with refused(f'status.phase: Unsupported value: "{phase}": supported values: "Pending", "Acknowledged"'):
        stamp(kube_apiserver, namespace, "request", {"phase": phase})


@rule("crds.CRD-9")
def test_status_in_a_create_body_is_dropped(kube_apiserver: KubeApiserver, namespace: str) -> None:
    create(kube_apiserver, {**capacity_request(namespace), "status": {"phase": "Acknowledged"}})

    assert "status" not in stored(kube_apiserver, namespace)


@rule("crds.CRD-10")
def test_status_without_a_phase_is_refused(kube_apiserver: KubeApiserver, namespace: str) -> None:
    create(kube_apiserver, capacity_request(namespace))

    with refused("status.phase: Required value"):
        stamp(kube_apiserver, namespace, "request", {"acknowledgedAt": "2026-06-24T10:00:00Z"})


@rule("crds.CRD-11", "ruling.R9")
@pytest.mark.parametrize("operator", ["Gt", "Lt", "Same", "in", ""])
def test_requirement_with_an_operator_we_cannot_translate_is_refused(
    kube_apiserver: KubeApiserver, namespace: str, operator: str
) -> None:
    requirement = {"key": "cpus", "operator": operator, "values": ["8"]}

    with refused(f'operator: Unsupported value: "{operator}": supported values: "In", "NotIn", "Exists"'):
        create(kube_apiserver, capacity_request(namespace, requirements=[requirement]))


@rule("ruling.R9")
def test_operators_elsewhere_are_not_restricted(kube_apiserver: KubeApiserver, namespace: str) -> None:
    expression = {"key": "job", "operator": "Gt", "values": ["8"]}
    selector = {"topologyKey": "example.com/rack", "labelSelector": {"matchExpressions": [expression]}}

    create(kube_apiserver, capacity_request(namespace, coLocation=selector))
    create(kube_apiserver, available_capacity(namespace, requirements=[{"key": "rack", "operator": "Same"}]))

    assert stored(kube_apiserver, namespace)["spec"]["coLocation"] == selector


@rule("crds.CRD-12")
@pytest.mark.parametrize("field", ["availability", "availableCount", "cost", "resources"])
def test_available_capacity_without_a_required_field_is_refused_by_its_name(
    kube_apiserver: KubeApiserver, namespace: str, field: str
) -> None:
    incomplete = available_capacity(namespace)
    del incomplete["spec"][field]

    with refused(f"spec.{field}: Required value"):
        create(kube_apiserver, incomplete)


@rule("crds.CRD-13")
def test_available_capacity_is_shown_without_its_age(kube_apiserver: KubeApiserver, namespace: str) -> None:
    create(kube_apiserver, available_capacity(namespace, availableCount=14, cost="3.06"))

    (row,) = rows(kube_apiserver.kubectl("get", "avc", namespace))

    assert row == {"NAME": namespace, "AVAILABILITY": "High", "AVAILABLE": "14", "COST": "3.06"}


@rule("crds.CRD-14")
def test_upcoming_node_takes_its_phases_and_no_others(kube_apiserver: KubeApiserver, namespace: str) -> None:
    create(kube_apiserver, upcoming_node(namespace))

    for phase in ("Provisioning", "Launched", "Registered", "Ready", "Draining", "Drained", "Failed"):
        set_status(kube_apiserver, f"upn/{namespace}", {"phase": phase})
    with refused('status.phase: Unsupported value: "Deleting"'):
        set_status(kube_apiserver, f"upn/{namespace}", {"phase": "Deleting"})


@rule("crds.CRD-15")
def test_unknown_field_is_pruned(kube_apiserver: KubeApiserver, namespace: str) -> None:
    unknown = upcoming_node(namespace, machineId="m-0421")

    # kubectl by itself asks the server to refuse unknown fields; other clients do not.
    create(kube_apiserver, unknown, "--validate=ignore")

    assert kube_apiserver.get("upn", namespace)["spec"] == {"resources": {}}


@rule("crds.CRD-16")
def test_request_goes_with_the_pod_that_owns_it(
    kube_control_plane: KubeControlPlane, plane_namespace: str
) -> None:
    plane, here = kube_control_plane, f"--namespace={plane_namespace}"
    plane.kubectl("run", "owner", "--image=unused", here)
    uid = plane.get("pod", "owner", here)["metadata"]["uid"]
    owned = capacity_request(plane_namespace, "owned")
    owned["metadata"]["ownerReferences"] = [
        {"apiVersion": "v1", "kind": "Pod", "name": "owner", "uid": uid, "controller": True}
    ]
    create(plane, owned)
    create(plane, capacity_request(plane_namespace, "free"))

    plane.kubectl("delete", "pod", "owner", here)

    def remaining() -> list[str]:
        return [item["metadata"]["name"] for item in plane.get("cr", here)["items"]]

    wait_until(lambda: "owned" not in remaining(), 60, "the garbage collector to delete the request")
    assert remaining() == ["free"]


def test_example_of_a_request_applies_as_printed(kube_apiserver: KubeApiserver) -> None:
    kube_apiserver.kubectl("create", "namespace", "ml")

    kube_apiserver.kubectl("apply", f"--filename={EXAMPLES / 'capacityrequest.yaml'}")

    written = yaml.safe_load((EXAMPLES / "capacityrequest.yaml").read_text())
    kept = kube_apiserver.get("cr", "cr-pod-trainer-0-gos11", "--namespace=ml")
    assert kept["spec"] == written["spec"]
    assert kept["metadata"]["ownerReferences"] == written["metadata"]["ownerReferences"]


def test_example_of_available_capacity_applies_as_printed(kube_apiserver: KubeApiserver) -> None:
    kube_apiserver.kubectl("apply", f"--filename={EXAMPLES / 'availablecapacity.yaml'}")

    (row,) = rows(kube_apiserver.kubectl("get", "avc", "ac-0123456789abcdef0123456789abcdef"))
    assert (row["AVAILABILITY"], row["AVAILABLE"], row["COST"]) == ("Medium", "14", "3.06")


def test_example_of_an_upcoming_node_applies_without_its_status(kube_apiserver: KubeApiserver) -> None:
    kube_apiserver.kubectl("apply", f"--filename={EXAMPLES / 'upcomingnode.yaml'}")
    (before,) = rows(kube_apiserver.kubectl("get", "upn", "un-m-0421", "--namespace=fleet-system"))

    set_status(kube_apiserver, "upn/un-m-0421", {"phase": "Registered", "nodeRef": {"name": "node-7"}})

    (after,) = rows(kube_apiserver.kubectl("get", "upn", "un-m-0421"))
    assert list(after) == ["NAME", "PHASE", "NODE", "AGE"]
    assert (before["PHASE"], before["NODE"]) == ("", "")
    assert (after["PHASE"], after["NODE"]) == ("Registered", "node-7")


def stored(server: KubeApiserver, namespace: str) -> dict[str, Any]:
    """The test's only request, as the server keeps it."""
    found: dict[str, Any] = server.get("cr", "request", f"--namespace={namespace}")
    return found


def stamp(server: KubeApiserver, namespace: str, name: str, status: dict[str, str]) -> None:
    set_status(server, f"cr/{name}", status, f"--namespace={namespace}")
