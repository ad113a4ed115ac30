from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bigfleet.shard.core.core import ShardCore
from bigfleet.shard.recording import checkpoint
from bigfleet.shard.recording.checkpoint import capture, restore
from bigfleet.shard.recording.machines import decode_block
from bigfleet.shard.recording.replay import Run
from bigfleet.shard.recording.segments import Batch, Frame, Kind, batch
from tests.support.rules import rule
from tests.unit.shard.recording.world import World


@rule("shard.R8")
@pytest.mark.timeout(1800)  # 5,000 worlds in the nightly tier
@given(st.integers(0, 2**32), st.integers(0, 150), st.sampled_from([1, 3, 1000]))
def test_a_restored_core_goes_on_byte_for_byte(seed: int, cut: int, pace: int) -> None:
    """However much happens between the moment of the checkpoint and the writing of its last frame."""
    with small_pieces():
        go_on(seed, cut, pace)


@contextmanager
def small_pieces() -> Iterator[None]:
    with mock.patch.object(checkpoint, "PIECE", 20), mock.patch.object(checkpoint, "BLOCK", 2):
        yield


def go_on(seed: int, cut: int, pace: int) -> None:
    history: list[Batch] = []
    world = World(seed, lambda now, events, effects: history.append(batch(now, events, effects)))
    for _ in range(cut):
        world.step()
    world.settle()
    past = len(history)
    frames: list[Frame] = []
    then, being_written = contents(world.core), capture(world.core)
    for _ in range(80):
        frames += islice(being_written, pace)
        world.step()
    world.settle()
    frames += being_written
    run = Run(restore(frames))
    assert contents(run.core) == then
    for number, each in enumerate(history[past:]):
        derived, failure = run.take(each, number)
        effects = [effect for one in derived for effect in one.effects]
        assert not failure, failure
        assert batch(each.now, each.events, effects) == each, (each, effects)
    assert contents(run.core) == contents(world.core)


def contents(core: ShardCore) -> list[str]:
    """All of a core, machines and what is remembered, in the order it is in."""
    frames = list(capture(core))
    pieces = [frame.body.hex() for frame in frames if frame.kind is Kind.STATE]
    blocks = [frame.body for frame in frames if frame.kind is Kind.MACHINES]
    return [*pieces, *(repr(entry) for block in blocks for entry in decode_block(block))]


def test_the_worlds_that_prove_it_are_busy_ones() -> None:
    effects: Counter[str] = Counter()
    for seed in range(40):
        world = World(seed, lambda _now, _events, those: effects.update(type(e).__name__ for e in those))
        for _ in range(150):
            world.step()
        world.settle()
        with small_pieces():
            assert len(list(capture(world.core))) > 10
    assert all(effects[name] > 10 for name in ("CreateMachine", "ConfigureMachine", "DrainMachine"))
    assert all(effects[name] > 10 for name in ("DeleteMachine", "GetMachine", "EndSession", "DropBlob"))
    assert effects["SendFrames"] > 300 and effects["RunCycle"] > 200


def test_a_core_in_the_middle_of_a_cycle_gives_no_checkpoint() -> None:
    world = World(1, lambda _now, _events, _effects: None)
    while world.core.running is None:
        world.step()
    with pytest.raises(AssertionError, match="running cycle"):
        capture(world.core)
