"""A cycle cut into slices decides as if it had run in one piece, whatever happens in between.

Each test lives through the history of a random fleet and then decides once more, in slices, with executor
results and roll-ups arriving between them. The same engine after the same history, deciding in one piece and
hearing of everything afterwards, says what is right.
"""

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from typing import Any

import pytest

from bigfleet.engine.actions import Action, ActionKind
from bigfleet.engine.cells import NO_CALL, Call
from bigfleet.engine.cycle import CycleInputs, CycleResult, Engine
from bigfleet.engine.ledger import Ledger
from bigfleet.engine.options import Options
from bigfleet.engine.parking import Parking
from bigfleet.engine.rails import Rails
from bigfleet.engine.records import Entry
from bigfleet_base.model import CapacityType, HostRef, Machine, MachineState, Need, Preemptor, transition
from bigfleet_base.model.lifecycle import EDGES, Edge
from tests.engine.adapter import EngineJudge, finish
from tests.engine.dsl import configured, idle, many, need
from tests.engine.fleets import CLUSTERS, START, generate, need_of, play
from tests.oracle.results import SECOND
from tests.support.rules import rule

NOW = START + 10_000 * SECOND
"""Later than any history."""
STARTS_FROM = {
    ActionKind.BOOTSTRAP: MachineState.IDLE,
    ActionKind.PROVISION: MachineState.SPECULATIVE,
    ActionKind.PREEMPT: MachineState.CONFIGURED,
    ActionKind.RECLAIM: MachineState.CONFIGURED,
    ActionKind.DELETE: MachineState.IDLE,
}


@pytest.fixture
def seeds(full_size: bool) -> range:
    return range(5_000 if full_size else 40)


@rule("engine.I15", "engine.I16")
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("slice_rows", [1, 7])
def test_where_a_cycle_is_cut_and_what_happens_meanwhile_change_nothing(
    seeds: range, slice_rows: int
) -> None:
    for seed, cut, whole in _decided_twice(seeds, slice_rows):
        where = f"seed {seed}"
        assert _told(cut.result) == _told(whole.result), where
        assert _memory(cut.engine) == _memory(whole.engine), where
        assert _entries(cut.engine) == _entries(whole.engine), where
        assert cut.engine.needs.snapshot() == whole.engine.needs.snapshot(), where
        later = CycleInputs(now=NOW + 10 * SECOND)
        assert _told(cut.engine.run(later)) == _told(whole.engine.run(later)), where


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("slice_rows", [1, 7])
def test_actions_of_machines_that_moved_meanwhile_are_dropped(seeds: range, slice_rows: int) -> None:
    stale = 0
    for seed, cut, whole in _decided_twice(seeds, slice_rows):
        passed, expected = cut.result.passed, whole.result.passed
        assert replace(passed, stale=0) == replace(expected, withheld=0), f"seed {seed}"
        assert passed.stale == expected.withheld, f"seed {seed}"
        assert cut.engine.rails.buckets == whole.engine.rails.buckets, f"seed {seed}"
        stale += passed.stale
    assert stale, "no event ever met an action"


@pytest.mark.timeout(1800)
def test_an_abandoned_cycle_keeps_what_happened_meanwhile(seeds: range) -> None:
    for seed, left, spared in _abandoned(seeds):
        for engine in (left, spared):
            engine.parking, engine.ledger, engine.rails = Parking(), Ledger(), Rails()
            engine.ages, engine.folds = {}, {}

        assert _entries(left) == _entries(spared), f"seed {seed}"
        told = [_told(engine.run(CycleInputs(now=NOW))) for engine in (left, spared)]
        assert told[0] == told[1], f"seed {seed}"


@pytest.mark.timeout(1800)
def test_an_abandoned_cycle_is_not_remembered(seeds: range) -> None:
    for seed, left, spared in _abandoned(seeds):
        assert _memory(left) == _memory(spared), f"seed {seed}"


def test_a_change_is_seen_at_once_and_decided_on_in_the_next_cycle() -> None:
    engine = _engine(idle("a"), idle("b"))
    engine.needs.apply_rollup("c", [need("c", 1)], NOW)
    broken = transition(engine.inventory.entry("a").machine, MachineState.FAILED, last_error="broken")

    work = engine.cycle(CycleInputs(now=NOW), 1)
    next(work)
    engine.inventory.apply(broken, NOW)
    assert engine.inventory.entry("a").machine is broken
    result = finish(work)

    assert [a.machine_id for a in result.decided] == ["a"]
    assert (result.passed.actions, result.passed.stale) == ([], 1)
    assert [a.machine_id for a in engine.run(CycleInputs(now=NOW)).passed.actions] == ["b"]


def test_a_rollup_between_slices_is_demand_of_the_next_cycle() -> None:
    engine = _engine(configured("m", "c"), configured("n", "late"))
    engine.needs.apply_rollup("c", [need("c", 1)], NOW)

    work = engine.cycle(CycleInputs(now=NOW), 1)
    next(work)
    engine.needs.apply_rollup("c", [], NOW)
    engine.needs.apply_rollup("late", [], NOW)
    result = finish(work)

    assert result.decided == [] and len(result.verdicts) == 1
    later = engine.run(CycleInputs(now=NOW))
    assert [a.machine_id for a in later.decided] == ["m", "n"] and later.verdicts == []


