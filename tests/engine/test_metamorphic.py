"""Changes to a fleet that must not change what is decided about it.

Each test plays the history of a random fleet twice, as it is and changed, and compares what every cycle
decided and said, up to the names and units that the change concerns.
"""

import json
import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import pytest

from bigfleet_base.model import Machine, MachineState, Need, ResourceVector
from bigfleet_base.model.penalty import PINNED
from bigfleet_base.model.requirement import INSTANCE_TYPE_KEY
from tests.engine.adapter import EngineJudge
from tests.engine.fleets import (
    CLUSTERS,
    HUGE,
    RACK_KEY,
    RACKS,
    START,
    TYPES,
    ZONES,
    Description,
    generate,
    play,
)
from tests.engine.judge import Judge, NewJudge
from tests.oracle.results import SECOND, Action, CycleInput, CycleResult, Ingest, Key, Memory, Options
from tests.support.rules import rule

pytestmark = pytest.mark.timeout(1800)  # thousands of fleets in the nightly tier

POOL = "pool"
Change = Callable[[random.Random, Description], None]


@pytest.fixture(scope="module")
def seeds(full_size: bool) -> range:
    return range(2_000 if full_size else 20)


# order


@rule("engine.I15")
def test_orders_without_meaning_have_none(new_judge: NewJudge, seeds: range) -> None:
    """Of machines, of clusters, of terms and values, and of rows that differ in priority."""

    def shuffle(rng: random.Random, fleet: Description) -> None:
        rng.shuffle(fleet["machines"])
        for machine in fleet["machines"]:
            machine["labels"] = _shuffled(rng, machine["labels"])
        for need in fleet["needs"]:
            rng.shuffle(need["requirements"])
            rng.shuffle(need["spread"])
            need["requirements"] = [[k, o, rng.sample(v, len(v))] for k, o, v in need["requirements"]]
            need["aggregate"] = _shuffled(rng, need["aggregate"])
        for step in fleet["steps"]:
            rng.shuffle(step["rollups"])
            for _, rows in step["rollups"]:
                # Position decides between rows of one priority that came together (engine.md §5).
                by_priority: dict[int, list[int]] = {}
                for row in rows:
                    by_priority.setdefault(fleet["needs"][row]["priority"], []).append(row)
                rows[:] = _interleaved(rng, list(by_priority.values()))

    for fleet, shuffled in _changed(seeds, shuffle):
        for one, other in zip(play(new_judge(), fleet), play(new_judge(), shuffled), strict=True):
            assert one.demand == other.demand
            assert one.result == other.result


# names


def test_names_matter_by_their_order_alone(new_judge: NewJudge, seeds: range) -> None:
    for seed in seeds:
        rng, fleet = random.Random(seed), generate(seed)
        names = _new_names(rng, fleet)
        expected = [_renamed(view, names) for view in _views(new_judge(), fleet)]
        renamed = _renamed(fleet, names)
        assert list(_views(new_judge(), renamed)) == expected, f"seed {seed}"


def _new_names(rng: random.Random, fleet: Description) -> dict[str, str]:
    """Clusters, machines and domains keep their order; types and groups have none to keep."""
    ordered = [CLUSTERS, RACKS, ZONES, {machine["id"] for machine in _machines(fleet)}]
    unordered = [TYPES, {need["group"] for need in fleet["needs"]} - {""}]
    names: dict[str, str] = {}
    for old in [*ordered, *unordered]:
        new: set[str] = set()
        while len(new) < len(old):
            # A zone must not come to bear the name of a rack: some Need may ask for just that.
            name = "".join(rng.choices("-09AZaz~é字", k=rng.randint(1, 9)))
            new |= {name} - set(names.values())
        kept = sorted(new) if old in ordered else rng.sample(sorted(new), len(new))
        names |= zip(sorted(old), kept, strict=True)
    return names


# units


def test_only_the_ratio_of_prices_matters_where_nothing_is_interrupted(
    new_judge: NewJudge, seeds: range
) -> None:
    def safe(rng: random.Random, fleet: Description) -> None:
        _set(fleet, p=0.0)

    _assert_same(new_judge, seeds, _rescaled_prices, prepare=safe)


def test_only_the_ratio_of_prices_matters_to_needs_that_weigh_no_risk(
    new_judge: NewJudge, seeds: range
) -> None:
    """An interruption that costs nothing adds nothing to the price, and one that may not happen drowns it."""

    def careless_or_pinned(rng: random.Random, fleet: Description) -> None:
        for need in fleet["needs"]:
            need["interruption"] = rng.choice([0, 1, PINNED])

    _assert_same(new_judge, seeds, _rescaled_prices, prepare=careless_or_pinned)


