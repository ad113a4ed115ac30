"""Mutual TLS over real sockets: who is let in, and certificates that change while the process runs."""

import asyncio
import ssl
from pathlib import Path

import pytest
from cryptography import x509
from grpc import StatusCode, aio

from bigfleet_base.wire.channel import LastingChannel, dial
from bigfleet_base.wire.tls import TlsCredentials, TlsFiles
from tests.support.ca import CertificateAuthority, replace
from tests.support.eventually import eventually
from tests.support.rules import rule
from tests.unit.base.wire.echo import call, echo_server, exchange, session
from tests.unit.base.wire.relay import client_context


@pytest.fixture(scope="module")
def ca() -> CertificateAuthority:
    return CertificateAuthority()


async def served_serial(port: int, files: TlsFiles) -> int:
    """The serial of the certificate that a new connection is shown."""
    _, writer = await asyncio.open_connection(
        "127.0.0.1", port, ssl=client_context(files, ssl.TLSVersion.TLSv1_3), server_hostname="localhost"
    )
    try:
        certificate = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
        return x509.load_der_x509_certificate(certificate).serial_number
    finally:
        writer.transport.abort()


async def status_of(channel: aio.Channel, method: str = "unary_unary") -> StatusCode:
    async with channel:
        try:
            await call(channel, method)
        except aio.AioRpcError as error:
            return error.code()
    return StatusCode.OK


@rule("deploy.D-16")
async def test_a_leaf_rotated_on_disk_is_shown_to_the_next_connection_and_drops_nobody(
    ca: CertificateAuthority, tmp_path: Path
) -> None:
    client = ca.issue().write(tmp_path / "client")
    old, new = ca.issue(), ca.issue()
    server = TlsCredentials(old.write(tmp_path / "server"), None)
    async with (
        echo_server(server) as port,
        dial(f"127.0.0.1:{port}", TlsCredentials(client, None)) as channel,
    ):
        running = session(channel)
        await exchange(running, b"before")
        assert await served_serial(port, client) == old.serial

        new.write(tmp_path / "server")
        assert await served_serial(port, client) == new.serial
        await exchange(running, b"after")


@rule("deploy.D-16")
async def test_a_new_certificate_with_the_old_key_leaves_the_old_pair_in_service(
    ca: CertificateAuthority, tmp_path: Path
) -> None:
    client = ca.issue().write(tmp_path / "client")
    old, new = ca.issue(), ca.issue()
    server = old.write(tmp_path / "server")
    async with echo_server(TlsCredentials(server, None)) as port:
        replace(server.cert, new.cert_pem)
        assert [await served_serial(port, client) for _ in range(2)] == [old.serial] * 2
        replace(server.key, new.key_pem)
        assert await served_serial(port, client) == new.serial


@rule("deploy.D-18")
async def test_a_client_presents_its_newest_leaf_whenever_it_dials(
    ca: CertificateAuthority, tmp_path: Path
) -> None:
    server = TlsCredentials(ca.issue().write(tmp_path / "server"), None)
    old, new = ca.issue(), ca.issue()
    client = TlsCredentials(old.write(tmp_path / "client"), None)
    async with echo_server(server) as port:
        async with dial(f"127.0.0.1:{port}", client) as channel:
            assert int(await call(channel, "serial")) == old.serial
        new.write(tmp_path / "client")
        async with dial(f"127.0.0.1:{port}", client) as channel:
            assert int(await call(channel, "serial")) == new.serial


@rule("deploy.D-18")
async def test_a_lasting_channel_follows_a_rotation_and_lets_running_calls_end(
    ca: CertificateAuthority, tmp_path: Path
) -> None:
    server = TlsCredentials(ca.issue().write(tmp_path / "server"), None)
    old, new = ca.issue(), ca.issue()
    client = TlsCredentials(old.write(tmp_path / "client"), None)
    async with echo_server(server) as port:
        peer = LastingChannel(f"127.0.0.1:{port}", client)
        first = peer.current()
        assert int(await call(first, "serial")) == old.serial
        running = session(first)
        await exchange(running, b"before")
        assert peer.current() is first

        new.write(tmp_path / "client")
        second = peer.current()
        assert second is not first and peer.current() is second
        assert int(await call(second, "serial")) == new.serial
        await exchange(running, b"after")

        await peer.close()
        assert await running.code() == StatusCode.CANCELLED


async def test_closing_a_lasting_channel_ends_calls_on_one_that_has_just_retired(
    ca: CertificateAuthority, tmp_path: Path
) -> None:
    server = TlsCredentials(ca.issue().write(tmp_path / "server"), None)
    client = TlsCredentials(ca.issue().write(tmp_path / "client"), None)
    async with echo_server(server) as port:
        peer = LastingChannel(f"127.0.0.1:{port}", client)
        running = session(peer.current())
        await exchange(running)
        ca.issue().write(tmp_path / "client")
        peer.current()
        await peer.close()
        assert await running.code() == StatusCode.CANCELLED


async def test_a_lasting_channel_keeps_few_old_channels_however_often_files_change(
    ca: CertificateAuthority, tmp_path: Path
) -> None:
    server = TlsCredentials(ca.issue().write(tmp_path / "server"), None)
    client = TlsCredentials(ca.issue().write(tmp_path / "client"), None)
    async with echo_server(server) as port:
        peer = LastingChannel(f"127.0.0.1:{port}", client)
        channels = set()
        for _ in range(8):
            channels.add(peer.current())
            ca.issue().write(tmp_path / "client")
        assert len(channels) == 5
        await peer.close()


