"""Texts of machines' sizes: usual ones are worked out once, long ones are never kept."""

from collections.abc import Callable

import pytest

from bigfleet_base.model import ResourceVector
from bigfleet_base.wire import quantities
from bigfleet_base.wire.quantities import decode_supply, encode_offer, encode_resources


@pytest.mark.parametrize(("length", "kept"), [(512, 1), (513, 0)])
@pytest.mark.parametrize("encode", [encode_resources, encode_offer])
def test_only_sizes_that_are_short_to_tell_are_kept(
    encode: Callable[[ResourceVector], dict[str, str]], length: int, kept: int
) -> None:
    quantities._cached_texts.cache_clear()
    vector = ResourceVector({"x" * length: 2_000})
    assert encode(vector) == encode(vector) == {"x" * length: "2"}
    assert quantities._cached_texts.cache_info().currsize == kept


@pytest.mark.parametrize(("length", "kept"), [(511, 1), (512, 0)])
def test_only_offers_that_are_short_to_tell_are_kept(length: int, kept: int) -> None:
    quantities._cached_supply.cache_clear()
    texts = {"x" * length: "2"}
    assert decode_supply(texts) == decode_supply(texts) == ResourceVector({"x" * length: 2_000})
    assert quantities._cached_supply.cache_info().currsize == kept


def test_what_is_told_may_be_changed_by_its_reader() -> None:
    encode_resources(ResourceVector({"cpu": 1_000}))["cpu"] = "changed"
    assert encode_resources(ResourceVector({"cpu": 1_000})) == {"cpu": "1"}
