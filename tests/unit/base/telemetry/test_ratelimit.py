"""The limit on equal lines, under a clock of our own."""

from hypothesis import given
from hypothesis import strategies as st

from bigfleet_base.telemetry.ratelimit import LINES_PER_SECOND, MAX_KEYS, SECOND_NS, RateLimit


def test_ten_lines_pass_and_the_eleventh_does_not() -> None:
    limit = RateLimit[str]()
    assert [limit.admit("a", number) for number in range(11)] == [0] * 10 + [None]


def test_other_keys_are_not_affected() -> None:
    limit = RateLimit[str]()
    for _ in range(50):
        limit.admit("a", 0)
    assert limit.admit("b", 0) == 0


def test_the_next_line_says_how_many_were_left_out() -> None:
    limit = RateLimit[str]()
    for _ in range(15):
        limit.admit("a", 0)
    assert limit.admit("a", SECOND_NS - 1) is None
    assert limit.admit("a", SECOND_NS) == 6
    assert limit.admit("a", SECOND_NS) == 0


def test_what_no_later_line_reports_is_overdue_after_a_second_of_silence() -> None:
    limit = RateLimit[str]()
    for _ in range(12):
        limit.admit("a", 0)
    limit.admit("b", 0)
    assert list(limit.overdue(SECOND_NS - 1)) == []
    assert list(limit.overdue(SECOND_NS)) == [("a", 2)]
    assert list(limit.overdue(SECOND_NS)) == []
    assert limit.admit("a", SECOND_NS) == 0


def test_a_key_that_goes_on_does_not_hold_up_those_that_stopped() -> None:
    limit = RateLimit[str]()
    limit.admit("goes on", 0)
    for _ in range(11):
        limit.admit("stopped", 0)
    limit.admit("goes on", SECOND_NS)
    assert list(limit.overdue(SECOND_NS)) == [("stopped", 1)]


def test_memory_is_bounded_however_many_keys_there_are() -> None:
    limit = RateLimit[int]()
    for number in range(3 * MAX_KEYS):
        limit.admit(number, 0)
        assert not list(limit.overdue(0))
    assert len(limit._recent) == MAX_KEYS


def test_a_key_forgotten_early_is_reported_first() -> None:
    limit = RateLimit[int]()
    for _ in range(11):
        limit.admit(-1, 0)
    for number in range(MAX_KEYS):
        limit.admit(number, 0)
    assert list(limit.overdue(0)) == [(-1, 1)]


@given(st.lists(st.tuples(st.integers(0, SECOND_NS), st.sampled_from("abc")), max_size=200))
def test_no_second_has_more_than_ten_equal_lines_and_none_is_lost(steps: list[tuple[int, str]]) -> None:
    limit = RateLimit[str]()
    now = 0
    written: dict[str, list[int]] = {"a": [], "b": [], "c": []}
    reported = 0
    for step, key in steps:
        # Many small steps and a few large ones.
        now += step if step % 5 == 0 else step // 100
        reported += sum(count for _, count in limit.overdue(now))
        suppressed = limit.admit(key, now)
        if suppressed is not None:
            written[key].append(now)
            reported += suppressed
    reported += sum(count for _, count in limit.overdue(now + SECOND_NS))
    assert sum(map(len, written.values())) + reported == len(steps)
    for times in written.values():
        assert all(
            late - early >= SECOND_NS for early, late in zip(times, times[LINES_PER_SECOND:], strict=False)
        )
