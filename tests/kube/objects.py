"""Objects of the three kinds, and the ways the tests write and read them."""

import json
from collections.abc import Mapping
from typing import Any

import pytest

from tests.support.parts import KubeApiserver, KubectlError

API_VERSION = "bigfleet.lucy.sh/v1alpha1"


def capacity_request(namespace: str, name: str = "request", **spec: Any) -> dict[str, Any]:
    """The smallest CapacityRequest, with fields of its spec added or replaced."""
    smallest = {"priority": 0, "resources": {"cpu": "1"}}
    return _object("CapacityRequest", {"name": name, "namespace": namespace}, {**smallest, **spec})


def available_capacity(name: str, **spec: Any) -> dict[str, Any]:
    smallest = {"availability": "High", "availableCount": 3, "cost": "0", "resources": {}}
    return _object("AvailableCapacity", {"name": name}, {**smallest, **spec})


def upcoming_node(name: str, **spec: Any) -> dict[str, Any]:
    return _object("UpcomingNode", {"name": name}, {"resources": {}, **spec})


def create(server: KubeApiserver, manifest: Mapping[str, Any], *flags: str) -> None:
    server.kubectl("create", "--filename=-", *flags, stdin=manifest)


def patch(server: KubeApiserver, reference: str, changes: Mapping[str, Any], *flags: str) -> None:
    """Merge changes into an object given as resource/name."""
    server.kubectl("patch", reference, "--type=merge", f"--patch={json.dumps(changes)}", *flags)


def set_status(server: KubeApiserver, reference: str, status: Mapping[str, Any], *flags: str) -> None:
    patch(server, reference, {"status": status}, "--subresource=status", *flags)


def refused(reason: str) -> pytest.RaisesExc[KubectlError]:
    """Expect the server's 422, which kubectl shows as "is invalid", with a reason the reader can act on."""
    return pytest.raises(KubectlError, match=rf"is invalid:(.|\n)*{reason}")


def rows(table: str) -> list[dict[str, str]]:
    """What kubectl printed as columns; a blank cell is an empty text."""
    header, *lines = table.splitlines()
    names = header.split()
    starts = [*(header.index(name) for name in names), None]
    return [
        {name: line[start:end].strip() for name, start, end in zip(names, starts, starts[1:], strict=False)}
        for line in lines
    ]


def _object(kind: str, metadata: dict[str, str], spec: dict[str, Any]) -> dict[str, Any]:
    return {"apiVersion": API_VERSION, "kind": kind, "metadata": metadata, "spec": spec}
