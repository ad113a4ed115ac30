"""From answers to news: each change once, nothing lost, nothing called gone that is not."""

import gc
from array import array
from collections.abc import Generator
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bigfleet.shard.provider import ledger as ledger_module
from bigfleet.shard.provider.ledger import Ledger
from bigfleet.shard.provider.listing import (
    BYTES_PER_SLICE,
    MAX_PAGES,
    MISSING_PER_SLICE,
    PAGE_RECORDS,
    RECORDS_PER_SLICE,
    ListEnd,
    ListRun,
    ListSlice,
    Page,
    read_missing,
    read_page,
)
from bigfleet_base.api.v1alpha1 import provider_pb2 as pb
from bigfleet_base.wire import RecordDecoder
from tests.support.rules import rule
from tests.unit.base.wire.provider_records import idle, message, record


@dataclass
class Told:
    """What one List has told the core."""

    end: ListEnd
    slices: list[ListSlice] = field(default_factory=list)
    turns: int = 0

    @property
    def changed(self) -> list[str]:
        return [seen.machine.id for part in self.slices for seen in part.changed]

    @property
    def gone(self) -> list[str]:
        return [machine_id for part in self.slices for machine_id in part.gone]

    @property
    def rejected(self) -> list[tuple[str, str]]:
        return [(bad.machine_id, bad.reason) for part in self.slices for bad in part.rejected]


class Reader:
    """A client's memory without the client."""

    def __init__(self) -> None:
        self.ledger = Ledger()
        self.decoder = RecordDecoder()

    def start(self, data: bytes, since: bytes = b"") -> Generator[ListSlice | None, None, ListRun]:
        """One List that is answered at once, as the client reads it."""
        run = ListRun(since, paged=False)
        self.ledger.begin_list()
        page = yield from read_page(data, 7, self.ledger, self.decoder)
        assert run.is_last(page)
        if run.shows_missing:
            yield from read_missing(7, self.ledger)
        return run

    def read(self, data: bytes, since: bytes = b"") -> Told:
        reading, turns = self.start(data, since), 0
        slices: list[ListSlice] = []
        while True:
            try:
                news = next(reading)
            except StopIteration as stop:
                return Told(stop.value.end(), slices, turns)
            turns += 1
            if news is not None:
                slices.append(news)


@rule("provider.P-133", "shard.Q3", "ruling.R24")
def test_one_bad_record_among_a_hundred_costs_neither_its_neighbours_nor_itself() -> None:
    reader = Reader()
    reader.read(message(idle(n) for n in range(100)))
    told = reader.read(message(idle(n, price_per_hour=float("nan") if n == 50 else 2.0) for n in range(100)))
    assert len(told.changed) == 99 and told.rejected == [("m-50", "price")]
    assert told.end.complete and told.gone == []


@rule("provider.P-133")
def test_an_undecodable_record_that_hides_its_id_stops_nobody_but_removals() -> None:
    reader = Reader()
    reader.read(message([idle(1), idle(2)]))
    broken = b"\x0a\x02\xff\xff"
    told = reader.read(message([idle(1, price_per_hour=3.0)]) + broken)
    assert told.changed == ["m-1"] and told.rejected == [("", "undecodable")] and told.gone == []
    assert reader.read(message([idle(1, price_per_hour=3.0)])).gone == ["m-2"]


@rule("shard.Q9", "provider.P-131")
@pytest.mark.parametrize(
    "change",
    [
        {"price_per_hour": 2.0},
        {"interruption_probability": 0.99},
        {"labels": {"rack": "r9"}},
        {"resources": pb.Resources(resources={"cpu": "8"})},
        {"allocatable": pb.Resources(resources={"cpu": "8"})},
        {"host": pb.HostRef(provider="p", ref="other")},
    ],
)
def test_a_change_of_any_mutable_field_is_passed_on_while_the_state_stays(change: dict[str, object]) -> None:
    reader = Reader()
    assert reader.read(message([record(1), record(2)])).changed == ["m-1", "m-2"]
    assert reader.read(message([record(1), record(2)])).changed == []
    assert reader.read(message([record(1), record(2, **change)])).changed == ["m-2"]
    assert reader.read(message([record(1), record(2, **change)])).changed == []


