"""Providers whose List says too much, too little, or the same for ever."""

from typing import Any

from bigfleet_base.api.ext.v1alpha1 import providerinfo_pb2 as info_pb
from bigfleet_base.api.v1alpha1 import provider_pb2 as pb
from bigfleet_base.model import MachineState as S
from bigfleet_providerkit.conformance.expect import TRANSITIONAL
from bigfleet_providerkit.core import Core
from bigfleet_providerkit.effects import Code, PutMachine
from bigfleet_providerkit.inventory import Inventory
from bigfleet_providerkit.listing import Cursors, Listing, Place
from bigfleet_providerkit.records import entry, refine
from bigfleet_providerkit.server import Refused, Service
from bigfleet_providerkit.work import NANOS
from tests.wrong_providers.planting import Kit
from tests.wrong_providers.registry import wrong

_CURSOR_BYTES = (28, 20)
"""Of a page and of anything else."""


@wrong(breaks="P-60", caught_by="B901 B401")
def lists_name_a_machine_twice(kit: Kit) -> None:
    """A List by state has every machine once more."""

    @kit.lists
    def repeat(request: pb.ListFilter, found: pb.MachineList) -> None:
        if request.states:
            found.machines.extend(list(found.machines))


@wrong(breaks="P-61", caught_by="B901")
def the_filter_is_ignored(kit: Kit) -> None:
    """List returns machines of all states whatever it is asked for."""
    asked(kit, lambda request: request.ClearField("states"))


@wrong(breaks="P-62", caught_by="B902 B907")
def the_cap_is_ignored(kit: Kit) -> None:
    """List returns everything whatever max_results says."""
    asked(kit, lambda request: request.ClearField("max_results"))


@wrong(breaks="P-63", caught_by="B903 B905")
def the_revision_never_moves(kit: Kit) -> None:
    """The revision stays that of the first List, and a delta since it is empty."""
    first: list[bytes] = []

    @kit.lists
    def still(request: pb.ListFilter, found: pb.MachineList) -> None:
        first.append(found.revision)
        found.revision = first[0]
        if request.since_revision == first[0]:
            del found.machines[:]


@wrong(breaks="P-65", caught_by="B904 B908 B909")
def deltas_include_their_cursor(kit: Kit) -> None:
    """A delta begins with the change at its cursor, not after it."""

    @kit.around(Cursors, "read")
    def read(original: Any, cursors: Any, cursor: bytes) -> Place | None:
        place: Place | None = original(cursors, cursor)
        return place and place._replace(position=max(0, place.position - 1))


@wrong(breaks="P-64", caught_by="B904 B1102")
def the_cursor_is_ignored(kit: Kit) -> None:
    """Every List is whole, although the provider says that it honours cursors."""
    asked(kit, lambda request: request.ClearField("since_revision"))


@wrong(breaks="P-64", caught_by="B905 B907 B1102")
def deltas_have_only_the_latest_change(kit: Kit) -> None:
    """Of all that has changed since the cursor the last machine is shown."""

    @kit.lists
    def latest(request: pb.ListFilter, found: pb.MachineList) -> None:
        if not found.full and request.since_revision:
            del found.machines[:-1]


@wrong(breaks="P-66", caught_by="B906 B909")
def a_bad_cursor_is_an_error(kit: Kit) -> None:
    """A cursor that cannot be read is answered INVALID_ARGUMENT."""

    @kit.around(Service, "_list")
    async def answer(original: Any, service: Any, request: pb.ListFilter, context: Any) -> bytes:
        cursor = request.since_revision
        if cursor and service._core.listing.cursors.read(cursor) is None:
            raise Refused(Code.INVALID_ARGUMENT, "since_revision is no cursor")
        found: bytes = await original(service, request, context)
        return found


