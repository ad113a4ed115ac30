"""What is known of a provider, and what follows."""

import pytest

from bigfleet.shard.provider import Capabilities
from bigfleet_base.model import CapacityType
from tests.support.rules import rule


@rule("provider.P-142")
def test_delete_is_assumed_until_the_provider_says_or_shows_otherwise() -> None:
    silent = Capabilities()
    assert silent.can_delete(CapacityType.SPOT)
    silent.undeletable.add(CapacityType.SPOT)
    assert not silent.can_delete(CapacityType.SPOT) and silent.can_delete(CapacityType.ON_DEMAND)
    assert not Capabilities(delete=False).can_delete(CapacityType.ON_DEMAND)


@rule("provider.P-142")
@pytest.mark.parametrize(
    ("metadata", "blob", "excess"),
    [
        ({"a": "b"}, b"12345678", ""),
        ({"a": "", "b": "", "c": ""}, b"", "3 keys of metadata are more than the 2"),
        ({"é": "12345678"}, b"", ""),
        ({"é": "123456789"}, b"", "11 bytes of metadata are more than the 10"),
        ({}, b"123456789", "9 bytes of bootstrap blob are more than the 8"),
    ],
)
def test_a_request_is_measured_against_the_caps(metadata: dict[str, str], blob: bytes, excess: str) -> None:
    caps = Capabilities(max_metadata_keys=2, max_metadata_bytes=10, max_blob_bytes=8)
    found = caps.excess(metadata, blob)
    assert found.startswith(excess) and bool(found) == bool(excess)
    assert Capabilities().excess(metadata, blob) == ""
