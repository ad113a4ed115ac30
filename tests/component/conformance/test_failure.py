"""Area 7, readiness and drains: the fake's faults, and localproc's workloads."""

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from bigfleet_base.api.v1alpha1 import provider_pb2 as pb
from bigfleet_base.model import MachineState as S
from bigfleet_providerkit.backend import Interruption
from bigfleet_providerkit.conformance import run
from bigfleet_providerkit.conformance.areas import failure
from bigfleet_providerkit.conformance.options import KINDS
from bigfleet_providerkit.conformance.outcome import Status
from bigfleet_providerkit.conformance.report import Report
from bigfleet_providerkit.fake import FakeBackend
from bigfleet_providerkit.faults import with_fault_hooks
from bigfleet_providerkit.server import Context, Service
from tests.component.conformance.localprocs import HOOK, agents, localproc_command
from tests.component.conformance.world import FAKE, certified, inventory, served
from tests.support.rules import rule

FAULTS = (*(f"B70{n}" for n in range(1, 9)), *(f"X70{n}" for n in range(1, 6)), "X804")
DRAINS = ("X110", "X111", "X112", "X113")
QUICK = "--quarantine 4s --reconcile-interval 500ms"
KUBECTL = """#!/bin/sh
# Nodes as files: what the suite asks of kubectl, and no more.
cd {folder} || exit 1
echo "$@" >> calls
case "$2" in
    get) [ ! -e "$4" ] || cat "$4" ;;
    create) sed -n 's/.*"name": "\\([^"]*\\)".*/\\1/p' > name; echo '{{}}' > "$(cat name)" ;;
    patch) echo "${{6#--patch=}}" > "$4" ;;
    delete) rm -f "$4" ;;
esac
"""


@pytest.fixture(scope="module")
def report() -> Report:
    return run(provider_cmd=f"{FAKE} {QUICK}", profiles=("fault",), select=FAULTS, parallel=8)


@pytest.mark.parametrize(
    "behaviour_id", [pytest.param(one, marks=rule(f"conformance.{one}")) for one in FAULTS]
)
def test_the_fake_passes(report: Report, behaviour_id: str) -> None:
    result = report.result(behaviour_id)
    assert result.status is Status.PASSED, result.reason


@rule("conformance.X702", "conformance.X703")
async def test_a_provider_that_looks_and_repairs_too_late_is_found_out() -> None:
    async with served(with_fault_hooks(FakeBackend())) as address:
        report = await certified(address, profiles=("fault",), select=("X702", "X703"), recovery=0.5)
    assert "still CONFIGURED after 0.5 s, and its host is gone" in report.result("X702").reason
    assert report.result("X703").status is Status.FAILED


class Watchful(Service):
    """It knows that a host is gone before anybody can ask."""

    async def _get(self, request: pb.MachineRef, context: Context) -> bytes:
        machine = pb.Machine.FromString(await super()._get(request, context))
        if machine.cluster == failure.HOST_LOSS and machine.state == pb.MACHINE_STATE_CONFIGURED:
            machine.state, machine.last_error = pb.MACHINE_STATE_FAILED, "host:host-lost: gone"
        return machine.SerializeToString()


@rule("conformance.X702")
async def test_a_lost_host_may_be_noticed_before_its_machine_was_seen_configured() -> None:
    async with served(with_fault_hooks(FakeBackend()), service=Watchful) as address:
        report = await certified(address, profiles=("fault",), select=("X702",), recovery=0.5)
    assert report.result("X702").status is Status.PASSED, report.result("X702").reason


async def _no_notice() -> AsyncIterator[Interruption]:
    await asyncio.Event().wait()
    yield Interruption("nobody", imminent=True)


@rule("conformance.X804")
async def test_where_no_notice_is_given_none_is_missed() -> None:
    backend = with_fault_hooks(FakeBackend())
    backend.interruptions = _no_notice  # type: ignore[method-assign]  # hooks without one of our own
    settle = dict.fromkeys(KINDS, 15.0) | {"configure": 1.0}
    async with served(backend) as address:
        report = await certified(address, profiles=("fault",), select=("X804",), settle=settle)
    found = report.result("X804")
    assert found.status is Status.VACUOUS and "fault-interruption" in found.reason, found


