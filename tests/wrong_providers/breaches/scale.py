"""Providers that do not keep up."""

import asyncio
from itertools import count
from typing import Any

from bigfleet_base.api.v1alpha1 import provider_pb2 as pb
from bigfleet_providerkit.records import Kind, Slot
from bigfleet_providerkit.server import Service
from bigfleet_providerkit.transitions import Transitions
from tests.wrong_providers.planting import Kit
from tests.wrong_providers.registry import wrong


@wrong(breaks="P-01", caught_by="B1105")
def a_deleted_slot_is_gone(kit: Kit) -> None:
    """A machine that was deleted is a slot again for Get, but no longer for List."""
    gone: set[str] = set()

    @kit.around(Transitions, "_finish")
    def finish(original: Any, transitions: Any, run: Any, slot: Slot, now: int, **values: Any) -> None:
        original(transitions, run, slot, now, **values)
        if run.kind is Kind.DELETE:
            gone.add(slot.id)

    @kit.lists
    def leave_out(request: pb.ListFilter, found: pb.MachineList) -> None:
        kept = [machine for machine in found.machines if machine.id not in gone]
        del found.machines[:]
        found.machines.extend(kept)


@wrong(breaks="P-12", caught_by="B1106")
def now_and_then_an_ack_is_slow(kit: Kit) -> None:
    """One acknowledgement in twenty waits for a third of a second."""
    numbers = count(1)

    @kit.around(Service, "_mutate")
    async def mutate(original: Any, *args: Any, **more: Any) -> bytes:
        answer: bytes = await original(*args, **more)
        if next(numbers) % 20 == 0:
            await asyncio.sleep(0.35)
        return answer


@wrong(breaks="P-72", caught_by="B1107 X1101")
def a_full_list_asks_the_substrate(kit: Kit) -> None:
    """List() waits for a slow API before it answers."""

    @kit.around(Service, "_list")
    async def answer(original: Any, service: Any, request: pb.ListFilter, context: Any) -> bytes:
        if not request.states and not request.max_results:
            await asyncio.sleep(3.2)
        found: bytes = await original(service, request, context)
        return found


@wrong(breaks="P-72", caught_by="X1101", managed=True)
def lists_are_never_let_go_of(kit: Kit) -> None:
    """Every full List leaves its answer behind in memory, as large as that of a large fleet."""
    kept: list[bytes] = []

    @kit.around(Service, "_list")
    async def answer(original: Any, service: Any, request: pb.ListFilter, context: Any) -> bytes:
        # Enough to be seen, and little enough for whoever else is on this computer.
        if not request.states and not request.max_results and len(kept) < 4:
            kept.append(b"-" * (80 << 20))
        found: bytes = await original(service, request, context)
        return found
