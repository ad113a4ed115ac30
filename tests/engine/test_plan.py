"""A plan that is kept from cycle to cycle decides as one that is made anew.

The engine behind ``EngineJudge`` decides by changes and by everything in every cycle, and the judge fails
where the two differ. What a scenario here expects is therefore only half of its claim.
"""

import gc
import random
from collections.abc import Callable, Generator, Iterable
from dataclasses import replace

import pytest

from bigfleet.engine.cells import NO_CALL, Call
from bigfleet.engine.cycle import CycleInputs, CycleResult, Engine
from bigfleet.engine.plan import Change
from bigfleet.engine.stock import Row
from bigfleet.engine.supply import Supply
from bigfleet.engine.verdicts import Verdict
from bigfleet_base.model import Machine, Operator, Requirement
from bigfleet_base.model.requirement import INSTANCE_TYPE_KEY
from tests.engine.adapter import EngineJudge, PersistentEngine, finish
from tests.engine.dsl import (
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
)
from tests.engine.fleets import generate, play
from tests.engine.lab import START, Lab, claims, targets, verdict
from tests.oracle.results import SECOND
from tests.support.rules import rule

# random histories


class _Told(PersistentEngine):
    """Keeps the verdicts it is told of, as the shard does: from change to change."""

    def cycle(self, inputs: CycleInputs, slice_rows: int = 1000) -> Generator[str, None, CycleResult]:
        self.result = yield from super().cycle(replace(inputs, judging=self._judging), slice_rows)
        return self.result

    def _judging(self, anew: bool) -> Callable[[Change], None]:
        if anew:
            self.known: dict[object, Verdict] = {}
        return self._hear

    def _hear(self, change: Change) -> None:
        before, after = change
        if before is not None:
            known = self.known.pop(_name(before))
            assert known.aged(0, 0) == before.aged(0, 0)
        if after is not None:
            assert _name(after) not in self.known, "told as if it were the first"
            self.known[_name(after)] = after


def _name(verdict: Verdict) -> object:
    return (verdict.need.key, verdict.demand.members)


@rule("engine.I15", "engine.I25")
@pytest.mark.timeout(1800)
def test_random_fleets_are_decided_by_changes_as_by_everything(full_size: bool) -> None:
    for seed in range(20_000 if full_size else 200):
        judge, rng = EngineJudge(), random.Random(seed)
        judge.engine = engine = _Told(full_every=1)
        for step in play(judge, generate(seed)):
            for _ in range(rng.randint(0, 2)):
                # The world stands still; only the clock and what the shard tells go on.
                later = step.inputs.now + rng.randint(0, 60) * SECOND
                inputs = replace(step.inputs, now=later, tick=rng.random() < 0.5)
                if rng.random() < 0.5:
                    inputs = replace(inputs, blocked=frozenset(), no_session=frozenset())
                judge.cycle(inputs, step.options)
            told = {name: verdict.aged(0, 0) for name, verdict in engine.known.items()}
            now = {_name(verdict): verdict.aged(0, 0) for verdict in engine.result.verdicts}
            assert told == now, f"seed {seed}"


# whom a change of demand concerns


@rule("engine.S9", "engine.I15")
def test_machines_on_their_way_to_two_needs_pass_from_one_to_the_other(lab: Lab) -> None:
    folded = need("c", 1, Requirement(RACK_KEY, Operator.EXISTS))
    on_their_way = [creating(f"x{n}", rack="r", size=2, bought_for=folded) for n in (1, 2)]
    lab.have(on_their_way, speculative("later", rack="r", size=2))
    small, large = gang("c", 1, group="small"), gang("c", 2, group="large")
    lab.want(small, large)
    assert targets(lab.cycle()) == []

    lab.want(small, large, *(gang("c", 1, group=f"small-{n}") for n in (2, 3)))
    assert targets(lab.cycle()) == ["later"], "the small ones take both, and the large one finds none"

    lab.want(small, large)
    assert targets(lab.cycle()) == []


