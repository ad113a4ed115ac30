"""Machines that Lists no longer name (shard.md Q7, Q8)."""

from itertools import pairwise

import pytest

from bigfleet.shard.core.effects import Mark
from bigfleet.shard.core.removals import SAMPLE, evenly_spaced, is_mass
from bigfleet_base.telemetry.catalogue import shard as series
from tests.support.rules import rule
from tests.unit.shard.core.reconcile_world import (
    CONFIGURED,
    CONFIGURING,
    FAILED,
    IDLE,
    NOT_FOUND,
    UNAVAILABLE,
    World,
    machine,
)

HELD = "mass removal held: machines missing from List are kept until it is confirmed"


def fleet_of(count: int) -> tuple[World, tuple[str, ...]]:
    world = World()
    ids = tuple(f"m-{n:04}" for n in range(count))
    world.list(*(machine(i) for i in ids))
    return world, ids


def held(world: World) -> float:
    world.effects()
    world.reconcile.show_gauges()
    (shown,) = [mark.value for mark in world.took(Mark) if mark.series is series.RECONCILE_REMOVALS_HELD]
    return shown


def known(world: World) -> int:
    return len(world.ctx.engine.inventory)


def confirm(world: World) -> list[str]:
    """Answer Gets until no more are sent; returns whom they were for."""
    asked = []
    for _ in range(20):
        world.wait(0.1)
        for machine_id in world.gets():
            asked.append(machine_id)
            world.answer(machine_id, NOT_FOUND)
    return asked


@pytest.mark.parametrize(
    ("missing", "machines", "mass"),
    [
        (10, 100, False),
        (11, 100, True),
        (50, 1_000, False),
        (51, 1_000, True),
        (1, 1, True),
        (1, 2, False),
        (2, 4, False),
        (3, 4, True),
        (10, 20, False),
        (10, 19, True),
    ],
)
@rule("shard.Q7")
def test_more_than_ten_and_a_twentieth_or_more_than_half_are_a_mass(
    missing: int, machines: int, mass: bool
) -> None:
    assert is_mass(missing, machines) is mass


def test_sample_is_spread_over_all_ids() -> None:
    ids = [f"{n:03}" for n in range(100)]
    drawn = evenly_spaced(ids, SAMPLE)
    assert len(set(drawn)) == SAMPLE
    assert (drawn[0], drawn[-1]) == ("000", "099")
    places = [ids.index(i) for i in drawn]
    assert {b - a for a, b in pairwise(places)} == {11}


@rule("shard.Q7", "shard.Q8")
def test_few_missing_machines_are_removed_at_once() -> None:
    world, ids = fleet_of(100)
    world.writes.clear()
    world.list(gone=ids[:10])
    assert known(world) == 90
    assert [(before is not None, after) for before, after in world.writes] == [(True, None)] * 10
    assert not world.logged(HELD)


@rule("shard.Q7", "provider.P-134")
def test_two_empty_lists_remove_nothing() -> None:
    world, ids = fleet_of(100)
    world.list(gone=ids)
    assert world.logged(HELD) == 1
    world.list()
    assert not world.logged(HELD), "said once, not with every List"
    assert held(world) == 100
    world.list(*(machine(i) for i in ids))
    for _ in range(5):
        world.list()
    assert (known(world), held(world)) == (100, 0)
    assert world.gets() == []


@rule("shard.Q7")
def test_small_fleet_is_guarded_too() -> None:
    world, ids = fleet_of(4)
    world.list(gone=ids)
    assert known(world) == 4


@rule("shard.Q7")
def test_machines_missing_three_times_go_when_a_sample_is_not_found() -> None:
    world, ids = fleet_of(100)
    world.list(gone=ids[:40])
    world.list()
    assert confirm(world) == []
    world.list()
    assert confirm(world) == evenly_spaced(list(ids[:40]), SAMPLE)
    assert known(world) == 60
    assert held(world) == 0


@rule("shard.Q7")
@pytest.mark.parametrize("answer", ["found", "no answer"])
def test_any_other_answer_starts_the_count_again(answer: str) -> None:
    world, ids = fleet_of(30)
    for gone in (ids, (), ()):
        world.list(gone=gone)
    world.wait(1)
    asked = world.gets()
    assert len(asked) == SAMPLE
    for machine_id in asked[:-1]:
        world.answer(machine_id, NOT_FOUND)
    last = asked[-1]
    world.answer(last, machine(last) if answer == "found" else UNAVAILABLE)
    assert known(world) == 30
    world.list()
    world.list()
    again = confirm(world)
    assert set(again) <= {last}, "at most the Get that was not answered is repeated"
    assert known(world) == 30
    world.list()
    confirm(world)
    assert known(world) == 0


