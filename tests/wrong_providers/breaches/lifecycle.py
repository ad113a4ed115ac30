"""Providers whose machines show states that they must not show, or leave those they are in."""

from typing import Any

from bigfleet_base.api.v1alpha1 import provider_pb2 as pb
from bigfleet_base.model import MachineState as S
from bigfleet_providerkit.records import Slot
from bigfleet_providerkit.transitions import Transitions
from bigfleet_providerkit.work import NANOS
from tests.wrong_providers.planting import Kit
from tests.wrong_providers.registry import wrong


@wrong(breaks="P-02", caught_by="B103 B408")
def configuring_looks_like_creating(kit: Kit) -> None:
    """One name serves for everything that is being set up."""
    shown_as(kit, S.CONFIGURING, S.CREATING)


@wrong(breaks="P-02", caught_by="B104")
def draining_looks_like_deleting(kit: Kit) -> None:
    """One name serves for everything that is being taken down."""
    shown_as(kit, S.DRAINING, S.DELETING)


@wrong(breaks="P-02", caught_by="B105")
def creating_looks_like_configuring(kit: Kit) -> None:
    """A machine that is being created shows the state of the step after."""
    shown_as(kit, S.CREATING, S.CONFIGURING)


@wrong(breaks="P-02", caught_by="B109")
def deleting_looks_like_draining(kit: Kit) -> None:
    """A machine that is being deleted shows the state of another step."""
    shown_as(kit, S.DELETING, S.DRAINING)


@wrong(breaks="P-05", caught_by="B108 B1109")
def idle_machines_blink(kit: Kit) -> None:
    """A machine that rests at Idle looks busy for a moment now and then."""
    kit.lawless()
    pauses = {S.IDLE: NANOS // 5, S.DELETING: NANOS // 10}

    @kit.around(Transitions, "_finish")
    def finish(original: Any, transitions: Any, run: Any, slot: Slot, now: int, **values: Any) -> None:
        original(transitions, run, slot, now, **values)
        settled = transitions._state.slots.get(slot.id)
        if settled is not None and settled.state is S.IDLE:
            blink(transitions, settled, now, S.DELETING)

    def blink(transitions: Any, slot: Slot, now: int, shown: S) -> None:
        def change(moment: int) -> None:
            current = transitions._state.slots.get(slot.id)
            if current is not None and current.revision == slot.revision:
                changed = transitions._state.change(current, state=shown)
                blink(transitions, changed, moment, S.IDLE if shown is S.DELETING else S.DELETING)

        due = now + pauses[slot.state]
        transitions._state.later(lambda: transitions._work.at(due, change))


@wrong(breaks="P-04", caught_by="B106 X501")
def the_cluster_comes_with_the_end_of_configure(kit: Kit) -> None:
    """cluster is empty until Configure has settled."""

    def change(machine: pb.Machine) -> None:
        if machine.state == pb.MACHINE_STATE_CONFIGURING:
            machine.cluster = ""

    kit.records(change)


@wrong(breaks="P-03", caught_by="B107 B803")
def a_bound_machine_shows_no_host(kit: Kit) -> None:
    """The host is left out of the records of Configured machines."""

    def change(machine: pb.Machine) -> None:
        if machine.state == pb.MACHINE_STATE_CONFIGURED:
            machine.ClearField("host")

    kit.records(change)


@wrong(breaks="P-03", caught_by="B107")
def hosts_come_before_their_machine(kit: Kit) -> None:
    """A machine that is being created shows a host already."""

    def change(machine: pb.Machine) -> None:
        if machine.state == pb.MACHINE_STATE_CREATING:
            machine.host.provider = machine.host.ref = "soon"

    kit.records(change)


@wrong(breaks="P-03", caught_by="B107")
def hosts_are_hidden_in_between(kit: Kit) -> None:
    """The host is left out while a machine is being bound or drained."""

    def change(machine: pb.Machine) -> None:
        if machine.state in (pb.MACHINE_STATE_CONFIGURING, pb.MACHINE_STATE_DRAINING):
            machine.ClearField("host")

    kit.records(change)


def shown_as(kit: Kit, state: S, other: S) -> None:
    """Records of machines in one state say that they are in another."""

    def change(machine: pb.Machine) -> None:
        if machine.state == int(state):
            machine.state = int(other)  # type: ignore[assignment]  # enums of model have these numbers

    kit.records(change)
