"""TLS 1.3 and nothing older, on both sides, whoever the other side is."""

import asyncio
import os
import socket
import ssl
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from grpc import StatusCode, aio

from bigfleet_base import _grpc_env
from bigfleet_base.wire.channel import dial
from bigfleet_base.wire.tls import TlsCredentials, TlsFiles
from tests.support.ca import CertificateAuthority
from tests.support.rules import rule
from tests.unit.base.wire.echo import KINDS, call, echo_server
from tests.unit.base.wire.relay import client_context, relay

TLS12, TLS13 = ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3


@pytest.fixture
def files(tmp_path: Path) -> TlsFiles:
    return CertificateAuthority().issue("bigfleet://admin").write(tmp_path)


def handshake(port: int, context: ssl.SSLContext) -> str | None:
    with (
        socket.create_connection(("127.0.0.1", port), timeout=10) as plain,
        context.wrap_socket(plain, server_hostname="localhost") as secure,
    ):
        return secure.version()


@rule("deploy.D-18")
async def test_a_tls_12_client_is_refused_by_our_server(files: TlsFiles) -> None:
    async with echo_server(TlsCredentials(files, None)) as port:
        assert await asyncio.to_thread(handshake, port, client_context(files, TLS13)) == "TLSv1.3"
        with pytest.raises((ssl.SSLError, ConnectionError)):
            await asyncio.to_thread(handshake, port, client_context(files, TLS12))


@rule("deploy.D-18")
async def test_a_grpc_call_over_tls_12_never_reaches_our_server(files: TlsFiles) -> None:
    async with echo_server(TlsCredentials(files, None)) as port:
        async with (
            relay(port, client_context(files, TLS13)) as (_, relayed),
            dial(f"127.0.0.1:{relayed}", None) as channel,
        ):
            assert await call(channel, "who") == b"bigfleet://admin"
        async with (
            relay(port, client_context(files, TLS12)) as (_, relayed),
            dial(f"127.0.0.1:{relayed}", None) as channel,
        ):
            with pytest.raises(aio.AioRpcError) as refused:
                await call(channel, "who")
            assert refused.value.code() == StatusCode.UNAVAILABLE