@rule("shard.Q7")
def test_machine_that_a_get_finds_and_lists_still_lack_is_still_missing() -> None:
    world, ids = fleet_of(30)
    for gone in (ids, (), ()):
        world.list(gone=gone)
    world.wait(1)
    for machine_id in world.gets():
        world.answer(machine_id, machine(machine_id))
    for _ in range(2):
        world.list(*(machine(i) for i in ids[1:]))
    assert [i for i in ids if world.state_of(i) is None] == [ids[0]]


@rule("shard.Q7")
def test_only_those_go_that_were_missing_three_times() -> None:
    world, ids = fleet_of(100)
    world.list(gone=ids[:40])
    world.list(gone=ids[40:60])
    world.list()
    confirm(world)
    assert [i for i in ids if world.state_of(i) is None] == list(ids[:40])


@rule("shard.Q7")
def test_sampled_machine_that_is_listed_again_starts_the_count_again() -> None:
    world, ids = fleet_of(30)
    for gone in (ids, (), ()):
        world.list(gone=gone)
    world.wait(1)
    asked = world.gets()
    world.list(machine(asked[0]))
    for machine_id in asked[1:]:
        world.answer(machine_id, NOT_FOUND)
    assert known(world) == 30


@rule("shard.Q7")
def test_held_machines_go_at_once_when_enough_of_them_are_back() -> None:
    world, ids = fleet_of(100)
    world.list(gone=ids[:40])
    world.list(*(machine(i) for i in ids[5:40]))
    assert known(world) == 95


@rule("shard.Q7")
def test_removed_ids_of_a_delta_go_the_same_way() -> None:
    world, ids = fleet_of(100)
    world.list(gone=ids[:5], complete=False)
    assert known(world) == 95
    world.list(gone=ids[5:50], complete=False)
    world.list(complete=False)
    assert known(world) == 95
    world.list(complete=False)
    confirm(world)
    assert known(world) == 50


@rule("shard.Q8")
def test_machine_with_an_operation_is_not_removed_before_that_has_ended() -> None:
    world, _ = fleet_of(100)
    world.busy.add("m-0001")
    world.command(machine("m-0001", CONFIGURING))
    for _ in range(5):
        world.list(gone=("m-0001",))
    assert world.state_of("m-0001") is CONFIGURING
    world.release("m-0001")
    world.list()
    assert world.state_of("m-0001") is None


def test_busy_machines_count_when_the_guard_looks_how_many_are_missing() -> None:
    world, ids = fleet_of(100)
    world.busy.update(ids[5:])
    world.list(gone=ids)
    assert known(world) == 100


def test_list_that_is_older_than_our_last_write_removes_nothing() -> None:
    world, _ = fleet_of(100)
    asked = world.ctx.now
    world.wait(1)
    world.command(machine("m-0001", CONFIGURING))
    world.list(gone=("m-0001",), started=asked)
    assert world.state_of("m-0001") is CONFIGURING
    world.list()
    assert world.state_of("m-0001") is None


@rule("shard.Q3")
def test_missing_machine_whose_record_is_refused_is_not_missing_in_that_list() -> None:
    world, ids = fleet_of(4)
    world.list(gone=ids[:3])
    for _ in range(4):
        world.list(rejected=ids[:3])
    assert (known(world), world.gets()) == (4, [])
    world.list(rejected=ids[1:3])
    assert known(world) == 3, "its record is gone again, and the others are there"


@rule("shard.Q8")
def test_machine_that_was_removed_may_come_back() -> None:
    world, _ = fleet_of(100)
    world.list(gone=("m-0001",))
    world.list(machine("m-0001", CONFIGURED))
    assert world.state_of("m-0001") is CONFIGURED
    world.list(machine("m-0001", FAILED, cluster="a"))
    assert world.state_of("m-0001") is FAILED


def test_gone_machine_that_is_not_known_is_nobodys_loss() -> None:
    world, _ = fleet_of(4)
    world.list(gone=("x", "y", "z"))
    assert known(world) == 4


def test_removal_of_many_is_written_in_slices() -> None:
    world, ids = fleet_of(7_000)
    world.wait(10)
    world.slice(gone=ids[:300])
    world.end()
    assert known(world) == 7_000 - 256
    world.wait(0.001)
    assert known(world) == 6_700


def test_machine_that_comes_back_between_two_slices_stays() -> None:
    world, ids = fleet_of(7_000)
    world.wait(10)
    world.slice(gone=ids[:300])
    world.end()
    world.slice(machine(ids[299]))
    world.wait(0.001)
    assert known(world) == 6_701
    assert world.state_of(ids[299]) is IDLE
