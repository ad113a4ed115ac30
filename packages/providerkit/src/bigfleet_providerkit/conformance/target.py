"""The provider that a lane's ids run against: what it can do, and which of its machines are free."""

import asyncio
import math
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final

from google.protobuf.json_format import MessageToDict
from grpc import StatusCode as Code
from grpc import aio

from bigfleet_base.api.ext.v1alpha1 import providerinfo_pb2 as info_pb
from bigfleet_base.api.ext.v1alpha1 import providerinfo_pb2_grpc as info_rpc
from bigfleet_base.api.v1alpha1 import provider_pb2 as pb
from bigfleet_base.model import MachineState
from bigfleet_providerkit.conformance import expect
from bigfleet_providerkit.conformance.checks import CheckFailed, SkipFixture, Trouble
from bigfleet_providerkit.conformance.client import Client, state_of
from bigfleet_providerkit.conformance.connection import Connection
from bigfleet_providerkit.conformance.managed import Managed
from bigfleet_providerkit.conformance.options import Options

FAULT_LABELS: Final = "conformance.fault/"
CREATE_FAULT: Final = FAULT_LABELS + "create"
_LIST_DEADLINE_S: Final = 120.0
RECLAIM_AFTER_FAILURE_S: Final = 2.0
_REPAIR_POLL_S: Final = 0.25


@dataclass(frozen=True)
class Capabilities:
    """What the provider has of the optional half of the contract, and how that is known."""

    delete: bool
    cursor: bool
    evidence: dict[str, str]
    info: info_pb.DescribeResponse | None = None
    """What it says of itself; None for a provider of the base contract."""

    def info_dict(self) -> dict[str, Any] | None:
        return None if self.info is None else MessageToDict(self.info, preserving_proto_field_name=True)


@dataclass
class Target:
    """A provider under test, connected."""

    connection: Connection
    options: Options
    managed: Managed | None = None
    hooks: str = ""
    """Whose fault hooks are on: ``target``, ``reference``, or nobody's."""
    capabilities: Capabilities = Capabilities(delete=False, cursor=False, evidence={})
    memory: dict[str, Any] = field(default_factory=dict)
    """What checks of the lane share."""

    def __post_init__(self) -> None:
        self.slots = Slots(self)

    def __str__(self) -> str:
        return f"the provider at {self.connection.address}"

    async def restart(self) -> None:
        """Kill -9 and boot on the same state, on another port."""
        assert self.managed is not None, "only lane D restarts, and it has a process"
        self.managed.kill()
        address = await self.managed.boot()
        # Only now: should it not come back, calls are answered UNAVAILABLE, and not by a closed channel.
        await self.connection.close()
        self.connection = Connection(address, self.connection.tls)

    async def revive(self) -> None:
        """A process of ours that an id has ended is there again for the next one."""
        if self.managed is not None and not self.managed.is_running:
            await self.restart()

    async def close(self) -> None:
        try:
            await self.connection.close()
        finally:
            if self.managed is not None:
                await self.managed.stop()

    async def describe(self) -> info_pb.DescribeResponse | None:
        """What it says of itself, if it knows the extension."""
        stub = info_rpc.ProviderInfoStub(self.connection.channel)
        try:
            described: info_pb.DescribeResponse = await stub.Describe(info_pb.DescribeRequest(), timeout=5)
        except aio.AioRpcError:
            return None
        return described

    async def probe(self, client: Client) -> Capabilities:
        """What it can do: as it says itself, else by walking one machine there and back."""
        if info := await self.describe():
            said = "ProviderInfo says delete={} cursor={}".format(*_words(info.delete, info.cursor))
            return Capabilities(info.delete, info.cursor, {"delete": said, "cursor": said}, info)
        [machine_id] = await self.slots.take(1)
        try:
            return await self._walk(client, machine_id)
        except (CheckFailed, Trouble) as error:
            # Nothing is proven to be absent, so the ids run and say what is wrong.
            said = f"the probe failed: {error}"
            return Capabilities(delete=True, cursor=True, evidence={"delete": said, "cursor": said})
        finally:
            self.slots.drop([machine_id])

    async def _walk(self, client: Client, machine_id: str) -> Capabilities:
        # Not capped: the revision of a truncated List may be that of its last record.
        before = expect.ok(await client.list()).revision
        expect.ok(await client.create(machine_id))
        await settle(client, machine_id, MachineState.IDLE, self.options)
        after = expect.ok(await client.list()).revision
        reply = await client.delete(machine_id)
        delete = reply.code is not Code.UNIMPLEMENTED
        cursor = bool(after) and after != before
        if delete:
            await settle(client, machine_id, MachineState.SPECULATIVE, self.options)
        changed = "changed" if cursor else "is empty or did not change"
        return Capabilities(
            delete,
            cursor,
            {
                "delete": f"probe: Delete of an Idle machine answered {reply.code.name}",
                "cursor": f"probe: the revision {changed} over a Create",
            },
        )


