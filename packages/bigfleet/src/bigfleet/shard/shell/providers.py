"""The providers of a shard: the core's calls made, their answers and their news told as events."""

import asyncio
from collections import Counter
from collections.abc import Coroutine, Mapping
from dataclasses import replace
from typing import Any, Final

from bigfleet.shard.core.effects import (
    Assignment,
    ConfigureMachine,
    CreateMachine,
    DeleteMachine,
    DrainMachine,
    GetMachine,
    ListProvider,
    RaiseFloor,
)
from bigfleet.shard.core.events import (
    BreakerChanged,
    BreakerState,
    CallEnded,
    Failure,
    FloorRaised,
    GetEnded,
    Listed,
    ListEnded,
    ListFailed,
    Observed,
)
from bigfleet.shard.provider import CallFailedError
from bigfleet.shard.provider.client import Ack, ProviderClient
from bigfleet.shard.provider.listing import ListSlice
from bigfleet.shard.provider.texts import foreign
from bigfleet.shard.shell.driver import Driver, Mutation, ProviderCall
from bigfleet_base.wire import ObservedMachine
from bigfleet_base.wire.metadata import encode_assignment, encode_drain, encode_target

LOCAL_BLOB: Final = b"#cloud-config\n# made by --local-bootstrap, joins no cluster\n"
"""What machines are configured with when nobody is asked for a blob (B6)."""
BREAKER_LOOK_S: Final = 0.5
"""How often a provider that is held back is looked at, to tell when it may be tried again."""
MOST_UNDESCRIBED: Final = 3
"""Lists that a provider answers without describing itself before it is asked no more: what stands in front of
it may have no answer, or a late one, for a service that it does not serve."""


