"""Random providers against the rules of shard.md §5 written plainly.

The model sees every List whole and walks all of it; what is tested is told only what the client tells:
records that differ from the last one passed on, and missing machines once.
"""

from dataclasses import dataclass, field
from typing import TypeAlias

from hypothesis import given
from hypothesis import strategies as st

from bigfleet.shard.core.removals import SAMPLE, evenly_spaced
from bigfleet_base.model import Machine, MachineState
from tests.support.rules import rule
from tests.unit.shard.core.reconcile_world import (
    CONFIGURED,
    CONFIGURING,
    CREATING,
    DELETING,
    DRAINING,
    FAILED,
    IDLE,
    NOT_FOUND,
    SPECULATIVE,
    World,
    machine,
)

Place: TypeAlias = tuple[MachineState, str]
Listing: TypeAlias = dict[str, Machine | None]
"""What a List says of each machine; None: a record that is refused."""

IDS = [f"m-{n:02}" for n in range(16)]
AT_ONCE = {
    (CREATING, IDLE),
    (CONFIGURING, CONFIGURED),
    (DRAINING, IDLE),
    (DELETING, SPECULATIVE),
    (FAILED, IDLE),
    (FAILED, SPECULATIVE),
}

states = st.sampled_from([s for s in MachineState if s is not MachineState.UNSPECIFIED])
records = st.builds(
    lambda i, state, cluster, price: machine(
        i,
        state,
        cluster if state in (CONFIGURING, CONFIGURED, DRAINING, FAILED) else "",
        price_per_hour=price,
    ),
    st.sampled_from(IDS),
    states,
    st.sampled_from(["a", "b"]),
    st.sampled_from([1.0, 2.0]),
)


@dataclass(frozen=True)
class Step:
    """The provider changes some records and loses some, then a List shows it in one way or another."""

    changed: tuple[Machine, ...]
    lost: frozenset[str]
    kind: str
    left_out: frozenset[str]
    rejected: frozenset[str]


steps = st.builds(
    Step,
    st.lists(records, max_size=4).map(tuple),
    st.frozensets(st.sampled_from(IDS), max_size=2),
    st.sampled_from(["full", "full", "full", "empty", "partial", "delta", "broken"]),
    st.frozensets(st.sampled_from(IDS), max_size=8),
    st.frozensets(st.sampled_from(IDS), max_size=2),
)


@dataclass
class Model:
    """The rules, with a look at every machine in every List."""

    known: dict[str, Machine] = field(default_factory=dict)
    row: dict[str, tuple[Place, int]] = field(default_factory=dict)
    missing: dict[str, int] = field(default_factory=dict)

    def observe(self, record: Machine, *, counts: bool) -> None:
        self.missing.pop(record.id, None)
        ours = self.known.get(record.id)
        place = (record.state, record.cluster)
        if ours is None or (ours.state, ours.cluster) == place or self._is_at_once(ours, record):
            self.adopt(record)
            return
        seen, times = self.row.get(record.id, (place, 0))
        times = (times if seen == place else 0) + counts
        self.row[record.id] = (place, times)
        if times == 3:
            self.adopt(record)

    def adopt(self, record: Machine) -> None:
        self.known[record.id] = record
        self.row.pop(record.id, None)

    def refuse(self, machine_id: str) -> None:
        self.row.pop(machine_id, None)
        if machine_id in self.missing:
            self.missing[machine_id] = 0

    def end(self, listing: Listing, truth: dict[str, Machine]) -> None:
        """A List that was answered to its end."""
        for machine_id, record in listing.items():
            if record is None:
                self.refuse(machine_id)
            else:
                self.observe(record, counts=True)
        for machine_id in self.known.keys() - listing.keys():
            self.row.pop(machine_id, None)
            self.missing[machine_id] = self.missing.get(machine_id, 0) + 1
        gone = [machine_id for machine_id, times in self.missing.items() if times > 0]
        if len(gone) <= max(10, len(self.known) / 20) and len(gone) <= len(self.known) / 2:
            self._remove(gone)
            return
        due = sorted(machine_id for machine_id in gone if self.missing[machine_id] >= 3)
        found = [truth[i] for i in evenly_spaced(due, SAMPLE) if i in truth]
        if not found:
            self._remove(due)
            return
        self.missing = dict.fromkeys(self.missing, 0)
        for record in found:
            self.adopt(record)

    def _remove(self, machine_ids: list[str]) -> None:
        for machine_id in machine_ids:
            del self.known[machine_id], self.missing[machine_id]
            self.row.pop(machine_id, None)

    @staticmethod
    def _is_at_once(ours: Machine, record: Machine) -> bool:
        foreign = record.cluster not in ("", ours.cluster)
        return not foreign and (record.state is FAILED or (ours.state, record.state) in AT_ONCE)


class Client:
    """Tells only news, as the provider client does."""

    def __init__(self) -> None:
        self._passed: dict[str, Machine] = {}

    def view(self, changes: Listing, removed: frozenset[str]) -> Listing:
        """What a delta amounts to."""
        view: Listing = {i: record for i, record in self._passed.items() if i not in removed}
        return view | changes

    def news(self, listing: Listing) -> tuple[list[Machine], tuple[str, ...]]:
        changed = [r for i, r in listing.items() if r is not None and self._passed.get(i) != r]
        self._passed.update((record.id, record) for record in changed)
        return changed, tuple(i for i, record in listing.items() if record is None)

    def gone(self, listing: Listing) -> tuple[str, ...]:
        gone = tuple(i for i in self._passed if i not in listing)
        for machine_id in gone:
            del self._passed[machine_id]
        return gone


