"""What may appear in a log line, and what may not."""

import math
from collections import OrderedDict
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from pathlib import Path

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bigfleet_base.model import HostRef, MachineState
from bigfleet_base.model.lifecycle import Rpc
from bigfleet_base.telemetry.redact import (
    MAX_DEPTH,
    MAX_ITEMS,
    MAX_TEXT,
    REDACTED,
    error_text,
    fields,
    is_secret,
    plain,
    stack,
    text,
)

PEM = "-----BEGIN PRIVATE KEY-----\nMIIEvQIBADANBgkqhkiG9w0BAQEF\nAASCBKcwggSj\n-----END PRIVATE KEY-----"
JWT = "eyJhbGciOiJSUzI1NiIsImtpZCI6IkEifQ.eyJpc3MiOiJrdWJlcm5ldGVzIn0.c2lnbmF0dXJl"


@pytest.mark.parametrize(
    "name",
    [
        *("blob", "bootstrap_blob", "bootstrapBlob", "user_data", "userData", "USER_DATA", "userdata"),
        *("token", "bearer_token", "join-token", "tokens", "authorization", "Authorization"),
        *("certificate", "tls_cert", "TLSCert", "client.pem", "private_key", "privateKey", "apiKey"),
        *("secret", "client_secret", "password", "credentials", "kubeconfig", "cookie"),
        *("labels", "nodeLabels", "annotations", "metadata", "shard_metadata", "spec", "pod_spec", "podSpec"),
        *("template", "bootstrap_template"),
    ],
)
def test_secret_fields_are_known_by_their_names(name: str) -> None:
    assert is_secret(name)
    assert fields({name: "hunter2", "nested": {name: ["hunter2"]}}) == {
        name: REDACTED,
        "nested": {name: REDACTED},
    }


@pytest.mark.parametrize(
    "name",
    [
        # Every field that observability.md §7 and shard.md §18.1 name.
        *("ts", "level", "msg", "component", "suppressed", "shard_id", "shard_epoch", "cluster", "machine"),
        *("operation_id", "coordinator_term", "trace_id", "execute_workers", "queue_capacity", "store"),
        *("rollup_interval", "shard_addr", "protocol", "err", "reason", "backoff_s", "presented_identity"),
        *("rows", "crs", "bytes", "seq", "previous_rows", "new_rows", "held_consecutive", "accepted_after"),
        *("cycle", "needs", "deferred", "shortfalls", "count", "top_fingerprints", "by_class", "max_age"),
        *("needs_plain", "needs_same", "p1_unsatisfied", "p3_reclaims", "reclaim_matches_unsatisfied"),
        *("kind", "outcome", "attempt", "deferred_reclaims", "cap_fraction", "epoch", "sequence", "provider"),
        *("path", "state", "field", "age_s", "timeout_s", "grace", "term", "shard", "tier", "gate", "dest"),
        *("revision", "actor", "before", "after", "instruction_id", "nodes", "grace_seconds"),
        *("preemptor_priority", "blocked_by_pdb", "name", "addr", "coord", "interval", "rpc"),
        # Where a secret is, or how big, is no secret.
        *("secret_name", "cert_path", "user_data_bytes", "token_count"),
    ],
)
def test_fields_people_need_are_shown(name: str) -> None:
    assert fields({name: "value"}) == {name: "value"}


def test_numbers_under_a_secret_name_are_shown() -> None:
    assert fields({"blob": 512, "token": None, "labels": 3.5, "metadata": True}) == {
        "blob": 512,
        "token": None,
        "labels": 3.5,
        "metadata": True,
    }


@pytest.mark.parametrize(
    ("secret", "around"),
    [
        (PEM, "cannot load {} from disk"),
        (PEM[:60], "cut off: {}"),
        (JWT, "request with {} failed"),
        ("Bearer abc.def-ghi", "authorization: {}"),
        ("abcdef.0123456789abcdef", "kubeadm join with {} refused"),
        ("token=s3cr3t", "GET /join?{} failed"),
        ('"token": "s3cr3t"', "body {} refused"),
        ("password: hunter2", "login with {} failed"),
        ("client_secret = hunter2", "login with {} failed"),
        ("admin:hunter2", "cannot reach https://{}@registry.internal/v1"),
    ],
)
def test_what_looks_like_a_secret_is_cut_out_of_texts(secret: str, around: str) -> None:
    whole = around.format(secret)
    shown = text(whole)
    assert REDACTED in shown
    for part in ("MIIEv", "AASCB", "eyJ", "c2lnbmF", "def-ghi", "0123456789abcdef", "s3cr3t", "hunter2"):
        assert part not in shown
    assert shown.split()[0] == whole.split()[0]


@pytest.mark.parametrize(
    "harmless",
    [
        "rollup rejected at ingest validation; keeping last-known-good demand",
        "provider fenced this shard's mutation — zombie-shard incident; do not retry, investigate duplicate "
        "shard identity",
        "UNAVAILABLE: connection refused: 10.0.0.7:443",
        "bigfleet://shard/bigfleet-shard-0",
        "2026-06-18T01:36:12.000000Z",
        "a3-highgpu-8g in dev-zone-a",
        "sha256 9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
    ],
)
def test_ordinary_texts_are_left_alone(harmless: str) -> None:
    assert text(harmless) == harmless


