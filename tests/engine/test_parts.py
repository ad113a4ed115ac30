"""The parts that make a cycle cheap, each against the plain way of doing the same."""

import gc
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from bigfleet.engine import matching
from bigfleet.engine.cells import (
    NO_PAST,
    Arrivals,
    Binding,
    Bound,
    Cell,
    CellKey,
    Labels,
    MachineClass,
    Offer,
    Pool,
    Product,
    Tally,
)
from bigfleet.engine.inventory import Inventory
from bigfleet.engine.matching import Fit, Matcher
from bigfleet.engine.needs import NeedsTable, Place
from bigfleet.engine.normalise import Demand
from bigfleet.engine.plan import exchanged
from bigfleet.engine.stock import Row, Stock, choose
from bigfleet_base.model import CapacityType, MachineState, Need, ResourceVector
from tests.engine.dsl import configured, idle, need, same_rack

# Choosing among stocks that tie


def _stock(number: int, ids: Sequence[int], alloc: ResourceVector) -> Stock:
    offer = Offer("t", "z", CapacityType.BARE_METAL, alloc, None, 0.0, 0.0)
    machine_class = MachineClass(number, number, offer, {})
    product = Product(Labels({}), "", "", machine_class, not_deletable=False)
    key = CellKey(MachineState.IDLE, number, Binding(), NO_PAST)
    cell = Cell(key, Pool(machine_class), Tally(), Bound(), product, None)
    cell.ids = [f"m-{n:03}" for n in sorted(ids)]
    return Stock(cell)


def _one_machine_at_a_time(group: list[Stock], lacking: ResourceVector, used: list[int]) -> dict[Stock, int]:
    machines = sorted(
        (machine_id, n) for n, stock in enumerate(group) for machine_id in stock.cell.ids[used[n] :]
    )
    taken: dict[Stock, int] = {}
    for _, n in machines:
        stock = group[n]
        if lacking.pieces(stock.cell.alloc):
            lacking = lacking - stock.cell.alloc
            taken[stock] = taken.get(stock, 0) + 1
    return taken


_sizes = st.builds(
    lambda cpu, memory: ResourceVector(cpu=cpu, memory=memory), st.integers(0, 4), st.integers(0, 4)
)


@given(st.data())
def test_what_is_chosen_is_what_a_walk_in_the_order_of_ids_takes(data: st.DataObject) -> None:
    ids = data.draw(st.permutations(range(60)))
    cuts = sorted(data.draw(st.lists(st.integers(0, 60), max_size=4)))
    sizes = data.draw(st.sampled_from([1, 2, 5]))
    pool = [data.draw(_sizes) for _ in range(sizes)]
    group = [
        _stock(n, ids[start:end], data.draw(st.sampled_from(pool)))
        for n, (start, end) in enumerate(zip([0, *cuts], [*cuts, 60], strict=True))
    ]
    used = [data.draw(st.integers(0, len(stock.cell.ids))) for stock in group]
    lacking = ResourceVector(cpu=data.draw(st.integers(0, 90)), memory=data.draw(st.integers(0, 90)))
    assume(not lacking.is_zero())  # who lacks nothing does not choose

    chosen = choose(group, lacking, used)

    assert {stock: count for stock, _, count in chosen} == _one_machine_at_a_time(group, lacking, used)
    assert all(start == used[group.index(stock)] for stock, start, _ in chosen)
    first_ids = [stock.cell.ids[start] for stock, start, _ in chosen]
    assert first_ids == sorted(first_ids), "it does not show in which order the stocks came"


# The places of rows


@given(st.lists(st.lists(st.integers(0, 12), unique=True, max_size=10), min_size=1, max_size=8))
def test_places_follow_the_order_of_the_rows_whatever_comes_and_goes(rollups: list[list[int]]) -> None:
    table = NeedsTable()
    told: dict[Place, Need] = {}
    for now, names in enumerate(rollups, start=1):
        table.replace("c", [need("c", 1, group=f"g{n}") for n in names], 1)
        if now % 2:
            changes = table.take_changes()
            for place in changes.gone:
                del told[place]
            told.update(changes.come)
            assert told == table.everything().come
        assert [told_need.group for _, told_need in sorted(table.everything().come.items())] == [
            f"g{n}" for n in names
        ]
        assert table.snapshot() == tuple(row for _, row in sorted(table.everything().come.items()))


