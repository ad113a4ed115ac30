"""Identities: the four URI forms, exactly one per certificate, strict equality and nothing implied."""

from collections.abc import Iterable, Mapping

import pytest
from cryptography import x509
from hypothesis import given
from hypothesis import strategies as st

from bigfleet_base.model import is_valid_id
from bigfleet_base.wire import identity as identity_module
from bigfleet_base.wire.identity import (
    ADMIN,
    READONLY,
    Identity,
    IdentityRefusedError,
    Role,
    authorise,
    authorise_claim,
    certificate_identity,
    parse_identity,
    peer_identity,
)
from tests.support.ca import CertificateAuthority
from tests.support.rules import rule

CLUSTER_A = Identity(Role.CLUSTER, "a")
SHARD_S = Identity(Role.SHARD, "s")


class Context:
    """A servicer context reduced to what gRPC says about the peer."""

    def __init__(self, *leaves: bytes) -> None:
        self._leaves = leaves

    def auth_context(self) -> Mapping[str, Iterable[bytes]]:
        return {"x509_pem_cert": self._leaves} if self._leaves else {}


@pytest.fixture(scope="module")
def ca() -> CertificateAuthority:
    return CertificateAuthority()


@pytest.mark.parametrize(
    ("uri", "expected"),
    [
        ("bigfleet://cluster/prod-eu.1_a", Identity(Role.CLUSTER, "prod-eu.1_a")),
        ("bigfleet://shard/bigfleet-shard-0", Identity(Role.SHARD, "bigfleet-shard-0")),
        ("bigfleet://cluster/admin", Identity(Role.CLUSTER, "admin")),
        ("bigfleet://admin", ADMIN),
        ("bigfleet://readonly", READONLY),
    ],
)
def test_each_form_reads_back_as_it_is_written(uri: str, expected: Identity) -> None:
    assert parse_identity(uri) == expected
    assert str(expected) == uri


@given(
    role=st.sampled_from([Role.CLUSTER, Role.SHARD]),
    id_=st.from_regex(r"[A-Za-z0-9._-]{1,253}", fullmatch=True),
)
def test_every_id_of_the_alphabet_survives_the_uri(role: Role, id_: str) -> None:
    assert parse_identity(str(Identity(role, id_))) == Identity(role, id_)


@given(st.text(max_size=300))
def test_what_is_read_is_written_back_byte_for_byte_or_refused(text: str) -> None:
    for uri in (text, f"bigfleet://cluster/{text}", f"bigfleet://{text}"):
        try:
            parsed = parse_identity(uri)
        except ValueError:
            continue
        assert str(parsed) == uri


@pytest.mark.parametrize(
    "uri",
    [
        "",
        "bigfleet:",
        "bigfleet://",
        "bigfleet:admin",
        "BIGFLEET://admin",
        "bigfleet://Admin",
        "bigfleet://admin/",
        "bigfleet://admin/x",
        "bigfleet://admin?x",
        "bigfleet://admin\n",
        "bigfleet://backup",
        "bigfleet://cluster",
        "bigfleet://cluster/",
        "bigfleet://cluster//a",
        "bigfleet://cluster/a/",
        "bigfleet://cluster/a/b",
        "bigfleet://cluster/a%62",
        "bigfleet://cluster/a\n",
        "bigfleet://cluster/a\x00",
        "bigfleet://cluster/ä",
        "bigfleet://cluster/a#b",
        "bigfleet://cluster:1/a",
        "bigfleet://u@cluster/a",
        "bigfleet://shard/" + "a" * 254,
        " bigfleet://admin",
        "spiffe://cluster/a",
    ],
)
def test_a_uri_that_is_only_nearly_one_of_the_forms_is_refused(uri: str) -> None:
    with pytest.raises(ValueError, match="not a BigFleet identity"):
        parse_identity(uri)


@pytest.mark.parametrize("id_", ["a", "A.b_c-9", "." * 253])
def test_ids_within_the_alphabet_are_valid(id_: str) -> None:
    assert is_valid_id(id_)


@pytest.mark.parametrize("id_", ["", "a" * 254, "a b", "a/b", "a%2F", "a\n", "é", "a\x00"])
def test_ids_outside_the_alphabet_are_not(id_: str) -> None:
    assert not is_valid_id(id_)
    with pytest.raises(ValueError, match="does not match"):
        Identity(Role.CLUSTER, id_)


def test_a_role_without_id_takes_none() -> None:
    with pytest.raises(ValueError, match="has no id"):
        Identity(Role.ADMIN, "root")


def test_a_certificate_may_carry_other_names_beside_its_one_identity(ca: CertificateAuthority) -> None:
    leaf = ca.issue("bigfleet://cluster/a", "spiffe://other/admin", "https://bigfleet/admin")
    assert certificate_identity(leaf.certificate) == CLUSTER_A


@rule("wire.10.7")
@pytest.mark.parametrize(
    "uris",
    [
        (),
        ("spiffe://bigfleet/admin",),
        ("bigfleet://cluster/a", "bigfleet://cluster/b"),
        ("bigfleet://admin", "bigfleet://admin"),
        ("bigfleet://admin", "BigFleet://readonly"),
        ("bigfleet://admin", "bigfleet:whatever"),
    ],
)
def test_a_certificate_without_exactly_one_identity_is_refused(
    ca: CertificateAuthority, uris: tuple[str, ...]
) -> None:
    with pytest.raises(IdentityRefusedError, match="exactly one bigfleet:// URI SAN"):
        certificate_identity(ca.issue(*uris).certificate)


