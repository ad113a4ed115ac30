"""Addresses: what may be written, what gRPC is given, and what plaintext may reach."""

import pytest

from bigfleet_base.wire.address import (
    Address,
    parse_address,
    parse_http_address,
    parse_peer_address,
    require_local_or_insecure,
)
from bigfleet_base.wire.transport_errors import AddressError, PlaintextRefusedError
from tests.support.rules import rule

LOCAL = [
    "127.0.0.1:0",
    "127.0.0.1:7780",
    "127.9.8.7:1",
    "[::1]:0",
    "[::ffff:127.0.0.1]:80",
    "localhost:7780",
    "LocalHost:7780",
    "unix:/run/bigfleet.sock",
    "unix:///run/bigfleet.sock",
    "unix-abstract:bigfleet",
]

BEYOND_THIS_MACHINE = [
    ":8080",
    "0.0.0.0:8080",
    "[::]:8080",
    "[::ffff:0.0.0.0]:80",
    "10.0.0.7:7780",
    "[2001:db8::1]:7780",
    "[fe80::1%eth0]:7780",
    "bigfleet-shard-0.bigfleet-shard-headless.bigfleet.svc:7780",
    "localhost.example.com:7780",
    "xlocalhost:7780",
    "127.0.0.1.example.com:7780",
    # Forms that some resolvers take for 127.0.0.1: in doubt they are not local.
    "127.1:80",
    "2130706433:80",
    "0x7f000001:80",
    "127.0.0.01:80",
]

UNUSABLE = [
    "",
    ":",
    "localhost",
    "8080",
    "127.0.0.1",
    "127.0.0.1:",
    "127.0.0.1:65536",
    "127.0.0.1:99999",
    "127.0.0.1:-1",
    "127.0.0.1:http",
    "127.0.0.1:٣",
    "::1:80",
    "[]:80",
    "[::1]",
    "[::1]80",
    "http://localhost:80",
    "dns:///localhost:80",
    "localhost:80\n",
    "unix:",
    "unix://",
    "unix:///",
    "unix-abstract:",
]


@rule("deploy.D-20")
@pytest.mark.parametrize("text", LOCAL)
def test_plaintext_on_this_machine_needs_no_permission(text: str) -> None:
    address = parse_address(text)
    assert address == Address(target=text, local=True)
    require_local_or_insecure(address, insecure=False)


@rule("deploy.D-20")
@pytest.mark.parametrize("text", BEYOND_THIS_MACHINE)
def test_plaintext_beyond_this_machine_is_refused_unless_asked_for(text: str) -> None:
    address = parse_address(text)
    with pytest.raises(PlaintextRefusedError, match=r"--tls-cert.*127\.0\.0\.1.*--insecure"):
        require_local_or_insecure(address, insecure=False)
    require_local_or_insecure(address, insecure=True)


@pytest.mark.parametrize("text", UNUSABLE)
def test_an_address_that_grpc_would_misread_is_refused(text: str) -> None:
    with pytest.raises(AddressError, match="host:port"):
        parse_address(text)


def test_a_port_alone_means_all_interfaces_of_both_families() -> None:
    assert parse_address(":9000").target == "[::]:9000"


def test_plain_http_is_not_served_on_a_unix_socket() -> None:
    assert parse_http_address("unixhost:80") == parse_address("unixhost:80")
    for text in ("unix:/run/web", "unix-abstract:web", "nowhere"):
        with pytest.raises(AddressError, match="is not usable"):
            parse_http_address(text)


def test_nobody_listens_on_port_0() -> None:
    for text in ("127.0.0.1:9000", "unix:0", "unix-abstract:x:0", ":1"):
        assert parse_peer_address(text) == parse_address(text)
    for text in ("127.0.0.1:0", "[::1]:00000", ":0"):
        with pytest.raises(AddressError, match="give the port that the other side listens on"):
            parse_peer_address(text)
