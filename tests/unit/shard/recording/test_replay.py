import argparse
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from bigfleet.shard.core.context import Context
from bigfleet.shard.core.core import ShardCore
from bigfleet.shard.recording.checkpoint import SCHEMA
from bigfleet.shard.recording.replay import add_replay_arguments, run_replay
from bigfleet.shard.recording.segments import BATCHES, HEADERS, MAGIC, Header, Kind, SegmentReader, frame
from bigfleet.shard.shell import recorder as recorder_module
from tests.support.rules import rule
from tests.unit.shard.recording.recorded import SMALL_SEGMENT, RecordedWorld

ROOT = Path(__file__).parents[4]


def run(*arguments: object) -> int:
    parser = argparse.ArgumentParser()
    add_replay_arguments(parser)
    return run_replay(parser.parse_args([str(argument) for argument in arguments]))


@pytest.fixture
def segments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The recording of a busy world, in several segments."""
    monkeypatch.setattr(recorder_module, "SEGMENT_EVENTS", SMALL_SEGMENT)
    world = RecordedWorld(seed=7, folder=tmp_path)
    for _ in range(800):
        world.step()
    world.recorder.close()
    found = sorted(tmp_path.glob("*.rec"))
    assert len(found) > 1
    return found


def summaries(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


@rule("shard.R8")
def test_every_segment_replays_alone_to_the_same_effects(
    segments: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    for path in segments:
        assert run(path, "--output", "json") == 0
        (summary,) = summaries(capsys)
        assert summary["segment"] == str(path)
        assert summary["difference"] is None and summary["torn_bytes"] == 0
    assert summary["batches"] > 10 and summary["effects"] > 10


@rule("shard.R8")
@pytest.mark.parametrize("seed", range(3))
def test_after_a_kill_every_effect_seen_outside_is_in_the_recording(tmp_path: Path, seed: int) -> None:
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.unit.shard.recording.recorded", str(seed), str(tmp_path)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert process.stdout is not None
    with process.stdout:
        seen = [process.stdout.readline().strip() for _ in range(500 + 173 * seed)]
        process.send_signal(signal.SIGKILL)
        seen += process.stdout.read().split("\n")[:-1]
        process.wait(10)
    recorded = set()
    for path in sorted(tmp_path.glob("*.rec")):
        assert run(path) == 0
        with path.open("rb") as file:
            recorded |= {batch.digest.hex() for batch in SegmentReader(file, path.name, SCHEMA).batches()}
    assert all(seen) and set(seen) <= recorded


@rule("shard.R8")
def test_a_core_that_decides_otherwise_is_found_out(
    segments: list[Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    counted = Context.count

    def miscounted(self: Context, series: Any, *labels: str, by: float = 1) -> None:
        counted(self, series, *labels, by=by + (self.now > 1_050_000_000_000))

    monkeypatch.setattr(Context, "count", miscounted)
    assert run(segments[0], "--output", "json") == 1
    (summary,) = summaries(capsys)
    difference = summary["difference"]
    assert difference["batch"] == summary["batches"] > 1
    assert difference["now"] > 1_050_000_000_000
    assert any(
        effect["type"] == "Count" and effect["by"] == 2
        for derived in difference["derived"]
        for effect in derived["effects"]
    )
    assert run(segments[0]) == 1
    text = capsys.readouterr().out
    assert f"batch {difference['batch']} is the first that differs" in text
    assert '"type": "Count"' in text


def test_a_core_that_fails_shows_how(
    segments: list[Path], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(self: ShardCore, event: object, now: int) -> Any:
        raise AssertionError("two operations for one machine")

    monkeypatch.setattr(ShardCore, "handle", broken)
    assert run(segments[0]) == 1
    assert "two operations for one machine" in capsys.readouterr().out


def rewritten(path: Path, change: Callable[[list[bytes]], list[bytes]]) -> Path:
    """A segment with some of its batches replaced."""
    with path.open("rb") as file:
        segment = SegmentReader(file, path.name, SCHEMA)
        checkpoint = [frame(part.kind, part.body) for part in segment.checkpoint()]
        batches = [frame(Kind.BATCH, BATCHES.encode(batch)) for batch in segment.batches()]
    other = path.with_name("other.rec")
    header = frame(Kind.HEADER, HEADERS.encode(segment.header))
    other.write_bytes(b"".join([MAGIC, header, *checkpoint, frame(Kind.COMPLETE, b""), *change(batches)]))
    return other


def test_an_event_that_is_missing_is_found_out(segments: list[Path]) -> None:
    assert run(rewritten(segments[0], lambda batches: batches)) == 0
    assert run(rewritten(segments[0], lambda batches: batches[:3] + batches[4:])) == 1


@rule("shard.R8")
def test_a_torn_end_is_said_and_left_out(segments: list[Path], capsys: pytest.CaptureFixture[str]) -> None:
    whole = segments[0].read_bytes()
    segments[0].write_bytes(whole[:-3])
    assert run(segments[0], "--output", "json") == 0
    assert summaries(capsys)[0]["torn_bytes"] > 0
    assert run(segments[0]) == 0
    assert "no whole batch" in capsys.readouterr().out


@rule("shard.R8")
def test_damage_in_the_middle_is_an_error_that_names_the_byte(
    segments: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    before = len(rewritten(segments[0], lambda batches: batches[:3]).read_bytes())
    path = rewritten(segments[0], lambda batches: batches)
    data = bytearray(path.read_bytes())
    data[before + 12] ^= 1
    path.write_bytes(data)
    assert run(path, "--output", "json") == 1
    (summary,) = summaries(capsys)
    assert summary["damaged_at"] == before and summary["batches"] == 3
    assert summary["torn_bytes"] == 0 and summary["difference"] is None
    assert run(path) == 1
    text = capsys.readouterr().out
    assert f"damaged at byte {before}: every effect before it is as recorded" in text
    assert "cannot be judged" in text
    assert run(path, "--until", 3) == 0


@pytest.mark.parametrize("until", ["-1", "x", "1.5"])
def test_until_is_a_number_of_batches(capsys: pytest.CaptureFixture[str], until: str) -> None:
    with pytest.raises(SystemExit) as ended:
        run("none.rec", f"--until={until}")
    assert ended.value.code == 2
    assert f"'{until}' is not a number of batches" in capsys.readouterr().err


def test_until_stops_after_that_batch(segments: list[Path], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(*segments[:2], "--output", "json", "--until", 5) == 0
    assert [summary["batches"] for summary in summaries(capsys)] == [5, 5]


def test_effects_are_printed_as_json_lines(segments: list[Path], capsys: pytest.CaptureFixture[str]) -> None:
    assert run(segments[0], "--output", "json", "--effects") == 0
    *effects, summary = summaries(capsys)
    assert len(effects) == summary["effects"] > 100
    assert {"batch", "now", "event", "effect"} == effects[0].keys()
    assert {effect["effect"]["type"] for effect in effects} >= {"Count", "RunCycle", "ListProvider"}


@pytest.mark.parametrize("content", [None, b"no recording", MAGIC, b""])
def test_a_file_that_cannot_be_read_is_an_error_without_a_traceback(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes | None
) -> None:
    path = tmp_path / "segment-00000001.rec"
    if content is not None:
        path.write_bytes(content)
    assert run(path) == 1
    error = capsys.readouterr().err
    assert str(path) in error and "Traceback" not in error


@pytest.mark.parametrize("kind", [Kind.STATE, Kind.MACHINES])
def test_a_checkpoint_of_nonsense_is_an_error_without_a_traceback(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: Kind
) -> None:
    path = tmp_path / "segment-00000001.rec"
    header = frame(Kind.HEADER, HEADERS.encode(Header("1.2.3", SCHEMA)))
    path.write_bytes(MAGIC + header + frame(kind, b"\x93abc") + frame(Kind.COMPLETE, b""))
    assert run(path) == 1
    error = capsys.readouterr().err
    assert "checkpoint cannot be read" in error and "Traceback" not in error


def test_a_readable_file_is_replayed_although_another_is_not(
    segments: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(tmp_path / "none.rec", segments[0], "--output", "json") == 1
    assert len(summaries(capsys)) == 1


def test_a_file_that_is_not_there_is_named_in_a_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    missing = tmp_path / "none"

    assert run(missing) == 1
    expected = f"bigfleet shard replay: {missing}: cannot be read: No such file or directory\n"
    assert capsys.readouterr().err == expected
