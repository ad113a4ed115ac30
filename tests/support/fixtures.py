"""The real parts as pytest fixtures. A conftest that wants them imports them by name.

etcd starts in half a second, so every test gets its own and may break it. A control plane takes four
seconds and half a gigabyte, so one is shared by the whole run: a test works in a namespace of its own and
gives cluster-wide objects names of its own.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from bigfleet_base.api import crd_paths
from tests.support.parts import Etcd, EtcdCluster, KubeApiserver, KubeControlPlane

__all__ = ["etcd", "etcd_cluster", "kube_apiserver", "kube_control_plane"]


@pytest.fixture
def etcd(tmp_path: Path) -> Iterator[Etcd]:
    """One etcd server."""
    with Etcd(tmp_path) as server:
        yield server


@pytest.fixture
def etcd_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[int], EtcdCluster]]:
    """Starts an etcd cluster of a given size: ``cluster = etcd_cluster(3)``."""
    with ExitStack() as stack:
        yield lambda size: stack.enter_context(EtcdCluster(tmp_path_factory.mktemp("etcd"), size))


@pytest.fixture(scope="session")
def kube_apiserver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KubeApiserver]:
    """An API server with our CRDs, and no controllers."""
    with KubeApiserver(tmp_path_factory.mktemp("apiserver")) as server:
        server.install_crds(crd_paths())
        yield server


@pytest.fixture(scope="session")
def kube_control_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KubeControlPlane]:
    """A whole control plane with our CRDs."""
    with KubeControlPlane(tmp_path_factory.mktemp("control-plane"), crds=crd_paths()) as plane:
        yield plane
