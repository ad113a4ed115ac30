"""One cycle decides from one state of the world, and only from it (shard.md §2, L3)."""

from bigfleet.engine.cycle import CycleInputs, Engine
from bigfleet.engine.inventory import Inventory
from bigfleet.engine.options import Options
from bigfleet.shard.core import events
from bigfleet.shard.core.effects import Effect
from bigfleet.sim.operator import Habits
from bigfleet_base.model import MachineState
from bigfleet_base.telemetry.catalogue import shard as series
from tests.shard.lab import MINUTE, SECOND, START, Lab, machine, machines, need, serving
from tests.support.rules import rule

S = MachineState
QUIET = Habits(rollup_interval=60 * MINUTE)


@rule("shard.C1", "shard.E3")
def test_a_machine_that_is_configured_while_a_cycle_runs_is_not_bootstrapped_again() -> None:
    # One request at a time: the second machine is Idle when the second cycle begins, and Configured when it
    # ends, with no operation any more.
    lab = Lab(machines(2), concurrency=1)
    habits = Habits(answer_delay=3 * SECOND, rollup_interval=60 * MINUTE)
    operator = lab.operator("c1", need("c1", 2), habits=habits)
    lab.run(2)
    assert [lab.state(f"m-000{n}") for n in range(2)] == [S.CONFIGURING, S.IDLE]
    lab.shard.cycle_duration = 8 * SECOND
    operator.demand(need("c1", 2), need("c1", 1, kind="absent"))
    lab.run(0.1)
    assert lab.core.running is not None
    lab.run(9)

    assert lab.provider.accepted == [("Configure", "m-0000"), ("Configure", "m-0001")]
    assert lab.counter(series.ACTIONS_DEDUPED) == 1
    assert lab.counter(series.ACTIONS, "Bootstrap") == 2


@rule("shard.C1")
def test_demand_that_changes_while_a_cycle_runs_waits_for_the_next() -> None:
    lab = Lab(machines(4))
    operator = lab.operator("c1", need("c1", 1), habits=QUIET)
    lab.run(5)
    lab.shard.cycle_duration = 3 * SECOND
    operator.demand(need("c1", 2))
    lab.run(0.5)
    assert lab.core.running is not None
    operator.demand(need("c1", 4))
    lab.run(2.6)
    assert len(lab.ids(S.CONFIGURED)) == 2
    lab.run(5)

    assert len(lab.ids(S.CONFIGURED)) == 4


@rule("shard.L9", "shard.X4")
def test_records_are_merged_although_cycles_take_longer_than_they_are_to_be_apart() -> None:
    lab = Lab(machines(4))
    operator = lab.operator("c1", need("c1", 1), habits=QUIET)
    lab.run(5)
    lab.shard.cycle_duration = 3 * SECOND // 2
    lists = lab.provider.lists
    lab.provider.put(machine("new"))
    for n in range(60):
        operator.demand(need("c1", 1, priority=1000 + n))
        lab.run(0.5)

    assert "new" in lab.ids(S.IDLE)
    assert lab.provider.lists > lists + 1


@rule("shard.C2")
def test_inventories_with_the_same_machines_are_equal_in_all_that_a_cycle_reads(full_size: bool) -> None:
    count = 100_000 if full_size else 2_000
    records = [*machines(count // 2, S.IDLE, "i"), *serving(need("c1", 1), count // 2, "b")]
    one, other = Inventory(), Inventory()
    for record in records:
        one.insert(record, START)
    for record in reversed(records):
        other.insert(record, START)
    other.remove("i-0000")
    other.insert(records[0], START)

    assert _indexes(one) == _indexes(other)
    assert one.tallies() == other.tallies()


def _indexes(inventory: Inventory) -> list[object]:
    return [
        (state, sorted((repr(cell.key), list(cell.ids)) for cell in inventory.cells(state)))
        for state in MachineState
    ]


@rule("shard.C3")
def test_the_same_machines_and_demand_give_the_same_actions() -> None:
    engine, other = _undecided(), _undecided()
    before = sorted(engine.inventory), engine.needs.snapshot()
    inputs = CycleInputs(START + MINUTE)
    first, second = engine.run(inputs), other.run(inputs)

    assert first.decided and first.decided == second.decided
    assert (sorted(engine.inventory), engine.needs.snapshot()) == before


def _undecided() -> Engine:
    """An engine with everything before it that a cycle reads, and actuation paused."""
    low = need("b", 6, priority=100)
    records = [*serving(low, 6), *machines(4, S.SPECULATIVE, "s"), *machines(3, prefix="i")]
    lab = Lab(records, options=Options(paused=True))
    lab.operator("b", low, habits=QUIET)
    lab.operator("a", need("a", 11, priority=1_000_000), habits=QUIET)
    lab.run(5)
    engine: Engine = lab.core.engine
    return engine


@rule("shard.C3")
def test_the_same_events_give_the_same_effects() -> None:
    assert _effects_of_a_day() == _effects_of_a_day()


def _effects_of_a_day() -> list[tuple[int, list[Effect]]]:
    seen: list[tuple[int, list[Effect]]] = []

    def note(now: int, _event: events.Event, done: list[Effect]) -> None:
        seen.append((now, done))

    low = need("b", 6, priority=100)
    lab = Lab([*serving(low, 6), *machines(8, S.SPECULATIVE, "s")], trace=note)
    lab.operator("b", low)
    lab.operator("a", need("a", 10, priority=1_000_000))
    lab.run(40)
    lab.operators["a"].demand()
    lab.run(60)
    assert lab.provider.count("Drain") and lab.provider.count("Create")
    return seen


@rule("shard.L3")
def test_what_is_dropped_once_is_decided_again() -> None:
    lab = Lab([*serving(need("c2", 4), 4), *machines(3, prefix="i"), *machines(3, S.SPECULATIVE, "s")])
    lab.operator("c2", need("c2", 1))
    lab.operator("c1", need("c1", 5))
    enqueue, lab.core.executor.enqueue = lab.core.executor.enqueue, lambda *_, **__: None
    lab.run(3)
    dropped = lab.core.decided
    assert dropped and not lab.provider.calls
    lab.core.executor.enqueue = enqueue
    lab.run_until(lambda: bool(lab.provider.calls), 20)

    assert lab.core.decided == dropped