@wrong(breaks="P-66", caught_by="B909")
def the_end_of_a_cursor_is_not_read(kit: Kit) -> None:
    """A cursor with something behind it is taken for the cursor."""

    @kit.around(Cursors, "read")
    def read(original: Any, cursors: Any, cursor: bytes) -> Place | None:
        places = (original(cursors, cursor[:size]) for size in _CURSOR_BYTES)
        return next((place for place in places if place is not None), None)


@wrong(breaks="P-68", caught_by="B907 B1103 X901")
def a_capped_list_ends_at_the_head(kit: Kit) -> None:
    """The revision of a truncated page is the head, so that whatever the cap cut off is lost."""

    @kit.around(Service, "_list")
    async def answer(original: Any, service: Any, request: pb.ListFilter, context: Any) -> bytes:
        found = pb.MachineList.FromString(await original(service, request, context))
        listing = service._core.listing
        found.revision = listing.cursors.write(listing.head)
        return found.SerializeToString()


@wrong(breaks="P-68", caught_by="X901")
def every_pick_is_the_same(kit: Kit) -> None:
    """Capped Lists by state begin with the first machine each time."""

    @kit.around(Listing, "_pick")
    def pick(original: Any, listing: Any, *args: Any) -> list[str]:
        listing._last_pick = ""
        picked: list[str] = original(listing, *args)
        return picked


