"""One answer to List, turned into news for the shard's core a slice at a time (P-138, shard.md §5)."""

from collections.abc import Generator
from dataclasses import dataclass
from typing import Final

from bigfleet.shard.provider.cursor import is_complete
from bigfleet.shard.provider.ledger import Ledger
from bigfleet_base.wire import (
    ListFrames,
    ObservedMachine,
    RecordDecoder,
    Rejected,
    canonical_record,
    peek_id,
    scan_list,
)
from bigfleet_base.wire.records import STRUCTURAL

RECORDS_PER_SLICE: Final = 256
"""Bounds how long the loop waits for a slice: about 40 µs for a record like none before."""
BYTES_PER_SLICE: Final = 1 << 20
"""The same for records of unusual size."""
MISSING_PER_SLICE: Final = 4_096
PAGE_RECORDS: Final = 10_000
MAX_PAGES: Final = 100
"""As many as twice the largest shard needs."""


@dataclass(frozen=True, slots=True)
class ListSlice:
    """Some news of a List."""

    started: int
    """When the request was sent; what the provider says is not newer than that (shard.md §5 step 2)."""
    changed: tuple[ObservedMachine, ...] = ()
    rejected: tuple[Rejected, ...] = ()
    gone: tuple[str, ...] = ()
    """Ids that the provider no longer has. They are named once; until they come back they are still gone."""


@dataclass(frozen=True, slots=True)
class ListEnd:
    """All news of a List have been passed on."""

    complete: bool
    """Whether it was the provider's whole inventory."""
    records: int


@dataclass(frozen=True, slots=True)
class Page:
    """What one answer says of itself."""

    records: int
    revision: bytes
    full: bool | None
    nameless: bool
    """Whether a record did not tell its id. It may be any machine's, so none can be called missing."""


class ListRun:
    """The requests of one List.

    A full List of a provider that keeps the truncation-safe cursor (P-68) is asked for in pages: gRPC puts an
    answer together on the event loop, which for the 50 MB of 100,000 machines takes longer than anybody may
    hold it up, and 500,000 machines do not fit into one message at all. Everybody else is asked once.
    """

    def __init__(self, since: bytes, *, paged: bool) -> None:
        self.since = since
        self.max_results = PAGE_RECORDS if paged and not since else 0
        self.revision = b""
        self._in_pages = self.max_results > 0
        self._largest = 0
        self._is_full = False
        self._nameless = False
        self._records = 0
        self._pages = 0

    def is_last(self, page: Page) -> bool:
        """Take note of an answer; False when ``since`` and ``max_results`` now ask for another."""
        self._records += page.records
        self._nameless = self._nameless or page.nameless
        asked_for_all = not self.since and not self.max_results
        self._is_full = self._is_full or is_complete(page.full, asked_for_all=asked_for_all)
        self._pages += 1
        self._largest = max(self._largest, page.records)
        self.revision = page.revision
        # The cap is a ceiling (P-62): a page below it may be as much as the provider gives at a time.
        is_short = page.records < self.max_results
        if not self.max_results or not page.records or (is_short and page.full):
            return True
        if page.revision in (b"", self.since) or self._pages >= MAX_PAGES:
            # The pages lead nowhere, whatever the provider says of its cursor: all at once, then.
            self.since, self.max_results, self._in_pages = b"", 0, False
        else:
            self.since = page.revision
            if page.records < self._largest // 2:
                # Little is left, perhaps only what has changed since the page before. There may be some more
                # of that after each page, so that none is empty: the rest at once, then.
                self.max_results = 0
        return False

    @property
    def is_complete(self) -> bool:
        """Whether the answers together are the whole inventory: one that says so, or pages from the first
        record to the last."""
        return self._is_full or self._in_pages

    @property
    def shows_missing(self) -> bool:
        """Whether a machine that was not named is gone."""
        return self.is_complete and not self._nameless

    def end(self) -> ListEnd:
        return ListEnd(self.is_complete, self._records)


def read_page(
    data: bytes, started: int, ledger: Ledger, decoder: RecordDecoder
) -> Generator[ListSlice | None, None, Page]:
    """Read one answer. Gives way with None, or with news, after bounded work.

    A slice counts as passed on once the generator is asked for more; closed earlier, it is passed on again
    by the next List. ListFramesError before anything was passed on.
    """
    frames = yield from scan_list(data)
    ledger.begin_answer()
    nameless = False
    first = 0
    while first < len(frames):
        changed: list[ObservedMachine] = []
        rejected: list[Rejected] = []
        last = _slice_end(frames, first)
        for start, end in zip(frames.starts[first:last], frames.ends[first:last], strict=True):
            news = _news(data[start:end], ledger, decoder)
            if isinstance(news, ObservedMachine):
                changed.append(news)
            elif news is not None:
                rejected.append(news)
                nameless = nameless or not news.machine_id
        first = last
        if not changed and not rejected:
            yield None
            continue
        try:
            yield ListSlice(started, tuple(changed), tuple(rejected))
        except GeneratorExit:
            for observed in changed:
                ledger.forget_record(observed.machine.id)
            raise
    yield from _pass_on_gone(_removed(frames, ledger), started, ledger)
    return Page(len(frames), frames.revision, frames.full, nameless)


def read_missing(started: int, ledger: Ledger) -> Generator[ListSlice | None, None, None]:
    """After a complete List: pass on the machines that it did not name."""
    gone: list[str] = []
    for missing in ledger.missing(MISSING_PER_SLICE):
        gone.extend(missing)
        yield None
    yield from _pass_on_gone(gone, started, ledger)


def _pass_on_gone(gone: list[str], started: int, ledger: Ledger) -> Generator[ListSlice | None, None, None]:
    for first in range(0, len(gone), MISSING_PER_SLICE):
        batch = tuple(gone[first : first + MISSING_PER_SLICE])
        yield ListSlice(started, gone=batch)
        for machine_id in batch:
            ledger.remove(machine_id)


def _news(raw: bytes, ledger: Ledger, decoder: RecordDecoder) -> ObservedMachine | Rejected | None:
    machine_id = peek_id(raw)
    if ledger.is_same(machine_id, raw):
        return None
    content = None
    if ledger.is_known(machine_id) and not ledger.is_named(machine_id):
        content = canonical_record(raw)
        if content is not None and ledger.has_content(machine_id, raw, content):
            return None
    seen = decoder.decode(raw)
    if isinstance(seen, Rejected):
        ledger.name(seen.machine_id)
        return seen
    machine_id = seen.machine.id
    if ledger.is_named(machine_id):
        return _structural(seen, "one answer names it twice; the first record counts")
    if not ledger.pass_on(machine_id, raw, content):
        return _structural(seen, "the provider has more machines than a shard takes")
    return seen


def _removed(frames: ListFrames, ledger: Ledger) -> list[str]:
    """The removed ids that mean something: known ones that the same answer does not name (P-70)."""
    ids = dict.fromkeys(frames.removed_ids)
    return [known for known in ids if ledger.is_known(known) and not ledger.is_named(known)]


def _slice_end(frames: ListFrames, first: int) -> int:
    last = min(first + RECORDS_PER_SLICE, len(frames))
    limit = frames.starts[first] + BYTES_PER_SLICE
    while last > first + 1 and frames.ends[last - 1] > limit:
        last -= 1
    return last


def _structural(seen: ObservedMachine, message: str) -> Rejected:
    machine = seen.machine
    return Rejected(machine.id, STRUCTURAL, machine.state.title, f"machine {machine.id!r}: {message}")
