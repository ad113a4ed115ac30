"""Starts the real parts that BigFleet works with: etcd, a Kubernetes API server, a whole control plane.

Every part is a context manager that takes the folder for its logs and data, returns when the part is healthy
and leaves no process behind, however the test process ends. All methods block; an asynchronous test calls
them through ``asyncio.to_thread`` (a part outlives the thread that started it). The pytest fixtures are in
``tests.support.fixtures``.
"""

from tests.support.parts.etcd import Etcd, EtcdCluster
from tests.support.parts.kubernetes import KubeApiserver, KubeControlPlane, KubectlError, kwok_node
from tests.support.parts.process import PartError, wait_until
from tests.support.parts.tools import MissingToolError

__all__ = [
    "Etcd",
    "EtcdCluster",
    "KubeApiserver",
    "KubeControlPlane",
    "KubectlError",
    "MissingToolError",
    "PartError",
    "kwok_node",
    "wait_until",
]
