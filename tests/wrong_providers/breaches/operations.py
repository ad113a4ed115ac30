"""Providers that lose track of which call started what."""

import asyncio
from collections import Counter
from collections.abc import Callable
from itertools import count
from typing import Any

from bigfleet_base.api.v1alpha1 import provider_pb2 as pb
from bigfleet_base.model import MachineState as S
from bigfleet_providerkit.calls import Calls
from bigfleet_providerkit.effects import Call
from bigfleet_providerkit.records import Kind, Slot
from bigfleet_providerkit.server import Service
from bigfleet_providerkit.transitions import KIND_OF
from tests.wrong_providers.planting import Kit
from tests.wrong_providers.registry import wrong


@wrong(breaks="P-40", caught_by="B206 B306 B307 B401 B402 B403 B406 B409 B1002 X1201")
def a_repeat_mints_a_new_operation(kit: Kit) -> None:
    """A retried call changes nothing, but is given an operation id of its own."""
    numbers = count(1)

    @kit.around(Calls, "_replayed")
    def replayed(original: Any, calls: Any, call: Call, slot: Slot) -> str | None:
        operation_id: str | None = original(calls, call, slot)
        return f"{operation_id}-{next(numbers)}" if operation_id else None


@wrong(breaks="P-40", caught_by="B205 B402")
def a_repeat_starts_again(kit: Kit) -> None:
    """Configure of a machine that is Configured runs once more."""
    kit.lawless()

    @kit.around(Calls, "_process")
    def process(original: Any, calls: Any, call: Call, now: int) -> Any:
        slot = calls._state.slots.get(call.machine_id)
        if slot is not None and call.kind is Kind.CONFIGURE and slot.state in (S.CONFIGURED, S.CONFIGURING):
            return calls._accept(call, slot, now)
        return original(calls, call, now)


@wrong(breaks="P-41", caught_by="B214 B307")
def operations_are_found_by_their_target(kit: Kit) -> None:
    """Create and Drain both end at Idle, so a repeated Drain is answered with the Create's operation."""

    @kit.around(Calls, "_replayed")
    def replayed(original: Any, calls: Any, call: Call, slot: Slot) -> str | None:
        operation_id: str | None = original(calls, call, slot)
        if call.kind is Kind.DRAIN and slot.state is S.IDLE:
            return slot.operations[Kind.CREATE.place]
        return operation_id


@wrong(breaks="P-42", caught_by="B214")
def every_round_has_the_same_operation(kit: Kit) -> None:
    """An operation id is made of machine and call, so that the second Configure has the first one's."""
    minted(kit, lambda call: f"{call.machine_id}-{call.kind}")


@wrong(breaks="P-44", caught_by="B407 B1108")
def operations_are_counted_per_machine(kit: Kit) -> None:
    """The first operation of every machine has the same id."""
    made: Counter[str] = Counter()

    def mint(call: Call) -> str:
        made[call.machine_id] += 1
        return f"operation-{made[call.machine_id]}"

    minted(kit, mint)


@wrong(breaks="P-44", caught_by="B1005")
def operations_are_counted_anew_after_a_restart(kit: Kit) -> None:
    """The counter of operation ids lives in memory."""
    numbers = count(1)
    minted(kit, lambda call: f"operation-{next(numbers)}")


@wrong(breaks="P-43", caught_by="B406")
def each_connection_has_its_own_operations(kit: Kit) -> None:
    """Who asks over another connection is told another operation id."""

    @kit.around(Service, "_mutate")
    async def mutate(original: Any, service: Any, kind: Kind, request: Any, context: Any, **more: Any) -> Any:
        ack = pb.TransitionAck.FromString(await original(service, kind, request, context, **more))
        ack.operation_id += context.peer()
        return ack.SerializeToString()


@wrong(breaks="P-13", caught_by="B408")
def acks_show_the_machine_as_it_was(kit: Kit) -> None:
    """The snapshot in an acknowledgement is taken before the call has its effect."""

    @kit.around(Calls, "_accept")
    def accept(original: Any, calls: Any, call: Call, slot: Slot, now: int) -> Any:
        operation_id, _ = original(calls, call, slot, now)
        return operation_id, slot


