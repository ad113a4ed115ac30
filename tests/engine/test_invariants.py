"""The invariants of engine.md §16 over random fleets and their histories."""

import copy
import json
import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bigfleet_base.model import MachineState, Need, ResourceVector
from tests.engine import execution, fleets, invariants
from tests.engine.dsl import configured, gang, idle, many, need, speculative, types, units
from tests.engine.fleets import Description, Step, generate, play
from tests.engine.judge import NewJudge
from tests.engine.lab import Dwell, Lab, actions, verdict
from tests.engine.shrink import shrunk
from tests.oracle.results import SECOND, CycleInput, Kind, Options
from tests.support.rules import rule

pytestmark = pytest.mark.timeout(900)  # 5,000 fleets in the nightly tier

SEEDS = st.integers(min_value=0, max_value=2**32 - 1)


@rule(
    *("engine.I1", "engine.I2", "engine.I3", "engine.I4", "engine.I5", "engine.I6", "engine.I7"),
    *("engine.I8", "engine.I9", "engine.I13", "engine.I14", "engine.I17", "engine.I20"),
    *("engine.I22", "engine.I24", "engine.I25"),
)
@given(seed=SEEDS)
def test_every_cycle_keeps_the_invariants(new_judge: NewJudge, seed: int) -> None:
    before: Step | None = None
    for step in play(new_judge(), generate(seed)):
        for holds in invariants.EVERY_CYCLE:
            holds(step)
        if before is not None:
            invariants.i24_ages_rise_by_at_most_one(before, step)
        before = step


@rule("engine.I10")
@given(seed=SEEDS)
def test_exactly_covered_demand_is_a_fixed_point(new_judge: NewJudge, seed: int) -> None:
    rng = random.Random(seed)
    lab = Lab(new_judge())
    rows: list[Need] = []
    for i in range(rng.randint(1, 6)):
        cluster, size, count = rng.choice("ab"), rng.randint(1, 4), rng.randint(1, 5)
        make = gang if rng.random() < 0.4 else need
        row = make(cluster, size * count, types(f"t{i}"), unit=units(size), priority=rng.choice([1, 1000]))
        rows.append(row)
        kept = {"type": f"t{i}", "size": size, "rack": f"r{i}", "bought_for": row}
        lab.have(many(count, configured, f"m{i}", cluster, price=rng.choice([0, 1, 2]), **kept))
    # No spare is larger than one unit: a gang of several machines folds onto one that holds it all (§8).
    lab.have(many(3, idle, "spare", type="t0", rack="r0"), many(3, speculative, "slot", rack="r1"))
    lab.want(*rows)

    assert all(result.decided == () for result in lab.run(6))


@rule("engine.I11")
@given(seed=SEEDS)
def test_demand_met_in_the_first_cycle_is_never_bought_again(new_judge: NewJudge, seed: int) -> None:
    """From a fleet without bindings: a bound machine credited to another Need than the one it was bought
    for can make Needs of overlapping eligibility trade machines (engine.md §20 item 20)."""
    first, *rest = play(new_judge(), _calm(generate(seed)))
    if any(not v.satisfied for v in first.result.verdicts):
        return

    bought = [a.machine for a in first.result.decided if a.kind is Kind.PROVISION]
    later = [a for step in rest for a in step.result.decided]
    assert not [a for a in later if a.kind in (Kind.PROVISION, Kind.PREEMPT)]
    # What was bought is bound once, unless greed took too much: that is given back, or left idle once it is
    # there (costs order what is taken, prices what is kept), and not taken again.
    bound = Counter(a.machine for a in later if a.kind is Kind.BOOTSTRAP)
    assert bound <= Counter(bought)
    assert not [a for step in rest[-5:] for a in step.result.decided if a.kind is not Kind.DELETE]


def _calm(fleet: Description) -> Description:
    """The fleet as unattributed free machines under one unchanging demand, without failures."""
    first = fleet["steps"][0]
    quiet = {
        **first,
        "advance": 10,
        "tick": True,
        "queue": 0,
        "free_places": None,
        "rollups": [],
        **{event: [] for event in ("appear", "vanish", "blocked", "no_session", "held_off")},
    }
    machines = [
        {**m, "for": None, "dwell": [abs(cycles) for cycles in m["dwell"]]}
        for m in fleet["machines"]
        if m["state"] in ("IDLE", "SPECULATIVE")
    ]
    return {
        **fleet,
        "options": {},
        "machines": machines,
        "steps": [{**quiet, "rollups": first["rollups"]}, *[quiet] * 25],
    }


