"""Claims that no scenario of engine.md §17 makes, each found by a planted bug that nothing else caught.

``tests/mutants`` names the bugs.
"""

import random
from collections.abc import Iterable
from dataclasses import replace

import pytest

from bigfleet.engine.cycle import CycleInputs, Engine
from bigfleet.engine.options import Options
from bigfleet_base.model import (
    CapacityType,
    Machine,
    MachineState,
    Need,
    ResourceVector,
    TopologySpread,
    WhenUnsatisfiable,
)
from bigfleet_base.model.requirement import INSTANCE_TYPE_KEY
from tests.engine.adapter import finish
from tests.engine.differential import first_difference
from tests.engine.dsl import (
    BARE_METAL,
    RACK_KEY,
    SPOT,
    configured,
    creating,
    draining,
    gang,
    idle,
    many,
    need,
    speculative,
    types,
    units,
    vector,
)
from tests.engine.fleets import Description, generate
from tests.engine.lab import START, Lab, claims, targets, verdict
from tests.oracle.results import SECOND, Ingest, Kind, MatchingSupply
from tests.support.rules import rule

# many machines of one kind


@pytest.mark.timeout(1800)
def test_fleets_of_twins_are_decided_as_by_the_oracle(full_size: bool) -> None:
    """The machines of a random fleet are almost all different, so that the engine hardly ever takes two of
    one cell; here they are copies of a few, as they are in life."""
    for seed in range(20_000 if full_size else 150):
        difference = first_difference(_of_twins(generate(seed), random.Random(seed)))
        assert difference is None, f"seed {seed} differs in {difference}"


