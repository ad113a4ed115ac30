"""What a session is given when it opens (shard.md S5, S6, §8.1)."""

from dataclasses import replace

from bigfleet.shard.core.mailbox import FrameClass
from bigfleet.shard.core.outbox import FLUSH_FRAMES
from bigfleet.shard.core.settings import CREDIT
from bigfleet_base.model import Preemptor
from bigfleet_base.model.frames import HelloAck, NodeState, ReclaimInstruction, Resync, RollupAck
from tests.support.rules import rule
from tests.unit.shard.core.outbox_lab import Lab, S, bound, idle, instructions, request, requests, states


@rule("shard.S5", "ruling.R10")
def test_a_session_gets_its_ack_then_every_bound_machine_once_by_id_then_the_marker() -> None:
    lab = Lab()
    kinds = [S.CONFIGURED, S.CONFIGURING, S.DRAINING, S.FAILED]
    lab.insert(*(bound(f"m-{n:02}", state=kinds[n % 4]) for n in reversed(range(30))), idle("free"))
    lab.insert(bound("other", "b"))
    lab.open()
    frames = lab.take()
    assert frames[0] == HelloAck()
    assert states(frames[1:31]) == [(f"m-{n:02}", kinds[n % 4]) for n in range(30)]
    assert frames[31] == Resync()
    assert all(isinstance(frame, ReclaimInstruction) for frame in frames[32:])


@rule("shard.S5")
def test_until_every_provider_is_listed_a_session_gets_acks_alone() -> None:
    lab = Lab(listed=False)
    lab.open()
    lab.outboxes.ack("a", RollupAck(5))
    lab.insert(*(bound(f"m-{n:02}") for n in range(30)))
    assert lab.take() == [HelloAck(), RollupAck(5)]

    lab.outboxes.lists_complete()
    lab.end()
    frames = lab.take()
    assert states(frames) == [(f"m-{n:02}", S.CONFIGURED) for n in range(30)]
    assert frames[-1] == Resync() and len(frames) == 31


@rule("shard.S5", "shard.L9")
def test_without_a_provider_the_replay_has_no_marker_until_that_one_is_listed() -> None:
    lab = Lab(listed=False)
    lab.open()
    lab.insert(bound("m-1"))
    lab.outboxes.lists_incomplete()
    lab.end()
    assert lab.take()[1:] == [lab_frame(lab, "m-1")]

    lab.open()
    assert Resync() not in lab.take()
    lab.insert(bound("late"))
    assert states(lab.take()) == [("late", S.CONFIGURED)], "the session hears of what is found now"

    lab.outboxes.lists_complete()
    lab.end()
    assert lab.take() == []
    lab.open()
    frames = lab.take()
    assert states(frames) == [("late", S.CONFIGURED), ("m-1", S.CONFIGURED)] and frames[-1] == Resync()


def test_a_replay_that_began_on_an_incomplete_inventory_ends_without_a_marker() -> None:
    lab = Lab(listed=False)
    lab.open()
    lab.insert(*(bound(f"m-{n:04}") for n in range(CREDIT + 10)))
    lab.outboxes.lists_incomplete()
    lab.end()
    lab.insert(bound("late"))
    lab.outboxes.lists_complete()
    lab.end()
    lab.write()
    frames = lab.take()
    assert Resync() not in frames and states(frames)[-1] == ("late", S.CONFIGURED)
    assert len(states(frames)) == CREDIT + 11


@rule("shard.S6", "shard.N1", "shard.N3")
def test_the_last_word_on_a_machine_that_left_comes_before_the_replay() -> None:
    lab = Lab()
    lab.insert(bound("m-1"), bound("m-2"))
    lab.open()
    lab.close()
    lab.move("m-2", S.DRAINING, S.IDLE)
    lab.open()
    frames = lab.take()
    assert states(frames) == [("m-2", S.IDLE), ("m-1", S.CONFIGURED)]
    assert frames[1] == replace(
        lab_frame(lab, "m-1"), machine_id="m-2", provider_id="host-of-m-2", state=S.IDLE
    )
    assert frames[-1] == Resync()


@rule("shard.O4")
def test_a_machine_that_came_and_went_unseen_leaves_no_frame() -> None:
    lab = Lab()
    lab.insert(idle("m-1"))
    lab.move("m-1", S.CONFIGURING, S.IDLE)
    assert lab.outboxes.depths()[FrameClass.NODE] == 0
    lab.open()
    assert states(lab.take()) == []


@rule("shard.O4")
def test_the_end_of_a_machine_not_yet_sent_takes_its_frame_along() -> None:
    lab = Lab()
    lab.insert(*(bound(f"x-{n:03}") for n in range(CREDIT)), idle("m-1"))
    lab.open()
    assert len(lab.take()) == CREDIT, "the peer reads nothing: no credit is left"
    lab.move("m-1", S.CONFIGURING, S.IDLE)
    lab.write()
    assert [m for m, _ in states(lab.take())] == [f"x-{CREDIT - 1:03}"]