@dataclass(frozen=True)
class Holder:
    user_data: bytes = b"hunter2"


class Evil:
    def __repr__(self) -> str:
        raise RuntimeError("no")

    __str__ = __repr__


class Colour(Enum):
    RED = "#f00"


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (b"hunter2", "<7 bytes>"),
        (bytearray(3), "<3 bytes>"),
        (memoryview(b"12345"), "<5 bytes>"),
        (Holder(), "<tests.unit.base.telemetry.test_redact.Holder>"),
        (HostRef("p", "r"), "<bigfleet_base.model.machine.HostRef>"),
        (Evil(), "<tests.unit.base.telemetry.test_redact.Evil>"),
        (MachineState.IDLE, "IDLE"),
        (Rpc.CREATE, "Create"),
        (Colour.RED, "RED"),
        (Path("/etc/bigfleet/tls"), "/etc/bigfleet/tls"),
        (datetime(2026, 1, 2, tzinfo=UTC), "2026-01-02 00:00:00+00:00"),
        (date(2026, 1, 2), "2026-01-02"),
        (timedelta(seconds=90), "0:01:30"),
        (Fraction(1, 4), 0.25),
        (Decimal("1.5"), "<decimal.Decimal>"),
        (2**63, 2**63),
        (-(2**63), -(2**63)),
        (2**64, "<int of 65 bits>"),
        (10**9999, "<int of 33216 bits>"),
        (math.nan, "nan"),
        (-math.inf, "-inf"),
        (ValueError("wrong flag"), "ValueError: wrong flag"),
        (KeyError(), "KeyError"),
        ((1, "a", None, True), [1, "a", None, True]),
        (frozenset({3}), [3]),
        ({1: "a", ("x",): 2, None: 3}, {"1": "a", "['x']": 2, "None": 3}),
        (OrderedDict(token="hunter2"), {"token": REDACTED}),
        ("\udcff\x00\x1b[31m", "\\udcff\x00\x1b[31m"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_values_become_plain(value: object, shown: object) -> None:
    assert plain(value) == shown
    orjson.dumps(plain(value))


def test_long_values_are_cut() -> None:
    assert plain("x" * (MAX_TEXT + 5)) == "x" * MAX_TEXT + "… 5 characters more"
    assert plain(list(range(MAX_ITEMS + 2))) == [*range(MAX_ITEMS), "… 2 more"]
    wide = plain({str(number): number for number in range(MAX_ITEMS + 1)})
    assert isinstance(wide, dict)
    assert wide["…"] == "1 more"


def test_a_value_that_contains_itself_is_cut() -> None:
    knot: list[object] = []
    knot.append(knot)
    shown = plain(knot)
    for _ in range(MAX_DEPTH - 1):
        assert isinstance(shown, list)
        [shown] = shown
    assert shown == ["<nested too deeply>"]


class Broken(dict[str, int]):
    def items(self) -> object:  # type: ignore[override]  # the point is that it is not what it says
        raise OSError("gone")


def test_one_bad_value_does_not_cost_the_others() -> None:
    assert fields({"good": 1, "bad": Broken(), "also": "fine"}) == {
        "good": 1,
        "bad": "<not to be had: OSError>",
        "also": "fine",
    }


class Mute(Exception):  # noqa: N818  (the name says what it does)
    def __str__(self) -> str:
        raise RuntimeError("no")


def test_an_error_without_a_text_has_a_name() -> None:
    assert error_text(Mute()) == "Mute: <not to be had>"


def raised(depth: int, message: str) -> Exception:
    def fail(left: int) -> None:
        if left:
            fail(left - 1)
        raise ValueError(message)

    try:
        fail(depth)
    except ValueError as error:
        return error
    raise AssertionError


def test_a_stack_ends_with_the_error_and_is_bounded() -> None:
    lines = stack(raised(900, "deep"))
    assert lines[-1] == "ValueError: deep"
    assert len(lines) <= MAX_ITEMS
    assert len(stack(raised(1, "x\n" * 100_000))) <= MAX_ITEMS


def test_a_stack_shows_no_secret_that_runs_over_several_lines() -> None:
    shown = "\n".join(stack(raised(1, f"cannot parse {PEM}")))
    assert "MIIEv" not in shown
    assert "AASCB" not in shown
    assert REDACTED in shown


anything: st.SearchStrategy[object] = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(),
        st.floats(),
        st.text(st.characters(codec=None)),
        st.binary(),
        st.datetimes(),
        st.decimals(),
        st.fractions(),
        st.complex_numbers(),
        st.builds(object),
        st.builds(ValueError, st.text(st.characters(codec=None))),
    ),
    lambda inner: st.one_of(
        st.lists(inner),
        st.tuples(inner),
        st.dictionaries(st.one_of(st.text(), st.integers(), st.none()), inner),
    ),
)


@given(anything)
def test_everything_can_be_encoded(value: object) -> None:
    orjson.dumps(plain(value))


@given(anything)
def test_bytes_are_never_shown(value: object) -> None:
    marker = b"\xfehunter2"
    shown = orjson.dumps(fields({"a": [marker, {"b": marker}], "c": value, "d": memoryview(marker)}))
    assert b"hunter2" not in shown
