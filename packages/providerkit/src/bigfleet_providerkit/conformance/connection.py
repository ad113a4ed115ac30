"""Reaching a provider, and saying in one sentence why it cannot be reached."""

import asyncio
import contextlib
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import grpc
from grpc import aio

from bigfleet_base.api.v1alpha1 import provider_pb2 as pb
from bigfleet_base.api.v1alpha1 import provider_pb2_grpc as rpc
from bigfleet_base.wire import TlsCredentials, TlsFiles, channel_options, dial, parse_address
from bigfleet_base.wire.transport_errors import CertificateError
from bigfleet_providerkit.conformance.options import Options

_FIRST_CALL_S: Final = 5.0
_SNIFF_S: Final = 2.0
_HTTP2: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))


class UnreachableError(Exception):
    """Nothing can be asked of the target; the message is one sentence."""


@dataclass(frozen=True)
class Tls:
    """What is shown to the target: the authority it must have, and a pair for each shard id."""

    ca: Path
    pairs: dict[str, tuple[Path, Path]]

    @classmethod
    def from_options(cls, options: Options) -> "Tls | None":
        if not options.tls_ca:
            return None
        names = options.shard_ids or ("",)
        pairs = zip(map(Path, options.certs), map(Path, options.keys), strict=True)
        return cls(Path(options.tls_ca), dict(zip(names, pairs, strict=False)))


class Connection:
    """Channels to one provider, one for each identity that the run has."""

    def __init__(self, address: str, tls: Tls | None) -> None:
        self.address = address
        self.tls = tls
        self._channels = {name: self._dial(name) for name in (tls.pairs if tls else ())} or {
            "": self._dial("")
        }
        self._stubs = {name: rpc.CapacityProviderStub(channel) for name, channel in self._channels.items()}
        self.channel = next(iter(self._channels.values()))

    def stub(self, shard_id: str = "") -> "rpc.CapacityProviderAsyncStub":
        """The stub for calls of this shard: with its certificate, where there is one."""
        stub: rpc.CapacityProviderAsyncStub = self._stubs.get(shard_id) or next(iter(self._stubs.values()))
        return stub

    async def close(self) -> None:
        for channel in self._channels.values():
            await channel.close()

    async def require_provider(self) -> None:
        """UnreachableError unless a capacity provider answers."""
        try:
            await self.stub().List(pb.ListFilter(max_results=1), timeout=_FIRST_CALL_S)
        except aio.AioRpcError as error:
            raise UnreachableError(await self._diagnose(error)) from None

    def _dial(self, name: str) -> aio.Channel:
        if self.tls is None:
            # The operator of the suite has named the target; what is sent there is of no use to anyone.
            return dial(self.address, None, insecure=True)
        if pair := self.tls.pairs.get(name):
            return dial(self.address, TlsCredentials(TlsFiles(pair[0], pair[1], self.tls.ca), None))
        try:
            ca = self.tls.ca.read_bytes()
        except OSError as error:
            raise CertificateError(f"cannot read {self.tls.ca} (--tls-ca): {error.strerror}") from error
        if b"-----BEGIN CERTIFICATE-----" not in ca:
            raise CertificateError(f"{self.tls.ca} (--tls-ca) holds no PEM certificate")
        credentials = grpc.ssl_channel_credentials(ca)
        address = parse_address(self.address)
        return aio.secure_channel(address.target, credentials, options=channel_options(local=address.local))

    async def _diagnose(self, error: aio.AioRpcError) -> str:
        where, code = self.address, error.code()
        if code is grpc.StatusCode.UNIMPLEMENTED:
            return f"{where} speaks gRPC but is no BigFleet capacity provider: it has no List"
        if code not in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED):
            return f"{where} answers the first List with {code.name}: {_line(error)}"
        if where.startswith("unix"):
            return f"nothing answers on {where}: {_line(error)}"
        host, _, port = where.rpartition(":")
        found = await _sniff(host.strip("[]") or "localhost", int(port))
        if found is None:
            return f"nothing listens on {where}: start the provider there or correct --target"
        if found == "h2" and self.tls is not None:
            return f"{where} does not speak TLS: leave out --tls-ca, --cert and --key"
        if found == "tls" and self.tls is None:
            return f"{where} speaks TLS: give --tls-ca, and --cert and --key if it asks for a certificate"
        if found == "tls":
            return f"the TLS handshake with {where} failed: {_line(error)}"
        if found == "h2":
            return f"{where} speaks HTTP/2 but did not answer the first List: {_line(error)}"
        return f"{where} is no gRPC server: {found}"


async def _sniff(host: str, port: int) -> str | None:
    """What listens there: None for nothing, ``h2``, ``tls``, or words for something else."""
    try:
        said = await _first_words(host, port, _HTTP2)
    except OSError:
        return None
    # A frame's fourth byte is its type, and a server begins with SETTINGS.
    if len(said) >= 9 and said[3] == 4:
        return "h2"
    if await _speaks_tls(host, port):
        return "tls"
    if not said:
        return "it accepts connections and says nothing"
    if (await _first_words(host, port, b"GET / HTTP/1.0\r\n\r\n")).startswith(b"HTTP/1"):
        return "it answers as an HTTP/1 server"
    return "it answers with something that is not HTTP/2"


async def _first_words(host: str, port: int, greeting: bytes) -> bytes:
    """The answer to the beginning of a connection."""
    reader, writer = await asyncio.open_connection(host, port)
    try:
        writer.write(greeting)
        async with asyncio.timeout(_SNIFF_S):
            return await reader.read(64)
    except (OSError, TimeoutError):
        return b""
    finally:
        writer.close()


async def _speaks_tls(host: str, port: int) -> bool:
    context = ssl.create_default_context()
    # Nothing is sent and nothing believed: this only finds out which protocol it is.
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        async with asyncio.timeout(_SNIFF_S):
            _, writer = await asyncio.open_connection(host, port, ssl=context)
    except ssl.SSLError as error:
        return "WRONG_VERSION_NUMBER" not in str(error) and "RECORD_LAYER" not in str(error)
    except (OSError, TimeoutError):
        return False
    writer.close()
    with contextlib.suppress(OSError, TimeoutError):
        await asyncio.wait_for(writer.wait_closed(), 1)
    return True


def _line(error: aio.AioRpcError) -> str:
    return " ".join((error.details() or "no reason given").split())[:300]
