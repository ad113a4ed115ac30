"""Each knob of the fake does what its row of the table says, under virtual time."""

import random
import statistics
from dataclasses import replace
from typing import Any

import pytest

from bigfleet_base.model import CapacityType, MachineState
from bigfleet_providerkit.backend import Binding
from bigfleet_providerkit.effects import Code
from bigfleet_providerkit.fake import INSTANT, Knobs, Latency, Preseed, Unavailable
from bigfleet_providerkit.fake.knobs import STEPS, read_knobs, read_latency, read_preseed
from tests.support.rules import rule
from tests.unit.providerkit.fake.world import MINUTE, SECOND, World, offering

QUOTA = offering().count


def constant(seconds: float) -> Latency:
    return Latency("constant", round(seconds * SECOND))


# ---- latency


def test_by_default_every_transition_takes_20_to_80_ms() -> None:
    world = World()
    machine_id = world.ids()[0]
    world.accept("create", machine_id)
    assert world.state(machine_id) is MachineState.CREATING
    assert 0.02 <= world.took(machine_id) <= 0.08
    world.accept("configure", machine_id)
    assert 0.04 <= world.took(machine_id) <= 0.16, "configure and ready"
    for kind in ("drain", "delete"):
        world.accept(kind, machine_id)
        assert 0.02 <= world.took(machine_id) <= 0.08


@pytest.mark.parametrize("step", STEPS)
def test_each_step_has_a_latency_of_its_own(step: str) -> None:
    world = World(replace(INSTANT, latency={**INSTANT.latency, step: constant(0.2)}))
    machine_id = world.ids()[0]
    kinds = {"ready": "configure"}
    for kind in ("create", "configure", "drain", "delete"):
        world.accept(kind, machine_id)
        assert world.took(machine_id) == (0.2 if kind == kinds.get(step, step) else 0)


def test_a_node_that_takes_long_to_be_ready_keeps_its_machine_configuring() -> None:
    world = World(replace(INSTANT, latency={**INSTANT.latency, "ready": constant(30)}))
    machine_id = world.idle()
    world.accept("configure", machine_id)
    world.wait(29.9)
    assert world.state(machine_id) is MachineState.CONFIGURING
    world.wait(8)
    assert world.state(machine_id) is MachineState.CONFIGURED


def test_distributions_have_the_shape_they_are_asked_for() -> None:
    rng = random.Random(1)
    assert {read_latency("50ms").draw(rng) for _ in range(9)} == {50_000_000}
    uniform = [read_latency("uniform(20ms, 80ms)").draw(rng) / SECOND for _ in range(4_000)]
    assert 0.02 <= min(uniform) < 0.022 and 0.078 < max(uniform) <= 0.08
    lognormal = sorted(read_latency("lognormal(30s,90s)").draw(rng) / SECOND for _ in range(20_000))
    assert statistics.median(lognormal) == pytest.approx(30, rel=0.03)
    assert lognormal[-200] == pytest.approx(90, rel=0.08)


def test_an_offering_may_have_a_latency_of_its_own_and_the_closest_one_wins() -> None:
    spot = {"capacity_type": CapacityType.SPOT, "interruption_probability": 0.1}
    knobs = read_knobs(
        [
            "latency.create@m1/z2/spot=4s",
            "latency.create@m1/z2=3s",
            "latency.create@m1=2s",
            "latency.create=1s",
        ]
    )
    world = World(
        knobs,
        offering(1, instance_type="m2"),
        offering(1),
        offering(1, zone="z2"),
        offering(1, zone="z2", **spot),
    )
    for machine_id, seconds in zip(world.ids(), (1, 2, 3, 4), strict=True):
        world.accept("create", machine_id)
        assert world.took(machine_id) == seconds


# ---- failures


