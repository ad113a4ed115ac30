"""``bigfleet shard`` as a process: how it starts, what it refuses, how it ends."""

import asyncio
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from contextlib import suppress
from pathlib import Path

import pytest

from bigfleet_base.model.frames import HelloAck, Resync
from tests.component.shard.programs import ROOT, ShardProgram, clean_environment, command, redirected
from tests.component.shard.world import Operator, need
from tests.support.eventually import eventually
from tests.support.parts.process import free_port
from tests.support.rules import rule


def get(address: str, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://{address}{path}", timeout=10) as answer:
            return answer.status, answer.read().decode(errors="replace")
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


@rule("shard.P2")
async def test_sigterm_ends_it_in_time_and_every_session_hears_why(tmp_path: Path) -> None:
    with ShardProgram(tmp_path, "--seed-machines", "3") as shard:
        operators = [Operator(shard.address, cluster) for cluster in ("c1", "c2")]
        try:
            for operator in operators:
                await operator.connect()
                await operator.received(Resync)
            begun = time.monotonic()
            shard.signal(signal.SIGTERM)
            assert await asyncio.get_running_loop().run_in_executor(None, shard.ended) == 0
            assert time.monotonic() - begun < 10
            for operator in operators:
                assert await operator.status() == ("UNAVAILABLE", "the shard is shutting down")
        finally:
            for operator in operators:
                await operator.close()
        [signalled], [stopped] = shard.lines("signal received, shutting down"), shard.lines("shard stopped")
        assert signalled["shard_epoch"] == stopped["shard_epoch"] == 1


async def test_sigint_ends_it_too(tmp_path: Path) -> None:
    with ShardProgram(tmp_path) as shard:
        shard.until("shard started")
        shard.signal(signal.SIGINT)
        assert await asyncio.get_running_loop().run_in_executor(None, shard.ended) == 0


def test_what_runbooks_grep_for_is_logged_at_the_start(tmp_path: Path) -> None:
    with ShardProgram(
        tmp_path, "--audit-log", str(tmp_path / "audit"), "--execute-concurrency", "40"
    ) as shard:
        started = shard.until("shard started")
        assert (started["execute_workers"], started["queue_capacity"]) == (40, 320)
        assert started["component"] == "shard" and started["shard_id"] == "shard-0"
        assert started["shard_epoch"] == 1
        assert shard.until("decision audit log enabled")["path"] == str(tmp_path / "audit")
        assert shard.until("metrics serving")["addr"] == shard.metrics_address


@rule("shard.F1", "shard.P3")
def test_of_two_processes_on_one_folder_one_refuses_and_the_epoch_rises_by_one(tmp_path: Path) -> None:
    with ShardProgram(tmp_path) as first:
        first.until("shard started")
        with ShardProgram(tmp_path) as second:
            assert second.ended() == 1
            assert "in use by another process" in second.errors.read_text()
        assert (tmp_path / "data" / "epoch").read_text() == "1\n"
        first.process.kill()
        first.process.wait()
    with ShardProgram(tmp_path) as third:
        assert third.until("shard started")["shard_epoch"] == 2


@rule("shard.G1")
def test_a_users_mistake_is_one_line_and_no_traceback(tmp_path: Path) -> None:
    result = command("shard", "--data-dir", str(tmp_path), "--tls-cert", "x")
    assert result.returncode == 1
    assert "--tls-key and --tls-ca is missing" in result.stderr and len(result.stderr.splitlines()) == 1


@pytest.mark.parametrize("is_buffered", [True, False])
@pytest.mark.parametrize("arguments", ["version", "help", "check-config shard --listen [::1]:0"])
def test_output_that_nobody_takes_is_one_line_and_no_traceback(arguments: str, is_buffered: bool) -> None:
    result = redirected(">/dev/full", *arguments.split(), is_buffered=is_buffered)
    assert result.returncode == 1
    assert result.stderr == "bigfleet: cannot write to standard output: No space left on device\n"


def test_help_that_nobody_takes_is_one_line_and_no_traceback() -> None:
    result = redirected(">/dev/full", "shard", "--help")
    assert result.returncode == 1
    assert result.stderr == "bigfleet: cannot write to standard output: No space left on device\n"


def test_effects_that_nobody_takes_are_one_line_and_no_traceback(tmp_path: Path) -> None:
    with ShardProgram(tmp_path, "--seed-machines", "2") as shard:
        assert shard.until("shard started")
    segments = [str(path) for path in (tmp_path / "data" / "record").iterdir()]
    result = redirected(">/dev/full", "shard", "replay", "--effects", *segments)
    assert result.returncode == 1
    assert result.stderr == "bigfleet: cannot write to standard output: No space left on device\n"


def test_a_closed_standard_output_refuses_the_start(tmp_path: Path) -> None:
    result = redirected(">&-", "shard", "--listen=127.0.0.1:0", "--data-dir", str(tmp_path / "data"))
    assert result.returncode == 1
    assert result.stderr.startswith("bigfleet: standard output is closed")
    assert len(result.stderr.splitlines()) == 1 and not (tmp_path / "data").exists()


def test_a_closed_standard_error_is_no_number_for_anything_else(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "bigfleet.cli", "shard", "--data-dir", str(tmp_path / "data")]
    addresses = ["--listen", "127.0.0.1:0", "--metrics-addr", "0"]
    with subprocess.Popen(
        ["/bin/sh", "-c", 'exec "$@" 2>&-', "sh", *command, *addresses],
        cwd=ROOT,
        env=clean_environment(),
        stdout=subprocess.PIPE,
    ) as shard:
        assert shard.stdout is not None
        assert any(b"shard started" in line for line in shard.stdout)
        assert Path(f"/proc/{shard.pid}/fd/2").readlink() == Path("/dev/null")
        shard.terminate()


def test_the_pages_are_there(tmp_path: Path) -> None:
    with ShardProgram(tmp_path, "--seed-machines", "4") as shard:
        address = shard.metrics_address
        assert get(address, "/healthz") == (200, "ok\n")
        shard.wait_for(lambda: get(address, "/readyz")[0] == 200)
        assert '"Idle": 4' in get(address, "/debug/state")[1]
        shard.wait_for(lambda: "bigfleet_shard_epoch 1.0" in get(address, "/metrics")[1])
        assert get(address, "/debug/sketches")[0] == 200
        assert get(address, "/nonsense")[0] == 404


async def test_the_audit_log_is_reopened_and_stacks_are_dumped_on_a_signal(tmp_path: Path) -> None:
    log = tmp_path / "audit"
    with ShardProgram(tmp_path, "--audit-log", str(log), "--seed-machines", "2") as shard:
        operator = await Operator(shard.address, "c1").connect()
        try:
            await operator.received(HelloAck)
            await operator.roll_up(need(cpus=1))
            await eventually(lambda: "rollup.accepted" in log.read_text())
            log.rename(tmp_path / "audit.1")
            shard.signal(signal.SIGHUP)
            await eventually(log.exists)
            await operator.roll_up(need(cpus=2))
            await eventually(lambda: "rollup.accepted" in log.read_text())
            shard.signal(signal.SIGUSR1)
            await eventually(lambda: "most recent call first" in shard.errors.read_text())
        finally:
            await operator.close()


@rule("shard.C4", "shard.P2")
def test_a_log_that_nobody_reads_holds_up_nobody(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    with suppress(BlockingIOError):
        while True:
            os.write(writer, bytes(4096))
    os.set_blocking(writer, True)
    address = f"127.0.0.1:{free_port()}"
    with ShardProgram(tmp_path, "--metrics-addr", address, out=writer) as shard:
        shard.wait_for(lambda: is_ready(address))
        shard.signal(signal.SIGTERM)
        assert shard.ended() == 0
    os.close(reader)
    os.close(writer)


def is_ready(address: str) -> bool:
    try:
        return get(address, "/readyz")[0] == 200
    except OSError:
        return False
