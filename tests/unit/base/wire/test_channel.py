"""Servers and channels as every process makes them: limits, keepalive, storms, refusals."""

import asyncio
import time
from contextlib import suppress
from pathlib import Path

import pytest
from grpc import StatusCode, aio

from bigfleet_base.wire.channel import (
    KEEPALIVE_TIME_S,
    KEEPALIVE_TIMEOUT_S,
    MAX_MESSAGE_BYTES,
    PROVIDER_RECEIVE_BYTES,
    LastingChannel,
    channel_options,
    dial,
    listen,
    server_options,
)
from bigfleet_base.wire.tls import TlsCredentials
from bigfleet_base.wire.transport_errors import AddressError, PlaintextRefusedError
from tests.support.ca import CertificateAuthority
from tests.support.eventually import eventually
from tests.support.rules import rule
from tests.unit.base.wire.echo import call, echo_server, exchange, handlers, session
from tests.unit.base.wire.relay import relay

MIB = 1 << 20


async def refusal(channel: aio.Channel, method: str, request: bytes) -> tuple[StatusCode, str]:
    with pytest.raises(aio.AioRpcError) as caught:
        await call(channel, method, request)
    return caught.value.code(), caught.value.details() or ""


async def test_twenty_mebibytes_pass_both_ways_and_the_stream_stays_up() -> None:
    async with echo_server(None) as port, dial(f"127.0.0.1:{port}", None) as channel:
        stream = session(channel)
        await exchange(stream, bytes(20 * MIB))
        await exchange(stream, b"still here")


async def test_a_message_beyond_256_mebibytes_is_refused_by_sender_and_receiver() -> None:
    assert MAX_MESSAGE_BYTES == 256 * MIB
    too_large = bytes(257 * MIB)
    async with echo_server(None) as port:
        async with dial(f"127.0.0.1:{port}", None) as channel:
            code, details = await refusal(channel, "size", too_large)
            assert code == StatusCode.RESOURCE_EXHAUSTED and "CLIENT: Sent message larger than max" in details
            code, details = await refusal(channel, "zeros", str(257 * MIB).encode())
            assert code == StatusCode.RESOURCE_EXHAUSTED and "SERVER: Sent message larger than max" in details
        boundless = aio.insecure_channel(f"127.0.0.1:{port}", options=[("grpc.max_send_message_length", -1)])
        async with boundless as channel:
            code, details = await refusal(channel, "size", too_large)
            assert code == StatusCode.RESOURCE_EXHAUSTED and "SERVER: Received message larger" in details
            assert await call(channel, "size", b"1") == b"1"


async def test_a_provider_receives_16_mebibytes_and_sends_more() -> None:
    async with (
        echo_server(None, receive_bytes=PROVIDER_RECEIVE_BYTES) as port,
        dial(f"127.0.0.1:{port}", None) as channel,
    ):
        assert int(await call(channel, "size", bytes(16 * MIB))) == 16 * MIB
        code, details = await refusal(channel, "size", bytes(16 * MIB + 1))
        assert code == StatusCode.RESOURCE_EXHAUSTED and "SERVER: Received message larger" in details
        assert len(await call(channel, "zeros", str(17 * MIB).encode())) == 17 * MIB


async def test_a_storm_of_reconnecting_sessions_is_served_to_the_last(full_size: bool) -> None:
    """gRPC drops calls at random when more than 1,000 wait to be accepted."""
    sessions = 10_000 if full_size else 1_500
    server, port = listen("127.0.0.1:0", None)
    server.add_generic_rpc_handlers((handlers(),))
    channels = [dial(f"127.0.0.1:{port}", None) for _ in range(20)]
    await server.start()
    try:
        await asyncio.gather(*(channel.channel_ready() for channel in channels))
        streams = [session(channels[n % len(channels)]) for n in range(sessions)]
        exchanges = asyncio.gather(*(exchange(stream) for stream in streams))
        await asyncio.sleep(0)
        # A busy loop accepts nobody, as in a process that has just started and has much to load.
        time.sleep(0.6)  # noqa: ASYNC251
        await exchanges
        for stream in streams:
            stream.cancel()
    finally:
        for channel in channels:
            await channel.close()
        await server.stop(None)


# The numbers of the specification in the nightly tier, a twentieth of them otherwise.
@pytest.fixture
def speed(full_size: bool) -> float:
    return 1 if full_size else 20


async def test_a_client_gives_up_a_connection_that_has_fallen_silent(speed: float) -> None:
    assert (KEEPALIVE_TIME_S, KEEPALIVE_TIMEOUT_S) == (30, 10)
    async with echo_server(None) as port, relay(port) as (wire, relayed):
        channel = dial(
            f"127.0.0.1:{relayed}",
            None,
            keepalive_time_s=KEEPALIVE_TIME_S / speed,
            keepalive_timeout_s=KEEPALIVE_TIMEOUT_S / speed,
        )
        async with channel:
            stream = session(channel)
            await exchange(stream)
            wire.silence()
            async with asyncio.timeout(45 / speed + 2):
                with pytest.raises(aio.AioRpcError) as lost:
                    await stream.read()
            assert lost.value.code() == StatusCode.UNAVAILABLE


