"""Offerings, discovered hosts, lost hosts, prices, repairs (provider.md §6.3, §6.4, §7, §11, §12.3)."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bigfleet_base.model import CapacityType, MachineState, parse_quantity
from bigfleet_base.wire import decode_machine
from bigfleet_providerkit.backend import (
    UNBOUND,
    Binding,
    CleanupResult,
    DiscoveredHost,
    Host,
    HostStatus,
    Interruption,
    Operation,
    PriceUpdate,
)
from bigfleet_providerkit.effects import Code, Invoke, Noticed, Panicked, PriceRefreshed, RepairTried
from bigfleet_providerkit.errors import InsufficientCapacity, NotFound, Terminal
from bigfleet_providerkit.offerings import (
    OfferingsError,
    check_offerings,
    hourly_probability,
    read_offerings,
    seed_offerings,
)
from bigfleet_providerkit.records import Kind
from bigfleet_providerkit.settings import Capabilities
from bigfleet_providerkit.store import MemoryStore
from tests.support.rules import rule
from tests.unit.providerkit.lab import ALL, SECOND, Lab, offering

S = MachineState
MINUTE = 60 * SECOND
INSPECTING = Capabilities(delete=True, inspect=True)


# ---- offerings


@rule("provider.P-01")
def test_ids_do_not_depend_on_order_price_or_count() -> None:
    one, two = offering(2), offering(2, zone="z2")
    ids = set(check_offerings([one, two]))
    assert ids == set(check_offerings([replace(two, count=9), replace(one, price_per_hour=7.0)]))


@rule("provider.P-91", "provider.P-92", "provider.P-93")
@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"price_per_hour": math.nan}, "price_per_hour"),
        ({"price_per_hour": math.inf}, "price_per_hour"),
        ({"price_per_hour": -1.0}, "price_per_hour"),
        ({"price_per_hour": None}, "unknown"),
        ({"price_per_hour": 0.0}, "price_per_hour is 0"),
        ({"interruption_probability": math.nan}, "interruption_probability"),
        ({"interruption_probability": 1.5}, "interruption_probability"),
        ({"capacity_type": CapacityType.SPOT, "interruption_probability": 0.0}, "spot"),
        ({"capacity_type": CapacityType.UNSPECIFIED}, "capacity_type"),
        ({"instance_type": ""}, "instance_type"),
        ({"zone": ""}, "zone"),
        ({"labels": {"zone": "z"}}, "label zone"),
        ({"allocatable": {"cpu": "lots"}}, "allocatable[cpu]"),
        ({"resources": {"cpu": "0"}}, "resources[cpu]"),
        ({"count": -1}, "count"),
        # What authors get wrong in Python, where no file has been read.
        ({"count": 2.5}, "count is 2.5"),
        ({"capacity_type": "spot"}, "capacity_type is 'spot'"),
        ({"price_per_hour": "0.3"}, "price_per_hour is '0.3'"),
        ({"price_per_hour": 10**400}, "price_per_hour"),
        ({"interruption_probability": "0.3"}, "interruption_probability is '0.3'"),
        ({"labels": {"gpus": 8}}, "labels['gpus'] is 8"),
        ({"labels": {"rack": "\ud800"}}, "labels['rack']"),
        ({"labels": ["rack"]}, "labels is ['rack']"),
        ({"instance_type": 7}, "instance_type is 7"),
        ({"zone": "\ud800"}, "zone is"),
    ],
)
def test_an_offering_that_would_mislead_refuses_the_start_and_is_named(wrong: Any, said: str) -> None:
    lab = Lab(offering(), offering(zone="z9"))
    lab.offerings = [offering(), offering(**{"zone": "z9", **wrong})]
    lab.restart()
    assert not lab.core.ready
    assert lab.core.failure.startswith("offering 2") and said in lab.core.failure
    assert not [report for report in lab.reports if isinstance(report, Panicked)], "a defect of ours"


@rule("provider.P-93")
@pytest.mark.parametrize("nonsense", [None, 7, [None], ["m1"]])
def test_offerings_that_are_none_refuse_the_start(nonsense: Any) -> None:
    lab = Lab()
    lab.offerings = nonsense
    lab.restart()
    assert repr(nonsense[0] if isinstance(nonsense, list) else nonsense) in lab.core.failure


@rule("provider.P-93")
def test_only_owned_capacity_costs_nothing() -> None:
    check_offerings([offering(capacity_type=CapacityType.BARE_METAL, price_per_hour=0.0)])
    check_offerings([offering(capacity_type=CapacityType.RESERVED, price_per_hour=0.0, prepaid=True)])
    with pytest.raises(OfferingsError):
        check_offerings([offering(capacity_type=CapacityType.RESERVED, price_per_hour=0.0)])


@rule("provider.P-92")
def test_a_spot_machine_of_unknown_risk_is_never_safe() -> None:
    lab = Lab(offering(capacity_type=CapacityType.SPOT))
    assert lab.machine(lab.ids()[0]).interruption_probability > 0


@rule("provider.P-94")
def test_monthly_rates_become_hourly_ones() -> None:
    assert hourly_probability(0.125) == pytest.approx(0.00018, rel=0.02)
    assert hourly_probability(0) == 0 and hourly_probability(1) == 1


@rule("provider.P-90")
def test_every_record_passes_the_shards_own_check_in_every_state() -> None:
    lab = Lab(offering(4, allocatable={"memory": "1Ti", "cpu": "0.5", "nano": "100u"}))
    lab.configured(0)
    failed = lab.ids()[1]
    lab.accept("create", failed)
    lab.finish(failed, error=Terminal("no"))
    lab.accept("create", lab.ids()[2])
    for record in lab.list().machines:
        assert decode_machine(record).machine.zone == "z1" and record.instance_type == "m1"
        assert record.capacity_type == int(CapacityType.ON_DEMAND)
        published = dict(record.allocatable.resources)
        assert published == {"memory": "1024Gi", "cpu": "500m", "nano": "0.0001"}
        assert {name: parse_quantity(text) for name, text in published.items()} == {
            "memory": parse_quantity("1Ti"),
            "cpu": parse_quantity("0.5"),
            "nano": parse_quantity("100u"),
        }


def test_the_standard_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "offerings.json"
    path.write_text(
        json.dumps(
            [
                {"instance_type": "a", "zone": "z", "count": 2, "price_per_hour": 1},
                {
                    "instance_type": "b",
                    "zone": "z",
                    "count": 1,
                    "capacity_type": "bare-metal",
                    "price_per_hour": 0,
                },
            ]
        )
    )
    offers = check_offerings(read_offerings(path))
    assert [offer.shape.capacity_type for offer in offers.values()] == [
        CapacityType.ON_DEMAND,
        CapacityType.BARE_METAL,
    ]


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"zone": "z", "count": 1}, "no instance_type"),
        ({"instance_type": "a", "count": 1}, "no zone"),
        ({"instance_type": "a", "zone": "z", "count": 1, "capacity_type": "cheap"}, "cheap"),
        ({"instance_type": "a", "zone": "z", "count": "1"}, "count"),
        ({"instance_type": "a", "zone": "z", "count": 1, "prize": 1}, "prize"),
        ({"instance_type": "a", "zone": "z", "count": 1, "labels": {"a": 1}}, "labels"),
        ([], "object"),
    ],
)
def test_a_wrong_row_is_named(tmp_path: Path, row: Any, said: str) -> None:
    path = tmp_path / "offerings.json"
    path.write_text(json.dumps([{"instance_type": "ok", "zone": "z", "count": 1}, row]))
    with pytest.raises(OfferingsError, match="offering 2") as caught:
        read_offerings(path)
    assert said in str(caught.value)


@pytest.mark.parametrize("count", [1, 3, 32, 256, 1000])
def test_seeds_are_spread_over_the_built_in_offerings(count: int) -> None:
    offerings = seed_offerings(count)
    assert sum(row.count for row in offerings) == count
    assert max(row.count for row in offerings) - min(row.count for row in offerings) <= 1
    if count >= 3:
        assert any(row.capacity_type is CapacityType.SPOT for row in offerings)
    check_offerings(offerings)


# ---- changes of the quota


def test_a_shrunk_offering_gives_up_free_slots_first_and_never_a_host() -> None:
    lab = Lab(offering(4), reconcile_interval=MINUTE)
    hosted = lab.configured(3)
    lab.offerings = [offering(1)]
    lab.advance(60)
    lab.reconcile()
    assert [machine.id for machine in lab.list().machines] == [hosted]
    lab.offerings = [offering(0)]
    lab.advance(60)
    lab.reconcile()
    assert lab.state(hosted) is S.CONFIGURED
    lab.restart()
    lab.accept("drain", hosted)
    lab.finish(hosted)
    assert lab.state(hosted) is S.IDLE
    lab.accept("delete", hosted)
    lab.finish(hosted)
    assert not lab.list().machines


@rule("provider.P-65")
def test_a_reconcile_without_change_moves_nothing() -> None:
    lab = Lab(offering(4), reconcile_interval=MINUTE)
    lab.idle()
    before = lab.list()
    written = len(lab.written)
    for _ in range(3):
        lab.advance(60)
        lab.reconcile()
    assert lab.list() == before and len(lab.written) == written


def test_a_reconcile_that_fails_leaves_everything_as_it_was() -> None:
    lab = Lab(offering(4), reconcile_interval=MINUTE)
    before = lab.list()
    for wrong in (RuntimeError("api down"), [offering(2, price_per_hour=math.nan)], None, ["nonsense"]):
        lab.offerings = wrong
        lab.advance(60)
        lab.reconcile()
        assert lab.list() == before and lab.core.ready


@rule("provider.P-127", "provider.P-91")
def test_a_backend_that_cannot_be_described_refuses_the_start() -> None:
    lab = Lab()
    lab.offerings = RuntimeError("no credentials")
    lab.restart()
    assert not lab.core.ready and "no credentials" in lab.core.failure


# ---- hosts found


def found(machine_id: str, binding: Binding | None) -> DiscoveredHost:
    return DiscoveredHost(machine_id, Host(f"vm-{machine_id}", binding=binding))


@rule("provider.P-124")
def test_on_a_lost_store_a_host_is_recovered_or_quarantined_but_never_idle_by_guess() -> None:
    a, b, c = Lab().ids()
    lab = Lab(
        capabilities=ALL, hosts=[found(a, Binding("c7", {"k": "v\0"})), found(b, UNBOUND), found(c, None)]
    )
    bound, free, unknown = (lab.machine(machine) for machine in (a, b, c))
    assert S(bound.state) is S.CONFIGURED and bound.cluster == "c7" and bound.shard_metadata["k"] == "v\0"
    assert S(free.state) is S.IDLE and free.host.ref == f"vm-{b}"
    assert S(unknown.state) is S.FAILED and unknown.last_error.startswith("host:binding-unknown:")
    for status in [HostStatus.RUNNING] * 5 + [HostStatus.GONE]:
        while not lab.pending(c):
            lab.advance(10)
        assert lab.state(c) is S.FAILED
        lab.finish(c, status)
    lab.finish(c, CleanupResult.GONE)
    assert lab.state(c) is S.SPECULATIVE


def test_a_quarantined_host_stays_visible_as_long_as_every_failure() -> None:
    lab = Lab(capabilities=ALL)
    lab.now = 1_000 * SECOND
    machine = lab.ids()[0]
    lab.store = MemoryStore()
    lab.hosts = [found(machine, None)]
    lab.restart()
    lab.advance(59)
    assert lab.state(machine) is S.FAILED and not lab.pending(machine)
    lab.advance(1)
    assert lab.only(machine).method == "inspect"


@rule("provider.P-124", "provider.P-06")
@pytest.mark.parametrize("is_restarted", [False, True])
@pytest.mark.parametrize(
    ("binding", "state"), [(Binding("c7", {"k": "v"}), S.CONFIGURED), (UNBOUND, S.IDLE), (None, S.FAILED)]
)
def test_a_host_is_taken_up_once_it_can_be_told_whom_it_serves(
    binding: Binding | None, state: S, is_restarted: bool
) -> None:
    machine, other = Lab().ids()[:2]
    lab = Lab(capabilities=ALL, hosts=[found(machine, None), found(other, None)], reconcile_interval=MINUTE)
    before = lab.list().revision
    stranger = DiscoveredHost(other, Host("another", binding=UNBOUND))
    lab.hosts = [found(machine, binding), stranger]
    if is_restarted:
        lab.restart()
    else:
        lab.advance(60)
        lab.reconcile()
    record = lab.machine(machine)
    assert S(record.state) is state and record.cluster == (binding.cluster if binding else "")
    assert dict(record.shard_metadata) == (binding.metadata if binding else {})
    assert (record.last_error == "") == (state is not S.FAILED)
    assert {changed.id for changed in lab.list(since=before).machines} == ({machine} if binding else set())
    lab.advance(3_600)
    assert lab.state(machine) is state and lab.state(other) is S.FAILED


@pytest.mark.parametrize(
    "nonsense",
    [
        *(None, 7, "hosts", ["host"], [None], [found("", UNBOUND)], [DiscoveredHost("m", Host(""))]),
        [DiscoveredHost("m", "host")],  # type: ignore[arg-type]  # on purpose
        [DiscoveredHost("m", Host("h", allocatable={"cpu": "lots"}))],
        [DiscoveredHost("m", Host("h"), offering(price_per_hour=math.nan))],
        [DiscoveredHost("m", Host("h"), "offering")],  # type: ignore[arg-type]  # on purpose
        [DiscoveredHost("m", Host("h", binding={"cluster": "c"}))],  # type: ignore[arg-type]  # on purpose
        [DiscoveredHost("m", Host("h", binding=Binding("c", {"priority": 7})))],  # type: ignore[dict-item]  # on purpose
        [DiscoveredHost("m", Host("h", binding=Binding("c", None)))],  # type: ignore[arg-type]  # on purpose
        [DiscoveredHost("m", Host("h", binding=Binding(7, {})))],  # type: ignore[arg-type]  # on purpose
    ],
)
def test_hosts_that_make_no_sense_refuse_the_start_and_leave_a_running_provider_as_it_is(
    nonsense: Any,
) -> None:
    lab = Lab(capabilities=ALL, reconcile_interval=MINUTE)
    before = lab.list()
    lab.hosts = nonsense
    lab.advance(60)
    lab.reconcile()
    assert lab.list() == before
    lab.restart()
    assert lab.core.failure
    assert not [report for report in lab.reports if isinstance(report, Panicked)], "a defect of ours"


def test_a_host_without_an_offering_is_surfaced() -> None:
    host = DiscoveredHost("rack-7", Host("serial-1", binding=UNBOUND), offering(1, instance_type="metal"))
    lab = Lab(capabilities=ALL, hosts=[host])
    assert lab.state("rack-7") is S.IDLE and lab.machine("rack-7").instance_type == "metal"
    assert len(lab.list().machines) == 4


def test_what_changed_while_the_substrate_was_asked_is_not_overwritten() -> None:
    lab = Lab(capabilities=ALL, reconcile_interval=MINUTE)
    machine = lab.idle()
    lab.hosts = [found(machine, None)]
    lab.advance(60)
    [offerings] = [invoke for invoke in lab.pending() if invoke.method == "offerings"]
    lab.end(offerings, lab.offerings)
    [discover] = [invoke for invoke in lab.pending() if invoke.method == "discover"]
    lab.accept("delete", machine)
    lab.finish(machine)
    lab.end(discover, lab.hosts)
    lab.reconcile()
    assert lab.state(machine) is S.SPECULATIVE


def test_a_created_host_may_refine_its_size() -> None:
    lab = Lab()
    machine = lab.ids()[0]
    lab.accept("create", machine)
    lab.finish(machine, Host("h", allocatable={"cpu": "3.9", "memory": "15Gi"}))
    assert dict(lab.machine(machine).allocatable.resources) == {"cpu": "3900m", "memory": "15Gi"}
    lab.restart()
    assert lab.machine(machine).allocatable.resources["cpu"] == "3900m"
    lab.accept("delete", machine)
    lab.finish(machine)
    assert lab.machine(machine).allocatable.resources["cpu"] == "4"


@rule("provider.P-120")
def test_machines_of_an_offering_that_is_gone_stay_what_each_of_them_is() -> None:
    lab = Lab(offering(3), offering(1, zone="z2"))
    small, risky, coming = lab.ids()
    lab.accept("create", small)
    lab.finish(small, Host("h", allocatable={"cpu": "1", "memory": "1Gi"}))
    lab.idle(1)
    lab.step(Noticed(Interruption(risky, imminent=False)))
    lab.accept("create", coming)
    before = {machine: lab.machine(machine) for machine in (small, risky, coming)}
    lab.offerings = [offering(1, zone="z2")]
    lab.restart()
    lab.step()
    assert {machine: lab.machine(machine) for machine in before} == before
    lab.settle(coming)
    assert lab.machine(coming).allocatable == before[coming].allocatable

    price(lab, price_per_hour=2.5)
    lab.step(Noticed(Interruption(small, imminent=True)))
    sizes = {machine: lab.machine(machine).allocatable for machine in before}
    assert sizes == {machine: record.allocatable for machine, record in before.items()}
    assert {lab.machine(machine).price_per_hour for machine in before} == {2.5}
    risks = [lab.machine(machine).interruption_probability for machine in before]
    assert risks == [0.99, 0.5, 0.0]


def test_an_offering_that_comes_back_says_again_what_its_machines_are() -> None:
    lab = Lab(offering(2), offering(1, zone="z2"), reconcile_interval=MINUTE)
    small, plain = lab.ids()
    lab.accept("create", small)
    lab.finish(small, Host("h", allocatable={"cpu": "1", "memory": "1Gi"}))
    lab.idle(1)
    lab.offerings = [offering(1, zone="z2")]
    lab.restart()
    lab.offerings = [offering(2, price_per_hour=4.0, allocatable={"cpu": "5"})]
    lab.advance(60)
    lab.reconcile()
    assert {lab.machine(machine).price_per_hour for machine in (small, plain)} == {4.0}
    assert [lab.machine(machine).allocatable.resources["cpu"] for machine in (small, plain)] == ["1", "5"]


# ---- hosts lost


@rule("provider.P-05")
@pytest.mark.parametrize("status", [HostStatus.GONE, HostStatus.STOPPED, NotFound("no such host")])
def test_a_lost_host_fails_its_machine_and_keeps_the_binding(status: HostStatus | NotFound) -> None:
    lab = Lab(capabilities=INSPECTING, reconcile_interval=MINUTE)
    machine = lab.configured(metadata={"k": "v"})
    lab.advance(60)
    lab.reconcile()
    if isinstance(status, NotFound):
        lab.finish(machine, error=status)
    else:
        lab.finish(machine, status)
    record = lab.machine(machine)
    assert S(record.state) is S.FAILED and record.last_error.startswith("host:host-lost:")
    assert record.cluster == "c1" and record.shard_metadata["k"] == "v"
    lab.advance(60)
    lab.finish(machine, HostStatus.GONE)
    assert lab.state(machine) is S.SPECULATIVE and not lab.machine(machine).last_error


@rule("provider.P-05")
@pytest.mark.parametrize(
    "status", [HostStatus.RUNNING, HostStatus.UNKNOWN, HostStatus.BOOTSTRAPPED, "?", None]
)
def test_a_host_that_is_not_known_to_be_lost_is_left_alone(status: Any) -> None:
    lab = Lab(capabilities=INSPECTING, reconcile_interval=MINUTE)
    machine = lab.configured()
    before = lab.machine(machine)
    for error in (None, RuntimeError("api down")):
        lab.advance(60)
        lab.reconcile()
        lab.end(lab.only(machine), status, error)
    assert lab.machine(machine) == before


@rule("provider.P-05", "provider.P-95")
def test_a_price_that_changes_meanwhile_hides_no_lost_host() -> None:
    lab = Lab(capabilities=INSPECTING, reconcile_interval=MINUTE)
    machine = lab.idle()
    lab.advance(60)
    lab.reconcile()
    price(lab, price_per_hour=2.5)
    lab.finish(machine, HostStatus.GONE)
    assert lab.machine(machine).last_error.startswith("host:host-lost:")


def test_a_machine_that_moved_on_is_not_failed_by_an_old_look() -> None:
    lab = Lab(capabilities=INSPECTING, reconcile_interval=MINUTE)
    machine = lab.idle()
    lab.advance(60)
    lab.reconcile()
    look = lab.only(machine)
    lab.accept("configure", machine)
    [configure] = [invoke for invoke in lab.pending(machine) if invoke is not look]
    lab.end(configure)
    lab.end(look, HostStatus.GONE)
    assert lab.state(machine) is S.CONFIGURED


def test_a_machine_that_was_bound_and_freed_meanwhile_is_not_failed_by_an_old_look() -> None:
    lab = Lab(capabilities=INSPECTING, reconcile_interval=MINUTE)
    machine = lab.idle()
    lab.advance(60)
    lab.reconcile()
    look = lab.only(machine)
    for kind in ("configure", "drain"):
        lab.accept(kind, machine)
        for invoke in lab.pending(machine):
            if invoke is not look:
                lab.end(invoke)
    lab.end(look, HostStatus.GONE)
    assert lab.state(machine) is S.IDLE


# ---- repairs


def failed(lab: Lab, kind: Kind) -> str:
    machine = lab.ids()[0]
    for step in Kind:
        lab.accept(step, machine)
        if step is kind:
            lab.finish(machine, error=Terminal("no"))
            return machine
        lab.settle(machine)
    raise AssertionError


@rule("provider.P-06", "ruling.R11")
@pytest.mark.parametrize("kind", list(Kind))
@pytest.mark.parametrize("result", [CleanupResult.GONE, CleanupResult.CLEAN])
def test_cleanup_gives_the_machine_back(kind: Kind, result: CleanupResult) -> None:
    lab = Lab(capabilities=ALL)
    machine = failed(lab, kind)
    lab.advance(59)
    assert lab.state(machine) is S.FAILED and not lab.pending(machine)
    lab.advance(1)
    assert lab.only(machine).method == "inspect"
    lab.finish(machine, HostStatus.RUNNING)
    cleanup = lab.only(machine)
    assert cleanup.method == "cleanup" and cleanup.failed_kind == kind.value
    lab.finish(machine, result)
    if result is CleanupResult.CLEAN and kind is Kind.CREATE:
        assert lab.state(machine) is S.FAILED, "nobody knows which host is clean"
        assert lab.only(machine).method == "delete"
        lab.finish(machine)
        assert lab.state(machine) is S.SPECULATIVE
        return
    record = lab.machine(machine)
    assert S(record.state) is (S.SPECULATIVE if result is CleanupResult.GONE else S.IDLE)
    assert not record.last_error and not record.cluster and not record.shard_metadata
    lab.accept("create" if result is CleanupResult.GONE else "configure", machine)


@rule("ruling.R11")
@pytest.mark.parametrize(("kind", "method", "state"), [
    (Kind.CREATE, "delete", S.SPECULATIVE),
    (Kind.CONFIGURE, "drain", S.IDLE),
    (Kind.DRAIN, "drain", S.IDLE),
    (Kind.DELETE, "delete", S.SPECULATIVE),
])  # fmt: skip
def test_without_cleanup_drain_and_delete_serve(kind: Kind, method: str, state: MachineState) -> None:
    lab = Lab()
    machine = failed(lab, kind)
    lab.advance(60)
    assert lab.only(machine).method == method
    lab.finish(machine)
    assert lab.state(machine) is state


@rule("ruling.R11")
def test_a_repair_that_does_not_work_is_tried_again_and_again_with_growing_pauses() -> None:
    lab = Lab(capabilities=ALL)
    machine = failed(lab, Kind.CONFIGURE)
    lab.advance(60)
    pauses = []
    for _ in range(9):
        lab.finish(machine, HostStatus.UNKNOWN)
        start = lab.now
        while not lab.pending(machine):
            lab.advance(1)
        pauses.append((lab.now - start) // SECOND)
    assert pauses == [30, 60, 120, 240, 480, 960, 1800, 1800, 1800]
    assert sum(isinstance(report, RepairTried) for report in lab.reports) == 9


@rule("provider.P-52")
def test_a_machine_whose_old_call_still_runs_is_not_repaired() -> None:
    lab = Lab(timeouts=dict.fromkeys(Kind, 2 * SECOND))
    machine = lab.ids()[0]
    lab.accept("create", machine)
    hung = lab.only(machine)
    lab.advance(1_000)
    assert lab.state(machine) is S.FAILED and lab.pending() == [hung]
    lab.end(hung, Host("late"))
    lab.advance(1_800)
    assert lab.only(machine).method == "delete"


@rule("ruling.R11")
def test_repairs_go_on_after_a_restart() -> None:
    lab = Lab()
    machine = failed(lab, Kind.CREATE)
    lab.restart()
    assert lab.state(machine) is S.FAILED
    lab.advance(60)
    lab.finish(machine)
    assert lab.state(machine) is S.SPECULATIVE


def operation_id(invoke: Invoke) -> str:
    assert isinstance(invoke.argument, Operation)
    return invoke.argument.operation_id


@rule("provider.P-42", "provider.P-47")
@pytest.mark.parametrize("kind", [Kind.CONFIGURE, Kind.DRAIN, Kind.DELETE])
def test_a_repair_has_the_operation_of_the_step_that_failed(kind: Kind) -> None:
    lab = Lab()
    machine = lab.configured()
    lab.accept("drain", machine)
    lab.settle(machine)
    if kind is Kind.DRAIN:
        lab.accept("configure", machine)
        lab.settle(machine)
    operation = lab.accept(kind, machine)
    lab.finish(machine, error=Terminal("no"))
    lab.advance(60)
    assert operation_id(lab.only(machine)) == operation


@rule("provider.P-42", "provider.P-47")
def test_the_repair_of_each_lost_host_has_an_operation_of_its_own() -> None:
    lab = Lab(capabilities=INSPECTING, reconcile_interval=MINUTE)
    machine = lab.configured()
    used = set(lab.core.get(machine).operations)  # type: ignore[union-attr]  # it is there
    tried: list[str] = []
    for outcome in (Terminal("not yet"), None, None):
        if lab.state(machine) is not S.FAILED:
            lab.advance(60)
            lab.reconcile()
            lab.finish(machine, HostStatus.STOPPED)
            assert lab.machine(machine).last_error.startswith("host:host-lost:")
        while not lab.pending(machine):
            lab.advance(1)
        lab.finish(machine, HostStatus.RUNNING)
        drain = lab.only(machine)
        assert drain.method == "drain"
        tried.append(operation_id(drain))
        lab.end(drain, error=outcome)
        for delete in lab.pending(machine):
            lab.end(delete, error=Terminal("not this either"))
    first, again, second = tried
    assert first == again != second and used.isdisjoint(tried)


@rule("ruling.R11")
def test_a_host_that_drain_cannot_find_is_gone() -> None:
    lab = Lab(capabilities=Capabilities())
    machine = lab.idle()
    lab.accept("configure", machine)
    lab.finish(machine, error=NotFound("no such host"))
    lab.advance(60)
    lab.finish(machine, error=NotFound("no such host"))
    assert lab.state(machine) is S.SPECULATIVE
    lab.accept("create", machine)


# ---- stock-outs


def test_a_stock_out_withholds_the_free_slots_of_its_offering_for_a_while() -> None:
    lab = Lab(offering(4), offering(2, zone="z2"))
    before = lab.list().revision
    a, b, *_ = lab.ids()
    lab.idle(3)
    lab.accept("create", a, ("s", 1, 5))
    lab.finish(a, error=InsufficientCapacity(retry_after=100))
    lab.step()
    assert lab.machine(a).last_error.startswith("create:capacity:")
    assert len(lab.list().machines) == 4
    assert b in lab.list(since=before).removed_ids and lab.core.get(b) is None
    assert lab.call("create", b, ("s", 1, 5)).code is Code.NOT_FOUND
    assert lab.call("create", b, ("s", 1, 5)).code is Code.FAILED_PRECONDITION
    lab.advance(99)
    assert len(lab.list().machines) == 4
    lab.advance(1)
    assert len(lab.list().machines) == 6 and lab.state(b) is S.SPECULATIVE
    assert b in {machine.id for machine in lab.list(since=before).machines}
    assert not lab.list(since=before).removed_ids
    assert lab.call("create", b, ("s", 1, 5)).code is Code.FAILED_PRECONDITION
    lab.advance(299)
    assert lab.state(a) is S.SPECULATIVE


def test_a_stock_out_ends_with_a_restart() -> None:
    lab = Lab()
    a = lab.ids()[0]
    lab.accept("create", a)
    lab.finish(a, error=InsufficientCapacity(retry_after=1e18))
    lab.step()
    assert len(lab.list().machines) == 1
    lab.restart()
    lab.step()
    assert len(lab.list().machines) == 3


# ---- prices and notices


def price(lab: Lab, **values: Any) -> None:
    lab.step(Noticed(PriceUpdate("m1", "z1", CapacityType.ON_DEMAND, **values)))
    lab.step()


@rule("provider.P-64", "provider.P-65", "provider.P-95")
def test_a_new_price_is_a_change_and_an_equal_one_is_not() -> None:
    lab = Lab(offering(1_200), offering(1, zone="z2"))
    before = lab.list().revision
    price(lab, price_per_hour=1.0)
    assert lab.list().revision == before
    price(lab, price_per_hour=2.5)
    lab.advance(0)
    delta = lab.list(since=before)
    assert len(delta.machines) == 1_200 and {machine.price_per_hour for machine in delta.machines} == {2.5}


@rule("provider.P-65")
def test_a_price_is_for_every_offering_of_its_name_and_for_no_other() -> None:
    named = [offering(1, labels={"rack": rack}) for rack in ("a", "b")]
    others = [offering(1, zone="z2"), offering(1, capacity_type=CapacityType.SPOT)]
    host = DiscoveredHost("old-7", Host("serial-1", binding=UNBOUND), offering(1, labels={"rack": "gone"}))
    lab = Lab(*named, *others, capabilities=ALL, hosts=[host])
    for _ in range(2):
        lab.step(Noticed(PriceUpdate("m1", "z1", CapacityType.ON_DEMAND, price_per_hour=3.5)))
        lab.step()
        assert sorted(machine.price_per_hour for machine in lab.list().machines) == [1.0, 1.0, 3.5, 3.5, 3.5]
        lab.restart()


@rule("provider.P-95")
def test_a_price_stays_when_the_count_of_its_offering_changes() -> None:
    lab = Lab(offering(2), reconcile_interval=MINUTE)
    lab.idle()
    price(lab, price_per_hour=3.0)
    seen = []
    for declared in (offering(3), offering(1), offering(1, price_per_hour=5.0), offering(2)):
        lab.offerings = [declared]
        lab.advance(60)
        lab.reconcile()
        seen.append([machine.price_per_hour for machine in lab.list().machines])
    assert seen == [[3.0] * 3, [3.0], [5.0], [1.0] * 2], "what the substrate declares anew counts"


@rule("provider.P-95", "provider.P-91", "provider.P-93")
@pytest.mark.parametrize("wrong", [math.nan, math.inf, -1.0, 0.0, "2"])
def test_a_price_that_cannot_be_keeps_the_last_one_and_is_counted(wrong: Any) -> None:
    lab = Lab()
    before = lab.list()
    price(lab, price_per_hour=wrong)
    assert lab.list() == before
    assert [r.outcome for r in lab.reports if isinstance(r, PriceRefreshed)] == ["error"]


@rule("provider.P-96")
def test_a_notice_raises_the_risk_until_the_host_is_deleted() -> None:
    lab = Lab()
    machine = lab.configured()
    before = lab.list().revision
    lab.step(Noticed(Interruption(machine, imminent=False)))
    assert lab.list(since=before).machines[0].interruption_probability == 0.5
    lab.step(Noticed(Interruption(machine, imminent=True)))
    lab.step(Noticed(Interruption(machine, imminent=False)))
    lab.restart()
    assert lab.machine(machine).interruption_probability == 0.99
    for kind in ("drain", "delete"):
        lab.accept(kind, machine)
        lab.finish(machine)
    assert lab.machine(machine).interruption_probability == 0


def test_notices_about_nothing_change_nothing() -> None:
    lab = Lab()
    before = lab.list()
    for notice in (Interruption("ghost", True), Interruption(lab.ids()[0], True), "nonsense", None):
        lab.step(Noticed(notice))  # type: ignore[arg-type]  # what a feed may yield
    assert lab.list() == before
