"""What waits for operators, in which order, and how much of it (shard.md §8.1, §8.2, Q8)."""

from copy import deepcopy
from dataclasses import replace

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    run_state_machine_as_test,
)
from hypothesis.stateful import rule as step

from bigfleet.engine.options import SECOND
from bigfleet.shard.core import outbox
from bigfleet.shard.core.events import NodeReadiness
from bigfleet.shard.core.mailbox import FrameClass
from bigfleet.shard.core.outbox import GONE, INSTRUCTION_SLACK, LAST_WORD_AFTER, Outboxes
from bigfleet.shard.core.queue import KeyQueue
from bigfleet.shard.core.settings import CREDIT, MAX_ACKS, MAX_AVAILABLE_FRAMES, MAX_NODE_FRAMES, MAX_RECLAIMS
from bigfleet_base.model import EMPTY, Machine, ResourceVector
from bigfleet_base.model.frames import (
    AvailableCapacity,
    Confidence,
    HelloAck,
    NodeState,
    ReclaimInstruction,
    Resync,
    RollupAck,
)
from tests.support.rules import rule
from tests.unit.shard.core.outbox_lab import Lab, S, bound, idle, instructions, request, requests, states


def hint(fingerprint: str, count: int = 1) -> AvailableCapacity:
    return AvailableCapacity(fingerprint, (), EMPTY, count, Confidence.HIGH, 0.5)


def stuck(lab: Lab, cluster: str = "a") -> None:
    """Use up the credit of a session that is up to date."""
    for n in range(CREDIT - lab.unwritten[cluster]):
        lab.outboxes.ack(cluster, RollupAck(n))
        lab.end()
    lab.take()


# Node states


@rule("shard.N1", "shard.Q6")
def test_an_up_to_date_session_hears_of_every_change_once_the_end_included() -> None:
    lab = Lab()
    lab.insert(idle("m-1"))
    lab.open()
    lab.take()
    lab.move("m-1", S.CONFIGURING, S.CONFIGURED, S.DRAINING, S.IDLE, S.DELETING)
    seen = [("m-1", state) for state in (S.CONFIGURING, S.CONFIGURED, S.DRAINING, S.IDLE)]
    assert states(lab.take()) == seen, "and nothing while it is nobody's"


@rule("shard.N2")
def test_a_node_is_announced_with_its_allocatable_labels_and_host() -> None:
    lab = Lab()
    lab.insert(
        replace(bound("m-1"), allocatable=ResourceVector(cpu=64_000)), replace(bound("m-2"), allocatable=None)
    )
    lab.open()
    _, first, second, _ = lab.take()
    assert first == NodeState(
        machine_id="m-1",
        cluster="a",
        state=S.CONFIGURED,
        provider_id="host-of-m-1",
        last_error="",
        labels={
            "rack": "r1",
            "node.kubernetes.io/instance-type": "m6i.large",
            "topology.kubernetes.io/zone": "z1",
        },
        resources=ResourceVector(cpu=64_000),
        node_name="",
    )
    assert isinstance(second, NodeState) and second.resources == ResourceVector(cpu=4000)


def test_price_and_labels_are_no_news_but_an_assignment_is() -> None:
    lab = Lab()
    lab.insert(bound("m-1"))
    lab.open()
    lab.take()
    lab.observe(replace(bound("m-1"), price_per_hour=3.0, labels={"rack": "r2"}))
    assert lab.take() == []
    lab.observe(replace(bound("m-1"), assigned_priority=5))
    assert states(lab.take()) == [("m-1", S.CONFIGURED)]


@rule("shard.Q2")
def test_a_machine_that_changes_clusters_ends_in_one_and_is_announced_in_the_other() -> None:
    lab = Lab()
    lab.insert(bound("m-1", "a"))
    of_a, of_b = lab.open("a"), lab.open("b")
    lab.take(of_a), lab.take(of_b)
    lab.observe(bound("m-1", "b"))
    assert states(lab.take(of_a)) == [("m-1", S.IDLE)]
    assert states(lab.take(of_b)) == [("m-1", S.CONFIGURED)]


