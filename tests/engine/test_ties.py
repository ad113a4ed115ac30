"""Machines that tie in everything but their ids: a Need that takes more or fewer of them than a cycle before
takes those that a Need which had never been there would take."""

import random
from collections.abc import Iterator
from dataclasses import replace

import pytest

from bigfleet.engine.cycle import CycleInputs, Engine
from bigfleet_base.model import Machine, MachineState, Need, ResourceVector, transition
from tests.engine.adapter import EngineJudge
from tests.engine.dsl import configured, idle, many, need, types, units, vector
from tests.engine.judge import Judge, OracleJudge
from tests.engine.lab import START, Lab, claims, targets
from tests.oracle.results import SECOND, CycleInput, Options
from tests.support.rules import rule

_SIZES = (vector(cpu=1, memory="4Gi"), vector(cpu=2, memory="8Gi"), vector(cpu=3), vector(cpu=2, gpu=1))


@rule("engine.I1", "engine.I15")
@pytest.mark.timeout(1800)
def test_needs_that_compete_for_ties_hold_what_the_oracle_gives_them(full_size: bool) -> None:
    for seed in range(4000 if full_size else 60):
        rng = random.Random(seed)
        judges: tuple[Judge, Judge] = (EngineJudge(), OracleJudge())
        # Half of the histories have machines of one size, as most clusters do.
        sizes = _SIZES[: rng.choice((1, 2, len(_SIZES)))]
        for number, change in enumerate(_history(rng, sizes)):
            ours, theirs = (change(judge, START + number * 10 * SECOND) for judge in judges)
            assert ours == theirs, f"seed {seed}, cycle {number}"


def _history(rng: random.Random, sizes: tuple[ResourceVector, ...]) -> "Iterator[_Change]":
    """A cluster with three Needs whose demand moves, and forty machines that break and are repaired."""
    rows = [
        need("c", _amount(rng), types("a", "b"), priority=2000),
        need("c", _amount(rng), types("b", "d"), priority=1000),
        need("c", _amount(rng), priority=100),
    ]
    machines = {
        f"m{number:02}": configured(
            f"m{number:02}",
            "c",
            type=rng.choice("abd"),
            zone=rng.choice("xyz"),
            size=rng.choice(sizes),
            price=rng.choice((0, 0, 0, 1)),
            bought_for=rng.choice((*rows, None)),
        )
        for number in range(40)
    }
    yield _Change(rows, list(machines.values()))
    for _ in range(12):
        changed = []
        for machine_id in rng.sample(sorted(machines), rng.choice((0, 1, 1, 4))):
            machine = machines[machine_id]
            if machine.state is MachineState.CONFIGURED:
                after = transition(machine, MachineState.FAILED, last_error="host lost")
            elif machine.state is MachineState.FAILED:
                after = transition(machine, MachineState.IDLE)
            elif machine.state is MachineState.IDLE:
                after = transition(machine, MachineState.CONFIGURING, cluster="c")
            else:
                after = transition(machine, MachineState.CONFIGURED)
            machines[machine_id] = after
            changed.append(after)
        for number in rng.sample(range(3), rng.choice((0, 1, 1, 2))):
            rows[number] = replace(rows[number], aggregate=_amount(rng))
        yield _Change(rows, changed)


def _amount(rng: random.Random) -> ResourceVector:
    return ResourceVector({name: amount * rng.randint(0, 30) for name, amount in rng.choice(_SIZES).items()})


class _Change:
    """What happens before a cycle; called with a judge it makes it happen there, and says who holds what."""

    def __init__(self, rows: list[Need], machines: list[Machine]) -> None:
        self._rows = list(rows)
        self._machines = machines

    def __call__(self, judge: Judge, now: int) -> object:
        known = judge.machines()
        for machine in self._machines:
            if machine.id in known:
                judge.apply(machine, now)
            else:
                judge.insert(machine, now)
        judge.rollup("c", self._rows, now)
        result = judge.cycle(CycleInput(now=now), Options())
        return [sorted(n.claims) for n in result.phase1.needs], result.decided, result.verdicts


