"""The folder of a shard: lock, epoch, domains, pause."""

import errno
import os
import stat
from pathlib import Path

import pytest

from bigfleet.shard.shell.datadir import LAST_EPOCH, DataDir, DataDirError, check_data_dir
from tests.support.rules import rule


def start(folder: Path, floor: int = 0) -> int:
    """The epoch that one life of a process gets."""
    data = DataDir(folder)
    try:
        return data.next_epoch(floor)
    finally:
        data.close()


@rule("shard.F1")
def test_each_start_has_an_epoch_of_its_own(tmp_path: Path) -> None:
    assert [start(tmp_path / "data") for _ in range(3)] == [1, 2, 3]


@rule("shard.F1")
def test_a_floor_lifts_the_epoch_of_a_lost_volume_and_never_lowers_one(tmp_path: Path) -> None:
    assert [start(tmp_path, 10), start(tmp_path, 10), start(tmp_path, 10)] == [10, 11, 12]
    assert start(tmp_path, 5) == 13


@rule("shard.F1")
def test_the_file_is_for_its_owner_alone_whatever_the_mask(tmp_path: Path) -> None:
    mask = os.umask(0)
    try:
        start(tmp_path)
    finally:
        os.umask(mask)
    assert stat.S_IMODE((tmp_path / "epoch").stat().st_mode) == 0o600
    assert (tmp_path / "epoch").read_text() == "1\n"


@rule("shard.F1")
@pytest.mark.parametrize("content", [b"", b"x", b"-1", b"1.0", b"\xff", b"1 2", b"9" * 20])
def test_a_file_that_is_no_number_is_refused_and_left_alone(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "epoch").write_bytes(content)
    with pytest.raises(DataDirError, match="--epoch-floor"):
        start(tmp_path)
    assert (tmp_path / "epoch").read_bytes() == content


@rule("shard.F1")
def test_a_crash_between_write_and_rename_leaves_the_old_epoch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start(tmp_path)

    def die(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", die)
        with pytest.raises(KeyboardInterrupt):
            start(tmp_path)
    assert (tmp_path / "epoch").read_text() == "1\n"
    assert (tmp_path / "epoch.new").exists()
    assert start(tmp_path) == 2


@rule("shard.F1")
def test_the_lock_is_taken_before_the_epoch_is_read(tmp_path: Path) -> None:
    first = DataDir(tmp_path)
    (tmp_path / "epoch").write_text("nonsense")
    with pytest.raises(DataDirError, match="in use by another process"):
        DataDir(tmp_path)
    (tmp_path / "epoch").unlink()
    assert first.next_epoch(0) == 1
    first.close()
    assert start(tmp_path) == 2


def test_epochs_end_where_the_wire_does(tmp_path: Path) -> None:
    assert start(tmp_path, LAST_EPOCH) == LAST_EPOCH
    with pytest.raises(DataDirError, match="beyond"):
        start(tmp_path)


def test_the_file_pause_pauses(tmp_path: Path) -> None:
    data = DataDir(tmp_path)
    assert not data.is_paused()
    (tmp_path / "PAUSE").touch()
    assert data.is_paused()
    (tmp_path / "PAUSE").unlink()
    assert not data.is_paused()
    data.close()


@rule("shard.R3")
def test_a_pause_file_that_points_nowhere_pauses(tmp_path: Path) -> None:
    data = DataDir(tmp_path)
    (tmp_path / "PAUSE").symlink_to(tmp_path / "nowhere")
    assert data.is_paused()
    data.close()


@rule("shard.R3")
def test_whoever_cannot_look_for_the_pause_file_goes_by_the_last_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    data = DataDir(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(os, "lstat", fail)
        assert data.is_paused(), "before the first look nothing may be done"
    for present in (False, True):
        if present:
            (tmp_path / "PAUSE").touch()
        assert data.is_paused() is present
        with monkeypatch.context() as patch:
            patch.setattr(os, "lstat", fail)
            assert data.is_paused() is present
    data.close()


@rule("shard.Q10")
def test_domains_are_read_and_a_file_that_cannot_be_read_is_no_absence_of_domains(tmp_path: Path) -> None:
    data = DataDir(tmp_path)
    assert data.domains() == ()
    (tmp_path / "domains").write_text('[["rack", "r1"], ["zone", "a"]]')
    assert data.domains() == (("rack", "r1"), ("zone", "a"))
    for content in ("", "{", "[" * 100_000, "[1]", '[["a"]]', '[["a", 1]]', '["ab"]', "3"):
        (tmp_path / "domains").write_text(content)
        with pytest.raises(DataDirError, match="domains"):
            data.domains()
    data.close()


def test_a_folder_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(DataDirError, match="--data-dir"):
        DataDir(tmp_path / "file" / "data")


@rule("shard.F1", "shard.Q10")
@pytest.mark.parametrize("name", ["epoch", "domains"])
def test_a_link_to_a_file_that_is_not_there_is_no_absence_of_it(tmp_path: Path, name: str) -> None:
    (tmp_path / name).symlink_to(tmp_path / "elsewhere" / name)
    with pytest.raises(DataDirError, match="link to a file that is not there"):
        check_data_dir(tmp_path, 0)
