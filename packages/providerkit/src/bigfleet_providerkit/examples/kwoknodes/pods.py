"""The pods of a Node that is to leave its cluster (provider.md §10)."""

import asyncio
import contextlib
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

from bigfleet_providerkit.errors import Retryable
from bigfleet_providerkit.examples.kwoknodes.api import Api

_POLL_S: Final = 0.5
_MIRROR: Final = "kubernetes.io/config.mirror"


async def empty_node(api: Api, node: str, grace_seconds: float) -> None:
    """Evict, for as long as the grace lasts; then kill whatever is left (P-110 to P-112)."""
    end = time.monotonic() + grace_seconds
    while (left := end - time.monotonic()) > 0:
        waiting = [pod for pod in await _pods(api, node) if _is_waited_for(pod)]
        if not waiting:
            break
        await asyncio.gather(*(_evict(api, pod) for pod in waiting if not _is_ending(pod)))
        await asyncio.sleep(min(_POLL_S, left))
    # Without a kubelet nobody would ever end them.
    for pod in await _pods(api, node):
        meta = pod["metadata"]
        await api.delete(_path(meta), gracePeriodSeconds=0, preconditions={"uid": meta["uid"]})


async def _pods(api: Api, node: str) -> Sequence[Mapping[str, Any]]:
    listed = await api.get("/api/v1/pods", fieldSelector=f"spec.nodeName={node}")
    pods: Sequence[Mapping[str, Any]] = listed["items"] if listed else ()
    return pods


def _is_waited_for(pod: Mapping[str, Any]) -> bool:
    """Not those that belong to the Node itself, nor those that have ended."""
    meta = pod["metadata"]
    owners = meta.get("ownerReferences", ())
    is_daemon = any(owner.get("controller") and owner["kind"] == "DaemonSet" for owner in owners)
    is_over = pod.get("status", {}).get("phase") in ("Succeeded", "Failed")
    return not (is_daemon or is_over or _MIRROR in meta.get("annotations", {}))


def _is_ending(pod: Mapping[str, Any]) -> bool:
    return "deletionTimestamp" in pod["metadata"]


async def _evict(api: Api, pod: Mapping[str, Any]) -> None:
    meta = pod["metadata"]
    eviction = {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": meta["name"], "namespace": meta["namespace"]},
        # By its uid: a successor of the same name may run elsewhere.
        "deleteOptions": {"preconditions": {"uid": meta["uid"]}},
    }
    # A disruption budget says no for now (429), and the server may be unwell: both are asked again.
    with contextlib.suppress(Retryable):
        await api.create(f"{_path(meta)}/eviction", eviction)


def _path(meta: Mapping[str, Any]) -> str:
    return f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}"
