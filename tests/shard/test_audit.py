"""The audit log explains every action (shard.md R6) in the words of the simulator's event log (§8.2)."""

from fractions import Fraction

from bigfleet.engine.options import Options
from bigfleet.shard.core import effects, events
from bigfleet.shard.core.outcomes import Outcome
from bigfleet.sim.operator import Habits
from bigfleet.sim.shard import Trace
from bigfleet_base.model import MachineState
from bigfleet_base.model.frames import ReclaimInstruction
from tests.shard.lab import MINUTE, SECOND, Lab, failure, machine, machines, need, serving
from tests.support.rules import rule

S = MachineState
QUIET = Habits(rollup_interval=60 * MINUTE)
KEYS = (
    *("t", "seq", "cycle", "shard", "type", "machine_id", "cluster", "from", "to", "op_id", "kind"),
    *("need_fp", "group", "priority", "reason", "outcome", "grace_s", "cost", "runner_up_cost"),
    *("victim_score", "count", "pods", "err"),
)
WORDS = {
    *("action.emitted", "action.result", "action.suppressed", "action.dryrun", "action.capped"),
    *("action.deferred", "machine.transition", "rollup.accepted", "rollup.quarantined", "rollup.rejected"),
    *("bootstrap.request", "bootstrap.response", "bootstrap.timeout"),
    *("reclaim.instruction", "reclaim.ack", "reclaim.fallback", "fence"),
}
MUTATIONS = (
    effects.CreateMachine,
    effects.ConfigureMachine,
    effects.DrainMachine,
    effects.DeleteMachine,
)


@rule("shard.R6")
def test_a_busy_day_is_told_in_the_vocabulary_and_every_call_was_explained_before() -> None:
    order: list[tuple[str, str]] = []

    def note(_now: int, _event: events.Event, done: list[effects.Effect]) -> None:
        for effect in done:
            if isinstance(effect, effects.WriteAudit):
                line = dict(effect.line)
                if line["type"] == "action.emitted":
                    order.append(("explained", str(line["machine_id"])))
            elif isinstance(effect, MUTATIONS):
                order.append(("called", effect.machine_id))

    lab = _day(note)
    lines = lab.notes.audit

    assert {line["type"] for line in lines} == WORDS - {"action.dryrun"}
    for line in lines:
        assert list(line) == [key for key in KEYS if key in line]
    assert [line["seq"] for line in lines] == list(range(len(lines)))
    for n, (what, machine_id) in enumerate(order):
        assert what == "explained" or ("explained", machine_id) in order[:n]


@rule("shard.R6", "shard.X7")
def test_every_action_that_was_explained_has_one_result() -> None:
    lab = _day()
    emitted = [line["op_id"] for line in lab.notes.lines_of_audit("action.emitted")]
    results = {line["op_id"]: line["outcome"] for line in lab.notes.lines_of_audit("action.result")}

    assert len(set(emitted)) == len(emitted) >= 20
    assert len(lab.notes.lines_of_audit("action.result")) == len(results)
    assert set(results) == set(emitted)
    assert set(results.values()) <= {outcome.value for outcome in Outcome}


@rule("shard.R6", "shard.L7")
def test_the_first_roll_up_of_no_rows_is_in_the_log() -> None:
    lab = Lab(serving(need("c1", 2), 2))
    lab.operator("c1", habits=Habits(rollup_interval=SECOND))
    lab.run(5)

    [line] = lab.notes.lines_of_audit("rollup.accepted")
    assert (line["cluster"], line["count"]) == ("c1", 0)


def _day(trace: Trace | None = None) -> Lab:
    """Everything that can happen, once."""
    rows = [need("c1", 1, priority=100 + n) for n in range(10)]
    served = [m for n, row in enumerate(rows) for m in serving(row, 1, f"m{n}")]
    lab = Lab(
        [*served, *machines(8, S.SPECULATIVE, "s"), *machines(4, prefix="i")],
        options=Options(reclaim_cap=Fraction(1, 100), guard=True, max_actions=3),
        trace=trace,
    )
    one = lab.operator("c1", *rows, habits=QUIET)
    lab.run(15)
    for _ in range(3):
        one.demand()
    lab.run(40)
    assert one.session is not None
    lab.shard.submit(events.RollupRefused(one.session, "needs[0]: no"))
    two = lab.operator("c2", need("c2", 14, priority=1_000_000), habits=Habits(answers=False))
    lab.run(45)
    two.habits.answers = True
    lab.run(45)
    one.habits.acks = False
    two.demand(need("c2", 14, priority=1_000_000), need("c2", 5, priority=1_000_000, group="g"))
    lab.run(30)
    one.disconnect()
    lab.run(30)
    two.demand(need("c2", 2, priority=1_000_000))
    lab.run(40)
    two.disconnect()
    lab.run(30)
    two.connect()
    lab.provider.put(machine(lab.ids(S.CONFIGURED)[0], S.DRAINING, cluster="c2"))
    lab.run(60)
    lab.shard.submit(events.PauseFile(present=True))
    lab.run(15)
    lab.shard.submit(events.PauseFile(present=False))
    lab.provider.refuse = lambda _rpc, _machine: failure("FAILED_PRECONDITION")
    lab.run(60)
    return lab


@rule("shard.R6", "shard.S10", "shard.O2")
def test_an_acknowledgement_that_is_repeated_is_told_of_once() -> None:
    lab = Lab(serving(need("c1", 1), 1), instant=False)
    lab.provider.hold = lambda *_: True
    habits = Habits(rollup_interval=60 * MINUTE, acks=False)
    operator = lab.operator("c1", habits=habits)
    lab.run_until(lambda: operator.frames(ReclaimInstruction) != [])
    [instruction] = operator.frames(ReclaimInstruction)
    assert operator.session is not None
    for _ in range(100):
        lab.shard.submit(events.ReclaimAcked(operator.session, instruction.instruction_id, 0))

    assert len(lab.notes.lines_of_audit("reclaim.ack")) == 1
    assert len(lab.notes.lines("reclaim acknowledged without a node")) == 1
    assert [rpc for _, rpc, _ in lab.provider.calls] == ["Drain"]
