"""Certificate files: the whole set or none, checked at start, replaced only by something as good."""

import datetime
import itertools
import os
import time
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization

from bigfleet_base.wire.identity import ADMIN, Identity, Role
from bigfleet_base.wire.tls import TlsCredentials, TlsFiles
from bigfleet_base.wire.transport_errors import (
    CertificateError,
    ExpiredCertificateError,
    PartialTlsError,
    WrongIdentityError,
)
from tests.support.ca import DAY, CertificateAuthority, replace
from tests.support.rules import rule

SHARD_0 = Identity(Role.SHARD, "bigfleet-shard-0")


@pytest.fixture(scope="module")
def ca() -> CertificateAuthority:
    return CertificateAuthority()


@rule("deploy.D-15")
@pytest.mark.parametrize("given", list(itertools.product([False, True], repeat=3))[1:-1])
def test_a_partial_set_of_flags_is_an_error_that_names_what_is_missing(
    given: tuple[bool, bool, bool],
) -> None:
    flags = dict(zip(("--tls-cert", "--tls-key", "--tls-ca"), given, strict=True))
    cert, key, ca = ("file.pem" if there else "" for there in given)
    with pytest.raises(PartialTlsError) as caught:
        TlsFiles.from_flags(cert, key, ca)
    missing = " and ".join(flag for flag, there in flags.items() if not there)
    assert f"and {missing} is missing (" in str(caught.value)


@rule("deploy.D-15")
def test_no_flags_mean_plaintext_and_three_mean_tls() -> None:
    assert TlsFiles.from_flags("", "", "") is None
    assert TlsFiles.from_flags("c", "k", "a") == TlsFiles(Path("c"), Path("k"), Path("a"))


@rule("deploy.D-19")
def test_the_leaf_tells_its_serial_and_its_lifetime(ca: CertificateAuthority, tmp_path: Path) -> None:
    issued = datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)
    expiry = datetime.datetime(2120, 1, 1, tzinfo=datetime.UTC)
    issue = ca.issue("bigfleet://admin", issued=issued, expiry=expiry)
    leaf = TlsCredentials(issue.write(tmp_path), ADMIN).leaf()
    assert leaf.serial == issue.serial
    assert (leaf.issued_unix, leaf.expiry_unix) == (issued.timestamp(), expiry.timestamp())


@rule("deploy.D-19")
def test_a_leaf_is_due_from_a_third_of_its_lifetime_on(ca: CertificateAuthority, tmp_path: Path) -> None:
    leaf = TlsCredentials(ca.issue().write(tmp_path), None).leaf()
    third = (leaf.expiry_unix - leaf.issued_unix) / 3
    assert not leaf.is_due(leaf.expiry_unix - third - 1)
    assert leaf.is_due(leaf.expiry_unix - third + 1)
    assert leaf.is_due(leaf.expiry_unix + 1)


@rule("deploy.D-19")
def test_an_expired_leaf_refuses_to_start(ca: CertificateAuthority, tmp_path: Path) -> None:
    just_over = datetime.datetime.now(datetime.UTC) - datetime.timedelta(seconds=2)
    files = ca.issue("bigfleet://admin", expiry=just_over).write(tmp_path)
    with pytest.raises(ExpiredCertificateError, match=r"expired at .*issue a new one"):
        TlsCredentials(files, ADMIN)


@rule("deploy.D-19")
@pytest.mark.parametrize(
    ("uris", "complaint"),
    [
        (
            ("bigfleet://shard/bigfleet-shard-1",),
            "names bigfleet://shard/bigfleet-shard-1 but this process is",
        ),
        (("bigfleet://cluster/bigfleet-shard-0",), "but this process is bigfleet://shard/bigfleet-shard-0"),
        (("bigfleet://admin",), "but this process is"),
        ((), "must name bigfleet://shard/bigfleet-shard-0: .* has 0"),
        (("bigfleet://shard/bigfleet-shard-0", "bigfleet://admin"), "must name .* has 2"),
    ],
)
def test_a_leaf_of_somebody_else_refuses_to_start(
    ca: CertificateAuthority, tmp_path: Path, uris: tuple[str, ...], complaint: str
) -> None:
    with pytest.raises(WrongIdentityError, match=complaint):
        TlsCredentials(ca.issue(*uris).write(tmp_path), SHARD_0)


def test_a_process_without_identity_of_its_own_takes_any_leaf(
    ca: CertificateAuthority, tmp_path: Path
) -> None:
    assert TlsCredentials(ca.issue().write(tmp_path), None).problem is None


@pytest.mark.parametrize("damaged", ["cert", "key", "ca"])
def test_a_file_that_is_not_what_its_flag_says_is_named(
    ca: CertificateAuthority, tmp_path: Path, damaged: str
) -> None:
    files = ca.issue().write(tmp_path)
    for content in (b"", b"not PEM", b"-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"):
        replace(getattr(files, damaged), content)
        with pytest.raises(CertificateError, match=f"--tls-{damaged}"):
            TlsCredentials(files, None)


@pytest.mark.parametrize("absent", ["cert", "key", "ca"])
def test_a_file_that_cannot_be_read_is_named(ca: CertificateAuthority, tmp_path: Path, absent: str) -> None:
    files = ca.issue().write(tmp_path)
    path: Path = getattr(files, absent)
    path.unlink()
    with pytest.raises(CertificateError, match=f"cannot read TLS file {path}: No such file"):
        TlsCredentials(files, None)


def test_an_encrypted_key_is_refused(ca: CertificateAuthority, tmp_path: Path) -> None:
    issue = ca.issue()
    files = issue.write(tmp_path)
    key = serialization.load_pem_private_key(issue.key_pem, None)
    locked = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(b"secret"),
    )
    replace(files.key, locked)
    with pytest.raises(CertificateError, match="not an unencrypted PEM private key"):
        TlsCredentials(files, None)


