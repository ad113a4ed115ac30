"""The end-to-end scenarios of shard.md §19, on the core under virtual time."""

from collections import Counter
from dataclasses import replace

import pytest

from bigfleet.shard.core import effects, events
from bigfleet.sim.operator import Habits
from bigfleet.sim.provider import Answer, Token
from bigfleet.sim.shard import SimShard
from bigfleet.sim.time import VirtualTime
from bigfleet_base.model import CapacityType, MachineState
from bigfleet_base.model.frames import BootstrapRequest, NodeState, ReclaimInstruction, Resync
from bigfleet_base.telemetry.catalogue import shard as series
from tests.shard.lab import (
    DEPLOYED,
    MINUTE,
    SECOND,
    START,
    Lab,
    ScriptedProvider,
    machine,
    machines,
    need,
    serving,
)
from tests.support.rules import rule

S = MachineState


@rule("shard.19.1", "shard.19.7", "shard.X1")
def test_cold_bind_creates_and_configures_once() -> None:
    lab = Lab(machines(3, S.SPECULATIVE), instant=False)
    operator = lab.operator("c1", need("c1", 1))
    lab.run(60)
    assert Counter(lab.provider.accepted) == {("Create", "m-0000"): 1}
    assert not operator.frames(NodeState), "nothing while the slot is unbound"
    lab.provider.finish()
    lab.run(30)
    lab.provider.finish()
    lab.run(30)

    assert Counter(lab.provider.accepted) == {("Create", "m-0000"): 1, ("Configure", "m-0000"): 1}
    states = [frame.state for frame in operator.frames(NodeState)]
    assert states == [S.CONFIGURING, S.CONFIGURED]
    assert lab.core.views.verdicts[0].satisfied


@rule("shard.19.2", "shard.19.7", "shard.R1")
def test_scale_down_reclaims_one_machine_an_interval_and_releases_it_after_its_hold() -> None:
    wanted = need("c1", 20)
    told: list[tuple[str, str]] = []

    def note(_now: int, _event: events.Event, done: list[effects.Effect]) -> None:
        for effect in done:
            if isinstance(effect, effects.SendFrames):
                told.extend(("told", f.node) for f in effect.frames if isinstance(f, ReclaimInstruction))
            elif isinstance(effect, effects.DrainMachine):
                told.append(("drained", effect.machine_id))

    spot = serving(wanted, 20, capacity_type=CapacityType.SPOT)
    lab = Lab(spot, options=DEPLOYED, instant=True, trace=note)
    operator = lab.operator("c1", wanted)
    lab.run(15)
    operator.demand(need("c1", 10))
    lab.run(10.5)
    assert lab.provider.count("Drain") == 2
    lab.run(300)

    assert lab.provider.count("Drain") == 10
    assert lab.provider.count("Delete") == 10
    instructions = operator.frames(ReclaimInstruction)
    assert len(instructions) == 10
    drained = {m for _, rpc, m in lab.provider.calls if rpc == "Drain"}
    assert {frame.node for frame in instructions} == drained
    assert all(told.index(("told", m)) < told.index(("drained", m)) for m in drained)
    assert len(lab.ids(S.CONFIGURED)) == 10 and len(lab.ids(S.SPECULATIVE)) == 10
    assert all(not lab.machine(i).assigned_need_fingerprint for i in lab.ids(S.SPECULATIVE))


@rule("shard.19.3", "shard.19.7")
def test_preemption_drains_with_the_short_grace_and_hands_the_machines_over() -> None:
    low, high = need("b", 4, priority=100), need("a", 4, priority=1_000_000)
    lab = Lab(serving(low, 4))
    batch = lab.operator("b", low)
    lab.run(15)
    lab.operator("a", high)
    lab.run(30)

    instructions = batch.frames(ReclaimInstruction)
    assert {(f.grace_s, f.preemptor_priority) for f in instructions} == {(10, 1_000_000)}
    assert {lab.machine(i).cluster for i in lab.ids(S.CONFIGURED)} == {"a"}


@rule("shard.19.4", "shard.19.7", "shard.P3", "shard.Q5")
def test_restart_mid_configure_does_not_configure_twice_and_fences_the_old_process() -> None:
    lab = Lab(machines(2), instant=False)
    lab.operator("c1", need("c1", 2, priority=5000))
    lab.run(3)
    assert lab.provider.count("Configure") == 2
    before = [lab.machine(i) for i in lab.ids(S.CONFIGURING)]
    [late, _] = lab.shard.calls
    assert isinstance(late, effects.ConfigureMachine)
    lab.shard.kill()
    lab.provider.finish("m-0000")
    lab.shard.restart()
    lab.run(60)
    lab.provider.finish()
    lab.run(60)

    assert lab.shard.settings.epoch == 2
    assert lab.provider.count("Configure") == 2
    answers: list[Answer] = []
    lab.provider.call(late, Token("shard-0", 1, 99), answers.append)
    lab.run(0)
    assert [a.code for a in answers if isinstance(a, events.Failure)] == ["FAILED_PRECONDITION"]
    for old in before:
        assert lab.machine(old.id) == replace(old, state=S.CONFIGURED)


@rule("shard.19.5", "shard.19.7", "shard.B4", "shard.O2")
def test_an_operator_that_flaps_completes_every_bootstrap() -> None:
    lab = Lab(machines(100), concurrency=100)
    operator = lab.operator("c1", need("c1", 100), habits=Habits(answer_delay=2 * SECOND))
    lab.run(1.5)
    assert len(operator.frames(BootstrapRequest)) == 100
    operator.disconnect(come_back_after=3 * SECOND)
    lab.run(60)

    assert len(lab.ids(S.CONFIGURED)) == 100
    seen = Counter(frame.request_id for frame in operator.frames(BootstrapRequest))
    assert len(seen) == 100 and set(seen.values()) == {2}
    assert lab.provider.count("Configure") == 100


