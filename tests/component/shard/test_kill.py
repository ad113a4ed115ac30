"""kill -9 of a shard under load, at random points, checked against what its provider has written down."""

import asyncio
import random
import time
from collections import Counter
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc import aio

from bigfleet_base.api.v1alpha1 import provider_pb2 as pb
from bigfleet_base.model import MachineState, Need, Operator, Profile, Requirement, ResourceVector
from bigfleet_base.model.requirement import INSTANCE_TYPE_KEY
from tests.component.shard.deployment import Deployment, deployment, until
from tests.support.eventually import eventually
from tests.support.rules import rule

S = MachineState
IN_FLIGHT = 10
MOST_SMALL = 20
METAL = 12
SETTLE_S = 120.0
CPU = ResourceVector(cpu=1000)
PRIORITIES = {"low": 100, "middle": 1000, "high": 1_000_000}
SHARD = (
    *("--cycle-interval", "1s", "--min-cycle-spacing", "200ms", "--reclaim-cap-fraction", "0"),
    *("--idle-hold-on-demand", "1s"),
)
LATENCIES = {"create": "uniform(1s,4s)", "configure": "uniform(500ms,3s)", "drain": "uniform(1s,4s)"}
KINDS = {
    "Provision": "Create",
    "Bootstrap": "Configure",
    "Reclaim": "Drain",
    "Preempt": "Drain",
    "Delete": "Delete",
}


def offering(instance_type: str, count: int, capacity_type: str) -> dict[str, Any]:
    return {
        "instance_type": instance_type,
        "zone": "zone-a",
        "capacity_type": capacity_type,
        "count": count,
        "price_per_hour": 1.0 if capacity_type == "on-demand" else 0.0,
        "resources": {"cpu": "1"},
    }


def need(cluster: str, count: int, kind: str = "small", **values: Any) -> Need:
    """Demand for so many machines of a kind."""
    values = {"priority": PRIORITIES.get(cluster, 1000), **values}
    profile = Profile((Requirement(INSTANCE_TYPE_KEY, Operator.IN, (kind,)),), **values)
    return Need(cluster, profile, ResourceVector(cpu=1000 * count), CPU)


@pytest.mark.timeout(3_000)  # a start costs a second of processor time, and there are many
@rule("shard.P3", "shard.R6", "shard.F1", "shard.F6", "shard.X3", "ruling.R15")
async def test_a_shard_killed_at_any_moment_loses_and_doubles_nothing(
    tmp_path: Path, full_size: bool
) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    kills = 100 if full_size else 10
    async with deployment(tmp_path / "world", *SHARD) as world:
        knobs = [f"--knob=latency.{step}={latency}" for step, latency in LATENCIES.items()]
        await world.start_provider(
            [offering("small", 3 * MOST_SMALL + 10, "on-demand"), offering("metal", METAL, "bare-metal")],
            [{"offering": "metal", "idle": METAL}],
            *(
                "--travel",
                "uniform(0s,100ms)",
                "--late",
                "0.03:uniform(3s,8s)",
                f"--knob=seed={seed}",
                *knobs,
            ),
        )
        load = Load(world, random.Random(seed))
        in_the_thick = 0
        for _ in range(kills):
            in_the_thick += await load.run_and_kill() >= IN_FLIGHT
            await check_hosts(world)
            check_ledger(world)
            check_audit(world)
        print(f"{in_the_thick} of {kills} kills with {IN_FLIGHT} operations or more in flight")
        assert in_the_thick >= 0.6 * kills
        await load.settle()
        await check_hosts(world)
        await check_inventory(world)
        await check_late_call(world)
        assert await world.stop_shard() == 0
        check_ledger(world)
        check_audit(world, ended_cleanly=world.epoch_on_disk())


class Load:
    """Clusters that never want the same for long."""

    def __init__(self, world: Deployment, rng: random.Random) -> None:
        self._world = world
        self._rng = rng
        for name in PRIORITIES:
            world.cluster(name)
            self._change(name)

    async def run_and_kill(self) -> int:
        """Run a shard for a random time and kill it; returns how many operations that interrupted."""
        world, rng = self._world, self._rng
        epoch = world.epoch_on_disk()
        world.spawn_shard()
        if rng.random() < 0.15:
            # Somewhere in its start: before it has an epoch, before its fence, before its first List.
            await asyncio.sleep(rng.uniform(0.2, 3))
        else:
            await self._run(rng.randrange(IN_FLIGHT, 3 * IN_FLIGHT))
        await world.kill_shard()
        for started in world.shard.lines("shard started"):
            assert started["shard_epoch"] == epoch + 1
        assert world.epoch_on_disk() in (epoch, epoch + 1)
        return await world.in_flight()

    async def _run(self, enough: int) -> None:
        """Until so many operations are under way, and a moment longer."""
        world = self._world
        await world.shard_listens()
        world.connect()
        begun = time.monotonic()
        while time.monotonic() - begun < 5 and await world.in_flight() < enough:
            self._change(self._rng.choice(list(PRIORITIES)))
            await asyncio.sleep(0.1)
        await asyncio.sleep(self._rng.uniform(0, 0.5))

    async def settle(self) -> None:
        """With demand at rest everything comes to rest, and everybody has what was asked for."""
        world = self._world
        wanted = {("low", "small"): 9, ("middle", "small"): 14, ("high", "small"): 3, ("high", "metal"): 5}
        for name in PRIORITIES:
            world.cluster(name).needs = [
                need(name, count, kind) for (cluster, kind), count in wanted.items() if cluster == name
            ]
        await world.start_shard()
        expected = {
            **{(cluster, kind, S.CONFIGURED): count for (cluster, kind), count in wanted.items()},
            ("", "small", S.SPECULATIVE): 3 * MOST_SMALL + 10 - 26,
            ("", "metal", S.IDLE): METAL - 5,
        }
        await until(SETTLE_S, lambda: world.has(expected))

    def _change(self, name: str) -> None:
        rng = self._rng
        rows = [need(name, rng.randrange(1, MOST_SMALL + 1))] if rng.random() < 0.9 else []
        if rng.random() < 0.5:
            rows.append(need(name, rng.randrange(1, METAL), "metal"))
        self._world.cluster(name).needs = rows


