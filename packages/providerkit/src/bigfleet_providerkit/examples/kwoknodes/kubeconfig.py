"""The way into a cluster, from a kubeconfig file."""

import base64
import ssl
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml


class KubeconfigError(ValueError):
    """A kubeconfig that we cannot use; the message names the file and what to change."""


@dataclass(frozen=True)
class Access:
    """Where an API server is, and as whom we come."""

    server: str
    tls: ssl.SSLContext | None
    """None for a server without TLS."""
    token: str = field(repr=False)
    """Empty when a client certificate says who we are."""


def read_kubeconfig(path: Path) -> Access:
    """The access of the current context; KubeconfigError when there is none that we understand."""
    try:
        document = yaml.safe_load(path.read_text())
    except OSError as error:
        raise KubeconfigError(f"cannot read the kubeconfig {path}: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise KubeconfigError(f"{path} is not YAML: {' '.join(str(error).split())}") from error
    try:
        context = _named(document, "contexts", document["current-context"], "context")
        cluster = _named(document, "clusters", context["cluster"], "cluster")
        user = _named(document, "users", context["user"], "user")
        server = str(cluster["server"]).rstrip("/")
    except (KeyError, TypeError, AttributeError) as error:
        raise KubeconfigError(
            f"{path} has no current context with a cluster and a user: {error} is missing"
        ) from None
    for plugin in ("exec", "auth-provider"):
        if plugin in user:
            raise KubeconfigError(
                f"{path}: user {context['user']!r} gets its credentials from a plugin ({plugin}), which"
                " is not supported; use a token or a client certificate, for example of a service account"
            )
    try:
        tls = _tls(cluster, user, path.parent) if server.startswith("https:") else None
        return Access(server, tls, _token(user, path.parent))
    except (OSError, ValueError) as error:
        raise KubeconfigError(f"{path}: a certificate, key or token cannot be used: {error}") from error


def _named(document: Mapping[str, Any], section: str, name: str, kind: str) -> Mapping[str, Any]:
    for entry in document.get(section) or ():
        if entry["name"] == name:
            found: Mapping[str, Any] = entry[kind]
            return found
    raise KeyError(f"{kind} {name}")


def _token(user: Mapping[str, Any], folder: Path) -> str:
    if "tokenFile" in user:
        return (folder / str(user["tokenFile"])).read_text().strip()
    return str(user.get("token", ""))


def _tls(cluster: Mapping[str, Any], user: Mapping[str, Any], folder: Path) -> ssl.SSLContext:
    authority = _pem(cluster, "certificate-authority", folder)
    context = ssl.create_default_context(cadata=authority.decode() or None)
    # From Python 3.13 on refuses authorities without key identifiers, which kubectl and many clusters take.
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    if cluster.get("insecure-skip-tls-verify"):
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if certificate := _pem(user, "client-certificate", folder):
        # The standard library takes them from a file alone; this one is for our eyes and gone at once.
        with tempfile.NamedTemporaryFile() as file:
            file.write(certificate + b"\n" + _pem(user, "client-key", folder))
            file.flush()
            context.load_cert_chain(file.name)
    return context


def _pem(section: Mapping[str, Any], name: str, folder: Path) -> bytes:
    """What a field holds, in the file itself or in another beside it; nothing if it is not there."""
    if f"{name}-data" in section:
        return base64.b64decode(section[f"{name}-data"], validate=True)
    return (folder / str(section[name])).read_bytes() if name in section else b""
