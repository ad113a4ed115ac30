"""A certificate authority for tests: trusted by nobody else, minted in the run, gone with it."""

import datetime
import ipaddress
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from bigfleet_base.wire.tls import TlsFiles

DAY = datetime.timedelta(days=1)


@dataclass(frozen=True)
class IssuedLeaf:
    """A certificate for server and client, its key, and the CA that vouches for it."""

    certificate: x509.Certificate
    cert_pem: bytes
    key_pem: bytes
    ca_pem: bytes

    @property
    def serial(self) -> int:
        return self.certificate.serial_number

    def write(self, folder: Path) -> TlsFiles:
        """Put the three files where a mounted Secret has them, each replaced in one step."""
        folder.mkdir(parents=True, exist_ok=True)
        files = TlsFiles(cert=folder / "tls.crt", key=folder / "tls.key", ca=folder / "ca.crt")
        replace(files.cert, self.cert_pem)
        replace(files.key, self.key_pem)
        replace(files.ca, self.ca_pem)
        return files


class CertificateAuthority:
    """Issues leaves that a BigFleet process on loopback can serve and dial with.

    A bare one leaves out the extensions that RFC 5280 asks for and that many a home-made authority has not.
    """

    def __init__(self, name: str = "bigfleet-test-ca", *, bare: bool = False) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _name(name)
        self._bare = bare
        builder = _builder(self._name, self._name, self._key, _now() - DAY, _now() + 2 * DAY).add_extension(
            x509.BasicConstraints(ca=True, path_length=0), critical=True
        )
        if not bare:
            public = self._key.public_key()
            builder = builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
            builder = builder.add_extension(_SIGNS_CERTIFICATES, critical=True)
        self.pem = _pem(builder.sign(self._key, hashes.SHA256()))

    def issue(
        self,
        *uris: str,
        dns: Sequence[str] = ("localhost",),
        ips: Sequence[str] = ("127.0.0.1",),
        issued: datetime.datetime | None = None,
        expiry: datetime.datetime | None = None,
        extension: x509.ExtensionType | None = None,
    ) -> IssuedLeaf:
        """A leaf with these URI SANs; ``extension`` takes the place of all SANs."""
        names: list[x509.GeneralName] = [x509.UniformResourceIdentifier(uri) for uri in uris]
        names += [x509.DNSName(name) for name in dns]
        names += [x509.IPAddress(ipaddress.ip_address(ip)) for ip in ips]
        key = ec.generate_private_key(ec.SECP256R1())
        builder = _builder(_name("leaf"), self._name, key, issued or _now() - DAY, expiry or _now() + DAY)
        builder = builder.add_extension(
            x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]),
            critical=False,
        )
        if not self._bare:
            builder = builder.add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False
            )
        if extension is None and names:
            extension = x509.SubjectAlternativeName(names)
        if extension is not None:
            builder = builder.add_extension(extension, critical=False)
        certificate = builder.sign(self._key, hashes.SHA256())
        key_pem = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        return IssuedLeaf(certificate, _pem(certificate), key_pem, self.pem)


_SIGNS_CERTIFICATES: Final = x509.KeyUsage(
    digital_signature=False,
    content_commitment=False,
    key_encipherment=False,
    data_encipherment=False,
    key_agreement=False,
    key_cert_sign=True,
    crl_sign=False,
    encipher_only=False,
    decipher_only=False,
)


def replace(path: Path, content: bytes) -> None:
    """Write a file so that a reader sees the old content or the new, never a part of it."""
    temporary = path.with_name(path.name + ".new")
    temporary.write_bytes(content)
    os.replace(temporary, path)


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    issued: datetime.datetime,
    expiry: datetime.datetime,
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(issued)
        .not_valid_after(expiry)
    )


def _name(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _now() -> datetime.datetime:
    return datetime.datetime.now(datetime.UTC)
