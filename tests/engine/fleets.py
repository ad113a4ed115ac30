"""Random small fleets and their histories, as plain descriptions.

``generate(seed)`` gives a description: dicts, lists, strings and numbers only, so that it can be written as
JSON, shrunk and committed. It depends on the seed alone. ``play`` runs a judge through it: demand arrives,
actions start and end after as many cycles as the machine's ``dwell`` says, machines appear, fail and vanish.

A description holds

* ``options``: fields of ``Options`` that differ from the default;
* ``needs``: every row of demand that any roll-up names, by index;
* ``machines``: what is there at the start; ``for`` is the index of the Need a machine was bought for;
* ``steps``: one cycle each, with what happens before it and what the shard tells the engine.

Nothing refers to a position in ``machines`` or to what an implementation decides, so any machine, step or
roll-up row can be left out and the rest still means the same.
"""

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from bigfleet_base.model import (
    CapacityType,
    HostRef,
    Machine,
    MachineState,
    Need,
    Operator,
    Profile,
    Requirement,
    ResourceVector,
    TopologySpread,
    WhenUnsatisfiable,
)
from bigfleet_base.model.lifecycle import Rpc
from bigfleet_base.model.penalty import PINNED, bound_dollars
from bigfleet_base.model.quantity import MAX_WIRE_UNITS
from bigfleet_base.model.requirement import INSTANCE_TYPE_KEY, ZONE_KEY
from tests.engine import execution
from tests.engine.judge import Judge
from tests.oracle.normalise import folded_profile
from tests.oracle.results import SECOND, Action, CycleInput, CycleResult, Key, Options

Description = dict[str, Any]

START: Final = 1_000_000 * SECOND
RACK_KEY: Final = "topology.bigfleet/rack"
DISK_KEY: Final = "disk"

CLUSTERS: Final = ("c1", "c2", "c3")
TYPES: Final = ("a", "b", "c")
ZONES: Final = ("z1", "z2", "z3")
RACKS: Final = ("r1", "r2", "r3")
HUGE: Final = 1000 * MAX_WIRE_UNITS
"""The largest quantity a roll-up may name, in milli-units: one below 8Ei."""


def generate(seed: int) -> Description:
    """The fleet of this seed: 3 to 40 machines, 1 to 15 Needs, 1 to 6 cycles, now and then up to 40."""
    return _Generator(random.Random(seed)).fleet()


def generate_life(seed: int) -> Description:
    """A fleet of this seed over 30 to 60 cycles; its Needs come and go and want more or less of the same."""
    return _Generator(random.Random(seed)).life()


@dataclass(frozen=True)
class Step:
    """One cycle of a history with all that went into it."""

    inputs: CycleInput
    options: Options
    reported: frozenset[str]
    demand: tuple[Need, ...]
    result: CycleResult


def play(judge: Judge, fleet: Description) -> Iterator[Step]:
    """Run a judge through the description; every change of state goes through the lifecycle table."""
    player = Player(judge, fleet)
    for step in fleet["steps"]:
        yield player.step(step)


# building values from descriptions


def need_of(text: Description) -> Need:
    return Need(
        cluster_id=text["cluster"],
        profile=Profile(
            requirements=tuple(
                Requirement(key, Operator(op), tuple(values)) for key, op, values in text["requirements"]
            ),
            spread=tuple(
                TopologySpread(key, WhenUnsatisfiable(when), skew) for key, when, skew in text["spread"]
            ),
            priority=text["priority"],
            interruption_bucket=text["interruption"],
            reclamation_bucket=text["reclamation"],
        ),
        aggregate=ResourceVector(text["aggregate"]),
        min_unit=ResourceVector(text["min_unit"]),
        group=text["group"],
    )