def test_a_record_whose_maps_come_in_another_order_is_no_news() -> None:
    head = pb.Machine(id="m-1", state=pb.MACHINE_STATE_SPECULATIVE).SerializeToString()
    orders = [
        b"".join([head, *(pb.Machine(labels={key: "x"}).SerializeToString() for key in keys)])
        for keys in ("ab", "ba", "ab", "ba")
    ]
    reader = Reader()
    changed = [reader.read(b"\x0a" + bytes([len(raw)]) + raw).changed for raw in orders]
    # The first change of order costs one more pass; from then on the content counts.
    assert changed == [["m-1"], ["m-1"], [], []]
    twice = b"".join(b"\x0a" + bytes([len(raw)]) + raw for raw in orders[:2])
    assert reader.read(twice).rejected == [("m-1", "structural")], "twice is twice, in any order"
    other = b"".join([head, pb.Machine(labels={"a": "y"}).SerializeToString()])
    assert reader.read(b"\x0a" + bytes([len(other)]) + other).changed == ["m-1"]


@rule("provider.P-138")
def test_ids_missing_from_a_complete_list_are_passed_on_once_and_back_when_they_return() -> None:
    reader = Reader()
    reader.read(message(idle(n) for n in range(4)))
    assert sorted(reader.read(message([idle(1)])).gone) == ["m-0", "m-2", "m-3"]
    assert reader.read(message([idle(1)])).gone == []
    assert reader.read(message([idle(1), idle(2)])).changed == ["m-2"]


@rule("provider.P-134")
def test_an_empty_list_is_told_as_it_is_and_the_next_full_one_restores_all() -> None:
    reader = Reader()
    whole = message(idle(n) for n in range(1000))
    reader.read(whole)
    assert len(reader.read(b"").gone) == 1000
    assert len(reader.read(whole).changed) == 1000


@rule("provider.P-70", "provider.P-138")
def test_a_delta_removes_what_it_names_and_nothing_else() -> None:
    reader = Reader()
    reader.read(message((idle(n) for n in range(4)), full=True))
    told = reader.read(message([idle(1, price_per_hour=9.0)], removed_ids=["m-3", "ghost"], full=False), b"r")
    assert (told.changed, told.gone, told.end.complete) == (["m-1"], ["m-3"], False)
    assert reader.read(message(full=False), b"r").gone == []


@rule("provider.P-70")
def test_a_cursor_that_was_not_honoured_is_answered_with_everything() -> None:
    reader = Reader()
    reader.read(message([idle(1), idle(2)], full=True))
    told = reader.read(message([idle(1)], full=True), b"old")
    assert told.gone == ["m-2"] and told.end.complete


@rule("provider.P-70")
def test_a_base_peers_answer_to_a_cursor_removes_nothing() -> None:
    reader = Reader()
    reader.read(message([idle(1), idle(2)]))
    assert reader.read(message([idle(1)]), b"r").gone == []
    assert reader.read(message([idle(1)])).gone == ["m-2"]


@rule("provider.P-70")
def test_the_first_page_of_a_capped_list_removes_nothing() -> None:
    reader = Reader()
    reader.read(message(idle(n) for n in range(20)))
    assert reader.read(message((idle(n) for n in range(10)), full=False)).gone == []


@rule("provider.P-70")
def test_an_id_that_is_named_and_removed_at_once_stays() -> None:
    reader = Reader()
    reader.read(message([idle(1)]))
    assert reader.read(message([idle(1)], removed_ids=["m-1"], full=False), b"r").gone == []


@rule("provider.P-60")
def test_an_id_listed_twice_is_passed_on_once() -> None:
    reader = Reader()
    told = reader.read(message([idle(1), idle(1, price_per_hour=5.0), idle(1), idle(2)]))
    assert told.changed == ["m-1", "m-2"] and told.rejected == [("m-1", "structural")] * 2


