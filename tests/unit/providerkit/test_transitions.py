"""The life of a machine through the four calls (provider.md §2, §3.3, §4, §6, §8)."""

import base64
import json
from collections.abc import Callable
from typing import Any

import pytest

from bigfleet_base.model import MachineState
from bigfleet_providerkit.backend import Host, HostStatus
from bigfleet_providerkit.effects import Code, LateResult, Panicked, PutMachine
from bigfleet_providerkit.errors import InsufficientCapacity, NotFound, Retryable, Terminal
from bigfleet_providerkit.records import Kind
from bigfleet_providerkit.settings import Capabilities
from tests.support.rules import rule
from tests.unit.providerkit.lab import ALL, SECOND, Lab, offering, snapshot

S = MachineState
PROBE = Capabilities(delete=True, probe=True)
HOSTILE = {f"k{n}": "v" * n for n in range(50)} | {
    "": "empty key",
    "nul": "a\0b",
    "ü": "日本\n\t",
    "empty": "",
}


@rule("provider.P-01", "provider.P-02", "provider.P-03", "provider.P-04", "provider.P-97", "provider.P-98")
def test_a_whole_life_shows_each_state_with_its_fields() -> None:
    lab = Lab()
    machine = lab.ids()[0]
    seen = []

    def look() -> None:
        record = lab.machine(machine)
        assert machine in {m.id for m in lab.list().machines} and len(lab.list().machines) == 3
        seen.append((S(record.state), record.host.ref != "", record.cluster, dict(record.shard_metadata)))
        assert record.host.provider == ("test" if record.host.ref else "")

    look()
    for kind in ("create", "configure", "drain", "delete"):
        lab.accept(kind, machine, metadata={"k": "v"} if kind == "configure" else {})
        look()
        lab.finish(machine)
        look()
    note = {"k": "v"}
    assert seen == [
        (S.SPECULATIVE, False, "", {}),
        (S.CREATING, False, "", {}),
        (S.IDLE, True, "", {}),
        (S.CONFIGURING, True, "c1", note),
        (S.CONFIGURED, True, "c1", note),
        (S.DRAINING, True, "c1", note),
        (S.IDLE, True, "", {}),
        (S.DELETING, True, "", {}),
        (S.SPECULATIVE, False, "", {}),
    ]


@rule("provider.P-05", "provider.P-65")
def test_nothing_moves_by_itself() -> None:
    lab = Lab()
    machine = lab.configured()
    before = lab.list()
    lab.advance(100_000)
    assert lab.state(machine) is S.CONFIGURED
    assert lab.list() == before
    assert not lab.list(since=before.revision).machines


@rule("provider.P-11")
def test_a_refused_call_has_no_effect_now_or_later() -> None:
    lab = Lab()
    machine = lab.ids()[0]
    before = lab.list()
    refused = lab.call("configure", machine, metadata={"k": "v"})
    assert refused.code is Code.ABORTED and refused.message == "reason=WRONG_STATE,state=SPECULATIVE"
    lab.advance(10)
    assert lab.list() == before and not lab.pending()


@rule("provider.P-12", "provider.P-72")
def test_the_ack_does_not_wait_for_the_backend_and_reads_go_on() -> None:
    lab = Lab()
    machine = lab.ids()[0]
    answer = lab.call("create", machine)
    assert answer.code is Code.OK and answer.operation_id
    assert S(snapshot(answer).state) is S.CREATING
    lab.advance(60)
    assert lab.state(machine) is S.CREATING and len(lab.list().machines) == 3


@rule("provider.P-13", "provider.P-43")
def test_parallel_configures_collapse_into_one() -> None:
    lab = Lab()
    machine = lab.idle()
    answers = lab.step(*(lab.event("configure", machine) for _ in range(16)))
    assert len({answer.operation_id for answer in answers}) == 1
    for answer in answers:
        record = snapshot(answer)
        assert S(record.state) is S.CONFIGURING and record.cluster == "c1"
    assert lab.only(machine).method == "configure"


@rule("provider.P-40")
@pytest.mark.parametrize("kind", list(Kind))
def test_a_repeat_in_flight_or_at_the_target_returns_the_same_operation(kind: Kind) -> None:
    lab = Lab()
    machine = lab.ids()[0]
    for step in Kind:
        operation = lab.accept(step, machine)
        if step is kind:
            assert lab.accept(step, machine) == operation
            lab.finish(machine)
            head = lab.list().revision
            assert lab.accept(step, machine) == operation
            assert not lab.pending() and lab.list().revision == head
            return
        lab.finish(machine)


