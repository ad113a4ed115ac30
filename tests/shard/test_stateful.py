"""A shard's core under random sessions, demand, faults and answers in any order."""

from dataclasses import replace
from typing import Any

import hypothesis.strategies as st
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from bigfleet.shard.core import effects, events
from bigfleet.shard.core.effects import Effect
from bigfleet.shard.core.mailbox import FrameClass
from bigfleet.sim.operator import Habits
from bigfleet_base.model import MachineState
from bigfleet_base.model.frames import BootstrapRequest, NodeState
from tests.shard.lab import SECOND, Lab, failure, machines, need, serving

S = MachineState
CLUSTERS = ("c1", "c2", "c3")
PRIORITIES = (10, 1000, 1_000_000)
SOURCE = {
    effects.CreateMachine: S.CREATING,
    effects.ConfigureMachine: S.CONFIGURING,
    effects.DrainMachine: S.DRAINING,
    effects.DeleteMachine: S.DELETING,
}


class ShardMachine(RuleBasedStateMachine):
    """What must hold whatever happens: one operation per machine, no call from the wrong state, nothing lost
    or sent twice, bounds kept; and once the world is left alone, it comes to rest with its demand met."""

    @initialize(idle=st.integers(0, 6), spare=st.integers(0, 6), bound=st.integers(0, 4), n=st.integers(1, 4))
    def begin(self, idle: int, spare: int, bound: int, n: int) -> None:
        self.in_flight: dict[str, int] = {}
        self.emitted: set[str] = set()
        self.results: set[str] = set()
        records = [
            *machines(idle, S.IDLE, "i"),
            *machines(spare, S.SPECULATIVE, "s"),
            *serving(need("c1", bound), bound, "b"),
        ]
        self.lab = Lab(records, instant=False, trace=self._watch, concurrency=n, settle=False)
        self.lab.run(0)
        for cluster in CLUSTERS:
            self.lab.operator(cluster, habits=Habits(rollup_interval=10 * SECOND))

    def _watch(self, _now: int, event: events.Event, done: list[Effect]) -> None:
        core = self.lab.shard.running if hasattr(self, "lab") else None
        if isinstance(event, events.CallEnded):
            self.in_flight = {m: op for m, op in self.in_flight.items() if op != event.op}
        for effect in done:
            match effect:
                case (
                    effects.CreateMachine()
                    | effects.ConfigureMachine()
                    | effects.DrainMachine()
                    | effects.DeleteMachine()
                ):
                    assert effect.machine_id not in self.in_flight, "two operations on one machine"
                    self.in_flight[effect.machine_id] = effect.op
                    assert core is not None
                    assert len(self.in_flight) <= core.settings.concurrency
                    record = core.fleet.machine(effect.machine_id)
                    assert record is not None and record.state is SOURCE[type(effect)]
                case effects.WriteAudit(line):
                    self._audit(dict(line))
                case _:
                    pass

    def _audit(self, line: dict[str, Any]) -> None:
        if line["type"] == "action.emitted":
            assert line["op_id"] not in self.emitted
            self.emitted.add(line["op_id"])
        if line["type"] == "action.result":
            assert line["op_id"] not in self.results, "an operation ended twice"
            self.results.add(line["op_id"])

    @rule(cluster=st.sampled_from(CLUSTERS), cpus=st.integers(0, 8), priority=st.sampled_from(PRIORITIES))
    def change_demand(self, cluster: str, cpus: int, priority: int) -> None:
        rows = [need(cluster, cpus, priority=priority)] if cpus else []
        operator = self.lab.operators[cluster]
        operator.needs = rows
        operator.rollup()

    @rule(seconds=st.sampled_from([0, 1, 3, 11, 31, 61]))
    def wait(self, seconds: int) -> None:
        self.lab.run(seconds)

    @rule(data=st.data())
    def finish_some(self, data: st.DataObject) -> None:
        moving = self.lab.provider.states(S.CREATING, S.CONFIGURING, S.DRAINING, S.DELETING)
        if moving:
            self.lab.provider.finish(data.draw(st.sampled_from(moving)))

    @rule(data=st.data())
    def break_a_machine(self, data: st.DataObject) -> None:
        found = self.lab.provider.states(S.CONFIGURED, S.CONFIGURING, S.IDLE, S.DRAINING)
        if found:
            self.lab.provider.fail(data.draw(st.sampled_from(found)))

    @rule(data=st.data())
    def repair_a_machine(self, data: st.DataObject) -> None:
        broken = self.lab.provider.states(S.FAILED)
        if broken:
            found = self.lab.provider.records[data.draw(st.sampled_from(broken))].machine
            clean = machines(1, S.IDLE, "x")[0]
            self.lab.provider.put(replace(clean, id=found.id))

    @rule(
        code=st.sampled_from(
            ["UNAVAILABLE", "ABORTED", "INVALID_ARGUMENT", "NOT_FOUND", "INTERNAL", "UNIMPLEMENTED", ""]
        ),
        rpc=st.sampled_from(["Create", "Configure", "Drain", "Delete"]),
    )
    def refuse_calls(self, code: str, rpc: str) -> None:
        refusal = failure(code) if code else None
        self.lab.provider.refuse = lambda kind, _: refusal if kind == rpc else None

    @rule(down=st.booleans())
    def provider_up_or_down(self, down: bool) -> None:
        self.lab.provider.down = down

    @rule(held=st.booleans())
    def hold_answers(self, held: bool) -> None:
        self.lab.provider.hold = lambda _rpc, _machine: held
        if not held:
            self.lab.provider.release()

    @rule(cluster=st.sampled_from(CLUSTERS), back=st.sampled_from([1, 5, 70]))
    def drop_a_session(self, cluster: str, back: int) -> None:
        if self.lab.operators[cluster].session is not None:
            self.lab.operators[cluster].disconnect(come_back_after=back * SECOND)

    @rule(cluster=st.sampled_from(CLUSTERS), answers=st.booleans(), acks=st.booleans(), error=st.booleans())
    def change_habits(self, cluster: str, answers: bool, acks: bool, error: bool) -> None:
        habits = self.lab.operators[cluster].habits
        habits.answers, habits.acks = answers, acks
        habits.blob_error = "no template" if error else ""

    @rule(cluster=st.sampled_from(CLUSTERS))
    def replace_a_session(self, cluster: str) -> None:
        operator = self.lab.operators[cluster]
        if operator.session is not None:
            # It does not see the old stream end: the new one is of another process.
            operator.session = None
            operator.connect()

    @rule(
        cycle=st.sampled_from([0, SECOND // 10, 2 * SECOND]), lists=st.sampled_from([0, SECOND, 15 * SECOND])
    )
    def slow_down(self, cycle: int, lists: int) -> None:
        self.lab.shard.cycle_duration, self.lab.shard.list_duration = cycle, lists

    @rule(data=st.data())
    def lose_a_machine(self, data: st.DataObject) -> None:
        if self.lab.provider.records:
            del self.lab.provider.records[data.draw(st.sampled_from(sorted(self.lab.provider.records)))]

    @rule(present=st.booleans())
    def pause(self, present: bool) -> None:
        self.lab.shard.submit(events.PauseFile(present))

    @precondition(lambda self: self.lab.time.now > 0)
    @rule()
    def kill_and_restart(self) -> None:
        self.lab.shard.kill()
        self.in_flight.clear()
        self.lab.shard.restart()
        self.lab.run(0)

    @invariant()
    def bounds_hold(self) -> None:
        if not hasattr(self, "lab"):
            return
        core = self.lab.shard.running
        assert core.executor.depth() <= core.settings.queue_capacity
        assert core.executor.in_flight() <= core.settings.concurrency
        depths = core.outboxes.depths()
        assert depths[FrameClass.BOOTSTRAP] <= core.settings.concurrency * len(CLUSTERS)

    def teardown(self) -> None:
        if not hasattr(self, "lab"):
            return
        lab = self.lab
        lab.shard.cycle_duration = lab.shard.list_duration = 0
        lab.provider.down = False
        lab.provider.refuse = lambda _rpc, _machine: None
        lab.provider.hold = lambda _rpc, _machine: False
        lab.provider.release()
        lab.shard.submit(events.PauseFile(present=False))
        for cluster, operator in lab.operators.items():
            operator.habits.answers = operator.habits.acks = True
            operator.habits.blob_error = ""
            if operator.session is None:
                operator.connect()
            assert operator.session is not None, cluster
        for _ in range(120):
            lab.provider.finish()
            lab.run(12)
        core = lab.shard.running
        for machine_id in core.engine.inventory:
            ours = core.fleet.machine(machine_id)
            theirs = lab.provider.records[machine_id].machine
            assert ours is not None
            assert (ours.state, ours.cluster) == (theirs.state, theirs.cluster)
            assert ours.state in (S.SPECULATIVE, S.IDLE, S.CONFIGURED, S.FAILED), "a transition is stuck"
        assert sorted(core.engine.inventory) == sorted(lab.provider.records)
        assert core.executor.in_flight() == 0 and core.executor.depth() == 0
        self._every_cluster_knows_its_machines()
        supply = [m for m in lab.provider.records.values() if m.machine.state in (S.IDLE, S.SPECULATIVE)]
        for verdict in core.views.verdicts:
            assert verdict.satisfied or not supply, "demand is short although machines are free"

    def _every_cluster_knows_its_machines(self) -> None:
        core = self.lab.shard.running
        for cluster, operator in self.lab.operators.items():
            for machine_id in core.engine.inventory:
                record = core.fleet.machine(machine_id)
                assert record is not None
                known = operator.nodes.get(machine_id)
                if record.cluster == cluster:
                    assert known is not None and known.state is record.state
                elif known is not None:
                    assert known.state not in (S.CONFIGURED, S.CONFIGURING, S.DRAINING), (
                        f"{cluster} was never told that it lost {machine_id}"
                    )
            addressed = [f for f in operator.received if isinstance(f, NodeState | BootstrapRequest)]
            assert all(frame.cluster == cluster for frame in addressed)


TestShard = ShardMachine.TestCase
TestShard.settings = settings(
    max_examples=20, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck)
)