async def test_an_old_channel_ends_after_its_grace_and_makes_room_for_the_next(
    ca: CertificateAuthority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("bigfleet_base.wire.channel._RETIRE_GRACE_S", 0.01)
    monkeypatch.setattr("bigfleet_base.wire.channel._MAX_RETIRING", 1)
    server = TlsCredentials(ca.issue().write(tmp_path / "server"), None)
    client = TlsCredentials(ca.issue().write(tmp_path / "client"), None)
    async with echo_server(server) as port:
        peer = LastingChannel(f"127.0.0.1:{port}", client)
        running = session(peer.current())
        await exchange(running)
        ca.issue().write(tmp_path / "client")
        second = peer.current()
        ca.issue().write(tmp_path / "client")
        assert peer.current() is second
        assert await running.code() == StatusCode.CANCELLED
        await eventually(lambda: peer.current() is not second)
        await peer.close()


@rule("deploy.D-16")
async def test_the_authority_is_read_once_and_changes_by_restart(
    ca: CertificateAuthority, tmp_path: Path
) -> None:
    server = ca.issue().write(tmp_path / "server")
    client = ca.issue().write(tmp_path / "client")
    async with echo_server(TlsCredentials(server, None)) as port:
        replace(server.ca, CertificateAuthority("other").pem)
        new = ca.issue()
        replace(server.cert, new.cert_pem)
        replace(server.key, new.key_pem)
        assert await served_serial(port, client) == new.serial
        assert await status_of(dial(f"127.0.0.1:{port}", TlsCredentials(client, None))) == StatusCode.OK


async def test_a_client_of_another_authority_is_refused(ca: CertificateAuthority, tmp_path: Path) -> None:
    stranger = CertificateAuthority().issue("bigfleet://admin").write(tmp_path / "client")
    replace(stranger.ca, ca.pem)
    async with echo_server(TlsCredentials(ca.issue().write(tmp_path / "server"), None)) as port:
        channel = dial(f"127.0.0.1:{port}", TlsCredentials(stranger, None))
        assert await status_of(channel) == StatusCode.UNAVAILABLE


async def test_a_client_without_certificate_is_refused(ca: CertificateAuthority, tmp_path: Path) -> None:
    async with echo_server(TlsCredentials(ca.issue().write(tmp_path / "server"), None)) as port:
        context = ssl.create_default_context(cadata=ca.pem.decode())
        context.set_alpn_protocols(["h2"])
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", port, ssl=context, server_hostname="localhost"
        )
        # In TLS 1.3 a client learns of it afterwards: a server that took it would send its settings now.
        assert await asyncio.wait_for(reader.read(1), 20) == b""
        writer.transport.abort()


async def test_a_server_of_another_authority_is_refused(ca: CertificateAuthority, tmp_path: Path) -> None:
    stranger = CertificateAuthority().issue().write(tmp_path / "server")
    replace(stranger.ca, ca.pem)
    client = TlsCredentials(ca.issue().write(tmp_path / "client"), None)
    async with echo_server(TlsCredentials(stranger, None)) as port:
        assert await status_of(dial(f"127.0.0.1:{port}", client)) == StatusCode.UNAVAILABLE


async def test_a_server_must_prove_the_name_that_was_dialled(
    ca: CertificateAuthority, tmp_path: Path
) -> None:
    other = ca.issue(dns=("bigfleet-shard-1.bigfleet.svc",), ips=("127.0.0.2",)).write(tmp_path / "server")
    client = TlsCredentials(ca.issue().write(tmp_path / "client"), None)
    async with echo_server(TlsCredentials(other, None)) as port:
        for host in ("127.0.0.1", "localhost"):
            assert await status_of(dial(f"{host}:{port}", client)) == StatusCode.UNAVAILABLE


async def test_plaintext_does_not_get_into_a_tls_server(ca: CertificateAuthority, tmp_path: Path) -> None:
    async with echo_server(TlsCredentials(ca.issue().write(tmp_path), None)) as port:
        assert await status_of(dial(f"127.0.0.1:{port}", None)) == StatusCode.UNAVAILABLE


@rule("wire.10.7")
@pytest.mark.parametrize(
    ("uris", "status"),
    [
        (("bigfleet://cluster/a", "spiffe://x/y"), StatusCode.OK),
        (("bigfleet://cluster/a", "bigfleet://cluster/b"), StatusCode.PERMISSION_DENIED),
        ((), StatusCode.PERMISSION_DENIED),
        (("bigfleet://nobody",), StatusCode.PERMISSION_DENIED),
    ],
)
async def test_a_gated_call_takes_exactly_one_identity(
    ca: CertificateAuthority, tmp_path: Path, uris: tuple[str, ...], status: StatusCode
) -> None:
    client = TlsCredentials(ca.issue(*uris).write(tmp_path / "client"), None)
    async with echo_server(TlsCredentials(ca.issue().write(tmp_path / "server"), None)) as port:
        assert await status_of(dial(f"127.0.0.1:{port}", client), "who") == status


async def test_a_caller_on_plaintext_has_no_identity() -> None:
    async with echo_server(None) as port, dial(f"127.0.0.1:{port}", None) as channel:
        assert await call(channel, "who") == b"None"
