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
from bigfleet_base.model.requirement import INSTANCE_TYPE_KEY, ZONE_KEY
from bigfleet_base.wire.metadata import encode_assignment
from tests.component.shard.deployment import Deployment, deployment, until
from tests.component.shard.traces import check_audit, check_ledger, check_recording, recorded_inventory
from tests.support.eventually import eventually
from tests.support.rules import rule

S = MachineState
IN_FLIGHT = 10
MOST_SMALL = 20
SLOTS = 3 * MOST_SMALL + 10
METAL = 12
SETTLE_S = 60.0
CPU = ResourceVector(cpu=1000)
PRIORITIES = {"low": 100, "middle": 1000, "high": 1_000_000}
SHARD = (
    *("--cycle-interval", "1s", "--min-cycle-spacing", "200ms", "--reclaim-cap-fraction", "0"),
    *("--idle-hold-on-demand", "500ms"),
)
# Transitions that outlive the process that asked for them, and calls that arrive after its end.
FAR_AWAY = (
    *("--travel", "uniform(0s,100ms)", "--late", "0.03:uniform(3s,8s)"),
    *("--knob=latency.create=uniform(1s,4s)", "--knob=latency.configure=uniform(500ms,3s)"),
    "--knob=latency.drain=uniform(1s,4s)",
)


def offering(instance_type: str, count: int, capacity_type: str) -> dict[str, Any]:
    return {
        "instance_type": instance_type,
        "zone": "zone-a",
        "capacity_type": capacity_type,
        "count": count,
        "price_per_hour": 1.0 if capacity_type == "on-demand" else 0.0,
        "resources": {"cpu": "1"},
    }


def need(cluster: str, count: int, kind: str = "small", same: str = "", **values: Any) -> Need:
    """Demand for so many machines of a kind."""
    values = {"priority": PRIORITIES.get(cluster, 1000), **values}
    requirements = [Requirement(INSTANCE_TYPE_KEY, Operator.IN, (kind,))]
    if same:
        requirements.append(Requirement(same, Operator.SAME, ()))
    profile = Profile(tuple(requirements), **values)
    return Need(cluster, profile, ResourceVector(cpu=1000 * count), CPU, f"{same}/0" if same else "")


@pytest.mark.timeout(3_000)  # a start costs a second of processor time, and there are many
@rule("shard.P3", "shard.R6", "shard.R8", "shard.F1", "shard.F6", "ruling.R15")
async def test_a_shard_killed_at_any_moment_loses_and_doubles_nothing(
    tmp_path: Path, full_size: bool
) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    kills = 100 if full_size else 10
    async with deployment(tmp_path / "world", *SHARD) as world:
        await world.start_provider(
            [offering("small", SLOTS, "on-demand"), offering("metal", METAL, "bare-metal")],
            [{"offering": "metal", "idle": METAL}],
            *FAR_AWAY,
            f"--knob=seed={seed}",
        )
        load = Load(world, random.Random(seed))
        done = in_the_thick = 0
        # Every kill is checked, but most are to be in the thick of it.
        while done < kills or in_the_thick < 0.6 * kills:
            in_flight = await load.run_and_kill()
            done, in_the_thick = done + 1, in_the_thick + (in_flight >= IN_FLIGHT)
            await check_hosts(world)
            check_ledger(world)
            check_audit(world)
            assert done < 2 * kills, f"only {in_the_thick} kills with {IN_FLIGHT} operations in flight"
        print(f"{in_the_thick} of {done} kills with {IN_FLIGHT} operations or more in flight")
        await load.settle()
        await check_hosts(world)
        await check_inventory(world)
        assert await world.stop_shard() == 0
        check_ledger(world)
        check_audit(world, ended_cleanly=world.epoch_on_disk())
        check_recording(world)
        assert recorded_inventory(world) == await world.machines()
        await check_late_call(world)


@pytest.mark.parametrize("echoes", [True, False])
@pytest.mark.timeout(900)
@rule("ruling.R15", "shard.L7")
async def test_a_kill_with_creates_and_preemption_drains_in_flight_repeats_none(
    tmp_path: Path, full_size: bool, echoes: bool
) -> None:
    creates, drains = (200, 50) if full_size else (20, 10)
    undisturbed, killed = await asyncio.gather(
        *(
            mutations(tmp_path / f"world-{kill}", creates, drains, echoes=echoes, kill=kill)
            for kill in (False, True)
        )
    )
    assert killed == undisturbed
    assert killed == {"Create": creates, "Drain": drains, "Configure": creates + drains}


async def mutations(folder: Path, creates: int, drains: int, *, echoes: bool, kill: bool) -> Counter[str]:
    """What the provider accepts until everybody has what they want, by kind."""
    given, wanted = need("low", drains, "metal"), need("high", drains, "metal")
    profile = given.profile
    notes = encode_assignment(profile.priority, 0.0, 0.0, profile.fingerprint, "")
    async with deployment(folder, *SHARD, "--execute-concurrency", "256") as world:
        await world.start_provider(
            [offering("small", creates + 20, "on-demand"), offering("metal", drains, "bare-metal")],
            [{"offering": "metal", "bound": [{"cluster": "low", "metadata": notes}] * drains}],
            *("--knob=stage.create=true", "--knob=stage.drain=true", *([] if echoes else ["--no-echo"])),
        )
        world.cluster("low").needs = [given]
        await world.start_shard()
        await eventually(lambda: world.cluster("low").operator.tally.resyncs == 1, seconds=SETTLE_S)
        for name, need_of in (("high", wanted), ("bulk", need("bulk", creates))):
            world.cluster(name).needs = [need_of]
            world.cluster(name).connect(world.shard.address)
        busy = {
            ("", "small", S.CREATING): creates,
            ("", "small", S.SPECULATIVE): 20,
            ("low", "metal", S.DRAINING): drains,
        }
        if kill:
            # Once while it is about it, and once more with everything under way.
            some = random.randrange(creates + drains)
            await eventually(lambda: world.accepted().total() > some, seconds=SETTLE_S)
            await world.kill_shard()
            await world.start_shard()
            await until(SETTLE_S, lambda: world.has(busy))
            await world.kill_shard()
            await world.start_shard()
            # Long enough to ask for everything again, if that was what it made of what it found.
            await world.cycles(5)
            assert world.accepted() == {"Create": creates, "Drain": drains}
        await until(SETTLE_S, lambda: world.has(busy))
        await world.release()
        await until(
            SETTLE_S,
            lambda: world.has(
                {
                    ("bulk", "small", S.CONFIGURED): creates,
                    ("", "small", S.SPECULATIVE): 20,
                    ("high", "metal", S.CONFIGURED): drains,
                }
            ),
        )
        await world.cycles(3)
        check_ledger(world)
        check_audit(world)
        return world.accepted()


