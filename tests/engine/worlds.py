"""Still worlds: demand that never changes, over machines that take their time, fail and are repaired.

A world is a fleet description (see ``fleets``) with a single step, in which the clusters report what they
want from then on. Of a machine's ``dwell`` each number is used once: so many cycles its next transition
takes, with a minus before it fails; afterwards every transition takes one cycle and succeeds, so that a
world can come to rest.
"""

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from bigfleet_base.model import Machine, MachineState, Need
from tests.engine.fleets import Description, Step, generate, play
from tests.engine.judge import Judge, NewJudge
from tests.oracle.results import SECOND, CycleInput, CycleResult, Ingest, Key, Memory, Options

CYCLES: Final = 150
EVENTS: Final = ("appear", "vanish", "blocked", "no_session", "held_off")
HOLDS: Final = {"hold_on_demand_ns": 120 * SECOND, "hold_spot_ns": 60 * SECOND}
"""Shorter than the defaults, so that releases are over long before a world ends."""


def crowded(seed: int, *, failures: bool) -> Description:
    """Any fleet, bound machines and transitions under way included, with its first demand for ever."""
    rng, fleet = random.Random(seed), generate(seed)
    options = {
        name: value for name, value in fleet["options"].items() if name not in ("paused", "dry_run", "guard")
    }
    fates = [1, 1, 2, 3, 5, 8, 12, *([-2, -4] if failures else [])]
    machines = [{**m, "dwell": rng.choices(fates, k=6)} for m in fleet["machines"]]
    step = {**fleet["steps"][0], "advance": 10, "tick": True, "queue": 0, "free_places": None}
    return {
        **fleet,
        "options": {**options, **HOLDS},
        "machines": machines,
        "steps": [{**step, **{event: [] for event in EVENTS}}],
    }


def fresh(seed: int, *, failures: bool = False) -> Description:
    """A world that begins with free machines only, bought for nobody."""
    world = crowded(seed, failures=failures)
    free = [{**m, "for": None} for m in world["machines"] if m["state"] in ("IDLE", "SPECULATIVE")]
    return {**world, "machines": free}


def live(judge: Judge, world: Description, cycles: int = CYCLES) -> list[Step]:
    """Every cycle of the world's life."""
    lasting = [{**m, "dwell": [*m["dwell"], *[1] * cycles]} for m in world["machines"]]
    first = world["steps"][0]
    steps = [first, *[{**first, "rollups": []}] * (cycles - 1)]
    return list(play(judge, {**world, "machines": lasting, "steps": steps}))


class Restarting:
    """A judge that a fresh one replaces before one of its cycles.

    What the fresh one learns are the provider's records and the operators' demand. The assignment of bound
    machines is always echoed, the purpose of those in creation or drain only by a provider that stores it
    (ruling R15); on an Idle machine nobody stores one.
    """

    def __init__(self, new_judge: NewJudge, before_cycle: int, *, echoes: bool) -> None:
        self._new_judge = new_judge
        self._judge = new_judge()
        self._cycles_left = before_cycle
        self._echoes = echoes
        self._demand: dict[str, Sequence[Need]] = {}

    def insert(self, machine: Machine, now: int, *, preempted_for: Key | None = None) -> None:
        self._judge.insert(machine, now, preempted_for=preempted_for)

    def apply(self, machine: Machine, now: int, **more: Any) -> None:
        self._judge.apply(machine, now, **more)

    def remove(self, machine_id: str) -> None:
        self._judge.remove(machine_id)

    def machines(self) -> Any:
        return self._judge.machines()

    def memory(self, machine_id: str) -> Memory:
        return self._judge.memory(machine_id)

    def rollup(self, cluster: str, rows: Sequence[Need], now: int, *, guard: bool = False) -> Ingest:
        self._demand[cluster] = rows
        return self._judge.rollup(cluster, rows, now, guard=guard)

    def demand(self) -> Sequence[Need]:
        return self._judge.demand()

    def cycle(self, inputs: CycleInput, options: Options) -> CycleResult:
        if self._cycles_left == 0:
            self._restart(inputs.now)
        self._cycles_left -= 1
        return self._judge.cycle(inputs, options)

    def _restart(self, now: int) -> None:
        before, self._judge = self._judge, self._new_judge()
        for machine in before.machines().values():
            forgotten = machine.state is MachineState.IDLE or (
                machine.state is MachineState.CREATING and not self._echoes
            )
            if forgotten:
                machine = replace(machine, assigned_need_fingerprint="", assigned_group="", target_cluster="")
            stamp = before.memory(machine.id).preempted_for if self._echoes else None
            self._judge.insert(machine, now, preempted_for=stamp)
        for cluster, rows in self._demand.items():
            self._judge.rollup(cluster, rows, now)