@pytest.mark.parametrize("kind", ["create", "configure", "drain", "delete"])
def test_a_kind_fails_at_its_rate(kind: str) -> None:
    world = World(replace(INSTANT, failure_rate={kind: 0.3}), offering(100))
    ends = []
    for machine_id in world.ids():
        for step in ("create", "configure", "drain", "delete"):
            state = world.settled(step, machine_id)
            if step == kind:
                ends.append(state)
                break
    failed = ends.count(MachineState.FAILED)
    assert 15 <= failed <= 45


@pytest.mark.parametrize(
    ("failure", "error"),
    [
        ("terminal", "create:substrate:"),
        ("unauthorized", "create:substrate:"),
        ("capacity", "create:capacity:"),
        ("not-found", "create:substrate:"),
    ],
)
def test_a_failure_has_the_class_it_is_given(failure: str, error: str) -> None:
    world = World(replace(INSTANT, failure_rate={"create": 1.0}, failure_class={"create": failure}))
    machine_id = world.ids()[0]
    assert world.settled("create", machine_id) is MachineState.FAILED
    assert world.machine(machine_id).last_error.startswith(error)


def test_a_retryable_failure_delays_a_transition_and_does_not_end_it() -> None:
    world = World(replace(INSTANT, failure_rate={"create": 1.0}, failure_class={"create": "retryable"}))
    machine_id = world.ids()[0]
    world.accept("create", machine_id)
    assert 1.0 <= world.took(machine_id) <= 1.3
    assert world.state(machine_id) is MachineState.IDLE


@rule("conformance.X703")
def test_a_failed_create_that_left_its_host_behind_is_cleaned_up() -> None:
    world = World(replace(INSTANT, failure_rate={"create": 1.0}), offering(20))
    for machine_id in world.ids():
        assert world.settled("create", machine_id) is MachineState.FAILED
    left = len(world.substrate.hosts)
    assert 3 <= left <= 17, "half of the failures leave a host"
    world.wait(61)
    assert set(world.listed().values()) == {MachineState.SPECULATIVE}
    assert not world.substrate.hosts


def test_fail_next_fails_one_transition_of_one_machine() -> None:
    world = World(INSTANT)
    [first, second, *_] = world.ids()
    world.substrate.fail_next(first, "configure")
    for machine_id in (first, second):
        world.settled("create", machine_id)
    assert world.settled("configure", first) is MachineState.FAILED
    assert world.settled("configure", second) is MachineState.CONFIGURED
    world.wait(61)
    assert world.settled("configure", first) is MachineState.CONFIGURED


def test_fail_machine_ends_the_transition_under_way() -> None:
    world = World(Knobs(latency=dict.fromkeys(STEPS, constant(10))))
    machine_id = world.ids()[0]
    world.accept("create", machine_id)
    world.provider.fail_machine(machine_id)
    assert world.took(machine_id) == 0
    assert world.state(machine_id) is MachineState.FAILED


@rule("ruling.R11")
@pytest.mark.parametrize("loss", ["lose_host", "fail_machine"])
def test_a_lost_or_broken_host_is_found_failed_and_repaired(loss: str) -> None:
    world = World(INSTANT, reconcile_interval=10 * SECOND)
    machine_id = world.configured()
    if loss == "lose_host":
        world.substrate.lose_host(machine_id)
    else:
        world.provider.fail_machine(machine_id)
    world.wait(20)
    lost = world.machine(machine_id)
    assert lost.last_error.startswith("host:host-lost:") and lost.cluster == "c1"
    world.wait(61)
    assert world.state(machine_id) is MachineState.SPECULATIVE
    assert world.substrate.hosts_of(machine_id) == []


@rule("provider.P-70")
def test_remove_takes_a_machine_out_of_the_inventory_for_good() -> None:
    world = World(INSTANT, reconcile_interval=10 * SECOND)
    cursor = world.provider.list_machines().revision
    world.substrate.remove(world.ids()[-1])
    world.wait(11)
    assert world.provider.get(world.ids()[-1]) is None
    assert world.provider.list_machines(since=cursor).removed == [world.ids()[-1]]
    hosted = world.configured()
    world.substrate.remove(hosted)
    world.wait(100)
    assert len(world.listed()) == QUOTA - 2 and not world.substrate.hosts


