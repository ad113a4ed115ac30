"""The loop of Lists, the fence before it, several providers (shard.md L4, L9, F6, Q12)."""

import pytest

from bigfleet.engine.actions import Action, ActionKind, Reason
from bigfleet.engine.options import SECOND, Options
from bigfleet.shard.core.effects import Count, ListProvider, LogLevel, RaiseFloor, WriteAudit, WriteLog
from bigfleet.shard.core.events import Failure, FloorRaised
from bigfleet.shard.core.namesakes import MOST_REMEMBERED
from bigfleet.shard.core.settings import FIRST_LIST_LIMIT
from bigfleet.shard.provider import FailureKind
from bigfleet_base.telemetry.catalogue import shard as series
from tests.support.rules import rule
from tests.unit.shard.core.reconcile_world import (
    CONFIGURED,
    CONFIGURING,
    FENCED,
    NOT_FOUND,
    UNAVAILABLE,
    World,
    machine,
)

NOT_LISTED = "provider not listed since start; acting without it"


def started(*providers: str) -> World:
    """A world whose providers have answered the fence call."""
    world = World(*providers)
    world.reconcile.start()
    for name in world.ctx.settings.providers:
        world.reconcile.floor_raised(FloorRaised(name))
    world.effects()
    return world


def asked(world: World) -> list[str]:
    return [effect.provider for effect in world.took(ListProvider)]


def reclaim(cluster: str, machine_id: str = "m") -> Action:
    return Action(ActionKind.RECLAIM, machine_id, Reason.EXCESS, cluster)


def delete(machine_id: str) -> Action:
    return Action(ActionKind.DELETE, machine_id, Reason.RELEASE)


# Fence, then look


@rule("shard.F6")
def test_older_processes_are_fenced_before_the_first_list_and_not_again() -> None:
    world = World("p", "q")
    world.reconcile.start()
    assert [effect.provider for effect in world.took(RaiseFloor)] == ["p", "q"]
    assert asked(world) == []
    assert world.reconcile.floor_raised(FloorRaised("p"))
    assert asked(world) == ["p"]
    assert world.took(WriteAudit) == []
    assert world.took(Count) == []
    world.end(provider="p")
    world.wait(10)
    assert asked(world) == ["p"]
    assert world.took(RaiseFloor) == []


@rule("shard.F6")
@pytest.mark.parametrize(
    "kind", [FailureKind.NOT_FOUND, FailureKind.NOT_SUPPORTED, FailureKind.REFUSED, FailureKind.FAILED]
)
def test_any_other_answer_to_the_fence_call_will_do(kind: FailureKind) -> None:
    world = World()
    world.reconcile.start()
    assert world.reconcile.floor_raised(FloorRaised("p", Failure(kind, "X", "")))
    assert asked(world) == ["p"]


@rule("shard.F6", "shard.F4")
def test_process_that_is_fenced_itself_says_so_and_still_looks() -> None:
    world = World()
    world.reconcile.start()
    assert not world.reconcile.floor_raised(FloorRaised("p", FENCED))
    assert asked(world) == ["p"]


@rule("shard.F6")
def test_fence_call_without_an_answer_is_tried_again_in_place_of_the_list() -> None:
    world = World()
    world.reconcile.start()
    world.effects()
    assert world.reconcile.floor_raised(FloorRaised("p", UNAVAILABLE))
    assert world.logged("reconcile failed") == 1
    world.wait(9)
    assert world.effects() == []
    world.wait(1)
    assert world.effects() == [RaiseFloor("p")]


@rule("shard.F6")
def test_shadow_fences_nobody() -> None:
    world = World(options=Options(dry_run=True))
    world.reconcile.start()
    assert world.effects() == [ListProvider("p")]


# The loop