def test_after_a_call_the_next_list_is_passed_on_whatever_it_says() -> None:
    reader = Reader()
    reader.read(message([idle(1), idle(2)]))
    reader.ledger.forget_record("m-1")
    reader.ledger.forget_record("never-seen")
    assert reader.read(message([idle(1), idle(2)])).changed == ["m-1"]


def test_a_slice_that_was_not_taken_to_the_end_is_passed_on_again() -> None:
    reader = Reader()
    whole = message((idle(n) for n in range(RECORDS_PER_SLICE + 1)), full=False)
    reading = reader.start(whole)
    first, second = next(reading), next(reading)
    assert first is not None and second is not None and len(second.changed) == 1
    reading.close()
    assert reader.read(whole).changed == [f"m-{RECORDS_PER_SLICE}"]


def test_ids_that_were_not_taken_as_gone_are_told_again() -> None:
    reader = Reader()
    reader.read(message([idle(1)]))
    reading = reader.start(b"")
    while next(reading) is None:
        pass
    reading.close()
    assert reader.read(b"").gone == ["m-1"]


def test_every_slice_says_when_its_list_was_asked_for() -> None:
    reader = Reader()
    told = reader.read(message([idle(1)], revision=b"r9"))
    assert {part.started for part in told.slices} == {7}
    assert told.end == ListEnd(complete=True, records=1)