@rule("provider.P-41", "provider.P-42")
def test_every_cycle_has_its_own_operation() -> None:
    lab = Lab()
    machine = lab.ids()[0]
    kinds = ["create", "configure", "drain", "configure", "drain", "delete", "create"]
    operations = []
    for kind in kinds:
        operations.append(lab.accept(kind, machine))
        lab.finish(machine)
        if kind == "drain":
            assert lab.accept("drain", machine) == operations[-1]
    assert len(set(operations)) == len(kinds)


@rule("provider.P-44")
def test_operation_ids_carry_the_incarnation_and_outlive_restarts() -> None:
    lab = Lab()
    first = lab.accept("create", lab.ids()[0])
    assert first.startswith("01" * 8 + "-")
    lab.restart()
    second = lab.accept("create", lab.ids()[1])
    assert second != first


@rule("provider.P-45")
def test_records_end_with_the_life_of_the_slot() -> None:
    lab = Lab()
    machine = lab.ids()[0]
    assert lab.call("delete", machine).code is Code.ABORTED
    created = lab.accept("create", machine)
    lab.finish(machine)
    assert lab.call("drain", machine).code is Code.ABORTED
    for kind in ("configure", "drain", "configure", "drain"):
        lab.accept(kind, machine)
        lab.finish(machine)
    assert lab.accept("create", machine) == created
    lab.accept("delete", machine)
    lab.finish(machine)
    lab.accept("create", machine)
    lab.finish(machine)
    assert lab.call("drain", machine).code is Code.ABORTED
    assert lab.state(machine) is S.IDLE


@rule("provider.P-46")
@pytest.mark.parametrize("settled", [False, True])
def test_a_conflicting_rebind_is_refused(settled: bool) -> None:
    lab = Lab()
    machine = lab.idle()
    operation = lab.accept("configure", machine, metadata={"k": "v"}, blob=b"one")
    if settled:
        lab.settle(machine)
    for cluster, metadata in (("c2", {"k": "v"}), ("c1", {"k": "w"}), ("c1", {})):
        conflict = lab.call("configure", machine, cluster=cluster, metadata=metadata)
        assert conflict.code is Code.ALREADY_EXISTS
    assert lab.accept("configure", machine, metadata={"k": "v"}, blob=b"two") == operation
    assert lab.machine(machine).cluster == "c1"


@rule("provider.P-47", "provider.P-122")
def test_a_create_resumed_after_a_crash_has_the_same_operation_id() -> None:
    lab = Lab()
    machine = lab.ids()[0]
    operation = lab.accept("create", machine, metadata={"a": "1"})
    assert lab.only(machine).argument.operation_id == operation  # type: ignore[union-attr]  # an Operation
    lab.restart()
    assert lab.state(machine) is S.CREATING
    assert lab.only(machine).argument.operation_id == operation  # type: ignore[union-attr]  # an Operation
    lab.finish(machine)
    assert lab.state(machine) is S.IDLE and lab.accept("create", machine) == operation


@rule("provider.P-50")
def test_of_two_conflicting_calls_one_loses() -> None:
    lab = Lab()
    machine = lab.idle()
    configure, drain, delete = lab.step(
        lab.event("configure", machine), lab.event("drain", machine), lab.event("delete", machine)
    )
    assert (configure.code, drain.code, delete.code) == (Code.OK, Code.ABORTED, Code.ABORTED)
    assert drain.message == "reason=BUSY"
    lab.settle(machine)
    assert lab.state(machine) is S.CONFIGURED


@rule("provider.P-51")
def test_machines_progress_in_parallel_and_share_nothing() -> None:
    lab = Lab(offering(8))
    answers = lab.step(*(lab.event("create", machine) for machine in lab.ids()))
    assert len({answer.operation_id for answer in answers}) == 8
    assert len(lab.pending()) == 8
    for machine in reversed(lab.ids()):
        lab.finish(machine)
        record = lab.machine(machine)
        assert S(record.state) is S.IDLE and record.host.ref == f"host-of-{machine}"
        assert not record.cluster and not record.shard_metadata