# ---- hangs


@rule("provider.P-81")
@pytest.mark.parametrize("kind", ["create", "configure", "drain", "delete"])
def test_a_kind_hangs_at_its_rate_and_times_out(kind: str) -> None:
    world = World(replace(INSTANT, hang_rate={kind: 1.0}))
    machine_id = world.ids()[0]
    steps = ["create", "configure", "drain", "delete"]
    for step in steps[: steps.index(kind) + 1]:
        world.settled(step, machine_id)
    assert world.state(machine_id) is MachineState.FAILED
    assert world.machine(machine_id).last_error.startswith(f"{kind}:timeout:")


@rule("provider.P-52")
def test_a_success_that_comes_too_late_changes_nothing() -> None:
    world = World(replace(INSTANT, hang_rate={"configure": 1.0}, late_success=5 * SECOND))
    machine_id = world.idle()
    assert world.settled("configure", machine_id) is MachineState.FAILED
    assert [host.bootstrapped_at for host in world.substrate.hosts_of(machine_id)] == [None]
    error = world.machine(machine_id).last_error
    world.wait(6)
    assert [host.bootstrapped_at for host in world.substrate.hosts_of(machine_id)] != [None], "it went on"
    assert (world.state(machine_id), world.machine(machine_id).last_error) == (MachineState.FAILED, error)
    world.wait(61)
    assert world.state(machine_id) is MachineState.IDLE


# ---- stages


@pytest.mark.parametrize("kind", ["create", "configure", "drain", "delete"])
def test_a_staged_transition_waits_until_it_is_completed(kind: str) -> None:
    world = World(replace(INSTANT, stage=frozenset({kind})))
    machine_id = world.ids()[0]
    for step in ("create", "configure", "drain", "delete"):
        world.accept(step, machine_id)
        if step == kind:
            break
        world.took(machine_id)
    before = world.state(machine_id)
    world.wait(100)
    assert world.state(machine_id) is before
    assert world.substrate.staged() == [machine_id]
    world.provider.complete(machine_id)
    world.took(machine_id)
    assert world.state(machine_id) not in (before, MachineState.FAILED)


# ---- offerings


def test_machines_may_exist_before_the_provider_does() -> None:
    metadata = {"bigfleet.lucy.sh/assigned-group": "a\0b"}
    preseed = Preseed("m1/z1", idle=1, bound=[Binding("c9", metadata)])
    world = World(replace(INSTANT, preseed=[preseed]))
    [idle, bound, *free] = world.ids()
    assert world.state(idle) is MachineState.IDLE
    assert world.state(bound) is MachineState.CONFIGURED
    assert (world.machine(bound).cluster, dict(world.machine(bound).shard_metadata)) == ("c9", metadata)
    assert {world.state(machine_id) for machine_id in free} == {MachineState.SPECULATIVE}
    assert world.settled("drain", bound) is MachineState.IDLE


def test_more_machines_than_may_exist_cannot_exist_already() -> None:
    with pytest.raises(ValueError, match="5 machines of m1 exist already, but 4 may"):
        World(replace(INSTANT, preseed=[Preseed("m1", idle=5)]))


def test_machines_of_no_offering_cannot_exist_already() -> None:
    with pytest.raises(ValueError, match="m1/z7"):
        World(replace(INSTANT, preseed=[Preseed("m1/z7", idle=1)]))


# ---- spot


def spot(count: int = 200) -> Any:
    return offering(count, capacity_type=CapacityType.SPOT, interruption_probability=0.5)