@rule("shard.Q2", "shard.Q3", "shard.Q7", "shard.Q9", "provider.P-136")
@given(st.lists(steps, max_size=14))
def test_news_of_any_provider_lead_where_its_whole_lists_would(script: list[Step]) -> None:
    world, model, truth = World(), Model(), {i: machine(i) for i in IDS}
    client = Client()
    for step in (Step((), frozenset(), "full", frozenset(), frozenset()), *script):
        truth |= {record.id: record for record in step.changed}
        for machine_id in step.lost:
            truth.pop(machine_id, None)
        _play(step, world, model, client, truth)
        world.rebuild()
        assert _summary({i: world.machine(i) for i in world.ctx.engine.inventory}) == _summary(model.known)
        state = world.reconcile.state
        assert state.providers["p"].todo == []
        assert state.holdings.machines.get("p", 0) == len(model.known)


def _play(step: Step, world: World, model: Model, client: Client, truth: dict[str, Machine]) -> None:
    world.wait(10)
    listing: Listing = {i: None if i in step.rejected else r for i, r in truth.items()}
    match step.kind:
        case "empty":
            listing = {}
        case "partial":
            listing = {i: r for i, r in listing.items() if i not in step.left_out}
        case "delta":
            changes: Listing = {i: r for i, r in listing.items() if i not in step.left_out}
            listing = client.view(changes, step.lost - truth.keys())
        case "broken":
            for machine_id in step.left_out & truth.keys():
                record = truth[machine_id]
                changed, _ = client.news({machine_id: record})
                world.slice(*changed)
                model.observe(record, counts=False)
            world.fail()
            return
    changed, rejected = client.news(listing)
    world.slice(*changed, rejected=rejected)
    world.slice(gone=client.gone(listing))
    world.end(complete=step.kind != "delta")
    world.wait(1)
    for machine_id in world.gets():
        world.answer(machine_id, truth.get(machine_id, NOT_FOUND))
    model.end(listing, truth)


def _summary(machines: dict[str, Machine]) -> dict[str, tuple[MachineState, str, float]]:
    return {i: (m.state, m.cluster, m.price_per_hour) for i, m in sorted(machines.items())}


# With an executor at work, whose writes and Lists cross in any order


@dataclass(frozen=True)
class Move:
    what: str
    machine: int
    late: bool


moves = st.builds(
    Move,
    st.sampled_from(["begin", "accept", "refuse", "lose", "finish", "list", "list", "answer", "fail host"]),
    st.integers(0, 3),
    st.booleans(),
)


@rule("shard.Q1", "shard.X4", "provider.P-135")
@given(st.lists(moves, max_size=40))
def test_operations_and_lists_in_any_order_never_cross_and_end_where_the_provider_is(
    script: list[Move],
) -> None:
    world, truth = World(), {f"m-{n}": machine(f"m-{n}") for n in range(4)}
    passed: dict[str, Machine] = {}
    calls: dict[str, Machine] = {}
    asked: list[tuple[str, int, Machine]] = []

    def news(records: dict[str, Machine]) -> list[Machine]:
        found = [r for i, r in records.items() if passed.get(i) != r]
        passed.update((record.id, record) for record in found)
        return found

    def take_gets() -> None:
        asked.extend((i, world.ctx.now, truth[i]) for i in world.gets())

    world.list(*news(truth))
    for move in script:
        machine_id = f"m-{move.machine}"
        world.wait(1)
        match move.what:
            case "begin" if machine_id not in world.busy and world.machine(machine_id).state is IDLE:
                world.busy.add(machine_id)
                calls[machine_id] = machine(machine_id, CONFIGURING)
                world.command(calls[machine_id])
            case "accept" | "refuse" | "lose" if machine_id in calls:
                call = calls.pop(machine_id)
                took_effect = truth[machine_id].state is IDLE and (
                    move.what == "accept" or (move.what == "lose" and move.late)
                )
                if took_effect:
                    truth[machine_id] = call
                passed.pop(machine_id, None)
                if move.what == "lose" or (move.what == "accept" and not took_effect):
                    world.reconcile.verify(machine_id)
                elif move.what == "refuse":
                    world.fleet.take_back(machine(machine_id))
                world.release(machine_id)
            case "finish" if truth[machine_id].state is CONFIGURING:
                truth[machine_id] = machine(machine_id, CONFIGURED)
            case "fail host":
                truth[machine_id] = machine(machine_id, FAILED)
            case "list":
                before = {i: world.machine(i) for i in world.busy}
                when = world.ctx.now
                answer = dict(truth)
                if move.late:
                    world.wait(1)
                world.slice(*news(answer), started=when)
                world.end(started=when)
                assert {i: world.machine(i) for i in world.busy} == before
            case "answer" if asked:
                which, when, record = asked.pop(0)
                passed.pop(which, None)
                world.answer(which, record, started=when)
        take_gets()
    for machine_id in sorted(world.busy):
        passed.pop(machine_id, None)
        world.fleet.take_back(machine(machine_id))
        world.release(machine_id)
    for _ in range(8):
        world.wait(1)
        take_gets()
        while asked:
            which, when, _record = asked.pop(0)
            passed.pop(which, None)
            world.answer(which, truth[which], started=when)
        world.list(*news(dict(truth)))
    assert _summary({i: world.machine(i) for i in truth}) == _summary(truth)
    assert world.reconcile.state.verifying == {}
    assert world.fleet.state.touched == {}
