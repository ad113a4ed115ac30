"""Long random histories in which everything moves, as plain descriptions (see ``fleets``).

In a life (``fleets.generate_life``) demand comes and goes, and machines go where the engine sends them. In a
storm what a provider shows changes as well: prices, labels, odds and shapes, states reached over no edge,
machines that come back under an old id; options change between cycles, cycles are cut into slices while
things happen, and some are abandoned half-way.

A step of a storm holds beside what ``fleets`` says

* ``options``: fields of ``Options`` from this cycle on;
* ``before``: events before the cycle, in the midst of the one that is abandoned if there is one;
* ``meanwhile``: events while it runs, in slices of ``slice`` rows; they count for the next cycle;
* ``abandoned``: after how many pauses a cycle that is begun before this one is given up; 0: there is none;
* ``hurried``: whether somebody cannot wait while the cycle runs.

An event is a list of its kind and what it needs. One that does not fit the machine as it is then does
nothing, so that any other event can be left out.
"""

import random
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol

from bigfleet.engine.cells import NO_CALL, Call
from bigfleet.engine.cycle import CycleInputs
from bigfleet.engine.cycle import CycleResult as EngineResult
from bigfleet_base.model import CapacityType, HostRef, Machine, MachineState, Need, ResourceVector
from bigfleet_base.model.lifecycle import EDGES
from bigfleet_base.model.penalty import PINNED, bound_dollars
from bigfleet_base.model.requirement import INSTANCE_TYPE_KEY, ZONE_KEY
from tests.engine import execution
from tests.engine.adapter import CALLS, EngineJudge, PersistentEngine
from tests.engine.differential import compared
from tests.engine.fleets import (
    CLUSTERS,
    RACK_KEY,
    RACKS,
    TYPES,
    ZONES,
    Description,
    Player,
    Step,
    generate,
    generate_life,
)
from tests.engine.judge import Judge, OracleJudge
from tests.oracle import run_cycle
from tests.oracle.results import SECOND, CycleInput, CycleResult, Memory, Options

HOST_KEY: Final = "kubernetes.io/hostname"
LATE_KEYS: Final = ("late-1", "late-2", "late-3")
"""Labels that machines have long before a Need asks for one."""
LOWEST, HIGHEST = -(2**31), 2**31 - 1
"""The priorities that a roll-up can name at the most."""

Event = list[Any]
Happen = Callable[[], None]


def generate_storm(seed: int) -> Description:
    """The storm of this seed: 20 to 60 cycles."""
    return _Storms(random.Random(f"storm {seed}")).storm(generate_life(seed))


def generate_contest(seed: int) -> Description:
    """A short history, at most four cycles, of many Needs that spread or preempt over machines that tie."""
    fleet = _Storms(random.Random(f"contest {seed}")).charged(generate(seed))
    return {**fleet, "steps": fleet["steps"][:4]}


def first_difference_in_storm(storm: Description) -> str | None:
    """What engine and oracle disagree about first; None if they agree to the end."""
    oracle, engine = _Oracle(), _Engine()
    steps = zip(_play(oracle, storm), _play(engine, storm), strict=True)
    for number, (theirs, ours) in enumerate(steps):
        for what, expected, got in compared(theirs, ours):
            if what == "rails" and storm["steps"][number]["meanwhile"]:
                # What has moved meanwhile is stale for the engine; the oracle takes it for busy.
                expected, got = (replace(step.result.rails, deduped=0) for step in (theirs, ours))
            if expected != got:
                return f"cycle {number}, {what}:\n  oracle {expected}\n  engine {got}"
        records = engine.records()
        if oracle.machines() != records:
            return f"cycle {number}: the records after it"
        if any(_remembered(oracle, i) != _remembered(engine, i) for i in records):
            return f"cycle {number}: what is remembered beside the records after it"
    return None


