"""Certificates of a process: loaded whole or not at all, checked, and replaced while it runs.

The leaf pair is read again when a file changes, so rotation needs no restart; the CA bundle is read once,
so it changes by overlap and restart (deploy.D-16). One set serves every edge of a process, both ways.
"""

import os
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import grpc
from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from bigfleet_base import _grpc_env
from bigfleet_base.wire.identity import Identity, IdentityRefusedError, certificate_identity
from bigfleet_base.wire.transport_errors import (
    CertificateError,
    ExpiredCertificateError,
    PartialTlsError,
    Tls13UnavailableError,
    WrongIdentityError,
)


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """The three files that make mutual TLS; there is no smaller set."""

    cert: Path
    key: Path
    ca: Path

    @classmethod
    def from_flags(cls, cert: str, key: str, ca: str) -> Self | None:
        """None when no flag is given, which means plaintext; an error when only some are (deploy.D-15)."""
        flags = {"--tls-cert": cert, "--tls-key": key, "--tls-ca": ca}
        missing = [flag for flag, value in flags.items() if not value]
        if len(missing) == len(flags):
            return None
        if missing:
            given = ", ".join(f"{flag}={value!r}" for flag, value in flags.items())
            raise PartialTlsError(
                f"TLS needs all three files and {' and '.join(missing)} is missing ({given});"
                " give all three flags for mutual TLS or none for plaintext"
            )
        return cls(Path(cert), Path(key), Path(ca))


@dataclass(frozen=True, slots=True)
class Leaf:
    """A certificate and the private key that belongs to it, with what a metric wants to know."""

    chain_pem: bytes
    key_pem: bytes = field(repr=False)
    serial: int
    issued_unix: float
    expiry_unix: float

    def is_due(self, now_unix: float) -> bool:
        """Whether less than a third of the lifetime is left, from when on one should warn (deploy.D-19)."""
        return self.expiry_unix - now_unix < (self.expiry_unix - self.issued_unix) / 3


class TlsCredentials:
    """What one process presents and whom it trusts. Safe to use from gRPC's threads."""

    def __init__(self, files: TlsFiles, own: Identity | None) -> None:
        """Refuse at start what could not be served: bad files, an expired leaf, the identity of another.

        ``own`` is None for a process that has no identity on the wire of its own, such as a provider.
        """
        if not _grpc_env.TLS13_PINNED:
            raise Tls13UnavailableError(
                "TLS is refused because grpc was imported before bigfleet_base and would accept TLS 1.2;"
                " import bigfleet_base first, or start the process with"
                f" {_grpc_env.CIPHER_SUITES_VARIABLE}={_grpc_env.NO_TLS12_SUITES}"
            )
        self._files = files
        self._own = own
        self._ca_pem = _read_ca(files.ca)
        self._lock = threading.Lock()
        self._stamp = _stamp(files)
        self._leaf = _read_leaf(files, own)
        self._problem: str | None = None

    @property
    def problem(self) -> str | None:
        """Why the files on disk are not in use although they changed; None when they are."""
        return self._problem

    def leaf(self) -> Leaf:
        """The newest coherent pair. A change on disk that is half-written or unusable is not one.

        Two ``stat`` calls when nothing changed, cheap enough for every connection and every scrape.
        """
        with self._lock:
            self._reload()
            return self._leaf

    def server_credentials(self) -> grpc.ServerCredentials:
        """Mutual TLS for a server whose every new connection is shown the newest leaf."""
        served = self.leaf()

        def newest() -> grpc.ServerCertificateConfiguration | None:
            nonlocal served
            with self._lock:
                self._reload()
                if self._leaf is served:
                    return None
                served = self._leaf
                return self._server_configuration(served)

        return grpc.dynamic_ssl_server_credentials(
            self._server_configuration(served),
            newest,  # type: ignore[arg-type]  # the stub omits None, documented as "no change"
            require_client_authentication=True,
        )

    def channel_credentials(self) -> grpc.ChannelCredentials:
        """Mutual TLS for one channel. It keeps the leaf of this moment; a newer one needs a new channel."""
        leaf = self.leaf()
        return grpc.ssl_channel_credentials(self._ca_pem, leaf.key_pem, leaf.chain_pem)

    def _server_configuration(self, leaf: Leaf) -> grpc.ServerCertificateConfiguration:
        return grpc.ssl_server_certificate_configuration([(leaf.key_pem, leaf.chain_pem)], self._ca_pem)

    def _reload(self) -> None:
        # The stamp is taken before reading and kept only when the pair is coherent: files that change in
        # between, or that are half-written, are looked at again next time.
        try:
            stamp = _stamp(self._files)
            if stamp == self._stamp:
                self._problem = None
                return
            leaf = _read_leaf(self._files, self._own)
        except CertificateError as error:
            self._problem = str(error)
            return
        self._stamp = stamp
        self._problem = None
        # A touched file with the same content must not make clients rebuild their channels.
        if leaf != self._leaf:
            self._leaf = leaf


def _stamp(files: TlsFiles) -> tuple[int, ...]:
    # Inode and size beside the time: Kubernetes swaps a symlink, and a copy may keep its old time.
    try:
        stats = [os.stat(path) for path in (files.cert, files.key)]
    except OSError as error:
        raise _unreadable(error) from error
    return tuple(number for s in stats for number in (s.st_mtime_ns, s.st_ino, s.st_size))


def _read_leaf(files: TlsFiles, own: Identity | None) -> Leaf:
    chain_pem, key_pem = _read(files.cert), _read(files.key)
    try:
        certificate = x509.load_pem_x509_certificates(chain_pem)[0]
        public_key = certificate.public_key()
    except (ValueError, UnsupportedAlgorithm) as error:
        raise CertificateError(f"{files.cert} (--tls-cert) is not a PEM certificate: {error}") from error
    try:
        private_key = load_pem_private_key(key_pem, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise CertificateError(
            f"{files.key} (--tls-key) is not an unencrypted PEM private key: {error}"
        ) from error
    if private_key.public_key() != public_key:
        raise CertificateError(
            f"{files.key} (--tls-key) does not belong to the certificate in {files.cert} (--tls-cert);"
            " write both from the same issuance"
        )
    leaf = Leaf(
        chain_pem=chain_pem,
        key_pem=key_pem,
        serial=certificate.serial_number,
        issued_unix=certificate.not_valid_before_utc.timestamp(),
        expiry_unix=certificate.not_valid_after_utc.timestamp(),
    )
    if leaf.expiry_unix <= time.time():
        raise ExpiredCertificateError(
            f"the certificate in {files.cert} (--tls-cert) expired at {certificate.not_valid_after_utc};"
            " issue a new one"
        )
    if own is not None:
        _require_identity(certificate, own, files.cert)
    return leaf


def _require_identity(certificate: x509.Certificate, own: Identity, path: Path) -> None:
    try:
        found = certificate_identity(certificate)
    except IdentityRefusedError as error:
        raise WrongIdentityError(f"{path} (--tls-cert) must name {own}: {error}") from error
    if found != own:
        raise WrongIdentityError(
            f"{path} (--tls-cert) names {found} but this process is {own};"
            " issue a certificate for this id or correct the id"
        )


def _read_ca(path: Path) -> bytes:
    pem = _read(path)
    try:
        x509.load_pem_x509_certificates(pem)
    except ValueError as error:
        raise CertificateError(f"{path} (--tls-ca) holds no PEM certificate: {error}") from error
    return pem


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise _unreadable(error) from error


def _unreadable(error: OSError) -> CertificateError:
    return CertificateError(f"cannot read TLS file {error.filename}: {error.strerror}")