@rule("engine.R19", "ruling.R16")
def test_an_executor_may_learn_between_slices_that_a_provider_has_no_delete() -> None:
    engine = _engine(
        idle("a", kind=CapacityType.SPOT),
        replace(idle("b", kind=CapacityType.SPOT), state=MachineState.DELETING),
    )
    hour_later = CycleInputs(now=NOW + 3600 * SECOND)
    back = transition(engine.inventory.entry("b").machine, MachineState.IDLE)

    work = engine.cycle(hour_later, 1)
    next(work)
    engine.inventory.apply(back, NOW)
    engine.inventory.mark_not_deletable("", CapacityType.SPOT)
    result = finish(work)

    assert [a.machine_id for a in result.decided] == ["a"]
    assert engine.run(hour_later).decided == []


def test_slices_bound_how_much_is_done_at_a_time() -> None:
    pauses = []
    for slice_rows in (1, 7, 1_000_000):
        engine = _engine(many(30, idle, "m"))
        for i in range(40):
            engine.needs.apply_rollup(f"c{i}", [need(f"c{i}", 1)], NOW)
        pauses.append(sum(1 for _ in engine.cycle(CycleInputs(now=NOW), slice_rows)))

    assert pauses[0] > 3 * 40, "every Need is credited, served and judged in a slice of its own"
    assert 3 * 40 / 7 <= pauses[1] <= pauses[0] / 5, "and several in one, as long as they are small"
    assert pauses[2] == 5


def test_a_second_cycle_cannot_begin_while_one_runs() -> None:
    engine = _engine()
    first = engine.cycle(CycleInputs(now=NOW), 1)
    next(first)

    with pytest.raises(AssertionError, match="running"):
        engine.run(CycleInputs(now=NOW))
    finish(first)


def _engine(*machines: Machine | list[Machine]) -> Engine:
    engine = Engine()
    for item in machines:
        for machine in item if isinstance(item, list) else [item]:
            engine.inventory.insert(machine, NOW)
    return engine


def _abandoned(seeds: range) -> Iterator[tuple[int, Engine, Engine]]:
    """Engines that gave up a cycle half-way, each beside one that never began it and heard the same."""
    for seed in seeds:
        rng = random.Random(seed)
        left, spared = _after_its_history(seed), _after_its_history(seed)
        work = left.cycle(CycleInputs(now=NOW), 1)
        pauses = sum(1 for _ in _after_its_history(seed).cycle(CycleInputs(now=NOW), 1))
        for _, event in zip(range(rng.randint(1, pauses)), _events(rng, spared, seed), strict=False):
            next(work)
            event.happen(left)
            event.happen(spared)
        work.close()
        yield seed, left, spared


@dataclass(frozen=True)
class _Decided:
    engine: Engine
    result: CycleResult


def _decided_twice(seeds: range, slice_rows: int) -> Iterator[tuple[int, _Decided, _Decided]]:
    """Each fleet's next cycle, cut into slices with events in between, and in one piece before them all."""
    for seed in seeds:
        rng = random.Random(seed)
        cut, whole = _after_its_history(seed), _after_its_history(seed)
        inputs = _inputs(rng, cut)
        events = list(_events(rng, cut, seed))

        result, heard = _decide(cut, inputs, slice_rows, events, rng)
        for event in events[heard:]:
            event.happen(cut)
        # In one piece nothing can move meanwhile, so that the shard itself has to keep those actions back.
        moved = {event.machine: event.after for event in events[:heard]}
        expected = whole.run(replace(inputs, admit=partial(_not_stale, moved)))
        for event in events:
            event.happen(whole)
        yield seed, _Decided(cut, result), _Decided(whole, expected)


def _after_its_history(seed: int) -> Engine:
    judge = EngineJudge()
    for _ in play(judge, generate(seed)):
        pass
    return judge.engine