@rule("engine.S9", "engine.I15")
def test_need_turns_to_the_first_of_the_machines_on_their_way_once_nobody_else_has_it(lab: Lab) -> None:
    folded = need("c", 2, Requirement(RACK_KEY, Operator.EXISTS))
    lab.have(
        (
            creating(machine_id, rack="r", zone=zone, size=2, bought_for=folded)
            for machine_id, zone in (("x1", "a"), ("x2", "b"), ("x3", "a"))
        ),
        speculative("later", rack="r", size=2),
    )
    small, large = gang("c", 1, group="small"), gang("c", 2, group="large")
    lab.want(small, large)
    lab.cycle()

    lab.want(large)

    assert claims(lab.cycle(), folded) == ["x1"]


@rule("engine.G6", "engine.I15")
def test_machine_of_a_gang_that_joins_others_is_theirs(lab: Lab) -> None:
    small, large = gang("c", 1, group="g1"), gang("c", 3, group="g2")
    lab.have(
        configured("of-g2", "c", rack="r", price=1, bought_for=large),
        configured("of-g1", "c", rack="r", price=2, bought_for=small),
        configured("nobodys", "c", rack="r", price=3),
    )
    lab.want(small, large)
    lab.cycle()
    lab.want(small, gang("c", 1, group="g2"))

    assert targets(lab.cycle()) == ["nobodys"]


@rule("engine.G8", "engine.I15")
def test_gang_in_one_of_two_domains_minds_what_an_earlier_one_is_promised(lab: Lab) -> None:
    held, earlier = gang("c", 2), gang("d", 2, priority=2000)
    lab.have(
        many(2, configured, "a", "c", rack="A"),
        many(2, configured, "b", "c", rack="B"),
        many(2, idle, "ia", rack="A"),
        idle("ib", rack="B"),
    )
    lab.want(held)
    domains = []
    for wanted in ([], [earlier], []):
        lab.report("d", *wanted)
        domains.append(verdict(lab.cycle(), held).same_domain)

    assert domains == ["B", "A", "B"], "where the least is left over"


@rule("engine.I15")
def test_need_in_the_place_of_a_dearer_one_comes_after_those_that_were_behind(lab: Lab) -> None:
    dear, other, cheap = (need("c", 1, reclamation=dollars) for dollars in (1000, 10, 0))
    lab.have(many(3, configured, "m", "c"))
    lab.want(dear, other)
    first = lab.cycle()
    assert (claims(first, dear), claims(first, other)) == (["m-0"], ["m-1"])

    lab.want(cheap, other)

    then = lab.cycle()
    assert (claims(then, other), claims(then, cheap)) == (["m-0"], ["m-1"])


@rule("engine.I15")
def test_need_whose_units_have_grown_passes_over_machines_that_no_longer_hold_one(lab: Lab) -> None:
    lab.have(many(2, configured, "small", "c", price=1), configured("large", "c", size=2, price=2))
    lab.want(need("c", 2))
    assert claims(lab.cycle(), need("c", 2)) == ["small-0", "small-1"]

    grown = need("c", 2, unit=units(2))
    lab.want(grown)

    assert claims(lab.cycle(), grown) == ["large"]


# whom a change of machines concerns


@rule("engine.G8", "engine.I15")
def test_gang_in_one_of_two_domains_minds_what_turns_up_there(lab: Lab) -> None:
    held = gang("c", 2)
    lab.have(
        many(2, configured, "a", "c", rack="A"), many(2, configured, "b", "c", rack="B"), idle("ia", rack="A")
    )
    lab.want(held)
    assert verdict(lab.cycle(), held).same_domain == "B"

    lab.have(many(2, idle, "ib", rack="B"))

    assert verdict(lab.cycle(), held).same_domain == "A"


@rule("engine.G8", "engine.I15")
def test_gang_in_one_of_two_domains_minds_what_is_lost_in_the_other(lab: Lab) -> None:
    held = gang("c", 2)
    lab.have(
        many(2, configured, "a", "c", rack="A"),
        many(2, configured, "b", "c", rack="B"),
        idle("ia", rack="A"),
        many(2, idle, "ib", rack="B"),
    )
    lab.want(held)
    assert verdict(lab.cycle(), held).same_domain == "A"

    lab.judge.remove("ib-0")
    lab.judge.remove("ib-1")

    assert verdict(lab.cycle(), held).same_domain == "B"


@rule("engine.S9")
def test_machine_created_for_a_need_later_counts_first_if_its_id_is_lower(lab: Lab) -> None:
    wanted = need("c", 1)
    lab.have(creating("m-5", price=1, bought_for=wanted))
    lab.want(wanted)
    assert claims(lab.cycle(), wanted) == ["m-5"]

    lab.have(creating("m-1", price=2, bought_for=wanted))

    assert claims(lab.cycle(), wanted) == ["m-1"]


