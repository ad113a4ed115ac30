"""The SQLite store: what it keeps, what it refuses, what it says (provider.md §11)."""

import sqlite3
from pathlib import Path

import pytest

from bigfleet_base.model import MachineState
from bigfleet_providerkit.backend import Host
from bigfleet_providerkit.effects import Image, PutFloor, PutMachine
from bigfleet_providerkit.errors import InsufficientCapacity, Terminal
from bigfleet_providerkit.offerings import offering_shape
from bigfleet_providerkit.records import Slot
from bigfleet_providerkit.store import MAX_UNUSED_SHAPES, SqliteStore, StoreError
from tests.support.rules import rule
from tests.unit.providerkit.lab import SECOND, Lab, offering

S = MachineState


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "provider.db"


def eventful(store: SqliteStore) -> Lab:
    """A lab whose every batch also went to a store in a file."""
    lab = Lab(offering(6), reconcile_interval=60 * SECOND)
    store.write(lab.written)
    seen = len(lab.written)
    lab.configured(0, metadata={"nul": "a\0b", "": "ü"})
    lab.accept("create", lab.ids()[1], ("s", 2**63 - 1, 5), metadata={"note": "1"})
    lab.finish(lab.ids()[1], Host("h", allocatable={"cpu": "3"}))
    lab.accept("create", lab.ids()[2], ("s", 2**63 - 1, 5))
    lab.finish(lab.ids()[2], error=Terminal("no"))
    lab.accept("create", lab.ids()[3], ("t", 0, 0))
    lab.call("drain", "ghost", ("u", 3, 3))
    lab.offerings = [offering(5)]
    lab.advance(60)
    lab.reconcile()
    lab.offerings = [offering(5, price_per_hour=2.0)]
    lab.advance(60)
    lab.reconcile()
    lab.finish(lab.ids()[3], error=InsufficientCapacity())
    lab.step()
    store.write(lab.written[seen:])
    return lab


@rule("provider.P-120", "provider.P-104", "provider.P-29")
def test_a_file_holds_exactly_what_a_memory_would(path: Path) -> None:
    store = SqliteStore(path)
    lab = eventful(store)
    store.close()
    again = SqliteStore(path)
    kept, expected = again.load(), lab.store.load()
    assert kept.slots == expected.slots and any(slot.withheld for slot in kept.slots.values())
    assert kept.floors == expected.floors == {"s": 2**63 - 1, "t": 0, "u": 3}
    assert kept.tombstones == expected.tombstones
    assert not kept.fresh
    again.close()


def test_a_write_is_all_or_nothing(path: Path) -> None:
    store = SqliteStore(path)
    with pytest.raises(StoreError, match="cannot write"):
        store.write([PutFloor("good", 1), PutFloor("bad", "no number")])  # type: ignore[arg-type]  # on purpose
    assert store.load().floors == {}
    store.write([PutFloor("good", 1)])
    assert store.load().floors == {"good": 1}
    store.close()


@rule("provider.P-123")
def test_a_full_disk_fails_the_write_and_leaves_the_rest(path: Path) -> None:
    store = SqliteStore(path)
    lab = eventful(store)
    before = store.load()
    pages = store._db.execute("PRAGMA page_count").fetchone()[0]
    store._db.execute(f"PRAGMA max_page_count = {pages}")
    with pytest.raises(StoreError, match="full"):
        store.write([PutFloor(f"shard-{n}-{'x' * 200}", n) for n in range(1_000)])
    assert store.load() == before
    store._db.execute(f"PRAGMA max_page_count = {pages * 1000}")
    store.write([PutFloor("later", 1)])
    store.write([lab.written[0]])
    store.close()


@rule("provider.P-44", "provider.P-69")
def test_every_fresh_or_restored_store_has_an_incarnation_of_its_own(path: Path, tmp_path: Path) -> None:
    def incarnation(at: Path, **options: bool) -> bytes:
        store = SqliteStore(at, **options)
        found = store.load().incarnation
        store.close()
        return found

    first = incarnation(path)
    assert first == incarnation(path)
    restored = incarnation(path, restored=True)
    assert restored != first and incarnation(path) == restored
    assert incarnation(tmp_path / "other.db") not in (first, restored)