class Providers:
    """One task for each call under way; the core bounds their number."""

    def __init__(self, clients: Mapping[str, ProviderClient], driver: Driver) -> None:
        self._clients = clients
        self._driver = driver
        self._blobs: dict[str, bytes] = {}
        """By request; the core has each used or dropped."""
        self._described: set[str] = set()
        self._undescribed: Counter[str] = Counter()
        self._breakers: dict[str, BreakerState] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._mutations: set[asyncio.Task[None]] = set()
        self._crash: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def keep_blob(self, request_id: str, blob: bytes) -> bool:
        """Keep what an operator has sent until the core says what becomes of it; False if there is one."""
        if request_id in self._blobs:
            return False
        self._blobs[request_id] = blob
        return True

    def drop_blob(self, request_id: str) -> None:
        self._blobs.pop(request_id, None)

    def call(self, effect: ProviderCall) -> None:
        """Begin a call; it is answered by an event."""
        client = self._clients[effect.provider]
        match effect:
            case CreateMachine() | ConfigureMachine() | DrainMachine() | DeleteMachine():
                # Taken now: what is dropped under its id before the task runs is not this one.
                self._begin(self._mutate(client, effect, self._take_blob(effect)), mutation=True)
            case GetMachine():
                self._begin(self._get(client, effect.machine_id))
            case RaiseFloor():
                self._begin(self._raise_floor(client))
            case ListProvider():
                self._begin(self._list(client))

    def show_metrics(self) -> None:
        for client in self._clients.values():
            client.show_metrics()

    async def crashed(self) -> None:
        """Never returns; raises if a call has ended in a defect instead of an answer."""
        await asyncio.shield(self._crash)

    async def finish(self, seconds: float) -> None:
        """Wait for the mutations that were sent, but no longer than this (P2); what is answered later is not
        heard."""
        if not self._mutations:
            return
        _, late = await asyncio.wait(self._mutations, timeout=seconds)
        for task in late:
            task.cancel()
        await asyncio.gather(*late, return_exceptions=True)

    async def close(self) -> None:
        """End what is still under way."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for client in self._clients.values():
            await client.close()
        self._crash.cancel()

    def _begin(self, call: Coroutine[Any, Any, None], *, mutation: bool = False) -> None:
        task = asyncio.get_running_loop().create_task(call)
        self._tasks.add(task)
        if mutation:
            self._mutations.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: "asyncio.Task[None]") -> None:
        self._tasks.discard(task)
        self._mutations.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None and not self._crash.done():
            # The core waits for an answer that will never come.
            self._crash.set_exception(error)

    def _take_blob(self, effect: Mutation) -> bytes:
        if not isinstance(effect, ConfigureMachine):
            return b""
        return self._blobs.pop(effect.request_id) if effect.request_id else LOCAL_BLOB

    async def _mutate(self, client: ProviderClient, effect: Mutation, blob: bytes) -> None:
        try:
            ack = await self._send(client, effect, blob)
            answer = CallEnded(effect.op, observed=_observed(ack.observed))
        except CallFailedError as error:
            answer = CallEnded(effect.op, failure=_failure(error))
        self._look_at_breaker(client)
        await self._driver.handled(answer)

    def _send(self, client: ProviderClient, effect: Mutation, blob: bytes) -> Coroutine[Any, Any, Ack]:
        match effect:
            case CreateMachine(_, _, machine_id, assignment, target, budget):
                metadata = _five_keys(assignment) | encode_target(target)
                return client.create(machine_id, metadata, budget=budget)
            case ConfigureMachine(_, _, machine_id, cluster, _, assignment, budget):
                return client.configure(machine_id, cluster, blob, _five_keys(assignment), budget=budget)
            case DrainMachine(_, _, machine_id, grace, instruction_id, preemptor, budget):
                metadata = encode_drain(instruction_id, preemptor)
                return client.drain(machine_id, grace, metadata, budget=budget)
            case DeleteMachine(_, _, machine_id, capacity_type, budget):
                return client.delete(machine_id, capacity_type, budget=budget)

    async def _get(self, client: ProviderClient, machine_id: str) -> None:
        started = self._driver.clock.now()
        try:
            seen = await client.get(machine_id)
            answer = GetEnded(client.name, machine_id, started, observed=_observed(seen))
        except CallFailedError as error:
            answer = GetEnded(client.name, machine_id, started, failure=_failure(error))
        self._look_at_breaker(client)
        await self._driver.handled(answer)

    async def _raise_floor(self, client: ProviderClient) -> None:
        failure = None
        try:
            await client.raise_floor()
        except CallFailedError as error:
            failure = _failure(error)
        self._look_at_breaker(client)
        await self._driver.handled(FloorRaised(client.name, failure))

    async def _list(self, client: ProviderClient) -> None:
        started = self._driver.clock.now()

        async def merge(news: ListSlice) -> None:
            nonlocal started
            started = news.started
            await self._driver.handled(
                Listed(
                    client.name,
                    news.started,
                    tuple(map(_observed, news.changed)),
                    news.gone,
                    tuple(bad.machine_id for bad in news.rejected if bad.machine_id),
                )
            )

        try:
            if self._is_to_describe(client):
                await self._describe(client)
            end = await client.list(merge)
        except CallFailedError as error:
            self._look_at_breaker(client)
            await self._driver.handled(ListFailed(client.name, str(error)))
            return
        self._look_at_breaker(client)
        if self._is_to_describe(client):
            self._undescribed[client.name] += 1
        await self._driver.handled(ListEnded(client.name, started, end.complete))

    def _is_to_describe(self, client: ProviderClient) -> bool:
        return client.name not in self._described and self._undescribed[client.name] < MOST_UNDESCRIBED

    async def _describe(self, client: ProviderClient) -> None:
        """How a List is asked for depends on what the provider can do, but it can be without an answer."""
        try:
            await client.describe()
        except CallFailedError:
            return
        self._described.add(client.name)

    def _look_at_breaker(self, client: ProviderClient) -> None:
        """Tell which mutations are held back; a pause ends by itself, so look again."""
        before, now = self._breakers.get(client.name, BreakerState.CLOSED), _breaker_state(client)
        if now is not before:
            self._breakers[client.name] = now
            self._driver.submit(BreakerChanged(client.name, now))
            if before is BreakerState.CLOSED:
                self._begin(self._watch_breaker(client))

    async def _watch_breaker(self, client: ProviderClient) -> None:
        while self._breakers[client.name] is not BreakerState.CLOSED:
            await asyncio.sleep(BREAKER_LOOK_S)
            self._look_at_breaker(client)


def _breaker_state(client: ProviderClient) -> BreakerState:
    if client.is_held_back():
        return BreakerState.OPEN
    return BreakerState.TRIAL if client.is_on_trial() else BreakerState.CLOSED


def _observed(seen: ObservedMachine) -> Observed:
    machine = seen.machine
    if machine.last_error:
        machine = replace(machine, last_error=foreign(machine.last_error))
    return Observed(machine, seen.notes.instruction_id or "", seen.notes.preemptor)


def _failure(error: CallFailedError) -> Failure:
    return Failure(error.kind.value, error.code, error.details, error.sequence, error.attempt)


def _five_keys(assignment: Assignment) -> dict[str, str]:
    return encode_assignment(
        assignment.priority,
        assignment.interruption_penalty,
        assignment.reclamation_penalty,
        assignment.need_fingerprint,
        assignment.group,
    )
