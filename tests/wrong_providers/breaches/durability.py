"""Providers that a restart makes forget."""

import threading
from collections.abc import Callable, Sequence
from typing import Any

from bigfleet_base.model import MachineState as S
from bigfleet_providerkit import store as store_module
from bigfleet_providerkit.effects import PutFloor, PutMark, Write
from bigfleet_providerkit.inventory import Inventory
from bigfleet_providerkit.records import NO_HOST, NO_OPERATIONS, Kind, Slot, entry
from bigfleet_providerkit.store import SqliteStore, StoreError
from bigfleet_providerkit.transitions import KIND_OF, Transitions
from tests.wrong_providers.planting import Kit
from tests.wrong_providers.registry import wrong


@wrong(breaks="P-29", caught_by="B1001 X1002")
def marks_are_kept_in_memory(kit: Kit) -> None:
    """A restart opens the door to every zombie."""
    written(kit, lambda write: not isinstance(write, PutMark | PutFloor))


@wrong(breaks="P-44", caught_by="B1002")
def operations_are_kept_in_memory(kit: Kit) -> None:
    """After a restart nobody knows which call a machine owes its state to."""
    loaded(kit, lambda slot: slot.but(operations=NO_OPERATIONS))


@wrong(breaks="P-104", caught_by="B1003")
def metadata_is_kept_in_memory(kit: Kit) -> None:
    """After a restart a machine is bound to its cluster, but the map is gone."""
    loaded(kit, lambda slot: slot.but(binding=b""))


@wrong(breaks="P-120", caught_by="B1004")
def idle_machines_are_kept_in_memory(kit: Kit) -> None:
    """What was Idle before a restart is a free slot after it."""
    loaded(kit, lambda slot: slot.but(state=S.SPECULATIVE, host=NO_HOST) if slot.state is S.IDLE else slot)


@wrong(breaks="P-121", caught_by="B1006")
def an_interrupted_configure_goes_on(kit: Kit) -> None:
    """A machine that was CONFIGURING when the process died still is after the boot."""

    @kit.around(Transitions, "resume")
    def resume(original: Any, transitions: Any, slot: Slot, now: int) -> None:
        transitions.begin(slot, KIND_OF[slot.state], now)


@wrong(breaks="P-122", caught_by="X1004")
def interrupted_transitions_fail(kit: Kit) -> None:
    """Whatever was under way when the process died is FAILED after the boot."""

    @kit.around(Transitions, "resume")
    def resume(original: Any, transitions: Any, slot: Slot, now: int) -> None:
        kind = KIND_OF[slot.state]
        if kind is Kind.CONFIGURE:
            original(transitions, slot, now)
            return
        transitions._inflight[kind] += 1
        run = transitions._run(slot, kind, now, b"")
        transitions._work.at(now, lambda moment: transitions._looked(run, None, None, moment))


@wrong(breaks="P-123", caught_by="X1005")
def a_failed_write_is_logged(kit: Kit) -> None:
    """A store that takes no writes is no reason to refuse a call."""

    @kit.around(SqliteStore, "write")
    def write(original: Any, store: Any, writes: Sequence[Write]) -> None:
        try:
            original(store, writes)
        except StoreError:
            return


@wrong(breaks="P-123", caught_by="X1001")
def acks_come_before_writes(kit: Kit) -> None:
    """The store is written once in a while, and calls are answered before."""
    waiting: list[Write] = []
    taken = threading.Lock()

    @kit.around(SqliteStore, "write")
    def write(original: Any, store: Any, writes: Sequence[Write]) -> None:
        def flush() -> None:
            with taken:
                batch, waiting[:] = list(waiting), []
                original(store, batch)

        with taken:
            waiting.extend(writes)
        timer = threading.Timer(1.0, flush)
        timer.daemon = True
        timer.start()


@wrong(breaks="P-124", caught_by="X1003", base="localproc")
def an_unknown_binding_is_none(kit: Kit) -> None:
    """A host that the store does not know is Idle, whomever it serves."""
    kit.lawless()

    @kit.around(Inventory, "_adopt")
    def adopt(original: Any, inventory: Any, found: Any, now: int, machine_id: str) -> None:
        original(inventory, found, now, machine_id)
        slot = inventory._state.slots.get(machine_id)
        if slot is not None and slot.host:
            inventory._state.change(slot, state=S.IDLE, cluster="", binding=b"", last_error="")


def written(kit: Kit, is_kept: Callable[[Write], bool]) -> None:
    """Keep only some of what is to be kept."""

    @kit.around(SqliteStore, "write")
    def write(original: Any, store: Any, writes: Sequence[Write]) -> None:
        original(store, [one for one in writes if is_kept(one)])


def loaded(kit: Kit, change: Callable[[Slot], Slot]) -> None:
    """Read other machines from the store than were written."""

    @kit.around(store_module, "_slot")
    def slot(original: Any, *args: Any) -> Slot:
        read = change(original(*args))
        read.wire = entry(read)
        return read
