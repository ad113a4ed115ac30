"""kill -9 of a provider under load, at random points, checked against the processes that really run."""

import asyncio
import random
import time
from collections.abc import Awaitable
from pathlib import Path
from typing import Any

import pytest
from grpc import StatusCode, aio

from bigfleet_base.api.v1alpha1 import provider_pb2 as pb
from bigfleet_base.api.v1alpha1 import provider_pb2_grpc as rpc
from bigfleet_base.model import MachineState
from tests.component.localproc.world import TRANSITIONAL, Localproc, localproc, machines
from tests.support.rules import rule

MACHINES = 32
IN_FLIGHT = 10
QUARANTINE_S = 0.5
SETTLE_S = 30.0
# Slow enough that acceptances pile up behind the backend's limits.
LIMITS = ("--max-concurrent", "4", "--rate", "15")
OPTIONS = ("--seed-count", f"{MACHINES}", "--quarantine", f"{QUARANTINE_S}s", *LIMITS)
HOOK = "sleep 0.05"


@pytest.mark.timeout(1_800)  # a start costs most of a second of processor time, and there are many
@rule("provider.P-120", "provider.P-121", "provider.P-122", "provider.P-104")
async def test_a_provider_killed_at_any_moment_loses_and_doubles_nothing(
    tmp_path: Path, full_size: bool
) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    kills = 200 if full_size else 20
    async with localproc(tmp_path, *OPTIONS, hook=HOOK) as deployment:
        load = Load(deployment, random.Random(seed))
        await load.start()
        counted = 0
        for _ in range(2 * kills):
            await load.run_and_kill()
            # Every kill is checked, but only those in the thick of it count.
            counted += deployment.in_transition() >= IN_FLIGHT
            load.check_hosts()
            await load.start()
            await load.settle_interrupted()
            if counted == kills:
                break
        assert counted == kills
        await load.settle_all()