@given(st.lists(st.lists(st.tuples(st.integers(0, 5), st.integers(1, 3)), max_size=6), max_size=8), st.data())
def test_rows_that_stay_the_same_objects_are_no_different_from_equal_ones(
    rollups: list[list[tuple[int, int]]], data: st.DataObject
) -> None:
    kept, made_anew = NeedsTable(), NeedsTable()
    known: dict[tuple[int, int], Need] = {}
    for now, rows in enumerate(rollups, start=1):
        if len(known) and data.draw(st.booleans()):
            # More or less of the same, as most roll-ups are.
            rows = [(group, data.draw(st.integers(1, 3))) for group, _ in known]
        wanted = [need("c", amount, group=f"g{group}") for group, amount in rows]
        same = [known.get(row, fresh) for row, fresh in zip(rows, wanted, strict=True)]
        kept.replace("c", same, now)
        made_anew.replace("c", [replace(row) for row in wanted], now)
        known = dict(zip(rows, same, strict=True))
        assert kept.state == made_anew.state
        assert kept.snapshot() == made_anew.snapshot()
        assert kept.everything() == made_anew.everything()
        if data.draw(st.booleans()):
            changes, others = kept.take_changes(), made_anew.take_changes()
            assert (list(changes.gone.items()), list(changes.come.items())) == (
                list(others.gone.items()),
                list(others.come.items()),
            )


def test_a_row_that_comes_moves_no_other() -> None:
    table = NeedsTable()
    table.replace("c", [need("c", 1, group=f"g{n}") for n in range(50)], 1)
    table.take_changes()
    table.replace("c", [need("c", 1, group=f"g{n}") for n in (*range(25), 99, *range(26, 50))], 1)
    changes = table.take_changes()

    assert [row.group for row in changes.come.values()] == ["g99"]
    assert [row.group for row in changes.gone.values()] == ["g25"]


def test_what_a_caller_does_with_its_rows_later_does_not_matter() -> None:
    table = NeedsTable()
    rows = [need("c", 1, group="a")]
    table.replace("c", rows, 1)
    rows.append(need("c", 1, group="b"))
    table.replace("c", rows, 1)

    assert [row.group for row in table.snapshot()] == ["a", "b"]


def test_a_row_that_came_and_went_was_never_there() -> None:
    table = NeedsTable()
    table.replace("c", [need("c", 1, group="a")], 1)
    table.replace("c", [], 1)
    changes = table.take_changes()

    assert not changes.come and not changes.gone


def test_label_keys_are_asked_for_as_long_as_somebody_wants_them() -> None:
    table = NeedsTable()
    table.replace("c", [need("c", 1, same_rack("r1")), need("c", 2, same_rack("r1"), group="g")], 1)
    table.replace("d", [need("d", 1, same_rack("r2"))], 1)
    asked = set(table.asked_keys())
    table.replace("c", [], 1)
    still = set(table.asked_keys())
    table.replace("d", [], 1)

    assert asked == still != set()
    assert set(table.asked_keys()) == set()


@given(st.sets(st.integers(0, 60), min_size=30), st.data())
def test_rows_change_places_as_if_all_were_sorted_anew(places: set[int], data: st.DataObject) -> None:
    inventory = Inventory()
    matcher = Matcher(inventory)

    def row(place: int) -> Row:
        demand = Demand(need("c", 1), (0, 0, "c", place), frozenset())
        return Row.of(demand, matcher.fit(demand.need.profile, ResourceVector()))

    rows = [row(place) for place in sorted(places)]
    gone = [each for each in rows if data.draw(st.integers(0, 9)) == 0]
    left = places - {each.demand.place[3] for each in gone}
    come = [row(place) for place in data.draw(st.permutations(range(61))) if place not in left][:3]
    before = list(rows)

    after, is_aligned = exchanged(rows, gone, come)

    assert rows == before
    assert after == sorted([*(r for r in rows if r not in gone), *come], key=lambda r: r.demand.place)
    replaced = {r.demand.place for r in gone} == {r.demand.place for r in come}
    assert replaced or not is_aligned