@rule("engine.S21")
def test_need_turns_to_the_machine_of_another_when_its_own_idle_one_is_lost(lab: Lab) -> None:
    one, two = need("c", 1, types("a", "b"), priority=2000), need("c", 1, types("b"))
    lab.have(idle("a", type="a", bought_for=one), configured("b", "c", type="b", bought_for=two))
    lab.want(one, two)
    assert claims(lab.cycle(), one) == ["a"]

    lab.judge.remove("a")

    assert claims(lab.cycle(), one) == ["b"]


@rule("engine.S20")
def test_need_that_is_short_counts_a_machine_in_creation_that_turns_up_without_an_owner(lab: Lab) -> None:
    wanted = need("c", 1)
    lab.want(wanted)
    assert claims(lab.cycle(), wanted) == []

    lab.have(creating("m"))

    assert claims(lab.cycle(), wanted) == ["m"]


@rule("engine.S20")
def test_machine_in_creation_is_nobodys_once_the_cluster_it_is_for_says_it_wants_none(lab: Lab) -> None:
    wanted = need("c", 1)
    lab.have(creating("m", bought_for=need("d", 1)))
    lab.want(wanted)
    assert claims(lab.cycle(), wanted) == [], "nobody knows yet what d wants"

    lab.report("d")

    assert claims(lab.cycle(), wanted) == ["m"]


@rule("engine.S18")
def test_need_that_had_enough_of_the_machines_of_another_looks_further_once_they_are_gone(lab: Lab) -> None:
    one, two = need("c", 1, priority=2000), need("c", 2, types("b"))
    lab.have(configured("cheap", "c", type="b", price=1, bought_for=two))
    lab.want(one, two)
    assert claims(lab.cycle(), one) == ["cheap"]
    lab.judge.remove("cheap")
    assert claims(lab.cycle(), one) == []

    lab.have(configured("dear", "c", type="b", price=2, bought_for=two))

    assert claims(lab.cycle(), one) == ["dear"]


@rule("engine.G6")
def test_bound_machine_that_turns_up_lets_gangs_fold(lab: Lab) -> None:
    lab.have(configured("small", "c", rack="A"))
    lab.want(gang("c", 2, group="g1"), gang("c", 2, group="g2"))
    assert len(lab.step().rows) == 2

    lab.have(configured("large", "c", rack="A", size=2))

    assert [len(result.rows) for result in lab.run(3)] == [2, 2, 1]


# whom a change of demand concerns


@rule("engine.I13")
def test_lower_id_among_ties_is_taken_up_when_an_earlier_need_sets_it_free(lab: Lab) -> None:
    early, late = need("c", 1, types("y"), priority=2000), need("c", 1)
    lab.have(configured("m-1", "c", type="x"), *(configured(i, "c", type="y") for i in ("m-0", "m-2")))
    lab.want(early, late)
    assert claims(lab.cycle(), late) == ["m-1"]

    lab.want(late)

    assert claims(lab.cycle(), late) == ["m-0"]


@rule("engine.S18")
def test_machine_is_left_to_its_owner_once_there_is_one(lab: Lab) -> None:
    one, two = need("c", 1, priority=2000), need("c", 1, types("b"))
    lab.have(configured("a", "c", type="a", price=2), configured("b", "c", type="b", price=1, bought_for=two))
    for rows, held in (([one], ["b"]), ([one, two], ["a"]), ([one], ["b"])):
        lab.want(*rows)
        assert claims(lab.cycle(), one) == held


@rule("engine.S20", "engine.S23")
def test_machine_in_creation_is_left_to_its_owner_once_there_is_one(lab: Lab) -> None:
    one, two = need("c", 1, priority=2000), need("d", 1)
    lab.have(creating("m", bought_for=two))
    for rows, held in (([two], []), ([], ["m"]), ([two], [])):
        lab.want(one)
        lab.report("d", *rows)
        assert claims(lab.cycle(), one) == held


@rule("engine.I25")
def test_rows_that_keep_coming_between_two_others_all_count(lab: Lab) -> None:
    rows = [need("c", 1, types("first")), need("c", 1, types("last"))]
    for number in range(30):
        rows.insert(1, need("c", 1, types(f"t{number}")))
        lab.want(*rows)

        assert [v.profile for v in lab.cycle().verdicts] == [row.profile for row in rows]