async def check_hosts(world: Deployment) -> None:
    """No machine has two hosts, and no cluster has been given more than it ever asked for."""
    assert set((await world.hosts()).values()) <= {1}
    machines = [m for m in (await world.machines()).values() if m.instance_type == "small"]
    bound = Counter(m.cluster for m in machines if m.state in (S.CONFIGURING, S.CONFIGURED))
    assert all(count <= MOST_SMALL for count in bound.values()), bound
    assert sum(m.state is S.CREATING for m in machines) + bound.total() <= 3 * MOST_SMALL


def check_ledger(world: Deployment) -> None:
    """The provider was asked for nothing twice, and obeyed no process after its successor."""
    newest = 0
    operations: set[str] = set()
    last: dict[str, str] = {}
    for entry in world.ledger():
        if entry.is_fence:
            assert entry.code == "NOT_FOUND" and entry.epoch > newest, entry
            newest = entry.epoch
        elif entry.epoch < newest:
            assert entry.code == "FAILED_PRECONDITION", entry
        else:
            assert entry.code == "OK", entry
            assert entry.epoch == newest, "a process fences its predecessors before it acts"
            assert entry.operation not in operations, f"asked for twice: {entry}"
            operations.add(entry.operation)
            assert last.get(entry.machine, "") in BEFORE[entry.rpc], entry
            last[entry.machine] = entry.rpc


BEFORE = {
    "Create": ("", "Delete"),
    "Configure": ("", "Create", "Drain"),
    "Drain": ("Configure",),
    "Delete": ("Create", "Drain"),
}
"""What a machine's last operation can have been; none for one that existed from the start."""


def check_audit(world: Deployment, ended_cleanly: int | None = None) -> None:
    """Every accepted mutation is explained by one line, and its end by another if there was time for it."""
    lines = world.audit()
    emitted = {line["op_id"]: line for line in lines if line["type"] == "action.emitted"}
    results = {line["op_id"]: line for line in lines if line["type"] == "action.result"}
    assert len(emitted) == sum(line["type"] == "action.emitted" for line in lines)
    assert len(results) == sum(line["type"] == "action.result" for line in lines)
    assert results.keys() <= emitted.keys()
    done: Counter[tuple[int, str, str]] = Counter()
    unknown: Counter[tuple[int, str, str]] = Counter()
    for op_id, line in emitted.items():
        epoch = int(op_id.partition("-")[0])
        key = (epoch, line["machine_id"], KINDS[line["kind"]])
        if op_id not in results:
            assert epoch != ended_cleanly, f"ended without a result: {line}"
            unknown[key] += 1
        elif results[op_id]["outcome"] == "success":
            done[key] += 1
    accepted = Counter((e.epoch, e.machine, e.rpc) for e in world.ledger() if e.code == "OK")
    for key in accepted | done:
        assert done[key] <= accepted[key] <= done[key] + unknown[key], key


async def check_inventory(world: Deployment) -> None:
    """The shard knows the machines as the provider does, and so do operators that come back."""
    machines = await world.machines()
    states = Counter(m.state.title for m in machines.values())
    await until(SETTLE_S, lambda: _has_states(world, states))
    await world.disconnect()
    tallies = {name: cluster.operator.tally for name, cluster in world.clusters.items()}
    resyncs = {name: tally.resyncs for name, tally in tallies.items()}
    for tally in tallies.values():
        tally.nodes.clear()
    world.connect()
    await eventually(lambda: all(tallies[name].resyncs > n for name, n in resyncs.items()), seconds=SETTLE_S)
    for name, tally in tallies.items():
        assert tally.nodes == {m.id: m.state.title for m in machines.values() if m.cluster == name}


async def _has_states(world: Deployment, states: Counter[str]) -> bool:
    found: dict[str, int] = (await world.state())["machines"]
    return found == states


async def check_late_call(world: Deployment) -> None:
    """What an earlier process sends now is refused, for a machine that nobody has touched as well."""
    free = next(m.id for m in (await world.machines()).values() if m.state is S.SPECULATIVE)
    late = pb.CreateRequest(
        machine_id=free, shard_id="shard-0", shard_epoch=world.epoch_on_disk() - 1, sequence_number=1 << 40
    )
    with pytest.raises(aio.AioRpcError) as refused:
        await world.stub.Create(late, timeout=30)
    assert refused.value.code() is grpc.StatusCode.FAILED_PRECONDITION
