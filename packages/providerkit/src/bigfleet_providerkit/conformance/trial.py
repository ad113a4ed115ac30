"""What a check is given: a provider, machines of its own, and ways to look at them."""

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final, TypeVar

from grpc import StatusCode as Code

from bigfleet_base.api.v1alpha1 import provider_pb2 as pb
from bigfleet_base.model import MachineState
from bigfleet_providerkit.conformance import expect, target
from bigfleet_providerkit.conformance.catalogue import Behaviour
from bigfleet_providerkit.conformance.checks import CheckFailed, SkipCapability, SkipFixture
from bigfleet_providerkit.conformance.client import CLUSTER, Ack, Client, state_of
from bigfleet_providerkit.conformance.connection import Connection
from bigfleet_providerkit.conformance.evidence import Evidence
from bigfleet_providerkit.conformance.options import Options
from bigfleet_providerkit.conformance.target import Capabilities, Target
from bigfleet_providerkit.conformance.tokens import Shard, Tokens

HOLD_S: Final = 0.25
T = TypeVar("T")


class Trial:
    """One check under way."""

    def __init__(self, behaviour: Behaviour, on: Target, tokens: Tokens, evidence: Evidence) -> None:
        self.behaviour = behaviour
        self.target = on
        self.tokens = tokens
        self.evidence = evidence
        self.provider = Client(on.connection, tokens, evidence)
        self.random = random.Random(f"{on.options.seed}/{behaviour.id}")  # noqa: S311  # repeatable, not secret
        self.taken: list[str] = []
        self.vacuous_because = ""
        self.lenient_because = ""
        self.notes: list[str] = []

    @property
    def options(self) -> Options:
        return self.target.options

    @property
    def can(self) -> Capabilities:
        """What the provider has of the optional half of the contract."""
        return self.target.capabilities

    # Machines

    async def take(self, count: int) -> list[str]:
        """Distinct Speculative machines for this check alone; they are returned after it."""
        machine_ids = await self.target.slots.take(count)
        self.taken += machine_ids
        return machine_ids

    async def take_faulty(self, fault: str) -> str:
        """A Speculative machine whose Create ends in ``error`` or ``hang``."""
        machine_id = await self.target.slots.take_faulty(fault)
        self.taken.append(machine_id)
        return machine_id

    async def speculative(self) -> str:
        [machine_id] = await self.take(1)
        return machine_id

    async def idle(self) -> str:
        """A machine walked to Idle."""
        return (await self.idle_machines(1))[0]

    async def idle_machines(self, count: int) -> list[str]:
        machine_ids = await self.take(count)
        for machine_id in machine_ids:
            expect.ok(await self.provider.create(machine_id))
        for machine_id in machine_ids:
            await self.settle(machine_id, MachineState.IDLE)
        return machine_ids

    async def configured(self, cluster: str = CLUSTER, metadata: Mapping[str, str] | None = None) -> str:
        """A machine walked to Configured."""
        machine_id = await self.idle()
        await self.configure(machine_id, cluster, metadata)
        return machine_id

    async def configure(
        self, machine_id: str, cluster: str = CLUSTER, metadata: Mapping[str, str] | None = None
    ) -> pb.Machine:
        """Configure an Idle machine and wait for it."""
        expect.ok(await self.provider.configure(machine_id, cluster, metadata))
        return await self.settle(machine_id, MachineState.CONFIGURED)

    async def drain(self, machine_id: str, grace: int = 0) -> pb.Machine:
        """Drain a Configured machine and wait for it."""
        expect.ok(await self.provider.drain(machine_id, grace))
        return await self.settle(machine_id, MachineState.IDLE)

    async def delete(self, machine_id: str) -> pb.Machine:
        """Delete an Idle machine and wait for it."""
        expect.ok(await self.provider.delete(machine_id))
        return await self.settle(machine_id, MachineState.SPECULATIVE)

    async def put_away_others(self) -> None:
        """Return what earlier checks have left, Failed machines once they are repaired."""
        slots = self.target.slots
        left = [machine.id for machine in await slots.unreturned(self.provider)]
        await slots.put_away(self.provider, left)

    # Looking

    async def get(self, machine_id: str) -> pb.Machine:
        return expect.ok(await self.provider.get(machine_id))

    async def list_machines(
        self, *states: MachineState, max_results: int = 0, since: bytes = b""
    ) -> pb.MachineList:
        return expect.ok(await self.provider.list(*states, max_results=max_results, since=since))

    async def settle(self, machine_id: str, state: MachineState, limit: float | None = None) -> pb.Machine:
        """The machine once it has reached the state. Fails when it ends Failed or takes too long."""
        return await target.settle(self.provider, machine_id, state, self.options, limit)

    async def at_rest(self, machine_id: str, limit: float | None = None) -> pb.Machine:
        """The machine once no transition is under way, Failed included."""
        return await target.at_rest(self.provider, machine_id, self.options, limit)

    async def trace(self, machine_id: str, ack: pb.TransitionAck, until: MachineState) -> list[pb.Machine]:
        """Everything seen of a machine from an ack to its target, looked at as often as possible."""
        seen = [ack.machine] if ack.HasField("machine") else []
        # Under way or over, and not as it was before (provider.P-13).
        for machine in seen:
            expect.in_state(machine, *sorted(expect.TRANSITIONAL), until)
        limit = self.options.settle[self.provider.last_kind[machine_id]]
        try:
            async with asyncio.timeout(limit):
                while True:
                    seen.append(await self.get(machine_id))
                    if state_of(seen[-1]) in (until, MachineState.FAILED):
                        break
                    await asyncio.sleep(self.options.fast_poll)
        except TimeoutError:
            raise CheckFailed(f"machine {machine_id} did not reach {until.name} within {limit:g} s") from None
        expect.in_state(seen[-1], until)
        return seen

    async def holds(self, machine_id: str, state: MachineState, seconds: float = HOLD_S) -> pb.Machine:
        """The machine, which is in the state now and stays in it for the whole window."""
        end = asyncio.get_running_loop().time() + seconds
        while True:
            machine = await self.get(machine_id)
            expect.in_state(machine, state)
            if asyncio.get_running_loop().time() >= end:
                return machine
            await asyncio.sleep(self.options.poll)

    def timeout(self, kind: str) -> float:
        """The provider's own timeout of a kind of transition, in seconds."""
        if self.can.info and (said := self.can.info.timeout_seconds.get(kind)):
            return said
        # Fault hooks make timeouts short; without them nothing is known but how long is waited at most.
        return self.options.transition_timeout if self.target.hooks else self.options.settle[kind]

    # Shards

    def shard(self) -> Shard:
        """A shard of this check's own."""
        return self.shards(1)[0]

    def shards(self, count: int) -> list[Shard]:
        """Distinct shards of this check's own."""
        return self.tokens.shards(count)

    def first_contact(self, reply: Ack) -> Ack:
        """The answer to a shard's first token; skips where an id was given that is not new after all."""
        if self.tokens.checks_identity and reply.code is Code.FAILED_PRECONDITION:
            raise SkipFixture("the provider knows the last --shard-id already: give one that was never used")
        return reply

    def one_operation(self, replies: Sequence[Ack]) -> str:
        """Identical calls at once collapse: at least one succeeds, none is fenced, all have one id."""
        if self.tokens.checks_identity:
            # Every call has its own token there, and on its way a newer one may overtake it.
            replies = [reply for reply in replies if reply.code is not Code.FAILED_PRECONDITION]
        return expect.one_operation(replies)

    # More than one connection, more than one life

    @asynccontextmanager
    async def another_connection(self) -> AsyncIterator[Client]:
        """A second client on a connection of its own."""
        connection = Connection(self.target.connection.address, self.target.connection.tls)
        try:
            yield Client(connection, self.tokens, self.evidence)
        finally:
            await connection.close()

    async def restart(self) -> None:
        """Lane D: kill -9, boot again on the same state, and talk to that."""
        await self.target.restart()
        self.provider.connection = self.target.connection

    async def once(self, name: str, make: Callable[[], Awaitable[T]]) -> T:
        """Something made by the first check of the lane that asks, for all of them."""
        memory: dict[str, Any] = self.target.memory
        if name not in memory:
            memory[name] = await make()
        made: T = memory[name]
        return made

    # Ends

    def vacuous(self, why: str) -> None:
        """The check has nothing to bind; it counts as passed unless ``--no-vacuous``."""
        self.vacuous_because = why

    def lenient(self, what: str) -> None:
        """The reference accepts this although its title does not: only with ``--compat``."""
        if not self.options.compat:
            raise CheckFailed(f"{what} (the reference suite lets this pass; --compat does, too)")
        self.lenient_because = what

    def note(self, text: str) -> None:
        """Something a reader of the report should know."""
        self.notes.append(text)

    def need_cursor(self) -> None:
        """Skip unless the provider honours since_revision."""
        if not self.can.cursor:
            raise SkipCapability(self.can.evidence["cursor"])

    def need_plaintext(self) -> None:
        """Skip where identities are checked: no certificate names the empty shard."""
        if self.tokens.checks_identity:
            raise SkipCapability("the target checks identities, and no certificate names the empty shard")

    def need_hooks(self) -> None:
        """Skip unless the provider under test fails on request."""
        if self.target.hooks != "target":
            raise SkipFixture("needs the provider's own fault hooks (--fault-hooks)")


async def at_most(width: int, calls: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
    """All calls, this many at once, begun in the order given."""
    turn = asyncio.Semaphore(width)

    async def one(call: Coroutine[Any, Any, T]) -> T:
        async with turn:
            return await call

    tasks = [asyncio.ensure_future(one(call)) for call in calls]
    try:
        # Not a task group: the failure of one call is the failure of the check, and no group of failures.
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for call in calls:
            call.close()
