"""The state machine: the table against the specification, and every walk over it."""

import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bigfleet_base.model import (
    HostRef,
    IllegalTransitionError,
    InvalidMachineError,
    Machine,
    MachineState,
    transition,
)
from bigfleet_base.model.lifecycle import (
    ASSIGNMENT,
    EDGES,
    GRID,
    STABLE,
    Driver,
    Edge,
    Memory,
    Presence,
    check,
    edge,
)
from bigfleet_base.model.machine import Defect, effective_cost
from tests.support.rules import rule

HOST = HostRef("local", "h1")

# Transcribed from the specification: source, target, driver.
LEGAL = """
Speculative Creating    action
Creating    Idle        completion
Creating    Failed      failure
Idle        Configuring action
Configuring Configured  completion
Configuring Idle        rollback
Configuring Failed      failure
Configured  Draining    action
Draining    Idle        completion
Draining    Failed      failure
Idle        Deleting    action
Deleting    Speculative completion
Deleting    Idle        rollback
Deleting    Failed      failure
Idle        Failed      host loss
Configured  Failed      host loss
Failed      Speculative repair
Failed      Idle        repair
"""


@rule("ruling.R11")
def test_the_table_has_exactly_the_legal_edges() -> None:
    legal = {tuple(line.split(maxsplit=2)) for line in LEGAL.split("\n") if line}
    assert len(legal) == 18
    assert {(e.source.title, e.target.title, e.driver.value) for e in EDGES} == legal


def test_every_other_change_of_state_is_refused() -> None:
    legal = {(e.source, e.target) for e in EDGES}
    for source in MachineState:
        for target in MachineState:
            if (source, target) not in legal:
                with pytest.raises(IllegalTransitionError, match=f"{source.title} to {target.title}"):
                    edge(source, target)


def test_actions_start_from_stable_states_and_every_failure_can_be_repaired() -> None:
    for e in EDGES:
        assert (e.driver is Driver.ACTION) == (
            e.source in STABLE and e.target not in {*STABLE, MachineState.FAILED}
        )
        assert (e.target is MachineState.FAILED) == (e.driver in {Driver.FAILURE, Driver.HOST_LOSS})
        assert (e.source is MachineState.FAILED) == (e.driver is Driver.REPAIR)


def test_idle_since_is_stamped_on_every_entry_into_idle_and_cleared_on_every_exit() -> None:
    for e in EDGES:
        assert (e.target is MachineState.IDLE) == (Memory.STAMP_IDLE_SINCE in e.memory), e
        assert (e.source is MachineState.IDLE) == (Memory.CLEAR_IDLE_SINCE in e.memory), e


def at(state: MachineState) -> Machine:
    """A machine that may rest in the state."""
    host, cluster = GRID[state]
    return Machine(
        "m1",
        state,
        host=HOST if host in {Presence.SET, Presence.ANY} else HostRef(),
        cluster="c1" if cluster in {Presence.SET, Presence.ANY} else "",
        last_error="create:substrate: out of discs" if state is MachineState.FAILED else "",
    )


def values_for(e: Edge) -> dict[str, Any]:
    """What the driver of an edge brings along."""
    offered: dict[str, Any] = {
        "host": HOST,
        "cluster": "c1",
        "last_error": "it broke",
        "target_cluster": "c1",
        "assigned_need_fingerprint": "f" * 64,
        "assigned_group": "g",
        "assigned_priority": 7,
        "assigned_interruption_penalty": 8.0,
        "assigned_reclamation_penalty": math.inf,
        "price_per_hour": 2.5,
    }
    return {name: value for name, value in offered.items() if name in e.sets}