@rule("shard.L9")
def test_list_starts_every_interval_and_never_two_at_a_time() -> None:
    world = started()
    world.wait(25)
    assert asked(world) == [], "the first one is still running"
    world.end()
    world.wait(0.001)
    assert asked(world) == ["p"], "its time had come meanwhile"
    world.wait(4)
    world.end()
    world.wait(5.9)
    assert asked(world) == []
    world.wait(0.1)
    assert asked(world) == ["p"]


@rule("shard.L9")
def test_merged_list_wakes_the_cycle_and_a_failed_one_does_not() -> None:
    world = started()
    world.slice(machine())
    assert not world.woken()
    world.end()
    assert world.woken()
    world.fail()
    assert not world.woken()


@rule("shard.L9")
def test_failed_list_is_logged_and_tried_again_after_the_interval() -> None:
    world = started()
    world.fail(error="DEADLINE_EXCEEDED")
    (line,) = world.took(WriteLog)
    assert (line.level, line.msg, dict(line.fields)) == (
        LogLevel.WARN,
        "reconcile failed",
        {"provider": "p", "err": "DEADLINE_EXCEEDED"},
    )
    world.wait(10)
    assert asked(world) == ["p"]


@rule("shard.L9")
def test_nothing_is_started_before_every_provider_has_been_listed_completely() -> None:
    world = started("p", "q")
    world.slice(machine("m-1"), provider="p")
    world.end(provider="p")
    assert not world.acts()
    world.end(provider="q", complete=False)
    assert not world.acts()
    world.wait(60)
    world.slice(machine("m-2", CONFIGURED), provider="q")
    world.end(provider="q")
    assert world.acts() and world.reconcile.all_listed
    assert world.state_of("m-2") is CONFIGURED


@rule("shard.L9")
def test_provider_that_never_answers_is_waited_for_five_minutes_and_named() -> None:
    world = started("p", "q")
    world.slice(machine("m-1"), provider="p")
    world.end(provider="p")
    world.fail("q", "UNAVAILABLE: refused")
    world.effects()
    world.wait(FIRST_LIST_LIMIT / SECOND - 1)
    assert not world.acts()
    world.effects()
    world.wait(1)
    assert world.acts()
    assert not world.reconcile.all_listed
    (line,) = [line for line in world.took(WriteLog) if line.msg == NOT_LISTED]
    assert line.level is LogLevel.ERROR
    assert dict(line.fields) == {"provider": "q", "err": "UNAVAILABLE: refused"}
    world.end(provider="q")
    assert world.reconcile.all_listed


def test_nothing_is_timed_for_a_driver_that_steps() -> None:
    world = World("p", "q", stepped=True)
    world.reconcile.start()
    world.slice(machine("m-2", CONFIGURED), provider="q")
    world.end(provider="q")
    world.slice(*(machine(f"m-{n}") for n in range(1_000)), provider="p")
    world.end(provider="p")
    assert world.acts()
    assert world.ctx.timers.heap == []
    assert world.took(ListProvider) == []
    assert world.took(RaiseFloor) == []


def test_driver_that_steps_has_every_machine_read_at_once() -> None:
    world = World(stepped=True)
    ids = [f"m-{n:03}" for n in range(200)]
    world.slice(*(machine(i) for i in ids))
    world.end()
    for machine_id in ids:
        world.command(machine(machine_id, CONFIGURING))
    world.slice(*(machine(i) for i in ids))
    assert world.gets() == ids
    assert world.ctx.timers.heap == []


# Failing providers


@rule("shard.L4")
def test_provider_whose_lists_fail_three_times_withholds_what_would_shrink_by_it() -> None:
    world = World("p", "q")
    world.list(machine("m-p", CONFIGURED, cluster="a"), machine("i-p"), provider="p")
    world.list(machine("m-q", CONFIGURED, cluster="b"), machine("i-q"), provider="q")
    world.list(machine("n-q", CONFIGURED, cluster="a"), provider="q")
    both = [reclaim("a"), delete("i-p")]
    others = [
        reclaim("b"),
        delete("i-q"),
        Action(ActionKind.PREEMPT, "m-p", Reason.INVERSION, "a"),
        Action(ActionKind.BOOTSTRAP, "i-p", Reason.IDLE, "a"),
        Action(ActionKind.PROVISION, "s", Reason.SPECULATIVE, "a"),
    ]
    world.fail("p")
    world.fail("p")
    assert not any(world.reconcile.withholds(action) for action in both + others)
    world.fail("p")
    assert all(world.reconcile.withholds(action) for action in both)
    assert not any(world.reconcile.withholds(action) for action in others)
    world.list(provider="p")
    assert not any(world.reconcile.withholds(action) for action in both)


