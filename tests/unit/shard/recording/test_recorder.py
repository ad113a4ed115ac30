import errno
import io
import json
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import FileIO
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bigfleet.engine.options import SECOND
from bigfleet.shard.core.effects import RunCycle
from bigfleet.shard.core.events import RollupRefused, SessionClosed
from bigfleet.shard.recording.segments import Batch, Frame, Header, Kind, SegmentReader, batch
from bigfleet.shard.shell import recorder as recorder_module
from bigfleet.shard.shell.recorder import CHECKPOINTS_KEPT, SEGMENT_EVENTS, SEGMENTS_KEPT, Recorder
from bigfleet_base.telemetry import Logs, Metrics, Role
from tests.support.rules import rule

HEADER = Header("1.2.3", "shape")
MINUTE = 60 * SECOND
MIB = 1 << 20


class Lab:
    """A recorder, what it logs and counts, a clock, and a core that is only as large as it says."""

    def __init__(self, folder: Path, limit: int = 256 * MIB) -> None:
        self.folder = folder
        self._metrics = Metrics(Role.SHARD)
        self._lines = io.BytesIO()
        log = Logs(self._lines).logger("shard", shard_id="s")
        self.recorder = Recorder(folder, limit, HEADER, self._take, self._metrics, log)
        self.now = 1_000 * SECOND
        self.frames = [b"state"] * 3
        self.in_cycle = False
        self.given: list[Batch] = []

    def _take(self) -> Iterator[Frame] | None:
        return None if self.in_cycle else iter([Frame(Kind.STATE, body) for body in self.frames])

    def start(self) -> None:
        self.recorder.start(self.now)

    def batch(self, size: int = 0) -> None:
        event = RollupRefused(len(self.given), "x" * size)
        self.given.append(batch(self.now, [event], [RunCycle()]))
        self.recorder.record(self.now, [event], [RunCycle()])

    def segments(self) -> list[Path]:
        return sorted(self.folder.glob("*.rec"))

    def errors(self) -> int:
        (line,) = [
            line
            for line in self._metrics.render().decode().splitlines()
            if line.startswith("bigfleet_shard_recording_errors_total")
        ]
        return int(float(line.split()[1]))

    def logged(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self._lines.getvalue().splitlines()]

    def size(self) -> int:
        return sum(path.stat().st_size for path in self.folder.iterdir())


Labs = Callable[..., Lab]


@pytest.fixture
def labs() -> Iterator[Labs]:
    """Makes labs, and closes their files in the end."""
    made: list[Lab] = []

    def make(folder: Path, limit: int = 256 * MIB) -> Lab:
        made.append(Lab(folder, limit))
        return made[-1]

    yield make
    for lab in made:
        lab.recorder.close()


@pytest.fixture
def lab(tmp_path: Path, labs: Labs) -> Lab:
    return labs(tmp_path / "record")


def read(path: Path) -> list[Batch]:
    with path.open("rb") as file:
        segment = SegmentReader(file, path.name, "shape")
        list(segment.checkpoint())
        return list(segment.batches())


@rule("shard.R8")
def test_a_batch_is_in_the_file_before_its_effects_are_performed(lab: Lab) -> None:
    lab.start()
    for _ in range(3):
        lab.batch()
        assert read(lab.segments()[0]) == lab.given


@rule("shard.R8")
def test_a_process_starts_with_a_new_segment(lab: Lab, labs: Labs) -> None:
    lab.start()
    lab.batch()
    lab.recorder.close()
    again = labs(lab.folder)
    again.start()
    again.batch()
    assert [path.name for path in lab.segments()] == ["segment-00000001.rec", "segment-00000002.rec"]
    assert [read(path) for path in lab.segments()] == [lab.given, again.given]


@rule("shard.R8")
def test_nothing_is_recorded_with_a_limit_of_zero(tmp_path: Path, labs: Labs) -> None:
    lab = labs(tmp_path / "record", limit=0)
    lab.start()
    lab.batch()
    assert not lab.folder.exists()