class Load:
    """One shard that keeps every machine moving, and remembers what it was promised."""

    def __init__(self, deployment: Localproc, rng: random.Random) -> None:
        self._deployment = deployment
        self._rng = rng
        self._epoch = 0
        self._sequence = 0
        self._view: dict[str, pb.Machine] = {}
        self._calls: dict[str, asyncio.Task[None]] = {}
        self._answered: dict[str, float] = {}
        self._refused: list[aio.AioRpcError] = []
        self._bindings: dict[str, tuple[str, dict[str, str]]] = {}
        """What each Configure that was answered has bound, until a Drain is sent."""
        self._seen_configured: set[str] = set()
        self._stub: rpc.CapacityProviderAsyncStub

    async def start(self) -> None:
        """Start the provider anew, and find everything as it was left."""
        started = time.monotonic()
        self._stub = await self._deployment.start()
        self._epoch += 1
        await self._look()
        assert len(self._view) == MACHINES
        repaired_by_now = time.monotonic() - started > QUARANTINE_S
        for machine_id, binding in list(self._bindings.items()):
            machine = self._view[machine_id]
            state = MachineState(machine.state)
            if state is MachineState.IDLE and machine_id not in self._seen_configured and repaired_by_now:
                del self._bindings[machine_id]
                continue
            allowed = {MachineState.CONFIGURED}
            if machine_id not in self._seen_configured:
                allowed |= {MachineState.CONFIGURING, MachineState.FAILED}
            assert state in allowed, machine
            assert (machine.cluster, dict(machine.shard_metadata)) == binding, machine

    async def run_and_kill(self) -> None:
        """Keep machines moving for a random time, then kill the provider in the middle of it."""
        end = time.monotonic() + self._rng.uniform(0.05, 0.4)
        async with asyncio.timeout(SETTLE_S):
            while time.monotonic() < end or self._moving() < 2 * IN_FLIGHT:
                self._send()
                await asyncio.sleep(0.02)
                await self._look()
        self._send()
        for _ in range(self._rng.randrange(20)):
            await asyncio.sleep(0)
        await self._deployment.kill()
        await asyncio.gather(*self._calls.values())
        assert not self._refused, "every call was the next step of a machine at rest"

    def check_hosts(self) -> None:
        """No machine has two agents, whatever the provider was doing."""
        doubled = {machine_id: n for machine_id, n in self._deployment.agents().items() if n > 1}
        assert not doubled

    async def settle_interrupted(self) -> None:
        """Whatever was under way when the provider died comes to an end by itself."""
        waiting = {machine_id for machine_id in self._view if self._state(machine_id) in TRANSITIONAL}
        async with asyncio.timeout(SETTLE_S):
            while waiting:
                await self._look()
                waiting = {machine_id for machine_id in waiting if self._state(machine_id) in TRANSITIONAL}
                await asyncio.sleep(0.01)
        self.check_hosts()

    async def settle_all(self) -> None:
        """With the load gone every machine rests, with the host and the binding that it reports."""
        async with asyncio.timeout(SETTLE_S):
            resting = {MachineState.SPECULATIVE, MachineState.IDLE, MachineState.CONFIGURED}
            while not {self._state(machine_id) for machine_id in self._view} <= resting:
                await asyncio.sleep(0.05)
                await self._look()
        hosted = {i for i in self._view if self._state(i) is not MachineState.SPECULATIVE}
        assert self._deployment.agents() == dict.fromkeys(hosted, 1)
        for machine_id, machine in self._view.items():
            configured = self._state(machine_id) is MachineState.CONFIGURED
            assert self._deployment.tagged_cluster(machine_id) == (machine.cluster if configured else "")

    async def _look(self) -> None:
        begun = time.monotonic()
        for machine_id, machine in (await machines(self._stub)).items():
            # What an answer has said since is newer than this list.
            if self._answered.get(machine_id, 0.0) < begun:
                self._view[machine_id] = machine
        for machine_id in self._view:
            if self._state(machine_id) is MachineState.CONFIGURED and machine_id in self._bindings:
                self._seen_configured.add(machine_id)
            elif self._state(machine_id) is MachineState.FAILED:
                self._forget(machine_id)

    def _state(self, machine_id: str) -> MachineState:
        return MachineState(self._view[machine_id].state)

    def _moving(self) -> int:
        return sum(self._state(machine_id) in TRANSITIONAL for machine_id in self._view)

    def _send(self) -> None:
        """Start the next step of every machine that rests."""
        for machine_id in self._view:
            if machine_id in self._calls:
                continue
            match self._state(machine_id):
                case MachineState.SPECULATIVE:
                    self._call(machine_id, self._stub.Create(pb.CreateRequest(**self._token(machine_id))))
                case MachineState.IDLE if self._rng.random() < 0.3:
                    self._call(machine_id, self._stub.Delete(pb.DeleteRequest(**self._token(machine_id))))
                case MachineState.IDLE:
                    binding = (f"cluster-{self._rng.randrange(4)}", {"promise": f"{self._rng.random()}\0"})
                    request = pb.ConfigureRequest(
                        cluster_id=binding[0], shard_metadata=binding[1], **self._token(machine_id)
                    )
                    self._call(machine_id, self._stub.Configure(request), binding)
                case MachineState.CONFIGURED:
                    self._forget(machine_id)
                    self._call(machine_id, self._stub.Drain(pb.DrainRequest(**self._token(machine_id))))

    def _call(self, machine_id: str, call: Awaitable[Any], binding: Any = None) -> None:
        async def ended() -> None:
            try:
                self._view[machine_id] = (await call).machine
                self._answered[machine_id] = time.monotonic()
                if binding:
                    self._bindings[machine_id] = binding
            except aio.AioRpcError as error:
                if error.code() is not StatusCode.UNAVAILABLE:
                    self._refused.append(error)
            except asyncio.CancelledError:
                pass  # the channel was closed under it
            finally:
                del self._calls[machine_id]

        self._calls[machine_id] = asyncio.get_running_loop().create_task(ended())

    def _token(self, machine_id: str) -> dict[str, Any]:
        self._sequence += 1
        token = {"shard_id": "s1", "shard_epoch": self._epoch, "sequence_number": self._sequence}
        return {"machine_id": machine_id, **token}

    def _forget(self, machine_id: str) -> None:
        self._bindings.pop(machine_id, None)
        self._seen_configured.discard(machine_id)
