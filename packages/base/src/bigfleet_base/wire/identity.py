"""Who is calling: the one ``bigfleet://`` URI SAN of a verified client certificate (wire.md §1.2).

Comparison is byte for byte. The alphabet of ids leaves nothing to percent-encode, so a URI that would need
normalising before it matched is simply another URI, and names nobody.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from typing import Protocol

from cryptography import x509

from bigfleet_base.model import ID_PATTERN, is_valid_id

SCHEME = "bigfleet"

_URI = re.compile(rf"{SCHEME}://(?:(?P<named>cluster|shard)/(?P<id>{ID_PATTERN})|(?P<single>admin|readonly))")

# One entry for each certificate that calls often, about 2 KiB; beyond the bound a call pays for parsing.
_CACHED_CERTIFICATES = 1_024


class Role(Enum):
    CLUSTER = "cluster"
    SHARD = "shard"
    ADMIN = "admin"
    READONLY = "readonly"


_ROLES_WITH_ID = frozenset({Role.CLUSTER, Role.SHARD})


@dataclass(frozen=True, slots=True)
class Identity:
    """A role and, for clusters and shards alone, the id of the one it is."""

    role: Role
    id: str = ""

    def __post_init__(self) -> None:
        if self.role in _ROLES_WITH_ID:
            if not is_valid_id(self.id):
                raise ValueError(f"{self.role.value} id {self.id!r} does not match {ID_PATTERN}")
        elif self.id:
            raise ValueError(f"the role {self.role.value} has no id, got {self.id!r}")

    def __str__(self) -> str:
        suffix = f"/{self.id}" if self.id else ""
        return f"{SCHEME}://{self.role.value}{suffix}"


ADMIN = Identity(Role.ADMIN)
READONLY = Identity(Role.READONLY)


class IdentityRefusedError(Exception):
    """The caller is not who it has to be: answer PERMISSION_DENIED with this text."""


class PeerContext(Protocol):
    """What we need of a gRPC servicer context."""

    def auth_context(self) -> Mapping[str, Iterable[bytes]]: ...


def parse_identity(uri: str) -> Identity:
    """Read one of the four forms; ``ValueError`` for anything else."""
    match = _URI.fullmatch(uri)
    if match is None:
        raise ValueError(f"{uri!r} is not a BigFleet identity")
    return Identity(Role(match["named"] or match["single"]), match["id"] or "")


def certificate_identity(certificate: x509.Certificate) -> Identity:
    """The identity a certificate carries; refused unless exactly one SAN has our scheme and names one."""
    try:
        sans = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        uris = sans.get_values_for_type(x509.UniformResourceIdentifier)
    except x509.ExtensionNotFound:
        uris = []
    except (ValueError, x509.DuplicateExtension, x509.UnsupportedGeneralNameType) as error:
        raise IdentityRefusedError(f"the certificate's names cannot be read: {error}") from error
    # Schemes ignore case (RFC 3986), so BIGFLEET:// counts as a second name although it never matches.
    ours = [uri for uri in uris if uri.partition(":")[0].lower() == SCHEME]
    if len(ours) != 1:
        raise IdentityRefusedError(
            f"the certificate must carry exactly one {SCHEME}:// URI SAN and has {len(ours)}"
        )
    try:
        return parse_identity(ours[0])
    except ValueError as error:
        raise IdentityRefusedError(f"the certificate's URI SAN: {error}") from error


def peer_identity(context: PeerContext) -> Identity | None:
    """The caller's identity; None on plaintext or without a verified client chain, where checks are skipped.

    Our TLS servers demand and verify a client certificate, and gRPC shows none that it has not verified.
    """
    leaves = list(context.auth_context().get("x509_pem_cert", ()))
    if not leaves:
        return None
    verdict = _identity_in_pem(leaves[0])
    if isinstance(verdict, str):
        raise IdentityRefusedError(verdict)
    return verdict


def authorise(caller: Identity | None, *allowed: Identity) -> None:
    """Refuse a caller that is none of ``allowed``; roles imply nothing about one another."""
    if caller is not None and caller not in allowed:
        raise IdentityRefusedError(f"{caller} may not make this call; it takes {_either(allowed)}")


def authorise_claim(caller: Identity | None, role: Role, claimed_id: str) -> None:
    """Refuse a caller whose certificate is not exactly ``role`` of the id that its message claims.

    The id is whatever arrived: where the identity check comes before the check of the alphabet, an empty
    or malformed one is a claim that no certificate backs.
    """
    if caller is not None and (caller.role, caller.id) != (role, claimed_id):
        raise IdentityRefusedError(f"{caller} may not act for {role.value} {claimed_id!r}")


@lru_cache(maxsize=_CACHED_CERTIFICATES)
def _identity_in_pem(pem: bytes) -> Identity | str:
    # The refusal is a value so that it is remembered too: a refused client that retries must stay cheap.
    try:
        return certificate_identity(x509.load_pem_x509_certificate(pem))
    except IdentityRefusedError as error:
        return str(error)
    except ValueError as error:
        return f"the client certificate cannot be read: {error}"


def _either(identities: Iterable[Identity]) -> str:
    return " or ".join(str(identity) for identity in identities)
