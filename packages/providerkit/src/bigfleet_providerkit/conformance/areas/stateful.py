"""X1201: random programs of several shards, with crashes and faults, against a model of four machines.

A program is a list of steps whose tokens are plain numbers, so that any part of it is a program, too: when
one goes wrong, parts are left out until nothing more can be, and what is left is the counter-example.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from grpc import StatusCode as Code

from bigfleet_base.api.v1alpha1 import provider_pb2 as pb
from bigfleet_base.model import MachineState as S
from bigfleet_providerkit.conformance import expect
from bigfleet_providerkit.conformance.areas.fuzz import DURING, EDGES, Numbers
from bigfleet_providerkit.conformance.checks import CheckFailed, check
from bigfleet_providerkit.conformance.client import CLUSTER, OTHER_CLUSTER, Ack, state_of
from bigfleet_providerkit.conformance.trial import Trial

PROGRAMS: Final = 4
STEPS: Final = 30
MACHINES: Final = 4
SHARDS: Final = 3
SHRINKS: Final = 40
FAULT: Final = "fault-error"
_METADATA: Final = {"owner": "conformance"}


@dataclass(frozen=True)
class Step:
    """One thing that happens: a call, everything coming to rest, or the provider being killed."""

    what: str
    machine: int = 0
    shard: int = 0
    token: Numbers = (0, 0)
    cluster: str = ""

    def __str__(self) -> str:
        if self.what in ("settle", "crash"):
            return self.what
        about = f"{self.what} machine {self.machine}" + (f" for {self.cluster}" if self.cluster else "")
        return f"shard {self.shard} {self.token}: {about}"


@check("X1201", alone=True)
async def programs_do_what_the_model_says(t: Trial) -> None:
    for _ in range(PROGRAMS):
        steps = draw(t)
        if failure := await outcome(t, steps):
            steps, failure = await shrunk(t, steps, failure)
            program = "; ".join(map(str, steps))
            raise CheckFailed(f"{failure}. The shortest program found that shows it: {program}")


def draw(t: Trial) -> list[Step]:
    """A program: mostly newer tokens, now and then an old one, and one crash at least."""
    rng = t.random
    tops = [[1, 0] for _ in range(SHARDS)]
    calls = [name for name in EDGES if name != "delete" or t.can.delete]
    clusters = [CLUSTER, CLUSTER, OTHER_CLUSTER] + ([FAULT] if t.target.hooks == "target" else [])
    guesses = [S.SPECULATIVE] * MACHINES
    steps = []
    for _ in range(STEPS):
        if rng.random() < 0.2:
            steps.append(Step("settle"))
            continue
        shard, machine = rng.randrange(SHARDS), rng.randrange(MACHINES)
        name = rng.choice(calls)
        if rng.random() < 0.7:
            # Where it would be by now if all went well, so that machines get somewhere.
            name = rng.choice([name for name in calls if EDGES[name][0] is guesses[machine]])
            guesses[machine] = EDGES[name][1]
        top = tops[shard]
        if rng.random() < 0.1:
            top[0], top[1] = top[0] + 1, 0
        top[1] += 1
        token = (top[0], top[1])
        if rng.random() < 0.15:
            token = (max(0, top[0] - rng.randint(0, 1)), max(0, top[1] - rng.randint(1, 5)))
        cluster = rng.choice(clusters) if name == "configure" else ""
        steps.append(Step(name, machine, shard, token, cluster))
    steps.insert(rng.randrange(STEPS // 3, STEPS), Step("crash"))
    return [*steps, Step("settle")]


async def shrunk(t: Trial, steps: list[Step], failure: str) -> tuple[list[Step], str]:
    """The program without whatever can be left out of it, as far as the patience goes."""
    size, patience = len(steps) // 2, SHRINKS
    while size and patience:
        for start in range(0, len(steps), size):
            shorter = steps[:start] + steps[start + size :]
            patience -= 1
            if shorter and (found := await outcome(t, shorter)):
                steps, failure = shorter, found
                break
            if not patience:
                break
        else:
            size //= 2
    return steps, failure


async def outcome(t: Trial, steps: Sequence[Step]) -> str:
    """What goes wrong when the program runs on fresh machines with fresh shards; empty for nothing."""
    world = World(t, await t.take(MACHINES))
    try:
        for step in steps:
            await world.run(step)
    except CheckFailed as failure:
        return str(failure)
    finally:
        await t.target.slots.reclaim(t.provider, world.ids)
        t.target.slots.drop(world.ids)
    return ""


@dataclass
class Modelled:
    """What is known of a machine. While a transition may be under way it is in one of several states."""

    states: set[S] = field(default_factory=lambda: {S.SPECULATIVE})
    cluster: str = ""
    operations: dict[str, str] = field(default_factory=dict)
    """Of this life (provider.P-45)."""

    def accept(self, name: str, operation_id: str, cluster: str) -> None:
        if name == "create":
            self.operations.pop("delete", None)
        self.operations[name] = operation_id
        self.cluster = cluster or self.cluster
        goal = S.FAILED if cluster == FAULT else EDGES[name][1]
        self.states = {DURING[name], goal}

    def rest(self, state: S) -> None:
        """It has been seen in a state that lasts."""
        self.states = {state}
        if state in (S.IDLE, S.SPECULATIVE):
            self.cluster = ""
        if state is S.SPECULATIVE:
            for name in ("create", "configure", "drain"):
                self.operations.pop(name, None)


class World:
    """Machines, marks and floors as the rules have them, next to the provider."""

    def __init__(self, t: Trial, machine_ids: list[str]) -> None:
        self._t = t
        self.ids = machine_ids
        self._machines = [Modelled() for _ in machine_ids]
        self._shards = t.shards(SHARDS)
        self._marks: dict[tuple[int, int], Numbers] = {}
        self._floors = [0] * SHARDS
        self._has_floor = t.can.info.epoch_floor if t.can.info else not t.options.compat

    async def run(self, step: Step) -> None:
        """Do a step; CheckFailed when the provider does not do what the model says."""
        if step.what == "crash":
            await self._t.restart()
            for machine in self._machines:
                if len(machine.states) > 1:
                    # Resumed, or ended: anything but a transition that nobody works on (provider.P-121).
                    machine.states |= {S.FAILED} | {
                        EDGES[n][0] for n, s in DURING.items() if s in machine.states
                    }
        if step.what in ("crash", "settle"):
            for index in range(len(self.ids)):
                await self._settle(index)
            return
        await self._call(step)

    async def _settle(self, index: int) -> None:
        machine, model = await self._t.at_rest(self.ids[index]), self._machines[index]
        if model.states == {S.FAILED}:
            # Repair takes it out of there in its own time (provider.md §6.3).
            model.states = {S.FAILED, S.IDLE, S.SPECULATIVE}
        expect.in_state(machine, *sorted(model.states))
        if state_of(machine) is S.FAILED:
            expect.that(machine.last_error, f"machine {machine.id} is FAILED without last_error")
        if state_of(machine) is S.CONFIGURED:
            expect.bound(machine, model.cluster)
            expect.metadata(machine, _METADATA)
        if state_of(machine) in (S.IDLE, S.SPECULATIVE):
            expect.unbound(machine)
        model.rest(state_of(machine))

    async def _call(self, step: Step) -> None:
        model = self._machines[step.machine]
        if S.FAILED in model.states:
            # Repair may take it out of Failed at any time, and then nothing is certain.
            return
        reply = await self._send(step)
        mark = self._marks.get((step.shard, step.machine), (-1, -1))
        below_floor = self._has_floor and step.token[0] < self._floors[step.shard]
        if step.token <= mark or below_floor:
            expect.fenced(reply)
            return
        expect.not_fenced(reply)
        expect.answered(reply)
        self._marks[step.shard, step.machine] = step.token
        self._floors[step.shard] = max(self._floors[step.shard], step.token[0])
        self._compare(step, model, reply)

    async def _send(self, step: Step) -> Ack:
        provider, machine_id = self._t.provider, self.ids[step.machine]
        token = self._shards[step.shard].token(*step.token)
        match step.what:
            case "create":
                return await provider.create(machine_id, token)
            case "configure":
                return await provider.configure(machine_id, step.cluster, _METADATA, token=token)
            case "drain":
                return await provider.drain(machine_id, token=token)
        return await provider.delete(machine_id, token)

    def _compare(self, step: Step, model: Modelled, reply: Ack) -> None:
        source, goal = EDGES[step.what]
        recorded = model.operations.get(step.what, "")
        repeats = bool(model.states & {goal, DURING[step.what]}) and bool(recorded)
        repeats = repeats and step.cluster in ("", model.cluster)
        if reply.code is not Code.OK:
            # In its place, or repeated, it must succeed; what may be under way leaves both open.
            certain = model.states == {source} or (repeats and model.states <= {goal, DURING[step.what]})
            expect.that(not certain, f"{reply}, expected OK: the machine is {_names(model.states)}")
            expect.rejected(reply)
            return
        operation_id = expect.operation(reply)
        if repeats and operation_id == recorded:
            return
        if source in model.states:
            expect.that(
                operation_id not in model.operations.values(), f"{reply.call} has the old {operation_id}"
            )
            if model.states != {source}:
                model.rest(source)
            model.accept(step.what, operation_id, step.cluster)
            return
        # At its target with nothing on record a provider may answer a call that does nothing (P-45).
        no_op = goal in model.states and not recorded and not step.cluster and _is_at(reply.answer, goal)
        expect.that(no_op, f"{reply}, expected a rejection: the machine is {_names(model.states)}")


def _is_at(ack: pb.TransitionAck | None, state: S) -> bool:
    return ack is not None and state_of(ack.machine) is state


def _names(states: set[S]) -> str:
    return " or ".join(state.name for state in sorted(states))