def _remembered(judge: Judge, machine_id: str) -> Memory:
    """What is remembered beside a record. The oracle knows by the host whose a machine is, and only what has
    one can be deleted."""
    known = judge.memory(machine_id)
    return known if judge.machines()[machine_id].host else replace(known, not_deletable=False)


# judging


class _Judge(Judge, Protocol):
    """A judge that can be disturbed."""

    def cycle_amid(
        self, events: Sequence[Happen], slice_rows: int, hurried: bool, inputs: CycleInput, options: Options
    ) -> CycleResult:
        """Decide while these things happen."""

    def abandon(self, events: Sequence[Happen], pauses: int, inputs: CycleInput, options: Options) -> None:
        """Begin to decide, and give up; whatever of these things has not happened by then happens then."""


class _Oracle(OracleJudge):
    """Decides on what was there before anything happened; what moved meanwhile is nothing to act on."""

    def cycle_amid(
        self, events: Sequence[Happen], slice_rows: int, hurried: bool, inputs: CycleInput, options: Options
    ) -> CycleResult:
        before, demand = self._world.snapshot(), self._needs.snapshot()
        reported = frozenset(self._needs.reported)
        for happen in events:
            happen()
        now = self._world.machines()
        moved = {i for i, m in before.machines.items() if i not in now or now[i].state is not m.state}
        inputs = replace(inputs, pending=inputs.pending | moved)
        result = run_cycle(before, demand, reported, self._carried, inputs, options)
        self._carried = result.carried
        return result

    def abandon(self, events: Sequence[Happen], pauses: int, inputs: CycleInput, options: Options) -> None:
        """There is nothing to be seen of it."""
        for happen in events:
            happen()


class _AbandonedError(Exception):
    """The cycle was given up."""


class _Disturbed(PersistentEngine):
    """Something happens at the pauses of a cycle, or it ends at one."""

    events: Sequence[Happen] = ()
    pauses = 0

    def cycle(self, inputs: CycleInputs, slice_rows: int = 1000) -> Generator[str, None, EngineResult]:
        inputs = replace(inputs, witness=_ask_who_holds_what)
        work, waiting, left = super().cycle(inputs, slice_rows), list(self.events), self.pauses
        while True:
            try:
                phase = next(work)
            except StopIteration as finished:
                assert not waiting and not self.pauses, "every cycle pauses before it is written down"
                result: EngineResult = finished.value
                return result
            left -= 1
            last = self.phase == "execute" or (self.pauses and not left)
            while waiting:
                waiting.pop(0)()
                if not last:
                    break
            if self.pauses and last:
                work.close()
                raise _AbandonedError
            yield phase


def _ask_who_holds_what(result: EngineResult) -> None:
    """It can be asked only as long as the inventory stands still; the answer stays."""
    assert result.holders.held is not None


class _Engine(EngineJudge):
    """Holds off what is held off until it no longer is, as a shard does."""

    def __init__(self) -> None:
        super().__init__()
        self._disturbed = self.engine = _Disturbed(full_every=1)
        self._held: dict[str, Call] = {}

    def remove(self, machine_id: str) -> None:
        super().remove(machine_id)
        self._held.pop(machine_id, None)

    def cycle(self, inputs: CycleInput, options: Options) -> CycleResult:
        held: dict[str, Call] = {}
        for machine_id, rpc in inputs.held_off:
            if machine_id in self.engine.inventory:
                held[machine_id] = held.get(machine_id, NO_CALL) | CALLS[rpc]
        for machine_id in sorted(held.keys() | self._held.keys()):
            calls = held.get(machine_id, NO_CALL)
            if calls is not self._held.get(machine_id, NO_CALL):
                self.engine.inventory.hold_off(machine_id, calls)
        self._held = held
        return super().cycle(replace(inputs, held_off=frozenset()), options)

    def cycle_amid(
        self, events: Sequence[Happen], slice_rows: int, hurried: bool, inputs: CycleInput, options: Options
    ) -> CycleResult:
        engine, self._slice_rows = self._disturbed, slice_rows
        engine.events, engine.hurried = events, hurried
        try:
            return self.cycle(inputs, options)
        finally:
            engine.events, engine.hurried = (), False

    def abandon(self, events: Sequence[Happen], pauses: int, inputs: CycleInput, options: Options) -> None:
        engine, self._slice_rows = self._disturbed, 1
        engine.events, engine.pauses = events, pauses
        try:
            self.cycle(inputs, options)
        except _AbandonedError:
            return
        finally:
            engine.events, engine.pauses = (), 0
        raise AssertionError("a cycle that was to be abandoned came to an end")


