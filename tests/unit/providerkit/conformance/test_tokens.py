"""Tokens: no run stands in the way of the next, with and without identities."""

import pytest

from bigfleet_base.wire.provider_calls import Token
from bigfleet_providerkit.conformance.checks import SkipFixture
from bigfleet_providerkit.conformance.tokens import ZERO, Tokens

IDS = ("s1", "s2", "s3", "s4", "s5")


def test_without_identities_every_shard_is_new_and_ordinary_calls_have_no_token() -> None:
    tokens = Tokens("run", (), 100)
    shards = [*tokens.shards(2), *tokens.shards(2), tokens.unknown_shard()]
    assert len({shard.id for shard in shards}) == 5
    assert shards[0].token(1, 2) == Token(shards[0].id, 1, 2) == shards[0].raw(1, 2)
    assert tokens.ordinary() == ZERO


def test_with_identities_tokens_rise_over_everything_used_before() -> None:
    tokens = Tokens("run", ("s1",), 100)
    first = tokens.ordinary()
    [shard] = tokens.shards(1)
    used = shard.token(7, 3)
    later = tokens.ordinary()
    [again] = tokens.shards(1)
    assert first.epoch < shard.token(0, 0).epoch < used.epoch < later.epoch < again.token(0, 0).epoch
    assert {first.shard_id, used.shard_id, later.shard_id} == {"s1"}


def test_more_shards_than_identities_are_a_missing_fixture() -> None:
    with pytest.raises(SkipFixture, match="needs 2 shard ids and 1 --shard-id"):
        Tokens("run", ("s1",), 100).shards(2)


def test_an_identity_that_nothing_else_uses_can_be_used_up() -> None:
    tokens = Tokens("run", IDS, 100)
    assert tokens.unknown_shard().id == "s5"
    assert [shard.id for shard in tokens.shards(4)] == ["s1", "s2", "s3", "s4"]
    with pytest.raises(SkipFixture, match="give more than 4"):
        tokens.unknown_shard()
