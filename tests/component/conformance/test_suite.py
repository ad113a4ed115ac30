"""The suite against the fake as a process: every id passes, none of them for want of something to check."""

import asyncio
import json
import os
import signal
import sys
from fnmatch import fnmatchcase
from pathlib import Path

import grpc
import pytest

from bigfleet_providerkit.conformance import run
from bigfleet_providerkit.conformance.areas import stateful
from bigfleet_providerkit.conformance.catalogue import BEHAVIOURS
from bigfleet_providerkit.conformance.connection import UnreachableError
from bigfleet_providerkit.conformance.managed import Managed
from bigfleet_providerkit.conformance.outcome import Status
from bigfleet_providerkit.conformance.report import Report
from tests.component.conformance.world import FAKE, command, inventory
from tests.support.eventually import eventually
from tests.support.rules import rule

GLOBS = ("B1??", "B2*", "B3*", "B4*", "B5*", "B12??", "X10?", "X3*", "X4*", "X5*")
MINE = [behaviour_id for behaviour_id in BEHAVIOURS if any(fnmatchcase(behaviour_id, g) for g in GLOBS)]


@pytest.fixture(scope="module")
def report() -> Report:
    return run(provider_cmd=FAKE, profiles=("core", "cloud", "fault"), select=GLOBS, parallel=8)


@pytest.mark.parametrize(
    "behaviour_id", [pytest.param(one, marks=rule(f"conformance.{one}")) for one in MINE]
)
def test_the_fake_passes(report: Report, behaviour_id: str) -> None:
    result = report.result(behaviour_id)
    assert result.status is Status.PASSED, result.reason


def test_a_failure_says_what_was_seen_and_how_to_see_it_again(tmp_path: Path) -> None:
    ended = asyncio.run(
        command("--provider-cmd", f"{FAKE} --compat", "--select", "B211", "--out", str(tmp_path))
    )
    assert ended.status == 1
    assert "B211 failed: Create with a negative token part is INVALID_ARGUMENT" in ended.out
    assert "the token (-1, 1) was accepted instead of INVALID_ARGUMENT" in ended.out
    assert "--select B211 --seed 1" in ended.out
    assert "B211   failed" in ended.err
    document = json.loads((tmp_path / "report.json").read_text())
    [failed] = [one for one in document["behaviors"] if one["status"] == "failed"]
    assert failed["id"] == "B211"
    assert [call["code"] for call in failed["evidence"] if call["call"] == "Create"] == ["OK"]
    assert document["target"]["info"]["name"] == "fake"


def test_the_lenient_alternative_is_marked_in_compat_mode() -> None:
    lenient = run(provider_cmd=f"{FAKE} --compat", select=("B211",), compat=True).result("B211")
    assert lenient.status is Status.PASSED
    assert "was accepted instead of INVALID_ARGUMENT" in lenient.lenient


def test_a_command_that_does_not_serve_is_shown_with_its_last_lines() -> None:
    with pytest.raises(UnreachableError, match=r"ended with status 2; its last lines:(.|\n)*--nonsense"):
        run(provider_cmd=f"{FAKE} --nonsense")
    with pytest.raises(UnreachableError, match=r"cannot be started: .*no-such-program"):
        run(provider_cmd="no-such-program {addr}")


async def test_a_killed_provider_comes_back_with_its_state_and_is_stopped_in_the_end() -> None:
    managed = Managed(f"{FAKE} --state {{state}}", 8, (), None)
    try:
        first = await managed.boot()
        before = await inventory(first)
        managed.kill()
        with pytest.raises(grpc.aio.AioRpcError):
            await inventory(first)
        assert await inventory(await managed.boot()) == before
    finally:
        await managed.stop()
    assert not managed.folder.exists()


@rule("conformance.X1201")
def test_programs_with_crashes_and_faults_match_the_model(
    monkeypatch: pytest.MonkeyPatch, full_size: bool
) -> None:
    monkeypatch.setattr(stateful, "PROGRAMS", 20 if full_size else 1)
    command = f"{FAKE} --state {{state}} --quarantine 4s"
    result = run(provider_cmd=command, profiles=("durable",), select=("X1201",)).result("X1201")
    assert result.status is Status.PASSED, result.reason


async def test_told_to_end_the_suite_ends_its_provider(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    wrapped = f"sh -c 'echo $$ > {pid_file}; exec {FAKE}'"
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "bigfleet_providerkit.conformance", "--provider-cmd", wrapped),
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        assert process.stderr is not None
        async with asyncio.timeout(60):
            while b"B101" not in await process.stderr.readline():
                pass
            process.send_signal(signal.SIGTERM)
            await process.stderr.read()
            assert await process.wait() == 130
    finally:
        if process.returncode is None:
            process.kill()

    def gone() -> bool:
        try:
            os.kill(int(pid_file.read_text()), 0)
        except ProcessLookupError:
            return True
        return False

    await eventually(gone)