@rule("shard.L4")
def test_cluster_counts_as_the_providers_for_as_long_as_it_has_a_machine_there() -> None:
    world = World("p", "q")
    world.list(*(machine(f"m-{n}") for n in range(3)), provider="p")
    world.list(provider="q")
    for _ in range(3):
        world.fail("p")
    assert not world.reconcile.withholds(reclaim("a"))
    world.command(machine("m-0", CONFIGURING, cluster="a"))
    assert world.reconcile.withholds(reclaim("a"))
    world.fleet.take_back(machine("m-0"))
    assert not world.reconcile.withholds(reclaim("a"))
    world.command(machine("m-0", CONFIGURING, cluster="a"))
    world.fleet.remove("m-0")
    assert not world.reconcile.withholds(reclaim("a")), "removed by the operation that was driving it"
    assert world.reconcile.state.holdings.machines == {"p": 2}


# Two providers with one id


def duplicates(world: World) -> int:
    return sum(effect == Count(series.MACHINES_REJECTED, ("duplicate_id",)) for effect in world.took(Count))


@rule("shard.Q12", "ruling.R22")
@pytest.mark.parametrize("first", ["a", "b"])
def test_id_that_two_providers_have_is_the_first_ones_of_the_flag_in_every_run(first: str) -> None:
    world = started("a", "b")
    for name in ("a", "b") if first == "a" else ("b", "a"):
        world.wait(1)
        world.slice(machine("m-1", zone=name), machine(f"own-{name}"), provider=name)
        world.end(provider=name)
    world.wait(0.001)
    assert world.reconcile.provider_of("m-1") == "a"
    assert world.machine("m-1").zone == "a"
    assert world.reconcile.provider_of("own-b") == "b"
    assert duplicates(world) == 1
    assert world.acts()


@rule("shard.Q12")
def test_refused_namesake_is_named_in_the_log_and_never_merged() -> None:
    world = World("a", "b")
    world.list(machine("m-1"), provider="a")
    world.list(machine("m-1", CONFIGURED), provider="b")
    (line,) = world.took(WriteLog)
    assert line.msg == "provider machine rejected at ingest"
    fields = dict(line.fields)
    assert fields["machine"] == "m-1" and fields["field"] == "id"
    assert "'a'" in str(fields["err"]) and "'b'" in str(fields["err"])
    for _ in range(5):
        world.list(gone=("m-1",), provider="b")
    assert world.reconcile.provider_of("m-1") == "a"


@rule("shard.Q12")
def test_provider_that_answers_early_waits_and_is_merged_in_slices() -> None:
    world = started("a", "b")
    for n in range(10):
        world.slice(machine(f"m-{n}"), provider="b")
    world.end(provider="b")
    world.wait(30)
    world.rebuild()
    assert len(world.ctx.engine.inventory) == 0
    assert asked(world) == [], "what is kept is no more than one List"
    world.end(provider="a")
    assert len(world.ctx.engine.inventory) == 1
    assert not world.acts()
    world.wait(0.001)
    assert len(world.ctx.engine.inventory) == 10
    assert world.acts()
    assert set(asked(world)) == {"a", "b"}