def machine_of(text: Description, needs: Sequence[Need]) -> Machine:
    state = MachineState[text["state"]]
    bound = state in (MachineState.CONFIGURING, MachineState.CONFIGURED, MachineState.DRAINING)
    fields: dict[str, Any] = {}
    if text["for"] is not None:
        bought_for = needs[text["for"]]
        profile, group = _bought_as(bought_for, folded=text["folded"])
        fields = {"assigned_need_fingerprint": profile.fingerprint, "assigned_group": group}
        if bound:
            fields["assigned_priority"] = profile.priority
            fields["assigned_interruption_penalty"] = bound_dollars(profile.interruption_bucket)
            fields["assigned_reclamation_penalty"] = bound_dollars(profile.reclamation_bucket)
        else:
            fields["target_cluster"] = bought_for.cluster_id
    hostless = state in (MachineState.SPECULATIVE, MachineState.CREATING)
    return Machine(
        id=text["id"],
        state=state,
        host=HostRef() if hostless else HostRef("provider", text["id"]),
        cluster=text["cluster"] if bound else "",
        instance_type=text["type"],
        zone=text["zone"],
        capacity_type=CapacityType[text["capacity"]],
        resources=ResourceVector(text["size"]),
        labels=text["labels"],
        price_per_hour=text["price"],
        interruption_probability=text["p"],
        last_error="broken" if state is MachineState.FAILED else "",
        **fields,
    )


def _bought_as(need: Need, *, folded: bool) -> tuple[Profile, str]:
    """The Profile and group that a purchase for this Need is stamped with (engine.md §8)."""
    if folded and need.profile.same is not None:
        return folded_profile(need.profile), ""
    return need.profile, need.group


# playing


@dataclass
class _Flight:
    left: int
    fails: bool = False