@pytest.mark.parametrize("in_call", [True, False])
async def test_a_server_gives_up_a_connection_that_has_fallen_silent(speed: float, in_call: bool) -> None:
    server = aio.server(options=sped_up(server_options(), speed))
    server.add_generic_rpc_handlers((handlers(),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        async with relay(port) as (wire, relayed), dial(f"127.0.0.1:{relayed}", None) as channel:
            stream = session(channel)
            await exchange(stream)
            if not in_call:
                await stream.done_writing()
                assert await stream.code() == StatusCode.OK
            wire.silence()
            # The relay passes the end of a connection on, so the client learns of it from the server.
            async with asyncio.timeout(45 / speed + 2):
                await eventually(lambda: wire.open_connections == 0, seconds=60)
    finally:
        await server.stop(None)


async def test_a_client_may_ping_every_ten_seconds_in_a_call_and_without_one(full_size: bool) -> None:
    speed = 1 if full_size else 10
    options = dict(server_options())
    options["grpc.http2.min_ping_interval_without_data_ms"] //= speed
    server = aio.server(options=list(options.items()))
    server.add_generic_rpc_handlers((handlers(),))
    port = server.add_insecure_port("127.0.0.1:0")

    async def ping(*, in_call: bool) -> None:
        pings = [*channel_options(keepalive_time_s=10 / speed)]
        pings.append(("grpc.keepalive_permit_without_calls", int(not in_call)))
        async with (
            relay(port) as (wire, relayed),
            aio.insecure_channel(f"127.0.0.1:{relayed}", options=pings) as channel,
        ):
            stream = session(channel)
            await exchange(stream)
            if not in_call:
                await stream.done_writing()
                assert await stream.code() == StatusCode.OK
            # Six pings of 17 bytes: more than the library's own policies send or take.
            enough = wire.bytes_from_client + 6 * 17
            await eventually(lambda: wire.bytes_from_client >= enough, seconds=90 / speed)
            await call(channel, "unary_unary")
            if in_call:
                await exchange(stream)
            assert wire.connections == 1

    await server.start()
    try:
        await asyncio.gather(ping(in_call=True), ping(in_call=False))
    finally:
        await server.stop(None)


async def test_the_pause_between_attempts_to_connect_is_bounded() -> None:
    attempts = 0

    async def hang_up(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal attempts
        attempts += 1
        writer.transport.abort()

    options = dict(channel_options())
    options["grpc.max_reconnect_backoff_ms"] //= 100
    server = await asyncio.start_server(hang_up, "127.0.0.1", 0)
    address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with server, aio.insecure_channel(address, options=list(options.items())) as channel:
        ready = asyncio.create_task(channel.channel_ready())
        # With the library's pauses of 1, 1.6, 2.6 and 4.1 s the fifth would take more than 7 s.
        await eventually(lambda: attempts >= 5, seconds=4)
        ready.cancel()


async def test_each_channel_has_a_connection_of_its_own() -> None:
    async with echo_server(None) as port, relay(port) as (wire, relayed):
        async with dial(f"127.0.0.1:{relayed}", None) as one, dial(f"127.0.0.1:{relayed}", None) as other:
            await call(one, "unary_unary")
            await call(other, "unary_unary")
        assert wire.connections == 2


@rule("deploy.D-20")
@pytest.mark.parametrize("name", ["grpc_proxy", "https_proxy", "http_proxy"])
async def test_what_is_for_this_machine_goes_through_no_proxy(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    for exception in ("no_grpc_proxy", "no_proxy"):
        monkeypatch.delenv(exception, raising=False)
    async with echo_server(None) as port, relay(port) as (proxy, proxied):
        monkeypatch.setenv(name, f"http://127.0.0.1:{proxied}")
        for host in ("127.0.0.1", "localhost", "[::1]"):
            async with dial(f"{host}:{port}", None) as channel:
                with suppress(aio.AioRpcError):
                    await call(channel, "unary_unary")
        assert proxy.connections == 0
        async with dial(f"127.0.0.1:{port}", None) as channel:
            await call(channel, "unary_unary")


async def test_a_port_that_is_taken_is_an_error_and_not_shared() -> None:
    async with echo_server(None) as port:
        with pytest.raises(AddressError, match=f"cannot listen on 127.0.0.1:{port}: the port is taken"):
            listen(f"127.0.0.1:{port}", None)


@rule("deploy.D-20")
async def test_no_server_and_no_channel_is_plaintext_beyond_this_machine_unasked() -> None:
    with pytest.raises(PlaintextRefusedError):
        listen(":0", None)
    with pytest.raises(PlaintextRefusedError):
        dial("shard.bigfleet.svc:7780", None)
    with pytest.raises(PlaintextRefusedError):
        LastingChannel("10.0.0.1:9000", None)


@rule("deploy.D-20")
async def test_all_interfaces_are_served_in_plaintext_when_asked_and_with_tls_always(tmp_path: Path) -> None:
    tls = TlsCredentials(CertificateAuthority().issue().write(tmp_path), None)
    for credentials, insecure in ((None, True), (tls, False)):
        server, port = listen(":0", credentials, insecure=insecure)
        server.add_generic_rpc_handlers((handlers(),))
        await server.start()
        async with dial(f"localhost:{port}", credentials) as channel:
            assert await call(channel, "unary_unary", b"x") == b"x"
        await server.stop(None)


async def test_a_unix_socket_is_served_and_dialled(tmp_path: Path) -> None:
    address = f"unix:{tmp_path}/s"
    server, _ = listen(address, None)
    server.add_generic_rpc_handlers((handlers(),))
    await server.start()
    async with dial(address, None) as channel:
        assert await call(channel, "unary_unary", b"x") == b"x"
    await server.stop(None)


async def test_a_lasting_channel_on_plaintext_stays_the_same() -> None:
    async with echo_server(None) as port:
        peer = LastingChannel(f"127.0.0.1:{port}", None)
        assert await call(peer.current(), "unary_unary", b"x") == b"x"
        assert peer.current() is peer.current()
        await peer.close()


def sped_up(options: list[tuple[str, int]], speed: float) -> list[tuple[str, int]]:
    return [(name, round(value / speed) if name.endswith("_ms") else value) for name, value in options]