@rule("shard.O1", "shard.N3")
def test_changes_of_an_absent_cluster_are_kept_as_the_last_state_of_each_machine() -> None:
    lab = Lab(listed=False)
    lab.insert(*(bound(f"m-{n}") for n in range(10)))
    lab.outboxes.lists_complete()
    for turn in range(100):
        for n in range(10):
            lab.observe(bound(f"m-{n}", state=S.CONFIGURED if turn % 2 else S.DRAINING))
    assert lab.outboxes.depths()[FrameClass.NODE] == 10
    assert lab.counts["outbox_superseded_total", "node"] == 990
    lab.observe(idle("m-3"))
    lab.open()
    rest = [(f"m-{n}", S.CONFIGURED) for n in range(10) if n != 3]
    assert states(lab.take()) == [("m-3", S.IDLE), *rest]
    assert lab.outboxes.depths()[FrameClass.NODE] == 0


@rule("shard.O3")
def test_an_absent_cluster_loses_its_oldest_keys_and_no_errand(
    full_size: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab = Lab(listed=False)
    kept, count = (MAX_NODE_FRAMES, 60_000) if full_size else (500, 600)
    monkeypatch.setattr("bigfleet.shard.core.mailbox.MAX_NODE_FRAMES", kept)
    lab.insert(*(bound(f"m-{n:05}") for n in range(count)))
    lab.outboxes.lists_complete()
    lab.outboxes.bootstrap("a", request(1))
    instruction = lab.drain("m-00000")
    for n in range(1, count):
        lab.move(f"m-{n:05}", S.DRAINING)
    assert lab.outboxes.depths()[FrameClass.NODE] == kept
    assert lab.counts["outbox_dropped_total", "node"] == count - kept
    lab.open()
    frames = lab.take()
    assert requests(frames) == ["request-1"] and instructions(frames) == [instruction]


@rule("shard.S10")
def test_a_peer_that_reads_nothing_holds_its_credit_and_the_bounds() -> None:
    lab = Lab()
    lab.insert(*(bound(f"m-{n}") for n in range(20)))
    lab.open()
    for n in range(5_000):
        lab.outboxes.ack("a", RollupAck(n))
        lab.observe(bound(f"m-{n % 20}", state=S.CONFIGURED if n // 20 % 2 else S.DRAINING))
    assert len(lab.take()) == CREDIT
    depths = lab.outboxes.depths()
    assert (depths[FrameClass.ACK], depths[FrameClass.NODE]) == (MAX_ACKS, 20)
    lab.write()
    frames = lab.take()
    acks = [frame.timestamp_ns for frame in frames if isinstance(frame, RollupAck)]
    assert acks == list(range(5_000 - MAX_ACKS, 5_000)), "the newest"
    assert dict(states(frames)) == {f"m-{n}": S.CONFIGURED for n in range(20)}


def test_one_slow_reader_keeps_nobody_else_waiting() -> None:
    lab = Lab()
    slow, quick = lab.open("a"), lab.open("b")
    stuck(lab, "a")
    lab.insert(bound("m-1", "a"), bound("m-2", "b"))
    assert states(lab.take(slow)) == []
    assert states(lab.take(quick)) == [("m-2", S.CONFIGURED)]


# Hints and acknowledgements


@rule("shard.S7")
def test_hints_are_queued_for_connected_clusters_alone_and_do_not_outlive_the_session() -> None:
    lab = Lab()
    lab.outboxes.available("a", hint("fp"))
    lab.end()
    assert lab.outboxes.state.boxes == {}
    lab.open()
    stuck(lab)
    lab.outboxes.available("a", hint("fp", 1))
    lab.outboxes.available("a", hint("fp", 2))
    lab.end()
    assert lab.counts["outbox_superseded_total", "available"] == 1
    lab.write(frames=1)
    assert lab.take() == [hint("fp", 2)]
    lab.outboxes.available("a", hint("fp", 3))
    lab.open()
    assert lab.take() == [HelloAck(), Resync()]


def test_hints_beyond_the_bound_push_out_the_oldest() -> None:
    lab = Lab()
    lab.open()
    stuck(lab)
    for n in range(MAX_AVAILABLE_FRAMES + 3):
        lab.outboxes.available("a", hint(f"fp-{n}"))
    lab.end()
    assert lab.outboxes.depths()[FrameClass.AVAILABLE] == MAX_AVAILABLE_FRAMES
    assert lab.counts["outbox_dropped_total", "available"] == 3
    lab.write(frames=1)
    assert lab.take() == [hint("fp-3")]


def test_acks_go_first_then_errands_then_state_and_hints_in_the_order_they_came() -> None:
    lab = Lab()
    lab.insert(*(bound(f"m-{n}") for n in range(3)))
    lab.open()
    stuck(lab)
    lab.move("m-1", S.DRAINING)
    lab.outboxes.available("a", hint("fp"))
    instruction = lab.drain("m-0")
    lab.outboxes.bootstrap("a", request(1))
    lab.move("m-1", S.IDLE)
    lab.outboxes.ack("a", RollupAck(77))
    lab.end()
    lab.write(frames=CREDIT)
    frames = lab.take()
    assert frames[0] == RollupAck(77)
    assert instructions(frames[1:2]) == [instruction] and requests(frames[2:3]) == ["request-1"]
    assert states(frames[3:4]) == [("m-1", S.IDLE)], "in the place of the frame it replaces"
    assert frames[4] == hint("fp") and states(frames[5:]) == [("m-0", S.DRAINING)]


@rule("shard.S1")
def test_another_hello_is_acknowledged_and_nothing_else() -> None:
    lab = Lab()
    lab.insert(bound("m-1"))
    lab.open()
    lab.take()
    lab.outboxes.ack("a", HelloAck())
    lab.end()
    assert lab.take() == [HelloAck()]


def test_the_oldest_acknowledgement_goes_when_there_are_too_many() -> None:
    lab = Lab()
    lab.open()
    stuck(lab)
    for n in range(MAX_ACKS + 2):
        lab.outboxes.ack("a", RollupAck(n))
    lab.end()
    assert lab.counts["outbox_dropped_total", "ack"] == 2
    lab.write(frames=1)
    assert lab.take() == [RollupAck(2)]


# Errands


@rule("shard.O2", "shard.B4")
def test_unanswered_errands_are_sent_on_every_session_with_their_ids_oldest_first() -> None:
    lab = Lab()
    lab.insert(bound("m-1"), bound("m-2"))
    lab.open()
    lab.outboxes.bootstrap("a", request(2))
    first = lab.drain("m-1")
    lab.outboxes.bootstrap("a", request(1))
    second = lab.drain("m-2")
    lab.take()
    for _ in range(2):
        lab.open()
        frames = lab.take()[1:5]
        assert requests(frames) == ["request-2", "request-1"] and instructions(frames) == [first, second]
    assert lab.counts["outbox_reissued_total", "reclaim"] == 4
    assert lab.counts["outbox_reissued_total", "bootstrap"] == 4

    lab.outboxes.reclaim_acked("a", first)
    lab.outboxes.withdraw_bootstrap("a", "request-2")
    lab.open()
    frames = lab.take()
    assert requests(frames) == ["request-1"] and instructions(frames) == [second]


@rule("shard.O2")
def test_every_drain_has_its_own_id_and_a_refused_ones_is_not_sent_again() -> None:
    lab = Lab()
    lab.insert(bound("m-1"))
    lab.open()
    first = lab.drain("m-1")
    lab.fleet.take_back(bound("m-1"))
    lab.outboxes.withdraw_reclaim("a", first)
    lab.end()
    assert states(lab.take())[-1] == ("m-1", S.CONFIGURED), "which tells the operator to uncordon"
    lab.open()
    assert instructions(lab.take()) == []
    second = lab.drain("m-1")
    assert (first, second) == ("shard-0-7-1", "shard-0-7-2")
    assert instructions(lab.take()) == [second]


def test_an_instruction_withdrawn_before_it_was_sent_is_never_seen() -> None:
    lab = Lab()
    lab.insert(bound("m-1"))
    instruction = lab.drain("m-1")
    lab.outboxes.withdraw_reclaim("a", instruction)
    lab.outboxes.withdraw_reclaim("a", instruction)
    lab.outboxes.withdraw_reclaim("nowhere", instruction)
    lab.outboxes.withdraw_bootstrap("nowhere", "request-1")
    lab.outboxes.reclaim_acked("a", "unknown")
    lab.open()
    assert instructions(lab.take()) == []
    assert list(lab.outboxes.state.boxes) == ["a"]


@pytest.mark.parametrize(
    "end", [idle("m-1"), bound("m-1", "b", S.DRAINING), bound("m-1", state=S.FAILED), None]
)
def test_an_instruction_leaves_when_its_machine_leaves_the_drain(end: Machine | None) -> None:
    lab = Lab()
    lab.insert(bound("m-1"))
    lab.drain("m-1")
    if end is None:
        lab.remove("m-1")
    else:
        lab.observe(end)
    assert lab.outboxes.depths()[FrameClass.RECLAIM] == 0 and lab.outboxes.state.drains == {}
    lab.open()
    assert instructions(lab.take()) == []


def test_an_instruction_is_given_up_some_time_after_its_grace() -> None:
    lab = Lab()
    lab.insert(bound("m-1"))
    lab.drain("m-1", grace_s=30)
    lab.pass_time(30 * SECOND + INSTRUCTION_SLACK - 1)
    assert lab.outboxes.depths()[FrameClass.RECLAIM] == 1
    lab.pass_time(1)
    assert lab.outboxes.depths()[FrameClass.RECLAIM] == 0
    lab.open()
    assert instructions(lab.take()) == []


def test_the_time_of_an_earlier_drain_does_not_end_a_later_one() -> None:
    lab = Lab()
    lab.insert(bound("m-1"))
    lab.drain("m-1", grace_s=10)
    lab.pass_time(5 * SECOND)
    lab.fleet.take_back(bound("m-1"))
    later = lab.drain("m-1", grace_s=10)
    lab.pass_time(5 * SECOND + INSTRUCTION_SLACK)
    lab.open()
    assert instructions(lab.take()) == [later]


def test_there_is_room_for_so_many_instructions() -> None:
    lab = Lab()
    assert lab.outboxes.may_reclaim("a", MAX_RECLAIMS - 1) and not lab.outboxes.may_reclaim("a", MAX_RECLAIMS)
    for n in range(MAX_RECLAIMS):
        assert lab.outboxes.may_reclaim("a")
        lab.outboxes.reclaim("a", f"m-{n}", ReclaimInstruction(f"i-{n}", f"m-{n}", 10, 0))
    assert not lab.outboxes.may_reclaim("a") and lab.outboxes.may_reclaim("b")
    lab.outboxes.reclaim_acked("a", "i-0")
    assert lab.outboxes.may_reclaim("a") and not lab.outboxes.may_reclaim("a", 1)


def test_instructions_of_earlier_processes_stay_within_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbox, "MAX_RECLAIMS", 3)
    lab = Lab()
    lab.insert(*(bound(f"m-{n}", state=S.DRAINING) for n in range(5)))
    lab.open()
    assert len(instructions(lab.take())) == 3


# Machines that vanish


@rule("shard.Q8")
def test_a_vanished_machine_is_failed_and_ten_minutes_later_deleting() -> None:
    lab = Lab()
    lab.insert(bound("m-1"))
    lab.open()
    lab.take()
    lab.remove("m-1")
    (frame,) = lab.take()
    assert isinstance(frame, NodeState)
    assert (frame.state, frame.last_error, frame.cluster) == (S.FAILED, GONE, "a")
    lab.pass_time(LAST_WORD_AFTER - 1)
    assert lab.take() == []
    lab.pass_time(1)
    assert lab.take() == [replace(frame, state=S.DELETING)]
    assert lab.outboxes.state.farewells == {}


@rule("shard.Q8")
def test_a_machine_that_came_back_is_not_ended() -> None:
    lab = Lab()
    lab.insert(bound("m-1"))
    lab.open()
    lab.remove("m-1")
    lab.insert(bound("m-1"))
    lab.take()
    lab.pass_time(LAST_WORD_AFTER // 2)
    lab.remove("m-1")
    lab.take()
    lab.pass_time(LAST_WORD_AFTER - 1)
    assert lab.take() == [], "nor is one that vanished again before its time"
    lab.insert(bound("m-1"))
    lab.take()
    lab.pass_time(LAST_WORD_AFTER)
    assert lab.take() == []


def test_a_machine_that_came_back_and_left_while_its_cluster_was_away_is_ended() -> None:
    lab = Lab()
    lab.insert(bound("m-1"), bound("m-2"))
    lab.open()
    lab.remove("m-1")
    lab.close()
    lab.insert(bound("m-1"))
    lab.move("m-1", S.DRAINING, S.IDLE)
    lab.move("m-2", S.DRAINING, S.IDLE, S.CONFIGURING, S.IDLE)
    lab.open()
    assert states(lab.take()) == [("m-1", S.IDLE), ("m-2", S.IDLE)]


@pytest.mark.parametrize(
    ("back", "seen"), [(idle("m-1"), S.IDLE), (bound("m-1", "b"), S.IDLE), (bound("m-1", ""), None)]
)
def test_a_machine_that_came_back_elsewhere_ends_at_once_unless_it_is_failed(
    back: Machine, seen: object
) -> None:
    lab = Lab()
    lab.insert(bound("m-1"))
    lab.open()
    lab.remove("m-1")
    lab.take()
    if seen is None:
        back = replace(back, state=S.FAILED, last_error="broken")
    lab.insert(back)
    assert states(lab.take()) == ([] if seen is None else [("m-1", seen)])
    lab.pass_time(LAST_WORD_AFTER)
    assert states(lab.take()) == ([("m-1", S.DELETING)] if seen is None else [])


def test_a_failure_that_ends_the_binding_is_ended_too() -> None:
    lab = Lab()
    lab.insert(bound("m-1"), bound("m-2"))
    lab.open()
    lab.take()
    for machine_id in ("m-1", "m-2"):
        lab.observe(replace(idle(machine_id), state=S.FAILED, last_error="host lost"))
    assert states(lab.take()) == [("m-1", S.FAILED), ("m-2", S.FAILED)]
    lab.observe(idle("m-2"))
    assert states(lab.take()) == [("m-2", S.IDLE)]
    lab.pass_time(LAST_WORD_AFTER)
    assert states(lab.take()) == [("m-1", S.DELETING)]


def test_the_last_words_that_are_kept_are_bounded_and_the_oldest_is_said_early(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(outbox, "MAX_FAREWELLS", 3)
    lab = Lab()
    lab.insert(*(bound(f"m-{n}") for n in range(4)))
    lab.open()
    lab.take()
    for n in range(4):
        lab.remove(f"m-{n}")
    assert len(lab.outboxes.state.farewells) == 3
    assert states(lab.take())[3:] == [("m-3", S.FAILED), ("m-0", S.DELETING)]


# Nodes


@rule("shard.S10")
def test_a_node_name_is_used_once_it_is_told_also_for_what_waits() -> None:
    lab = Lab()
    lab.insert(bound("m-1"), bound("m-2"))
    instruction = lab.drain("m-1")
    lab.outboxes.readiness("a", NodeReadiness(1, "m-1", "ip-10-0-0-7", ready=True))
    lab.outboxes.readiness("b", NodeReadiness(1, "m-2", "forged", ready=False))
    assert (lab.outboxes.node_name("m-1"), lab.outboxes.node_name("m-2")) == ("ip-10-0-0-7", "")
    lab.open()
    _, order, first, *_ = lab.take()
    assert order == ReclaimInstruction(instruction, "ip-10-0-0-7", 600, 0)
    assert isinstance(first, NodeState) and first.node_name == "ip-10-0-0-7"
    lab.move("m-1", S.IDLE)
    assert lab.outboxes.node_name("m-1") == "" and lab.outboxes.state.nodes.names == {}


def test_a_report_that_comes_before_the_first_list_is_not_lost_nor_kept_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("bigfleet.shard.core.nodes.MAX_NODE_FRAMES", 2)
    lab = Lab(listed=False)
    lab.open()
    for n in (1, 2, 3, 1):
        lab.outboxes.readiness("a", NodeReadiness(1, f"m-{n}", f"node-{n}", ready=False))
    assert list(lab.outboxes.state.nodes.early["a"]) == ["m-1", "m-2"]
    lab.insert(bound("m-1"), bound("m-2", "b"))
    assert (lab.outboxes.node_name("m-1"), lab.outboxes.node_name("m-2")) == ("node-1", "")
    assert lab.outboxes.unready_count() == 1
    lab.outboxes.lists_complete()
    assert lab.outboxes.state.nodes.early == {}
    lab.outboxes.readiness("a", NodeReadiness(1, "unknown", "node", ready=False))
    assert lab.outboxes.state.nodes.early == {}


def test_configured_machines_whose_node_is_not_ready_are_counted() -> None:
    lab = Lab()
    lab.insert(bound("m-1"), bound("m-2"), bound("m-3", state=S.CONFIGURING))
    for n in (1, 2, 3):
        lab.outboxes.readiness("a", NodeReadiness(1, f"m-{n}", f"node-{n}", ready=False))
        lab.outboxes.readiness("a", NodeReadiness(1, f"m-{n}", "", ready=False))
        assert lab.outboxes.node_name(f"m-{n}") == f"node-{n}"
    assert lab.outboxes.unready_count() == 2
    lab.move("m-3", S.CONFIGURED)
    assert lab.outboxes.unready_count() == 3
    assert Outboxes(lab.ctx, lab.fleet, lab.outboxes.state).unready_count() == 3
    lab.outboxes.readiness("a", NodeReadiness(1, "m-1", "node-1", ready=True))
    lab.move("m-2", S.DRAINING)
    assert lab.outboxes.unready_count() == 1
    lab.remove("m-3")
    assert lab.outboxes.unready_count() == 0 and lab.outboxes.node_name("m-1") == "node-1"


# All of it


def test_an_empty_outbox_goes_with_its_session() -> None:
    lab = Lab()
    lab.open()
    lab.close()
    assert lab.outboxes.state.boxes == {} and sum(lab.outboxes.depths().values()) == 0


def test_more_is_not_written_than_was_given() -> None:
    lab = Lab()
    lab.open()
    with pytest.raises(AssertionError, match="more frames written"):
        lab.outboxes.writable("a", CREDIT)


def test_a_key_that_left_and_was_queued_anew_waits_in_its_new_place() -> None:
    queue = KeyQueue()
    queue.put("a", 1)
    queue.put("b", 2)
    queue.discard("a")
    queue.put("a", 3)
    assert (queue.first(), queue.pop(), queue.pop(), queue.first()) == (2, "b", "a", None)


def test_a_long_lived_queue_stays_small() -> None:
    queue = KeyQueue()
    for n in range(10_000):
        queue.put(f"k-{n}", n)
        if n % 3:
            queue.discard(f"k-{n}")
        if len(queue) > 10:
            assert queue.pop() == f"k-{n - n % 3 - 30}"
    assert len(queue.order) < 200


MACHINES = [f"m-{n}" for n in range(6)]
CLUSTERS = ["a", "b"]
EDGES = {
    S.IDLE: [S.CONFIGURING],
    S.CONFIGURING: [S.CONFIGURED, S.IDLE],
    S.CONFIGURED: [S.DRAINING],
    S.DRAINING: [S.IDLE],
}


class OperatorsSeeTheFleet(RuleBasedStateMachine):
    """Whatever happens: an operator that has read all there is sees exactly the machines that are its own, as
    they are; it is never told of the end of one it was not shown; and it knows every open instruction."""

    @initialize()
    def start(self) -> None:
        # Little credit, so that replays are cut in many places.
        self.patch = pytest.MonkeyPatch()
        self.patch.setattr("bigfleet.shard.core.mailbox.CREDIT", 3)
        self.lab = Lab()
        self.connected: set[str] = set()
        self.seen: dict[str, dict[str, object]] = {cluster: {} for cluster in CLUSTERS}
        self.mentioned: dict[str, set[str]] = {}
        """Since the session opened; what the marker does not find here is swept."""
        self.excused: dict[str, set[str]] = {cluster: set() for cluster in CLUSTERS}
        """Machines whose frame was lost with a stream, or whose Failed object was swept: their end may come
        all the same."""
        self.open: dict[str, dict[str, str]] = {cluster: {} for cluster in CLUSTERS}
        self.told: dict[str, set[str]] = {}
        self.lab.insert(*(idle(machine_id) for machine_id in MACHINES))

    def read(self, session: int, frames: int | None = None) -> None:
        cluster = self.lab.clusters[session]
        seen = self.seen[cluster]
        arrived = self.lab.sent[session]
        self.lab.sent[session] = arrived[frames:] if frames else []
        self.lab.write(cluster, frames)
        if frames is None:
            arrived += self.lab.take(session)
        for frame in arrived[:frames]:
            match frame:
                case NodeState():
                    assert frame.cluster == cluster
                    self.mentioned[cluster].add(frame.machine_id)
                    if frame.state in (S.IDLE, S.DELETING, S.SPECULATIVE):
                        known = seen.pop(frame.machine_id, None) or frame.machine_id in self.excused[cluster]
                        assert known, "the end of a machine that was never shown"
                        self.excused[cluster].discard(frame.machine_id)
                    else:
                        seen[frame.machine_id] = frame.state
                case Resync():
                    for machine_id in seen.keys() - self.mentioned[cluster]:
                        if seen.pop(machine_id) is S.FAILED:
                            self.excused[cluster].add(machine_id)
                case ReclaimInstruction():
                    assert frame.instruction_id not in self.told[cluster], "told twice on one session"
                    self.told[cluster].add(frame.instruction_id)

    def lose(self, cluster: str) -> None:
        """The stream ends with frames on it that nobody has read."""
        unread = [f for f in self.lab.take(self.session(cluster)) if isinstance(f, NodeState)]
        self.excused[cluster].update(frame.machine_id for frame in unread)

    @step(cluster=st.sampled_from(CLUSTERS))
    def connect(self, cluster: str) -> None:
        if cluster in self.connected:
            self.lose(cluster)
        self.mentioned[cluster], self.told[cluster] = set(), set()
        self.lab.open(cluster)
        self.connected.add(cluster)

    @precondition(lambda self: self.connected)
    @step(data=st.data())
    def disconnect(self, data: st.DataObject) -> None:
        cluster = data.draw(st.sampled_from(sorted(self.connected)))
        self.lose(cluster)
        self.connected.discard(cluster)
        self.lab.close(cluster)

    @step(machine_id=st.sampled_from(MACHINES), cluster=st.sampled_from(CLUSTERS), data=st.data())
    def move(self, machine_id: str, cluster: str, data: st.DataObject) -> None:
        machine = self.lab.fleet.machine(machine_id)
        if machine is None:
            self.lab.insert(data.draw(st.sampled_from([idle(machine_id), bound(machine_id, cluster)])))
            return
        target = data.draw(st.sampled_from(EDGES[machine.state]))
        if target is S.DRAINING:
            instruction = self.lab.drain(machine_id, cluster=machine.cluster)
            self.open[machine.cluster][machine_id] = instruction
        else:
            self.open.get(machine.cluster, {}).pop(machine_id, None)
            self.lab.move(machine_id, target, cluster=cluster)

    @step(machine_id=st.sampled_from(MACHINES))
    def vanish(self, machine_id: str) -> None:
        machine = self.lab.fleet.machine(machine_id)
        if machine is not None:
            self.open.get(machine.cluster, {}).pop(machine_id, None)
            self.lab.remove(machine_id)

    @step(cluster=st.sampled_from(CLUSTERS), data=st.data())
    def acknowledge(self, cluster: str, data: st.DataObject) -> None:
        if self.open[cluster]:
            machine_id = data.draw(st.sampled_from(sorted(self.open[cluster])))
            self.lab.outboxes.reclaim_acked(cluster, self.open[cluster].pop(machine_id))
            self.lab.end()

    @step()
    def wait(self) -> None:
        # Less than the life of an instruction, more than that of a Failed object.
        self.lab.pass_time(LAST_WORD_AFTER)
        self.open = {
            cluster: {m: i for m, i in open_.items() if i in self.lab.outboxes.state.boxes[cluster].reclaims}
            for cluster, open_ in self.open.items()
        }

    @step(data=st.data())
    def read_a_little(self, data: st.DataObject) -> None:
        for cluster in sorted(self.connected):
            most = self.lab.unwritten[cluster]
            if most:
                self.read(self.session(cluster), data.draw(st.integers(1, most)))

    @step()
    def restore(self) -> None:
        """Go on from a copy of the state, as a replayed recording does."""
        lab = self.lab
        lab.ctx, lab.fleet = deepcopy((lab.ctx, lab.fleet))
        lab.fleet.listeners.clear()
        lab.outboxes = Outboxes(lab.ctx, lab.fleet, deepcopy(lab.outboxes.state))
        lab.fleet.listeners.append(lab.outboxes.changed)

    def session(self, cluster: str) -> int:
        return max(session for session, of in self.lab.clusters.items() if of == cluster)

    def teardown(self) -> None:
        self.operators_that_have_read_all_see_what_is()
        self.patch.undo()

    @step()
    def operators_that_have_read_all_see_what_is(self) -> None:
        for cluster in sorted(self.connected):
            self.read(self.session(cluster))
            owned = {
                machine_id: machine.state
                for machine_id in MACHINES
                if (machine := self.lab.fleet.machine(machine_id)) and machine.cluster == cluster
            }
            gone = {m for m, f in self.lab.outboxes.state.farewells.items() if f.frame.cluster == cluster}
            assert {m: s for m, s in self.seen[cluster].items() if m not in gone} == owned
            assert self.told[cluster] >= set(self.open[cluster].values())

    @invariant()
    def depths_are_what_is_there(self) -> None:
        if hasattr(self, "lab"):
            boxes = self.lab.outboxes.state.boxes.values()
            expected = [sum(sizes) for sizes in zip(*(box.depths() for box in boxes), strict=True)]
            assert list(self.lab.outboxes.depths().values()) == (expected or [0] * 5)


@rule("shard.O2", "shard.O4", "shard.S5", "shard.S6")
@pytest.mark.timeout(1800)  # 5,000 runs in the nightly tier
def test_operators_see_the_fleet_whatever_happens() -> None:
    run_state_machine_as_test(OperatorsSeeTheFleet)