@dataclass
class Player:
    """A judge on its way through a description."""

    judge: Judge
    fleet: Description
    now: int = START
    flights: dict[str, _Flight] = field(default_factory=dict)
    queued: dict[str, tuple[int, Action]] = field(default_factory=dict)
    dwells: dict[str, tuple[Sequence[int], int]] = field(default_factory=dict)
    reported: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.options = Options(**self.fleet["options"])
        self.needs = [need_of(text) for text in self.fleet["needs"]]
        for text in self.fleet["machines"]:
            self._appear(text)

    def step(self, step: Description) -> Step:
        self.now += step["advance"] * SECOND
        self._land()
        for text in step["appear"]:
            if text["id"] not in self.judge.machines():
                self._appear(text)
        for machine_id in step["vanish"]:
            self._vanish(machine_id)
        for cluster, indices in step["rollups"]:
            rows = [self.needs[i] for i in indices]
            self.judge.rollup(cluster, rows, self.now, guard=self.options.guard)
            self.reported.add(cluster)
        inputs = self._inputs(step)
        demand = tuple(self.judge.demand())
        result = self.judge.cycle(inputs, self.options)
        for action in result.rails.executed:
            self.queued[action.machine] = (step["queue"], action)
        self._start_due()
        return Step(inputs, self.options, frozenset(self.reported), demand, result)

    def _inputs(self, step: Description) -> CycleInput:
        return CycleInput(
            now=self.now,
            tick=step["tick"],
            blocked=frozenset(
                (self.needs[i].cluster_id, _bought_as(self.needs[i], folded=folded)[0].fingerprint)
                for i, folded in step["blocked"]
            ),
            no_session=frozenset(step["no_session"]),
            held_off=frozenset((machine_id, Rpc(rpc)) for machine_id, rpc in step["held_off"]),
            pending=frozenset(self.queued),
            free_places=step["free_places"],
        )

    def _appear(self, text: Description) -> None:
        """Bring a machine in by the way that gives it the sidecars described."""
        machine, known = machine_of(text, self.needs), self.now - text["age"] * SECOND
        self.dwells[machine.id] = (text["dwell"], 0)
        stamp = self._stamp(text["preempted_for"])
        if machine.state is MachineState.IDLE and text["last_value"]:
            drained = replace(
                machine,
                state=MachineState.DRAINING,
                cluster=text["cluster"],
                assigned_reclamation_penalty=text["last_value"],
            )
            self.judge.insert(drained, known)
            self.judge.apply(machine, known)
        elif machine.state is MachineState.CREATING and text["seen_start"]:
            self.judge.insert(
                replace(
                    machine,
                    state=MachineState.SPECULATIVE,
                    assigned_need_fingerprint="",
                    assigned_group="",
                    target_cluster="",
                ),
                known,
            )
            self.judge.apply(machine, known, started=True)
        elif machine.state is MachineState.DRAINING and text["seen_start"]:
            self.judge.insert(replace(machine, state=MachineState.CONFIGURED), known)
            deadline = known + text["grace"] * SECOND
            self.judge.apply(machine, known, started=True, preempted_for=stamp, drain_deadline=deadline)
        else:
            self.judge.insert(machine, known, preempted_for=stamp)
        if machine.state in execution.FINISHES or machine.state is MachineState.FAILED:
            self._fly(machine.id)

    def _stamp(self, target: Sequence[Any] | None) -> Key | None:
        if target is None:
            return None
        index, folded = target
        profile, group = _bought_as(self.needs[index], folded=folded)
        return (self.needs[index].cluster_id, profile.fingerprint, group)

    def _vanish(self, machine_id: str) -> None:
        if machine_id in self.judge.machines():
            self.judge.remove(machine_id)
            self.flights.pop(machine_id, None)
            self.queued.pop(machine_id, None)

    def _fly(self, machine_id: str) -> None:
        dwell, used = self.dwells[machine_id]
        cycles = dwell[used % len(dwell)]
        self.dwells[machine_id] = (dwell, used + 1)
        self.flights[machine_id] = _Flight(abs(cycles), fails=cycles < 0)

    def _land(self) -> None:
        for machine_id in sorted(self.flights):
            flight = self.flights[machine_id]
            flight.left -= 1
            if flight.left > 0:
                continue
            del self.flights[machine_id]
            if self.judge.machines()[machine_id].state is MachineState.FAILED:
                execution.repair(self.judge, machine_id, self.now)
            elif flight.fails:
                execution.fail(self.judge, machine_id, self.now)
                self._fly(machine_id)
            else:
                execution.finish(self.judge, machine_id, self.now)

    def _start_due(self) -> None:
        """Start what has waited long enough; a machine that moved meanwhile drops its action (E5)."""
        for machine_id in sorted(self.queued):
            wait, action = self.queued[machine_id]
            if wait > 0:
                self.queued[machine_id] = (wait - 1, action)
                continue
            del self.queued[machine_id]
            if self.judge.machines()[machine_id].state is execution.STARTS_FROM[action.kind]:
                execution.start(self.judge, action, self.now)
                self._fly(machine_id)


# generating


