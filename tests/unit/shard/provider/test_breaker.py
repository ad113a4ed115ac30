"""When mutations to a provider are held back, and when they are tried again."""

from hypothesis import given
from hypothesis import strategies as st

from bigfleet.shard.provider.breaker import FAILURES_TO_OPEN, Breaker, Permit
from bigfleet.shard.provider.retry import SECOND
from tests.support.rules import rule


def opened(now: int = 0) -> Breaker:
    breaker = Breaker()
    for _ in range(FAILURES_TO_OPEN):
        breaker.failed(Permit.MUTATION, now)
    assert breaker.is_open
    return breaker


@rule("provider.P-140")
def test_a_provider_that_never_answers_is_sent_mutations_after_pauses_that_double_to_two_minutes() -> None:
    breaker = opened()
    sent = []
    for second in range(600):
        breaker.failed(Permit.READ, second * SECOND)  # List keeps probing and changes nothing
        permit = breaker.admit(second * SECOND)
        if permit is not None:
            assert permit is Permit.TRIAL
            sent.append(second)
            breaker.failed(permit, second * SECOND)
    assert sent == [10, 30, 70, 150, 270, 390, 510]


@rule("provider.P-140")
def test_five_failures_in_a_row_open_it_and_an_answer_in_between_starts_the_count_again() -> None:
    breaker = Breaker()
    for _ in range(3):
        for _ in range(FAILURES_TO_OPEN - 1):
            breaker.failed(Permit.READ, 0)
        assert not breaker.is_open
        breaker.answered()
    assert FAILURES_TO_OPEN == 5 and opened().is_open


@rule("provider.P-140")
def test_one_trial_at_a_time() -> None:
    breaker = opened()
    now = 10 * SECOND
    assert breaker.would_admit(now)
    assert breaker.admit(now) is Permit.TRIAL
    assert breaker.admit(now) is None and not breaker.would_admit(now)


@rule("provider.P-140")
def test_the_first_answer_closes_it_and_the_next_outage_begins_with_the_first_pause() -> None:
    breaker = opened()
    breaker.failed(breaker.admit(10 * SECOND) or Permit.READ, 10 * SECOND)
    breaker.answered()
    assert breaker.admit(11 * SECOND) is Permit.MUTATION
    for _ in range(FAILURES_TO_OPEN):
        breaker.failed(Permit.MUTATION, 20 * SECOND)
    assert breaker.admit(29 * SECOND) is None
    assert breaker.admit(30 * SECOND) is Permit.TRIAL


def test_calls_that_were_under_way_when_it_opened_do_not_lengthen_the_pause() -> None:
    breaker = opened()
    for _ in range(32):
        breaker.failed(Permit.MUTATION, 5 * SECOND)
    assert breaker.admit(10 * SECOND) is Permit.TRIAL


def test_a_trial_whose_caller_gave_up_is_handed_to_the_next() -> None:
    breaker = opened()
    permit = breaker.admit(10 * SECOND)
    assert permit is Permit.TRIAL
    breaker.abandoned(permit)
    assert breaker.admit(10 * SECOND) is Permit.TRIAL


@given(st.lists(st.sampled_from(["ok", "lost", "gone"]), max_size=200))
def test_it_never_holds_back_longer_than_two_minutes(outcomes: list[str]) -> None:
    breaker, now = Breaker(), 0
    for outcome in outcomes:
        permit = breaker.admit(now)
        if permit is None:
            now += 120 * SECOND
            permit = breaker.admit(now)
        assert permit is not None
        if outcome == "ok":
            breaker.answered()
        elif outcome == "lost":
            breaker.failed(permit, now)
        else:
            breaker.abandoned(permit)