def test_no_more_backend_calls_run_at_once_than_allowed() -> None:
    lab = Lab(offering(5), concurrency={"create": 2})
    lab.step(*(lab.event("create", machine) for machine in lab.ids()))
    most = 0
    while lab.pending():
        most = max(most, len(lab.pending()))
        lab.end(lab.pending()[0], Host("h"))
    assert most == 2
    assert {lab.state(machine) for machine in lab.ids()} == {S.IDLE}


def test_waiting_for_our_own_limit_is_not_the_backends_time() -> None:
    lab = Lab(concurrency={"create": 1}, timeouts=dict.fromkeys(Kind, 2 * SECOND))
    a, b, _ = lab.ids()
    lab.accept("create", a)
    lab.accept("create", b)
    lab.advance(3)
    assert lab.state(a) is S.FAILED and lab.state(b) is S.CREATING
    lab.finish(b)
    assert lab.state(b) is S.IDLE


def test_backend_calls_keep_to_the_rate() -> None:
    lab = Lab(offering(4), rates={"create": 1.0})
    lab.step(*(lab.event("create", machine) for machine in lab.ids()))
    counts = []
    for _ in range(4):
        counts.append(len(lab.pending()))
        lab.advance(1)
    assert counts == [1, 2, 3, 4]


@rule("provider.P-52", "provider.P-81")
def test_a_late_result_is_discarded() -> None:
    lab = Lab(timeouts=dict.fromkeys(Kind, 2 * SECOND))
    machine = lab.idle()
    lab.accept("configure", machine)
    invoke = lab.only(machine)
    lab.advance(2)
    failed = lab.machine(machine)
    assert S(failed.state) is S.FAILED and failed.last_error.startswith("configure:timeout:")
    assert lab.cancelled == [invoke.call]
    lab.advance(1)
    lab.end(invoke)
    assert lab.machine(machine) == failed
    assert isinstance(lab.reports[-1], LateResult)


@rule("provider.P-52")
def test_a_result_in_the_last_moment_counts() -> None:
    lab = Lab(timeouts=dict.fromkeys(Kind, 2 * SECOND))
    machine = lab.ids()[0]
    lab.accept("create", machine)
    lab.now += 2 * SECOND
    lab.finish(machine)
    assert lab.state(machine) is S.IDLE and not lab.cancelled
    lab.advance(100)
    assert lab.state(machine) is S.IDLE


@rule("provider.P-80", "provider.P-82", "provider.P-86")
@pytest.mark.parametrize("kind", list(Kind))
def test_a_backend_that_raises_ends_in_failed(kind: Kind) -> None:
    lab = Lab()
    machine = lab.ids()[0]
    for step in Kind:
        lab.accept(step, machine)
        if step is kind:
            lab.finish(machine, error=ZeroDivisionError("boom"))
            break
        lab.finish(machine)
    record = lab.machine(machine)
    assert S(record.state) is S.FAILED
    assert record.last_error == f"{kind.value}:substrate: boom"


@rule("provider.P-80")
@pytest.mark.parametrize(
    "nonsense",
    [
        *(None, "host-1", 7, Host, Host(""), Host(7), Host("h\ud800")),  # type: ignore[arg-type]  # on purpose
        Host("h", allocatable={"cpu": "lots"}),
        Host("h", allocatable={"cpu": 4}),  # type: ignore[dict-item]  # on purpose
        Host("h", resources=["cpu"]),  # type: ignore[arg-type]  # on purpose
        Host("h", resources={7: "4"}),  # type: ignore[dict-item]  # on purpose
    ],
)
def test_a_create_that_returns_nonsense_ends_in_failed(nonsense: object) -> None:
    lab = Lab()
    machine = lab.ids()[0]
    lab.accept("create", machine)
    lab.end(lab.only(machine), nonsense)
    assert lab.machine(machine).last_error.startswith("create:substrate:")
    assert not [report for report in lab.reports if isinstance(report, Panicked)], "a defect of ours"


@rule("provider.P-80", "provider.P-86")
@pytest.mark.parametrize("text", ["", "\ud800", "a\0b\x1b[31m", "x" * 100_000, "\n" * 9])
def test_whatever_a_backend_says_when_it_raises_the_machine_fails_in_one_readable_line(text: str) -> None:
    lab = Lab()
    machine = lab.ids()[0]
    lab.accept("create", machine)
    lab.finish(machine, error=Terminal(text))
    error = lab.machine(machine).last_error
    assert error.startswith("create:substrate:") and "\n" not in error and len(error.encode()) <= 1_024
    assert not [report for report in lab.reports if isinstance(report, Panicked)], "a defect of ours"


