"""The fake as a simulation uses it: the same run twice, crashes between a write and its answer."""

import random
import subprocess
import sys
from dataclasses import replace

import pytest

from bigfleet_base.api.v1alpha1 import provider_pb2 as pb
from bigfleet_base.model import MachineState
from bigfleet_providerkit.effects import Answer, Code
from bigfleet_providerkit.fake import INSTANT, CrashPoint, Knobs, Unavailable
from bigfleet_providerkit.fake.knobs import read_knobs
from bigfleet_providerkit.store import MemoryStore
from tests.support.rules import rule
from tests.unit.providerkit.fake.world import SECOND, TRANSITIONAL, World, offering

FAULTY = [
    *("latency.create=lognormal(2s,9s)", "latency.drain=uniform(0s,3s)", "late_success=7s"),
    *(f"failure.{kind}.rate=0.05" for kind in ("create", "configure", "drain", "delete")),
    *(f"hang.{kind}.rate=0.03" for kind in ("create", "configure", "drain", "delete")),
    *("failure.drain.class=retryable", "rpc.latency=uniform(0s,1s)", "rpc.error_rate=0.1"),
    *("price.walk=0.1", "spot.hazard=3", "list.stale=2s"),
]


def wander(world: World, rng: random.Random, steps: int, crashes: float = 0.0) -> None:
    """A caller that does whatever comes to its mind, against a provider that may crash anywhere."""
    for _ in range(steps):
        if crashes and rng.random() < crashes:
            world.provider.crash_next(rng.choice(list(CrashPoint)))
        kind = rng.choice(("create", "create", "configure", "configure", "drain", "delete"))
        world.send(
            kind, rng.choice(world.ids()), metadata={"n": f"{rng.randrange(3)}"} if kind != "delete" else {}
        )
        world.wait(rng.choice((0.0, 0.01, 0.5, 5.0)))
        if not world.provider.serving:
            world.restart()


def test_the_same_seed_gives_the_same_run_byte_for_byte_and_another_seed_another() -> None:
    def run(seed: int) -> bytes:
        lines: list[str] = []
        knobs = replace(read_knobs(FAULTY), seed=seed)
        world = World(knobs, offering(20), trace=lines.append, reconcile_interval=30 * SECOND)
        wander(world, random.Random(5), 200, crashes=0.05)
        world.wait(1_000)
        return "\n".join(lines).encode()

    first = run(1)
    assert len(first) > 50_000
    assert first == run(1)
    assert first != run(2)


@rule("provider.P-123")
def test_what_was_decided_before_the_write_is_forgotten_by_a_crash() -> None:
    world = World()
    machine_id = world.ids()[0]
    world.provider.crash_next(CrashPoint.BEFORE_WRITE)
    assert world.call("create", machine_id).code is Code.UNAVAILABLE
    assert not world.provider.serving and not world.substrate.hosts
    world.restart()
    assert world.state(machine_id) is MachineState.SPECULATIVE
    assert world.settled("create", machine_id) is MachineState.IDLE


@rule("provider.P-40", "provider.P-122")
def test_what_was_written_is_done_although_nobody_was_told() -> None:
    world = World()
    machine_id = world.ids()[0]
    world.provider.crash_next(CrashPoint.AFTER_WRITE)
    assert world.call("create", machine_id).code is Code.UNAVAILABLE
    world.restart()
    assert world.state(machine_id) is MachineState.CREATING
    first = world.accept("create", machine_id)
    world.took(machine_id)
    assert world.state(machine_id) is MachineState.IDLE
    assert world.accept("create", machine_id) == first
    [host] = world.substrate.hosts_of(machine_id)
    assert host.ref == f"fake-{first}"


@rule("provider.P-122")
def test_a_bootstrap_that_ran_to_its_end_without_the_provider_is_taken_up() -> None:
    world = World(read_knobs(["latency.configure=10s"]))
    machine_id = world.idle()
    world.accept("configure", machine_id, metadata={"k": "v"})
    world.provider.crash()
    world.wait(11)
    world.restart()
    world.took(machine_id)
    assert world.state(machine_id) is MachineState.CONFIGURED
    assert dict(world.machine(machine_id).shard_metadata) == {"k": "v"}