@rule("shard.F4", "shard.F6")
async def test_of_two_processes_with_one_identity_the_older_stops(tmp_path: Path) -> None:
    async with deployment(tmp_path / "world", *SHARD) as world:
        await world.start_provider([offering("metal", 6, "bare-metal")], [{"offering": "metal", "idle": 6}])
        cluster = world.cluster("high")
        cluster.needs = [need("high", 1, "metal")]
        await world.start_shard()
        older = world.shard
        served = {("high", "metal", S.CONFIGURED): 1, ("", "metal", S.IDLE): 5}
        await until(SETTLE_S, lambda: world.has(served))
        assert (await world.page("/readyz", older))[0] == 200

        world.spawn_shard("--epoch-floor", "10", folder="newer")
        await world.shard_listens()
        await until(SETTLE_S, lambda: world.is_ready())
        cluster.needs = [need("high", 4, "metal")]
        await asyncio.to_thread(older.until, FENCED)
        await world.cycles(3, older)

        why = "fenced: another process has this shard's identity\n"
        assert await world.page("/readyz", older) == (503, why)
        assert await world.has(served), "the machine of the refused call is as it was"
        after = [entry for entry in world.ledger() if not entry.is_fence][1:]
        assert [(entry.epoch, entry.code) for entry in after] == [(1, "FAILED_PRECONDITION")] * len(after)
        # Calls that were sent together are refused together; none follows.
        assert len({entry.sequence for entry in after}) == len(after) <= 3
        state = await world.state(older)
        assert state["fenced"] and state["paused"] and "Failed" not in state["machines"]


FENCED = (
    "provider fenced this shard's mutation — zombie-shard incident; do not retry, investigate duplicate shard"
    " identity"
)


@rule("shard.P3", "shard.Q5", "shard.L7", "shard.T3")
async def test_after_a_kill_machines_are_protected_as_before_and_nothing_is_reclaimed_unasked(
    tmp_path: Path,
) -> None:
    quick = ("--cycle-interval", "300ms", "--min-cycle-spacing", "100ms")
    async with deployment(tmp_path / "world", *SHARD, *quick) as world:
        await world.start_provider([offering("metal", 6, "bare-metal")], [{"offering": "metal", "idle": 6}])
        gang = need("owner", 3, "metal", same=ZONE_KEY, priority=70_000, interruption_bucket=9)
        world.cluster("owner").needs = [gang, need("owner", 2, "metal", reclamation_bucket=5)]
        await world.start_shard()
        served = {("owner", "metal", S.CONFIGURED): 5, ("", "metal", S.IDLE): 1}
        await until(SETTLE_S, lambda: world.has(served))
        await until(SETTLE_S, lambda: has_states(world, Counter(Configured=5, Idle=1)))
        await world.kill_shard()
        before = recorded_inventory(world)
        assert Counter(machine.assigned_priority for machine in before.values()) == {70_000: 3, 1000: 2, 0: 1}
        world.spawn_shard()
        await world.shard_listens()
        await world.cycles(10)
        assert await world.has(served), "nobody has asked for anything, and nobody has given anything back"
        await world.kill_shard()
        assert recorded_inventory(world) == before

        world.cluster("owner").needs = []
        await world.start_shard()
        await until(SETTLE_S, lambda: world.has({("", "metal", S.IDLE): 6}))
        check_ledger(world)


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
        """For a moment, and then until so many operations are under way."""
        world = self._world
        await world.shard_listens()
        world.connect()
        begun = time.monotonic()
        least, most = self._rng.uniform(0, 1.5), 5
        while (ran := time.monotonic() - begun) < most:
            if ran >= least and await world.in_flight() >= enough:
                break
            self._change(self._rng.choice(list(PRIORITIES)))
            await asyncio.sleep(self._rng.uniform(0.05, 0.15))

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
            ("", "small", S.SPECULATIVE): SLOTS - 26,
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


async def check_inventory(world: Deployment) -> None:
    """The shard knows the machines as the provider does, and so do operators that come back."""
    machines = await world.machines()
    states = Counter(m.state.title for m in machines.values())
    await until(SETTLE_S, lambda: has_states(world, states))
    await world.disconnect()
    tallies = {name: cluster.operator.tally for name, cluster in world.clusters.items()}
    resyncs = {name: tally.resyncs for name, tally in tallies.items()}
    for tally in tallies.values():
        tally.nodes.clear()
    world.connect()
    await eventually(lambda: all(tallies[name].resyncs > n for name, n in resyncs.items()), seconds=SETTLE_S)
    for name, tally in tallies.items():
        assert tally.nodes == {m.id: m.state.title for m in machines.values() if m.cluster == name}


async def has_states(world: Deployment, states: Counter[str]) -> bool:
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