@rule("provider.P-86")
def test_trouble_of_a_configure_that_went_well_in_the_end_is_not_told_of_its_node() -> None:
    lab = Lab(capabilities=PROBE)
    machine = lab.idle()
    lab.accept("configure", machine, blob=b"hunter2hunter2")
    lab.finish(machine, error=Retryable("cannot copy hunter2hunter2 yet"))
    lab.advance(2)
    lab.finish(machine)
    while lab.state(machine) is S.CONFIGURING:
        for invoke in lab.pending(machine):
            lab.end(invoke, False)
        lab.advance(2)
    assert lab.machine(machine).last_error == "configure:readiness: the node was not Ready within 300 s"


class Throttled(Retryable):
    """As authors derive one, who have nothing to say of the time."""

    def __init__(self) -> None:
        Exception.__init__(self, "slow down")


@rule("provider.P-80")
@pytest.mark.parametrize("after", [None, "5s", float("nan"), float("inf"), 1e300, -1])
def test_an_error_whose_time_makes_no_sense_is_what_it_is_all_the_same(after: Any) -> None:
    lab = Lab()
    machine, other = lab.ids()[:2]
    lab.accept("create", machine)
    lab.finish(machine, error=InsufficientCapacity("sold out", retry_after=after))
    assert lab.machine(machine).last_error == "create:capacity: sold out"
    lab.advance(301)
    lab.accept("create", other)
    lab.finish(other, error=Retryable("later", after=after))
    lab.advance(2)
    lab.finish(other, error=Throttled())
    lab.advance(2)
    lab.finish(other)
    assert lab.state(other) is S.IDLE


@rule("provider.P-83", "provider.P-84")
def test_a_failed_machine_is_readable_and_takes_no_calls() -> None:
    lab = Lab()
    machine = lab.idle()
    lab.accept("configure", machine, metadata={"k": "v"})
    lab.finish(machine, error=Terminal("no"))
    failed = lab.machine(machine)
    for kind in Kind:
        refused = lab.call(kind, machine)
        assert refused.code is Code.ABORTED and refused.message == "reason=WRONG_STATE,state=FAILED"
    assert list(lab.list(S.FAILED).machines) == [failed] == [lab.machine(machine)]
    assert failed.cluster == "c1" and failed.host.ref and dict(failed.shard_metadata) == {"k": "v"}


@rule("provider.P-85")
def test_the_drain_timeout_covers_the_grace() -> None:
    lab = Lab(timeouts=dict.fromkeys(Kind, 2 * SECOND))
    machine = lab.configured()
    lab.accept("drain", machine, grace=10)
    lab.advance(5)
    assert lab.state(machine) is S.DRAINING
    lab.advance(64)
    assert lab.state(machine) is S.DRAINING
    lab.advance(2)
    assert lab.machine(machine).last_error.startswith("drain:timeout:")
    other = lab.configured(1)
    lab.accept("drain", other)
    lab.advance(2)
    assert lab.state(other) is S.FAILED


@rule("provider.P-110", "provider.P-111")
def test_a_drain_that_is_tried_again_gets_what_is_left_of_its_grace() -> None:
    lab = Lab()
    machine = lab.configured()
    lab.accept("drain", machine, grace=100)
    given = []
    for seconds in (40, 70, 0):
        given.append(lab.only(machine).argument.grace_seconds)  # type: ignore[union-attr]  # an Operation
        lab.advance(seconds)
        lab.finish(machine, error=Retryable("the API server is away", after=1))
        lab.advance(1)
    assert given == [100, 59, 0]


@rule("provider.P-86")
def test_last_error_is_short_and_without_the_blob() -> None:
    lab = Lab()
    machine = lab.idle()
    blob = b"#!/bin/sh\nkubeadm join --token 9a08jv.c0izixklcxtmnze7 --secret abcDEF123456/+x\n"
    lab.accept("configure", machine, blob=blob)
    lab.finish(machine, error=Terminal("failed: abcDEF123456/+x and 9a08jv.c0izixklcxtmnze7 " + "x" * 5_000))
    error = lab.machine(machine).last_error
    assert len(error.encode()) <= 1024
    assert "abcDEF" not in error and "c0izixkl" not in error and "failed" in error


