"""The four mutating calls, checked in the order that provider.md §3.1 fixes."""

from functools import partial
from typing import Any, Final

from bigfleet_base.model import ID_PATTERN, MachineState, is_valid_id
from bigfleet_providerkit.effects import Accepted, Answer, Call, Code, Refused, Replayed
from bigfleet_providerkit.records import Kind, Slot, ack, read_metadata, write_metadata
from bigfleet_providerkit.settings import MAX_METADATA_BYTES, MAX_METADATA_KEYS, Settings
from bigfleet_providerkit.state import MAX_SHARDS, State
from bigfleet_providerkit.transitions import KIND_OF, SOURCE, TARGET, TRANSITIONAL, Transitions

_MAX_MACHINE_ID: Final = 1_024
"""Longer ids exist nowhere, and marks are kept for ids that callers invent."""
_INT64: Final = 1 << 63


class Refusal(Exception):  # noqa: N818  # an answer, not an error
    """The call is refused with this code."""

    def __init__(self, code: Code, message: str) -> None:
        super().__init__(message)
        self.code = code


class Calls:
    """Answers mutating calls and starts what they ask for."""

    def __init__(self, settings: Settings, state: State, transitions: Transitions) -> None:
        self._settings = settings
        self._state = state
        self._transitions = transitions

    def handle(self, call: Call, now: int) -> None:
        """Stage everything that the call does, its answer included."""
        try:
            operation_id, slot = self._process(call, now)
        except Refusal as refusal:
            self._state.effect(Answer(call.number, refusal.code, str(refusal)))
            self._state.report(
                Refused(call.kind, call.machine_id, call.token.shard_id, refusal.code, str(refusal))
            )
        else:
            self._state.effect(
                Answer(call.number, Code.OK, ack=ack(operation_id, slot), operation_id=operation_id)
            )

    def _process(self, call: Call, now: int) -> tuple[str, Slot]:
        self._check_shape(call)
        if call.kind is Kind.DELETE and not self._settings.capabilities.delete:
            raise Refusal(Code.UNIMPLEMENTED, "this provider does not delete machines")
        slot = self._fence(call)
        if slot is None or slot.withheld:
            raise Refusal(Code.NOT_FOUND, f"no machine {call.machine_id[:128]!r}")
        if (operation_id := self._replayed(call, slot)) is not None:
            self._state.report(Replayed(call.kind, slot.id, operation_id, call.token.shard_id))
            return operation_id, slot
        if slot.state is not SOURCE[call.kind]:
            raise _wrong_position(slot)
        return self._accept(call, slot, now)

    def _check_shape(self, call: Call) -> None:
        token = call.token
        if not call.machine_id:
            raise _invalid("machine_id is empty")
        if len(call.machine_id) > _MAX_MACHINE_ID:
            raise _invalid(
                f"machine_id has {len(call.machine_id)} characters, at most {_MAX_MACHINE_ID} are allowed"
            )
        if token.shard_id and not is_valid_id(token.shard_id):
            raise _invalid(f"shard_id {token.shard_id[:64]!r} does not match {ID_PATTERN}")
        if not token.shard_id and not token.is_zero():
            raise _invalid("shard_epoch and sequence_number need a shard_id")
        if (token.epoch < 0 or token.sequence < 0) and not self._settings.compat:
            raise _invalid("shard_epoch and sequence_number must not be negative")
        assert -_INT64 <= min(token.epoch, token.sequence) <= max(token.epoch, token.sequence) < _INT64
        if call.kind is Kind.CONFIGURE:
            if not call.cluster_id:
                raise _invalid("cluster_id is empty")
            if not is_valid_id(call.cluster_id):
                raise _invalid(f"cluster_id {call.cluster_id[:64]!r} does not match {ID_PATTERN}")
        if call.grace < 0:
            raise _invalid(f"grace_period_seconds is {call.grace}, must not be negative")
        if len(call.blob) > (cap := self._settings.max_blob_bytes):
            raise _invalid(f"bootstrap_blob has {len(call.blob)} bytes, at most {cap} are allowed")
        if len(call.metadata) > MAX_METADATA_KEYS:
            raise _invalid(
                f"shard_metadata has {len(call.metadata)} keys, at most {MAX_METADATA_KEYS} are allowed"
            )
        size = sum(len(key.encode()) + len(value.encode()) for key, value in call.metadata.items())
        if size > MAX_METADATA_BYTES:
            raise _invalid(f"shard_metadata has {size} bytes, at most {MAX_METADATA_BYTES} are allowed")

    def _fence(self, call: Call) -> Slot | None:
        """Refuse a stale token; a passing one moves mark and floor whatever becomes of the call (P-23)."""
        slot = self._state.slots.get(call.machine_id)
        token = call.token
        if self._settings.allow_shards and token.shard_id not in self._settings.allow_shards:
            raise Refusal(Code.PERMISSION_DENIED, f"shard {token.shard_id!r} is not among --allow-shard")
        if token.is_zero():
            return slot
        floor = self._state.floors.get(token.shard_id)
        if floor is not None and token.epoch < floor and not self._settings.compat:
            raise _stale(call, f"epoch {floor} of the shard has been seen")
        if slot is not None:
            mark = slot.marks.get(token.shard_id)
        else:
            mark = self._state.ghosts.get((call.machine_id, token.shard_id))
        if mark is not None and (token.epoch, token.sequence) <= mark:
            raise _stale(call, f"({mark[0]}, {mark[1]}) has been seen for the machine")
        if floor is None and len(self._state.floors.committed) >= MAX_SHARDS:
            raise Refusal(
                Code.RESOURCE_EXHAUSTED,
                f"{MAX_SHARDS} shard ids are known already; limit them with --allow-shard",
            )
        return self._state.mark(call.machine_id, slot, token.shard_id, token.epoch, token.sequence)

    def _replayed(self, call: Call, slot: Slot) -> str | None:
        """The operation that this call repeats, in flight or at its target (P-40)."""
        if slot.state not in (TRANSITIONAL[call.kind], TARGET[call.kind]):
            return None
        if call.kind is Kind.CONFIGURE and (
            slot.cluster != call.cluster_id or slot.binding != write_metadata(call.metadata)
        ):
            raise Refusal(
                Code.ALREADY_EXISTS,
                f"the machine is bound to {slot.cluster}, or with other metadata; drain it first",
            )
        return slot.operations[call.kind.place] or None

    def _accept(self, call: Call, slot: Slot, now: int) -> tuple[str, Slot]:
        # A revision is never used twice in a store, so it serves as the counter of operation ids (P-44).
        operation_id = f"{self._state.incarnation}-{self._state.next_revision()}"
        operations = list(slot.operations)
        operations[call.kind.place] = operation_id
        values: dict[str, Any] = {}
        match call.kind:
            case Kind.CREATE:
                operations[Kind.DELETE.place] = ""
                values["note"] = write_metadata(call.metadata)
            case Kind.CONFIGURE:
                values["cluster"] = call.cluster_id
                values["binding"] = write_metadata(call.metadata)
            case Kind.DRAIN:
                bound = read_metadata(slot.binding)
                values["grace"] = call.grace
                values["note"] = write_metadata(
                    {key: value for key, value in call.metadata.items() if key not in bound}
                )
        accepted = self._state.change(
            slot, state=TRANSITIONAL[call.kind], operations=tuple(operations), **values
        )
        self._state.report(Accepted(call.kind, slot.id, operation_id, call.token.shard_id, accepted.cluster))
        self._state.later(partial(self._transitions.begin, accepted, call.kind, now, call.blob))
        return operation_id, accepted


def _invalid(message: str) -> Refusal:
    return Refusal(Code.INVALID_ARGUMENT, message)


def _stale(call: Call, seen: str) -> Refusal:
    token = call.token
    return Refusal(
        Code.FAILED_PRECONDITION,
        f"fenced: token ({token.epoch}, {token.sequence}) of shard {token.shard_id} is stale, {seen}",
    )


def _wrong_position(slot: Slot) -> Refusal:
    if slot.state in KIND_OF:
        return Refusal(Code.ABORTED, "reason=BUSY")
    return Refusal(Code.ABORTED, f"reason=WRONG_STATE,state={MachineState(slot.state).name}")