@rule("provider.P-121")
def test_a_bootstrap_cut_short_is_failed_and_its_host_scrubbed() -> None:
    world = World(read_knobs(["latency.configure=10s"]))
    machine_id = world.idle()
    world.accept("configure", machine_id)
    world.provider.crash()
    world.restart()
    assert world.machine(machine_id).last_error.startswith("configure:interrupted:")
    world.wait(61)
    assert world.state(machine_id) is MachineState.IDLE
    [host] = world.substrate.hosts_of(machine_id)
    assert host.cluster == ""


@rule("provider.P-124")
def test_a_lost_store_is_recovered_from_the_substrate() -> None:
    world = World()
    bound, idle = world.configured(0), world.idle(1)
    world.provider.crash()
    world.provider.store = MemoryStore(b"another!")
    world.restart()
    assert world.state(bound) is MachineState.CONFIGURED
    assert (world.machine(bound).cluster, dict(world.machine(bound).shard_metadata)) == ("c1", {"k": "v"})
    assert world.state(idle) is MachineState.IDLE


def test_a_provider_that_is_down_answers_nobody() -> None:
    world = World()
    machine_id = world.ids()[0]
    number = world.send("create", machine_id)
    world.provider.crash()
    [answer] = world.wait(0)
    assert (answer.number, answer.code) == (number, Code.UNAVAILABLE)
    assert world.call("create", machine_id).code is Code.UNAVAILABLE
    with pytest.raises(Unavailable):
        world.provider.list_machines()
    with pytest.raises(Unavailable):
        world.provider.get(machine_id)


@rule("provider.P-47", "provider.P-52", "provider.P-100", "provider.P-121")
@pytest.mark.parametrize("seed", range(20))
def test_crashes_anywhere_double_no_host_lose_no_binding_and_leave_nothing_stuck(
    seed: int, full_size: bool
) -> None:
    quiet = [text for text in FAULTY if not text.startswith(("rpc.error", "list", "spot"))]
    world = World(replace(read_knobs(quiet), seed=seed), offering(10))
    rng = random.Random(seed)
    for _ in range(100 if full_size else 10):
        wander(world, rng, 20, crashes=0.2)
        promised = {i: world.machine(i) for i in world.ids() if world.state(i) is MachineState.CONFIGURED}
        world.provider.crash()
        world.restart()
        for machine_id, before in promised.items():
            assert world.machine(machine_id) == before
        for machine_id in world.ids():
            assert len(world.substrate.hosts_of(machine_id)) <= 1
    world.wait(3_600)
    for machine_id in world.ids():
        machine, hosts = world.machine(machine_id), world.substrate.hosts_of(machine_id)
        assert world.state(machine_id) not in (*TRANSITIONAL, MachineState.FAILED), machine
        assert [host.ref for host in hosts] == ([machine.host.ref] if machine.host.ref else [])
        assert {host.cluster for host in hosts} <= {machine.cluster}


def test_transitions_without_latency_take_no_time_at_all(full_size: bool) -> None:
    machines, cycles = (2_500, 10) if full_size else (250, 4)
    world = World(INSTANT, offering(machines))
    started = world.provider.now
    for _ in range(cycles):
        for kind in ("create", "configure", "drain", "delete"):
            for machine_id in world.ids():
                world.send(kind, machine_id)
            answers = world.wait(0)
            assert [answer.code for answer in answers] == [Code.OK] * machines
    assert world.provider.now == started
    assert set(world.listed().values()) == {MachineState.SPECULATIVE}


def test_answers_come_in_the_order_of_their_arrival() -> None:
    world = World(replace(INSTANT, rpc_latency=Knobs().latency["create"]))
    for machine_id in world.ids():
        world.send("create", machine_id)
    moments: list[tuple[int, Answer]] = []
    while (deadline := world.provider.next_deadline()) is not None and len(moments) < len(world.ids()):
        moments += [(deadline, answer) for answer in world.provider.advance(deadline)]
    assert [at for at, _ in moments] == sorted(at for at, _ in moments)
    acks = [pb.TransitionAck.FromString(answer.ack) for _, answer in moments]
    assert {ack.machine.id for ack in acks} == set(world.ids())


def test_the_virtual_door_loads_no_grpc() -> None:
    code = "import sys, bigfleet_providerkit.fake; sys.exit('grpc' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0