def test_a_second_process_is_refused(path: Path) -> None:
    store = SqliteStore(path)
    store.write([PutFloor("s", 1)])
    with pytest.raises(StoreError, match="in use by another process"):
        SqliteStore(path)
    store.close()
    SqliteStore(path).close()


def test_a_store_of_a_newer_version_is_refused(path: Path) -> None:
    SqliteStore(path).close()
    with sqlite3.connect(path) as database:
        database.execute("PRAGMA user_version = 7")
    database.close()
    with pytest.raises(StoreError, match=r"newer version.*version 7.*run that version"):
        SqliteStore(path)


def test_a_database_of_something_else_is_refused(path: Path) -> None:
    with sqlite3.connect(path) as database:
        database.execute("CREATE TABLE theirs (x)")
    database.close()
    with pytest.raises(StoreError, match="something else"):
        SqliteStore(path)


def test_a_damaged_file_is_refused(path: Path) -> None:
    path.write_bytes(b"this is no database, " * 500)
    with pytest.raises(StoreError, match=r"damaged.*--restored"):
        SqliteStore(path)


@pytest.mark.parametrize("table", ["machines", "shapes", "marks", "floors", "tombstones", "meta"])
def test_a_file_that_was_overwritten_in_the_middle_is_refused(path: Path, table: str) -> None:
    store = SqliteStore(path)
    eventful(store)
    [root] = store._db.execute("SELECT rootpage FROM sqlite_master WHERE name = ?", (table,)).fetchone()
    size = store._db.execute("PRAGMA page_size").fetchone()[0]
    store.close()
    content = bytearray(path.read_bytes())
    content[(root - 1) * size : root * size] = b"\xa5" * size
    path.write_bytes(content)
    with pytest.raises(StoreError, match=r"damaged.*--restored"):
        opened(path)


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE machines SET state = 99",
        "UPDATE machines SET shape = 4711",
        "UPDATE shapes SET wire = x'ff' WHERE number = 2",
        "UPDATE shapes SET wire = x'' WHERE number = 2",
        "DROP TABLE marks",
        "DELETE FROM meta",
        "UPDATE meta SET incarnation = x'01'",
    ],
)
def test_rows_that_mean_nothing_are_refused_with_advice(path: Path, change: str) -> None:
    store = SqliteStore(path)
    eventful(store)
    store.close()
    with sqlite3.connect(path) as database:
        database.execute(change)
    database.close()
    with pytest.raises(StoreError, match=r"damaged.*--restored|cannot read.*no such table"):
        opened(path)


def opened(path: Path) -> Image:
    store = SqliteStore(path)
    try:
        return store.load()
    finally:
        store.close()


def test_a_path_that_cannot_be_opened_is_named(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="nowhere"):
        SqliteStore(tmp_path / "nowhere" / "provider.db")


def test_shapes_that_no_machine_has_are_swept(path: Path) -> None:
    store = SqliteStore(path)
    lab = Lab(offering(1), reconcile_interval=60 * SECOND)
    for price in range(2, 20):
        lab.offerings = [offering(1, price_per_hour=float(price))]
        lab.advance(60)
        lab.reconcile()
    store.write(lab.written)
    store.load()
    assert store._db.execute("SELECT count(*) FROM shapes").fetchone() == (1,)
    lab.accept("create", lab.ids()[0])
    store.write(lab.written[-1:])
    assert [slot.state for slot in store.load().slots.values()] == [S.CREATING]
    store.close()


def test_prices_that_move_for_months_leave_nothing_behind(path: Path) -> None:
    store = SqliteStore(path)
    rounds, machines = 25, 1_000
    slots = [Slot(f"m{n}", "o", offering_shape(offering()), S.SPECULATIVE) for n in range(machines)]
    for price in range(1, rounds + 1):
        for place, slot in enumerate(slots):
            shape = offering_shape(offering(price_per_hour=price + place / machines))
            slots[place] = slot.but(shape=shape, revision=price * machines + place)
        store.write([PutMachine(slot) for slot in slots])
    [kept] = store._db.execute("SELECT count(*) FROM shapes").fetchone()
    assert kept <= MAX_UNUSED_SHAPES + 2 * machines < rounds * machines
    assert {slot.id: slot.shape.price_per_hour for slot in slots} == {
        slot.id: slot.shape.price_per_hour for slot in store.load().slots.values()
    }
    store.close()
