"""Providers that hide failures, forget them, or never get over them."""

from collections.abc import Callable
from dataclasses import replace
from itertools import count
from typing import Any

from bigfleet_base.api.v1alpha1 import provider_pb2 as pb
from bigfleet_base.model import MachineState as S
from bigfleet_providerkit import lasterror
from bigfleet_providerkit import transitions as transitions_module
from bigfleet_providerkit.calls import Calls
from bigfleet_providerkit.core import Core
from bigfleet_providerkit.effects import Call
from bigfleet_providerkit.inventory import Inventory
from bigfleet_providerkit.records import Kind, Slot
from bigfleet_providerkit.repair import Repair
from bigfleet_providerkit.transitions import SOURCE, Transitions
from tests.wrong_providers.planting import Kit
from tests.wrong_providers.registry import wrong


@wrong(breaks="P-80 P-81", caught_by="B701 B702 B703 B706")
def failures_are_undone(kit: Kit) -> None:
    """A transition that fails takes the machine back to where it came from, without a word."""
    kit.lawless()

    @kit.around(Transitions, "_fail")
    def fail(original: Any, transitions: Any, run: Any, slot: Slot, *args: Any, **values: Any) -> None:
        binding = {} if run.kind is Kind.DRAIN else {"cluster": "", "binding": b""}
        transitions._state.change(slot, state=SOURCE[run.kind], note=b"", **binding)
        transitions._settled(run, "ok", args[-1])


@wrong(breaks="P-81", caught_by="B703")
def a_timeout_does_not_say_so(kit: Kit) -> None:
    """last_error of a transition that took too long names another reason."""
    said = lasterror.last_error

    def last_error(kind: str, reason: str, text: str, secret: bytes = b"") -> str:
        return (
            said(kind, "substrate", "it did not work", secret)
            if reason == "timeout"
            else said(kind, reason, text, secret)
        )

    kit.put(transitions_module, "last_error", last_error)


@wrong(breaks="P-52", caught_by="B704")
def a_late_success_counts(kit: Kit) -> None:
    """A backend call that comes back after its timeout completes the transition after all."""
    kit.lawless()

    @kit.around(Core, "_returned")
    def returned(original: Any, core: Any, event: Any, now: int) -> None:
        late = core._work.lingering(event.call)
        if late is not None and late.method == "configure" and event.error is None:
            slot = core._state.slots.get(late.machine_id)
            core._state.change(slot, state=S.CONFIGURED, last_error="")
        original(core, event, now)


@wrong(breaks="P-84", caught_by="B705")
def configure_recovers_a_failed_machine(kit: Kit) -> None:
    """Configure of a machine that is FAILED starts it again."""
    kit.lawless()

    @kit.around(Calls, "_process")
    def process(original: Any, calls: Any, call: Call, now: int) -> Any:
        slot = calls._state.slots.get(call.machine_id)
        if slot is not None and call.kind is Kind.CONFIGURE and slot.state is S.FAILED and slot.host:
            return calls._accept(call, replace(slot, state=S.IDLE, last_error=""), now)
        return original(calls, call, now)


@wrong(breaks="P-82", caught_by="B706")
def a_failed_drain_never_ends(kit: Kit) -> None:
    """A drain whose backend fails leaves the machine DRAINING."""

    @kit.around(Transitions, "_fail")
    def fail(original: Any, transitions: Any, run: Any, slot: Slot, *args: Any, **values: Any) -> None:
        if run.kind is not Kind.DRAIN:
            original(transitions, run, slot, *args, **values)


@wrong(breaks="P-83", caught_by="B705 B707")
def last_error_changes_with_every_look(kit: Kit) -> None:
    """The error is told anew each time, with a number of its own."""
    looks = count(1)

    def change(machine: pb.Machine) -> None:
        if machine.last_error:
            machine.last_error += f" (look {next(looks)})"

    kit.records(change)


@wrong(breaks="9", caught_by="B708 X601 X701")
def configured_before_the_node_is_ready(kit: Kit) -> None:
    """A machine is CONFIGURED as soon as its bootstrap has run."""

    @kit.around(Transitions, "_returned")
    def returned(
        original: Any, transitions: Any, run: Any, slot: Slot, method: str, value: Any, now: int
    ) -> None:
        if method == "configure":
            transitions._finish(run, slot, now)
        else:
            original(transitions, run, slot, method, value, now)


@wrong(breaks="6.4", caught_by="X702")
def lost_hosts_are_not_noticed(kit: Kit) -> None:
    """Nobody looks at the hosts of settled machines."""
    kit.put(Inventory, "_watch", lambda inventory: None)


@wrong(breaks="6.3", caught_by="X703")
def failed_is_for_ever(kit: Kit) -> None:
    """A machine that has failed is never repaired."""
    kit.put(Repair, "plan", lambda repair, slot, now: None)


@wrong(breaks="P-85", caught_by="X704")
def the_grace_does_not_extend_the_timeout(kit: Kit) -> None:
    """A drain is given up at the drain timeout, whatever grace it was given."""

    @kit.around(Transitions, "_run")
    def run(original: Any, transitions: Any, slot: Slot, kind: Kind, now: int, blob: bytes) -> Any:
        found = original(transitions, slot, kind, now, blob)
        found.timeout = transitions._settings.timeouts[kind]
        return found


@wrong(breaks="P-86", caught_by="X705")
def last_error_repeats_the_blob(kit: Kit) -> None:
    """The error of a failed Configure shows what was to be run."""
    said = lasterror.last_error

    def last_error(kind: str, reason: str, text: str, secret: bytes = b"") -> str:
        return said(kind, reason, text) + secret.decode(errors="replace")[:512]

    kit.put(transitions_module, "last_error", last_error)


@wrong(breaks="P-86", caught_by="X705")
def last_error_is_endless(kit: Kit) -> None:
    """last_error is all that the substrate has ever said."""
    errors_say(kit, lambda said: said + " and so on" * 200)


@wrong(breaks="P-86", caught_by="X702 X705")
def last_error_is_prose(kit: Kit) -> None:
    """last_error does not begin with what failed, and how."""
    errors_say(kit, lambda said: f"Sorry: {said}")


@wrong(breaks="4", caught_by="X705")
def labels_repeat_the_blob(kit: Kit) -> None:
    """What was to be run on a machine is one of its labels."""
    blobs: dict[str, str] = {}

    @kit.around(Calls, "_accept")
    def accept(original: Any, calls: Any, call: Call, slot: Slot, now: int) -> Any:
        blobs[slot.id] = call.blob.decode(errors="replace")
        return original(calls, call, slot, now)

    def change(machine: pb.Machine) -> None:
        if blob := blobs.get(machine.id):
            machine.labels["user-data"] = blob[:512]

    kit.records(change)


def errors_say(kit: Kit, change: Callable[[str], str]) -> None:
    """Tell what has failed in other words."""

    def reworded(machine: pb.Machine) -> None:
        if machine.last_error:
            machine.last_error = change(machine.last_error)

    kit.records(reworded)