def test_a_key_of_another_certificate_refuses_to_start(ca: CertificateAuthority, tmp_path: Path) -> None:
    files = ca.issue().write(tmp_path)
    replace(files.key, ca.issue().key_pem)
    with pytest.raises(CertificateError, match="does not belong to the certificate"):
        TlsCredentials(files, None)


def test_the_private_key_is_not_shown_by_accident(ca: CertificateAuthority, tmp_path: Path) -> None:
    leaf = TlsCredentials(ca.issue().write(tmp_path), None).leaf()
    assert "PRIVATE KEY" not in repr(leaf)


@rule("deploy.D-16")
@pytest.mark.parametrize("first", ["cert", "key"])
def test_half_of_a_new_pair_is_ignored_until_the_other_half_arrives(
    ca: CertificateAuthority, tmp_path: Path, first: str
) -> None:
    files = ca.issue().write(tmp_path)
    credentials = TlsCredentials(files, None)
    old, new = credentials.leaf(), ca.issue()
    halves = [(files.cert, new.cert_pem), (files.key, new.key_pem)]
    if first == "key":
        halves.reverse()

    replace(*halves[0])
    assert credentials.leaf() is old
    assert "does not belong to the certificate" in (credentials.problem or "")

    replace(*halves[1])
    assert credentials.leaf().serial == new.serial
    assert credentials.problem is None


@rule("deploy.D-16")
def test_a_file_written_in_place_is_ignored_while_it_is_cut_short(
    ca: CertificateAuthority, tmp_path: Path
) -> None:
    files = ca.issue().write(tmp_path)
    credentials = TlsCredentials(files, None)
    old, new = credentials.leaf(), ca.issue()
    files.key.write_bytes(new.key_pem)
    for length in (0, 1, len(new.cert_pem) // 2, len(new.cert_pem) - 2):
        files.cert.write_bytes(new.cert_pem[:length])
        assert credentials.leaf() is old
    files.cert.write_bytes(new.cert_pem)
    assert credentials.leaf().serial == new.serial


@rule("deploy.D-16")
def test_files_that_vanish_for_a_moment_leave_the_old_pair_in_use(
    ca: CertificateAuthority, tmp_path: Path
) -> None:
    files = ca.issue().write(tmp_path)
    credentials = TlsCredentials(files, None)
    old, new = credentials.leaf(), ca.issue()
    files.cert.unlink()
    assert credentials.leaf() is old
    assert "cannot read TLS file" in (credentials.problem or "")
    new.write(tmp_path)
    assert credentials.leaf().serial == new.serial


@rule("deploy.D-16")
def test_a_pair_that_could_not_be_read_is_tried_again_although_it_did_not_change_since(
    ca: CertificateAuthority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    credentials = TlsCredentials(ca.issue().write(tmp_path), None)
    old, new = credentials.leaf(), ca.issue()
    new.write(tmp_path)

    def fail(path: Path) -> bytes:
        raise OSError(5, "Input/output error", str(path))

    with monkeypatch.context() as failing:
        failing.setattr(Path, "read_bytes", fail)
        assert credentials.leaf() is old
        assert "tls.crt: Input/output error" in (credentials.problem or "")
    assert credentials.leaf().serial == new.serial


@rule("deploy.D-16")
def test_a_secret_that_kubernetes_swaps_by_symlink_is_noticed(
    ca: CertificateAuthority, tmp_path: Path
) -> None:
    old, new = ca.issue(), ca.issue()
    written = [old.write(tmp_path / "1"), new.write(tmp_path / "2")]
    # The same size and time for both, as after a restore: only the file behind the link differs.
    for files in written:
        for path in (files.cert, files.key):
            os.utime(path, ns=(1, 1))
    (tmp_path / "..data").symlink_to("1")
    mounted = TlsFiles(*(tmp_path / "..data" / name for name in ("tls.crt", "tls.key", "ca.crt")))
    credentials = TlsCredentials(mounted, None)
    assert credentials.leaf().serial == old.serial

    (tmp_path / "..data_tmp").symlink_to("2")
    os.replace(tmp_path / "..data_tmp", tmp_path / "..data")
    assert credentials.leaf().serial == new.serial


def test_a_new_leaf_that_could_not_have_started_does_not_replace_a_good_one(
    ca: CertificateAuthority, tmp_path: Path
) -> None:
    credentials = TlsCredentials(ca.issue("bigfleet://admin").write(tmp_path), ADMIN)
    old = credentials.leaf()
    ca.issue("bigfleet://readonly").write(tmp_path)
    assert credentials.leaf() is old
    assert "names bigfleet://readonly" in (credentials.problem or "")
    ca.issue("bigfleet://admin", expiry=datetime.datetime.now(datetime.UTC) - DAY / 2).write(tmp_path)
    assert credentials.leaf() is old
    assert "expired at" in (credentials.problem or "")


def test_a_problem_is_forgotten_when_the_old_files_come_back(
    ca: CertificateAuthority, tmp_path: Path
) -> None:
    issue = ca.issue()
    files = issue.write(tmp_path)
    credentials = TlsCredentials(files, None)
    old = credentials.leaf()
    replace(files.cert, b"")
    assert credentials.leaf() is old and credentials.problem
    replace(files.cert, issue.cert_pem)
    assert credentials.leaf() is old and credentials.problem is None


def test_touching_the_files_is_not_a_rotation(ca: CertificateAuthority, tmp_path: Path) -> None:
    files = ca.issue().write(tmp_path)
    credentials = TlsCredentials(files, None)
    old = credentials.leaf()
    os.utime(files.cert, (time.time() + 5, time.time() + 5))
    assert credentials.leaf() is old
