"""Providers that let the wrong shard through, or keep the right one out."""

from collections.abc import Callable
from typing import Any, Final

from bigfleet_providerkit import state
from bigfleet_providerkit.calls import Calls, Refusal
from bigfleet_providerkit.effects import Call, Code, Token
from bigfleet_providerkit.records import Slot
from bigfleet_providerkit.server import Refused, Service
from tests.wrong_providers.planting import Kit
from tests.wrong_providers.registry import wrong

Numbers = tuple[int, int]
Stale = Callable[[Numbers, Numbers, int], bool]
NEVER: Final = (-1, -1)


@wrong(breaks="P-20", caught_by="B302 B303 B312 B1201 X302")
def equal_tokens_pass(kit: Kit) -> None:
    """A token is stale only when an older one than it is sent; the same one may come again."""
    compare(kit, lambda token, mark, floor: token[0] < floor or token < mark)


@wrong(breaks="P-22", caught_by="B303 B310 B405 B1201")
def epochs_are_not_compared(kit: Kit) -> None:
    """Sequence numbers alone decide, so that a restarted shard has to catch up with itself."""
    compare(kit, lambda token, mark, floor: token[1] <= mark[1])


@wrong(breaks="P-20", caught_by="B303 B305 B309 B311 B312")
def sequences_are_not_compared(kit: Kit) -> None:
    """Within an epoch every token is as good as any other."""
    compare(kit, lambda token, mark, floor: token[0] < floor)


@wrong(breaks="P-32", caught_by="X301 B1204")
def an_old_epoch_passes_on_untouched_machines(kit: Kit) -> None:
    """What a shard's newer life has said to one machine means nothing to the others."""
    compare(kit, lambda token, mark, floor: token <= mark)


@wrong(breaks="P-31", caught_by="B212")
def marks_overflow(kit: Kit) -> None:
    """The next acceptable sequence number is kept, and wraps after the greatest one."""

    def is_stale(token: Numbers, mark: Numbers, floor: int) -> bool:
        following = (mark[1] + 1 + 2**63) % 2**64 - 2**63
        return token[0] < mark[0] - 1 or token < (mark[0], following)

    compare(kit, is_stale)


@wrong(breaks="P-21", caught_by="B302 X402")
def one_mark_per_shard(kit: Kit) -> None:
    """All machines of a shard share a mark, so that its parallel calls fence each other."""
    marks: dict[str, Numbers] = {}

    @kit.around(Calls, "_fence")
    def fence(original: Any, calls: Any, call: Call) -> Slot | None:
        token = call.token
        if not token.is_zero():
            if (token.epoch, token.sequence) <= marks.get(token.shard_id, NEVER):
                raise stale()
            marks[token.shard_id] = (token.epoch, token.sequence)
        slot: Slot | None = calls._state.slots.get(call.machine_id)
        return slot


@wrong(breaks="P-25", caught_by="B302 B1204")
def one_mark_per_machine(kit: Kit) -> None:
    """Whoever sent the newest token to a machine fences all other shards out."""

    @kit.around(Calls, "_fence")
    def fence(original: Any, calls: Any, call: Call) -> Slot | None:
        slot: Slot | None = calls._state.slots.get(call.machine_id)
        token = call.token
        if slot is None or token.is_zero():
            found: Slot | None = original(calls, call)
            return found
        if (token.epoch, token.sequence) <= max(slot.marks.values(), default=NEVER):
            raise stale()
        marked: Slot = calls._state.mark(slot.id, slot, token.shard_id, token.epoch, token.sequence)
        return marked


@wrong(breaks="P-25", caught_by="B302 B1007")
def one_floor_for_all_shards(kit: Kit) -> None:
    """A shard that starts to count has to be at the epoch of the oldest one."""

    @kit.around(Calls, "_fence")
    def fence(original: Any, calls: Any, call: Call) -> Slot | None:
        floors = calls._state.floors.committed.values()
        if not call.token.is_zero() and call.token.epoch < max(floors, default=0):
            raise stale()
        slot: Slot | None = original(calls, call)
        return slot


@wrong(breaks="P-10 P-23", caught_by="B301")
def unknown_machines_are_not_fenced(kit: Kit) -> None:
    """A zombie learns which machines exist: of others it hears NOT_FOUND whatever its token."""

    @kit.around(Calls, "_fence")
    def fence(original: Any, calls: Any, call: Call) -> Slot | None:
        if calls._state.slots.get(call.machine_id) is None:
            return None
        slot: Slot | None = original(calls, call)
        return slot


