"""Everything here runs against the real parts that `make tools` builds, and is marked so."""

import itertools
from pathlib import Path

import pytest

from tests.support.parts import KubeApiserver, KubeControlPlane

HERE = Path(__file__).parent

_numbers = itertools.count(1)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.kube)


@pytest.fixture
def namespace(kube_apiserver: KubeApiserver) -> str:
    """A namespace of the shared API server for one test alone."""
    name = f"test-{next(_numbers)}"
    kube_apiserver.kubectl("create", "namespace", name)
    return name


@pytest.fixture
def plane_namespace(kube_control_plane: KubeControlPlane) -> str:
    """A namespace of the shared control plane for one test alone, ready for pods."""
    name = f"test-{next(_numbers)}"
    kube_control_plane.create_namespace(name)
    return name