@rule("provider.P-96")
def test_spot_machines_are_reclaimed_at_their_declared_rate_after_a_notice() -> None:
    world = World(replace(INSTANT, spot_hazard=1.0), spot(), offering(200, instance_type="m2"))
    [reclaimable, safe] = world.ids()[:200], world.ids()[200:]
    for machine_id in world.ids():
        world.send("create", machine_id)
    world.wait(3_600)
    noticed = [i for i in reclaimable if world.machine(i).interruption_probability == 0.99]
    assert 80 <= len(noticed) <= 120, "half of them within an hour"
    assert not any(world.machine(i).interruption_probability for i in safe)
    world.wait(120)
    assert not any(world.substrate.hosts_of(i) for i in noticed)
    assert all(world.substrate.hosts_of(i) for i in safe)


def test_a_hazard_of_two_reclaims_twice_as_often() -> None:
    world = World(replace(INSTANT, spot_hazard=2.0), spot())
    for machine_id in world.ids():
        world.send("create", machine_id)
    world.wait(3_600 + 120)
    assert 130 <= 200 - len(world.substrate.hosts) <= 170, "three quarters within an hour"


# ---- prices


@rule("provider.P-95")
def test_prices_walk_within_bounds_and_reach_the_machines() -> None:
    world = World(replace(INSTANT, price_walk=0.2))
    machine_id = world.ids()[0]
    seen = set()
    for _ in range(100):
        world.wait(60)
        seen.add(world.machine(machine_id).price_per_hour)
    assert len(seen) > 90
    assert 0.1 <= min(seen) < 0.9 or 1.1 < max(seen) <= 10


# ---- boundary


def test_a_slow_boundary_delays_answers_and_not_the_work() -> None:
    world = World(replace(INSTANT, rpc_latency=constant(3)))
    number = world.send("create", world.ids()[0])
    assert world.wait(2.9) == []
    assert world.state(world.ids()[0]) is MachineState.IDLE
    [answer] = world.wait(0.2)
    assert (answer.number, answer.code) == (number, Code.OK)


@rule("provider.P-40")
def test_lost_calls_and_lost_answers_look_alike_and_a_retry_settles_both() -> None:
    world = World(replace(INSTANT, rpc_error_rate=0.5), offering(100))
    lost = [i for i in world.ids() if world.call("create", i).code is Code.UNAVAILABLE]
    assert 30 <= len(lost) <= 70
    hosts = {host.machine_id for host in world.substrate.hosts.values()}
    assert 10 <= len(hosts & set(lost)) <= len(lost) - 10, "some lost the call, some only the answer"
    for machine_id in lost:
        while world.call("create", machine_id).code is Code.UNAVAILABLE:
            pass
    assert len(world.substrate.hosts) == 100


def test_reads_are_lost_at_the_same_rate() -> None:
    world = World(replace(INSTANT, rpc_error_rate=0.5))
    lost = 0
    for _ in range(200):
        try:
            world.provider.list_machines()
        except Unavailable:
            lost += 1
    assert 70 <= lost <= 130


def test_a_stale_list_shows_what_was_and_a_cursor_loses_nothing() -> None:
    world = World(replace(INSTANT, list_stale=10 * SECOND), reconcile_interval=5 * SECOND)
    machine_id = world.ids()[0]
    cursor = world.provider.list_machines().revision
    world.settled("create", machine_id)
    assert world.state(machine_id) is MachineState.IDLE, "Get does not lag"
    world.wait(9)
    assert world.listed()[machine_id] is MachineState.SPECULATIVE
    assert world.provider.list_machines(since=cursor).slots == []
    world.substrate.remove(world.ids()[-1])
    world.wait(2)
    assert world.listed()[machine_id] is MachineState.IDLE
    delta = world.provider.list_machines(since=cursor)
    assert [slot.id for slot in delta.slots] == [machine_id] and not delta.removed
    world.wait(20)
    assert world.provider.list_machines(since=delta.revision).removed == [world.ids()[-1]]
    assert world.ids()[-1] not in world.listed()


