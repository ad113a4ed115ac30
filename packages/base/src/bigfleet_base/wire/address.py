"""Addresses to listen on and to dial, and the rule that plaintext stays on this machine (deploy.D-20)."""

import ipaddress
import re
from dataclasses import dataclass

from bigfleet_base.wire.transport_errors import AddressError, PlaintextRefusedError

_UNIX_SCHEMES = ("unix:", "unix-abstract:")
_HOST_PORT = re.compile(r"(?:\[(?P<bracketed>[^\[\]]+)\]|(?P<plain>[^\[\]:/]*)):(?P<port>[0-9]{1,5})")


@dataclass(frozen=True, slots=True)
class Address:
    """An address checked once: how gRPC wants it written, and whether it can leave this machine."""

    target: str
    local: bool


def parse_address(text: str) -> Address:
    """Read ``host:port``, ``[ipv6]:port``, ``:port`` (all interfaces), ``unix:PATH``, ``unix-abstract:NAME``.

    gRPC itself is no judge: it takes a missing port for 443, cuts 99999 down to 34463, and refuses ``:port``.
    """
    if text.startswith(_UNIX_SCHEMES) and text.partition(":")[2].strip("/"):
        return Address(target=text, local=True)
    match = None if text.startswith(_UNIX_SCHEMES) else _HOST_PORT.fullmatch(text)
    if match is None or int(match["port"]) > 65_535:
        raise AddressError(
            f"address {text!r} is not usable; write host:port, [ipv6]:port, :port for all interfaces,"
            " or unix:PATH"
        )
    host = match["bracketed"] or match["plain"]
    if not host:
        return Address(target=f"[::]:{match['port']}", local=False)
    return Address(target=text, local=_is_loopback(host))


def parse_http_address(text: str) -> Address:
    """Read ``host:port``, ``[ipv6]:port`` or ``:port``: scrapers and probes dial no Unix socket."""
    if text.startswith(_UNIX_SCHEMES):
        raise AddressError(
            f"address {text!r} is not usable; plain HTTP is served on host:port, [ipv6]:port, or :port for"
            " all interfaces"
        )
    return parse_address(text)


def parse_peer_address(text: str) -> Address:
    """Read an address to dial: as ``parse_address``, but nobody listens on port 0."""
    address = parse_address(text)
    if not text.startswith(_UNIX_SCHEMES) and int(text.rpartition(":")[2]) == 0:
        raise AddressError(f"address {text!r} is not usable; give the port that the other side listens on")
    return address


def bound_address(text: str, port: int) -> str:
    """The address with the port that was given for it, which 0 leaves open."""
    return text if text.startswith(_UNIX_SCHEMES) else f"{text.rpartition(':')[0]}:{port}"


def require_local_or_insecure(address: Address, *, insecure: bool) -> None:
    """Refuse plaintext that can leave this machine unless it was asked for explicitly (deploy.D-20)."""
    if address.local or insecure:
        return
    raise PlaintextRefusedError(
        f"plaintext on {address.target} is refused: whoever reaches that network could read and command the"
        " fleet. Give --tls-cert, --tls-key and --tls-ca, or use a loopback address such as 127.0.0.1, or"
        " accept the risk with --insecure (chart value insecure: true)"
    )


def _is_loopback(host: str) -> bool:
    # Names are not resolved: the answer may be another one when the connection is made.
    if host.lower() == "localhost":
        return True
    try:
        ip = ipaddress.ip_address(host)
    except ValueError:
        return False
    # A mapped IPv4 address counts as what it reaches; Python before 3.13 does not say so itself.
    mapped = ip.ipv4_mapped if isinstance(ip, ipaddress.IPv6Address) else None
    return (mapped or ip).is_loopback