def test_slices_are_bounded_in_records_bytes_and_missing_ids() -> None:
    reader = Reader()
    many = 3 * MISSING_PER_SLICE
    told = reader.read(message(idle(n) for n in range(many)))
    assert max(len(part.changed) for part in told.slices) == RECORDS_PER_SLICE
    told = reader.read(b"")
    assert [len(part.gone) for part in told.slices] == [MISSING_PER_SLICE] * 3
    big = {"x": "y" * (BYTES_PER_SLICE // 3)}
    told = reader.read(message(idle(n, labels=big) for n in range(8)))
    assert [len(part.changed) for part in told.slices] == [2, 2, 2, 2]
    told = reader.read(message(idle(n, labels={"x": "z" * (BYTES_PER_SLICE + 1)}) for n in range(2)))
    assert [len(part.changed) for part in told.slices if part.changed] == [1, 1]


def test_an_unchanged_list_gives_way_too() -> None:
    reader = Reader()
    whole = message(idle(n) for n in range(10 * RECORDS_PER_SLICE))
    reader.read(whole)
    told = reader.read(whole)
    assert told.slices == [] and told.turns >= 10


def test_ids_beyond_the_bound_are_refused_and_known_ones_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger_module, "MAX_MACHINES", 3)
    reader = Reader()
    told = reader.read(message(idle(n) for n in range(5)))
    assert told.changed == ["m-0", "m-1", "m-2"]
    assert told.rejected == [("m-3", "structural"), ("m-4", "structural")]
    told = reader.read(message([idle(0, price_per_hour=7.0), idle(3)]))
    assert told.changed == ["m-0"] and sorted(told.gone) == ["m-1", "m-2"]
    assert reader.read(message([idle(0, price_per_hour=7.0), idle(3)])).changed == ["m-3"]


def test_a_fleet_that_comes_and_goes_does_not_grow_the_memory() -> None:
    reader = Reader()
    for round_ in range(20):
        reader.read(message(idle(n) for n in range(round_ * 50, round_ * 50 + 100)))
    columns = [value for value in vars(reader.ledger).values() if isinstance(value, array)]
    assert len(columns) == 3 and all(len(column) <= 150 for column in columns) and len(reader.ledger) == 100


def test_what_is_remembered_of_a_machine_is_small(full_size: bool) -> None:
    count = 100_000 if full_size else 10_000
    reader = Reader()
    reader.read(message(idle(n) for n in range(count)))
    # No object for the garbage collector to walk, however many machines there are.
    assert not any(gc.is_tracked(place) for place in list(reader.ledger._places.values())[:10])
    assert sum(a.itemsize for a in vars(reader.ledger).values() if isinstance(a, array)) == 20


def page(records: int, revision: bytes = b"r", *, full: bool | None = False, nameless: bool = False) -> Page:
    return Page(records, revision, full, nameless)


def walked(run: ListRun, *answers: Page) -> list[tuple[bytes, int]]:
    """What was asked for, up to the answer that is the last."""
    asked = []
    for place, answer in enumerate(answers, start=1):
        asked.append((run.since, run.max_results))
        assert run.is_last(answer) == (place == len(answers)), place
    return asked


@rule("provider.P-68")
def test_pages_are_asked_for_by_the_last_ones_revision_until_one_is_empty() -> None:
    run = ListRun(b"", paged=True)
    asked = walked(run, page(PAGE_RECORDS, b"r1"), page(PAGE_RECORDS, b"r2"), page(0, b"r2"))
    assert asked == [(b"", PAGE_RECORDS), (b"r1", PAGE_RECORDS), (b"r2", PAGE_RECORDS)]
    assert run.end() == ListEnd(complete=True, records=2 * PAGE_RECORDS)
    assert run.revision == b"r2" and run.shows_missing


@rule("provider.P-62", "provider.P-68")
def test_a_page_below_the_cap_is_not_taken_for_the_last() -> None:
    run = ListRun(b"", paged=True)
    pages = [page(records, b"r%d" % number) for number, records in enumerate([1_000, 900, 1_000, 600])]
    asked = walked(run, *pages, page(0, b"r3"))
    assert [since for since, _ in asked] == [b"", b"r0", b"r1", b"r2", b"r3"]
    assert {cap for _, cap in asked} == {PAGE_RECORDS}
    assert run.end() == ListEnd(complete=True, records=3_500)


@rule("provider.P-68", "provider.P-138")
def test_what_changes_while_pages_are_read_does_not_keep_them_from_ending() -> None:
    run = ListRun(b"", paged=True)
    asked = walked(run, page(PAGE_RECORDS, b"r1"), page(3, b"r2"), page(2, b"r3"))
    assert asked[2] == (b"r2", 0), "all that is left, however much it is"
    assert run.end() == ListEnd(complete=True, records=PAGE_RECORDS + 5)
    assert run.revision == b"r3" and run.shows_missing


@rule("provider.P-70")
def test_a_short_page_that_says_it_is_everything_is_the_last() -> None:
    run = ListRun(b"", paged=True)
    assert walked(run, page(3, b"r1", full=True)) == [(b"", PAGE_RECORDS)]
    assert run.is_complete


@rule("provider.P-68", "provider.P-70")
def test_only_a_full_list_of_who_keeps_the_cursor_is_paged() -> None:
    assert ListRun(b"", paged=False).max_results == 0
    assert ListRun(b"r", paged=True).max_results == 0
    delta = ListRun(b"r", paged=True)
    assert delta.is_last(page(PAGE_RECORDS)) and not delta.is_complete
    old = ListRun(b"r", paged=True)
    assert old.is_last(page(5, full=True)) and old.is_complete


@pytest.mark.parametrize("revision", [b"", b"r1"])
@pytest.mark.parametrize("records", [PAGE_RECORDS, 1_000])
def test_pages_that_lead_nowhere_end_in_one_request_for_everything(revision: bytes, records: int) -> None:
    run = ListRun(b"", paged=True)
    assert not run.is_last(page(records, b"r1"))
    assert not run.is_last(page(records, revision))
    assert (run.since, run.max_results) == (b"", 0)
    assert run.is_last(page(3 * PAGE_RECORDS, b"r9", full=True)) and run.is_complete


@rule("provider.P-70")
def test_a_first_page_without_a_word_on_completeness_is_not_taken_for_everything() -> None:
    run = ListRun(b"", paged=True)
    assert not run.is_last(page(PAGE_RECORDS, b"", full=None))
    assert run.is_last(page(PAGE_RECORDS, b"r", full=False)) and not run.is_complete


def test_pages_without_end_end() -> None:
    run = ListRun(b"", paged=True)
    for number in range(MAX_PAGES):
        assert run.max_results
        assert not run.is_last(page(PAGE_RECORDS, b"r%d" % number))
    assert (run.since, run.max_results) == (b"", 0)
    assert run.is_last(page(1, full=None)) and run.is_complete


def test_a_nameless_record_on_any_page_keeps_every_machine() -> None:
    run = ListRun(b"", paged=True)
    run.is_last(page(PAGE_RECORDS, b"r1", nameless=True))
    assert run.is_last(page(0, b"r1")) and run.is_complete and not run.shows_missing


@rule("provider.P-70")
def test_a_machine_that_is_listed_on_one_page_and_removed_by_the_next_is_gone() -> None:
    reader = Reader()
    reader.ledger.begin_list()
    told: list[ListSlice | None] = []
    first = message([idle(1), idle(2), idle(3)])
    for data in (first, message([idle(2, price_per_hour=3.0)], removed_ids=["m-1"])):
        told += read_page(data, 7, reader.ledger, reader.decoder)
    told += read_missing(7, reader.ledger)
    assert [part.gone for part in told if part and part.gone] == [("m-1",)]
    assert [len(part.changed) for part in told if part and part.changed] == [3, 1]
    assert not [part for part in told if part and part.rejected], "a later page may name a machine again"


Fleet = dict[int, int]


@rule("provider.P-138")
@given(st.data())
def test_the_core_always_knows_what_the_provider_has(data: st.DataObject) -> None:
    """Any history of changes, full lists, deltas, aborted readings and forgotten records: a core that
    applies what it is told has the provider's fleet after every List that was read to its end."""
    reader = Reader()
    fleet: Fleet = {}
    core: dict[str, float] = {}
    base: Fleet = {}
    dropped: set[int] = set()
    step = st.sampled_from(["put", "put", "drop", "full", "delta", "abort", "forget"])
    for action in data.draw(st.lists(step, max_size=40)):
        number = data.draw(st.integers(0, 6))
        if action == "put":
            fleet[number] = data.draw(st.integers(0, 3))
        elif action == "drop":
            if fleet.pop(number, None) is not None:
                dropped.add(number)
        elif action == "forget":
            reader.ledger.forget_record(f"m-{number}")
        elif action == "abort":
            # A slice is the core's once it asks for the next.
            asked: ListSlice | None = None
            reading = reader.start(_whole(fleet))
            for _ in range(data.draw(st.integers(0, 2))):
                taken, asked = asked, next(reading, None)
                _apply(core, taken)
            reading.close()
        else:
            since = b"r" if action == "delta" else b""
            answer = _delta(base, fleet, dropped) if since else _whole(fleet)
            told = reader.read(answer, since)
            for part in told.slices:
                _apply(core, part)
            base = dict(fleet)
            dropped.clear()
            assert core == {f"m-{n}": float(price) for n, price in fleet.items()}


def _apply(core: dict[str, float], news: ListSlice | None) -> None:
    if news is None:
        return
    for seen in news.changed:
        core[seen.machine.id] = seen.machine.price_per_hour
    for machine_id in news.gone:
        core.pop(machine_id, None)


def _whole(fleet: Fleet) -> bytes:
    return message((idle(n, price_per_hour=price) for n, price in fleet.items()), full=True)


def _delta(base: Fleet, fleet: Fleet, dropped: set[int]) -> bytes:
    """What has changed since the cursor; a machine that came and went after it is gone too (P-70)."""
    changed = (idle(n, price_per_hour=price) for n, price in fleet.items() if base.get(n) != price)
    return message(changed, removed_ids=[f"m-{n}" for n in sorted(dropped) if n not in fleet], full=False)