@rule("engine.I25")
def test_row_that_comes_and_goes_between_two_cycles_leaves_no_trace(lab: Lab) -> None:
    stays, moment = need("c", 1), need("c", 1, types("a"))
    lab.want(stays)
    lab.cycle()

    lab.want(stays, moment)
    lab.want(stays)

    assert [v.profile for v in lab.cycle().verdicts] == [stays.profile]


def test_row_that_changes_twice_between_two_cycles_counts_as_it_is_last(lab: Lab) -> None:
    lab.have(many(4, idle, "m", rack="A"))
    for amounts in ([2], [4, 3]):
        for amount in amounts:
            lab.want(gang("c", amount))
        result = lab.cycle()

    assert targets(result) == ["m-0", "m-1", "m-2"]


def test_one_need_among_many_takes_its_place(lab: Lab) -> None:
    many_needs = [need("c", 1, types(f"t-{n}")) for n in range(200)]
    lab.want(*many_needs, need("d", 1))
    lab.cycle()

    first, last = need("d", 1, priority=2000), need("d", 1, priority=0)
    lab.want(first, last)

    profiles = [v.profile for v in lab.cycle().verdicts]
    assert profiles == [first.profile, *(each.profile for each in many_needs), last.profile]


@rule("engine.I4")
def test_row_of_which_only_the_unit_changes_is_another(lab: Lab) -> None:
    wanted = need("c", 2)
    lab.have(idle("large", size=2, price=9), many(2, idle, "m"))
    lab.want(wanted)
    assert targets(lab.cycle()) == ["m-0", "m-1"]

    lab.want(replace(wanted, min_unit=units(2)))

    assert targets(lab.cycle()) == ["large"]


# what is decided anew although neither machines nor demand have changed


@rule("engine.V4")
def test_new_settings_are_heeded_although_nothing_else_has_changed(lab: Lab) -> None:
    tenant = need("d", 2, priority=0)
    lab.have(
        configured("a", "d", bought_for=tenant, interruption=1, reclamation=100),
        configured("b", "d", bought_for=tenant, interruption=100, reclamation=1),
    )
    lab.want(need("c", 1), tenant)
    assert targets(lab.cycle()) == ["a"]

    lab.set(weight_reclamation=10.0)

    assert targets(lab.cycle()) == ["b"]


@rule("engine.V17")
def test_drain_for_nobody_is_waited_for_as_soon_as_it_ends_in_time(lab: Lab) -> None:
    wanted, tenant = need("c", 1, priority=1_000_000), need("d", 1, priority=0)
    lab.have(configured("v", "d", bought_for=tenant))
    lab.have_draining(draining("m", "e"), ends_in=500)
    lab.want(wanted, tenant)
    assert targets(lab.cycle()) == ["v"]

    lab.advance(495)

    assert targets(lab.cycle()) == []


@rule("engine.S22")
def test_need_held_back_for_another_reason_says_so() -> None:
    lab, wanted = Lab(EngineJudge()), need("c", 1)
    blocked, silent = frozenset({wanted.key[:2]}), frozenset({"c"})
    lab.want(wanted)

    first = lab.cycle(blocked=blocked)
    then = lab.cycle(no_session=silent)

    assert verdict(first, wanted).unmet_detail == "operator_error"
    assert verdict(then, wanted).unmet_detail == "no_session"


@rule("engine.G20")
def test_gang_that_got_all_it_wants_is_parked_no_longer(lab: Lab) -> None:
    wanted = gang("c", 2)
    lab.want(wanted)
    assert verdict(lab.run(9)[-1], wanted).acquisition_parked
    lab.have(many(2, configured, "m", "c", rack="A"))

    assert [verdict(result, wanted).acquisition_parked for result in lab.run(3)] == [True, False, False]


@rule("engine.R9")
def test_holds_of_one_cell_end_one_after_the_other(lab: Lab) -> None:
    lab.have(idle("a", kind=SPOT))
    lab.advance(10)
    lab.have(idle("b", kind=SPOT))
    lab.want(need("c", 1))
    lab.advance(51)
    assert targets(lab.cycle()) == ["a"], "wanted, though its hold is over"

    lab.advance(10)

    assert targets(lab.cycle()) == ["a", "b"]