class _Generator:
    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        # Each draw fixes a style for the whole fleet, so that rare combinations are not averaged away.
        self.huge = rng.random() < 0.15
        # Long histories with a gang that nothing can hold: only they reach parking and its re-probe.
        self.patient = rng.random() < 0.02
        # One cluster with many rows that vanish: only this reaches the guard.
        self.withdrawing = rng.random() < 0.04
        self.noisy = rng.random() < 0.4
        self.scarce = rng.random() < 0.5
        # Machines that differ in their id alone: the engine keeps them as one cell and takes prefixes of it.
        self.twins = rng.random() < 0.25
        self.needs: list[Description] = []
        self.drawn: list[Description] = []

    def fleet(self) -> Description:
        rng = self.rng
        for _ in range(self.few(1, 3) if self.patient else self.few(1, 15)):
            self.needs.append(self.need())
        if self.patient:
            self.needs.append(self.hopeless_gang())
        if self.withdrawing:
            self.needs += [self.need() for _ in range(15 - len(self.needs))]
            self.needs = [{**need, "cluster": CLUSTERS[0]} for need in self.needs]
        count = self.few(3, 8) if self.patient else self.few(3, 40)
        machines = [self.machine(f"m{i:02}") for i in range(count)]
        cycles = rng.randint(36, 40) if self.patient else self.few(3 if self.withdrawing else 1, 6)
        return {
            "options": self.options(),
            "needs": self.needs,
            "machines": machines,
            "steps": [self.step(i, machines) for i in range(cycles)],
        }

    def life(self) -> Description:
        rng = self.rng
        self.patient = self.withdrawing = False
        fleet = self.fleet()
        usual = self.needs
        # Each of them as it is and in other amounts, the small steps of demand above all.
        kinds = [[n, *(len(usual) + 3 * n + k for k in range(3))] for n in range(len(usual))]
        fleet["needs"] = usual + [self.more_or_less(need) for need in usual for _ in range(3)]
        shown: list[int | None] = [rng.choice(kind) if rng.random() < 0.8 else None for kind in kinds]
        steps = []
        for number in range(rng.randint(30, 60)):
            step = {**self.step(number, fleet["machines"]), "rollups": []}
            for cluster in CLUSTERS:
                rows = [n for n, need in enumerate(usual) if need["cluster"] == cluster]
                moved = [n for n in rows if rng.random() < 0.15]
                for n in moved:
                    shown[n] = rng.choice(kinds[n]) if rng.random() < 0.7 else None
                if number == 0 or moved:
                    step["rollups"].append([cluster, [row for n in rows if (row := shown[n]) is not None]])
            steps.append(step)
        return {**fleet, "steps": steps}

    def more_or_less(self, need: Description) -> Description:
        """The same Need in another amount."""
        if self.rng.random() < 0.3:
            aggregate, _ = self.amounts()
        else:
            name = self.rng.choice([*need["aggregate"], "cpu"])
            step = 1000 * self.rng.choice([-2, -1, 1, 1, 2, 4])
            aggregate = {**need["aggregate"], name: max(0, need["aggregate"].get(name, 0) + step)}
            aggregate[name] = min(HUGE, aggregate[name])
        return {**need, "aggregate": aggregate}

    def few(self, least: int, most: int) -> int:
        """Any number of the range, small ones more often: they find as much and cost less."""
        return least + int((most + 1 - least) * self.rng.random() ** 1.6)

    def hopeless_gang(self) -> Description:
        gang = self.need()
        gang["requirements"] = [[RACK_KEY, "Same", []]]
        gang["group"], gang["aggregate"] = "g9", {"cpu": 1_000_000}
        return gang

    def options(self) -> Description:
        rng, options = self.rng, {}
        if rng.random() < 0.3:
            options["reclaim_cap_fraction"] = rng.choice([0.05, 0.29, 0.5])
        if rng.random() < 0.1:
            options["max_actions_per_cycle"] = rng.randint(1, 6)
        if rng.random() < 0.05:
            options["paused"] = True
        if rng.random() < 0.05:
            options["dry_run"] = True
        if self.withdrawing or rng.random() < 0.1:
            options["guard"] = True
        if rng.random() < 0.3:
            options["hold_spot_ns"], options["hold_on_demand_ns"] = 10 * SECOND, 30 * SECOND
        return options

    def size(self, least: int = 1, most: int = 4) -> dict[str, int]:
        """A machine's shape; in a huge fleet sums pass 2**63 and single amounts reach the wire's limit."""
        rng = self.rng
        size = {"cpu": 1000 * rng.randint(least, most)}
        if rng.random() < 0.4:
            size["memory"] = rng.choice([HUGE, HUGE // 2, HUGE // 3, 10**18]) if self.huge else 4096 * 1000
        if rng.random() < 0.15:
            size["gpu"] = 1000 * rng.randint(1, 2)
        return size

    def need(self) -> Description:
        rng = self.rng
        if self.needs and rng.random() < 0.35:
            return self.sibling(rng.choice(self.needs))
        requirements: list[list[Any]] = []
        if rng.random() < 0.7:
            requirements.append([INSTANCE_TYPE_KEY, "In", sorted(rng.sample(TYPES, rng.randint(1, 2)))])
        if rng.random() < 0.1:
            requirements.append([ZONE_KEY, rng.choice(["In", "NotIn"]), [rng.choice(ZONES)]])
        if rng.random() < 0.1:
            requirements.append([DISK_KEY, rng.choice(["Exists", "DoesNotExist"]), []])
        gang = rng.random() < 0.4
        if gang:
            values = sorted(rng.sample(RACKS, 2)) if rng.random() < 0.15 else []
            requirements.append([rng.choice([RACK_KEY, RACK_KEY, RACK_KEY, ZONE_KEY]), "Same", values])
        spread: list[list[Any]] = []
        if rng.random() < (0.15 if gang else 0.4):
            spread.append([ZONE_KEY, "DoNotSchedule", rng.choice([0, 1, 1, 2])])
        if rng.random() < 0.1:
            spread.append([RACK_KEY, rng.choice(["ScheduleAnyway", "Unspecified", "DoNotSchedule"]), 1])
        aggregate, min_unit = self.amounts()
        return {
            "cluster": rng.choice(CLUSTERS),
            "requirements": requirements,
            "spread": spread,
            "priority": rng.choice([-5, 0, 100, 100, 1000, 1000, 1000, 2000, 600_000, 1_000_000]),
            "interruption": rng.choice([0, 1, 1, 1, 2, 5, 9, 16, PINNED]),
            "reclamation": rng.choice([0, 1, 1, 1, 5, 16, PINNED]),
            "group": f"g{rng.randint(1, 3)}" if gang or rng.random() < 0.1 else "",
            "aggregate": aggregate,
            "min_unit": min_unit,
        }

    def sibling(self, other: Description) -> Description:
        """A Need of the same Profile: another gang, another cluster, or a changed bucket."""
        rng, twin = self.rng, dict(other)
        change = rng.random()
        if change < 0.5:
            twin["group"] = f"g{rng.randint(1, 4)}" if other["group"] else ""
            if rng.random() < 0.4:
                twin["aggregate"], twin["min_unit"] = self.amounts()
        if change > 0.3:
            twin["cluster"] = rng.choice(CLUSTERS)
        if change > 0.8:
            twin["interruption"] = rng.choice([1, 9, PINNED])
        return twin

    def amounts(self) -> tuple[dict[str, int], dict[str, int]]:
        rng = self.rng
        aggregate = {"cpu": 1000 * rng.choice([1, 2, 2, 3, 4, 5, 6, 8, 12])}
        if rng.random() < 0.3:
            aggregate["memory"] = rng.choice([HUGE, HUGE // 5, 3 * 10**18]) if self.huge else 8192 * 1000
        if rng.random() < 0.1:
            aggregate["gpu"] = 1000 * rng.randint(1, 3)
        if rng.random() < 0.03:
            aggregate = {}
        min_unit: dict[str, int] = {}
        if rng.random() < 0.6:
            min_unit = {"cpu": min(aggregate.get("cpu", 0), 1000 * rng.randint(1, 3))}
        return aggregate, min_unit

    def machine(self, machine_id: str) -> Description:
        if self.twins and self.drawn and self.rng.random() < 0.6:
            return {**self.rng.choice(self.drawn), "id": machine_id}
        self.drawn.append(self.another_machine(machine_id))
        return self.drawn[-1]

    def another_machine(self, machine_id: str) -> Description:
        rng = self.rng
        states = ["CONFIGURED"] * 8 + ["CONFIGURING"] * 2 + ["DRAINING"] * 2 + ["CREATING"] * 2
        states += ["IDLE"] * (2 if self.scarce else 7) + ["SPECULATIVE"] * (2 if self.scarce else 5)
        states += ["DELETING", "FAILED"]
        capacity = rng.choice(["BARE_METAL", "BARE_METAL", "RESERVED", "ON_DEMAND", "SPOT", "UNSPECIFIED"])
        labels = {}
        if rng.random() < 0.85:
            labels[RACK_KEY] = rng.choice(RACKS)
        if rng.random() < 0.3:
            labels[DISK_KEY] = "ssd"
        bought_for = rng.randrange(len(self.needs)) if rng.random() < 0.65 else None
        cluster = rng.choice(CLUSTERS)
        if bought_for is not None and rng.random() < 0.9:
            cluster = self.needs[bought_for]["cluster"]
        return {
            "id": machine_id,
            "state": rng.choice(states),
            "cluster": cluster,
            "type": self.type_for(bought_for),
            "zone": rng.choice(ZONES) if rng.random() < 0.95 else "",
            "capacity": capacity,
            "size": self.size(),
            "labels": labels,
            "price": rng.choice([0.0, 0.0, 1.0, 1.0, 2.0, 3.5, 0.1]),
            "p": rng.choice([0.05, 0.1, 0.3]) if capacity == "SPOT" else rng.choice([0.0, 0.0, 0.05]),
            "for": bought_for,
            "folded": rng.random() < 0.2,
            "age": rng.choice([0, 0, 5, 30, 61, 700]),
            "last_value": rng.choice([0.0, 0.0, 5000.0]),
            "seen_start": rng.random() < 0.5,
            "preempted_for": self.preemptor(),
            "grace": rng.choice([10, 30, 120, 600]),
            "dwell": [rng.choice([1, 1, 1, 2, 3, -2]) for _ in range(3)],
        }

    def type_for(self, bought_for: int | None) -> str:
        """Mostly a type that the Need it was bought for accepts."""
        if bought_for is not None:
            for key, operator, values in self.needs[bought_for]["requirements"]:
                if key == INSTANCE_TYPE_KEY and operator == "In":
                    return str(self.rng.choice(values))
        return self.rng.choice(TYPES)

    def preemptor(self) -> list[Any] | None:
        if self.rng.random() < 0.4:
            return None
        return [self.rng.randrange(len(self.needs)), self.rng.random() < 0.2]

    def step(self, number: int, machines: Sequence[Mapping[str, Any]]) -> Description:
        rng = self.rng
        noisy = self.noisy and rng.random() < 0.5
        changed = number == 0 or self.withdrawing or (not self.patient and rng.random() < 0.3)
        ids = [m["id"] for m in machines]
        return {
            "advance": 10 if rng.random() < 0.8 else rng.choice([1, 3, 60]),
            "tick": self.patient or rng.random() < 0.9,
            "rollups": self.rollups(first=number == 0) if changed else [],
            "appear": [self.machine(f"n{number:02}")] if not self.patient and rng.random() < 0.15 else [],
            "vanish": [rng.choice(ids)] if not self.patient and rng.random() < 0.1 else [],
            "blocked": [[rng.randrange(len(self.needs)), rng.random() < 0.3]]
            if noisy and rng.random() < 0.3
            else [],
            "no_session": [rng.choice(CLUSTERS)] if noisy and rng.random() < 0.2 else [],
            "held_off": [[rng.choice(ids), rng.choice(list(Rpc)).value] for _ in range(3)] if noisy else [],
            "queue": rng.choice([0, 0, 1, 2]) if noisy else 0,
            "free_places": rng.randint(0, 8) if noisy and rng.random() < 0.2 else None,
        }

    def rollups(self, *, first: bool) -> list[list[Any]]:
        """Each cluster's rows; at first almost all that were drawn, later some come and go."""
        rng = self.rng
        rollups: list[list[Any]] = []
        for cluster in CLUSTERS:
            if rng.random() < (0.1 if first or self.withdrawing else 0.5):
                continue
            rows = [i for i, n in enumerate(self.needs) if n["cluster"] == cluster]
            kept = 0.95 if first else 0.03 if self.withdrawing else 0.75
            rollups.append([cluster, [i for i in rows if rng.random() < kept]])
        rng.shuffle(rollups)
        return rollups