@rule("engine.I12", "ruling.R15")
@given(create=st.integers(1, 8), restart=st.none() | st.integers(1, 8), wanted=st.integers(1, 5))
def test_one_loss_is_one_provision(
    new_judge: NewJudge, create: int, restart: int | None, wanted: int
) -> None:
    row = need("c", wanted)
    lab = Lab(new_judge())
    lab.have(many(wanted, configured, "m", "c", bought_for=row), many(5, speculative, "s"))
    lab.want(row)
    lab.fail("m-0")

    provisions = 0
    for cycle in range(1, 14):
        if cycle == restart:
            # The provider echoes the metadata of Create, so the records are all there is to know.
            machines, flight = lab.judge.machines(), lab._flight
            lab = Lab(new_judge())
            lab.have(machines.values())
            lab._flight = flight
            lab.want(row)
        provisions += len(actions(lab.step(Dwell(create=create)), Kind.PROVISION))

    assert provisions == 1
    assert verdict(lab.cycle(), row).satisfied


@rule("engine.I13")
@given(seed=SEEDS)
def test_raising_a_priority_never_costs_a_plain_need_anything(new_judge: NewJudge, seed: int) -> None:
    """Among machines without attribution: a new priority is a new fingerprint, so a Need that changes it
    in flight also gives up what was its own."""
    fleet = _plain(generate(seed))
    rng = random.Random(seed)
    chosen = rng.randrange(len(fleet["needs"]))
    raised = copy.deepcopy(fleet)
    raised["needs"][chosen]["priority"] += rng.choice([7, 1507, 3_000_007])

    for before, after in zip(play(new_judge(), fleet), play(new_judge(), raised), strict=True):
        key, new_key = (fleets.need_of(f["needs"][chosen]).key for f in (fleet, raised))
        deficits = _deficits(before), _deficits(after)
        if key in deficits[0]:
            assert deficits[0][key].covers(deficits[1][new_key])


def _plain(fleet: Description) -> Description:
    """One cycle of the fleet with nothing but plain Needs, each in a row of its own."""
    needs = [
        {
            **n,
            "requirements": [r for r in n["requirements"] if r[1] != "Same"],
            "spread": [],
            "group": f"row-{i}",
            "interruption": n["interruption"] or 1,
            "reclamation": n["reclamation"] or 1,
        }
        for i, n in enumerate(fleet["needs"])
    ]
    machines = [{**m, "for": None} for m in fleet["machines"]]
    step = {**fleet["steps"][0], "blocked": [], "no_session": [], "appear": [], "vanish": []}
    return {**fleet, "needs": needs, "machines": machines, "steps": [step]}


def _deficits(step: Step) -> dict[tuple[str, str, str], ResourceVector]:
    rows = zip(step.result.rows, step.result.phase1.needs, strict=True)
    return {row.need.key: assigned.deficit for row, assigned in rows}


@rule("engine.I15")
@given(seed=SEEDS)
def test_order_of_insertion_changes_nothing(new_judge: NewJudge, seed: int) -> None:
    fleet = generate(seed)
    shuffled = copy.deepcopy(fleet)
    rng = random.Random(seed)
    rng.shuffle(shuffled["machines"])
    for step in shuffled["steps"]:
        rng.shuffle(step["rollups"])

    for one, other in zip(play(new_judge(), fleet), play(new_judge(), shuffled), strict=True):
        assert one.result == other.result


@rule("engine.I16")
@given(seed=SEEDS)
def test_deciding_changes_neither_inventory_nor_demand(new_judge: NewJudge, seed: int) -> None:
    judge = new_judge()
    for step in play(judge, generate(seed)):
        last = step
    machines, demand = dict(judge.machines()), list(judge.demand())
    inputs = CycleInput(now=last.inputs.now + 1, tick=False)

    one, other = (judge.cycle(inputs, last.options) for _ in range(2))

    assert (dict(judge.machines()), list(judge.demand())) == (machines, demand)
    # Two cycles at one moment differ only in memory, which decides who is parked.
    if [r.need.acquisition_parked for r in one.rows] == [r.need.acquisition_parked for r in other.rows]:
        assert (one.phase1, one.phase2, one.decided) == (other.phase1, other.phase2, other.decided)


