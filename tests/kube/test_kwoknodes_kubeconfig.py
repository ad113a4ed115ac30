"""The ways into a cluster that kwoknodes knows, and what it says of those that it does not."""

import asyncio
import base64
import json
import socket
import ssl
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from bigfleet_providerkit.errors import Retryable, Unauthorized
from bigfleet_providerkit.examples.kwoknodes.api import Api
from bigfleet_providerkit.examples.kwoknodes.kubeconfig import KubeconfigError, read_kubeconfig
from tests.support.ca import CertificateAuthority
from tests.support.parts import KubeApiserver


@pytest.mark.parametrize("is_inline", [True, False], ids=["inline", "in files"])
@pytest.mark.parametrize("is_bare", [True, False], ids=["bare authority", "full authority"])
async def test_a_client_certificate_opens_the_door(
    is_inline: bool, is_bare: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_context = ssl.create_default_context

    def as_python_3_13(*arguments: Any, **more: Any) -> ssl.SSLContext:
        context = make_context(*arguments, **more)
        context.verify_flags |= ssl.VERIFY_X509_STRICT
        return context

    monkeypatch.setattr(ssl, "create_default_context", as_python_3_13)
    leaf = CertificateAuthority(bare=is_bare).issue()
    files = leaf.write(tmp_path)
    door = make_context(ssl.Purpose.CLIENT_AUTH, cafile=str(files.ca))
    door.verify_mode = ssl.CERT_REQUIRED
    door.verify_flags &= ~ssl.VERIFY_X509_STRICT
    door.load_cert_chain(files.cert, files.key)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b'HTTP/1.1 200 OK\r\nContent-Length: 16\r\n\r\n{"kind": "Node"}')
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0, ssl=door)
    async with server:
        url = f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        if is_inline:
            cluster = {"server": url, "certificate-authority-data": _base64(leaf.ca_pem)}
            user = {
                "client-certificate-data": _base64(leaf.cert_pem),
                "client-key-data": _base64(leaf.key_pem),
            }
        else:
            cluster = {"server": url, "certificate-authority": "ca.crt"}
            user = {"client-certificate": "tls.crt", "client-key": "tls.key"}
        access = read_kubeconfig(_write_config(tmp_path / "config", cluster, user))
        async with Api(access) as api:
            assert await api.get("/") == {"kind": "Node"}


async def test_a_token_is_read_from_its_file_and_a_wrong_one_is_refused(
    kube_apiserver: KubeApiserver, tmp_path: Path
) -> None:
    given = json.loads(kube_apiserver.kubeconfig.read_text())
    cluster = given["clusters"][0]["cluster"]
    config = _write_config(tmp_path / "config", cluster, {"tokenFile": "token"})
    (tmp_path / "token").write_text(given["users"][0]["user"]["token"] + "\n")
    async with Api(read_kubeconfig(config)) as api:
        assert (await api.get("/api/v1/nodes"))["kind"] == "NodeList"  # type: ignore[index]  # a list is always there
    (tmp_path / "token").write_text("wrong")
    async with Api(read_kubeconfig(config)) as api:
        with pytest.raises(Unauthorized, match="401"):
            await api.get("/api/v1/nodes")


async def test_a_server_that_is_not_there_is_asked_again_later(tmp_path: Path) -> None:
    config = _write_config(tmp_path / "config", {"server": "http://127.0.0.1:1"}, {})
    async with Api(read_kubeconfig(config)) as api:
        with pytest.raises(Retryable, match=r"127\.0\.0\.1:1"):
            await api.get("/api/v1/nodes")


async def test_a_request_that_is_given_up_on_leaves_no_connection_behind(tmp_path: Path) -> None:
    leaf = CertificateAuthority().issue()
    files = leaf.write(tmp_path)
    door = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    door.load_cert_chain(files.cert, files.key)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(10)
        url = f"https://127.0.0.1:{listening.getsockname()[1]}"
        cluster = {"server": url, "certificate-authority-data": _base64(leaf.ca_pem)}
        async with Api(read_kubeconfig(_write_config(tmp_path / "config", cluster, {}))) as api:
            asking = asyncio.create_task(api.get("/"))
            with await asyncio.to_thread(_asked, listening, door) as connection:
                asking.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await asking
                # A server that does not answer a polite goodbye is not waited for either.
                await asyncio.to_thread(_until_closed, connection)


def _asked(listening: socket.socket, door: ssl.SSLContext) -> ssl.SSLSocket:
    """A connection on which a request has come."""
    connection, _ = listening.accept()
    connection.settimeout(10)
    secure = door.wrap_socket(connection, server_side=True)
    assert secure.recv(65_536).startswith(b"GET / ")
    return secure


def _until_closed(connection: ssl.SSLSocket) -> None:
    """Until the connection itself ends, below TLS."""
    with suppress(ConnectionResetError):
        while socket.socket.recv(connection, 65_536):
            pass


def _no_context(path: Path) -> None:
    path.write_text("clusters: []")


def _not_yaml(path: Path) -> None:
    path.write_text("a: [")


def _plugin(path: Path) -> None:
    _write_config(path, {"server": "https://s"}, {"exec": {"command": "login"}})


def _bad_key(path: Path) -> None:
    _write_config(path, {"server": "https://s", "certificate-authority-data": "no base64!"}, {})


@pytest.mark.parametrize(
    ("write", "text"),
    [
        (lambda path: None, "cannot read"),
        (_not_yaml, "is not YAML"),
        (_no_context, "current context"),
        (_plugin, "plugin"),
        (_bad_key, "cannot be used"),
    ],
)
def test_a_kubeconfig_that_cannot_be_used_says_why(
    write: Callable[[Path], None], text: str, tmp_path: Path
) -> None:
    write(tmp_path / "config")
    with pytest.raises(KubeconfigError, match=text) as caught:
        read_kubeconfig(tmp_path / "config")
    assert str(tmp_path / "config") in str(caught.value)


def _base64(pem: bytes) -> str:
    return base64.b64encode(pem).decode()


def _write_config(path: Path, cluster: Mapping[str, Any], user: Mapping[str, Any]) -> Path:
    config = {
        "clusters": [{"name": "c", "cluster": cluster}],
        "users": [{"name": "u", "user": user}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }
    path.write_text(json.dumps(config))
    return path
