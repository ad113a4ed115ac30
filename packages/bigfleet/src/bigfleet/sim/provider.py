"""A provider of a simulated shard: the kit's own core and fake substrate under virtual time."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Protocol

from bigfleet.shard.core.effects import ConfigureMachine, CreateMachine, DeleteMachine, DrainMachine
from bigfleet.shard.core.events import Failure, Observed
from bigfleet.shard.provider.failures import FailureKind, classify
from bigfleet.sim.time import Order, VirtualTime
from bigfleet_base.api.v1alpha1 import provider_pb2 as pb
from bigfleet_base.wire.machines import decode_machine
from bigfleet_base.wire.metadata import encode_assignment, encode_drain, encode_target

if TYPE_CHECKING:
    from bigfleet_providerkit.effects import Call
    from bigfleet_providerkit.fake import FakeProvider

Mutation = CreateMachine | ConfigureMachine | DrainMachine | DeleteMachine
Answer = Observed | Failure
Answered = Callable[[Answer], None]

STUB_BLOB = b"#cloud-config\n"


@dataclass(frozen=True, slots=True)
class Token:
    """What fences a call."""

    shard_id: str
    epoch: int
    sequence: int


class Provider(Protocol):
    """What a simulated shard needs of a provider."""

    name: str

    def call(self, effect: Mutation, token: Token, answered: Answered) -> None:
        """Make a mutating call."""

    def raise_floor(self, token: Token, answered: Answered) -> None:
        """Drain a machine that does not exist."""

    def get(self, machine_id: str, answered: Answered) -> None: ...

    def list_all(self) -> tuple[list[Observed], list[str]] | Failure:
        """Every record in id order, and the ids of records that are no machines."""


@dataclass(slots=True)
class Ledger:
    """What one shard process was last told, so that it is only told news (shard.md §5)."""

    told: dict[str, Observed | None] = field(default_factory=dict)
    """None: the machine is known, whatever the next List says of it is news."""

    def news(
        self, records: list[Observed], rejected: list[str]
    ) -> tuple[tuple[Observed, ...], tuple[str, ...]]:
        """The records that are news, and the ids that are gone; those of bad records are there."""
        named: dict[str, Observed | None] = {m: self.told[m] for m in rejected if m in self.told}
        named.update((seen.machine.id, seen) for seen in records)
        changed = tuple(seen for seen in records if self.told.get(seen.machine.id) != seen)
        gone = tuple(machine_id for machine_id in self.told if machine_id not in named)
        self.told = named
        return changed, gone

    def forget(self, machine_id: str) -> None:
        """After a call the core may know other things than the last List said."""
        if machine_id in self.told:
            self.told[machine_id] = None


class KitProvider:
    """The kit's core over its fake substrate.

    Calls take ``travel`` nanoseconds each way; how long transitions take say the fake's knobs. One that
    does not echo is a peer that knows nothing of metadata on Create and Drain (ruling R15).
    """

    def __init__(
        self, name: str, fake: "FakeProvider", time: VirtualTime, *, travel: int = 0, echoes: bool = True
    ) -> None:
        self.name = name
        self.fake = fake
        self.accepted: dict[str, set[str]] = {}
        """By kind, the operations that the provider accepted."""
        self._time = time
        self._travel = travel
        self._echoes = echoes
        self._numbers = 0
        self._waiting: dict[int, tuple[str, Answered]] = {}
        self._planned: int | None = None
        self._advance()

    def call(self, effect: Mutation, token: Token, answered: Answered) -> None:
        from bigfleet_providerkit.effects import Call
        from bigfleet_providerkit.effects import Token as KitToken
        from bigfleet_providerkit.records import Kind

        number = self._number()
        fence = KitToken(token.shard_id, token.epoch, token.sequence)
        machine_id = effect.machine_id
        match effect:
            case CreateMachine():
                notes = _assignment(effect) | encode_target(effect.target_cluster) if self._echoes else {}
                call = Call(number, Kind.CREATE, machine_id, fence, metadata=notes)
            case ConfigureMachine(cluster=cluster):
                notes = _assignment(effect)
                call = Call(number, Kind.CONFIGURE, machine_id, fence, cluster, STUB_BLOB, notes)
            case DrainMachine(grace_s=grace):
                notes = encode_drain(effect.instruction_id, effect.preemptor) if self._echoes else {}
                call = Call(number, Kind.DRAIN, machine_id, fence, metadata=notes, grace=grace)
            case DeleteMachine():
                call = Call(number, Kind.DELETE, machine_id, fence)
        self._waiting[number] = (call.kind.name.title(), answered)
        self._time.after(self._travel, Order.PROVIDER, lambda: self._send(call))

    def raise_floor(self, token: Token, answered: Answered) -> None:
        from bigfleet_providerkit.effects import Call
        from bigfleet_providerkit.effects import Token as KitToken
        from bigfleet_providerkit.records import Kind

        number = self._number()
        fence = KitToken(token.shard_id, token.epoch, token.sequence)
        call = Call(number, Kind.DRAIN, f"bigfleet-fence-{token.shard_id}", fence)
        self._waiting[number] = ("Fence", answered)
        self._time.after(self._travel, Order.PROVIDER, lambda: self._send(call))

    def get(self, machine_id: str, answered: Answered) -> None:
        from bigfleet_providerkit.fake import Unavailable

        def ask() -> None:
            self._advance()
            try:
                record = self.fake.get(machine_id)
            except Unavailable:
                answer: Answer = _unavailable()
            else:
                if record is None:
                    answer = Failure(FailureKind.NOT_FOUND.value, "NOT_FOUND", f"no machine {machine_id}")
                else:
                    answer = observed(record)
            self._time.after(self._travel, Order.PROVIDER, lambda: answered(answer))

        self._time.after(self._travel, Order.PROVIDER, ask)

    def list_all(self) -> tuple[list[Observed], list[str]] | Failure:
        from bigfleet_providerkit.fake import Unavailable

        self._advance()
        try:
            slots = self.fake.list_machines().slots
        except Unavailable:
            return _unavailable()
        return sorted((observed(slot.record) for slot in slots), key=lambda seen: seen.machine.id), []

    def _number(self) -> int:
        self._numbers += 1
        return self._numbers

    def _send(self, call: "Call") -> None:
        self.fake.send(call)
        self._advance()

    def _advance(self) -> None:
        """Bring the fake to the present, hand over its answers and ask to be called when it wants to be."""
        from bigfleet_providerkit.effects import Code

        for answer in self.fake.advance(self._time.now):
            kind, answered = self._waiting.pop(answer.number)
            if answer.code is Code.OK:
                self.accepted.setdefault(kind, set()).add(answer.operation_id)
                result: Answer = observed(pb.TransitionAck.FromString(answer.ack).machine.SerializeToString())
            else:
                code = answer.code.name
                result = Failure(classify(code).value, code, answer.message)
            self._time.after(self._travel, Order.PROVIDER, partial(answered, result))
        due = self.fake.next_deadline()
        if due is not None and (
            self._planned is None or due < self._planned or self._planned <= self._time.now
        ):
            self._planned = due
            self._time.at(due, Order.PROVIDER, self._advance)


def observed(record: bytes) -> Observed:
    """A record as the core is told of it."""
    seen = decode_machine(pb.Machine.FromString(record))
    return Observed(seen.machine, seen.notes.instruction_id or "", seen.notes.preemptor)


def _assignment(effect: CreateMachine | ConfigureMachine) -> dict[str, str]:
    a = effect.assignment
    return encode_assignment(
        a.priority, a.interruption_penalty, a.reclamation_penalty, a.need_fingerprint, a.group
    )


def _unavailable() -> Failure:
    return Failure(FailureKind.TRANSIENT.value, "UNAVAILABLE", "the call was lost")
