"""List: sets, cursors, pages, tombstones (provider.md §4.1)."""

import itertools
import zlib
from dataclasses import replace

import pytest

from bigfleet_base.api.v1alpha1 import provider_pb2 as pb
from bigfleet_base.model import MachineState
from bigfleet_providerkit.errors import InsufficientCapacity
from bigfleet_providerkit.listing import Cursors, Walk
from tests.support.rules import rule
from tests.unit.providerkit.lab import SECOND, Lab, offering

S = MachineState


def ids(listed: object) -> list[str]:
    return [machine.id for machine in listed.machines]  # type: ignore[attr-defined]  # a MachineList


@rule("provider.P-60", "provider.P-61")
def test_a_list_is_the_union_of_its_states_and_has_no_id_twice() -> None:
    lab = Lab(offering(6))
    lab.configured(0)
    lab.idle(1)
    lab.idle(2)
    sizes = {state: len(lab.list(state).machines) for state in (S.SPECULATIVE, S.IDLE, S.CONFIGURED)}
    assert sizes == {S.SPECULATIVE: 3, S.IDLE: 2, S.CONFIGURED: 1}
    both = ids(lab.list(S.IDLE, S.CONFIGURED))
    assert len(both) == 3 == len(set(both))
    assert len(set(ids(lab.list()))) == 6


@rule("provider.P-62")
@pytest.mark.parametrize(("cap", "size"), [(1, 1), (2, 2), (3, 3), (0, 7), (-1, 7), (100, 7)])
def test_the_cap_is_a_ceiling(cap: int, size: int) -> None:
    lab = Lab(offering(7))
    assert len(lab.list(cap=cap).machines) == size
    assert len(lab.list(S.SPECULATIVE, cap=cap).machines) == size


@rule("provider.P-63", "provider.P-64", "provider.P-67")
def test_a_delta_has_every_change_after_its_cursor_once() -> None:
    lab = Lab(offering(4))
    cursors, changed = [lab.list().revision], []
    for machine in lab.ids():
        lab.accept("create", machine)
        lab.finish(machine)
        changed.append(machine)
        cursors.append(lab.list().revision)
    assert len(set(cursors)) == 5
    for place, cursor in enumerate(cursors):
        assert ids(lab.list(since=cursor)) == changed[place:]
    assert all(S(machine.state) is S.IDLE for machine in lab.list(since=cursors[0]).machines)


@rule("provider.P-66", "provider.P-69")
def test_a_cursor_that_is_not_ours_gets_the_full_list() -> None:
    lab = Lab()
    good = lab.list().revision
    foreign = Cursors(b"another!").write(1)
    ahead = Cursors(b"\x01" * 8).write(10_000)
    bad = [good + b"!", good[:-1], b"\xde" * 4096, b"not-a-cursor", foreign, ahead, good[:-1] + b"\0"]
    for cursor in bad:
        listed = lab.list(since=cursor)
        assert len(listed.machines) == 3 and listed.full, cursor
    assert not lab.list(since=good).machines and not lab.list(since=good).full


@rule("provider.P-68")
def test_pages_threaded_by_their_cursor_lose_nothing() -> None:
    lab = Lab(offering(9))
    start = lab.list().revision
    changed = [lab.idle(place) for place in (7, 3, 1, 8, 0)]
    pages, cursor = [], start
    while page := ids(listed := lab.list(cap=2, since=cursor)):
        pages.append(page)
        cursor = listed.revision
    assert [len(page) for page in pages] == [2, 2, 1]
    assert list(itertools.chain(*pages)) == changed
    assert cursor == lab.list().revision