# playing


def _play(judge: _Judge, storm: Description) -> Iterator[Step]:
    player = _Storm(judge, storm)
    for step in storm["steps"]:
        yield player.step(step)


@dataclass
class _Storm(Player):
    judge: _Judge
    fleet: Description

    def step(self, step: Description) -> Step:
        self.now += step["advance"] * SECOND
        self._ground()
        self._land()
        for text in step["appear"]:
            if text["id"] not in self.judge.machines():
                self._appear(text)
        for machine_id in step["vanish"]:
            self._vanish(machine_id)
        self.options = replace(self.options, **step["options"])
        before = [self._later(event) for event in step["before"]]
        meanwhile = [self._later(event) for event in step["meanwhile"]]
        if step["abandoned"]:
            self.judge.abandon(before, step["abandoned"], self._inputs(step), self.options)
        else:
            for happen in before:
                happen()
        for cluster, indices in step["rollups"]:
            self._report(cluster, indices)
        inputs = self._inputs(step)
        demand, reported = tuple(self.judge.demand()), frozenset(self.reported)
        result = self.judge.cycle_amid(meanwhile, step["slice"], step["hurried"], inputs, self.options)
        for action in result.rails.executed:
            self.queued[action.machine] = (step["queue"], action)
        for machine_id in self.queued.keys() - self.judge.machines().keys():
            del self.queued[machine_id]
        self._start_due()
        return Step(inputs, self.options, reported, demand, result)

    def _later(self, event: Event) -> Happen:
        return lambda: self._happen(event)

    def _ground(self) -> None:
        """Who is under way after an event of which the flight knows nothing sets out anew."""
        machines = self.judge.machines()
        for machine_id, machine in machines.items():
            moving = machine.state in execution.FINISHES or machine.state is MachineState.FAILED
            if not moving:
                self.flights.pop(machine_id, None)
            elif machine_id not in self.flights:
                self._fly(machine_id)

    def _report(self, cluster: str, indices: Sequence[int]) -> None:
        self.judge.rollup(cluster, [self.needs[i] for i in indices], self.now, guard=self.options.guard)
        self.reported.add(cluster)

    # events

    def _happen(self, event: Event) -> None:
        kind, *rest = event
        if kind == "rollup":
            self._report(*rest)
        elif kind == "again":
            self._again(*rest)
        elif kind == "vanish":
            self._vanish(*rest)
        else:
            whom, *rest = rest
            machines = self.judge.machines()
            if isinstance(whom, list):
                # All of an instance type.
                whom = sorted(i for i, m in machines.items() if m.instance_type == whom[0])
            else:
                whom = [whom] if whom in machines else []
            for machine_id in whom:
                getattr(self, f"_{kind}")(machines[machine_id], *rest)

    def _shows(self, machine: Machine, changes: dict[str, Any]) -> None:
        """The provider describes it otherwise."""
        values = dict(changes)
        for name in ("resources", "allocatable"):
            if values.get(name) is not None:
                values[name] = ResourceVector(values[name])
        if "capacity_type" in values:
            values["capacity_type"] = CapacityType[values["capacity_type"]]
        self.judge.apply(replace(machine, **values), self.now)

    def _again(self, text: Description) -> None:
        """Another machine under an id that there was, or was not."""
        self._vanish(text["id"])
        self._appear(text)

    def _moves(self, machine: Machine, state: str, number: int) -> None:
        """Over an edge of the table, if there is one; as an executor or a provider would say."""
        target = MachineState[state]
        edge = next((e for e in EDGES if (e.source, e.target) == (machine.state, target)), None)
        if edge is None:
            return
        need = self.needs[number]
        self.judge.apply(
            _seen_as(machine, target, need),
            self.now,
            started=number % 2 == 0,
            preempted_for=need.key if target is MachineState.DRAINING and number % 3 else None,
            drain_deadline=self.now + 60 * SECOND if target is MachineState.DRAINING else None,
            delete_unsupported=machine.state is MachineState.DELETING and target is MachineState.IDLE,
        )

    def _jumps(self, machine: Machine, state: str, number: int) -> None:
        """The provider shows it in a state, however it came there."""
        target, need = MachineState[state], self.needs[number]
        stamp = need.key if target is MachineState.DRAINING and number % 3 else None
        self.judge.apply(_seen_as(machine, target, need), self.now, preempted_for=stamp, observed=True)

    def _returns(self, machine: Machine) -> None:
        """A call that was not sent is taken back."""
        back = {
            MachineState.CREATING: MachineState.SPECULATIVE,
            MachineState.DRAINING: MachineState.CONFIGURED,
        }
        if machine.state in back:
            self.judge.apply(_seen_as(machine, back[machine.state], None), self.now)