def test_nothing_is_recorded_after_the_end(lab: Lab) -> None:
    lab.start()
    lab.batch()
    lab.recorder.close()
    before = list(lab.given)
    lab.now += MINUTE
    lab.batch()
    assert list(lab.folder.iterdir()) == lab.segments()
    assert [read(path) for path in lab.segments()] == [before]


def test_only_the_owner_can_read_a_recording(lab: Lab) -> None:
    lab.start()
    assert lab.folder.stat().st_mode & 0o777 == 0o700
    assert lab.segments()[0].stat().st_mode & 0o777 == 0o600


@rule("shard.R8")
@pytest.mark.parametrize(("checkpoint", "least"), [(10, SEGMENT_EVENTS), (20 * MIB, 20 * MIB)])
def test_a_segment_ends_when_its_events_exceed_16_mib_and_its_checkpoint(
    lab: Lab, checkpoint: int, least: int
) -> None:
    lab.frames = [bytes(checkpoint)]
    lab.start()
    while len(lab.segments()) == 1:
        lab.batch(MIB)
    # One batch begins the checkpoint, one each brings its only frame and its end.
    assert least <= (len(lab.given) - 2) * MIB <= least + 2 * MIB
    first, second = lab.segments()
    assert read(first) == lab.given
    assert read(second) == lab.given[-2:]
    lab.batch()
    assert read(first) == lab.given[:-1]
    assert read(second) == lab.given[-3:]


@rule("shard.R8")
@given(
    st.lists(st.sampled_from([0, 0, MIB, 5 * MIB, 17 * MIB]), max_size=60),
    st.sampled_from([10, 30 * MIB]),
    st.sampled_from([40 * MIB, 90 * MIB]),
)
@settings(max_examples=15)
def test_the_folder_stays_within_its_bound_and_keeps_the_newest(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], checkpoint: int, limit: int
) -> None:
    lab = Lab(tmp_path_factory.mktemp("record"), limit)
    lab.frames = [bytes(checkpoint)]
    bound = max(limit, CHECKPOINTS_KEPT * checkpoint)
    lab.start()
    for size in sizes:
        lab.batch(size)
        # What is being written is never deleted; all else goes before the bound is broken.
        assert lab.size() <= bound or len(lab.segments()) == 1
    kept = [int(path.stem.split("-")[1]) for path in lab.segments()]
    assert kept == list(range(kept[0], kept[0] + len(kept)))
    lab.recorder.close()
    for path in lab.folder.iterdir():
        path.unlink()


@rule("shard.R8")
def test_three_checkpoints_fit_however_small_the_limit(tmp_path: Path, labs: Labs) -> None:
    earlier, lab = labs(tmp_path, limit=MIB), labs(tmp_path, limit=MIB)
    earlier.frames = lab.frames = [bytes(30 * MIB)]
    earlier.start()
    earlier.batch(5 * MIB)
    earlier.recorder.close()
    lab.start()
    lab.batch(20 * MIB)
    assert len(lab.segments()) == 2
    lab.batch(6 * MIB)
    assert [path.name for path in lab.segments()] == ["segment-00000002.rec"]


@rule("shard.R8")
def test_segments_of_earlier_processes_count_and_are_the_first_to_go(tmp_path: Path, labs: Labs) -> None:
    earlier = labs(tmp_path)
    earlier.start()
    earlier.batch(30 * MIB)
    earlier.recorder.close()
    lab = labs(tmp_path, limit=35 * MIB)
    lab.start()
    lab.batch(MIB)
    assert len(lab.segments()) == 2
    lab.batch(5 * MIB)
    assert [path.name for path in lab.segments()] == ["segment-00000002.rec"]


def test_other_files_in_the_folder_are_left_alone(tmp_path: Path, labs: Labs) -> None:
    other = tmp_path / "notes.txt"
    other.write_text("mine")
    lab = labs(tmp_path, limit=1)
    lab.start()
    for _ in range(20):
        lab.batch(5 * MIB)
    assert other.read_text() == "mine"
    assert len(lab.segments()) == 1 and lab.segments()[0].name > "segment-00000002"