@rule("provider.P-68")
def test_a_stale_list_can_be_read_in_pages() -> None:
    world = World(replace(INSTANT, list_stale=10 * SECOND))
    cursor, seen = b"", []
    while slots := (page := world.provider.list_machines(max_results=2, since=cursor)).slots:
        seen += [slot.id for slot in slots]
        cursor = page.revision
        assert len(seen) <= len(world.ids()), "the pages lead nowhere"
    assert sorted(seen) == sorted(world.ids())


# ---- stock-outs


def test_a_stock_out_withholds_its_offering_for_its_time() -> None:
    world = World(INSTANT, offering(), offering(instance_type="m2"))
    [first, second, *_] = world.ids()
    world.provider.stock_out("m1", 5 * MINUTE)
    assert world.settled("create", first) is MachineState.FAILED
    assert world.machine(first).last_error.startswith("create:capacity:")
    world.wait(1)
    assert world.provider.get(second) is None, "withheld"
    assert world.settled("create", world.ids()[-1]) is MachineState.IDLE
    world.wait(300)
    assert world.settled("create", second) is MachineState.IDLE


# ---- the command line's names


def test_every_knob_can_be_written_as_text() -> None:
    texts = [
        *("seed=7", "late_success=5s", "spot.hazard=2", "spot.notice=30s", "price.walk=0.1"),
        *("price.interval=10s", "rpc.latency=uniform(1ms,9ms)", "rpc.error_rate=0.1", "list.stale=3s"),
        *("latency.create=lognormal(30s,90s)", "failure.drain.rate=0.2", "failure.drain.class=retryable"),
        *("hang.delete.rate=1", "stage.configure=true"),
    ]
    knobs = read_knobs(texts)
    assert knobs.seed == 7 and knobs.late_success == 5 * SECOND
    assert (knobs.spot_hazard, knobs.spot_notice) == (2.0, 30 * SECOND)
    assert (knobs.price_walk, knobs.price_interval) == (0.1, 10 * SECOND)
    assert knobs.rpc_latency == Latency("uniform", 1_000_000, 9_000_000)
    assert (knobs.rpc_error_rate, knobs.list_stale) == (0.1, 3 * SECOND)
    assert knobs.latency["create"] == Latency("lognormal", 30 * SECOND, 90 * SECOND)
    assert (knobs.failure_rate, knobs.failure_class) == ({"drain": 0.2}, {"drain": "retryable"})
    assert knobs.hang_rate == {"delete": 1.0}
    assert knobs.stage == frozenset({"configure"})
    assert read_knobs([]) == Knobs()


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("seed", "name=value"),
        ("sed=1", "no such knob"),
        ("failure.ready.rate=1", "no such knob"),
        ("failure.create.rate=2", "between 0 and 1"),
        ("failure.create.class=odd", "terminal, retryable"),
        ("latency.create=soon", "not a duration"),
        ("latency.create=uniform(1s)", "two times"),
        ("latency.create=uniform(2s,1s)", "the longer one"),
        ("latency.create=lognormal(0,1s)", "above 0"),
        ("latency.create@=1s", "no such knob"),
        ("price.walk=nan", "not negative"),
        ("price.interval=0", "above 0"),
        ("stage.create=maybe", "true or false"),
    ],
)
def test_a_wrong_knob_is_named_and_explained(text: str, complaint: str) -> None:
    with pytest.raises(ValueError, match="--knob") as caught:
        read_knobs([text])
    assert text in str(caught.value) and complaint in str(caught.value)


def test_a_preseed_file_that_makes_no_sense_is_explained() -> None:
    document = [{"offering": "m1", "idle": 2, "bound": [{"cluster": "c1", "metadata": {"a": "b"}}]}]
    assert read_preseed(document) == [Preseed("m1", 2, [Binding("c1", {"a": "b"})])]
    with pytest.raises(ValueError, match="--preseed: the file is a JSON array"):
        read_preseed([{"idle": 2}])