@rule("shard.19.6", "shard.19.7", "shard.X4")
def test_a_provider_outage_leaves_no_failed_machine() -> None:
    lab = Lab(machines(50))
    lab.operator("c1", need("c1", 50))
    lab.provider.down = True
    lab.run(60)
    assert lab.core.ready()[0]
    lab.provider.down = False
    lab.run(180)

    assert not lab.ids(S.FAILED)
    assert len(lab.ids(S.CONFIGURED)) == 50


@rule("shard.19.8", "shard.F4", "shard.F6")
def test_of_two_processes_with_one_identity_the_older_stops() -> None:
    time = VirtualTime(START)
    provider = ScriptedProvider(time, machines(5))
    lab = Lab(providers=[provider], time=time)
    lab.operator("c1", need("c1", 1))
    lab.run(15)
    SimShard(time, replace(lab.shard.settings, epoch=10), [provider])
    lab.run(1)
    lab.operators["c1"].demand(need("c1", 4))
    lab.run(60)

    assert lab.counter(series.ACTION_OUTCOMES, "Bootstrap", "fenced") == 1
    assert provider.count("Configure") == 1
    assert lab.core.ready() == (False, "fenced: another process has this shard's identity")
    assert lab.gauge(series.FENCED) == 1
    assert not lab.ids(S.FAILED)


@rule("shard.19.9", "shard.R2")
def test_a_forged_empty_rollup_releases_nothing() -> None:
    rows = [need("c1", 1, priority=n) for n in range(40)]
    lab = Lab([m for n, row in enumerate(rows) for m in serving(row, 1, f"m{n:02}")], options=DEPLOYED)
    operator = lab.operator("c1", *rows)
    lab.run(20)
    operator.demand()
    lab.run(0)
    operator.demand(*rows)
    lab.run(60)

    assert lab.provider.count("Drain") == 0


@pytest.mark.parametrize("restarted", [False, True])
@rule("shard.19.10", "shard.R3")
def test_pausing_in_an_incident_stops_new_drains_and_lets_accepted_ones_finish(restarted: bool) -> None:
    lab = Lab(serving(need("c1", 40), 40), options=DEPLOYED, instant=False)
    operator = lab.operator("c1", need("c1", 40))
    lab.run(15)
    operator.demand()
    lab.run(12)
    accepted = lab.provider.count("Drain")
    assert accepted > 0
    if restarted:
        lab.shard.kill()
        lab.shard.settings = replace(lab.shard.settings, options=replace(DEPLOYED, paused=True))
        lab.shard.restart()
    else:
        lab.shard.submit(events.PauseFile(present=True))
    lab.run(30)
    lab.provider.finish()
    lab.run(30)

    assert lab.provider.count("Drain") == accepted
    assert len(lab.ids(S.IDLE)) == accepted
    assert lab.counter(series.ACTIONS_SUPPRESSED, "Reclaim") > 0


@pytest.mark.parametrize("echoes", [True, False])
@rule("shard.19.11", "ruling.R15", "shard.L7")
def test_a_kill_with_work_in_flight_repeats_nothing(echoes: bool) -> None:
    undisturbed = _with_work_in_flight(echoes, kill=False)
    killed = _with_work_in_flight(echoes, kill=True)

    assert killed == undisturbed
    assert killed["Create"] >= 200 and killed["Drain"] >= 50


def _with_work_in_flight(echoes: bool, *, kill: bool) -> Counter[str]:
    low, high = (
        need("low", 50, priority=100, kind="metal"),
        need("high", 50, priority=1_000_000, kind="metal"),
    )
    bulk = need("bulk", 200)
    metal = serving(low, 50, "b", instance_type="metal", capacity_type=CapacityType.BARE_METAL)
    lab = Lab([*machines(260, S.SPECULATIVE, "s"), *metal], instant=False, concurrency=256)
    lab.provider.echoes = echoes
    operators = [lab.operator("low", low), lab.operator("high"), lab.operator("bulk")]
    lab.run(15)
    operators[1].demand(high)
    operators[2].demand(bulk)
    lab.run_until(
        lambda: len(lab.provider.states(S.CREATING)) == 200 and len(lab.provider.states(S.DRAINING)) == 50
    )
    if kill:
        lab.shard.kill()
        lab.run(4)
        lab.shard.restart()
    lab.run(25)
    for _ in range(12):
        lab.provider.finish()
        lab.run(30)
    assert len(lab.provider.states(S.CONFIGURED)) == 250
    return Counter(rpc for rpc, _ in lab.provider.accepted)


@rule("shard.S5", "shard.Q8")
def test_a_machine_that_vanishes_is_announced_and_its_end_follows() -> None:
    lab = Lab(serving(need("c1", 3), 3))
    operator = lab.operator("c1", need("c1", 3), habits=Habits(rollup_interval=60 * MINUTE))
    lab.run(15)
    assert isinstance(operator.received[-1], Resync) or operator.frames(Resync)
    del lab.provider.records["m-0001"]
    lab.run(60)
    last = operator.nodes["m-0001"]
    assert (last.state, last.last_error) == (S.FAILED, "machine no longer reported by provider")
    lab.run(700)

    assert operator.nodes["m-0001"].state is S.DELETING


def test_a_machine_that_fails_is_replaced() -> None:
    lab = Lab([*serving(need("c1", 2), 2), machine("spare")])
    operator = lab.operator("c1", need("c1", 2))
    lab.run(15)
    lab.provider.fail("m-0000", "spot loss")
    lab.run(30)

    assert lab.state("spare") is S.CONFIGURED
    assert operator.nodes["m-0000"].state is S.FAILED
