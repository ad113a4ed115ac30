"""Providers that take what they must refuse, or refuse it in the wrong way."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from bigfleet_base.api.v1alpha1 import provider_pb2 as pb
from bigfleet_base.model import MachineState as S
from bigfleet_providerkit import calls as calls_module
from bigfleet_providerkit.calls import Calls, Refusal
from bigfleet_providerkit.effects import Call, Code, Token
from bigfleet_providerkit.records import Kind, Slot, write_metadata
from bigfleet_providerkit.server import Refused, Service
from tests.wrong_providers.planting import Kit
from tests.wrong_providers.registry import wrong


@wrong(breaks="P-27", caught_by="B201 B202 B203 B204 B311 B705 B1203 B1205 X402")
def a_wrong_state_is_failed_precondition(kit: Kit) -> None:
    """A call that does not fit the machine's state is answered as if its token were stale."""
    kit.put(calls_module, "_wrong_position", lambda slot: Refusal(Code.FAILED_PRECONDITION, "wrong state"))


@wrong(breaks="P-45", caught_by="B201 B1203")
def create_is_repeated_in_any_state(kit: Kit) -> None:
    """Create of a machine that was created is answered OK even when it is bound."""
    answers_ok(kit, Kind.CREATE, S.CONFIGURED)


@wrong(breaks="P-45", caught_by="B203")
def drain_of_a_fresh_machine_is_a_no_op(kit: Kit) -> None:
    """Drain of an Idle machine that was never drained answers OK."""
    answers_ok(kit, Kind.DRAIN, S.IDLE)


@wrong(breaks="5", caught_by="B204 B1203")
def delete_of_a_bound_machine_is_acknowledged(kit: Kit) -> None:
    """Delete of a Configured machine answers OK and does nothing."""
    answers_ok(kit, Kind.DELETE, S.CONFIGURED)


@wrong(breaks="P-11", caught_by="B202")
def a_refused_configure_leaves_its_metadata(kit: Kit) -> None:
    """Configure of a free slot is refused after its map was stored."""

    @kit.around(Calls, "_process")
    def process(original: Any, calls: Any, call: Call, now: int) -> Any:
        slot = calls._state.slots.get(call.machine_id)
        if slot is not None and call.kind is Kind.CONFIGURE and slot.state is S.SPECULATIVE:
            calls._state.change(slot, binding=write_metadata(call.metadata))
        return original(calls, call, now)


@wrong(breaks="P-50", caught_by="X104")
def drain_cuts_configure_short(kit: Kit) -> None:
    """Drain is accepted while the machine is still CONFIGURING."""
    kit.lawless()

    @kit.around(Calls, "_process")
    def process(original: Any, calls: Any, call: Call, now: int) -> Any:
        slot = calls._state.slots.get(call.machine_id)
        if slot is not None and call.kind is Kind.DRAIN and slot.state is S.CONFIGURING:
            return calls._accept(call, slot, now)
        return original(calls, call, now)


@wrong(breaks="5", caught_by="B207 B215 B1205")
def an_unknown_machine_is_an_internal_error(kit: Kit) -> None:
    """A mutation of an id that does not exist answers INTERNAL."""

    @kit.around(Calls, "_process")
    def process(original: Any, calls: Any, call: Call, now: int) -> Any:
        try:
            return original(calls, call, now)
        except Refusal as refusal:
            code = Code.INTERNAL if refusal.code is Code.NOT_FOUND else refusal.code
            raise Refusal(code, str(refusal)) from None


@wrong(breaks="5", caught_by="B207 B215")
def get_invents_machines(kit: Kit) -> None:
    """Get of an id that does not exist shows an empty record."""

    @kit.around(Service, "_get")
    async def get(original: Any, service: Any, request: pb.MachineRef, context: Any) -> bytes:
        try:
            answer: bytes = await original(service, request, context)
        except Refused as refused:
            if refused.code is Code.NOT_FOUND:
                return pb.Machine(id=request.id).SerializeToString()
            raise
        return answer


@wrong(breaks="5", caught_by="B208 B1205 X103")
def an_empty_id_is_unknown(kit: Kit) -> None:
    """A call without a machine id is answered NOT_FOUND, as if it named one."""

    @kit.around(Calls, "_check_shape")
    def check_shape(original: Any, calls: Any, call: Call) -> None:
        if not call.machine_id:
            raise Refusal(Code.NOT_FOUND, "no machine ''")
        original(calls, call)


@wrong(breaks="5", caught_by="X101")
def an_empty_cluster_is_the_default_one(kit: Kit) -> None:
    """Configure without a cluster_id binds the machine to a cluster called default."""
    reshaped(kit, lambda call: replace(call, cluster_id=call.cluster_id or "default"))


@wrong(breaks="5", caught_by="B210")
def a_negative_grace_is_none(kit: Kit) -> None:
    """Drain with a negative grace drains at once."""
    reshaped(kit, lambda call: replace(call, grace=max(0, call.grace)))


