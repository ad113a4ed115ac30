"""Demand on its way in, and the guard in front of it (shard.md §4, R2)."""

import re
from pathlib import Path

from bigfleet.shard import core as core_package
from bigfleet.shard.core import events
from bigfleet.sim.operator import Habits
from bigfleet_base.model import MachineState
from bigfleet_base.model.frames import RollupAck
from bigfleet_base.telemetry.catalogue import shard as series
from tests.shard.lab import DEPLOYED, MINUTE, Lab, machines, need
from tests.support.rules import rule

S = MachineState
QUIET = Habits(rollup_interval=60 * MINUTE)


@rule("shard.I1")
def test_a_refused_rollup_leaves_demand_and_is_not_acknowledged() -> None:
    lab = Lab(machines(4))
    operator = lab.operator("c1", need("c1", 2), habits=QUIET)
    lab.run(2)
    acks = len(operator.frames(RollupAck))
    assert operator.session is not None
    lab.shard.submit(events.RollupRefused(operator.session, "needs[0]: bucket is 28, must be 0 to 27"))
    lab.run(2)

    assert [n.aggregate["cpu"] for n in lab.core.engine.needs.snapshot()] == [2000]
    assert lab.counter(series.ROLLUPS_REJECTED, "c1") == 1
    assert len(operator.frames(RollupAck)) == acks
    [line] = lab.notes.lines("rollup rejected at ingest validation; keeping last-known-good demand")
    assert "bucket is 28" in str(line["err"])


@rule("shard.I3")
def test_an_ack_names_the_rollup_it_covers_a_held_one_included() -> None:
    lab = Lab(machines(1), options=DEPLOYED)
    operator = lab.operator("c1", *[need("c1", 1, priority=n) for n in range(40)], habits=QUIET)
    operator.demand()
    lab.run(1)

    assert [frame.timestamp_ns for frame in operator.frames(RollupAck)] == [1, 2]
    assert len(lab.core.engine.needs.snapshot()) == 40, "and the second was held"


@rule("shard.I4")
def test_demand_has_one_door() -> None:
    folder = Path(core_package.__file__).parent
    callers = [
        path.name
        for path in folder.glob("*.py")
        if re.search(r"\.(apply_rollup|replace\(cluster)", path.read_text(encoding="utf-8"))
    ]
    assert callers == ["ingest.py"]


@rule("shard.I5", "shard.R2")
def test_a_repeated_rollup_wakes_nothing_and_ends_a_row_of_held_ones() -> None:
    lab = Lab(machines(1), options=DEPLOYED)
    rows = [need("c1", 1, priority=n) for n in range(40)]
    operator = lab.operator("c1", *rows, habits=QUIET)
    lab.run(15)
    for _ in range(2):
        operator.demand()
        lab.run(2)
    assert lab.gauge(series.ROLLUP_QUARANTINED, "c1") == 2
    cycles = lab.core.debug_state()["cycle"]
    acks = len(operator.frames(RollupAck))
    operator.demand(*rows)
    lab.run(0.5)
    assert lab.core.debug_state()["cycle"] == cycles
    assert len(operator.frames(RollupAck)) == acks + 1
    assert lab.gauge(series.ROLLUP_QUARANTINED, "c1") == 0

    for _ in range(2):
        operator.demand()
        lab.run(2)
    assert len(lab.core.engine.needs.snapshot()) == 40, "the count starts again"
    operator.demand()
    assert len(lab.core.engine.needs.snapshot()) == 0, "the third in a row is believed"
    assert len(lab.notes.lines("rollup quarantined: full-replacement demand drop held")) == 4
    [line] = lab.notes.lines("quarantined rollup accepted: demand drop confirmed by consecutive reports")
    assert (line["previous_rows"], line["new_rows"], line["accepted_after"]) == (40, 0, 3)


@rule("shard.R2")
def test_the_guard_lets_a_normal_rollup_and_a_small_cluster_through() -> None:
    lab = Lab(machines(1), options=DEPLOYED)
    operator = lab.operator("c1", *[need("c1", 1, priority=n) for n in range(40)], habits=QUIET)
    operator.demand()
    operator.demand()
    operator.demand(*[need("c1", 1, priority=n) for n in range(38)])
    assert len(lab.core.engine.needs.snapshot()) == 38
    small = lab.operator("c2", *[need("c2", 1, priority=n) for n in range(9)], habits=QUIET)
    small.demand()

    assert len(lab.core.engine.needs.snapshot()) == 38


@rule("shard.R2")
def test_quantities_that_shrink_to_nothing_are_held_like_rows_that_vanish() -> None:
    lab = Lab(machines(1), options=DEPLOYED)
    operator = lab.operator("c1", *[need("c1", 100, priority=n) for n in range(12)], habits=QUIET)
    operator.demand(*[need("c1", 1, priority=n) for n in range(12)])

    assert lab.gauge(series.ROLLUP_QUARANTINED, "c1") == 1
    assert {n.aggregate["cpu"] for n in lab.core.engine.needs.snapshot()} == {100_000}


def test_rows_that_are_repeated_are_taken_from_the_accepted_rollup() -> None:
    lab = Lab(machines(1))
    operator = lab.operator("c1", need("c1", 1, priority=1), need("c1", 1, priority=2), habits=QUIET)
    assert operator.session is not None
    lab.shard.submit(events.Rollup(operator.session, 2, b"digest", (need("c1", 7, priority=9),), (1, -1)))

    rows = {n.profile.priority: n.aggregate["cpu"] for n in lab.core.engine.needs.snapshot()}
    assert rows == {2: 1000, 9: 7000}


def test_the_first_machine_ends_the_wait_for_a_demand_and_is_measured_once() -> None:
    lab = Lab(machines(2), instant=False)
    operator = lab.operator("c1", need("c1", 2), habits=QUIET)
    lab.run(5)
    lab.provider.finish("m-0000")
    lab.run(15)
    lab.provider.finish()
    lab.run(15)

    [waited] = lab.notes.observations[series.PROVISIONING_LATENCY.name,]
    assert 5 <= waited <= 20
    operator.demand()
    lab.run(1)
    operator.demand(need("c1", 2))
    assert lab.core.ingest.state.first_seen
