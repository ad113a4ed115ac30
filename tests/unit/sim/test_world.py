"""A shard over the kit's own core under virtual time, killed where it hurts."""

import random
from collections import Counter

import pytest

from bigfleet.engine.options import Options
from bigfleet.shard.core.settings import Settings
from bigfleet.sim.operator import Habits, SimOperator
from bigfleet.sim.provider import KitProvider
from bigfleet.sim.shard import SimShard
from bigfleet.sim.time import VirtualTime
from bigfleet_base.model import CapacityType, MachineState
from bigfleet_providerkit.backend import Offering
from bigfleet_providerkit.fake import FakeProvider, Knobs, Latency
from tests.shard.lab import need
from tests.support.rules import rule

SECOND = 1_000_000_000
MS = 1_000_000
S = MachineState
KNOBS = {
    "create": Latency("lognormal", 8 * SECOND, 20 * SECOND),
    "configure": Latency("uniform", 1 * SECOND, 4 * SECOND),
    "ready": Latency("uniform", 100 * MS, 2 * SECOND),
    "drain": Latency("uniform", 1 * SECOND, 6 * SECOND),
    "delete": Latency("constant", SECOND),
}


class World:
    def __init__(self, seed: int, *, echoes: bool = True) -> None:
        self.time = VirtualTime(1_750_000_000 * SECOND)
        offering = Offering(
            "small", "z1", CapacityType.ON_DEMAND, 60, 1.0, allocatable={"cpu": "1"}, resources={"cpu": "1"}
        )
        fake = FakeProvider(Knobs(seed=seed, latency=KNOBS), [offering], now=self.time.now)
        self.provider = KitProvider("default", fake, self.time, travel=20 * MS, echoes=echoes)
        options = Options()
        self.shard = SimShard(
            self.time, Settings("shard-0", 1, b"seed", ("default",), options=options), [self.provider]
        )
        self.operators = [
            SimOperator(self.shard, f"c{n}", habits=Habits(answer_delay=200 * MS, ack_delay=300 * MS))
            for n in range(3)
        ]
        for operator in self.operators:
            operator.connect()

    def run(self, seconds: float) -> None:
        self.time.run_for(round(seconds * SECOND))

    def bound(self) -> Counter[str]:
        inventory = self.shard.running.engine.inventory
        found = [inventory.entry(i).machine for i in inventory]
        return Counter(m.cluster for m in found if m.state is S.CONFIGURED)


def test_demand_is_met_and_follows_its_changes() -> None:
    world = World(1)
    for n, operator in enumerate(world.operators):
        operator.demand(need(f"c{n}", 10 + n))
    world.run(120)
    assert world.bound() == {"c0": 10, "c1": 11, "c2": 12}
    world.operators[0].demand(need("c0", 4))
    world.run(120)

    assert world.bound() == {"c0": 4, "c1": 11, "c2": 12}
    hosts = Counter(host.machine_id for host in world.provider.fake.substrate.hosts.values())
    assert set(hosts.values()) == {1}


@pytest.mark.parametrize("echoes", [True, False])
@rule("shard.P3", "ruling.R15", "engine.I12")
def test_killed_at_any_moment_the_shard_asks_for_nothing_twice(echoes: bool, full_size: bool) -> None:
    for seed in range(60 if full_size else 6):
        assert _mutations(seed, echoes, kills=0) == _mutations(seed, echoes, kills=1), f"seed {seed}"


def _mutations(seed: int, echoes: bool, kills: int) -> dict[str, int]:
    rng = random.Random(seed)
    moments = [rng.uniform(0.2, 25) for _ in range(kills)]
    world = World(seed, echoes=echoes)
    for n, operator in enumerate(world.operators):
        operator.demand(need(f"c{n}", 12))
    for moment in moments:
        world.run(moment)
        world.shard.kill()
        world.run(rng.uniform(0, 5))
        world.shard.restart()
    world.run(300)
    assert world.bound() == {"c0": 12, "c1": 12, "c2": 12}
    return {kind: len(operations) for kind, operations in world.provider.accepted.items() if kind != "Fence"}