class Slots:
    """Free machines, handed out once each. Those that fail on request are never taken for ordinary ones."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._held: set[str] = set()
        self._used: dict[str, float] = {}
        """When each machine that was ever taken was last somebody's."""
        self._reserved = 0
        self._freed = asyncio.Condition()

    async def free(self) -> list[pb.Machine]:
        """The Speculative machines nobody holds, from one List."""
        try:
            reply = await self._target.connection.stub().List(
                pb.ListFilter(states=[pb.MACHINE_STATE_SPECULATIVE]), timeout=_LIST_DEADLINE_S
            )
        except aio.AioRpcError as error:
            raise Trouble(f"List(SPECULATIVE) answered {error.code().name}: {error.details()}") from None
        return [
            machine
            for machine in reply.machines
            if machine.state == pb.MACHINE_STATE_SPECULATIVE and machine.id not in self._held
        ]

    async def ordinary(self) -> list[pb.Machine]:
        """Those of them that do not fail on request."""
        return [machine for machine in await self.free() if not _is_faulty(machine)]

    async def count(self) -> int:
        return len(await self.ordinary())

    async def take(self, count: int) -> list[str]:
        """Distinct machines; SkipFixture when there are too few."""
        ordinary = [machine.id for machine in await self.ordinary()]
        if len(ordinary) < count:
            raise SkipFixture(f"needs {count} Speculative machines and {len(ordinary)} are free")
        self._hold(ordinary[:count])
        return ordinary[:count]

    async def has_faulty(self) -> bool:
        """Whether some fail on request, which is how a provider without ProviderInfo shows its hooks."""
        return any(_is_faulty(machine) for machine in await self.free())

    async def take_faulty(self, fault: str) -> str:
        """A machine whose Create ends in this fault (``error`` or ``hang``)."""
        for machine in await self.free():
            if machine.labels.get(CREATE_FAULT) == fault:
                self._hold([machine.id])
                return machine.id
        raise SkipFixture(f"no Speculative machine has the label {CREATE_FAULT}={fault}")

    def drop(self, machine_ids: Sequence[str]) -> None:
        """They are nobody's again, whatever state they are in."""
        self._held.difference_update(machine_ids)
        self._used |= dict.fromkeys(machine_ids, time.monotonic())

    async def reserve(self, count: int, total: int) -> None:
        """Wait until this many may be taken beside what running checks will take."""
        async with self._freed:
            await self._freed.wait_for(lambda: self._reserved == 0 or self._reserved + count <= total)
            self._reserved += count

    async def release(self, count: int) -> None:
        async with self._freed:
            self._reserved -= count
            self._freed.notify_all()

    async def reclaim(self, client: Client, machine_ids: Sequence[str], limit: float | None = None) -> int:
        """Drain and delete what a check has used; how many are Speculative again."""
        returned = await asyncio.gather(*(self._return(client, one, limit) for one in machine_ids))
        return sum(returned)

    async def unreturned(self, client: Client) -> list[pb.Machine]:
        """Machines that were taken once and are not where they could be returned to."""
        returned = {MachineState.SPECULATIVE}
        if not self._target.capabilities.delete:
            returned.add(MachineState.IDLE)
        fleet = expect.ok(await client.list()).machines
        return [one for one in fleet if one.id in self._used and state_of(one) not in returned]

    async def put_away(self, client: Client, machine_ids: Sequence[str], deadline: float = math.inf) -> None:
        """Return machines for good, the Failed ones once they are repaired."""

        async def one(machine_id: str) -> None:
            latest = min(deadline, self._used[machine_id] + self._target.options.recovery)
            await _repaired(client, machine_id, latest - time.monotonic())
            is_over = time.monotonic() >= deadline
            await self._return(client, machine_id, RECLAIM_AFTER_FAILURE_S if is_over else None)

        await asyncio.gather(*map(one, machine_ids))

    def _hold(self, machine_ids: Sequence[str]) -> None:
        self._held.update(machine_ids)
        self._used |= dict.fromkeys(machine_ids, time.monotonic())

    async def _return(self, client: Client, machine_id: str, limit: float | None) -> bool:
        options = self._target.options
        with suppress(CheckFailed, Trouble):
            state = state_of(await at_rest(client, machine_id, options, limit))
            if state is MachineState.CONFIGURED:
                expect.ok(await client.drain(machine_id))
                await settle(client, machine_id, MachineState.IDLE, options, limit)
                state = MachineState.IDLE
            if state is MachineState.IDLE and self._target.capabilities.delete:
                expect.ok(await client.delete(machine_id))
                await settle(client, machine_id, MachineState.SPECULATIVE, options, limit)
                state = MachineState.SPECULATIVE
            return state is MachineState.SPECULATIVE
        return False


