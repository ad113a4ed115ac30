"""Answers of providers that come late, twice, or about something else (shard.md §5, X4, Q12)."""

from dataclasses import replace
from typing import Any

import pytest

from bigfleet.shard.core import effects, events
from bigfleet.sim.operator import Habits
from bigfleet.sim.provider import Answer, Answered, Mutation, Token
from bigfleet.sim.time import VirtualTime
from bigfleet_base.model import MachineState
from bigfleet_base.model.frames import NodeState
from bigfleet_base.telemetry.catalogue import shard as series
from tests.shard.lab import (
    DEPLOYED,
    MINUTE,
    SECOND,
    START,
    Lab,
    ScriptedProvider,
    failure,
    machine,
    machines,
    need,
    serving,
)
from tests.support.rules import rule

S = MachineState
QUIET = Habits(rollup_interval=60 * MINUTE)


@rule("shard.Q8", "shard.Q2")
def test_a_get_answered_after_its_machine_was_removed_does_not_bring_it_back() -> None:
    lab = Lab([*machines(20, prefix="i"), machine("s-1", S.SPECULATIVE)], instant=False)
    lab.run(1)
    record = lab.provider.records["s-1"]
    # A re-read that the provider takes long to answer, while its Lists no longer have the machine.
    get, lab.provider.get = lab.provider.get, lambda *_: None  # type: ignore[method-assign]  # a stand-in
    lab.shard.list_duration = 5 * SECOND
    lab.run(10)
    lab.operator("c1", need("c1", 21))
    lab.run(2)
    lab.provider.fail("s-1")
    lab.run(12)
    asked = lab.core.state.reconcile.providers["default"].rereads.asked
    assert "s-1" in asked, "its record was older than the Create"
    started = asked["s-1"]
    del lab.provider.records["s-1"]
    lab.run(25)
    assert "s-1" not in lab.core.engine.inventory
    lab.provider.get = get  # type: ignore[method-assign]  # a stand-in
    lab.shard.submit(events.GetEnded("default", "s-1", started, record))

    assert "s-1" not in lab.core.engine.inventory, "no List will ever say again that it is gone"


