"""Providers that lose, change or keep what a shard has bound to a machine."""

from collections.abc import Mapping
from typing import Any

from bigfleet_base.api.v1alpha1 import provider_pb2 as pb
from bigfleet_base.model import MachineState as S
from bigfleet_providerkit import calls as calls_module
from bigfleet_providerkit.calls import Calls
from bigfleet_providerkit.effects import Call
from bigfleet_providerkit.records import Kind, Slot, write_metadata
from bigfleet_providerkit.state import State
from tests.wrong_providers.planting import Kit
from tests.wrong_providers.registry import wrong


@wrong(breaks="P-101", caught_by="B101 B403 B502 B807 B1104 B1202")
def drain_keeps_the_metadata(kit: Kit) -> None:
    """The map of an ended binding stays on the machine."""

    @kit.around(State, "change")
    def change(original: Any, kept: Any, slot: Slot, **values: Any) -> Slot:
        if values.get("state") in (S.IDLE, S.SPECULATIVE):
            values["binding"] = slot.binding
        changed: Slot = original(kept, slot, **values)
        return changed


@wrong(breaks="P-04", caught_by="B101 B106 B404 B502")
def drain_keeps_the_cluster(kit: Kit) -> None:
    """A drained machine still names the cluster it was taken from."""
    last: dict[str, str] = {}

    def change(machine: pb.Machine) -> None:
        if machine.cluster:
            last[machine.id] = machine.cluster
        elif machine.state == pb.MACHINE_STATE_IDLE:
            machine.cluster = last.get(machine.id, "")

    kit.records(change)


@wrong(breaks="P-04 P-100", caught_by="B106")
def draining_machines_are_no_longer_bound(kit: Kit) -> None:
    """Get and List show neither cluster nor metadata of a machine once its Drain is accepted."""

    def change(machine: pb.Machine) -> None:
        if machine.state == pb.MACHINE_STATE_DRAINING:
            machine.cluster = ""
            machine.shard_metadata.clear()

    kit.got(change)
    kit.listed(change)


@wrong(breaks="P-100", caught_by="B106")
def draining_machines_have_no_metadata(kit: Kit) -> None:
    """The map ends with the acceptance of Drain, and the cluster when it has settled."""

    def change(machine: pb.Machine) -> None:
        if machine.state == pb.MACHINE_STATE_DRAINING:
            machine.shard_metadata.clear()

    kit.got(change)
    kit.listed(change)


@wrong(breaks="P-46", caught_by="X102")
def a_conflicting_configure_is_answered_ok(kit: Kit) -> None:
    """Configure for another cluster is acknowledged with the binding that exists."""

    @kit.around(Calls, "_replayed")
    def replayed(original: Any, calls: Any, call: Call, slot: Slot) -> str | None:
        if call.kind is Kind.CONFIGURE and slot.state in (S.CONFIGURING, S.CONFIGURED):
            return slot.operations[call.kind.place]
        operation_id: str | None = original(calls, call, slot)
        return operation_id


@wrong(breaks="P-103", caught_by="B209 B503")
def much_metadata_is_truncated(kit: Kit) -> None:
    """Of a large map the first hundred keys are kept."""
    stored(kit, lambda sent: dict(sorted(sent.items())[:100]))


@wrong(breaks="P-100", caught_by="B501")
def metadata_ends_at_nul(kit: Kit) -> None:
    """Values are kept as C strings."""
    stored(kit, lambda sent: {key: value.partition("\0")[0] for key, value in sent.items()})


@wrong(breaks="P-100", caught_by="B501 B1202")
def metadata_is_ascii(kit: Kit) -> None:
    """Every other character becomes a question mark."""
    stored(kit, lambda sent: {key: value.encode("ascii", "replace").decode() for key, value in sent.items()})


@wrong(breaks="P-102", caught_by="B505 B501")
def metadata_changes_after_the_ack(kit: Kit) -> None:
    """The map is kept by reference, and somebody adds a key of its own to it."""

    def change(machine: pb.Machine) -> None:
        if machine.state == pb.MACHINE_STATE_CONFIGURED and machine.shard_metadata:
            machine.shard_metadata["late"] = "key"

    kit.records(change)


@wrong(breaks="P-04 P-100", caught_by="B504 X501")
def metadata_comes_with_the_end_of_configure(kit: Kit) -> None:
    """The map is not shown until Configure has settled."""

    def change(machine: pb.Machine) -> None:
        if machine.state == pb.MACHINE_STATE_CONFIGURING:
            machine.shard_metadata.clear()

    kit.records(change)


@wrong(breaks="P-100", caught_by="X501")
def acks_leave_the_metadata_out(kit: Kit) -> None:
    """Snapshots in acknowledgements are records without the map."""
    kit.acknowledged(lambda machine: machine.shard_metadata.clear())


def stored(kit: Kit, change: Any) -> None:
    """Keep another map than was sent."""

    def write(metadata: Mapping[str, str]) -> bytes:
        return write_metadata(change(metadata))

    kit.put(calls_module, "write_metadata", write)
