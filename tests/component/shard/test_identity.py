"""Who may open a session and who may read, under mutual TLS (wire.md §1.2)."""

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from cryptography import x509

from bigfleet_base.model.frames import HelloAck, RollupAck
from bigfleet_base.wire import TlsCredentials, TlsFiles
from bigfleet_base.wire.session import Hello, encode_operator_message
from tests.component.shard.world import World, need, running
from tests.support.ca import CertificateAuthority, replace
from tests.support.rules import rule


class Authority:
    """Issues credentials for the peers of a test."""

    def __init__(self, folder: Path) -> None:
        self._ca = CertificateAuthority()
        self._folder = folder
        self._count = 0

    def files(self, *uris: str) -> TlsFiles:
        self._count += 1
        return self._ca.issue(*uris).write(self._folder / f"tls-{self._count}")

    def credentials(self, *uris: str) -> TlsCredentials:
        return TlsCredentials(self.files(*uris), None)


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@asynccontextmanager
async def secured(folder: Path, authority: Authority) -> AsyncIterator[World]:
    async with running(folder, tls=authority.files("bigfleet://shard/shard-0")) as world:
        yield world


@rule("shard.S2")
async def test_a_certificate_of_the_cluster_opens_its_session(tmp_path: Path, authority: Authority) -> None:
    async with secured(tmp_path, authority) as world:
        operator = world.operator("c1", authority.credentials("bigfleet://cluster/c1"))
        await operator.connect()
        await operator.roll_up(need())
        await operator.received(RollupAck)


@rule("wire.10.6", "wire.10.7", "shard.S2")
@pytest.mark.parametrize(
    "uris",
    [
        ("bigfleet://cluster/c2",),
        ("bigfleet://cluster/c1", "bigfleet://cluster/c2"),
        ("bigfleet://cluster/c1", "bigfleet://admin"),
        ("bigfleet://admin",),
        ("bigfleet://shard/c1",),
        (),
    ],
    ids=["another", "two", "with-admin", "admin", "shard", "none"],
)
async def test_any_other_certificate_is_refused_and_the_session_that_is_there_stays(
    tmp_path: Path, authority: Authority, uris: tuple[str, ...]
) -> None:
    async with secured(tmp_path, authority) as world:
        rightful = await world.operator("c1", authority.credentials("bigfleet://cluster/c1")).connect()
        await rightful.received(HelloAck)
        thief = world.operator("c1", authority.credentials(*uris))
        await thief.call()
        await thief.send(encode_operator_message(Hello("c1")))
        assert (await thief.status())[0] == "PERMISSION_DENIED"
        assert world.metric("bigfleet_shard_session_identity_rejected_total") == 1
        [line] = world.logged("operator session identity rejected")
        assert line["level"] == "error" and line["cluster"] == "c1" and line["presented_identity"]
        await rightful.roll_up(need())
        await rightful.received(RollupAck)


@pytest.mark.parametrize(
    ("uris", "status"),
    [
        (("bigfleet://readonly",), "OK"),
        (("bigfleet://admin",), "OK"),
        (("bigfleet://cluster/c1",), "PERMISSION_DENIED"),
        (("bigfleet://shard/shard-0",), "PERMISSION_DENIED"),
        (("bigfleet://readonly", "bigfleet://admin"), "PERMISSION_DENIED"),
    ],
)
async def test_reading_takes_a_reader(
    tmp_path: Path, authority: Authority, uris: tuple[str, ...], status: str
) -> None:
    async with secured(tmp_path, authority) as world:
        assert (await world.inspect(b"", authority.credentials(*uris)))[1] == status
        assert bool(world.logged("shard rejected read identity")) == (status != "OK")


async def test_a_peer_without_a_certificate_or_of_another_authority_is_not_heard(
    tmp_path: Path, authority: Authority
) -> None:
    async with secured(tmp_path, authority) as world:
        stranger = Authority(tmp_path / "stranger").files("bigfleet://cluster/c1")
        trusting = TlsFiles(stranger.cert, stranger.key, authority.files().ca)
        for tls in (None, TlsCredentials(trusting, None)):
            operator = world.operator("c1", tls)
            await operator.call()
            assert (await operator.status())[0] == "UNAVAILABLE"
        assert world.shard.core.sessions.active() == 0


def handshake(address: str, files: TlsFiles, version: ssl.TLSVersion) -> str | None:
    """The version that was agreed on, or None when there was none."""
    context = ssl.create_default_context(cafile=str(files.ca))
    context.load_cert_chain(files.cert, files.key)
    context.minimum_version = context.maximum_version = version
    context.set_alpn_protocols(["h2"])
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=10) as plain:
        try:
            with context.wrap_socket(plain, server_hostname="localhost") as tls:
                tls.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
                tls.recv(1)
                return tls.version()
        except (ssl.SSLError, ConnectionError):
            return None


async def test_tls_1_2_is_refused(tmp_path: Path, authority: Authority) -> None:
    async with secured(tmp_path, authority) as world:
        files = authority.files("bigfleet://cluster/c1")
        loop = asyncio.get_running_loop()
        for version, agreed in ((ssl.TLSVersion.TLSv1_2, None), (ssl.TLSVersion.TLSv1_3, "TLSv1.3")):
            result = await loop.run_in_executor(None, handshake, world.shard.address, files, version)
            assert result == agreed


def served_serial(address: str, files: TlsFiles) -> int:
    """The serial number of the certificate that the shard shows a new connection."""
    context = ssl.create_default_context(cafile=str(files.ca))
    context.load_cert_chain(files.cert, files.key)
    context.set_alpn_protocols(["h2"])
    host, _, port = address.rpartition(":")
    with (
        socket.create_connection((host, int(port)), timeout=10) as plain,
        context.wrap_socket(plain, server_hostname="localhost") as tls,
    ):
        shown = tls.getpeercert(binary_form=True)
    assert shown is not None
    return x509.load_der_x509_certificate(shown).serial_number


@rule("shard.G2", "shard.G3")
async def test_a_new_leaf_serves_new_connections_and_half_of_one_does_not(tmp_path: Path) -> None:
    ca = CertificateAuthority()
    old, new = ca.issue("bigfleet://shard/shard-0"), ca.issue("bigfleet://shard/shard-0")
    files = old.write(tmp_path / "server")
    peer = ca.issue("bigfleet://cluster/c1").write(tmp_path / "peer")
    loop = asyncio.get_running_loop()
    async with running(tmp_path, tls=files) as world:
        operator = await world.operator("c1", TlsCredentials(peer, None)).connect()
        await operator.received(HelloAck)

        async def served() -> int:
            return await loop.run_in_executor(None, served_serial, world.shard.address, peer)

        assert await served() == old.serial
        replace(files.cert, new.cert_pem)
        assert await served() == old.serial, "a certificate without its key"
        replace(files.key, new.key_pem)
        assert await served() == new.serial
        await operator.roll_up(need())
        await operator.received(RollupAck)