def test_a_machine_bound_at_the_first_list_was_announced_by_an_earlier_process() -> None:
    lab = Lab(listed=False)
    lab.insert(bound("m-1", state=S.DRAINING))
    assert lab.outboxes.state.boxes == {}, "the replay will show it: nothing waits"
    lab.outboxes.lists_complete()
    lab.move("m-1", S.IDLE)
    lab.open()
    assert states(lab.take()) == [("m-1", S.IDLE)]


def test_a_machine_that_leaves_while_its_session_waits_for_lists_is_ended() -> None:
    lab = Lab(listed=False)
    lab.open()
    lab.insert(bound("m-1", state=S.DRAINING))
    lab.move("m-1", S.IDLE)
    lab.outboxes.lists_complete()
    lab.end()
    assert states(lab.take()) == [("m-1", S.IDLE)]


def test_a_machine_whose_configure_is_not_accepted_is_left_out_and_told_of_after_the_end() -> None:
    lab = Lab()
    lab.insert(bound("m-1", state=S.CONFIGURING), bound("m-2", state=S.CONFIGURING))
    lab.outboxes.is_accepted = lambda machine_id: machine_id == "m-2"
    lab.open()
    frames = lab.take()
    replayed, changes = frames[: frames.index(Resync())], frames[frames.index(Resync()) :]
    assert states(replayed) == [("m-2", S.CONFIGURING)]
    assert states(changes) == [("m-1", S.CONFIGURING)]
    lab.move("m-1", S.CONFIGURED)
    assert states(lab.take()) == [("m-1", S.CONFIGURED)]


@rule("shard.O4", "shard.S10")
def test_a_great_replay_is_made_as_the_peer_reads(full_size: bool) -> None:
    count = 60_000 if full_size else 6_000
    lab = Lab()
    lab.insert(*(bound(f"m-{n:05}") for n in range(count)))
    lab.close()
    lab.outboxes.state.boxes.clear()
    lab.open()
    assert len(lab.sent[1]) == CREDIT and sum(lab.outboxes.depths().values()) == 0
    lab.write()
    frames = lab.take()
    assert states(frames) == [(f"m-{n:05}", S.CONFIGURED) for n in range(count)]
    assert frames[-1] == Resync() and len(frames) == count + 2


def test_a_change_during_the_replay_is_told_once() -> None:
    lab = Lab(listed=False)
    lab.insert(*(bound(f"m-{n:03}") for n in range(400)), idle("m-0005"))
    lab.outboxes.lists_complete()
    session = lab.open()
    shown = len(states(lab.sent[session]))
    assert 100 < shown < 300
    lab.move("m-050", S.DRAINING)  # shown already
    lab.move("m-350", S.DRAINING)  # yet to be shown
    lab.move("m-351", S.DRAINING, S.IDLE)  # left before its turn
    lab.move("m-352", S.DRAINING, S.IDLE, S.CONFIGURING)  # left and came back before its turn
    lab.move("m-0005", S.CONFIGURING)  # joined behind the place where the replay is
    assert len(lab.sent[session]) == CREDIT
    lab.write()
    frames = lab.take()
    marker = frames.index(Resync())
    before, after = states(frames[:marker]), states(frames[marker:])
    assert [m for m, _ in before] == [f"m-{n:03}" for n in range(400) if n != 351]
    assert dict(before)["m-350"] is S.DRAINING and dict(before)["m-352"] is S.CONFIGURING
    assert after == [("m-050", S.DRAINING), ("m-351", S.IDLE), ("m-0005", S.CONFIGURING)]


def test_errands_do_not_wait_for_the_replay() -> None:
    lab = Lab()
    lab.insert(*(bound(f"m-{n:03}") for n in range(1000)))
    lab.open()
    lab.take()
    lab.outboxes.bootstrap("a", request(1))
    lab.outboxes.ack("a", RollupAck(9))
    lab.write(frames=10)
    frames = lab.take()
    assert frames[0] == RollupAck(9) and requests(frames[1:2]) == ["request-1"]
    assert len(states(frames[2:])) == 8


@rule("shard.S5")
def test_a_machine_bound_while_a_cycle_holds_the_index_back_is_replayed() -> None:
    lab = Lab()
    lab.insert(idle("m-1"), bound("m-2"))
    lab.ctx.cycle += 1
    lab.ctx.engine.inventory.freeze()
    lab.open()
    lab.move("m-1", S.CONFIGURING, S.CONFIGURED)
    assert states(lab.take()) == [("m-2", S.CONFIGURED), ("m-1", S.CONFIGURING), ("m-1", S.CONFIGURED)]
    lab.close()
    lab.open()
    assert states(lab.take()) == [("m-1", S.CONFIGURED), ("m-2", S.CONFIGURED)]


@rule("shard.O2")
def test_a_replay_cut_off_starts_over_on_the_next_session() -> None:
    lab = Lab()
    lab.insert(*(bound(f"m-{n:03}") for n in range(400)))
    lab.open()
    lab.take()
    lab.move("m-399", S.DRAINING)
    lab.open()
    lab.write()
    frames = lab.take()
    assert [m for m, _ in states(frames)] == [f"m-{n:03}" for n in range(400)]
    assert states(frames)[-1] == ("m-399", S.DRAINING)


