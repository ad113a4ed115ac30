"""Installing our CRDs over those of the reference, which lack the enum of ruling R9."""

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from bigfleet_base.api import crd_paths
from tests.kube.objects import (
    available_capacity,
    capacity_request,
    create,
    patch,
    refused,
    set_status,
    upcoming_node,
)
from tests.support.parts import KubeApiserver
from tests.support.rules import rule

IN_DEFAULT = "--namespace=default"


@dataclass(frozen=True)
class Upgrade:
    """A server that had the reference's CRDs and objects, and now has ours; what it had and has."""

    server: KubeApiserver
    crds_before: dict[str, Any]
    crds_after: dict[str, Any]
    uids_before: set[str]
    uids_after: set[str]


@pytest.fixture(scope="module")
def upgrade(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Upgrade]:
    reference = [reference_crd(path, tmp_path_factory.mktemp("reference")) for path in crd_paths()]
    with KubeApiserver(tmp_path_factory.mktemp("upgrade")) as server:
        server.install_crds(reference)
        create(server, capacity_request("default", "plain"))
        for name in ("greater", "to-be-deleted"):
            create(server, capacity_request("default", name, requirements=[greater_than("8")]))
        set_status(server, "cr/greater", {"phase": "Pending"}, IN_DEFAULT)
        create(server, available_capacity("capacity", requirements=[{"key": "rack", "operator": "Same"}]))
        create(server, upcoming_node("node"))
        crds_before, uids_before = crds(server), uids(server)

        server.install_crds(crd_paths())

        yield Upgrade(server, crds_before, crds(server), uids_before, uids(server))


@rule("crds.CRD-17")
def test_no_object_is_lost_and_the_stored_version_stays(upgrade: Upgrade) -> None:
    assert len(upgrade.uids_before) == 5
    assert upgrade.uids_after == upgrade.uids_before
    for crd in upgrade.crds_after.values():
        assert crd["status"]["storedVersions"] == ["v1alpha1"]


@rule("crds.CRD-17", "ruling.R9")
def test_nothing_in_the_specification_changes_but_one_enum(upgrade: Upgrade) -> None:
    before = {name: crd["spec"] for name, crd in upgrade.crds_before.items()}
    after = {name: copy.deepcopy(crd["spec"]) for name, crd in upgrade.crds_after.items()}

    assert after != before
    assert operator_schema(after["capacityrequests.bigfleet.lucy.sh"]).pop("enum") == [
        "In",
        "NotIn",
        "Exists",
        "DoesNotExist",
    ]
    assert after == before


@rule("crds.CRD-11", "crds.CRD-17", "ruling.R9")
def test_stored_object_with_another_operator_stays_usable_while_its_requirements_stay(
    upgrade: Upgrade,
) -> None:
    server = upgrade.server

    assert server.get("cr/greater", IN_DEFAULT)["spec"]["requirements"] == [greater_than("8")]
    server.kubectl("label", "cr/greater", "team=search", IN_DEFAULT)
    patch(server, "cr/greater", {"spec": {"priority": 5, "resources": {"cpu": "2"}}}, IN_DEFAULT)
    set_status(server, "cr/greater", {"phase": "Acknowledged"}, IN_DEFAULT)
    with refused('operator: Unsupported value: "Gt"'):
        patch(server, "cr/greater", {"spec": {"requirements": [greater_than("16")]}}, IN_DEFAULT)

    kept = server.get("cr/greater", IN_DEFAULT)
    assert kept["metadata"]["labels"] == {"team": "search"}
    assert kept["spec"]["priority"] == 5
    assert kept["status"]["phase"] == "Acknowledged"


@rule("crds.CRD-11")
def test_stored_object_with_another_operator_can_be_deleted(upgrade: Upgrade) -> None:
    upgrade.server.kubectl("delete", "cr/to-be-deleted", IN_DEFAULT)

    remaining = {item["metadata"]["name"] for item in upgrade.server.get("cr", IN_DEFAULT)["items"]}
    assert remaining == {"plain", "greater"}


def test_server_side_apply_takes_the_crds_over(upgrade: Upgrade) -> None:
    for path in crd_paths():
        upgrade.server.kubectl(
            "apply", "--server-side", "--field-manager=bigfleet", "--force-conflicts", f"--filename={path}"
        )


def reference_crd(path: Path, folder: Path) -> Path:
    crd = yaml.safe_load(path.read_text())
    if crd["spec"]["names"]["kind"] == "CapacityRequest":
        del operator_schema(crd["spec"])["enum"]
    copied = folder / path.name
    copied.write_text(yaml.safe_dump(crd))
    return copied


def operator_schema(spec: dict[str, Any]) -> dict[str, Any]:
    request = spec["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]
    schema: dict[str, Any] = request["requirements"]["items"]["properties"]["operator"]
    return schema


def greater_than(number: str) -> dict[str, Any]:
    return {"key": "example.com/cpus", "operator": "Gt", "values": [number]}


def crds(server: KubeApiserver) -> dict[str, Any]:
    return {item["metadata"]["name"]: item for item in server.get("crds")["items"]}


def uids(server: KubeApiserver) -> set[str]:
    listed = server.get("capacityrequests,availablecapacities,upcomingnodes", "--all-namespaces")
    return {item["metadata"]["uid"] for item in listed["items"]}