@wrong(breaks="P-10", caught_by="B306 B307 B309")
def fenced_after_idempotency(kit: Kit) -> None:
    """A repeated call is answered with its operation before anyone looks at the token."""

    @kit.around(Calls, "_process")
    def process(original: Any, calls: Any, call: Call, now: int) -> Any:
        slot = calls._state.slots.get(call.machine_id)
        if slot is not None and (operation_id := calls._replayed(call, slot)):
            return operation_id, slot
        return original(calls, call, now)


@wrong(breaks="P-23", caught_by="B311 X301")
def refused_calls_leave_no_mark(kit: Kit) -> None:
    """Only a call that succeeds uses up its token."""

    @kit.around(Calls, "_process")
    def process(original: Any, calls: Any, call: Call, now: int) -> Any:
        savepoint = calls._state.savepoint()
        try:
            return original(calls, call, now)
        except Refusal:
            calls._state.undo_to(savepoint)
            raise


@wrong(breaks="P-24", caught_by="B312 B1201")
def a_stale_token_moves_the_mark(kit: Kit) -> None:
    """The last token is remembered, not the highest: a replay makes room for older ones."""

    @kit.around(Calls, "_fence")
    def fence(original: Any, calls: Any, call: Call) -> Slot | None:
        try:
            slot: Slot | None = original(calls, call)
        except Refusal:
            known, token = calls._state.slots.get(call.machine_id), call.token
            calls._state.mark(call.machine_id, known, token.shard_id, token.epoch, token.sequence)
            raise
        return slot


@wrong(breaks="P-26", caught_by="B308")
def the_zero_token_is_fenced(kit: Kit) -> None:
    """The token of tools is taken for that of a shard without a name."""

    @kit.around(Calls, "_fence")
    def fence(original: Any, calls: Any, call: Call) -> Slot | None:
        slot: Slot | None = original(calls, call)
        if not call.token.is_zero() or slot is None:
            return slot
        if "" in slot.marks:
            raise stale()
        marked: Slot = calls._state.mark(slot.id, slot, "", 0, 0)
        return marked


@wrong(breaks="P-25", caught_by="X302")
def zeros_bypass_the_fence(kit: Kit) -> None:
    """Two zeros are the token of tools, whoever sends them."""

    def is_zero(token: Token) -> bool:
        return not token.epoch and not token.sequence

    kit.put(Token, "is_zero", is_zero)


@wrong(breaks="P-28", caught_by="B305")
def reads_are_fenced(kit: Kit) -> None:
    """A machine whose last mutation was fenced out answers Get with FAILED_PRECONDITION."""
    fenced: set[str] = set()

    @kit.around(Service, "_mutate")
    async def mutate(original: Any, service: Any, kind: Any, request: Any, *args: Any, **more: Any) -> bytes:
        try:
            answer: bytes = await original(service, kind, request, *args, **more)
        except Refused as refused:
            if refused.code is Code.FAILED_PRECONDITION:
                fenced.add(request.machine_id)
            raise
        fenced.discard(request.machine_id)
        return answer

    @kit.around(Service, "_get")
    async def get(original: Any, service: Any, request: Any, context: Any) -> bytes:
        if request.id in fenced:
            raise Refused(Code.FAILED_PRECONDITION, "fenced")
        answer: bytes = await original(service, request, context)
        return answer


@wrong(breaks="P-33", caught_by="X303")
def ghosts_are_remembered_for_ever(kit: Kit) -> None:
    """Every id that a caller invents costs memory until the process ends."""
    kit.put(state, "MAX_GHOSTS", 10**9)


def compare(kit: Kit, is_stale: Stale) -> None:
    """Fence by another comparison of token, mark of (shard, machine) and floor of the shard."""

    @kit.around(Calls, "_fence")
    def fence(original: Any, calls: Any, call: Call) -> Slot | None:
        kept, token = calls._state, call.token
        slot: Slot | None = kept.slots.get(call.machine_id)
        if token.is_zero():
            return slot
        ghost = kept.ghosts.get((call.machine_id, token.shard_id))
        mark = ghost if slot is None else slot.marks.get(token.shard_id)
        floor = kept.floors.get(token.shard_id)
        if is_stale((token.epoch, token.sequence), mark or NEVER, floor or 0):
            raise stale()
        marked: Slot | None = kept.mark(call.machine_id, slot, token.shard_id, token.epoch, token.sequence)
        return marked


def stale() -> Refusal:
    """The answer to a token that is too old."""
    return Refusal(Code.FAILED_PRECONDITION, "fenced: the token is stale")