def _seen_as(machine: Machine, state: MachineState, need: Need | None) -> Machine:
    """The machine in another state, or rebound in the same; without a Need it keeps whose it is."""
    values: dict[str, Any] = {"state": state, "cluster": "", "host": HostRef(), "last_error": ""}
    if state not in (MachineState.SPECULATIVE, MachineState.CREATING):
        values["host"] = execution.host_of(machine)
    bound = state in (MachineState.CONFIGURING, MachineState.CONFIGURED, MachineState.DRAINING)
    whose = {
        "assigned_need_fingerprint": machine.assigned_need_fingerprint,
        "assigned_group": machine.assigned_group,
        "assigned_priority": machine.assigned_priority,
        "assigned_interruption_penalty": machine.assigned_interruption_penalty,
        "assigned_reclamation_penalty": machine.assigned_reclamation_penalty,
        "target_cluster": "",
    }
    if need is not None and (bound or state in (MachineState.CREATING, MachineState.IDLE)):
        profile = need.profile
        whose["assigned_need_fingerprint"], whose["assigned_group"] = profile.fingerprint, need.group
        if bound:
            whose["assigned_priority"] = profile.priority
            whose["assigned_interruption_penalty"] = bound_dollars(profile.interruption_bucket)
            whose["assigned_reclamation_penalty"] = bound_dollars(profile.reclamation_bucket)
    elif not bound:
        whose = dict.fromkeys(("assigned_need_fingerprint", "assigned_group", "target_cluster"), "")
        whose |= dict.fromkeys([f"assigned_{what}_penalty" for what in ("interruption", "reclamation")], 0.0)
        whose["assigned_priority"] = 0
    cluster = machine.cluster or machine.target_cluster or CLUSTERS[0] if need is None else need.cluster_id
    if bound:
        values["cluster"] = cluster
    elif state in (MachineState.CREATING, MachineState.IDLE) and need is not None:
        values["target_cluster"] = cluster
    if state is MachineState.FAILED:
        values["last_error"] = "broken"
    return replace(machine, **{**whose, **values})


# generating


def _asked_from(need: Description, asked: dict[str, int]) -> int:
    """The first cycle in which a Need may be there, by the labels it asks for."""
    keys = {key for key, *_ in [*need["requirements"], *need["spread"]]}
    return max((asked[key] for key in keys & asked.keys()), default=0)