@rule("deploy.D-18")
async def test_our_client_refuses_a_server_that_speaks_only_tls_12(files: TlsFiles) -> None:
    accepted: list[str] = []

    async def served(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        accepted.append(writer.get_extra_info("ssl_object").version())
        await reader.read(1)
        writer.transport.abort()

    async def refusal_of(version: ssl.TLSVersion) -> aio.AioRpcError:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(files.cert, files.key)
        context.minimum_version = context.maximum_version = version
        context.set_alpn_protocols(["h2"])
        server = await asyncio.start_server(served, "127.0.0.1", 0, ssl=context)
        async with server:
            port = server.sockets[0].getsockname()[1]
            async with dial(f"127.0.0.1:{port}", TlsCredentials(files, None)) as channel:
                with pytest.raises(aio.AioRpcError) as refused:
                    await call(channel, "unary_unary")
        return refused.value

    # The control: with TLS 1.3 the same server gets as far as HTTP/2, which it does not speak.
    await refusal_of(TLS13)
    assert accepted and set(accepted) == {"TLSv1.3"}
    accepted.clear()
    assert (await refusal_of(TLS12)).code() == StatusCode.UNAVAILABLE
    assert accepted == []


def environment(suites: str | None = None) -> dict[str, str]:
    """Ours for a fresh process, without the setting that this one made for itself."""
    ours = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    del ours[_grpc_env.CIPHER_SUITES_VARIABLE]
    return ours if suites is None else ours | {_grpc_env.CIPHER_SUITES_VARIABLE: suites}


# A server as it would be if gRPC one day ignored the setting that ends TLS 1.2 handshakes.
UNPINNED_SERVER = """
import asyncio, sys
import grpc
from bigfleet_base import _grpc_env
_grpc_env.TLS13_PINNED = True
from bigfleet_base.wire.tls import TlsCredentials, TlsFiles
from tests.unit.base.wire.echo import echo_server

async def main():
    async with echo_server(TlsCredentials(TlsFiles.from_flags(*sys.argv[1:]), None)) as port:
        print(port, flush=True)
        await asyncio.to_thread(sys.stdin.read)

asyncio.run(main())
"""


@asynccontextmanager
async def unpinned_server(files: TlsFiles) -> AsyncIterator[int]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", UNPINNED_SERVER, files.cert, files.key, files.ca),
        env=environment(),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert process.stdin is not None and process.stdout is not None
    try:
        yield int(await asyncio.wait_for(process.stdout.readline(), 30))
    finally:
        process.stdin.close()
        try:
            await asyncio.wait_for(process.wait(), 10)
        except TimeoutError:
            process.kill()
            await process.wait()


@rule("deploy.D-18")
async def test_a_call_over_tls_12_is_refused_even_if_its_handshake_were_not(files: TlsFiles) -> None:
    kinds = (*KINDS, "written")
    async with unpinned_server(files) as port:
        assert await asyncio.to_thread(handshake, port, client_context(files, TLS12)) == "TLSv1.2"
        async with (
            relay(port, client_context(files, TLS13)) as (_, relayed),
            dial(f"127.0.0.1:{relayed}", None) as channel,
        ):
            assert {kind: await call(channel, kind, b"x") for kind in kinds} == dict.fromkeys(kinds, b"x")
            with pytest.raises(aio.AioRpcError) as unknown:
                await call(channel, "no_such_method")
            assert unknown.value.code() == StatusCode.UNIMPLEMENTED
        async with (
            relay(port, client_context(files, TLS12)) as (_, relayed),
            dial(f"127.0.0.1:{relayed}", None) as channel,
        ):
            for kind in kinds:
                refused = await refusal(channel, kind)
                assert refused.code() == StatusCode.UNAUTHENTICATED
                assert refused.details() == "TLS 1.3 is required, not TLSv1.2"


async def refusal(channel: aio.Channel, kind: str) -> aio.AioRpcError:
    """How a call is refused. One that ends before its request is on its way sometimes only says so, which
    is gRPC's word and not the server's: it is made again."""
    while True:
        with pytest.raises(aio.AioRpcError) as refused:
            await call(channel, kind, b"x")
        if 'Failed "execute_batch"' not in (refused.value.debug_error_string() or ""):
            return refused.value


LOAD_CREDENTIALS = """
import sys
from bigfleet_base.wire.tls import TlsCredentials, TlsFiles
TlsCredentials(TlsFiles.from_flags(*sys.argv[1:]), None)
print("loaded")
"""


def load_credentials(
    files: TlsFiles, *, first: str, suites: str | None = None
) -> subprocess.CompletedProcess[str]:
    script = first + "\n" + LOAD_CREDENTIALS
    return subprocess.run(
        [sys.executable, "-c", script, files.cert, files.key, files.ca],
        env=environment(suites),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@rule("deploy.D-18")
@pytest.mark.parametrize(
    "first",
    [
        "import bigfleet_base, grpc",
        "import bigfleet_base.model, grpc",
        "import bigfleet_base.wire.tls13",
        "import bigfleet_base.wire.channel",
        "import bigfleet_base.api.v1alpha1.shard_pb2_grpc",
    ],
)
def test_any_module_of_ours_may_be_the_first_that_needs_grpc(files: TlsFiles, first: str) -> None:
    loaded = load_credentials(files, first=first)
    assert (loaded.stdout, loaded.stderr) == ("loaded\n", "")


@rule("deploy.D-18")
def test_tls_is_refused_loudly_when_foreign_code_loaded_grpc_first(files: TlsFiles) -> None:
    refused = load_credentials(files, first="import grpc")
    assert refused.returncode != 0 and refused.stdout == ""
    assert "import bigfleet_base first" in refused.stderr


def test_grpc_may_come_first_when_the_environment_already_pins_tls_13(files: TlsFiles) -> None:
    loaded = load_credentials(files, first="import grpc", suites=_grpc_env.NO_TLS12_SUITES)
    assert (loaded.stdout, loaded.stderr) == ("loaded\n", "")


def test_a_suite_list_from_outside_cannot_bring_tls_12_back(files: TlsFiles) -> None:
    check = f"import os, bigfleet_base; assert os.environ[{_grpc_env.CIPHER_SUITES_VARIABLE!r}] == "
    check += repr(_grpc_env.NO_TLS12_SUITES)
    loaded = load_credentials(files, first=check, suites="ECDHE-RSA-AES128-GCM-SHA256")
    assert (loaded.stdout, loaded.stderr) == ("loaded\n", "")