@rule("engine.I18")
@given(seed=SEEDS)
def test_aggregation_does_not_depend_on_the_order_of_rows(new_judge: NewJudge, seed: int) -> None:
    rng = random.Random(seed)
    rows = [
        need("c", units(rng.randint(1, 9)), types(rng.choice("ab")), unit=units(rng.randint(1, 4)))
        for _ in range(rng.randint(1, 12))
    ]
    shuffled = rng.sample(rows, len(rows))
    one, other = new_judge(), new_judge()
    one.rollup("c", rows, 0)
    other.rollup("c", shuffled, 0)

    def by_key(needs: list[Need]) -> dict[object, tuple[ResourceVector, ResourceVector]]:
        return {n.key: (n.aggregate, n.min_unit) for n in needs}

    merged = by_key(list(one.demand()))
    assert merged == by_key(list(other.demand()))
    for key, (aggregate, min_unit) in merged.items():
        parts = [r for r in rows if r.key == key]
        assert aggregate["cpu"] == sum(r.aggregate["cpu"] for r in parts)
        assert min_unit["cpu"] == max(r.min_unit["cpu"] for r in parts)


@rule("engine.I19")
@given(
    size=st.integers(1, 120),
    fraction=st.sampled_from([0.05, 0.29, 0.5, 1.0]),
    waits=st.lists(st.integers(0, 15_000), min_size=1, max_size=25),
)
def test_cap_bounds_what_a_cluster_loses(
    new_judge: NewJudge, size: int, fraction: float, waits: list[int]
) -> None:
    lab = Lab(new_judge())
    lab.set(reclaim_cap_fraction=fraction)
    lab.have(many(size, configured, "m", "c"))
    lab.report("c")

    losses: list[tuple[int, int, int]] = []
    for wait in waits:
        configured_now = sum(m.state is MachineState.CONFIGURED for m in lab.judge.machines().values())
        load = max(1, round(fraction * 100) * configured_now // 100)
        lost = lab.cycle().rails.executed
        assert len(lost) <= load
        losses.append((lab.now, len(lost), load))
        for action in lost:
            execution.start(lab.judge, action, lab.now)
        lab.advance(wait / 1000)

    interval = Options().cycle_interval_ns
    for i, (start, _, _) in enumerate(losses):
        for end, _, _ in losses[i:]:
            window = [(n, load) for at, n, load in losses if start <= at <= end]
            intervals = -(-(end - start) // interval)
            largest = max(load for _, load in window)
            assert sum(n for n, _ in window) <= (intervals + 1) * largest + 1


@rule("engine.I21")
@given(seed=SEEDS)
def test_no_machine_is_deleted_before_its_hold(new_judge: NewJudge, seed: int) -> None:
    fleet = generate(seed)
    ages = {m["id"]: m["age"] for m in fleet["machines"]}
    ages |= {m["id"]: m["age"] for step in fleet["steps"] for m in step["appear"]}
    first_seen: dict[str, int] = {}
    idle_since: dict[str, int] = {}
    for step in play(new_judge(), fleet):
        for machine_id, machine in step.result.machines.items():
            seen = first_seen.setdefault(machine_id, step.inputs.now)
            if machine.state is not MachineState.IDLE:
                idle_since.pop(machine_id, None)
            elif machine_id not in idle_since:
                # What appeared Idle has been so for its age; the first step may come some seconds later.
                known = step.inputs.now - ages[machine_id] * SECOND - 60 * SECOND
                idle_since[machine_id] = known if seen == step.inputs.now else step.inputs.now
        for action in step.result.decided:
            if action.kind is Kind.DELETE:
                machine = step.result.machines[action.machine]
                spot = machine.capacity_type.name == "SPOT"
                hold = step.options.hold_spot_ns if spot else step.options.hold_on_demand_ns
                assert step.inputs.now - idle_since[action.machine] >= hold


def test_description_of_a_fleet_survives_json() -> None:
    for seed in range(50):
        assert json.loads(json.dumps(generate(seed))) == generate(seed)


def test_failing_fleet_shrinks_to_what_the_failure_needs(new_judge: NewJudge) -> None:
    def preempts(fleet: Description) -> bool:
        return any(a.kind is Kind.PREEMPT for step in play(new_judge(), fleet) for a in step.result.decided)

    fleet = next(f for f in map(generate, range(1000)) if len(f["steps"]) > 3 and preempts(f))

    small = shrunk(fleet, preempts)

    assert preempts(small)
    for name in ("machines", "steps"):
        assert len(small[name]) < len(fleet[name])
        for i in range(len(small[name])):
            assert not preempts({**small, name: small[name][:i] + small[name][i + 1 :]}), "more could go"


def test_generator_reaches_amounts_beyond_64_bits() -> None:
    fleets_drawn = [generate(seed) for seed in range(200)]
    amounts = [a for f in fleets_drawn for n in f["needs"] for a in n["aggregate"].values()]
    totals = [sum(m["size"].get("memory", 0) for m in f["machines"]) for f in fleets_drawn]

    assert max(amounts) == fleets.HUGE
    assert max(totals) > 2**63