@rule("shard.Q12", "ruling.R22")
def test_an_id_goes_to_the_other_provider_when_its_holder_gives_it_up() -> None:
    time = VirtualTime(START)
    wanted = need("c1", 1)
    holder = ScriptedProvider(time, [*serving(wanted, 1), *machines(5, prefix="a")], "holder")
    other = ScriptedProvider(time, [*machines(1), *machines(5, prefix="b")], "other")
    lab = Lab(providers=[holder, other], time=time)
    operator = lab.operator("c1", wanted, habits=QUIET)
    lab.run(15)
    assert lab.machine("m-0000").cluster == "c1"
    assert lab.counter(series.MACHINES_REJECTED, "duplicate_id") == 1
    del holder.records["m-0000"]
    lab.run(30)

    assert lab.core.fleet.sidecar("m-0000").provider == "other"
    assert operator.nodes["m-0000"].state is not S.CONFIGURED
    assert len(lab.ids(S.CONFIGURED)) == 1
    lab.run(15 * MINUTE // SECOND)
    assert lab.core.fleet.sidecar("m-0000").provider == "other"


@rule("shard.X4")
def test_an_ack_about_another_cluster_is_no_answer_and_the_machine_is_looked_at() -> None:
    lab = Lab(machines(1))
    accept = lab.provider._accept

    def misdirect(rpc: str, effect: Mutation) -> Answer:
        answer = accept(rpc, effect)
        assert isinstance(answer, events.Observed)
        return events.Observed(replace(answer.machine, cluster="somebody-else"))

    lab.provider._accept = misdirect  # type: ignore[method-assign]  # a stand-in
    lab.operator("c1", need("c1", 1), habits=QUIET)
    lab.run(3)

    assert lab.counter(series.ACTION_OUTCOMES, "Bootstrap", "transition_error") == 1
    assert lab.provider.gets == ["m-0000"]
    assert lab.machine("m-0000").cluster == "c1", "what the Get shows is so"
    assert lab.counter(series.MACHINES_REJECTED, "structural") == 1


@rule("shard.X4", "shard.Q2")
def test_a_machine_that_verification_finds_with_another_cluster_is_that_clusters() -> None:
    lab = Lab(machines(1))
    one = lab.operator("c1", need("c1", 1), habits=QUIET)
    two = lab.operator("c2", habits=QUIET)
    lab.provider.refuse = lambda _rpc, _machine: failure("ABORTED")
    lab.provider.put(machine("m-0000", S.CONFIGURED, cluster="c2"))
    lab.run(3)

    assert (lab.state("m-0000"), lab.machine("m-0000").cluster) == (S.CONFIGURED, "c2")
    assert two.nodes["m-0000"].state is S.CONFIGURED
    assert "m-0000" not in one.nodes or one.nodes["m-0000"].state is S.IDLE


@rule("shard.X4", "shard.R3")
def test_a_pause_during_verification_leaves_the_machine_where_the_provider_has_it() -> None:
    lab = Lab(serving(need("c1", 2), 2))
    operator = lab.operator("c1", need("c1", 2), habits=QUIET)
    lab.run(2)
    lab.provider.refuse = lambda rpc, _: failure("ABORTED") if rpc == "Drain" else None
    lab.provider.answer_delay = 3 * SECOND
    operator.demand(need("c1", 1))
    lab.run_until(lambda: bool(lab.provider.gets))
    [in_doubt] = lab.ids(S.DRAINING)
    lab.shard.submit(events.PauseFile(present=True))
    lab.run(0)
    assert lab.state(in_doubt) is S.DRAINING, "nobody knows yet"
    lab.run(4)

    assert lab.state(in_doubt) is S.CONFIGURED
    assert operator.nodes[in_doubt].state is S.CONFIGURED
    assert S.FAILED not in [f.state for f in operator.frames(NodeState)]
    assert lab.core.outboxes.depths()["reclaim"] == 0


@rule("shard.F4")
def test_a_fence_lets_calls_under_way_end_and_starts_nothing_more() -> None:
    lab = Lab(machines(12), concurrency=4)
    lab.provider.answer_delay = 2 * SECOND
    lab.provider.refuse = lambda _, machine_id: (
        failure("FAILED_PRECONDITION") if machine_id == "m-0000" else None
    )
    lab.operator("c1", need("c1", 12), habits=QUIET)
    lab.run(40)

    assert len(lab.provider.calls) == 4
    assert len(lab.ids(S.CONFIGURED)) == 3, "what was sent is applied"
    assert lab.state("m-0000") is S.IDLE and not lab.ids(S.FAILED, S.CONFIGURING)
    assert lab.counter(series.ACTION_OUTCOMES, "Bootstrap", "fenced") == 1
    assert lab.core.outboxes.depths()["bootstrap"] == 0
    [line] = lab.notes.lines_of_audit("fence")
    assert line["machine_id"] == "m-0000"
    lab.shard.submit(events.PauseFile(present=True))
    lab.shard.submit(events.PauseFile(present=False))
    lab.run(30)
    assert len(lab.provider.calls) == 4, "the end of a pause is not the end of a fence"


@rule("shard.F6")
def test_a_create_that_was_still_on_the_wire_is_fenced_by_the_next_process() -> None:
    lab = Lab(machines(3, S.SPECULATIVE))
    on_the_wire: list[tuple[Mutation, Token, Answered]] = []
    call, lab.provider.call = lab.provider.call, lambda *c: on_the_wire.append(c)  # type: ignore[method-assign]  # a stand-in
    lab.operator("c1", need("c1", 1))
    lab.run(3)
    [(create, token, _)] = on_the_wire
    assert isinstance(create, effects.CreateMachine)
    lab.shard.kill()
    lab.provider.call = call  # type: ignore[method-assign]  # a stand-in
    lab.shard.restart()
    lab.run(1)
    answers: list[Answer] = []
    call(create, token, answers.append)
    lab.run(60)

    assert [a.code for a in answers if isinstance(a, events.Failure)] == ["FAILED_PRECONDITION"]
    assert lab.provider.count("Create") == 1 and len(lab.ids(S.CONFIGURED)) == 1


@rule("shard.P3", "shard.Q12")
def test_machines_of_a_provider_that_is_no_longer_named_are_not_there_after_a_restart() -> None:
    time = VirtualTime(START)
    stays = ScriptedProvider(time, machines(3, prefix="a"), "stays")
    goes = ScriptedProvider(time, [*serving(need("c1", 2), 2), *machines(1, prefix="b")], "goes")
    lab = Lab(providers=[stays, goes], time=time)
    operator = lab.operator("c1", need("c1", 2))
    lab.run(15)
    assert operator.nodes["m-0000"].state is S.CONFIGURED
    lab.shard.kill()
    lab.shard.providers = {"stays": stays}
    lab.shard.settings = replace(lab.shard.settings, providers=("stays",))
    lab.shard.restart()
    lab.run(60)

    assert sorted(lab.core.engine.inventory) == sorted(stays.records)
    assert set(operator.nodes) == set(lab.ids(S.CONFIGURED)), "the replay has swept what is not there"
    assert len(lab.ids(S.CONFIGURED)) == 2 and not goes.accepted


@rule("shard.L9", "shard.Q12")
def test_a_provider_that_was_empty_while_it_waited_for_its_turn_is_listed_again() -> None:
    time = VirtualTime(START)
    late = ScriptedProvider(time, machines(1, prefix="a"), "late")
    empty = ScriptedProvider(time, [], "empty")
    late.list_failure = failure("UNAVAILABLE")
    lab = Lab(providers=[late, empty], time=time)
    lab.run(35)
    late.list_failure = None
    lab.run(30)
    assert lab.core.ready()[0]
    empty.put(machine("b-1"))
    lab.run(25)

    assert "b-1" in lab.core.engine.inventory


def _two_providers(count: int, **settings: Any) -> tuple[Lab, ScriptedProvider, ScriptedProvider]:
    """One that much is wanted of, and one with a machine for somebody less important."""
    time = VirtualTime(START)
    first = ScriptedProvider(time, machines(count, prefix="a"), "first")
    second = ScriptedProvider(time, [machine("b", instance_type="large")], "second")
    lab = Lab(providers=[first, second], time=time, **settings)
    lab.operator("c1", need("c1", count, 1000), habits=QUIET)
    lab.operator("c2", need("c2", 1, 500, "large"), habits=QUIET)
    return lab, first, second


@rule("provider.P-139", "provider.P-140", "shard.X4")
@pytest.mark.parametrize("most", [0, 10])
def test_a_provider_whose_breaker_is_open_freezes_its_own_slice_alone(most: int) -> None:
    lab, first, _ = _two_providers(300, options=replace(DEPLOYED, max_actions=most))
    first.down = True
    lab.shard.submit(events.BreakerChanged("first", events.BreakerState.OPEN))
    lab.run(20)

    assert lab.state("b") is S.CONFIGURED
    assert first.calls == []
    # Nothing ends that did not begin, and nobody runs in circles over it.
    assert lab.counter(series.ACTION_OUTCOMES, "Bootstrap", "provider_transient") == 0
    assert lab.counter(series.ACTIONS_DEFERRED, "provider") > 0
    assert lab.counter(series.CYCLE_TRIGGER, "drain") == lab.counter(series.CYCLE_TRIGGER, "deferred") == 0

    first.down = False
    lab.shard.submit(events.BreakerChanged("first", events.BreakerState.TRIAL))
    lab.run(20)
    assert 1 <= len(first.calls) <= 5, "to find out, one after the other"
    lab.shard.submit(events.BreakerChanged("first", events.BreakerState.CLOSED))
    lab.run(300)
    assert len(lab.ids(S.CONFIGURED)) == 301


@rule("provider.P-139", "shard.E1", "shard.E4")
def test_calls_that_hang_leave_places_and_slots_for_other_providers() -> None:
    lab, first, _ = _two_providers(400)
    first.hold = lambda *_: True
    lab.run(20)

    assert lab.state("b") is S.CONFIGURED
    assert len(first.calls) == 32 - 32 // 4, "the rest is kept for the other"
    first.hold = lambda *_: False
    first.release()
    lab.run(30)
    assert len(lab.ids(S.CONFIGURED)) == 401