@rule("provider.P-86")
@pytest.mark.parametrize("quoted", [repr, json.dumps, lambda text: base64.b64encode(text.encode()).decode()])
def test_last_error_is_without_the_blob_however_it_is_quoted(quoted: Callable[[str], str]) -> None:
    lab = Lab()
    machine = lab.idle()
    blob = "#!/bin/sh\nabcdef0123456789\njoin --password 'p@ss:w0rd!x9'\n\tzyxwvut987654\n"
    lab.accept("configure", machine, blob=blob.encode())
    lab.finish(machine, error=Terminal(f"Command ['join', {quoted(blob)}] failed with status 3"))
    error = lab.machine(machine).last_error
    assert not [secret for secret in ("abcdef0123456789", "p@ss", "w0rd", "zyxwvut987654") if secret in error]
    assert quoted(blob)[-20:-5] not in error and error.endswith("failed with status 3")


@rule("provider.P-100", "provider.P-102", "provider.P-101")
def test_metadata_is_echoed_byte_for_byte_until_the_drain_ends() -> None:
    lab = Lab()
    machine = lab.idle()
    sent = dict(HOSTILE)
    event = lab.event("configure", machine, metadata=sent)
    [answer] = lab.step(event)
    event.metadata["k1"] = "changed by the caller"
    assert dict(snapshot(answer).shard_metadata) == HOSTILE
    lab.settle(machine)
    for _ in range(4):
        assert dict(lab.machine(machine).shard_metadata) == HOSTILE
    assert dict(lab.list(S.CONFIGURED).machines[0].shard_metadata) == HOSTILE
    lab.accept("drain", machine)
    assert dict(lab.machine(machine).shard_metadata) == HOSTILE
    lab.finish(machine)
    assert not lab.machine(machine).shard_metadata and not lab.machine(machine).cluster
    lab.accept("configure", machine, metadata={"new": "1"})
    assert dict(lab.machine(machine).shard_metadata) == {"new": "1"}


@rule("provider.P-103")
@pytest.mark.parametrize(
    "metadata", [{str(n): "" for n in range(1_025)}, {"k": "x" * (4 << 20)}], ids=["keys", "bytes"]
)
@pytest.mark.parametrize("kind", ["create", "configure", "drain"])
def test_metadata_beyond_the_cap_is_refused_whole(kind: str, metadata: dict[str, str]) -> None:
    lab = Lab()
    machine = {"create": lambda: lab.ids()[0], "configure": lab.idle, "drain": lab.configured}[kind]()
    before = lab.machine(machine)
    refused = lab.call(kind, machine, metadata=metadata)
    assert refused.code is Code.INVALID_ARGUMENT and "at most" in refused.message
    assert lab.machine(machine) == before


@rule("provider.P-103")
def test_metadata_at_the_cap_is_kept_whole() -> None:
    lab = Lab()
    machine = lab.idle()
    most = {f"{n:04}": "x" * 4_092 for n in range(1_024)}
    assert lab.call("configure", machine, metadata=most).code is Code.OK
    assert dict(lab.machine(machine).shard_metadata) == most


def test_a_blob_beyond_the_cap_is_refused() -> None:
    lab = Lab()
    machine = lab.idle()
    assert lab.call("configure", machine, blob=b"x" * ((8 << 20) + 1)).code is Code.INVALID_ARGUMENT
    assert lab.state(machine) is S.IDLE


@rule("ruling.R15")
def test_metadata_of_create_and_drain_lives_as_long_as_the_transition() -> None:
    lab = Lab()
    machine = lab.ids()[0]
    lab.accept("create", machine, metadata={"a": "1", "b": "2"})
    assert dict(lab.machine(machine).shard_metadata) == {"a": "1", "b": "2"}
    lab.restart()
    assert dict(lab.machine(machine).shard_metadata) == {"a": "1", "b": "2"}
    lab.accept("create", machine, metadata={"other": "ignored"})
    assert dict(lab.machine(machine).shard_metadata) == {"a": "1", "b": "2"}
    lab.finish(machine)
    assert not lab.machine(machine).shard_metadata
    lab.accept("configure", machine, metadata={"k": "binding"})
    lab.finish(machine)
    lab.accept("drain", machine, metadata={"k": "drain", "d": "3"})
    lab.restart()
    assert dict(lab.machine(machine).shard_metadata) == {"k": "binding", "d": "3"}
    lab.finish(machine)
    assert not lab.machine(machine).shard_metadata


