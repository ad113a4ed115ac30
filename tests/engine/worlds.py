"""Still worlds: demand that never changes, over machines that take their time, fail and are repaired.

A world is a fleet description (see ``fleets``) with a single step, in which the clusters report what they
want from then on. Of a machine's ``dwell`` each number is used once: so many cycles its next transition
takes, with a minus before it fails; afterwards every transition takes one cycle and succeeds, so that a
world can come to rest.
"""

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from bigfleet_base.model import Machine, MachineState, Need
from bigfleet_base.model.requirement import INSTANCE_TYPE_KEY
from tests.engine.fleets import CLUSTERS, RACK_KEY, RACKS, Description, Step, generate, play
from tests.engine.judge import Judge, NewJudge
from tests.oracle.results import SECOND, CycleInput, CycleResult, Ingest, Key, Memory, Options

CYCLES: Final = 150
EVENTS: Final = ("appear", "vanish", "blocked", "no_session", "held_off")
HOLDS: Final = {"hold_on_demand_ns": 120 * SECOND, "hold_spot_ns": 60 * SECOND}
"""Shorter than the defaults, so that releases are over long before a world ends."""
PATIENCE: Final = (1, 1, 2, 3, 5, 8, 12)
"""Cycles that a transition may take: enough for machines to overtake each other."""
TOP: Final = 3_000_000
"""Above every priority that is drawn."""


def crowded(seed: int, *, failures: bool) -> Description:
    """Any fleet, bound machines and transitions under way included, with its first demand for ever."""
    rng, fleet = random.Random(seed), generate(seed)
    options = {
        name: value for name, value in fleet["options"].items() if name not in ("paused", "dry_run", "guard")
    }
    fates = [*PATIENCE, *([-2, -4] if failures else [])]
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


def entitled(seed: int) -> Description:
    """A crowded world whose first Need is a gang above everybody else; every other time it is a large one,
    and all machines are bound to other clusters.

    What was bought for it and then bound elsewhere is bought for nobody: it would have the gang's own
    priority and be safe from it.
    """
    rng, world = random.Random(seed), crowded(seed, failures=seed % 4 < 2)
    first = world["needs"][0]
    gang = {
        **first,
        "requirements": [*(r for r in first["requirements"] if r[1] != "Same"), [RACK_KEY, "Same", []]],
        "priority": TOP,
        "interruption": first["interruption"] or 1,
        "reclamation": first["reclamation"] or 1,
        "group": "top",
    }
    machines, elsewhere = world["machines"], [c for c in CLUSTERS if c != gang["cluster"]]
    if seed % 2:
        gang["requirements"] = [[RACK_KEY, "Same", []]]
        gang["aggregate"], gang["min_unit"] = {"cpu": 1000 * rng.randint(5, 9)}, {"cpu": 1000}
        machines = [{**m, "state": "CONFIGURED", "cluster": rng.choice(elsewhere)} for m in machines]
    machines = [{**m, "for": None} if m["for"] == 0 and m["cluster"] in elsewhere else m for m in machines]
    rows = dict(world["steps"][0]["rollups"])
    rows[gang["cluster"]] = [0, *(i for i in rows.get(gang["cluster"], []) if i != 0)]
    rollups = [[cluster, indices] for cluster, indices in rows.items()]
    rng.shuffle(rollups)
    return {
        **world,
        "needs": [gang, *world["needs"][1:]],
        "machines": machines,
        "steps": [{**world["steps"][0], "rollups": rollups}],
    }


def apart(seed: int) -> Description:
    """A crowded world without failures and rails in which no machine suits two Needs.

    Where one does, a bound machine may be credited to another Need than it was bought for, and the two trade
    machines later (engine.md §20 item 20).
    """
    world = crowded(seed, failures=False)
    needs = [
        {
            **n,
            "requirements": [
                *(r for r in n["requirements"] if r[0] != INSTANCE_TYPE_KEY),
                [INSTANCE_TYPE_KEY, "In", [f"t{i}"]],
            ],
        }
        for i, n in enumerate(world["needs"])
    ]
    kinds = [
        number % len(needs) if m["for"] is None else m["for"] for number, m in enumerate(world["machines"])
    ]
    machines = [
        {**m, "type": f"t{kind}", "cluster": needs[kind]["cluster"]}
        for m, kind in zip(world["machines"], kinds, strict=True)
    ]
    return {**world, "options": HOLDS, "needs": needs, "machines": machines}


def covered(seed: int) -> Description:
    """Up to five Needs, each of a kind of machine of its own, of which it holds exactly enough; more of the
    kind can be bought, in its rack and in another."""
    rng = random.Random(seed)
    world: Description = {"options": {}, "needs": [], "machines": []}
    for i in range(rng.randint(1, 5)):
        cluster, size, count = rng.choice(CLUSTERS), rng.randint(1, 4), rng.randint(2, 5)
        gang = rng.random() < 0.5
        world["needs"].append(
            {
                "cluster": cluster,
                "requirements": [
                    [INSTANCE_TYPE_KEY, "In", [f"t{i}"]],
                    *([[RACK_KEY, "Same", []]] if gang else []),
                ],
                "spread": [],
                "priority": rng.choice([100, 1000]),
                "interruption": 1,
                "reclamation": 1,
                "group": "g" if gang else "",
                "aggregate": {"cpu": 1000 * size * count},
                "min_unit": {"cpu": 1000 * size},
            }
        )
        for state, rack in (("CONFIGURED", 1), ("SPECULATIVE", 1), ("SPECULATIVE", 0)):
            world["machines"] += [
                {
                    "id": f"{state.lower()}-{i}-{rack}-{n}",
                    "state": state,
                    "cluster": cluster,
                    "type": f"t{i}",
                    "zone": "z1",
                    "capacity": "BARE_METAL",
                    "size": {"cpu": 1000 * size},
                    "labels": {RACK_KEY: RACKS[rack]},
                    "price": rng.choice([0.0, 1.0, 2.0]),
                    "p": 0.0,
                    "for": i if state == "CONFIGURED" else None,
                    "folded": False,
                    "age": 0,
                    "last_value": 0.0,
                    "seen_start": False,
                    "preempted_for": None,
                    "grace": 10,
                    "dwell": rng.choices(PATIENCE, k=6),
                }
                for n in range(count)
            ]
    rollups = [[c, [i for i, n in enumerate(world["needs"]) if n["cluster"] == c]] for c in CLUSTERS]
    still = {"advance": 10, "tick": True, "queue": 0, "free_places": None, "rollups": rollups}
    return {**world, "steps": [{**still, **{event: [] for event in EVENTS}}]}


def lasting(
    world: Description, cycles: int = CYCLES, events: Mapping[int, Mapping[str, Any]] | None = None
) -> Description:
    """The whole life of a world, with what happens before some of its cycles."""
    first, happens = world["steps"][0], events or {}
    steps = [{**first, **({} if i == 0 else {"rollups": []}), **happens.get(i, {})} for i in range(cycles)]
    machines = [{**m, "dwell": [*m["dwell"], *[1] * cycles]} for m in world["machines"]]
    return {**world, "machines": machines, "steps": steps}


def live(judge: Judge, world: Description, cycles: int = CYCLES) -> Iterator[Step]:
    """Every cycle of the world's life."""
    return play(judge, lasting(world, cycles))


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
