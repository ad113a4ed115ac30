"""A fleet that lives: actions are carried out, demand and machines change a little in every cycle.

This is the *steady* regime of the benchmarks. What an action does to a machine is what a shard with a
provider does, edge by edge; a call that was started in one cycle is over in the next.
"""

import random
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from fractions import Fraction
from itertools import cycle
from typing import Final

from bench.adapter import reprice
from bigfleet.engine.actions import Action, ActionKind
from bigfleet.engine.cycle import CycleInputs, CycleResult, Engine
from bigfleet.engine.options import PARK_AFTER, SECOND, Options
from bigfleet.scale.minting import PROVIDER
from bigfleet_base.model import HostRef, Machine, MachineState, Need, ResourceVector, transition
from bigfleet_base.model.penalty import bound_dollars

COMES_OR_GOES: Final = 100
"""Of the Needs that change, one in so many appears or disappears."""
INTERVAL: Final = 10 * SECOND

NeedKey = tuple[str, str, str]

_LONG: Final = 700 * SECOND
"""Longer than any machine is kept idle."""
_ROUNDS: Final = 200
_PRICED: Final = 8
"""So many prices of the fleet go up and down in turn."""
_LOOKED_AT: Final = 1000
CAPPED: Final = Options(reclaim_cap=Fraction(5, 100))
"""What a shard does unless it is told otherwise."""
_FINISHES: Final = {
    MachineState.CREATING: MachineState.IDLE,
    MachineState.CONFIGURING: MachineState.CONFIGURED,
    MachineState.DRAINING: MachineState.IDLE,
    MachineState.DELETING: MachineState.SPECULATIVE,
}