@rule("provider.P-104", "provider.P-120")
def test_a_restart_changes_no_record() -> None:
    lab = Lab(offering(6))
    lab.configured(0, metadata=HOSTILE)
    lab.idle(1)
    lab.accept("create", lab.ids()[2])
    failed = lab.idle(3)
    lab.accept("configure", failed)
    lab.finish(failed, error=Terminal("no"))
    before = lab.list()
    lab.restart()
    assert lab.list() == before


@rule("provider.P-121", "provider.P-122")
@pytest.mark.parametrize("capabilities", [Capabilities(), ALL])
def test_an_interrupted_configure_is_failed_before_the_port_opens(capabilities: Capabilities) -> None:
    lab = Lab(capabilities=capabilities)
    machine = lab.idle()
    lab.accept("configure", machine)
    lab.restart()
    for invoke in lab.pending():
        assert not lab.core.ready
        assert invoke.method == "inspect"
        lab.end(invoke, HostStatus.RUNNING)
    assert lab.core.ready
    record = lab.machine(machine)
    assert S(record.state) is S.FAILED and record.last_error.startswith("configure:interrupted:")
    assert record.cluster == "c1"


@rule("provider.P-122")
def test_an_interrupted_configure_whose_bootstrap_ran_goes_on() -> None:
    lab = Lab(capabilities=ALL)
    machine = lab.idle()
    operation = lab.accept("configure", machine)
    lab.restart()
    lab.finish(machine, HostStatus.BOOTSTRAPPED)
    assert lab.core.ready and lab.state(machine) is S.CONFIGURING
    invoke = lab.only(machine)
    assert invoke.method == "node_ready" and invoke.argument.operation_id == operation  # type: ignore[union-attr]  # an Operation
    lab.finish(machine)
    assert lab.state(machine) is S.CONFIGURED and lab.accept("configure", machine) == operation


@rule("provider.P-121")
@pytest.mark.parametrize("kind", [Kind.CREATE, Kind.DRAIN, Kind.DELETE])
def test_an_interrupted_transition_gets_its_whole_time_again(kind: Kind) -> None:
    lab = Lab(timeouts=dict.fromkeys(Kind, 10 * SECOND))
    machine = lab.ids()[0]
    for step in Kind:
        operation = lab.accept(step, machine)
        if step is kind:
            break
        lab.finish(machine)
    lab.advance(9)
    lab.restart()
    assert lab.core.ready and lab.only(machine).argument.operation_id == operation  # type: ignore[union-attr]  # an Operation
    lab.advance(9)
    assert lab.state(machine) is not S.FAILED
    lab.advance(1)
    assert lab.machine(machine).last_error.startswith(f"{kind.value}:timeout:")


@rule("provider.P-123")
def test_what_cannot_be_stored_is_not_done() -> None:
    lab = Lab()
    machine = lab.ids()[0]
    lab.store_down = True
    assert lab.call("create", machine).code is Code.UNAVAILABLE
    assert lab.state(machine) is S.SPECULATIVE and not lab.pending()
    lab.store_down = False
    assert lab.call("create", machine).code is Code.OK


def test_a_result_that_cannot_be_stored_is_kept_for_later() -> None:
    lab = Lab()
    machine = lab.ids()[0]
    lab.accept("create", machine)
    lab.store_down = True
    lab.finish(machine)
    assert lab.state(machine) is S.CREATING and lab.core.next_deadline() == 0
    lab.step()
    lab.store_down = False
    lab.step()
    assert lab.state(machine) is S.IDLE


def test_a_result_that_was_kept_comes_before_what_is_asked_next() -> None:
    lab = Lab()
    machine = lab.ids()[0]
    lab.accept("create", machine)
    lab.store_down = True
    lab.finish(machine)
    lab.store_down = False
    assert lab.call("configure", machine).code is Code.OK
    assert lab.state(machine) is S.CONFIGURING


def test_a_timeout_that_cannot_be_stored_is_kept_for_later() -> None:
    lab = Lab(timeouts=dict.fromkeys(Kind, 2 * SECOND))
    machine = lab.ids()[0]
    lab.accept("create", machine)
    lab.store_down = True
    lab.now += 3 * SECOND
    lab.step()
    assert lab.state(machine) is S.CREATING and not lab.cancelled
    lab.store_down = False
    lab.step()
    assert lab.state(machine) is S.FAILED and len(lab.cancelled) == 1