# what is remembered of machines


@rule("engine.I2")
def test_machine_that_has_its_instance_type_as_a_label_suits(lab: Lab) -> None:
    lab.have(idle("m", type="", labels={INSTANCE_TYPE_KEY: "a"}))
    lab.want(need("c", 1, types("a")))

    assert targets(lab.cycle()) == ["m"]


@rule("engine.I2")
@pytest.mark.parametrize("suiting", ["a", "b"])
def test_instance_types_that_are_labels_only_are_told_apart(lab: Lab, suiting: str) -> None:
    lab.have(*(idle(f"m-{name}", type="", labels={INSTANCE_TYPE_KEY: name}) for name in "ab"))
    lab.want(need("c", 2, types(suiting)))

    assert targets(lab.cycle()) == [f"m-{suiting}"]


@rule("engine.I21")
def test_machine_that_joins_others_is_released_when_its_own_hold_is_over() -> None:
    engine = _engine(idle("old", kind=SPOT))
    engine.inventory.hold_off("old", Call.DELETE)
    engine.inventory.insert(idle("new", kind=SPOT), START + 30 * SECOND)
    engine.inventory.hold_off("old", NO_CALL)

    result = engine.run(CycleInputs(now=START + 60 * SECOND))

    assert [action.machine_id for action in result.decided] == ["old"]


def test_machines_are_found_however_many_kinds_have_come_and_gone() -> None:
    engine = _engine(idle("m"))
    engine.needs.apply_rollup("c", [need("c", 1)], START)

    for changes in (900, 200):
        for _ in range(changes):
            machine = engine.inventory.entry("m").machine
            engine.inventory.apply(replace(machine, price_per_hour=machine.price_per_hour + 1), START)
        assert [action.machine_id for action in engine.run(CycleInputs(now=START)).decided] == ["m"]


# when a plan is made anew


@rule("engine.S4")
def test_first_report_of_a_cluster_concerns_all_it_has() -> None:
    engine = _engine(configured("m", "c"), configured("n", "late"))
    engine.needs.apply_rollup("c", [need("c", 1)], START)
    assert engine.run(CycleInputs(now=START)).decided == []

    engine.needs.apply_rollup("late", [], START)
    result = engine.run(CycleInputs(now=START))

    assert [action.machine_id for action in result.decided] == ["n"]
    assert result.mismatch is None


def test_machine_of_a_need_that_never_was_is_found_by_one_that_comes_later() -> None:
    engine = _engine(configured("m", "c"), (configured(f"x-{i}", "d", type=f"t{i}") for i in range(9)))
    rows = [need("c", 1, types("std"), priority=priority) for priority in range(9, 4, -1)]
    engine.needs.apply_rollup("c", rows, START)
    engine.run(CycleInputs(now=START))
    engine.inventory.insert(configured("n", "c", type="new", bought_for=need("c", 7)), START)
    engine.run(CycleInputs(now=START))

    engine.needs.apply_rollup("c", [*rows, need("c", 1, types("new"))], START)
    result = engine.run(CycleInputs(now=START))

    assert result.mismatch is None
    assert result.decided == []


def test_label_key_asked_for_the_first_time_makes_the_plan_anew() -> None:
    engine = _engine(configured(f"m-{i}", "c", type=f"t{i}", rack="A") for i in range(9))
    rows = [need("c", 1, priority=priority) for priority in range(9)]
    engine.needs.apply_rollup("c", rows, START)
    engine.run(CycleInputs(now=START))

    engine.needs.apply_rollup("c", [*rows, gang("c", 2)], START)
    result = engine.run(CycleInputs(now=START))

    assert result.mismatch is None
    assert [v.satisfied for v in result.verdicts] == 8 * [True] + 2 * [False]


def test_plan_that_went_astray_is_found_out_in_time() -> None:
    engine = _engine(many(3, idle, "m"), full_every=3)
    engine.needs.apply_rollup("c", [need("c", 2)], START)
    engine.run(CycleInputs(now=START))
    engine.inventory.remove("m-0")
    engine.inventory.take_changes()

    results = [engine.run(CycleInputs(now=START)) for _ in range(4)]

    assert [result.mismatch is None for result in results] == [True, True, False, True]
    assert [action.machine_id for action in results[1].decided] == ["m-0", "m-1"]
    for right in results[2:]:
        assert [action.machine_id for action in right.decided] == ["m-1", "m-2"]