@dataclass(frozen=True, slots=True)
class Rate:
    """How much changes in one cycle."""

    needs: int
    machines: int
    """Those that change their state, the actions of the engine apart."""
    by_a_tenth: bool = True
    """Needs change by a tenth; otherwise by one request."""

    @classmethod
    def steady(cls, engine: Engine) -> "Rate":
        """One Need in a hundred, one machine in a thousand."""
        return cls(max(1, len(engine.needs.snapshot()) // 100), max(2, len(engine.inventory) // 1000))


class RestlessError(Exception):
    """A fleet that does not come to rest, though nothing happens to it."""


@dataclass(slots=True)
class Life:
    """An engine's fleet, and the time."""

    engine: Engine
    now: int = _LONG
    running: list[str] = field(default_factory=list)
    """Machines with a call under way."""
    rounds: int = 0

    def begin(self) -> None:
        """Find the calls that were under way when the fleet was loaded."""
        self.running = [
            entry.machine.id for entry in self.engine.inventory.capture() if entry.machine.state in _FINISHES
        ]

    def settle(self) -> CycleResult:
        """Carry out what is decided until nothing more is, for long enough that hopeless gangs are parked."""
        quiet = 0
        for _ in range(_ROUNDS):
            self.rounds += 1
            self.finish()
            result = self.engine.run(CycleInputs(now=self.now))
            self.start(result.passed.actions)
            self.now += _LONG
            quiet = 0 if self.running else quiet + 1
            if quiet > PARK_AFTER:
                return result
        raise RestlessError(f"after {_ROUNDS} cycles there are still actions: {result.decided[:3]}")

    def start(self, actions: Iterable[Action]) -> None:
        """Begin what was decided."""
        inventory = self.engine.inventory
        for action in actions:
            machine = inventory.entry(action.machine_id).machine
            until = None if action.grace_s is None else self.now + action.grace_s * SECOND
            inventory.apply(
                _begun(machine, action),
                self.now,
                started=True,
                preempted_for=action.preemptor,
                drain_deadline=until,
            )
            self.running.append(machine.id)

    def finish(self) -> None:
        """All that was begun is done."""
        inventory = self.engine.inventory
        for machine_id in self.running:
            machine = inventory.entry(machine_id).machine
            host = {} if machine.host else {"host": HostRef(PROVIDER, machine.id)}
            inventory.apply(transition(machine, _FINISHES[machine.state], **host), self.now)
        self.running.clear()


class Weather:
    """What happens to a fleet from outside: demand moves, hosts break and are repaired, prices change."""

    def __init__(self, life: Life, rate: Rate, seed: int = 1) -> None:
        self._life = life
        self._engine = life.engine
        self._rate = rate
        # Not a secret: a benchmark must meet the same weather in every run.
        self._rng = random.Random(seed)  # noqa: S311
        needs = self._engine.needs.snapshot()
        self._present: dict[str, dict[NeedKey, Need]] = {
            cluster: {need.key: need for need in rows}
            for cluster, rows in self._engine.needs.state.rows.items()
        }
        self._absent: list[Need] = []
        self._draws = self._over_priorities(needs)
        self._machines = sorted(self._engine.inventory)
        self._broken: deque[str] = deque()
        self._prices = cycle(self._moving_prices())

    def change(self) -> None:
        """One cycle's worth of it."""
        self._life.finish()
        self._demand()
        self._hosts()
        machine_id, price = next(self._prices)
        reprice(self._engine, machine_id, price, self._life.now)

    def _demand(self) -> None:
        changed = set()
        for _ in range(self._rate.needs):
            usual = next(self._draws)
            comes_or_goes = self._rng.randrange(COMES_OR_GOES) == 0
            if comes_or_goes and self._absent and self._rng.random() < 0.5:
                usual = self._absent.pop()
                self._present[usual.cluster_id][usual.key] = usual
            elif (known := self._present[usual.cluster_id].get(usual.key)) is not None:
                if comes_or_goes:
                    self._absent.append(usual)
                    del self._present[usual.cluster_id][usual.key]
                else:
                    # A step up or down, then back, so that the demand as a whole stays what it was.
                    at_rest = known.aggregate == usual.aggregate
                    self._present[usual.cluster_id][usual.key] = self._moved(usual) if at_rest else usual
            changed.add(usual.cluster_id)
        for cluster in sorted(changed):
            demand = list(self._present[cluster].values())
            self._engine.needs.apply_rollup(cluster, demand, self._life.now, guard=False)

    def _moved(self, need: Need) -> Need:
        up = 1 if self._rng.random() < 0.5 else -1
        return replace(need, aggregate=_moved(need, up, tenth=self._rate.by_a_tenth))

    def _hosts(self) -> None:
        """Half of the changes break a host, half repair one that broke before."""
        inventory, now = self._engine.inventory, self._life.now
        changes = self._rate.machines
        for _ in range(min(changes // 2, len(self._broken))):
            machine = inventory.entry(self._broken.popleft()).machine
            inventory.apply(transition(machine, MachineState.IDLE), now)
        for _ in range(changes - changes // 2):
            machine = self._settled()
            inventory.apply(transition(machine, MachineState.FAILED, last_error="host lost"), now)
            self._broken.append(machine.id)

    def _settled(self) -> Machine:
        while True:
            machine = self._engine.inventory.entry(self._rng.choice(self._machines)).machine
            if machine.state in (MachineState.CONFIGURED, MachineState.IDLE):
                return machine

    def _over_priorities(self, needs: Iterable[Need]) -> Iterator[Need]:
        """Needs for ever, the priorities by turns."""
        by_priority: dict[int, list[Need]] = {}
        for need in needs:
            by_priority.setdefault(need.profile.priority, []).append(need)
        for of_one in cycle([by_priority[priority] for priority in sorted(by_priority)]):
            yield self._rng.choice(of_one)

    def _moving_prices(self) -> list[tuple[str, float]]:
        """A machine of each of some classes that cost something: dearer, and later as it was."""
        found: dict[tuple[str, str, int], tuple[str, float]] = {}
        for machine_id in self._rng.sample(self._machines, min(_LOOKED_AT, len(self._machines))):
            machine = self._engine.inventory.entry(machine_id).machine
            if machine.price_per_hour > 0 and len(found) < _PRICED:
                found[machine.instance_type, machine.zone, machine.capacity_type] = (
                    machine_id,
                    machine.price_per_hour,
                )
        usual = list(found.values())
        return [(machine_id, price * 1.01) for machine_id, price in usual] + usual


def _begun(machine: Machine, action: Action) -> Machine:
    match action.kind:
        case ActionKind.BOOTSTRAP:
            assert action.profile is not None
            return transition(
                machine,
                MachineState.CONFIGURING,
                cluster=action.cluster,
                assigned_priority=action.profile.priority,
                assigned_interruption_penalty=bound_dollars(action.profile.interruption_bucket),
                assigned_reclamation_penalty=bound_dollars(action.profile.reclamation_bucket),
                assigned_need_fingerprint=action.profile.fingerprint,
                assigned_group=action.group,
            )
        case ActionKind.PROVISION:
            assert action.profile is not None
            return transition(
                machine,
                MachineState.CREATING,
                assigned_need_fingerprint=action.profile.fingerprint,
                assigned_group=action.group,
                target_cluster=action.cluster,
            )
        case ActionKind.PREEMPT | ActionKind.RECLAIM:
            return transition(machine, MachineState.DRAINING)
        case ActionKind.DELETE:
            return transition(machine, MachineState.DELETING)


def _moved(need: Need, sign: int, *, tenth: bool) -> ResourceVector:
    """More or less, in whole requests where the Need is made of equal ones."""
    unit = need.min_unit
    requests = min((need.aggregate[name] // amount for name, amount in unit.items() if amount), default=0)
    if unit * requests == need.aggregate:
        return unit * max(1, requests + sign * (max(1, requests // 10) if tenth else 1))
    step = {name: amount // 10 if tenth else unit[name] for name, amount in need.aggregate.items()}
    return ResourceVector({name: amount + sign * step[name] for name, amount in need.aggregate.items()})