async def settle(
    client: Client, machine_id: str, state: MachineState, options: Options, limit: float | None = None
) -> pb.Machine:
    """The machine once it has reached the state; CheckFailed when it fails or takes too long."""
    limit = limit or options.settle[client.last_kind.get(machine_id, "create")]
    machine = pb.Machine()
    try:
        async with asyncio.timeout(limit):
            while True:
                machine = expect.ok(await client.get(machine_id))
                if state_of(machine) is state:
                    return machine
                if state_of(machine) is MachineState.FAILED:
                    break
                await asyncio.sleep(options.poll)
    except TimeoutError:
        raise CheckFailed(
            f"machine {machine_id} did not reach {state.name} within {limit:g} s; it is"
            f" {state_of(machine).name} (--settle-timeout says how long is allowed)"
        ) from None
    expect.in_state(machine, state)
    return machine


async def at_rest(
    client: Client, machine_id: str, options: Options, limit: float | None = None
) -> pb.Machine:
    """The machine once no transition is under way; CheckFailed when that takes too long."""
    limit = limit or options.settle[client.last_kind.get(machine_id, "create")]
    try:
        async with asyncio.timeout(limit):
            while True:
                machine = expect.ok(await client.get(machine_id))
                if state_of(machine) not in expect.TRANSITIONAL:
                    return machine
                await asyncio.sleep(options.poll)
    except TimeoutError:
        raise CheckFailed(f"machine {machine_id} did not come to rest within {limit:g} s") from None


async def _repaired(client: Client, machine_id: str, limit: float) -> None:
    """Wait for the provider to take the machine out of Failed; not longer than the limit."""
    with suppress(CheckFailed, Trouble, TimeoutError):
        async with asyncio.timeout(limit):
            while True:
                if state_of(expect.ok(await client.get(machine_id))) is not MachineState.FAILED:
                    return
                await asyncio.sleep(_REPAIR_POLL_S)


def _is_faulty(machine: pb.Machine) -> bool:
    return any(label.startswith(FAULT_LABELS) for label in machine.labels)


def _words(*flags: bool) -> list[str]:
    return [str(flag).lower() for flag in flags]