@wrong(breaks="P-65", caught_by="B908")
def reconciling_is_a_change(kit: Kit) -> None:
    """Looking at a machine gives it a new revision although nothing about it is new."""

    @kit.around(Core, "start")
    def start(original: Any, core: Any, now: int) -> None:
        original(core, now)

        def touch(moment: int) -> None:
            core._work.at(moment + NANOS // 10, touch)
            state = core._state
            slot = next(iter(state.slots.committed.values()), None)
            if slot is not None:
                state._revision += 1
                touched = slot.but(revision=state._revision)
                state.slots.put(slot.id, touched)
                state._batch.changes.append((state._revision, slot.id))
                state.write(PutMachine(touched))

        core._work.at(now + NANOS // 10, touch)


@wrong(breaks="P-70", caught_by="X902")
def every_list_is_full(kit: Kit) -> None:
    """`full` is true on every answer, the first page of many included."""

    @kit.lists
    def claim(request: pb.ListFilter, found: pb.MachineList) -> None:
        found.full = True


@wrong(breaks="P-70", caught_by="X902", managed=True)
def removals_are_not_named(kit: Kit) -> None:
    """A machine that was retired is left out of deltas, and nobody is told."""
    kit.lists(lambda request, found: found.ClearField("removed_ids"))


@wrong(breaks="P-69", caught_by="X903")
def cursors_of_other_stores_are_honoured(kit: Kit) -> None:
    """A cursor is a number, whichever store has counted it."""

    @kit.around(Cursors, "read")
    def read(original: Any, cursors: Any, cursor: bytes) -> Place | None:
        if len(cursor) not in _CURSOR_BYTES:
            return None
        return Place(int.from_bytes(cursor[8:16], "big"), int.from_bytes(cursor[-12:-4], "big"))

    @kit.around(Listing, "ask")
    def ask(original: Any, listing: Any, states: Any, max_results: int, since: bytes) -> Any:
        place = listing.cursors.read(since) if since else None
        if place is not None:
            since = listing.cursors.write(*(min(number, listing.head) for number in place))
        return original(listing, states, max_results, since)


@wrong(breaks="P-71", caught_by="X904")
def a_cursor_undoes_the_filter(kit: Kit) -> None:
    """A List by state since a cursor has whatever has changed."""

    def ask(request: pb.ListFilter) -> None:
        if request.since_revision:
            request.ClearField("states")

    asked(kit, ask)


@wrong(breaks="P-64", caught_by="X905", knobs=("price.walk=0.5", "price.interval=300ms"))
def a_new_price_is_no_change(kit: Kit) -> None:
    """Machines take on new prices without a new revision, so that no delta has them."""

    @kit.around(Inventory, "_restamp")
    def restamp(original: Any, inventory: Any, machine_id: str) -> None:
        slot = inventory._state.slots.get(machine_id)
        stamped = slot.but(shape=refine(inventory._offers[slot.offer].shape, slot.refined, slot.risk))
        stamped.wire = entry(stamped)
        inventory._state.slots.put(machine_id, stamped)
        inventory._state.write(PutMachine(stamped))


@wrong(breaks="P-67", caught_by="X1101")
def a_large_fleet_has_no_cursor(kit: Kit) -> None:
    """Lists are always whole, however many machines there are."""
    kit.lists(lambda request, found: found.ClearField("revision"))
    asked(kit, lambda request: request.ClearField("since_revision"))

    @kit.around(Service, "_describe")
    async def describe(original: Any, *args: Any) -> bytes:
        said = info_pb.DescribeResponse.FromString(await original(*args))
        said.cursor = said.tombstones = False
        return said.SerializeToString()


@wrong(breaks="P-62", caught_by="X901")
def a_negative_cap_leaves_nothing(kit: Kit) -> None:
    """List with a negative max_results is empty."""

    @kit.lists
    def cut(request: pb.ListFilter, found: pb.MachineList) -> None:
        if request.max_results < 0:
            del found.machines[:]


@wrong(breaks="P-60", caught_by="B901")
def a_state_named_twice_is_listed_twice(kit: Kit) -> None:
    """A List by states is one List after the other."""

    @kit.lists
    def repeat(request: pb.ListFilter, found: pb.MachineList) -> None:
        if len(set(request.states)) < len(request.states):
            found.machines.extend(list(found.machines))


@wrong(breaks="5", caught_by="X904")
def unknown_states_are_no_filter(kit: Kit) -> None:
    """List of machines without a state is a List of all."""

    def change(request: pb.ListFilter) -> None:
        named = [state for state in request.states if state]
        request.ClearField("states")
        request.states.extend(named)

    asked(kit, change)


@wrong(breaks="P-66", caught_by="B909")
def a_truncated_cursor_is_a_cursor(kit: Kit) -> None:
    """A cursor without its last byte is taken for the cursor."""
    whole: dict[bytes, bytes] = {}

    @kit.around(Cursors, "write")
    def write(original: Any, cursors: Any, *args: Any) -> bytes:
        cursor: bytes = original(cursors, *args)
        whole[cursor[:-1]] = cursor
        return cursor

    @kit.around(Cursors, "read")
    def read(original: Any, cursors: Any, cursor: bytes) -> Place | None:
        place: Place | None = original(cursors, whole.get(cursor, cursor))
        return place


@wrong(breaks="P-61", caught_by="B707 X701")
def lists_leave_out_what_does_not_rest(kit: Kit) -> None:
    """List has the machines that are at rest, and others for those who name their states."""

    @kit.lists
    def settled(request: pb.ListFilter, found: pb.MachineList) -> None:
        if not request.states:
            leave_out(found, *TRANSITIONAL, S.FAILED)


@wrong(breaks="P-64", caught_by="X701")
def a_transition_is_a_change_when_it_ends(kit: Kit) -> None:
    """A delta is without the machines whose transition is under way."""

    @kit.lists
    def settled(request: pb.ListFilter, found: pb.MachineList) -> None:
        if request.since_revision and not found.full:
            leave_out(found, *TRANSITIONAL)


def asked(kit: Kit, change: Any) -> None:
    """Answer another List than was asked for."""

    @kit.around(Service, "_list")
    async def answer(original: Any, service: Any, request: pb.ListFilter, context: Any) -> bytes:
        change(request)
        found: bytes = await original(service, request, context)
        return found


def leave_out(found: pb.MachineList, *states: S) -> None:
    """A List without the machines in these states."""
    kept = [machine for machine in found.machines if machine.state not in map(int, states)]
    del found.machines[:]
    found.machines.extend(kept)
