"""Where the provider's state survives: SQLite, written ahead of every answer (provider.md §11).

One row for each machine, mark, floor and tombstone; one transaction for each batch, on disk when ``write``
returns. What a write costs depends on what changed, never on how many machines there are.
"""

import secrets
import sqlite3
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any, Final, Protocol

from google.protobuf.message import DecodeError

from bigfleet_base.model import HostRef, MachineState
from bigfleet_providerkit.effects import (
    DropTombstones,
    Image,
    PutFloor,
    PutMachine,
    PutMark,
    RemoveMachine,
    Write,
)
from bigfleet_providerkit.records import NO_HOST, NO_MARKS, Shape, Slot, entry, read_shape

VERSION: Final = 1
MAX_UNUSED_SHAPES: Final = 10_000
"""Shapes beyond those in use that are kept until they are swept: with every price that moves one is left."""
INCARNATION_BYTES: Final = 8
_APPLICATION: Final = 0x42466C74
"""Marks the file as ours, so that no other database is taken for one."""


class StoreError(Exception):
    """The store cannot be opened, read or written; the message says why and what to do."""


class Store(Protocol):
    """What keeps an Image. ``write`` is all or nothing, and durable when it returns."""

    def load(self) -> Image: ...
    def write(self, writes: Sequence[Write]) -> None: ...
    def close(self) -> None: ...


class MemoryStore:
    """Keeps nothing beyond the process: for tests, simulations and trying things out."""

    def __init__(self, incarnation: bytes | None = None) -> None:
        self._image = Image(incarnation or secrets.token_bytes(INCARNATION_BYTES))

    def load(self) -> Image:
        """A copy, as a restarted process would read it."""
        image = self._image
        return Image(
            image.incarnation,
            dict(image.slots),
            dict(image.floors),
            dict(image.tombstones),
            image.dropped_revision,
            image.fresh,
        )

    def write(self, writes: Sequence[Write]) -> None:
        image = self._image
        image.fresh = image.fresh and not writes
        for write in writes:
            match write:
                case PutMachine(slot, relisted):
                    known = image.slots.get(slot.id)
                    marks = known.marks if known else NO_MARKS
                    image.slots[slot.id] = replace(slot, marks=marks)
                    if relisted:
                        image.tombstones.pop(slot.id, None)
                case RemoveMachine(machine_id, revision, forget):
                    image.tombstones.pop(machine_id, None)
                    image.tombstones[machine_id] = revision
                    if forget:
                        image.slots.pop(machine_id, None)
                case PutMark(machine_id, shard_id, epoch, sequence):
                    slot = image.slots[machine_id]
                    image.slots[machine_id] = replace(slot, marks={**slot.marks, shard_id: (epoch, sequence)})
                case PutFloor(shard_id, epoch):
                    image.floors[shard_id] = epoch
                case DropTombstones(revision):
                    kept = {i: at for i, at in image.tombstones.items() if at > revision}
                    image.tombstones = kept
                    image.dropped_revision = max(revision, image.dropped_revision)

    def close(self) -> None:
        """Nothing to close."""


