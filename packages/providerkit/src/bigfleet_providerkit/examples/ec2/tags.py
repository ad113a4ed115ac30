"""What is written on an instance, so that the provider can find it again and knows whom it serves.

EC2 allows 50 tags of 256 characters, in few of which metadata can be written as it is: it goes compressed, as
base64, into as many tags as it needs. Larger metadata is in the provider's store alone.
"""

import base64
import json
import zlib
from collections.abc import Iterable, Mapping
from typing import Any, Final

from bigfleet_providerkit.backend import UNBOUND, Binding

PROVIDER: Final = "bigfleet.lucy.sh/provider"
MACHINE: Final = "bigfleet.lucy.sh/machine"
CAPACITY: Final = "bigfleet.lucy.sh/capacity"
OPERATION: Final = "bigfleet.lucy.sh/operation"
"""The Create that launched the instance."""
CLUSTER: Final = "bigfleet.lucy.sh/cluster"
"""Empty on an instance that serves nobody; where the tag is missing, nobody knows."""
BINDING: Final = "bigfleet.lucy.sh/binding"
"""The Configure that bound the instance."""
READY: Final = "bigfleet.lucy.sh/ready"
"""The Configure whose node is Ready; written by the instance itself."""
REPLACES: Final = "bigfleet.lucy.sh/replaces"
"""On a root volume: the one whose place it takes."""
_METADATA: Final = "bigfleet.lucy.sh/metadata-"
_MAX_CHUNKS: Final = 32
_CHUNK: Final = 256


def binding_tags(cluster: str, operation_id: str, metadata: Mapping[str, str]) -> dict[str, str]:
    """The tags of an instance that a Configure is about to bind."""
    packed = base64.b64encode(zlib.compress(json.dumps(dict(metadata)).encode())).decode()
    chunks = [packed[start : start + _CHUNK] for start in range(0, len(packed), _CHUNK)]
    kept = chunks if len(chunks) <= _MAX_CHUNKS else []
    return {
        CLUSTER: cluster,
        BINDING: operation_id,
        **{f"{_METADATA}{place}": chunk for place, chunk in enumerate(kept)},
    }


def passing_tags(tags: Iterable[str]) -> list[str]:
    """Those that go when the binding ends."""
    return [key for key in tags if key in (BINDING, READY) or key.startswith(_METADATA)]


def read_binding(tags: Mapping[str, str]) -> Binding | None:
    """Whom an instance serves; None while that is being changed, and wherever it cannot be told (P-124)."""
    if (cluster := tags.get(CLUSTER)) is None:
        return None
    if not cluster:
        return UNBOUND
    if not is_ready(tags):
        return None
    try:
        chunks = {int(key.removeprefix(_METADATA)): tags[key] for key in tags if key.startswith(_METADATA)}
        packed = "".join(chunks[place] for place in sorted(chunks))
        metadata = json.loads(zlib.decompress(base64.b64decode(packed)))
    except (zlib.error, ValueError):
        return None
    return Binding(cluster, metadata) if isinstance(metadata, dict) else None


def is_ready(tags: Mapping[str, str]) -> bool:
    """Whether the instance has joined the cluster that it was last bound to."""
    return bool(tags.get(BINDING)) and tags.get(BINDING) == tags.get(READY)


def as_list(tags: Mapping[str, str]) -> list[dict[str, str]]:
    """Tags as EC2 takes them."""
    return [{"Key": key, "Value": value} for key, value in tags.items()]


def as_dict(tags: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """Tags as EC2 gives them."""
    return {tag["Key"]: tag["Value"] for tag in tags}