@rule("shard.L9", "shard.Q12")
def test_merging_what_was_kept_starts_no_second_list() -> None:
    world = started("a", "b")
    world.slice(machine("m-1"), provider="b")
    world.slice(machine("m-2"), provider="b")
    world.wait(30)
    world.end(provider="a")
    world.wait(0.001)
    assert len(world.ctx.engine.inventory) == 2
    assert asked(world) == ["a"], "b's first List is still running"


@rule("shard.Q12", "shard.L9")
def test_provider_that_has_not_answered_in_five_minutes_is_passed_over() -> None:
    world = started("a", "b", "c")
    for name in ("c", "b"):
        if name == "b":
            world.slice(provider=name)
        world.slice(machine("m-1", zone=name), provider=name)
        world.end(provider=name)
    world.wait(FIRST_LIST_LIMIT / SECOND)
    assert not world.acts(), "those who have answered are merged first"
    world.wait(0.001)
    assert world.reconcile.provider_of("m-1") == "b"
    assert world.acts()
    named = [dict(line.fields)["provider"] for line in world.took(WriteLog) if line.msg == NOT_LISTED]
    assert named == ["a"]
    world.list(machine("m-1", zone="a"), provider="a")
    assert world.reconcile.provider_of("m-1") == "b", "the holder keeps it while it lists it"


def test_slices_of_a_first_list_that_failed_are_kept_too() -> None:
    world = started("a", "b")
    world.slice(machine("m-1"), provider="b")
    world.fail("b")
    world.end(provider="a")
    world.wait(10)
    world.slice(machine("m-2"), provider="b")
    world.end(provider="b")
    world.wait(0.001)
    assert sorted(world.ctx.engine.inventory) == ["m-1", "m-2"]
    assert world.reconcile.all_listed


@rule("shard.Q12")
def test_id_goes_to_the_other_provider_when_its_holder_gives_it_up() -> None:
    world = World("a", "b")
    world.list(machine("m-1"), *(machine(f"x-{n}") for n in range(5)), provider="a")
    world.list(machine("m-1", CONFIGURED), provider="b")
    world.list(gone=("m-1",), provider="a")
    assert world.fleet.machine("m-1") is None
    assert world.gets() == ["m-1"], "b's client does not tell of a record twice"
    world.answer("m-1", machine("m-1", CONFIGURED), provider="b")
    assert world.reconcile.provider_of("m-1") == "b"


def test_namesake_that_is_gone_is_not_asked_for() -> None:
    world = World("a", "b")
    world.list(machine("m-1"), *(machine(f"x-{n}") for n in range(5)), provider="a")
    world.list(machine("m-1"), provider="b")
    world.list(gone=("m-1",), provider="b")
    world.list(gone=("m-1",), provider="a")
    assert world.gets() == []


def test_memory_and_log_of_namesakes_are_bounded() -> None:
    world = World("a", "b")
    machines = [machine(f"m-{n:05}") for n in range(MOST_REMEMBERED + 5)]
    world.list(*machines, provider="a")
    world.list(*machines, provider="b")
    refused = world.reconcile.state.namesakes.refused
    assert len(refused) == MOST_REMEMBERED
    assert "m-00004" not in refused and "m-00005" in refused
    lines = world.took(WriteLog)
    assert len(lines) == 11
    assert dict(lines[-1].fields) == {"provider": "b", "records": MOST_REMEMBERED + 5}


@rule("provider.P-139")
def test_dead_provider_freezes_only_its_own_slice() -> None:
    world = World("p", "q")
    world.list(machine("m-p"), provider="p")
    world.list(machine("m-q"), provider="q")
    for _ in range(10):
        world.fail("p")
        world.list(machine("m-q", CONFIGURED), provider="q")
    assert world.state_of("m-q") is CONFIGURED
    assert world.state_of("m-p") is not None


def test_reread_of_one_provider_does_not_take_anothers_answer() -> None:
    world = World("p", "q")
    world.list(machine("m-p"), provider="p")
    world.list(provider="q")
    world.answer("m-p", NOT_FOUND, provider="q")
    assert world.state_of("m-p") is not None