# While a checkpoint is being taken


@rule("shard.R8")
@pytest.mark.parametrize("batches", range(6))
def test_whenever_the_process_dies_the_last_whole_segment_has_every_batch(lab: Lab, batches: int) -> None:
    lab.start()
    lab.batch(17 * MIB)
    before = len(lab.given)
    assert list(lab.folder.glob("*.part")), "it has begun"
    for _ in range(batches):
        lab.batch()
    last = lab.segments()[-1]
    is_complete = last.name == "segment-00000002.rec"
    assert is_complete == (batches >= 4), "a frame with each batch, then the end"
    assert read(last) == (lab.given[before:] if is_complete else lab.given)


@rule("shard.R8")
def test_a_checkpoint_waits_for_the_end_of_a_cycle(lab: Lab) -> None:
    lab.start()
    lab.in_cycle = True
    lab.batch(17 * MIB)
    lab.batch()
    assert not list(lab.folder.glob("*.part"))
    lab.in_cycle = False
    lab.batch()
    assert list(lab.folder.glob("*.part"))


def test_what_a_dead_process_left_half_done_is_removed(lab: Lab, labs: Labs) -> None:
    lab.start()
    lab.batch(17 * MIB)
    assert list(lab.folder.glob("*.part"))
    again = labs(lab.folder)
    again.start()
    assert not list(lab.folder.glob("*.part"))
    assert [path.name for path in lab.segments()] == ["segment-00000001.rec", "segment-00000003.rec"]


# When the disk is full


class FullDisk(FileIO):
    """A file on a disk that becomes full: some of a write may still fit."""

    room = 0

    def write(self, data: Any) -> int:
        fits = min(FullDisk.room, len(data))
        if fits == 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        FullDisk.room -= fits
        return super().write(bytes(data)[:fits])


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> type[FullDisk]:
    monkeypatch.setattr(recorder_module, "create", lambda path: FullDisk(path, "xb"))
    FullDisk.room = 10 * MIB
    return FullDisk


@rule("shard.R8")
def test_a_full_disk_ends_the_segment_and_a_new_one_is_tried_each_minute(
    lab: Lab, disk: type[FullDisk]
) -> None:
    lab.start()
    lab.batch()
    whole = list(lab.given)
    disk.room = 20
    lab.batch()
    assert lab.errors() == 1
    (line,) = [line for line in lab.logged() if line["msg"] == "recording write failed"]
    assert line["level"] == "error"
    assert line["path"] == str(lab.segments()[0]) and "No space left" in line["err"]
    assert read(lab.segments()[0]) == whole

    lab.now += MINUTE - 1
    lab.batch()
    assert lab.errors() == 1, "too early"
    lab.now += 1
    lab.batch()
    lab.batch()
    assert lab.errors() == 2, "it is still full, and was tried once"

    disk.room = 10 * MIB
    lab.now += MINUTE
    for _ in range(6):
        lab.batch()
    assert lab.errors() == 2
    assert len(lab.segments()) == 2
    assert read(lab.segments()[-1]) == lab.given[-5:]