@rule("engine.I22", "ruling.R11")
@given(st.data())
def test_no_walk_over_the_table_breaks_the_host_and_cluster_grid(data: st.DataObject) -> None:
    machine = at(MachineState.SPECULATIVE)
    for _ in range(data.draw(st.integers(1, 30))):
        taken = data.draw(st.sampled_from([e for e in EDGES if e.source is machine.state]))
        if machine.state is MachineState.FAILED:
            assert taken.driver is Driver.REPAIR
        machine = transition(machine, taken.target, **values_for(taken))
        check(machine)
        if machine.state in {MachineState.SPECULATIVE, MachineState.DELETING}:
            unassigned = at(machine.state)
            assert all(getattr(machine, name) == getattr(unassigned, name) for name in ASSIGNMENT)
        assert bool(machine.last_error) == (machine.state is MachineState.FAILED)
        if machine.cluster:
            assert not machine.target_cluster, "a binding ends what the machine was bought for"


def test_attribution_survives_from_create_to_the_binding() -> None:
    bought = transition(
        at(MachineState.SPECULATIVE),
        MachineState.CREATING,
        assigned_need_fingerprint="f",
        assigned_group="g",
        target_cluster="c1",
    )
    idle = transition(bought, MachineState.IDLE, host=HOST, price_per_hour=1.0)
    assert (idle.assigned_need_fingerprint, idle.assigned_group, idle.target_cluster) == ("f", "g", "c1")
    bound = transition(idle, MachineState.CONFIGURING, cluster="c1", assigned_need_fingerprint="f2")
    assert (bound.cluster, bound.assigned_need_fingerprint, bound.target_cluster) == ("c1", "f2", "")


def test_a_finished_drain_forgets_the_binding() -> None:
    draining = replace(
        at(MachineState.DRAINING), assigned_priority=5, assigned_reclamation_penalty=8.0, assigned_group="g"
    )
    assert transition(draining, MachineState.IDLE) == at(MachineState.IDLE)


def test_a_value_the_edge_does_not_set_is_refused() -> None:
    with pytest.raises(IllegalTransitionError, match="Configured → Draining sets no cluster"):
        transition(at(MachineState.CONFIGURED), MachineState.DRAINING, cluster="c2")


@pytest.mark.parametrize("state", sorted(GRID))
def test_the_grid_is_checked_on_every_write(state: MachineState) -> None:
    good = at(state)
    check(good)
    host, cluster = GRID[state]
    for presence, other in (
        (host, replace(good, host=HostRef() if good.host else HOST)),
        (cluster, replace(good, cluster="" if good.cluster else "c1")),
    ):
        if presence in {Presence.ANY, Presence.TOLERATED}:
            check(other)
        else:
            with pytest.raises(InvalidMachineError, match=state.title) as refusal:
                check(other)
            assert refusal.value.defect is Defect.STRUCTURAL


@pytest.mark.parametrize(
    ("changes", "defect"),
    [
        ({"price_per_hour": -0.01}, Defect.PRICE),
        ({"price_per_hour": math.nan}, Defect.PRICE),
        ({"price_per_hour": -math.inf}, Defect.PRICE),
        ({"interruption_probability": -0.1}, Defect.INTERRUPTION_PROBABILITY),
        ({"interruption_probability": 1.1}, Defect.INTERRUPTION_PROBABILITY),
        ({"interruption_probability": math.nan}, Defect.INTERRUPTION_PROBABILITY),
        ({"id": ""}, Defect.STRUCTURAL),
        ({"state": MachineState.UNSPECIFIED}, Defect.STRUCTURAL),
        ({"state": MachineState.FAILED}, Defect.STRUCTURAL),
    ],
)
def test_a_broken_record_is_refused_with_its_reason(changes: dict[str, Any], defect: Defect) -> None:
    with pytest.raises(InvalidMachineError) as refusal:
        check(replace(at(MachineState.IDLE), **changes))
    assert refusal.value.defect is defect


def test_effective_cost_is_price_plus_expected_loss() -> None:
    assert effective_cost(1.0, 0.25, 8.0) == 3.0
    assert effective_cost(1.0, 0.25, -8.0) == 1.0
    assert effective_cost(1.0, 0.25, math.inf) == math.inf
    assert effective_cost(1.0, 0.0, math.inf) == 1.0