class SqliteStore:
    """A store in one file. Used from one thread at a time; a second process is refused."""

    def __init__(self, path: Path, *, restored: bool = False) -> None:
        """Open or make the store. ``restored`` says that the file is a backup brought back (P-44)."""
        self._path = path
        self._shapes: dict[bytes, int] = {}
        self._sweep_at = 0
        try:
            self._db = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=0)
        except sqlite3.Error as error:
            raise self._problem("open", error) from error
        try:
            self._open(restored)
        except BaseException:
            self._db.close()
            raise

    def load(self) -> Image:
        """Read everything, in the order of revisions."""
        try:
            return self._load()
        except sqlite3.Error as error:
            raise self._problem("read", error) from error
        except (DecodeError, ValueError, TypeError, KeyError) as error:
            # Rows that SQLite can read and that mean nothing: somebody else has written them.
            raise self._damaged(error) from error

    def write(self, writes: Sequence[Write]) -> None:
        """One transaction; when this returns its writes survive a power cut."""
        if not writes:
            return
        added: list[bytes] = []
        try:
            if len(self._shapes) > self._sweep_at:
                self._sweep()
            self._db.execute("BEGIN IMMEDIATE")
            self._apply(writes, added)
            self._db.execute("COMMIT")
        except BaseException as error:
            for wire in added:
                del self._shapes[wire]
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            if isinstance(error, sqlite3.Error):
                raise self._problem("write", error) from error
            raise

    def close(self) -> None:
        """Fold the log into the file and let go of it."""
        self._db.close()

    def _open(self, restored: bool) -> None:
        try:
            # Held until the process ends, however it ends: of two writers each would undo the other.
            self._db.execute("PRAGMA locking_mode = EXCLUSIVE")
            self._db.execute("PRAGMA journal_mode = WAL")
            self._db.execute("PRAGMA synchronous = FULL")
            self._db.execute("PRAGMA wal_autocheckpoint = 4000")
            self._db.execute("BEGIN IMMEDIATE")
            version = self._pragma("user_version")
            application = self._pragma("application_id")
            if version == 0 and application == 0 and not self._tables():
                self._create()
            elif application != _APPLICATION:
                raise StoreError(f"{self._path} is a database of something else; give --state another path")
            elif version > VERSION:
                raise StoreError(
                    f"{self._path} was written by a newer version of the provider (store version {version},"
                    f" this one reads {VERSION}); run that version, or bring back a backup from before it"
                )
            if restored:
                self._db.execute("UPDATE meta SET incarnation = ?", (secrets.token_bytes(INCARNATION_BYTES),))
            self._db.execute("COMMIT")
        except sqlite3.Error as error:
            raise self._problem("open", error) from error

    def _create(self) -> None:
        for statement in _SCHEMA.split(";"):
            self._db.execute(statement)
        self._db.execute("INSERT INTO meta VALUES (?, 0)", (secrets.token_bytes(INCARNATION_BYTES),))
        self._db.execute(f"PRAGMA user_version = {VERSION}")
        self._db.execute(f"PRAGMA application_id = {_APPLICATION}")

    def _load(self) -> Image:
        incarnation, dropped = self._db.execute("SELECT incarnation, dropped_revision FROM meta").fetchone()
        if len(incarnation) != INCARNATION_BYTES:
            raise ValueError(f"an incarnation of {len(incarnation)} bytes")
        image = Image(incarnation, dropped_revision=dropped)
        shapes: dict[int, Shape] = {}
        for number, wire in self._db.execute("SELECT number, wire FROM shapes"):
            shapes[number] = read_shape(wire)
            self._shapes[shapes[number].wire] = number
        marks: dict[str, dict[str, tuple[int, int]]] = {}
        for machine_id, shard, epoch, sequence in self._db.execute("SELECT * FROM marks"):
            marks.setdefault(machine_id, {})[shard] = (epoch, sequence)
        for row in self._db.execute("SELECT * FROM machines ORDER BY revision"):
            slot = _slot(row, shapes, marks.get(row[0], NO_MARKS))
            image.slots[slot.id] = slot
        image.floors.update(self._db.execute("SELECT shard, epoch FROM floors"))
        image.tombstones.update(self._db.execute("SELECT id, revision FROM tombstones ORDER BY revision"))
        image.fresh = not (image.slots or image.floors or image.tombstones)
        self._sweep()
        return image

    def _sweep(self) -> None:
        """Forget the shapes that no machine has any more."""
        unused = "DELETE FROM shapes WHERE number NOT IN (SELECT shape FROM machines) RETURNING number"
        gone = {number for (number,) in self._db.execute(unused).fetchall()}
        self._shapes = {wire: number for wire, number in self._shapes.items() if number not in gone}
        self._sweep_at = len(self._shapes) + MAX_UNUSED_SHAPES

    def _apply(self, writes: Sequence[Write], added: list[bytes]) -> None:
        rows = _Rows()
        for write in writes:
            rows.add(write)
        machines = [_row(slot, self._shape(slot.shape, added)) for slot in rows.machines.values()]
        self._delete("machines", "id", rows.forgotten)
        self._delete("marks", "machine", rows.forgotten)
        self._delete("tombstones", "id", rows.relisted)
        self._put("machines", machines)
        marks = rows.marks.items()
        self._put("marks", [(machine, shard, *mark) for machine, by in marks for shard, mark in by.items()])
        self._put("floors", list(rows.floors.items()))
        self._put("tombstones", list(rows.tombstones.items()))
        if rows.dropped:
            self._db.execute("DELETE FROM tombstones WHERE revision <= ?", (rows.dropped,))
            self._db.execute("UPDATE meta SET dropped_revision = max(dropped_revision, ?)", (rows.dropped,))

    def _put(self, table: str, rows: Sequence[tuple[Any, ...]]) -> None:
        # Many rows to a statement: between two of them this thread lets go of Python's lock, and has to wait
        # for the event loop before it gets it back.
        start = 0
        for size in _ROWS_AT_ONCE:
            while len(rows) - start >= size:
                chosen = rows[start : start + size]
                self._db.execute(_put_statement(table, len(chosen[0]), size), [*chain.from_iterable(chosen)])
                start += size

    def _delete(self, table: str, column: str, keys: Iterable[str]) -> None:
        self._db.executemany(f"DELETE FROM {table} WHERE {column} = ?", [(key,) for key in keys])  # noqa: S608  # names of ours

    def _shape(self, shape: Shape, added: list[bytes]) -> int:
        number = self._shapes.get(shape.wire)
        if number is None:
            number = self._db.execute("INSERT INTO shapes (wire) VALUES (?)", (shape.wire,)).lastrowid
            assert number is not None
            self._shapes[shape.wire] = number
            added.append(shape.wire)
        return number

    def _tables(self) -> int:
        return int(self._db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0])

    def _pragma(self, name: str) -> int:
        return int(self._db.execute(f"PRAGMA {name}").fetchone()[0])

    def _problem(self, what: str, error: sqlite3.Error) -> StoreError:
        if "locked" in str(error):
            return StoreError(f"{self._path} is in use by another process; one provider has one store")
        if "not a database" in str(error) or "malformed" in str(error):
            return self._damaged(error)
        return StoreError(f"cannot {what} the store {self._path}: {error}")

    def _damaged(self, error: Exception) -> StoreError:
        return StoreError(
            f"{self._path} is damaged or no store ({error});"
            " bring back a backup and start once with --restored"
        )