# The pools that suit


def test_answers_are_kept_for_so_many_profiles_and_the_oldest_makes_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(matching, "_MOST_FITS", 3)
    matcher = Matcher(Inventory())
    profiles = [need("c", 1, priority=n).profile for n in range(4)]
    first, second, *_, last = [matcher.fit(profile, ResourceVector()) for profile in profiles]

    assert matcher.fit(profiles[1], ResourceVector()) is second
    assert matcher.fit(profiles[3], ResourceVector()) is last
    assert matcher.fit(profiles[0], ResourceVector()) is not first


def test_answers_that_made_room_are_let_go_without_the_collector(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matching, "_MOST_FITS", 1)
    inventory = Inventory()
    inventory.insert(idle("m"), 0)
    matcher = Matcher(inventory)
    gc.collect()
    gc.disable()
    try:
        before = _count_of(matching.Suited)
        for n in range(20):
            assert len(
                matcher.fit(need("c", 1, priority=n).profile, ResourceVector()).pools(MachineState.IDLE)
            )
        assert _count_of(matching.Suited) == before + 1
    finally:
        gc.enable()


def _count_of(kind: type) -> int:
    """A shard hardly ever looks for garbage among what is old: what refers to each other would stay."""
    return sum(isinstance(each, kind) for each in gc.get_objects())


def test_pools_that_come_up_are_found_and_dead_ones_are_not() -> None:
    inventory = Inventory()
    fit = Matcher(inventory).fit(need("c", 1).profile, ResourceVector())
    for n in range(3):
        inventory.insert(idle(f"m-{n}", price=float(n)), 0)
    assert _prices(fit) == [0, 1, 2]
    inventory.remove("m-0")
    inventory.insert(idle("m-9", price=0.5), 0)

    assert _prices(fit) == [0.5, 1, 2]
    assert sorted(pool.machine_class.offer.price_per_hour for pool in fit.pools(MachineState.IDLE)) == [
        0.5,
        1,
        2,
    ]


def test_pools_that_come_up_one_by_one_are_in_the_order_of_their_prices() -> None:
    inventory = Inventory()
    fit = Matcher(inventory).fit(need("c", 1).profile, ResourceVector())
    for n in range(100):
        inventory.insert(idle(f"m-{n}", price=float(n)), 0)
    assert _prices(fit) == [*range(100)]
    inventory.insert(idle("m-dear", price=98.5), 0)
    inventory.insert(idle("m-cheap", price=0.5), 0)

    assert _prices(fit) == [0, 0.5, *range(1, 99), 98.5, 99]


def _prices(fit: Fit) -> list[float]:
    return [cost for (cost, _), _ in fit.pools(MachineState.IDLE).priced()]


def test_dead_pools_do_not_pile_up() -> None:
    inventory = Inventory()
    fit = Matcher(inventory).fit(need("c", 1).profile, ResourceVector())
    for n in range(5_000):
        inventory.insert(idle("m", price=float(n)), 0)
        assert len(list(fit.pools(MachineState.IDLE))) == 1
        inventory.remove("m")

    arrivals: Arrivals = inventory.arrivals(MachineState.IDLE)
    assert sum(map(len, arrivals.by_type.values())) < 2_000
    assert len(fit.pools(MachineState.IDLE)) < 2_000


def test_classes_that_are_gone_do_not_pile_up() -> None:
    inventory = Inventory()
    fit = Matcher(inventory).fit(need("c", 1).profile, ResourceVector())
    before = _count_of(MachineClass)
    for n in range(10_000):
        inventory.insert(idle("m", price=float(n)), 0)
        assert all(fit.suits(pool.machine_class) for pool in inventory.pools(MachineState.IDLE))
        inventory.remove("m")

    assert _count_of(MachineClass) < before + 5_000


def test_configured_machines_are_counted_by_cluster_and_forgotten_with_the_last() -> None:
    inventory = Inventory()
    inventory.insert(configured("m-1", "c"), 0)
    inventory.insert(configured("m-2", "c"), 0)
    inventory.insert(configured("m-3", "d"), 0)
    assert inventory.configured() == {"c": 2, "d": 1}
    inventory.remove("m-3")

    assert inventory.configured() == {"c": 2}
