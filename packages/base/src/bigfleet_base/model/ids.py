"""The alphabet of cluster and shard ids (wire.md §1.2): it holds wherever one is taken from outside."""

import re
from typing import Final

ID_PATTERN: Final = r"[A-Za-z0-9._-]{1,253}"

_ID: Final = re.compile(ID_PATTERN)


def is_valid_id(text: str) -> bool:
    """Whether a cluster or shard id keeps to the alphabet."""
    return _ID.fullmatch(text) is not None