@wrong(breaks="P-30", caught_by="B211")
def negative_tokens_are_ordinary(kit: Kit) -> None:
    """A token with a negative number is compared like any other."""

    @kit.around(Calls, "_check_shape")
    def check_shape(original: Any, calls: Any, call: Call) -> None:
        token = call.token
        original(
            calls, replace(call, token=Token(token.shard_id, max(0, token.epoch), max(0, token.sequence)))
        )


@wrong(breaks="P-30", caught_by="X105")
def numbers_need_no_shard(kit: Kit) -> None:
    """Token numbers without a shard_id are taken for those of a shard without a name."""

    @kit.around(Calls, "_check_shape")
    def check_shape(original: Any, calls: Any, call: Call) -> None:
        original(calls, call if call.token.shard_id else replace(call, token=Token()))


@wrong(breaks="P-11", caught_by="B213")
def a_large_blob_is_refused_too_late(kit: Kit) -> None:
    """Configure with a large blob is refused when the machine is bound already."""

    @kit.around(Calls, "_accept")
    def accept(original: Any, calls: Any, call: Call, slot: Slot, now: int) -> Any:
        accepted = original(calls, call, slot, now)
        if len(call.blob) > 1 << 20:
            raise Refusal(Code.INVALID_ARGUMENT, "bootstrap_blob is too large")
        return accepted


@wrong(breaks="5", caught_by="X101 X105")
def names_may_be_anything(kit: Kit) -> None:
    """Clusters and shards are called what their owners like."""
    kit.put(calls_module, "is_valid_id", lambda name: True)


@wrong(breaks="3.1", caught_by="X101")
def arguments_are_looked_at_after_the_token(kit: Kit) -> None:
    """A Configure without a proper cluster uses up its token."""

    @kit.around(Calls, "_check_shape")
    def check_shape(original: Any, calls: Any, call: Call) -> None:
        try:
            original(calls, call)
        except Refusal:
            if call.kind is Kind.CONFIGURE and call.machine_id:
                calls._fence(call)
            raise


@wrong(breaks="P-46", caught_by="X102")
def a_conflict_is_one_when_it_is_settled(kit: Kit) -> None:
    """Configure for another cluster is acknowledged while the machine is still CONFIGURING."""

    @kit.around(Calls, "_replayed")
    def replayed(original: Any, calls: Any, call: Call, slot: Slot) -> str | None:
        if call.kind is Kind.CONFIGURE and slot.state is S.CONFIGURING:
            return slot.operations[call.kind.place]
        operation_id: str | None = original(calls, call, slot)
        return operation_id


@wrong(breaks="P-46", caught_by="X102")
def blobs_are_compared(kit: Kit) -> None:
    """Configure that is repeated with a new join token is a conflict."""
    blobs: dict[str, bytes] = {}

    @kit.around(Calls, "_accept")
    def accept(original: Any, calls: Any, call: Call, slot: Slot, now: int) -> Any:
        blobs[slot.id] = call.blob
        return original(calls, call, slot, now)

    @kit.around(Calls, "_replayed")
    def replayed(original: Any, calls: Any, call: Call, slot: Slot) -> str | None:
        operation_id: str | None = original(calls, call, slot)
        if call.kind is Kind.CONFIGURE and operation_id and blobs.get(slot.id, call.blob) != call.blob:
            raise Refusal(Code.ALREADY_EXISTS, "another bootstrap_blob")
        return operation_id


@wrong(breaks="P-84", caught_by="B705")
def drain_of_a_failed_machine_is_acknowledged(kit: Kit) -> None:
    """Drain of a FAILED machine answers OK and does nothing."""
    answers_ok(kit, Kind.DRAIN, S.FAILED)


@wrong(breaks="P-84", caught_by="B705")
def a_failed_configure_is_repeated(kit: Kit) -> None:
    """Configure of a FAILED machine is answered with the operation that has failed."""
    answers_ok(kit, Kind.CONFIGURE, S.FAILED)


@wrong(breaks="P-50", caught_by="X701")
def delete_during_configure_is_acknowledged(kit: Kit) -> None:
    """Delete of a CONFIGURING machine answers OK and does nothing."""
    answers_ok(kit, Kind.DELETE, S.CONFIGURING)


@wrong(breaks="P-50", caught_by="X701")
def configure_during_create_is_acknowledged(kit: Kit) -> None:
    """Configure of a CREATING machine answers OK and does nothing."""
    answers_ok(kit, Kind.CONFIGURE, S.CREATING)


def answers_ok(kit: Kit, kind: Kind, where: S) -> None:
    """This call in this state is answered with its recorded operation, or with one made up."""

    @kit.around(Calls, "_replayed")
    def replayed(original: Any, calls: Any, call: Call, slot: Slot) -> str | None:
        if call.kind is kind and slot.state is where:
            return slot.operations[kind.place] or f"no-op-{slot.id}"
        operation_id: str | None = original(calls, call, slot)
        return operation_id


def reshaped(kit: Kit, change: Callable[[Call], Call]) -> None:
    """Correct calls instead of refusing them."""

    @kit.around(Calls, "_process")
    def process(original: Any, calls: Any, call: Call, now: int) -> Any:
        return original(calls, change(call), now)
