"""What ``--provider-addr`` may say."""

import pytest

from bigfleet.shard.provider.endpoints import Endpoint, parse_endpoints
from bigfleet_base.wire import TransportError
from tests.support.rules import rule


@rule("ruling.R22")
@pytest.mark.parametrize(
    ("text", "endpoints"),
    [
        ("", ()),
        ("  ", ()),
        ("host:9000", (Endpoint("default", "host:9000"),)),
        ("aws-1=host:9000", (Endpoint("aws-1", "host:9000"),)),
        ("b=h:1, a=h:2", (Endpoint("b", "h:1"), Endpoint("a", "h:2"))),
        ("host:1,metal=[::1]:2", (Endpoint("default", "host:1"), Endpoint("metal", "[::1]:2"))),
        ("unix:/run/a=b.sock", (Endpoint("default", "unix:/run/a=b.sock"),)),
        ("p=unix:/run/a=b.sock", (Endpoint("p", "unix:/run/a=b.sock"),)),
        ("x" * 32 + "=h:1", (Endpoint("x" * 32, "h:1"),)),
    ],
)
def test_providers_are_read_in_order_with_their_names(text: str, endpoints: tuple[Endpoint, ...]) -> None:
    assert parse_endpoints(text) == endpoints


@rule("ruling.R22")
@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("h:1,h:2", "two providers are called 'default'.*give each a name"),
        ("a=h:1,a=h:2", "two providers are called 'a'"),
        ("A=h:1", "'A' in 'A=h:1' is no name"),
        ("=h:1", "'' in '=h:1' is no name"),
        ("x" * 33 + "=h:1", "is no name.*1 to 32"),
        ("a_b=h:1", "is no name"),
        ("a=h", "address 'h' is not usable"),
        ("h:1,", "address '' is not usable"),
        ("a=h:99999", "address 'h:99999' is not usable"),
    ],
)
def test_a_mistake_is_named_with_the_way_out(text: str, complaint: str) -> None:
    with pytest.raises(TransportError, match=complaint):
        parse_endpoints(text)