@wrong(breaks="P-12", caught_by="X401")
def acks_wait_for_the_substrate(kit: Kit) -> None:
    """A mutation is acknowledged when the backend is done with it."""

    @kit.around(Service, "_mutate")
    async def mutate(original: Any, service: Any, kind: Kind, request: Any, *args: Any, **more: Any) -> bytes:
        answer: bytes = await original(service, kind, request, *args, **more)
        while (slot := service._core.get(request.machine_id)) and slot.state in KIND_OF:  # noqa: ASYNC110  # a mistake has no event to wait for
            await asyncio.sleep(0.01)
        return answer


@wrong(breaks="P-13", caught_by="B105 B107")
def acks_of_create_and_drain_show_where_they_began(kit: Kit) -> None:
    """Only the snapshot in an acknowledgement of Configure shows what the call has done."""
    before = {
        pb.MACHINE_STATE_CREATING: pb.MACHINE_STATE_SPECULATIVE,
        pb.MACHINE_STATE_DRAINING: pb.MACHINE_STATE_CONFIGURED,
    }

    def change(machine: pb.Machine) -> None:
        machine.state = before.get(machine.state, machine.state)

    kit.acknowledged(change)


@wrong(breaks="P-13", caught_by="B206")
def acks_show_another_machine(kit: Kit) -> None:
    """The snapshot in an acknowledgement has an id of its own."""

    def change(machine: pb.Machine) -> None:
        machine.id = f"host-of-{machine.id}"

    kit.acknowledged(change)


@wrong(breaks="P-42", caught_by="B214")
def every_life_begins_with_the_same_operation(kit: Kit) -> None:
    """The operation id of a Create is made of its machine."""
    numbers = count(1)
    minted(
        kit,
        lambda call: f"{call.machine_id}-{'create' if call.kind is Kind.CREATE else next(numbers)}",
    )


@wrong(breaks="P-40", caught_by="B206")
def a_repeated_delete_is_refused(kit: Kit) -> None:
    """Delete of a machine that it has deleted is answered as if it had not."""

    @kit.around(Calls, "_replayed")
    def replayed(original: Any, calls: Any, call: Call, slot: Slot) -> str | None:
        gone = call.kind is Kind.DELETE and slot.state is S.SPECULATIVE
        return None if gone else original(calls, call, slot)


@wrong(breaks="P-45", caught_by="B214")
def only_the_last_operation_is_known(kit: Kit) -> None:
    """Create of an Idle machine is repeated until it has been drained for the first time."""

    @kit.around(Calls, "_replayed")
    def replayed(original: Any, calls: Any, call: Call, slot: Slot) -> str | None:
        forgotten = call.kind is Kind.CREATE and slot.operations[Kind.DRAIN.place]
        return None if forgotten else original(calls, call, slot)


@wrong(breaks="P-45", caught_by="B203")
def operations_outlive_their_machine(kit: Kit) -> None:
    """Drain of a new machine is answered with the Drain of the one that had its id before."""
    drains: dict[str, str] = {}

    @kit.around(Calls, "_replayed")
    def replayed(original: Any, calls: Any, call: Call, slot: Slot) -> str | None:
        operation_id: str | None = original(calls, call, slot)
        if call.kind is Kind.DRAIN and operation_id:
            drains[slot.id] = operation_id
        return operation_id or (
            drains.get(slot.id) if slot.state is S.IDLE and call.kind is Kind.DRAIN else None
        )


def minted(kit: Kit, mint: Callable[[Call], str]) -> None:
    """Give operations other ids."""

    @kit.around(Calls, "_accept")
    def accept(original: Any, calls: Any, call: Call, slot: Slot, now: int) -> Any:
        change = calls._state.change
        operation_id = mint(call)

        def changed(slot: Slot, **values: Any) -> Slot:
            operations = list(values["operations"])
            operations[call.kind.place] = operation_id
            kept: Slot = change(slot, **{**values, "operations": tuple(operations)})
            return kept

        calls._state.change = changed
        try:
            _, accepted = original(calls, call, slot, now)
        finally:
            del calls._state.change
        return operation_id, accepted
