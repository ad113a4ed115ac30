"""Which failures are tried again, how often, and inside which time."""

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bigfleet.shard.provider.failures import CallFailedError, FailureKind, classify
from bigfleet.shard.provider.retry import CALL_BUDGET, LIST_BUDGET, MAX_ATTEMPTS, SECOND, Attempts
from tests.support.rules import rule

KINDS = {
    "UNAVAILABLE": FailureKind.TRANSIENT,
    "DEADLINE_EXCEEDED": FailureKind.TRANSIENT,
    "CANCELLED": FailureKind.TRANSIENT,
    "RESOURCE_EXHAUSTED": FailureKind.TRANSIENT,
    "FAILED_PRECONDITION": FailureKind.FENCED,
    "NOT_FOUND": FailureKind.NOT_FOUND,
    "UNIMPLEMENTED": FailureKind.NOT_SUPPORTED,
    "INVALID_ARGUMENT": FailureKind.REFUSED,
    "PERMISSION_DENIED": FailureKind.REFUSED,
    "UNAUTHENTICATED": FailureKind.REFUSED,
    "ABORTED": FailureKind.FAILED,
    "ALREADY_EXISTS": FailureKind.FAILED,
    "INTERNAL": FailureKind.FAILED,
    "UNKNOWN": FailureKind.FAILED,
    "OUT_OF_RANGE": FailureKind.FAILED,
    "DATA_LOSS": FailureKind.FAILED,
}


@rule("shard.F3", "shard.X4")
@pytest.mark.parametrize("code", [code.name for code in grpc.StatusCode if code is not grpc.StatusCode.OK])
def test_every_status_has_its_class(code: str) -> None:
    assert classify(code) is KINDS[code]


@rule("provider.P-132")
@pytest.mark.parametrize("code", sorted(KINDS))
def test_only_transient_failures_are_tried_again_and_three_times_at_most(code: str) -> None:
    attempts = Attempts(0, CALL_BUDGET)
    pauses = []
    while (pause := attempts.pause(code, 0, 0.5)) is not None:
        pauses.append(pause)
    assert len(pauses) == (MAX_ATTEMPTS - 1 if KINDS[code] is FailureKind.TRANSIENT else 0)
    assert MAX_ATTEMPTS == 3


@rule("provider.P-132")
@given(st.floats(0, 1, exclude_max=True), st.floats(0, 1, exclude_max=True))
def test_pauses_grow_and_are_spread_by_jitter(first: float, second: float) -> None:
    attempts = Attempts(0, CALL_BUDGET)
    one, two = attempts.pause("UNAVAILABLE", 0, first), attempts.pause("UNAVAILABLE", 0, second)
    assert one is not None and SECOND // 2 <= one < SECOND
    assert two is not None and SECOND <= two < 2 * SECOND


@rule("provider.P-132", "shard.X5")
def test_no_attempt_begins_beyond_the_budget() -> None:
    attempts = Attempts(100, 2 * SECOND)
    assert attempts.left(100 + SECOND) == SECOND
    assert attempts.left(100 + 3 * SECOND) == 0
    assert attempts.pause("UNAVAILABLE", 100 + SECOND, 0.99) is not None
    assert attempts.pause("UNAVAILABLE", 100 + SECOND, 0) is None, "1 s of pause in the 1 s that is left"


def test_the_budgets_are_those_of_the_contract() -> None:
    assert (CALL_BUDGET, LIST_BUDGET) == (30 * SECOND, 120 * SECOND)


@rule("shard.R8")
def test_a_secret_in_a_strangers_text_is_not_kept_be_it_cut_off_by_the_end_or_not() -> None:
    for padding in (0, 1_000, 1_010, 1_020):
        error = CallFailedError(
            "Get", FailureKind.FAILED, "INTERNAL", "x " * (padding // 2) + "token=hunter2"
        )
        assert "hunter2"[:4] not in error.details and "hunter2"[:4] not in str(error)


def test_a_long_text_from_a_stranger_is_cut() -> None:
    assert len(CallFailedError("Get", FailureKind.FAILED, "INTERNAL", "x" * 5_000_000).details) == 1_024
