"""How BigFleet processes listen and dial: gRPC options, mutual TLS or local plaintext, rotation.

Every server and every channel of the product is made here, so a limit or a refusal cannot be forgotten.
"""

import asyncio
from collections.abc import Sequence
from typing import TypeAlias

from grpc import aio

from bigfleet_base.wire.address import parse_address, require_local_or_insecure
from bigfleet_base.wire.tls import Leaf, TlsCredentials
from bigfleet_base.wire.tls13 import Tls13Only
from bigfleet_base.wire.transport_errors import AddressError

# wire.md §1: with the library's 4 MiB a large roll-up ends its session, is sent again, and loops for ever.
MAX_MESSAGE_BYTES = 256 << 20
# The one exception: what a provider receives is bounded by its own caps (provider.md §5).
PROVIDER_RECEIVE_BYTES = 16 << 20

KEEPALIVE_TIME_S = 30.0
KEEPALIVE_TIMEOUT_S = 10.0

# Above about 1,000 waiting calls gRPC starts to cancel them. A shard may know 10,000 clusters (shard.S10),
# and after a restart all of them call at once, some twice.
_MAX_PENDING_CALLS = 20_000
_MAX_WAIT_FOR_ACCEPT_S = 300

# Clients may ping every 10 s (shard.S9). Arrivals jitter around the interval and three early ones in an
# idle stretch end the connection, so the limit stands a second below.
_MIN_CLIENT_PING_MS = 9_000

# The text of a status is metadata, of which gRPC takes 8 KiB, or 16 if one is lucky: a peer that sends a
# stack trace along would be heard to say RESOURCE_EXHAUSTED, whatever its status is.
_MAX_STATUS_BYTES = 1 << 20

# Left alone, the pause before a channel's next attempt grows to two minutes, and a peer that has come back
# would be called much later than the callers' own retries allow.
_MAX_RECONNECT_PAUSE_MS = 10_000

# Longer than the longest call on a lasting channel, a List of two minutes (provider.md §16).
_RETIRE_GRACE_S = 150.0
_MAX_RETIRING = 4

Options: TypeAlias = list[tuple[str, int]]


def server_options(*, receive_bytes: int = MAX_MESSAGE_BYTES) -> Options:
    """What every BigFleet server asks of gRPC."""
    return [
        ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
        ("grpc.max_receive_message_length", receive_bytes),
        *_keepalive(KEEPALIVE_TIME_S, KEEPALIVE_TIMEOUT_S),
        # Both ways: ping clients between their calls, and let them do the same.
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.min_ping_interval_without_data_ms", _MIN_CLIENT_PING_MS),
        # A call that is not accepted in time is cancelled, after 30 s by default: less than a reconnect storm
        # may take on a busy machine, and each cancelled stream comes back and makes it longer.
        ("grpc.server_max_unrequested_time_in_server", _MAX_WAIT_FOR_ACCEPT_S),
        ("grpc.server.max_pending_requests", _MAX_PENDING_CALLS),
        ("grpc.server.max_pending_requests_hard_limit", _MAX_PENDING_CALLS),
        # Otherwise a second process on the same port starts happily and takes half of the connections.
        ("grpc.so_reuseport", 0),
    ]


def channel_options(
    *,
    local: bool = False,
    keepalive_time_s: float = KEEPALIVE_TIME_S,
    keepalive_timeout_s: float = KEEPALIVE_TIMEOUT_S,
) -> Options:
    """What every BigFleet client asks of gRPC; ``local`` is for a peer on this machine.

    Pings are sent during calls only: a peer with the default policy of gRPC for Go closes the connection of a
    client that pings without one.
    """
    return [
        ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
        ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
        *_keepalive(keepalive_time_s, keepalive_timeout_s),
        # By default a stream that sends nothing itself is pinged twice and then never again.
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.max_reconnect_backoff_ms", _MAX_RECONNECT_PAUSE_MS),
        ("grpc.max_metadata_size", _MAX_STATUS_BYTES),
        ("grpc.absolute_max_metadata_size", _MAX_STATUS_BYTES),
        # Left alone, gRPC calls even the loopback through the http_proxy of the environment: what is to stay
        # on this machine would leave it, and get lost.
        ("grpc.enable_http_proxy", int(not local)),
        # One channel, one connection: by default channels to the same address share one and its backoff.
        ("grpc.use_local_subchannel_pool", 1),
    ]


