"""The providers of a shard, as ``--provider-addr`` names them (ruling R22)."""

import re
from dataclasses import dataclass
from typing import Final

from bigfleet_base.wire import TransportError, parse_address

DEFAULT_NAME: Final = "default"


class EndpointError(TransportError):
    """A provider that is named wrongly, or twice."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One provider: the name that the shard knows it by, and where it is."""

    name: str
    address: str


def parse_endpoints(text: str) -> tuple[Endpoint, ...]:
    """Read ``[name=]host:port,…``, in order; the order decides who holds an id that two have (shard.md Q12).

    An empty text names no provider.
    """
    endpoints = tuple(_parse(part.strip()) for part in text.split(",")) if text.strip() else ()
    names = [endpoint.name for endpoint in endpoints]
    for name in names:
        if names.count(name) > 1:
            raise EndpointError(
                f"--provider-addr {text!r}: two providers are called {name!r};"
                " give each a name of its own: one=host:port,other=host:port"
            )
    return endpoints


def _parse(part: str) -> Endpoint:
    name, equals, address = part.partition("=")
    # A path of a Unix socket may have an equals sign of its own.
    if not equals or ":" in name:
        name, address = DEFAULT_NAME, part
    if not _NAME.fullmatch(name):
        raise EndpointError(
            f"--provider-addr: {name!r} in {part!r} is no name for a provider;"
            " use 1 to 32 of the characters a-z, 0-9 and -"
        )
    parse_address(address)
    return Endpoint(name, address)


_NAME: Final = re.compile(r"[a-z0-9-]{1,32}")