def test_prices_and_the_cost_of_interruption_may_be_in_any_currency(
    new_judge: NewJudge, seeds: range
) -> None:
    """Bounds of buckets double from one to the next, so one bucket up and a doubled price is all costs
    doubled. Victims are chosen by the penalty alone, hence without its weight."""

    def in_dollars(rng: random.Random, fleet: Description) -> None:
        fleet["options"]["weight_interruption"] = 0.0
        for need in fleet["needs"]:
            need["interruption"] = rng.choice([1, 2, 3, 5, 9, 16, PINNED])

    def in_cents(rng: random.Random, fleet: Description) -> None:
        step = rng.randint(1, 8)
        for machine in _machines(fleet):
            machine["price"] *= 2**step
        for need in fleet["needs"]:
            if 1 < need["interruption"] < PINNED:
                need["interruption"] += step

    _assert_same(new_judge, seeds, in_cents, prepare=in_dollars)


def test_quantities_may_be_in_any_unit(new_judge: NewJudge, seeds: range) -> None:
    units = {"cpu": 7, "memory": 10**6 + 3, "gpu": 11}

    def vectors(fleet: Description) -> list[dict[str, int]]:
        wanted = [need[field] for need in fleet["needs"] for field in ("aggregate", "min_unit")]
        return wanted + [machine["size"] for machine in _machines(fleet)]

    def with_room(rng: random.Random, fleet: Description) -> None:
        for vector in vectors(fleet):
            vector.update({name: min(amount, HUGE // units[name]) for name, amount in vector.items()})

    def in_smaller_units(rng: random.Random, fleet: Description) -> None:
        for vector in vectors(fleet):
            vector.update({name: amount * units[name] for name, amount in vector.items()})

    for fleet, scaled in _changed(seeds, in_smaller_units, prepare=with_room):
        assert list(_views(new_judge(), fleet)) == list(_views(new_judge(), scaled, units=units))


@pytest.mark.parametrize("offset", [-START, 3 * SECOND + 1, 10**18])
def test_no_moment_is_special(new_judge: NewJudge, seeds: range, offset: int) -> None:
    for seed in seeds:
        fleet = generate(seed)
        judge, later = new_judge(), _Later(new_judge(), offset)
        assert list(_views(judge, fleet)) == list(_views(later, fleet)), f"seed {seed}"
        assert [judge.memory(i) for i in sorted(judge.machines())] == [
            later.memory(i) for i in sorted(later.machines())
        ], f"seed {seed}"


class _Later:
    """A judge whose clock is ahead of the history's."""

    def __init__(self, judge: Judge, offset: int) -> None:
        self._judge = judge
        self._offset = offset
        self.remove, self.machines, self.demand = judge.remove, judge.machines, judge.demand

    def insert(self, machine: Machine, now: int, *, preempted_for: Key | None = None) -> None:
        self._judge.insert(machine, now + self._offset, preempted_for=preempted_for)

    def apply(self, machine: Machine, now: int, *, drain_deadline: int | None = None, **more: Any) -> None:
        ends = None if drain_deadline is None else drain_deadline + self._offset
        self._judge.apply(machine, now + self._offset, drain_deadline=ends, **more)

    def memory(self, machine_id: str) -> Memory:
        there = self._judge.memory(machine_id)
        since, ends = there.idle_since, there.drain_deadline
        return replace(
            there,
            idle_since=None if since is None else since - self._offset,
            drain_deadline=None if ends is None else ends - self._offset,
        )

    def rollup(self, cluster: str, rows: Any, now: int, *, guard: bool = False) -> Ingest:
        return self._judge.rollup(cluster, rows, now + self._offset, guard=guard)

    def cycle(self, inputs: CycleInput, options: Options) -> CycleResult:
        return self._judge.cycle(replace(inputs, now=inputs.now + self._offset), options)


# what does not concern anybody


def test_machines_that_suit_nobody_change_nothing(new_judge: NewJudge, seeds: range) -> None:
    """Also those that are themselves reclaimed or released, where no rail makes actions compete."""

    def fenced_off(rng: random.Random, fleet: Description) -> None:
        _without_rails(fleet)
        for need in fleet["needs"]:
            need["requirements"].append([POOL, "DoesNotExist", []])

    def crowd(rng: random.Random, fleet: Description) -> None:
        for machine in rng.choices(fleet["machines"], k=4):
            there = _newcomer(rng, fleet, machine)
            there["labels"][POOL] = "other"
            there["cluster"] = rng.choice([*CLUSTERS, "unreported"])

    _assert_same(new_judge, seeds, crowd, prepare=fenced_off)


def test_machines_that_failed_or_are_being_deleted_change_nothing(new_judge: NewJudge, seeds: range) -> None:
    def crowd(rng: random.Random, fleet: Description) -> None:
        for machine in rng.choices(fleet["machines"], k=4):
            there = _newcomer(rng, fleet, machine)
            there["state"], there["dwell"] = rng.choice(["FAILED", "DELETING"]), [1000]

    _assert_same(new_judge, seeds, crowd)


def test_a_need_that_no_machine_suits_changes_nothing_for_the_others(
    new_judge: NewJudge, seeds: range
) -> None:
    def unguarded(rng: random.Random, fleet: Description) -> None:
        fleet["options"].pop("guard", None)  # counts rows

    def dreamer(rng: random.Random, fleet: Description) -> None:
        wanted: list[list[Any]] = [[INSTANCE_TYPE_KEY, "In", ["nowhere"]]]
        if rng.random() < 0.5:
            wanted.append([RACK_KEY, "Same", []])
        _join(rng, fleet, {**rng.choice(fleet["needs"]), "requirements": wanted, "group": NEWCOMER})

    _assert_same(new_judge, seeds, dreamer, prepare=unguarded)


@rule("engine.I13")
def test_a_need_of_the_lowest_precedence_takes_nothing_from_the_others(
    new_judge: NewJudge, seeds: range
) -> None:
    """In the cycle it appears; what it is then given belongs to it as to anybody."""

    def short(rng: random.Random, fleet: Description) -> None:
        fleet["options"].pop("guard", None)
        del fleet["steps"][1:]

    def latecomer(rng: random.Random, fleet: Description) -> None:
        last = {"priority": -1000, "interruption": 1, "reclamation": 1, "group": NEWCOMER}
        _join(rng, fleet, {**rng.choice(fleet["needs"]), **last})

    for fleet, crowded in _changed(seeds, latecomer, prepare=short):
        one, other = (next(play(new_judge(), f)).result for f in (fleet, crowded))
        claims = {row.need.key: a.claims for row, a in zip(one.rows, one.phase1.needs, strict=True)}
        after = {row.need.key: a.claims for row, a in zip(other.rows, other.phase1.needs, strict=True)}
        assert claims == {key: after[key] for key in claims}


def test_labels_nobody_asks_about_change_nothing(new_judge: NewJudge, seeds: range) -> None:
    _assert_same(new_judge, seeds, _painted)


def test_labels_nobody_asks_about_split_no_cell(seeds: range) -> None:
    for fleet, painted in _changed(seeds, _painted):
        engines = []
        for played in (fleet, painted):
            judge = EngineJudge()
            for _ in play(judge, played):
                pass
            engines.append(judge.engine)
        cells = [
            sorted(sorted(c.ids) for state in MachineState for c in e.inventory.cells(state)) for e in engines
        ]
        assert cells[0] == cells[1]


def test_a_label_asked_about_late_counts_as_if_always_asked_about(seeds: range) -> None:
    for seed in seeds:
        fleet = generate(seed)
        prepared = EngineJudge()
        prepared.engine.inventory.ask(
            {key for need in fleet["needs"] for key, *_ in need["requirements"] + need["spread"]}
        )
        for one, other in zip(play(EngineJudge(), fleet), play(prepared, fleet), strict=True):
            assert one.result == other.result, f"seed {seed}"


# changing


NEWCOMER = "newcomer"
"""In the ids and groups of what a change adds."""


def _rescaled_prices(rng: random.Random, fleet: Description) -> None:
    factor = 2.0 ** rng.choice([-20, -3, 1, 5, 30])
    for machine in _machines(fleet):
        machine["price"] *= factor


def _painted(rng: random.Random, fleet: Description) -> None:
    for machine in _machines(fleet):
        machine["labels"]["colour"] = rng.choice(["red", "green", machine["id"]])


def _newcomer(rng: random.Random, fleet: Description, like: Description) -> Description:
    """One more machine, somewhere in the order of ids."""
    there = {**_apart(like), "id": f"{like['id']}-{NEWCOMER}-{len(fleet['machines'])}"}
    fleet["machines"].insert(rng.randrange(len(fleet["machines"])), there)
    return there


def _join(rng: random.Random, fleet: Description, need: Description) -> None:
    """One more row in every roll-up of the Need's cluster."""
    fleet["needs"].append(need)
    for step in fleet["steps"]:
        for cluster, rows in step["rollups"]:
            if cluster == need["cluster"]:
                rows.insert(rng.randint(0, len(rows)), len(fleet["needs"]) - 1)


def _without_rails(fleet: Description) -> None:
    for option in ("reclaim_cap_fraction", "max_actions_per_cycle"):
        fleet["options"].pop(option, None)
    for step in fleet["steps"]:
        step["free_places"] = None


def _set(fleet: Description, **fields: Any) -> None:
    for machine in _machines(fleet):
        machine.update(fields)


def _machines(fleet: Description) -> list[Description]:
    return [*fleet["machines"], *(m for step in fleet["steps"] for m in step["appear"])]


def _shuffled(rng: random.Random, values: Mapping[str, Any]) -> dict[str, Any]:
    return dict(rng.sample(list(values.items()), len(values)))


def _interleaved(rng: random.Random, queues: list[list[int]]) -> Iterator[int]:
    while queues := [queue for queue in queues if queue]:
        yield rng.choice(queues).pop(0)


def _renamed(value: Any, names: Mapping[str, str]) -> Any:
    """Every name inside lists, tuples and dicts replaced; keys of dicts are no names."""
    if isinstance(value, dict):
        return {key: _renamed(item, names) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(_renamed(item, names) for item in value)
    return names.get(value, value) if isinstance(value, str) else value


# comparing


def _changed(
    seeds: Iterable[int], change: Change, prepare: Change = lambda rng, fleet: None
) -> Iterator[tuple[Description, Description]]:
    """Pairs of a fleet as ``prepare`` leaves it and the same with the change."""
    for seed in seeds:
        # Siblings share parts of their descriptions; apart they can be changed one by one.
        rng, fleet = random.Random(seed), _apart(generate(seed))
        prepare(rng, fleet)
        changed = _apart(fleet)
        change(rng, changed)
        yield fleet, changed


def _apart(fleet: Description) -> Description:
    description: Description = json.loads(json.dumps(fleet))
    return description


def _assert_same(
    new_judge: NewJudge, seeds: Iterable[int], change: Change, prepare: Change = lambda rng, fleet: None
) -> None:
    for seed, (fleet, changed) in zip(seeds, _changed(seeds, change, prepare), strict=True):
        views = zip(_views(new_judge(), fleet), _views(new_judge(), changed), strict=True)
        for number, (one, other) in enumerate(views):
            assert one == other, f"seed {seed}, cycle {number}"


def _views(judge: Judge, fleet: Description, units: Mapping[str, int] | None = None) -> Iterator[Any]:
    """What each cycle says, without what a change adds, without fingerprints and moments."""
    for step in play(judge, fleet):
        result = step.result
        rows = zip(result.rows, result.phase1.needs, result.verdicts, strict=True)
        yield (
            [_action(a) for a in result.decided if NEWCOMER not in a.machine],
            [_action(a) for a in result.rails.executed if NEWCOMER not in a.machine],
            [
                (
                    _need(row.need, units),
                    list(assigned.claims),
                    _amounts(verdict.deficit, units),
                    [verdict.same_domain, verdict.same_satisfiable, verdict.acquisition_parked],
                    [verdict.parked_age, verdict.age, verdict.reason.value],
                    None
                    if (found := verdict.matching_supply) is None
                    else [found.idle, found.speculative, found.configured, found.capped],
                    None if verdict.preemption is None else verdict.preemption.victims_found,
                    [[c.domain, c.coverage_per_mille, c.satisfiable] for c in verdict.candidates],
                )
                for row, assigned, verdict in rows
                if row.need.group != NEWCOMER
            ],
        )


def _action(action: Action) -> list[Any]:
    wanted_by = action.preemptor
    return [
        *(action.kind.value, action.machine, action.cluster, action.reason, action.grace_s, action.group),
        None if wanted_by is None else [wanted_by.priority, wanted_by.cluster, wanted_by.group],
    ]


def _need(need: Need, units: Mapping[str, int] | None) -> list[Any]:
    return [need.cluster_id, need.group, need.profile.priority, _amounts(need.aggregate, units)]


def _amounts(vector: ResourceVector, units: Mapping[str, int] | None) -> list[list[Any]]:
    """In the unit of the fleet that was not changed."""
    if units is not None:
        assert all(amount % units[name] == 0 for name, amount in vector.items())
    return sorted([name, amount // units[name] if units else amount] for name, amount in vector.items())