def listen(
    address: str,
    tls: TlsCredentials | None,
    *,
    insecure: bool = False,
    receive_bytes: int = MAX_MESSAGE_BYTES,
    interceptors: Sequence[aio.ServerInterceptor] = (),
) -> tuple[aio.Server, int]:
    """A server bound to an address, not yet started, and its port (1 for a Unix socket).

    ``insecure`` allows plaintext beyond this machine; it does not switch TLS off.
    """
    parsed = parse_address(address)
    if tls is None:
        require_local_or_insecure(parsed, insecure=insecure)
    else:
        interceptors = (Tls13Only(), *interceptors)
    server = aio.server(interceptors=interceptors, options=server_options(receive_bytes=receive_bytes))
    try:
        if tls is None:
            port = server.add_insecure_port(parsed.target)
        else:
            port = server.add_secure_port(parsed.target, tls.server_credentials())
    except RuntimeError as error:
        raise AddressError(
            f"cannot listen on {address}: the port is taken, the host is not of this machine, the socket path"
            " cannot be created, or the certificate's kind of key is not supported; gRPC has written the"
            " reason to standard error"
        ) from error
    return server, port


def dial(
    address: str,
    tls: TlsCredentials | None,
    *,
    insecure: bool = False,
    keepalive_time_s: float = KEEPALIVE_TIME_S,
    keepalive_timeout_s: float = KEEPALIVE_TIMEOUT_S,
) -> aio.Channel:
    """A channel that presents the newest leaf; with TLS the server must prove the dialled host name.

    Whoever dials anew for every connection needs no more than this; ``LastingChannel`` is for the others.
    """
    parsed = parse_address(address)
    options = channel_options(
        local=parsed.local, keepalive_time_s=keepalive_time_s, keepalive_timeout_s=keepalive_timeout_s
    )
    if tls is None:
        require_local_or_insecure(parsed, insecure=insecure)
        return aio.insecure_channel(parsed.target, options=options)
    return aio.secure_channel(parsed.target, tls.channel_credentials(), options=options)


class LastingChannel:
    """A channel to one peer for many calls, replaced when the leaf on disk has changed (deploy.D-18).

    Calls under way end on the channel they began on.
    """

    def __init__(self, address: str, tls: TlsCredentials | None, *, insecure: bool = False) -> None:
        self._address = address
        self._tls = tls
        self._insecure = insecure
        self._retiring: dict[asyncio.Task[None], aio.Channel] = {}
        self._leaf, self._channel = self._open()

    def current(self) -> aio.Channel:
        """The channel for the next call. Ask each time; it is the same object until a rotation."""
        # Files that change without end must not pile up channels: the next rotation waits for a free place.
        if self._tls and self._tls.leaf() is not self._leaf and len(self._retiring) < _MAX_RETIRING:
            retired = asyncio.get_running_loop().create_task(_retire(self._channel))
            self._retiring[retired] = self._channel
            retired.add_done_callback(self._retiring.pop)
            self._leaf, self._channel = self._open()
        return self._channel

    async def close(self) -> None:
        """End the channel and every call on it, also on those that are retiring."""
        channels = [self._channel, *self._retiring.values()]
        for task in self._retiring:
            task.cancel()
        for channel in channels:
            await channel.close()

    def _open(self) -> tuple[Leaf | None, aio.Channel]:
        # The leaf is noted first: if it changes in between, the next call dials once more than needed.
        leaf = self._tls.leaf() if self._tls else None
        return leaf, dial(self._address, self._tls, insecure=self._insecure)


async def _retire(channel: aio.Channel) -> None:
    # Not close(grace): cancelled, it would have ended neither the calls nor the channel, and a second close
    # does nothing.
    await asyncio.sleep(_RETIRE_GRACE_S)
    await channel.close()


def _keepalive(time_s: float, timeout_s: float) -> Options:
    return [
        ("grpc.keepalive_time_ms", round(time_s * 1_000)),
        # Two names for one wait. The first is the documented one; with the release we lock, an unanswered
        # ping ends the connection by the second alone, which is a minute when left out.
        ("grpc.keepalive_timeout_ms", round(timeout_s * 1_000)),
        ("grpc.http2.ping_timeout_ms", round(timeout_s * 1_000)),
    ]