def _of_twins(fleet: Description, rng: random.Random) -> Description:
    """The fleet with a quarter of its machines in four copies each; some copies differ in their state."""
    originals = rng.sample(fleet["machines"], max(1, len(fleet["machines"]) // 4))
    machines = []
    for machine in fleet["machines"]:
        twin = {**rng.choice(originals), "id": machine["id"]}
        if rng.random() < 0.3:
            twin["state"] = machine["state"]
        machines.append(twin)
    return {**fleet, "machines": machines}


@rule("engine.I15")
def test_machines_of_equal_cost_are_taken_by_id_whatever_their_type(lab: Lab) -> None:
    lab.have(
        *(idle(f"m-{i}", type="even", price=1) for i in (0, 2, 4)),
        *(idle(f"m-{i}", type="odd", price=1) for i in (1, 3, 5)),
    )
    lab.want(need("c", 4))

    assert targets(lab.cycle()) == ["m-0", "m-1", "m-2", "m-3"]


@rule("engine.D5")
def test_machines_of_one_kind_are_taken_until_the_last_dimension_is_covered(lab: Lab) -> None:
    lab.have(
        many(5, idle, "a", size=vector(cpu=4, memory="4Gi"), price=1),
        many(5, idle, "b", size=vector(cpu=4, memory="4Gi"), price=2),
    )
    lab.want(need("c", vector(cpu=4, memory="16Gi")))

    assert targets(lab.cycle()) == ["a-0", "a-1", "a-2", "a-3"]


@pytest.mark.parametrize("amounts", [{}, {"memory": 1 << 40}])
def test_machine_whose_allocatable_has_none_of_a_resource_counts_for_none_of_it(
    lab: Lab, amounts: dict[str, int]
) -> None:
    """engine.md §2.5: ``resources`` stand in only where no allocatable is given; §2.1: what is not named is
    zero, and so is what does not parse."""
    spare = idle("b", size=vector(cpu=16), price=2)
    lab.have(replace(configured("a", "c", size=vector(cpu=64)), allocatable=ResourceVector(amounts)), spare)
    lab.want(need("c", vector(cpu=10)))

    assert targets(lab.cycle(), Kind.BOOTSTRAP) == ["b"]


@rule("ruling.R3")
def test_labels_nobody_asks_about_do_not_keep_machines_apart() -> None:
    """engine.md §20 item 27: what a cycle costs depends on it, what it decides does not."""
    engine = _engine(idle(f"m-{i}", rack=f"r{i % 2}", labels={"hostname": f"h{i}"}) for i in range(8))

    def kinds(*rows: Need) -> int:
        engine.needs.apply_rollup("c", list(rows), START)
        engine.run(CycleInputs(now=START))
        return sum(1 for _ in engine.inventory.cells(MachineState.IDLE))

    assert kinds() == 1
    assert kinds(gang("c", 2)) == 2


# credit


@rule("engine.S22")
def test_need_held_back_credits_the_machine_of_another_although_its_own_is_idle(lab: Lab) -> None:
    """§10.2: its own Idle machine is set aside only if it may be acquired."""
    one = need("c", 1, types("a", "b"), priority=2000)
    two = need("c", 1, types("b"))
    lab.have(idle("a", type="a", bought_for=one), configured("b", "c", type="b", bought_for=two))
    lab.want(one, two)

    held = lab.cycle(blocked=frozenset({("c", one.profile.fingerprint)}))

    assert (claims(held, one), claims(held, two)) == (["b"], [])
    free = lab.cycle()
    assert (claims(free, one), claims(free, two)) == (["a"], ["b"])


# domains


@rule("engine.P1")
def test_strict_spread_sees_a_label_that_no_requirement_names(lab: Lab) -> None:
    lab.have(many(3, idle, "a", rack="A", price=1), many(3, idle, "b", rack="B", price=2))
    lab.want(need("c", 4, TopologySpread(RACK_KEY, WhenUnsatisfiable.DO_NOT_SCHEDULE, 1)))

    assert sorted(targets(lab.cycle())) == ["a-0", "a-1", "b-0", "b-1"]


@rule("engine.V19")
def test_second_ranking_counts_no_machine_twice(lab: Lab) -> None:
    """The gang's cluster holds two in rack A, preemptible as they are: four would do."""
    wanted = gang("c", 4)
    lab.have(many(2, configured, "a", "c", rack="A", stamp=0), many(3, idle, "b", rack="B"))
    lab.want(wanted)

    assert verdict(lab.cycle(), wanted).same_domain == "B"


@rule("engine.V23")
@pytest.mark.parametrize(("ends_in", "domain"), [(10, "A"), (500, "B")])
def test_gang_counts_on_a_voluntary_drain_only_if_it_ends_in_time(
    lab: Lab, ends_in: float, domain: str
) -> None:
    wanted, tenant = gang("c", 2, priority=1_000_000), need("d", 1, priority=0)
    lab.have(configured("v", "d", rack="A", bought_for=tenant), idle("stray", rack="B"))
    lab.have_draining(draining("m", "e", rack="A"), ends_in=ends_in)
    lab.want(wanted, tenant)

    assert verdict(lab.cycle(), wanted).same_domain == domain


# what is said of a Need


@rule("engine.G15")
def test_verdict_of_a_gang_shows_its_five_best_domains(lab: Lab) -> None:
    wanted = gang("c", 9)
    lab.have(*(many(i + 1, idle, f"m{i}", rack=f"r{i}") for i in range(7)))
    lab.want(wanted)

    seen = verdict(lab.cycle(), wanted)

    assert [c.domain for c in seen.candidates] == ["r6", "r5", "r4", "r3", "r2"]


@rule("engine.L6")
@pytest.mark.parametrize(("machines", "capped"), [(1000, False), (1001, True)])
def test_matching_supply_is_counted_up_to_a_thousand(lab: Lab, machines: int, capped: bool) -> None:
    wanted = need("c", 1)
    lab.have(many(machines, idle, "m"))
    lab.want(wanted)

    result = lab.cycle(no_session=frozenset({"c"}))

    assert verdict(result, wanted).matching_supply == MatchingSupply(1000, 0, 0, capped=capped)


@rule("engine.L4")
def test_verdict_says_where_the_machines_of_a_need_come_from() -> None:
    wanted, tenant = need("c", 6), need("d", 1, priority=100)
    engine = _engine(
        configured("bound", "c"),
        creating("bought", bought_for=wanted),
        idle("idle"),
        many(2, speculative, "slot"),
        configured("victim", "d", bought_for=tenant),
    )
    for row in (wanted, tenant):
        engine.needs.apply_rollup(row.cluster_id, [row], START)

    result = engine.run(CycleInputs(now=START))

    [mine, theirs] = result.verdicts
    found = mine.sources
    assert (found.bound, found.in_flight, found.idle, found.speculative, found.displaced) == (1, 1, 1, 2, 1)
    assert (theirs.sources.bound, result.holders.held["victim"]) == (1, 1)
    assert result.holders.lost == {"victim": 1}


@rule("engine.L4")
def test_witness_sees_who_holds_what_before_the_changes_that_wait_are_written() -> None:
    engine = _engine(configured(str(n), "c") for n in (1, 2, 3))
    engine.needs.apply_rollup("c", [need("c", 2)], START)
    seen: list[dict[str, int]] = []

    work = engine.cycle(CycleInputs(now=START, witness=lambda result: seen.append(result.holders.held)))
    next(work)
    engine.inventory.remove("1")
    result = finish(work)

    assert seen == [{"1": 0, "2": 0}] and [a.machine_id for a in result.decided] == ["3"]
    assert sorted(engine.inventory) == ["2", "3"]


# machines that are odd


@rule("engine.O3")
@pytest.mark.parametrize("price", [1e300, 1.7e308, float("inf")])
def test_machine_of_an_absurd_price_is_bought_like_any_other(lab: Lab, price: float) -> None:
    lab.have(speculative("cheap", price=1), idle("dear", price=price))
    lab.want(need("c", 2))

    assert targets(lab.cycle()) == (["cheap", "dear"] if price == float("inf") else ["dear", "cheap"])


@rule("engine.I1")
def test_machine_whose_type_is_a_label_counts_once_for_a_need_that_names_the_empty_type(lab: Lab) -> None:
    wanted = need("c", 2, types("", "a"))
    lab.have(configured("m", "c", type="", labels={INSTANCE_TYPE_KEY: "a"}))
    lab.want(wanted)

    seen = verdict(lab.cycle(), wanted)

    assert (seen.claimed, seen.deficit) == (1, units(1))


# release and rails


@rule("engine.R15")
def test_guard_watches_clusters_from_ten_rows_on(lab: Lab) -> None:
    lab.set(guard=True)
    lab.report("c", *(need("c", 1, types(f"t{i}")) for i in range(10)))

    assert lab.report("c") is Ingest.HELD


@rule("engine.I20")
def test_no_policy_releases_bare_metal() -> None:
    engine = _engine(idle("metal", kind=BARE_METAL), idle("spot", kind=SPOT))
    policy = Options(idle_hold_ns=dict.fromkeys(CapacityType, SECOND))

    result = engine.run(CycleInputs(now=START + 3600 * SECOND, options=policy))

    assert [a.machine_id for a in result.decided] == ["spot"]


@rule("engine.R17")
@pytest.mark.parametrize("stopped", ["paused", "dry_run"])
def test_cap_refills_while_nothing_is_executed(lab: Lab, stopped: str) -> None:
    lab.set(reclaim_cap_fraction=0.1)
    lab.have(many(50, configured, "m", "c"))
    lab.report("c")
    assert len(lab.cycle().rails.executed) == 5

    lab.set(**{stopped: True})
    for _ in range(2):
        lab.advance(5)
        assert lab.cycle().rails.executed == ()
    lab.set(**{stopped: False})

    assert len(lab.cycle().rails.executed) == 5


def test_what_the_shard_withholds_takes_no_place_under_the_limit() -> None:
    engine = _engine(many(4, idle, "m"))
    engine.needs.apply_rollup("c", [need("c", 4)], START)

    result = engine.run(
        CycleInputs(
            now=START,
            options=Options(max_actions=2),
            admit=lambda actions: [action for action in actions if action.machine_id >= "m-2"],
        )
    )

    assert [a.machine_id for a in result.passed.actions] == ["m-2", "m-3"]
    assert (result.passed.withheld, result.passed.deferred) == (2, 0)


def _engine(*machines: Machine | Iterable[Machine]) -> Engine:
    engine = Engine()
    for item in machines:
        for machine in [item] if isinstance(item, Machine) else item:
            engine.inventory.insert(machine, START)
    return engine