def test_who_is_in_a_hurry_has_a_plan_compared_in_the_next_cycle_instead_but_not_for_ever() -> None:
    engine = _engine(many(3, idle, "m"), full_every=3)
    engine.needs.apply_rollup("c", [need("c", 2)], START)
    engine.run(CycleInputs(now=START))
    engine.inventory.remove("m-0")
    engine.inventory.take_changes()

    results = []
    for _ in range(14):
        engine.hurried = True
        results.append(engine.run(CycleInputs(now=START)))

    assert [result.mismatch is None for result in results] == 12 * [True] + [False, True]
    engine.start_over()
    assert engine.run(CycleInputs(now=START)).mismatch is None
    engine.inventory.remove("m-1")
    engine.inventory.take_changes()
    engine.hurried, mismatches = False, []
    for number in range(4):
        if number == 2:
            in_slices = engine.cycle(CycleInputs(now=START), slice_rows=1)
            while "phase3" not in next(in_slices):
                pass
            engine.hurried = True
            result = finish(in_slices)
            engine.hurried = False
        else:
            result = engine.run(CycleInputs(now=START))
        mismatches.append(result.mismatch)
    assert [each is None for each in mismatches] == [True, True, True, False]


@pytest.mark.parametrize("slices", [1, 2, 3, 4])
def test_plan_of_an_abandoned_cycle_is_not_used_again(slices: int) -> None:
    engine = _engine(many(9, idle, "m"))
    rows = [need("c", 1, priority=priority) for priority in range(9)]
    engine.needs.apply_rollup("c", rows, START)
    engine.run(CycleInputs(now=START))
    engine.inventory.remove("m-0")
    engine.needs.apply_rollup("c", rows[1:], START)

    given_up = engine.cycle(CycleInputs(now=START))
    for _ in range(slices):
        next(given_up)
    given_up.close()
    result = engine.run(CycleInputs(now=START))

    assert result.mismatch is None
    assert sorted(action.machine_id for action in result.decided) == [f"m-{i}" for i in range(1, 9)]


def _engine(*machines: Machine | Iterable[Machine], full_every: int = 1) -> Engine:
    engine = Engine(full_every=full_every)
    for item in machines:
        for machine in [item] if isinstance(item, Machine) else item:
            engine.inventory.insert(machine, START)
    return engine


# what is left of the past


def test_demand_that_is_gone_and_plans_that_are_discarded_leave_nothing_to_collect() -> None:
    engine = _engine(*many(20, idle, "m"), *many(20, configured, "n", "c0"))
    engine.full_every = 2
    gc.collect()
    gc.disable()
    try:
        for cycle in range(40):
            if cycle == 7:
                engine.start_over()
            # All of it, which makes a new plan, or a little, which does not.
            for n in range(2 if cycle % 4 else 10):
                engine.needs.apply_rollup(f"c{n}", [need(f"c{n}", 1 + (cycle + n) % 3)], START, guard=False)
            engine.run(CycleInputs(now=START + cycle * SECOND))
        rows = sum(isinstance(each, Row) for each in gc.get_objects())
    finally:
        gc.enable()

    assert rows <= 2 * 10, "those of the plan, and those that were short in the last cycle"


def test_a_plan_that_somebody_in_a_hurry_cuts_short_leaves_nothing_to_collect() -> None:
    racks = [idle(f"m-{n}", labels={RACK_KEY: f"rack-{n % 5}"}, price=n % 7) for n in range(80)]
    gangs = [gang("c", 2, group=f"g-{n}") for n in range(30)]
    left = []
    for pauses in range(40, 160, 4):
        engine = _engine(racks)
        engine.needs.apply_rollup("c", gangs, START)
        engine.run(CycleInputs(now=START))
        gc.collect()
        gc.disable()
        try:
            cycle = engine.cycle(CycleInputs(now=START), slice_rows=1)
            for _ in range(pauses):
                next(cycle, None)
            engine.hurried = True
            for _ in cycle:
                pass
            left.append(sum(isinstance(each, Supply) for each in gc.get_objects()))
        finally:
            gc.enable()
        del engine, cycle

    assert left == [1] * len(left)
