"""When a List asks for changes, when for everything, and when what it leaves out is gone."""

import pytest

from bigfleet.shard.provider.cursor import FULL_INTERVAL, MAX_REVISION_BYTES, Cursor, is_complete
from bigfleet.shard.provider.retry import SECOND
from tests.support.rules import rule


def merged(cursor: Cursor, revision: bytes, *, complete: bool, now: int = 0, jitter: float = 0.5) -> None:
    cursor.merged(revision, complete=complete, now=now, jitter=jitter)


@rule("provider.P-138")
def test_the_first_list_asks_for_everything_and_the_next_for_what_changed() -> None:
    cursor = Cursor(incremental=True)
    assert cursor.since(0, honoured=None) == b""
    merged(cursor, b"r1", complete=True)
    assert cursor.since(SECOND, honoured=None) == b"r1"
    merged(cursor, b"r2", complete=False)
    assert cursor.since(2 * SECOND, honoured=True) == b"r2"


@rule("provider.P-138")
@pytest.mark.parametrize(("jitter", "seconds"), [(0.0, 540), (0.5, 570), (0.999999, 599)])
def test_every_ten_minutes_everything_is_asked_for_spread_by_jitter(jitter: float, seconds: int) -> None:
    assert FULL_INTERVAL == 600 * SECOND
    cursor = Cursor(incremental=True)
    merged(cursor, b"r1", complete=True, jitter=jitter)
    merged(cursor, b"r2", complete=False, now=500 * SECOND, jitter=jitter)
    assert cursor.since((seconds - 1) * SECOND, honoured=True) == b"r2"
    assert cursor.since((seconds + 1) * SECOND, honoured=True) == b""


def test_without_incremental_reconcile_every_list_is_full() -> None:
    cursor = Cursor(incremental=False)
    merged(cursor, b"r1", complete=True)
    assert cursor.since(SECOND, honoured=True) == b""


@rule("provider.P-142")
def test_no_cursor_is_sent_to_a_provider_that_says_it_ignores_them() -> None:
    cursor = Cursor(incremental=True)
    merged(cursor, b"r1", complete=True)
    assert cursor.since(SECOND, honoured=False) == b""


def test_an_empty_revision_leads_to_a_full_list_at_once() -> None:
    cursor = Cursor(incremental=True)
    merged(cursor, b"r1", complete=True)
    merged(cursor, b"", complete=False)
    assert cursor.since(SECOND, honoured=None) == b""


def test_a_revision_above_its_bound_is_not_kept() -> None:
    cursor = Cursor(incremental=True)
    merged(cursor, bytes(MAX_REVISION_BYTES), complete=True)
    assert cursor.since(1, honoured=None) == bytes(MAX_REVISION_BYTES)
    merged(cursor, bytes(MAX_REVISION_BYTES + 1), complete=False)
    assert cursor.since(1, honoured=None) == b""


@rule("provider.P-70", "provider.P-138")
@pytest.mark.parametrize(
    ("full", "asked_for_all", "complete"),
    [
        (True, True, True),
        (True, False, True),
        (False, True, False),
        (False, False, False),
        (None, True, True),
        (None, False, False),
    ],
)
def test_a_list_is_complete_when_it_says_so_or_when_a_base_peer_was_asked_for_all(
    full: bool | None, asked_for_all: bool, complete: bool
) -> None:
    assert is_complete(full, asked_for_all=asked_for_all) is complete