@rule("shard.R8")
def test_a_checkpoint_that_finds_no_room_leaves_the_segment_before_it_going(
    lab: Lab, disk: type[FullDisk]
) -> None:
    disk.room = 40 * MIB
    lab.start()
    lab.frames = [bytes(30 * MIB)]
    lab.batch(17 * MIB)
    lab.batch()
    assert lab.errors() == 1
    assert not list(lab.folder.glob("*.part")), "its room is given back"
    disk.room = 100 * MIB
    lab.now += MINUTE - 1
    lab.batch()
    assert read(lab.segments()[0]) == lab.given
    assert not list(lab.folder.glob("*.part"))
    lab.now += 1
    lab.batch()
    assert list(lab.folder.glob("*.part"))


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """Let the kernel refuse what goes beyond, as a full disk would."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@rule("shard.R8")
def test_a_write_that_the_kernel_refuses_ends_the_segment_at_the_last_whole_batch(lab: Lab) -> None:
    lab.start()
    lab.batch(100)
    with largest_file(lab.size() + 200):
        for _ in range(3):
            lab.batch(100)
    assert lab.errors() == 1
    kept = read(lab.segments()[0])
    assert kept == lab.given[: len(kept)] and 1 <= len(kept) < 4
    lab.now += MINUTE
    for _ in range(5):
        lab.batch()
    assert lab.errors() == 1 and read(lab.segments()[1]) == lab.given[-4:]


@rule("shard.R8")
def test_a_folder_that_cannot_be_made_is_tried_again(tmp_path: Path, labs: Labs) -> None:
    (tmp_path / "record").write_text("in the way")
    lab = labs(tmp_path / "record" / "inner")
    lab.start()
    lab.batch()
    assert lab.errors() == 1
    (tmp_path / "record").unlink()
    lab.now += MINUTE
    for _ in range(5):
        lab.batch()
    assert lab.errors() == 1 and read(lab.segments()[0]) == lab.given[-4:]


def test_an_event_that_cannot_be_written_is_counted_and_ends_the_segment(lab: Lab) -> None:
    lab.start()
    lab.batch()
    before = list(lab.given)
    lab.recorder.record(lab.now, [SessionClosed(1, "\ud800")], [])
    assert lab.errors() == 1
    lab.batch()
    assert [read(path) for path in lab.segments()] == [before]
    lab.now += MINUTE
    for _ in range(5):
        lab.batch()
    assert len(lab.segments()) == 2


def test_what_is_kept_does_not_rotate_away(tmp_path: Path, labs: Labs) -> None:
    lab = labs(tmp_path / "record", limit=1)
    lab.start()
    lab.batch(SEGMENT_EVENTS)
    lab.recorder.keep()
    lab.recorder.keep()
    kept = [path.name for path in lab.folder.glob("kept-*")]
    first = lab.segments()[-1]
    for _ in range(20):
        lab.batch(SEGMENT_EVENTS)

    assert kept == [f"kept-{first.name}"]
    assert not first.exists()
    assert read(lab.folder / kept[0])[0] == lab.given[0]
    [told] = [line for line in lab.logged() if line["msg"] == "recording kept"]
    assert told["path"] == str(lab.folder / kept[0])


def test_what_an_earlier_process_has_kept_keeps_its_name_for_itself(lab: Lab, labs: Labs) -> None:
    lab.start()
    lab.batch()
    lab.recorder.keep()
    lab.recorder.close()
    for path in lab.folder.glob("segment-*"):
        path.unlink()
    [before] = lab.folder.iterdir()

    after = labs(lab.folder)
    after.start()
    after.batch()
    after.recorder.keep()
    [kept] = set(after.folder.glob("kept-*")) - {before}
    assert read(before) == lab.given and read(kept) == after.given


def test_no_more_than_a_few_segments_are_kept(tmp_path: Path, labs: Labs) -> None:
    lab = labs(tmp_path / "record", limit=1)
    lab.start()
    for _ in range(10 * SEGMENTS_KEPT):
        lab.batch(SEGMENT_EVENTS)
        lab.recorder.keep()

    assert len(list(lab.folder.glob("kept-*"))) == SEGMENTS_KEPT
    [refused, *_] = [line for line in lab.logged() if line["msg"].startswith("recording not kept")]
    assert refused["level"] == "warn" and "segment-" in refused["path"]


def test_a_segment_that_cannot_be_kept_is_an_error_and_no_more(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: Any) -> None:
        raise OSError(errno.EPERM, "no links here")

    lab.start()
    lab.batch()
    monkeypatch.setattr("os.link", refused)
    lab.recorder.keep()
    lab.batch()

    assert lab.errors() == 1
    assert read(lab.segments()[0]) == lab.given