@rule("provider.P-68")
@pytest.mark.parametrize("many", [False, True])
def test_successive_picks_differ(many: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if many:
        monkeypatch.setattr("bigfleet_providerkit.listing._SORTED_PICK", 1)
    lab = Lab(offering(3))
    picks = [ids(lab.list(S.SPECULATIVE, cap=1)) for _ in range(6)]
    assert sorted(itertools.chain(*picks[:3])) == lab.ids() and picks[:3] == picks[3:]
    lab.idle(1)
    assert len({ids(lab.list(S.SPECULATIVE, cap=1))[0] for _ in range(4)}) == 2
    assert sorted(ids(lab.list(S.SPECULATIVE, cap=2))) == [lab.ids()[0], lab.ids()[2]]


@rule("provider.P-68")
def test_a_truncated_pick_can_be_threaded_without_loss() -> None:
    lab = Lab()
    pick = lab.list(S.SPECULATIVE, cap=1)
    assert len(lab.list(since=pick.revision).machines) == 3
    whole = lab.list(S.SPECULATIVE, cap=3)
    assert not lab.list(since=whole.revision).machines


@rule("provider.P-70")
def test_full_is_said_of_complete_lists_alone() -> None:
    lab = Lab(offering(5))
    head = lab.list().revision
    assert [
        lab.list(cap=2).full,
        lab.list(S.SPECULATIVE).full,
        lab.list(since=head).full,
        lab.list().full,
        lab.list(cap=5).full,
        lab.list(since=b"garbage").full,
        lab.list(since=b"garbage", cap=1).full,
    ] == [False, False, False, True, True, True, False]


def retired(lab: Lab, count: int) -> None:
    lab.offerings = [replace(lab.offerings[0], count=count)]
    lab.advance(60)
    lab.reconcile()


@rule("provider.P-70")
def test_a_retired_slot_is_in_removed_ids_until_it_is_back() -> None:
    lab = Lab(offering(4), reconcile_interval=60 * SECOND)
    before = lab.list().revision
    gone = lab.ids()[3]
    retired(lab, 3)
    delta = lab.list(since=before)
    assert list(delta.removed_ids) == [gone] and not delta.machines and not delta.full
    assert not lab.list().removed_ids and len(lab.list().machines) == 3
    lab.restart()
    assert list(lab.list(since=before).removed_ids) == [gone]
    retired(lab, 4)
    delta = lab.list(since=before)
    assert not delta.removed_ids and ids(delta) == [gone]


@rule("provider.P-70", "provider.P-68")
def test_a_page_carries_the_removals_up_to_its_own_position() -> None:
    lab = Lab(offering(6), reconcile_interval=60 * SECOND)
    before = lab.list().revision
    lab.idle(0)
    retired(lab, 5)
    lab.idle(1)
    retired(lab, 4)
    first = lab.list(cap=1, since=before)
    assert ids(first) == [lab.ids()[0]] and not first.removed_ids
    second = lab.list(cap=1, since=first.revision)
    assert len(second.machines) == 1 and len(second.removed_ids) == 2
    assert second.revision == lab.list().revision


@rule("provider.P-70")
def test_a_cursor_older_than_the_kept_tombstones_gets_a_full_list(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bigfleet_providerkit.listing.MAX_TOMBSTONES", 20)
    lab = Lab(offering(40), reconcile_interval=60 * SECOND)
    start = lab.list().revision
    retired(lab, 30)
    kept = lab.list().revision
    assert len(lab.list(since=start).removed_ids) == 10
    retired(lab, 5)
    lab.step()
    assert lab.core.listing.tombstones <= 20
    assert lab.list(since=start).full
    for _ in range(2):
        assert lab.list(since=start).full and len(lab.list(since=start).machines) == 5
        assert not lab.list(since=lab.list().revision).full
        lab.restart()
    assert kept != start


@rule("provider.P-64")
def test_the_log_of_changes_does_not_grow_with_their_number() -> None:
    lab = Lab(offering(5))
    start = lab.list().revision
    machine = lab.idle()
    for _ in range(1_000):
        lab.accept("configure", machine)
        lab.finish(machine)
        lab.accept("drain", machine)
        lab.finish(machine)
    assert len(lab.core.listing._changed) < 2_000
    assert ids(lab.list(since=start)) == [machine]
    assert len(ids(lab.list())) == 5


# ---- walks that take their time


def message(walk: Walk) -> pb.MachineList:
    assert walk.listed is not None
    return pb.MachineList.FromString(walk.listed.message())


@rule("provider.P-64", "provider.P-70", "provider.P-72")
@pytest.mark.parametrize("slices_before", [0, 1, 3])
@pytest.mark.parametrize("is_delta", [False, True])
def test_a_walk_in_slices_shows_the_state_it_began_with(is_delta: bool, slices_before: int) -> None:
    lab = Lab(offering(12), reconcile_interval=60 * SECOND)
    since = lab.list().revision if is_delta else b""
    for place in range(5):
        lab.idle(place)
    retired(lab, 10)
    expected = lab.list(since=since)
    found = lab.core.ask_list(frozenset(), 0, since)
    assert isinstance(found, Walk)
    with found as walk:
        for _ in range(slices_before):
            walk.advance(1)
        # Changed, removed, added and brought back while the walk is on its way; and the log made anew.
        for machine in lab.ids()[:3]:
            lab.accept("configure", machine)
            lab.settle(machine)
        retired(lab, 8)
        lab.core.listing.drop_tombstones(lab.core.listing.head)
        retired(lab, 14)
        lab.core.listing._compact()
        while walk.listed is None:
            walk.advance(1)
        assert message(walk) == expected
    assert lab.list() != expected and not lab.core.listing.walks


@rule("provider.P-68")
def test_a_capped_walk_ends_where_its_page_does() -> None:
    lab = Lab(offering(9))
    expected = lab.list(cap=4)
    found = lab.core.ask_list(frozenset(), 4, b"")
    assert isinstance(found, Walk)
    with found as walk:
        while walk.listed is None:
            walk.advance(2)
        assert message(walk) == expected and len(expected.machines) == 4


@rule("provider.P-60", "provider.P-68")
def test_an_id_that_left_and_came_back_is_picked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bigfleet_providerkit.listing._SORTED_PICK", 1)
    lab = Lab(offering(4), reconcile_interval=60 * SECOND)
    lab.list(S.SPECULATIVE, cap=1)
    retired(lab, 2)
    retired(lab, 4)
    assert sorted(ids(lab.list(S.SPECULATIVE, cap=4))) == lab.ids()
    retired(lab, 3)
    assert sorted(ids(lab.list(S.SPECULATIVE, cap=4))) == lab.ids()


@rule("provider.P-68")
def test_a_slot_that_was_added_during_a_stock_out_is_picked_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bigfleet_providerkit.listing._SORTED_PICK", 1)
    lab = Lab(offering(2), reconcile_interval=60 * SECOND)
    lab.list(S.SPECULATIVE, cap=1)
    [machine, _] = lab.ids()
    lab.accept("create", machine)
    lab.finish(machine, error=InsufficientCapacity(retry_after=90))
    retired(lab, 4)
    assert not lab.list(S.SPECULATIVE, cap=4).machines
    lab.advance(300)
    assert len(lab.list(S.SPECULATIVE).machines) == 4
    assert sorted(ids(lab.list(S.SPECULATIVE, cap=4))) == lab.ids()


def test_the_order_of_ids_does_not_grow_with_comings_and_goings() -> None:
    lab = Lab(offering(100), reconcile_interval=60 * SECOND)
    for _ in range(15):
        retired(lab, 0)
        retired(lab, 100)
    assert len(lab.core.listing._order) <= 2 * 100 + 1024


# ---- old tombstones

HOUR = 3_600


@rule("provider.P-70")
def test_a_tombstone_is_dropped_after_a_day_and_its_cursors_with_it() -> None:
    lab = Lab(offering(6), reconcile_interval=60 * SECOND)
    start = lab.list().revision
    retired(lab, 5)
    first = lab.list().revision
    lab.idle()
    passed(lab, 12 * HOUR)
    retired(lab, 4)
    second = lab.list().revision
    passed(lab, 11 * HOUR)
    assert len(lab.list(since=start).removed_ids) == 2, "kept for a day"
    passed(lab, 3 * HOUR)
    assert lab.core.listing.tombstones == 1
    assert lab.list(since=start).full and not lab.list(since=start).removed_ids
    assert len(lab.list(since=first).removed_ids) == 1, "this one has seen the removal that was dropped"
    passed(lab, 11 * HOUR)
    assert lab.core.listing.tombstones == 0
    assert lab.list(since=first).full and not lab.list(since=second).full


@rule("provider.P-70")
def test_the_age_of_a_tombstone_from_before_a_restart_counts_from_the_restart() -> None:
    lab = Lab(offering(6), reconcile_interval=60 * SECOND)
    start = lab.list().revision
    retired(lab, 5)
    passed(lab, 23 * HOUR)
    lab.restart()
    passed(lab, 23 * HOUR)
    assert len(lab.list(since=start).removed_ids) == 1
    passed(lab, 2 * HOUR)
    assert lab.list(since=start).full
    lab.restart()
    assert lab.list(since=start).full


def paged(lab: Lab, cap: int, since: bytes = b"") -> list[pb.MachineList]:
    """Pages, each asked for by the cursor of the one before, up to the empty one or far too many."""
    pages = [lab.list(cap=cap, since=since)]
    while pages[-1].machines and len(pages) < 50:
        pages.append(lab.list(cap=cap, since=pages[-1].revision))
    return pages


def forgotten(lab: Lab) -> None:
    """Every tombstone is dropped, as after a day."""
    lab.core.listing.drop_tombstones(lab.core.listing.head)


@rule("provider.P-68", "provider.P-70")
@pytest.mark.parametrize("restarted", [False, True])
def test_pages_from_the_first_machine_on_end_also_when_removals_are_forgotten(restarted: bool) -> None:
    lab = Lab(offering(20), offering(1, zone="z2"), reconcile_interval=60 * SECOND)
    start = lab.list().revision
    lab.offerings = lab.offerings[:1]
    lab.advance(60)
    lab.reconcile()
    passed(lab, 25 * HOUR)
    assert lab.core.listing.tombstones == 0 and lab.list(since=start).full
    if restarted:
        lab.restart()
    for since in (b"", start, b"garbage"):
        pages = paged(lab, 6, since)
        assert [len(page.machines) for page in pages] == [6, 6, 6, 2, 0]
        assert sorted(itertools.chain(*map(ids, pages))) == sorted(lab.ids())
        assert not any(page.full or page.removed_ids for page in pages)
        assert pages[-1].revision == lab.list().revision


@rule("provider.P-68", "provider.P-70")
def test_removals_after_the_first_page_are_on_a_later_one() -> None:
    lab = Lab(offering(9), reconcile_interval=60 * SECOND)
    retired(lab, 8)
    forgotten(lab)
    for place in range(5):
        lab.idle(place)
    first = lab.list(cap=3)
    retired(lab, 7)
    pages = paged(lab, 3, first.revision)
    assert list(itertools.chain(*(page.removed_ids for page in pages))) == [ids(first)[-1]]
    assert not lab.list(since=pages[-1].revision).removed_ids


@rule("provider.P-70")
def test_a_page_whose_removals_were_forgotten_leads_to_the_first_one() -> None:
    lab = Lab(offering(9), reconcile_interval=60 * SECOND)
    retired(lab, 8)
    forgotten(lab)
    first = lab.list(cap=3)
    retired(lab, 6)
    forgotten(lab)
    second = lab.list(cap=3, since=first.revision)
    assert ids(second) == ids(first) and not second.full, "one of them may have been removed"
    whole = lab.list(since=first.revision)
    assert whole.full and len(whole.machines) == 6
    assert [len(page.machines) for page in paged(lab, 3, second.revision)] == [3, 0]


@rule("provider.P-69")
def test_a_page_of_a_store_that_was_ahead_gets_the_full_list() -> None:
    lab = Lab(offering(9))
    cursors = Cursors(b"\x01" * 8)
    assert lab.list(since=cursors.write(3, lab.core.listing.head + 1)).full
    assert not lab.list(since=cursors.write(3, lab.core.listing.head)).full


@rule("provider.P-69")
def test_a_cursor_of_an_earlier_release_is_read() -> None:
    lab = Lab(offering(4))
    machine = lab.idle()
    body = b"\x01" * 8 + (lab.core.listing.head - 1).to_bytes(8, "big")
    delta = lab.list(since=body + zlib.crc32(body).to_bytes(4, "big"))
    assert ids(delta) == [machine] and not delta.full


def passed(lab: Lab, seconds: int) -> None:
    """Time goes by, and something happens every ten minutes."""
    for _ in range(0, seconds, 600):
        lab.now += 600 * SECOND
        lab.step()