class _Storms:
    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        # Each draw fixes a style for the whole storm, so that rare combinations are not averaged away.
        self.spreading = rng.random() < 0.5
        self.preempting = rng.random() < 0.5
        self.sharing = rng.random() < 0.35
        self.extreme = rng.random() < 0.25
        self.hosts = [f"h{i:02}" for i in range(rng.choice([2, 3, 5, 8, 12]))]
        self.alike = rng.random() < 0.5
        self.scale = rng.choice([0.3, 1.0, 1.0, 3.0])
        self.lulls = rng.choice([0.1, 0.5, 0.8])
        self.salt = rng.random()

    def storm(self, life: Description) -> Description:
        rng = self.rng
        life = self.charged(life)
        steps = life["steps"][: rng.randint(20, 60)]
        needs, machines = life["needs"], life["machines"]
        held: list[list[Any]] = []
        calls = [rpc.value for rpc in CALLS]
        ids = sorted({m["id"] for m in machines} | {m["id"] for step in steps for m in step["appear"]})
        # From when on anybody asks for a label.
        asked = {key: rng.randrange(len(steps)) for key in LATE_KEYS}
        for number, step in enumerate(steps):
            lull = rng.random() < self.lulls
            if lull:
                # What depends on time, options and sessions alone has to be noticed for itself.
                step |= {"appear": [], "vanish": []}
                step["rollups"] = step["rollups"] if number == 0 else []
            else:
                # What is held off stays so for a while.
                held = [each for each in held if rng.random() < 0.7]
                held += [[rng.choice(ids), rng.choice(calls)] for _ in range(self.some(0.8))]
            step["rollups"] = [
                [cluster, [row for row in rows if _asked_from(needs[row], asked) <= number]]
                for cluster, rows in step["rollups"]
            ]
            step["held_off"] = list(held)
            step["before"] = [self.event(ids, life) for _ in range(0 if lull else self.some(1.2))]
            step["meanwhile"] = (
                [self.event(ids, life, meanwhile=True) for _ in range(1 + self.some(2))]
                if not lull and rng.random() < 0.3 * self.scale
                else []
            )
            step["slice"] = rng.choice([1, 1, 7])
            step["abandoned"] = rng.choice([1, 3, 10, 40, 1000]) if rng.random() < 0.08 * self.scale else 0
            step["hurried"] = rng.random() < 0.1
            step["options"] = self.options() if rng.random() < (0.2 if lull else 0.08) else {}
            step["blocked"] = [
                *step["blocked"],
                *([rng.randrange(len(needs)), rng.random() < 0.3] for _ in range(self.some(0.15))),
            ]
        return {**life, "steps": steps}

    def some(self, usual: float) -> int:
        """A number around the usual one, often none."""
        count, chance = 0, usual * self.scale / (1 + usual * self.scale)
        while self.rng.random() < chance:
            count += 1
        return count

    def options(self) -> Description:
        rng = self.rng
        drawn = {
            "weight_priority": rng.choice([0.0, 0.001, 1.0]),
            "weight_interruption": rng.choice([0.0, 0.1, 50.0]),
            "weight_reclamation": rng.choice([0.0, 0.1, 50.0]),
            "estimated_drain_s": rng.choice([0.0, 30.0]),
            "hold_spot_ns": rng.choice([0, 10, 60]) * SECOND,
            "hold_on_demand_ns": rng.choice([0, 20, 600]) * SECOND,
            "reclaim_cap_fraction": rng.choice([0.0, 0.05, 0.29, 0.5]),
            "max_actions_per_cycle": rng.choice([0, 0, 2, 5]),
            "paused": rng.random() < 0.1,
            "dry_run": rng.random() < 0.1,
            "guard": rng.random() < 0.2,
        }
        return {name: drawn[name] for name in rng.sample(sorted(drawn), rng.randint(1, 4))}

    def event(self, ids: Sequence[str], life: Description, *, meanwhile: bool = False) -> Event:
        rng, needs = self.rng, life["needs"]
        machine_id, number = rng.choice(ids), rng.randrange(len(needs))
        state = rng.choice([s.name for s in MachineState if s is not MachineState.UNSPECIFIED])
        chance = rng.random()
        if meanwhile and chance < 0.15:
            cluster = rng.choice(CLUSTERS)
            rows = [i for i, n in enumerate(needs) if n["cluster"] == cluster and rng.random() < 0.3]
            return ["rollup", cluster, rows]
        if chance < 0.25:
            whom = [rng.choice(TYPES)] if rng.random() < 0.4 else machine_id
            return ["shows", whom, {"price_per_hour": rng.choice([0.0, 0.5, 1.0, 1.0, 2.0])}]
        if chance < 0.4:
            return ["shows", machine_id, {"labels": self.labels()}]
        if chance < 0.5:
            return ["shows", machine_id, self.shape()]
        if chance < 0.7:
            return ["moves", machine_id, state, number]
        if chance < 0.85:
            return ["jumps", machine_id, state, number]
        if chance < 0.88:
            return ["returns", machine_id]
        if chance < 0.9:
            return ["moves", [rng.choice(TYPES)], "IDLE", number]
        if chance < 0.93:
            return ["vanish", machine_id]
        return ["again", {**rng.choice(life["machines"]), "id": machine_id}]

    def shape(self) -> Description:
        rng = self.rng
        change = rng.random()
        if change < 0.2:
            return {"instance_type": rng.choice([*TYPES, ""])}
        if change < 0.4:
            return {"zone": rng.choice([*ZONES, ""])}
        if change < 0.7:
            return {"allocatable": rng.choice([None, {}, {"cpu": 1000}, {"cpu": 3000, "gpu": 1000}])}
        if change < 0.8:
            return {"capacity_type": rng.choice(["SPOT", "ON_DEMAND", "BARE_METAL"])}
        return {"interruption_probability": rng.choice([0.0, 0.05, 0.3, 1.0])}

    def labels(self) -> dict[str, str]:
        rng, labels = self.rng, {}
        if rng.random() < 0.9:
            labels[HOST_KEY] = rng.choice(self.hosts)
        if rng.random() < 0.85:
            labels[RACK_KEY] = rng.choice(RACKS)
        for key in LATE_KEYS:
            if rng.random() < 0.4:
                labels[key] = rng.choice("xy")
        if rng.random() < 0.1:
            labels[INSTANCE_TYPE_KEY] = rng.choice(TYPES)
        return labels

    # fleets in which more is at stake

    def charged(self, fleet: Description) -> Description:
        """The fleet with more that ties, spreads, preempts and shares."""
        needs = [self.need(need) for need in fleet["needs"]]
        if self.sharing and needs:
            needs = self.shared(needs)
        machines = [self.machine(m, needs) for m in fleet["machines"]]
        if self.preempting:
            machines += self.victims(machines, needs)
        steps = [
            {**step, "appear": [self.machine(m, needs) for m in step["appear"]]} for step in fleet["steps"]
        ]
        return {**fleet, "needs": needs, "machines": machines, "steps": steps}

    def need(self, need: Description) -> Description:
        """Charged; what was one Need in other amounts, or of another cluster, still is."""
        named = [need[name] for name in ("requirements", "spread", "priority", "interruption", "reclamation")]
        rng, need = random.Random(f"{self.salt} {named}"), dict(need)
        same = [r for r in need["requirements"] if r[1] == "Same"]
        if self.spreading and rng.random() < 0.7:
            if rng.random() < 0.8:
                need["requirements"] = [r for r in need["requirements"] if r[1] != "Same"]
            key = rng.choice([HOST_KEY, HOST_KEY, RACK_KEY, ZONE_KEY, rng.choice(LATE_KEYS)])
            skew = rng.choice([1, 1, 1, 2, 3, rng.choice([0, -1, 100, HIGHEST])])
            need["spread"] = [[key, "DoNotSchedule", skew]]
            if rng.random() < 0.1:
                need["spread"].append([ZONE_KEY, "DoNotSchedule", 2])
        elif same and rng.random() < 0.4:
            others = [r for r in need["requirements"] if r[1] != "Same"]
            need["requirements"] = [*others, [rng.choice([HOST_KEY, LATE_KEYS[0], ZONE_KEY]), "Same", []]]
        if rng.random() < 0.15:
            late: list[Any] = [
                rng.choice(LATE_KEYS),
                rng.choice(["Exists", "DoesNotExist", "In", "NotIn"]),
                [],
            ]
            if late[1] in ("In", "NotIn"):
                late[2] = ["x"]
            need["requirements"] = [*need["requirements"], late]
        if (self.spreading or self.preempting) and rng.random() < 0.5:
            need["requirements"] = [r for r in need["requirements"] if r[0] != INSTANCE_TYPE_KEY]
        if rng.random() < 0.3:
            need["aggregate"] = {"cpu": 1000 * rng.randint(4, 24)}
            need["min_unit"] = {} if rng.random() < 0.5 else {"cpu": 1000}
        if self.preempting:
            need["priority"] = rng.choice([0, 1, 100, 1000, 1000, 1001, 2000, 1_000_000])
        if self.extreme:
            need["priority"] = rng.choice([LOWEST, LOWEST + 1, -1, 0, need["priority"], HIGHEST - 1, HIGHEST])
        if rng.random() < 0.3:
            need["interruption"] = PINNED
        return need

    def shared(self, needs: Sequence[Description]) -> list[Description]:
        """Several gangs of one Profile where there was one."""
        models = self.rng.sample(needs, min(len(needs), 2))
        same = [[self.rng.choice([RACK_KEY, HOST_KEY, ZONE_KEY]), "Same", []]]
        found = []
        for need in needs:
            others = {name: need[name] for name in ("cluster", "group", "aggregate", "min_unit")}
            rng = random.Random(f"{self.salt} {need['requirements']} {need['cluster']} {need['group']}")
            if rng.random() < 0.6:
                model = rng.choice(models)
                kept = [r for r in model["requirements"] if r[1] != "Same"]
                group = f"g{rng.randint(1, 4)}"
                need = {**model, **others, "requirements": kept + same, "spread": [], "group": group}
            if self.rng.random() < 0.3:
                need = {**need, "aggregate": models[0]["aggregate"], "min_unit": models[0]["min_unit"]}
            found.append(need)
        return found

    def machine(self, machine: Description, needs: Sequence[Description]) -> Description:
        rng, machine = self.rng, dict(machine)
        machine["labels"] = {**machine["labels"], **self.labels()}
        if self.alike:
            machine["price"] = rng.choice([machine["price"], 1.0])
            machine["size"] = rng.choice([machine["size"], {"cpu": 1000}, {"cpu": 2000}])
        if rng.random() < 0.15:
            machine["state"], machine["for"] = "IDLE", rng.randrange(len(needs))
        if rng.random() < 0.1:
            machine["capacity"], machine["p"] = "SPOT", rng.choice([0.05, 1.0])
        return machine

    def victims(self, machines: Sequence[Description], needs: Sequence[Description]) -> list[Description]:
        """Many Configured machines that differ in little."""
        rng = self.rng
        model = {
            **rng.choice(machines),
            "state": "CONFIGURED",
            "size": {"cpu": 1000},
            "preempted_for": None,
        }
        found = []
        for number in range(rng.randint(3, 24)):
            victim = {
                **model,
                "id": f"{rng.choice('avz')}{number:02}",
                "labels": {**model["labels"], HOST_KEY: rng.choice(self.hosts)},
            }
            if rng.random() < 0.3:
                victim["for"] = rng.choice([None, rng.randrange(len(needs))])
            if rng.random() < 0.2:
                victim["state"] = rng.choice(["DRAINING", "IDLE", "SPECULATIVE"])
                victim["seen_start"] = rng.random() < 0.5
            if rng.random() < 0.1:
                victim["size"] = {"cpu": 3000}
            found.append(victim)
        return found