def _inputs(rng: random.Random, engine: Engine) -> CycleInputs:
    busy = frozenset(rng.sample(sorted(engine.inventory), len(engine.inventory) // 8))
    return CycleInputs(
        now=NOW,
        tick=rng.random() < 0.8,
        options=Options(
            reclaim_cap=rng.choice([Fraction(0), Fraction(29, 100)]), max_actions=rng.choice([0, 0, 4])
        ),
        busy=busy.__contains__,
        free_places=rng.choice([None, None, 3]),
        witness=_see_who_holds_what,
    )


def _see_who_holds_what(result: CycleResult) -> None:
    """Once the cycle is over machines change, and then nobody may ask any more."""
    assert result.holders.held is not None
    assert result.holders.lost is not None


def _decide(
    engine: Engine, inputs: CycleInputs, slice_rows: int, events: "Sequence[_Event]", rng: random.Random
) -> tuple[CycleResult, int]:
    """The result, and how many of the events came before it."""
    work = engine.cycle(inputs, slice_rows)
    heard = 0
    while True:
        try:
            next(work)
        except StopIteration as finished:
            result: CycleResult = finished.value
            return result, heard
        while heard < len(events) and rng.random() < 0.4:
            events[heard].happen(engine)
            heard += 1


# events


@dataclass(frozen=True)
class _Event:
    """What an executor or an operator says, worked out beforehand so that it can be said to two engines."""

    say: Callable[[Engine], Any]
    machine: str = ""
    after: Machine | None = None
    """The record that is then there; None where the machine is gone."""

    def happen(self, engine: Engine) -> None:
        self.say(engine)
        if self.machine:
            there = self.machine in engine.inventory
            assert (engine.inventory.entry(self.machine).machine if there else None) == self.after


def _events(rng: random.Random, engine: Engine, seed: int) -> Iterator[_Event]:
    records = {machine_id: engine.inventory.entry(machine_id).machine for machine_id in engine.inventory}
    needs = [need_of(text) for text in generate(seed)["needs"]]
    for number in range(12):
        chance = rng.random()
        if chance < 0.1:
            cluster = rng.choice(CLUSTERS)
            rows = [row for row in needs if row.cluster_id == cluster and rng.random() < 0.5]
            yield _rollup(cluster, rows)
            continue
        if chance < 0.2 or not records:
            event = _new(f"new-{number}")
        else:
            event = _change(rng, records[rng.choice(sorted(records))], needs[0].key)
        if event.after is None:
            records.pop(event.machine, None)
        else:
            records[event.machine] = event.after
        yield event


def _rollup(cluster: str, rows: list[Need]) -> _Event:
    return _Event(lambda e: e.needs.apply_rollup(cluster, rows, NOW + 1))


def _new(machine_id: str) -> _Event:
    machine = idle(machine_id)
    return _Event(lambda e: e.inventory.insert(machine, NOW + 1), machine_id, machine)


def _change(rng: random.Random, machine: Machine, preemptor: tuple[str, str, str]) -> _Event:
    chance = rng.random()
    if chance < 0.1:
        return _Event(lambda e: e.inventory.remove(machine.id), machine.id)
    if chance < 0.2:
        calls = rng.choice([NO_CALL, Call.DRAIN, Call.CREATE | Call.CONFIGURE])
        return _Event(lambda e: e.inventory.hold_off(machine.id, calls), machine.id, machine)
    if chance < 0.3:
        dearer = replace(machine, price_per_hour=machine.price_per_hour + 1, labels={"fresh": "yes"})
        return _Event(lambda e: e.inventory.apply(dearer, NOW + 1), machine.id, dearer)
    if machine.state is MachineState.CREATING and chance < 0.5:
        back = replace(
            machine,
            state=MachineState.SPECULATIVE,
            host=HostRef(),
            assigned_need_fingerprint="",
            assigned_group="",
            target_cluster="",
        )
        return _Event(lambda e: e.inventory.adopt(back, NOW + 1), machine.id, back)
    edge = rng.choice([e for e in EDGES if e.source is machine.state])
    moved = transition(machine, edge.target, **_values(edge, machine))
    stamp = Preemptor(preemptor[0], 0, *preemptor[1:]) if rng.random() < 0.5 else None
    return _Event(
        lambda e: e.inventory.apply(
            moved, NOW + 1, started=True, preempted_for=stamp, drain_deadline=NOW + 600 * SECOND
        ),
        machine.id,
        moved,
    )


def _values(edge: Edge, machine: Machine) -> dict[str, Any]:
    values: dict[str, Any] = {}
    if edge.target is MachineState.CONFIGURING:
        values["cluster"] = "c1"
    if edge.target is MachineState.FAILED:
        values["last_error"] = "broken"
    if edge.target is MachineState.IDLE and not machine.host:
        values["host"] = HostRef("provider", machine.id)
    return values


def _not_stale(moved: dict[str, Machine | None], actions: list[Action]) -> list[Action]:
    return [action for action in actions if not _is_stale(moved, action)]


def _is_stale(moved: dict[str, Machine | None], action: Action) -> bool:
    if action.machine_id not in moved:
        return False
    now = moved[action.machine_id]
    return now is None or now.state is not STARTS_FROM[action.kind]


# what is compared


def _told(result: CycleResult) -> tuple[Any, ...]:
    return (
        result.decided,
        result.verdicts,
        result.shortfalls,
        result.report,
        result.holders.held,
        result.holders.lost,
    )


def _memory(engine: Engine) -> tuple[Any, ...]:
    """What is carried from cycle to cycle, but for the reclaim buckets: those follow what was started."""
    return (
        engine.folds,
        engine.parking.ages,
        engine.parking.helped,
        engine.ledger.parts,
        engine.ages,
    )


def _entries(engine: Engine) -> dict[str, Entry]:
    return {machine_id: engine.inventory.entry(machine_id) for machine_id in engine.inventory}