_SCHEMA: Final = """
CREATE TABLE meta (incarnation BLOB NOT NULL, dropped_revision INTEGER NOT NULL) STRICT;
CREATE TABLE shapes (number INTEGER PRIMARY KEY, wire BLOB NOT NULL UNIQUE) STRICT;
CREATE TABLE machines (
    id TEXT PRIMARY KEY, revision INTEGER NOT NULL, state INTEGER NOT NULL, offer TEXT NOT NULL,
    shape INTEGER NOT NULL, host_provider TEXT NOT NULL, host_ref TEXT NOT NULL, cluster TEXT NOT NULL,
    binding BLOB NOT NULL, note BLOB NOT NULL, last_error TEXT NOT NULL,
    op_create TEXT NOT NULL, op_configure TEXT NOT NULL, op_drain TEXT NOT NULL, op_delete TEXT NOT NULL,
    grace INTEGER NOT NULL, risk REAL NOT NULL, refined BLOB NOT NULL,
    withheld INTEGER NOT NULL, retiring INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE TABLE marks (
    machine TEXT NOT NULL, shard TEXT NOT NULL, epoch INTEGER NOT NULL, sequence INTEGER NOT NULL,
    PRIMARY KEY (machine, shard)
) STRICT, WITHOUT ROWID;
CREATE TABLE floors (shard TEXT PRIMARY KEY, epoch INTEGER NOT NULL) STRICT, WITHOUT ROWID;
CREATE TABLE tombstones (id TEXT PRIMARY KEY, revision INTEGER NOT NULL) STRICT, WITHOUT ROWID
"""
_ROWS_AT_ONCE: Final = (64, 8, 1)


@cache
def _put_statement(table: str, columns: int, rows: int) -> str:
    row = f"({', '.join('?' * columns)})"
    return f"INSERT OR REPLACE INTO {table} VALUES {', '.join([row] * rows)}"  # noqa: S608  # names of ours


class _Rows:
    """What a batch comes to: of several writes to a row only the last one is made."""

    def __init__(self) -> None:
        self.machines: dict[str, Slot] = {}
        self.marks: dict[str, dict[str, tuple[int, int]]] = {}
        self.floors: dict[str, int] = {}
        self.tombstones: dict[str, int] = {}
        self.forgotten: set[str] = set()
        self.relisted: set[str] = set()
        self.dropped = 0

    def add(self, write: Write) -> None:
        match write:
            case PutMachine():
                slot = write.slot
                self.machines[slot.id] = slot
                if write.relisted:
                    self.tombstones.pop(slot.id, None)
                    self.relisted.add(slot.id)
            case PutMark():
                marks = self.marks.setdefault(write.machine_id, {})
                marks[write.shard_id] = (write.epoch, write.sequence)
            case PutFloor():
                self.floors[write.shard_id] = write.epoch
            case RemoveMachine():
                self.tombstones[write.machine_id] = write.revision
                if write.forget:
                    self.machines.pop(write.machine_id, None)
                    self.marks.pop(write.machine_id, None)
                    self.forgotten.add(write.machine_id)
            case DropTombstones():
                self.dropped = max(self.dropped, write.revision)


def _row(slot: Slot, shape: int) -> tuple[Any, ...]:
    return (
        slot.id,
        slot.revision,
        int(slot.state),
        slot.offer,
        shape,
        slot.host.provider,
        slot.host.ref,
        slot.cluster,
        slot.binding,
        slot.note,
        slot.last_error,
        *slot.operations,
        slot.grace,
        slot.risk,
        slot.refined,
        slot.withheld,
        slot.retiring,
    )


def _slot(row: tuple[Any, ...], shapes: dict[int, Shape], marks: Any) -> Slot:
    slot = Slot(
        id=row[0],
        revision=row[1],
        state=MachineState(row[2]),
        offer=row[3],
        shape=shapes[row[4]],
        host=HostRef(row[5], row[6]) if row[5] or row[6] else NO_HOST,
        cluster=row[7],
        binding=row[8],
        note=row[9],
        last_error=row[10],
        operations=row[11:15],
        grace=row[15],
        risk=row[16],
        refined=row[17],
        withheld=bool(row[18]),
        retiring=bool(row[19]),
        marks=marks,
    )
    slot.wire = entry(slot)
    return slot