def test_a_certificate_without_any_san_is_refused(ca: CertificateAuthority) -> None:
    with pytest.raises(IdentityRefusedError, match="has 0"):
        certificate_identity(ca.issue(dns=(), ips=()).certificate)


@pytest.mark.parametrize("uri", ["bigfleet://cluster/a%20b", "BIGFLEET://admin", "bigfleet://root"])
def test_a_certificate_whose_one_identity_is_malformed_is_refused(ca: CertificateAuthority, uri: str) -> None:
    with pytest.raises(IdentityRefusedError, match="not a BigFleet identity"):
        certificate_identity(ca.issue(uri).certificate)


@pytest.mark.parametrize(
    "san",
    [
        b"\x30\x15\x86\x13bigfleet://admin\xff\xff\xff",  # a URI that is no text
        b"\x30\x12\x86\x10bigfleet://admi\xee",
        b"\x30\x13\x86\x11bigfleet://admin\x00",
        b"\x30\x7f",  # a sequence cut short
        b"\x30\x05\xa3\x03\x30\x01\x00",  # a general name of a type nobody uses
    ],
)
def test_names_that_cannot_be_read_are_a_refusal_and_not_a_crash(
    ca: CertificateAuthority, san: bytes
) -> None:
    odd = ca.issue(extension=x509.UnrecognizedExtension(x509.SubjectAlternativeName.oid, san))
    with pytest.raises(IdentityRefusedError):
        certificate_identity(odd.certificate)
    with pytest.raises(IdentityRefusedError):
        peer_identity(Context(odd.cert_pem))


def test_a_peer_without_certificate_has_no_identity_to_check() -> None:
    assert peer_identity(Context()) is None


def test_a_peer_is_who_its_leaf_says(ca: CertificateAuthority) -> None:
    assert peer_identity(Context(ca.issue("bigfleet://shard/s").cert_pem)) == SHARD_S


def test_a_peer_whose_leaf_cannot_be_read_is_refused() -> None:
    with pytest.raises(IdentityRefusedError, match="cannot be read"):
        peer_identity(Context(b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"))


@pytest.mark.parametrize("uris", [("bigfleet://cluster/a",), ("bigfleet://admin", "bigfleet://readonly")])
def test_a_certificate_is_parsed_once_however_often_it_calls(
    ca: CertificateAuthority, uris: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    parsed: list[x509.Certificate] = []

    def counting(certificate: x509.Certificate) -> Identity:
        parsed.append(certificate)
        return certificate_identity(certificate)

    monkeypatch.setattr(identity_module, "certificate_identity", counting)
    pem = ca.issue(*uris).cert_pem
    outcomes = set()
    for _ in range(5):
        try:
            outcomes.add(str(peer_identity(Context(bytes(bytearray(pem))))))
        except IdentityRefusedError as error:
            outcomes.add(str(error))
    assert len(parsed) == 1 and len(outcomes) == 1


# wire.md §1.2, row by row: what each certificate may do. Everything not listed is refused.
MAY = {
    CLUSTER_A: {"session a"},
    SHARD_S: {"report s"},
    ADMIN: {"change", "read"},
    READONLY: {"read"},
    None: {"session a", "session b", "report s", "report t", "change", "read"},
}
CALLS = sorted(MAY[None])


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("caller", MAY, ids=str)
def test_each_caller_may_do_what_its_row_lists_and_nothing_else(caller: Identity | None, call: str) -> None:
    def check() -> None:
        match call.split():
            case ["session", cluster]:
                authorise_claim(caller, Role.CLUSTER, cluster)
            case ["report", shard]:
                authorise_claim(caller, Role.SHARD, shard)
            case ["change"]:
                authorise(caller, ADMIN)
            case _:
                authorise(caller, READONLY, ADMIN)

    if call in MAY[caller]:
        check()
    else:
        with pytest.raises(IdentityRefusedError, match=str(caller)):
            check()


@pytest.mark.parametrize("claimed", ["", "S", "s ", "s\n", "s/../t", "%73", "admin"])
def test_a_claim_that_is_not_exactly_the_certificates_id_is_refused(claimed: str) -> None:
    with pytest.raises(IdentityRefusedError, match="may not act for shard"):
        authorise_claim(SHARD_S, Role.SHARD, claimed)


@pytest.mark.parametrize(
    ("caller", "needed"), [(ADMIN, READONLY), (READONLY, ADMIN), (SHARD_S, Identity(Role.SHARD, "t"))]
)
def test_no_role_contains_another(caller: Identity, needed: Identity) -> None:
    with pytest.raises(IdentityRefusedError, match=f"{caller} may not make this call; it takes {needed}"):
        authorise(caller, needed)


def test_a_cluster_is_not_the_shard_of_the_same_name() -> None:
    with pytest.raises(IdentityRefusedError):
        authorise_claim(Identity(Role.CLUSTER, "x"), Role.SHARD, "x")
