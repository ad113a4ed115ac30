"""Clusters whose Pods react, driven step by step (simulator.md §6, §11-B)."""

from collections import Counter
from collections.abc import Sequence

import pytest

from bigfleet.engine.actions import Action
from bigfleet.shard.core.settings import Settings
from bigfleet.sim.cluster import RACK_KEY, Cluster, Shape, Workload
from bigfleet.sim.operator import Habits, SimOperator
from bigfleet.sim.provider import KitProvider
from bigfleet.sim.step import SteppedShard
from bigfleet.sim.time import VirtualTime
from bigfleet_base.model import CapacityType, Machine, MachineState, ResourceVector
from bigfleet_providerkit.backend import Offering
from bigfleet_providerkit.fake import INSTANT, FakeProvider, Preseed
from tests.support.rules import rule

SECOND = 1_000_000_000
INTERVAL = 10 * SECOND
S = MachineState

SERVICE = Shape("service", ResourceVector({"cpu": 2000}), 1000, ("m",))
GANG = Shape("gang", ResourceVector({"gpu": 8000}), 5000, ("g",), same=RACK_KEY)


class ClosedLoop:
    """Clusters, one shard and the kit's fake without latency."""

    def __init__(self, clusters: Sequence[Cluster], offerings: Sequence[Offering], *preseed: Preseed) -> None:
        from dataclasses import replace

        self.time = VirtualTime(1_750_000_000 * SECOND)
        self.clusters = clusters
        fake = FakeProvider(replace(INSTANT, preseed=preseed), offerings, now=self.time.now)
        self.provider = KitProvider("default", fake, self.time)
        self.decided: list[list[Action]] = []
        self.shard = SteppedShard(
            self.time,
            Settings("shard-0", 1, b"seed", ("default",), stepped=True),
            [self.provider],
            decided=self.decided.append,
        )
        quiet = Habits(rollup_interval=10**18)
        self.operators = {c.name: SimOperator(self.shard, c.name, habits=quiet) for c in clusters}
        for operator in self.operators.values():
            operator.connect()
        self.cycle = 0

    def machines(self) -> dict[str, Machine]:
        inventory = self.shard.running.engine.inventory
        return {i: inventory.entry(i).machine for i in sorted(inventory)}

    def step(self) -> list[Action]:
        for cluster in self.clusters:
            self.operators[cluster.name].demand(*cluster.needs())
        decided = self.shard.step()
        machines = self.machines()
        for cluster in self.clusters:
            cluster.react(machines, self.cycle)
        self.cycle += 1
        self.time.run_for(INTERVAL)
        return decided

    def run(self, cycles: int) -> list[Action]:
        return [action for _ in range(cycles) for action in self.step()]


def _offering(
    kind: str, count: int, capacity: CapacityType = CapacityType.ON_DEMAND, **values: object
) -> Offering:
    resources = {"m": {"cpu": "20"}, "g": {"gpu": "8"}}[kind]
    return Offering(kind, "z1", capacity, count, 1.0, allocatable=resources, **values)  # type: ignore[arg-type]  # a stand-in with what is used


@rule("shard.L6", "engine.I10")
def test_demand_is_bought_once_and_then_nothing_moves() -> None:
    loop = ClosedLoop([Cluster(f"c{n}", [Workload(SERVICE, 45)]) for n in range(2)], [_offering("m", 20)])
    settling = loop.run(20)
    quiet = loop.run(40)

    assert Counter(action.kind.value for action in settling)["Provision"] == 10
    assert quiet == []
    assert all(cluster.pending == 0 and len(cluster.pods) == 45 for cluster in loop.clusters)
    assert len(loop.decided) == 60, "the callback receives what a step returns"


def test_evicted_pods_come_back_and_are_placed_again() -> None:
    loop = ClosedLoop([Cluster("c1", [Workload(SERVICE, 40)])], [_offering("m", 10)])
    loop.run(10)
    victim = next(i for i, m in loop.machines().items() if m.state is S.CONFIGURED)
    loop.provider.fake.fail_machine(victim)
    loop.run(30)

    [cluster] = loop.clusters
    assert cluster.evicted == 10
    assert cluster.pending == 0 and len(cluster.pods) == 40
    assert loop.run(20) == []


def test_scaling_down_gives_back_exactly_the_surplus() -> None:
    loop = ClosedLoop([Cluster("c1", [Workload(SERVICE, 80)])], [_offering("m", 10, CapacityType.SPOT)])
    loop.run(10)
    [cluster] = loop.clusters
    cluster.scale(0, 40, loop.cycle)
    shrinking = Counter(action.kind.value for action in loop.run(20))

    assert shrinking["Reclaim"] == 4
    assert shrinking["Delete"] == 4
    assert loop.run(20) == []


def test_a_gang_is_bound_in_one_rack_or_nowhere() -> None:
    racks = [_offering("g", 4, labels={RACK_KEY: f"r{n}"}) for n in range(2)]
    loop = ClosedLoop([Cluster("c1", [Workload(GANG, 4, objects=2), Workload(GANG, 8)])], racks)
    loop.run(60)
    [cluster] = loop.clusters
    machines = loop.machines()
    for number in range(2):
        racks_used = {
            machines[pod.machine].labels[RACK_KEY]
            for pod in cluster.pods
            if pod.workload == 0 and pod.object == number
        }
        assert len(racks_used) == 1
    assert all(not pod.machine for pod in cluster.pods if pod.workload == 1)
    assert loop.run(20) == []


@pytest.mark.parametrize("per_pod", [True, False])
def test_counting_only_pods_that_wait_makes_demand_flap(per_pod: bool) -> None:
    loop = ClosedLoop([Cluster("c1", [Workload(SERVICE, 40)], cr_per_pod=per_pod)], [_offering("m", 10)])
    loop.run(30)
    later = loop.run(30)

    assert bool(later) is not per_pod
