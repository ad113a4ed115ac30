"""Sessions that come, go and replace each other while something is under way (shard.md §8)."""

from bigfleet.shard.core import events
from bigfleet.shard.core.settings import CREDIT, MAX_CLUSTERS
from bigfleet.sim.operator import Habits, SimOperator
from bigfleet_base.model import MachineState
from bigfleet_base.model.frames import BootstrapRequest, HelloAck, NodeState, ReclaimInstruction, Resync
from bigfleet_base.telemetry.catalogue import shard as series
from tests.shard.lab import MINUTE, SECOND, Lab, machine, machines, need, serving
from tests.support.rules import rule

S = MachineState
QUIET = Habits(rollup_interval=60 * MINUTE)


def _since_hello(operator: SimOperator) -> list[object]:
    """What the last session was given."""
    last = max(n for n, frame in enumerate(operator.received) if isinstance(frame, HelloAck))
    return list(operator.received[last:])


@rule("shard.S3", "shard.S5")
def test_a_session_replaced_during_its_replay_is_replayed_to_from_the_start() -> None:
    count = CREDIT + 50
    wanted = need("c1", count)
    lab = Lab(serving(wanted, count))
    mute = lab.operator("c1", wanted, habits=Habits(reads=False, reconnects=None))
    lab.run(2)
    newer = SimOperator(lab.shard, "c1", [wanted])
    newer.connect()
    lab.run(2)

    assert mute.endings and mute.endings[0][0] == "ABORTED"
    shown = [frame.machine_id for frame in newer.frames(NodeState)]
    assert shown == sorted(lab.ids(S.CONFIGURED)) and len(shown) == count
    assert len(newer.frames(Resync)) == 1
    assert lab.gauge(series.ACTIVE_SESSIONS) == 1


@rule("shard.S3")
def test_a_replaced_session_changes_nothing_any_more() -> None:
    lab = Lab(machines(5))
    old = lab.operator("c1", need("c1", 1), habits=Habits(rollup_interval=60 * MINUTE, reconnects=None))
    number = old.session
    assert number is not None
    newer = SimOperator(lab.shard, "c1", [need("c1", 2)], QUIET)
    newer.connect()
    late = [need("c1", 5)]
    lab.shard.submit(events.Rollup(number, 99, b"late", tuple(late), (-1,)))
    lab.shard.submit(events.SessionClosed(number))
    lab.run(12)

    assert [row.aggregate["cpu"] for row in lab.core.engine.needs.snapshot()] == [2000]
    assert newer.session is not None and lab.core.sessions.session_of("c1") == newer.session
    assert len(lab.ids(S.CONFIGURED)) == 2


@rule("shard.B4", "shard.S5")
def test_a_machine_that_waits_for_its_blob_over_a_reconnect_is_shown_before_it_is_ready() -> None:
    lab = Lab(machines(1), instant=False)
    operator = lab.operator("c1", need("c1", 1), habits=Habits(answer_delay=4 * SECOND))
    lab.run(1.5)
    assert operator.frames(BootstrapRequest)
    operator.disconnect(come_back_after=SECOND)
    lab.run(10)

    assert lab.provider.count("Configure") == 1 and lab.state("m-0000") is S.CONFIGURING
    assert operator.nodes["m-0000"].state is S.CONFIGURING
    kinds = [type(frame) for frame in _since_hello(operator)]
    assert kinds.index(Resync) < kinds.index(NodeState), "it is no part of the replay"


@rule("shard.S6", "shard.N3")
def test_what_ended_while_the_operator_was_away_comes_before_the_replay() -> None:
    wanted = need("c1", 3)
    lab = Lab(serving(wanted, 3), instant=False)
    operator = lab.operator("c1", wanted, habits=QUIET)
    lab.run(2)
    operator.demand(need("c1", 2))
    lab.run(10)
    [drained] = lab.provider.states(S.DRAINING)
    operator.disconnect()
    lab.provider.finish()
    lab.run(15)
    assert lab.state(drained) is S.IDLE
    operator.connect()
    lab.run(1)

    states = [(f.machine_id, f.state) for f in _since_hello(operator) if isinstance(f, NodeState)]
    assert states[0] == (drained, S.IDLE)
    assert sorted(states[1:]) == [(m, S.CONFIGURED) for m in lab.ids(S.CONFIGURED)]


@rule("shard.O2", "ruling.R15")
def test_a_drain_that_the_shard_did_not_start_is_told_to_the_operator_and_not_sent_again() -> None:
    wanted = need("c1", 2)
    lab = Lab(serving(wanted, 2))
    operator = lab.operator("c1", wanted, habits=QUIET)
    lab.run(2)
    # The provider empties the host by itself: no instruction of ours is in its record.
    lab.provider.put(machine("m-0001", S.DRAINING))
    lab.run(45)

    assert lab.state("m-0001") is S.DRAINING
    [instruction] = operator.frames(ReclaimInstruction)
    assert (instruction.node, instruction.grace_s) == ("m-0001", 600)
    assert lab.provider.count("Drain") == 0


@rule("shard.X9")
def test_a_cluster_without_a_session_gets_nothing_until_its_operator_returns() -> None:
    low, high = need("b", 2, priority=100), need("a", 4, priority=1_000_000)
    lab = Lab()
    lab.operator("b", low)
    away = lab.operator("a", high, habits=Habits(reconnects=None))
    lab.run(15)
    away.disconnect()
    lab.run(61)
    for record in (*serving(low, 2), *machines(1, prefix="i"), *machines(1, S.SPECULATIVE, "s")):
        lab.provider.put(record)
    lab.run(60)
    assert not lab.provider.accepted, "nobody is evicted for a cluster that cannot take a machine"
    [verdict] = [v for v in lab.core.views.verdicts if v.need.cluster_id == "a"]
    assert verdict.detail == "no_session"

    away.connect()
    lab.run(30)
    assert {lab.machine(m).cluster for m in lab.ids(S.CONFIGURED)} == {"a"}
    assert len(lab.ids(S.CONFIGURED)) == 4


@rule("shard.S10")
def test_the_cluster_beyond_the_limit_is_refused_and_a_known_one_is_not(full_size: bool) -> None:
    lab = Lab(machines(1))
    known = lab.core.sessions.state.known
    if full_size:
        for n in range(MAX_CLUSTERS):
            SimOperator(lab.shard, f"c{n}", (), Habits(rollup_interval=60 * MINUTE)).connect()
    else:
        SimOperator(lab.shard, "c0", (), QUIET).connect()
        known.update({f"c{n}": type(known["c0"])() for n in range(1, MAX_CLUSTERS)})
    assert len(known) == MAX_CLUSTERS
    one_more = lab.operator("new", habits=Habits(reconnects=None))
    again = lab.operator("c17", need("c17", 1), habits=QUIET)
    lab.run(5)

    assert one_more.session is None and len(known) == MAX_CLUSTERS
    assert again.session is not None
    assert lab.machine("m-0000").cluster == "c17"


@rule("shard.T4")
def test_operators_return_to_a_restarted_shard_with_nobody_to_ask() -> None:
    wanted = [need(f"c{n}", 1) for n in range(5)]
    lab = Lab([m for n, row in enumerate(wanted) for m in serving(row, 1, f"m{n}")])
    operators = [lab.operator(row.cluster_id, row) for row in wanted]
    lab.run(5)
    lab.shard.kill()
    lab.run(20)
    lab.shard.restart()
    lab.run(30)

    assert all(operator.session is not None for operator in operators)
    assert not lab.provider.accepted