@rule("engine.I15")
def test_what_is_gone_is_on_no_menu() -> None:
    engine = Engine()
    rows = [need("c", 6, priority=2000), need("c", 2, priority=1000)]
    for machine in (
        *many(8, configured, "m", "c", bought_for=rows[0]),
        # So many others that these are no upheaval.
        *(idle(f"other-{n}", type=f"t{n}") for n in range(40)),
    ):
        engine.inventory.insert(machine, START)
    engine.needs.apply_rollup("c", rows, START)
    engine.run(CycleInputs(now=START))
    plan = engine._plan
    for number in range(1, 30):
        # The price of one machine moves: it leaves one cell for another.
        moved = replace(engine.inventory.entry("m-3").machine, price_per_hour=float(number))
        engine.inventory.apply(moved, START)
        engine.run(CycleInputs(now=START + number))

        assert engine._plan is plan is not None
        for row in plan.rows:
            menus = [*row.usual.values(), *row.foreign.values()]
            stocks = [stock for menu in menus for group in menu.groups for stock in group]
            assert all(stock.cell.ids for stock in stocks)
            assert sum(len(menu.groups) for menu in menus) <= 2
            assert all(row in stock.readers for stock in row.reads())


@rule("engine.I15", "engine.I2")
def test_machine_that_was_passed_over_among_ties_is_taken_once_it_adds_something(lab: Lab) -> None:
    lab.have(
        (configured(i, "c", type="g", size=vector(cpu=1, gpu=1)) for i in ("1-g", "4-g", "5-g")),
        (configured(i, "c", type="p", size=vector(cpu=1)) for i in ("2-p", "3-p")),
    )
    both, processors = need("c", vector(cpu=2, gpu=2)), need("c", vector(cpu=3))
    lab.want(both)
    assert set(claims(lab.cycle(), both)) == {"1-g", "2-p", "4-g"}

    lab.want(processors)

    assert set(claims(lab.cycle(), processors)) == {"1-g", "2-p", "3-p"}


@rule("engine.I15")
def test_need_that_wanted_less_of_some_ties_goes_on_where_it_stopped(lab: Lab) -> None:
    lab.have(
        (configured(i, "c", type="a") for i in ("1", "3")),
        (configured(i, "c", type="b") for i in ("2", "4", "5")),
        # So many others that what happens to these is no upheaval.
        (configured(f"other-{n}", "other", type=f"t{n}") for n in range(10)),
    )
    lab.want(*(need("other", 1, types(f"t{n}")) for n in range(10)))
    for amount, held in ((4, {"1", "2", "3", "4"}), (2, {"1", "2"})):
        wanted = need("c", amount, types("a", "b"))
        lab.want(wanted)
        assert set(claims(lab.cycle(), wanted)) == held

    lab.judge.apply(transition(lab.machine("2"), MachineState.FAILED, last_error="host lost"), lab.now)

    assert set(claims(lab.cycle(), wanted)) == {"1", "3"}


@rule("engine.I15", "engine.I2")
def test_small_machine_that_joins_ties_of_large_ones_is_left_where_those_will_do(lab: Lab) -> None:
    lab.have(configured(i, "c", size=2) for i in ("1", "2"))
    for amount in (10, 9):
        lab.want(need("c", amount))
        lab.cycle()

    lab.have(configured("3", "c", size=1))
    wanted = need("c", 4)
    lab.want(wanted)

    assert set(claims(lab.cycle(), wanted)) == {"1", "2"}


def test_amounts_say_whether_every_piece_is_wanted() -> None:
    want = units(10)

    assert want.takes_all(units(12), least=units(3)), "without the last of three, nine are there"
    assert not want.takes_all(units(13), least=units(3)), "the last one may come when ten are there"
    assert not want.takes_all(vector(gpu=1), least=vector(gpu=1)), "nobody wants one"
    assert not units(0).takes_all(units(1), least=units(1))


@rule("engine.I15", "engine.D5")
@pytest.mark.parametrize("sizes", [(4, 4, 4), (4, 6, 4)], ids=["alike", "of two sizes"])
def test_few_of_many_ties_are_the_lowest_ids(lab: Lab, sizes: tuple[int, ...]) -> None:
    lab.have(idle(f"m{n:02}", zone=f"z{n % 12}", size=units(sizes[n % 3])) for n in range(90))
    lab.want(need("c", 12))

    assert targets(lab.cycle()) == ["m00", "m01", "m02"]
