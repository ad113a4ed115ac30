"""Verdicts: what a certificate takes, and everything that costs it."""

from collections.abc import Sequence

import pytest

from bigfleet_providerkit.conformance.catalogue import BEHAVIOURS
from bigfleet_providerkit.conformance.outcome import Judgement, Result, Status, Verdict, judge


def result(behaviour_id: str, status: Status, *, required: bool = True, lenient: str = "") -> Result:
    return Result(BEHAVIOURS[behaviour_id], status, required, lenient=lenient)


def judged(*results: Result, compat: bool = False, no_vacuous: bool = False) -> Judgement:
    return judge(results, compat=compat, no_vacuous=no_vacuous)


PASSED = result("B101", Status.PASSED)


@pytest.mark.parametrize(
    ("others", "verdict"),
    [
        ([], Verdict.CERTIFIED),
        ([result("B103", Status.VACUOUS)], Verdict.CERTIFIED),
        ([result("B109", Status.SKIPPED_CAPABILITY)], Verdict.CERTIFIED),
        ([result("B103", Status.FAILED)], Verdict.FAILED),
        ([result("B103", Status.ERROR)], Verdict.FAILED),
        ([result("B103", Status.FAILED, required=False)], Verdict.CERTIFIED),
        ([result("B103", Status.SKIPPED_FIXTURE)], Verdict.INCOMPLETE),
        ([result("B103", Status.NOT_RUN)], Verdict.INCOMPLETE),
        ([result("B103", Status.NOT_IMPLEMENTED)], Verdict.INCOMPLETE),
        ([result("B103", Status.SKIPPED_FIXTURE, required=False)], Verdict.CERTIFIED),
        ([result("B103", Status.SKIPPED_FIXTURE), result("B104", Status.FAILED)], Verdict.FAILED),
    ],
)
def test_every_status_has_its_weight(others: Sequence[Result], verdict: Verdict) -> None:
    assert judged(PASSED, *others).verdict is verdict


def test_an_area_in_which_nothing_passed_is_incomplete() -> None:
    judgement = judged(PASSED, result("B409", Status.SKIPPED_CAPABILITY))
    assert judgement.verdict is Verdict.INCOMPLETE
    assert judgement.reasons == ("nothing passed in Concurrency & Idempotency",)


def test_a_run_that_required_nothing_certifies_nothing() -> None:
    assert judged(result("B101", Status.PASSED, required=False)).verdict is Verdict.INCOMPLETE


def test_vacuous_checks_fail_when_nobody_wants_them() -> None:
    assert judged(PASSED, result("B103", Status.VACUOUS), no_vacuous=True).verdict is Verdict.FAILED


def test_a_lenient_alternative_shows_in_the_verdict() -> None:
    judgement = judged(PASSED, result("B210", Status.PASSED, lenient="OK"), compat=True)
    assert judgement.verdict is Verdict.CERTIFIED_COMPAT
    assert judgement.reasons == ("B210: OK",)


def test_in_compat_mode_our_own_ids_show_in_the_verdict_and_do_not_decide_it() -> None:
    judgement = judged(PASSED, result("X102", Status.FAILED, required=False), compat=True)
    assert judgement.verdict is Verdict.CERTIFIED_COMPAT


def test_the_verdict_names_what_it_rests_on() -> None:
    judgement = judged(PASSED, result("B103", Status.FAILED), result("B104", Status.ERROR))
    assert judgement.reasons == ("B103 failed", "B104 error")
