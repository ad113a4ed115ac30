"""The diagnostic lines of ``--phase-attribution-log`` (shard.md §17.1, observability.md §7)."""

from bigfleet.engine.options import Options
from bigfleet.shard.core.attribution import EVERY, MOST_IDS, MOST_SAMPLES
from bigfleet.sim.operator import Habits
from bigfleet_base.model import MachineState, Need, Operator, Profile, Requirement, ResourceVector
from tests.shard.lab import CPU, MINUTE, Lab, machines, need, serving

S = MachineState
RACK = "topology.bigfleet/rack"
QUIET = Habits(rollup_interval=60 * MINUTE)
MESSAGES = ("phase attribution", "reclaim attribution", "gang attribution", "satisfied gang attribution")


def _gang(cpus: int, group: str) -> Need:
    profile = Profile((Requirement(RACK, Operator.SAME, ()),), priority=1000)
    return Need("gangs", profile, ResourceVector({"cpu": 1000 * cpus}), CPU, group)


def _lab(*, enabled: bool) -> Lab:
    racks = [
        *machines(20, prefix="r1", instance_type="metal", labels={RACK: "r1"}),
        *machines(3, prefix="r2", instance_type="metal", labels={RACK: "r2"}),
    ]
    lab = Lab([*serving(need("c1", 12), 12), *racks], phase_attribution=enabled)
    lab.operator("c1", need("c1", 2), need("c1", 3, kind="absent"), habits=QUIET)
    lab.operator("gangs", _gang(18, "fits"), *(_gang(40, f"g{n}") for n in range(7)), habits=QUIET)
    return lab


def test_every_twentieth_cycle_says_who_has_what() -> None:
    lab = _lab(enabled=True)
    lab.run_until(lambda: lab.core.debug_state()["cycle"] >= EVERY - 1)
    assert not any(lab.notes.lines(msg) for msg in MESSAGES)
    lab.run_until(lambda: bool(lab.notes.lines("phase attribution")))

    [line] = lab.notes.lines("phase attribution")
    verdicts = lab.core.views.verdicts
    assert line["needs_plain"] == 2 and line["needs_same"] == 8
    assert line["p1_unsatisfied"] == sum(1 for verdict in verdicts if not verdict.satisfied) == 8
    assert isinstance(line["p3_reclaims"], int) and isinstance(line["reclaim_matches_unsatisfied"], int)
    assert len(lab.notes.lines("gang attribution")) == MOST_SAMPLES
    [satisfied] = lab.notes.lines("satisfied gang attribution")
    assert (satisfied["group"], satisfied["domain"], satisfied["claimed"]) == ("fits", "r1", 18)
    assert isinstance(satisfied["machines"], tuple) and len(satisfied["machines"]) == MOST_IDS
    lab.run_until(lambda: lab.core.debug_state()["cycle"] >= 2 * EVERY)
    lab.run(0)
    assert len(lab.notes.lines("phase attribution")) == 2


def test_reclaims_of_what_the_cluster_lacks_come_first() -> None:
    lab = Lab(serving(need("c1", 30), 30), options=Options(paused=True), phase_attribution=True)
    # The machines have no memory for the second row, so they are excess although their type is wanted.
    hungry = Need(
        "c1", need("c1", 1).profile, ResourceVector({"memory": 1000}), ResourceVector({"memory": 1000})
    )
    lab.operator("c1", hungry, habits=QUIET)
    lab.run_until(lambda: bool(lab.notes.lines("phase attribution")))

    [line] = lab.notes.lines("phase attribution")
    assert line["p3_reclaims"] == line["reclaim_matches_unsatisfied"] == 30
    samples = lab.notes.lines("reclaim attribution")
    assert len(samples) == MOST_SAMPLES
    assert {sample["matches_fingerprint"] for sample in samples} == {hungry.profile.fingerprint}


def test_it_is_off_by_default() -> None:
    lab = _lab(enabled=False)
    lab.run_until(lambda: lab.core.debug_state()["cycle"] >= 2 * EVERY)

    assert not any(lab.notes.lines(msg) for msg in MESSAGES)