def test_many_replays_at_once_take_turns_and_hold_up_no_ack() -> None:
    lab = Lab(listed=False)
    lab.insert(*(bound(f"m-{c}-{n:03}", f"c-{c}") for c in range(20) for n in range(100)))
    opened = [lab.open(f"c-{c}") for c in range(20)]
    for session in opened:
        lab.take(session)
    lab.outboxes.lists_complete()
    lab.end()
    assert sum(len(lab.sent[s]) for s in opened) == FLUSH_FRAMES
    lab.outboxes.ack("c-19", RollupAck(3))
    lab.end()
    assert lab.sent[opened[19]][0] == RollupAck(3)
    for _ in range(5):
        assert lab.ctx.timers.next() == lab.ctx.now or not lab.outboxes.state.dirty
        lab.pass_time(0)
    assert all(lab.sent[s][-1] == Resync() for s in opened)
    assert all(len(states(lab.sent[s])) == 100 for s in opened)


# Drains that this process did not start


@rule("ruling.R15", "shard.O2")
def test_after_a_restart_a_draining_machine_is_instructed_once_its_cluster_is_replayed() -> None:
    lab = Lab(listed=False)
    preemptor = Preemptor("b", 1_000_000, "fp-b", "")
    lab.fleet.insert(bound("m-1", state=S.DRAINING), "default", preemptor)
    lab.outboxes.echoed("m-1", "shard-0-6-41")
    lab.fleet.insert(bound("m-2", state=S.DRAINING), "default", preemptor)
    lab.fleet.insert(
        replace(bound("m-3", state=S.DRAINING), assigned_need_fingerprint=""), "default", preemptor
    )
    lab.insert(bound("m-4", state=S.DRAINING))
    lab.open()
    assert instructions(lab.take()) == []
    lab.outboxes.lists_complete()
    lab.end()
    frames = lab.take()
    assert frames[4:] == [
        Resync(),
        ReclaimInstruction("shard-0-6-41", "m-1", 10, 1_000_000),
        ReclaimInstruction("shard-0-7-1", "m-2", 10, 1_000_000),
        ReclaimInstruction("shard-0-7-2", "m-3", 600, 0),
        ReclaimInstruction("shard-0-7-3", "m-4", 600, 0),
    ]
    lab.outboxes.reclaim_acked("a", "shard-0-7-1")
    lab.move("m-4", S.IDLE)
    lab.open()
    assert instructions(lab.take()) == ["shard-0-6-41", "shard-0-7-2"], "the same ids, until acked or over"


def test_a_drain_of_ones_own_is_not_instructed_again() -> None:
    lab = Lab()
    lab.insert(bound("m-1"))
    lab.open()
    instruction = lab.drain("m-1")
    lab.outboxes.reclaim_acked("a", instruction)
    lab.take()
    lab.open()
    assert instructions(lab.take()) == []


def test_a_drain_that_is_seen_later_is_instructed_at_once() -> None:
    lab = Lab()
    lab.insert(bound("m-1"))
    lab.open()
    lab.take()
    lab.fleet.observe(bound("m-1", state=S.DRAINING))
    lab.outboxes.echoed("m-1", "shard-0-6-2")
    lab.end()
    frames = lab.take()
    assert instructions(frames) == ["shard-0-6-2"] and states(frames) == [("m-1", S.DRAINING)]


def test_two_machines_that_show_one_instruction_get_one_each() -> None:
    lab = Lab()
    for machine_id in ("m-1", "m-2"):
        lab.insert(bound(machine_id, state=S.DRAINING))
        lab.outboxes.echoed(machine_id, "shard-0-6-2")
    lab.open()
    assert instructions(lab.take()) == ["shard-0-6-2", "shard-0-7-1"]


@rule("shard.F4", "shard.R4")
def test_halted_instructions_stay_until_they_may_leave() -> None:
    lab = Lab()
    lab.insert(bound("m-1"), bound("m-2", state=S.DRAINING))
    lab.outboxes.halt_instructions(True)
    lab.open()
    lab.outboxes.bootstrap("a", request(1))
    lab.drain("m-1")
    frames = lab.take()
    assert not instructions(frames) and not requests(frames) and Resync() in frames
    assert states(frames)[-1] == ("m-1", S.DRAINING), "state goes on"
    lab.outboxes.halt_instructions(False)
    lab.end()
    frames = lab.take()
    assert requests(frames) == ["request-1"] and len(instructions(frames)) == 1


def lab_frame(lab: Lab, machine_id: str) -> NodeState:
    machine = lab.fleet.machine(machine_id)
    assert machine is not None
    return NodeState(
        machine_id,
        machine.cluster,
        machine.state,
        machine.host.ref,
        machine.last_error,
        {"rack": "r1", "node.kubernetes.io/instance-type": "m6i.large", "topology.kubernetes.io/zone": "z1"},
        machine.alloc,
        "",
    )
