"""The contract: protobuf sources with their generated stubs, and the CRDs of a managed cluster.

Stubs are imported by module (``from bigfleet_base.api.v1alpha1 import shard_pb2, shard_pb2_grpc``). They are
written by ``make generate`` from ``proto/`` and never edited.
"""

from pathlib import Path

__all__ = ["crd_paths"]


def crd_paths() -> tuple[Path, ...]:
    """The CRD manifests, one file per kind, sorted by name."""
    return tuple(sorted(Path(__file__).with_name("crds").glob("*.yaml")))