def test_readers_never_see_what_is_not_stored() -> None:
    lab = Lab()
    machine = lab.ids()[0]
    writes = lab.core.step([lab.event("create", machine)], lab.now)
    assert any(isinstance(write, PutMachine) for write in writes)
    assert lab.state(machine) is S.SPECULATIVE
    lab.core.commit()
    assert lab.state(machine) is S.CREATING


def test_a_configure_is_ready_when_the_node_is() -> None:
    lab = Lab(capabilities=PROBE)
    machine = lab.idle()
    lab.accept("configure", machine, blob=b"secret")
    assert lab.only(machine).argument.bootstrap_blob == b"secret"  # type: ignore[union-attr]  # an Operation
    lab.finish(machine)
    for _ in range(3):
        assert lab.only(machine).method == "node_ready"
        lab.finish(machine, False)
        assert not lab.pending() and lab.state(machine) is S.CONFIGURING
        lab.advance(5)
    lab.finish(machine, True)
    assert lab.state(machine) is S.CONFIGURED


@pytest.mark.parametrize("answer", ["never", "raises", "hangs"])
def test_a_node_that_never_gets_ready_fails_for_readiness(answer: str) -> None:
    lab = Lab(capabilities=PROBE, timeouts=dict.fromkeys(Kind, 2 * SECOND))
    machine = lab.idle()
    lab.accept("configure", machine)
    lab.finish(machine)
    for _ in range(40):
        if answer != "hangs" and lab.pending(machine):
            lab.finish(machine, False, RuntimeError("api down") if answer == "raises" else None)
        lab.advance(0.05)
    assert lab.machine(machine).last_error.startswith("configure:readiness:")


def test_a_retryable_error_is_retried_until_the_time_is_over() -> None:
    lab = Lab(timeouts=dict.fromkeys(Kind, 10 * SECOND))
    machine = lab.ids()[0]
    operation = lab.accept("create", machine)
    for _ in range(4):
        lab.finish(machine, error=Retryable("throttled", after=2))
        assert not lab.pending() and lab.state(machine) is S.CREATING
        lab.advance(2)
        assert lab.only(machine).argument.operation_id == operation  # type: ignore[union-attr]  # an Operation
    lab.finish(machine, error=Retryable("throttled", after=5))
    lab.advance(1.9)
    assert lab.state(machine) is S.CREATING
    lab.advance(0.1)
    error = lab.machine(machine).last_error
    assert error.startswith("create:timeout:") and "throttled" in error


@pytest.mark.parametrize("kind", [Kind.DRAIN, Kind.DELETE])
def test_a_host_that_is_gone_is_drained_and_deleted(kind: Kind) -> None:
    lab = Lab()
    machine = lab.configured()
    lab.accept("drain", machine)
    if kind is Kind.DELETE:
        lab.finish(machine)
        lab.accept("delete", machine)
    lab.finish(machine, error=NotFound())
    assert lab.state(machine) is (S.IDLE if kind is Kind.DRAIN else S.SPECULATIVE)


def test_delete_is_unimplemented_where_the_backend_has_none() -> None:
    lab = Lab(capabilities=Capabilities())
    machine = lab.idle()
    assert lab.call("delete", machine, ("s", 1, 1)).code is Code.UNIMPLEMENTED
    assert lab.call("delete", "ghost").code is Code.UNIMPLEMENTED
    assert lab.call("delete", "").code is Code.INVALID_ARGUMENT
    assert lab.state(machine) is S.IDLE


def test_a_defect_in_one_call_spares_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    lab = Lab()
    a, b, _ = lab.ids()
    accept = lab.core._calls._accept

    def broken(call, slot, now):  # type: ignore[no-untyped-def]  # stands in for a defect
        accepted = accept(call, slot, now)
        if slot.id == a:
            raise RuntimeError("a defect")
        return accepted

    monkeypatch.setattr(lab.core._calls, "_accept", broken)
    first, second = lab.step(lab.event("create", a), lab.event("create", b))
    assert (first.code, second.code) == (Code.INTERNAL, Code.OK)
    assert lab.state(a) is S.SPECULATIVE and lab.state(b) is S.CREATING
    assert [invoke.argument.machine.id for invoke in lab.pending()] == [b]  # type: ignore[union-attr]  # an Operation