def test_the_hosts_of_failed_machines_are_gone_before_their_provider_is(tmp_path: Path) -> None:
    with localproc_command(tmp_path) as command:
        report = run(provider_cmd=f"{command} {QUICK}", profiles=("fault",), select=("B701", "B706"))
        assert not agents(tmp_path), "they run on, and nobody knows of them any more"
    assert [report.result(one).slots_returned for one in ("B701", "B706")] == [0, 0], "Failed at their end"
    assert report.left == ()


async def test_a_machine_that_nobody_repairs_is_named() -> None:
    async with served(with_fault_hooks(FakeBackend())) as address:
        report = await certified(address, profiles=("fault",), select=("B701",), recovery=0.5)
        failed = await inventory(address, S.FAILED)
    [machine_id] = failed
    assert report.result("B701").status is Status.PASSED, "the machine was its own to break"
    assert report.left == (f"{machine_id} (FAILED in the fault lane)",)
    assert f"\nleft behind: {machine_id} (FAILED in the fault lane)\n" in report.text()
    assert report.as_dict()["slots"]["left"] == list(report.left)


@pytest.fixture(scope="module")
def drained(tmp_path_factory: pytest.TempPathFactory) -> Report:
    folder = tmp_path_factory.mktemp("drains")
    with localproc_command(folder) as command:
        report = run(provider_cmd=command, select=DRAINS, parallel=4, workloads=str(folder))
        assert not agents(folder), "every machine was returned"
    return report


@pytest.mark.parametrize(
    "behaviour_id", [pytest.param(one, marks=rule(f"conformance.{one}")) for one in DRAINS]
)
def test_localproc_passes_with_workloads(drained: Report, behaviour_id: str) -> None:
    result = drained.result(behaviour_id)
    assert result.status is Status.PASSED, result.reason


@rule("conformance.X110")
async def test_without_workloads_they_are_skipped_and_not_missed() -> None:
    async with served() as address:
        skipped = (await certified(address, select=("X110",))).result("X110")
    assert (skipped.status, skipped.required) == (Status.SKIPPED_FIXTURE, False)


@rule("conformance.X601")
def test_configured_is_believed_when_the_node_is_ready(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = _cluster(tmp_path, monkeypatch)
    # Joined when the Node that is named as the machine is Ready, and not before.
    waits = f'until grep -q \'"True"\' {cluster}/"${{PWD##*/}}"; do sleep 0.05; done 2> /dev/null\n{HOOK}'
    with localproc_command(tmp_path, waits) as command:
        report = run(provider_cmd=command, select=("X601",), readiness_oracle="http://oracle")
    assert report.result("X601").status is Status.PASSED, report.result("X601").reason
    assert report.result("X601").required
    calls = (cluster / "calls").read_text().splitlines()
    assert all(call.startswith("--server=http://oracle ") for call in calls)
    assert [call.split()[1] for call in calls if "get" not in call] == ["create", "patch", "delete"]


@rule("conformance.X601")
async def test_configured_without_a_node_is_found_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _cluster(tmp_path, monkeypatch)
    (tmp_path / "kubeconfig").touch()
    async with served() as address:
        report = await certified(address, select=("X601",), readiness_oracle=str(tmp_path / "kubeconfig"))
    assert report.result("X601").status is Status.FAILED
    assert "is CONFIGURED, and its node does not exist" in report.result("X601").reason


def _cluster(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cluster of files, and the kubectl that works on it."""
    (cluster := folder / "cluster").mkdir()
    (tools := folder / "tools").mkdir()
    (tools / "kubectl").write_text(KUBECTL.format(folder=cluster))
    (tools / "kubectl").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}{os.pathsep}{os.environ['PATH']}")
    return cluster
