"""The command line: what it takes, what it refuses, and how it says so."""

import asyncio
import datetime
import os
import signal
import socket
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from bigfleet_base.api.v1alpha1 import provider_pb2 as pb
from bigfleet_providerkit.options import UsageError, duration, parse
from bigfleet_providerkit.store import SqliteStore
from tests.component.providerkit.processes import ROOT, ToyProcess, stub
from tests.component.providerkit.toy import Toy
from tests.support.ca import CertificateAuthority
from tests.support.rules import rule


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the toy provider with a mistake in its arguments; it must end by itself."""
    return subprocess.run(
        [sys.executable, "-m", "tests.component.providerkit.toy", *arguments],
        cwd=ROOT,
        env=dict(os.environ),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize(
    ("text", "nanos"),
    [("2s", 2e9), ("5m", 300e9), ("1h30m", 5400e9), ("250ms", 25e7), ("1.5s", 15e8), ("0", 0), ("10us", 1e4)],
)
def test_durations_are_written_as_in_go(text: str, nanos: float) -> None:
    assert duration(text) == nanos


def test_a_flag_beats_the_environment_and_that_the_file(tmp_path: Path) -> None:
    file = tmp_path / "provider.toml"
    file.write_text(
        'provider = "file"\nstate = "file.db"\naddr = ":1"\nallow-shard = ["a", "b"]\ncompat = true\n'
    )
    environment = {
        "BIGFLEET_PROVIDER_PROVIDER": "env",
        "BIGFLEET_PROVIDER_STATE": "env.db",
        "BIGFLEET_PROVIDER_REFLECTION": "false",
        "BIGFLEET_PROVIDER_PAUSE": "0.5",
    }
    options = parse(Toy, ["--config", str(file), "--provider=flag", "--timeout-create", "7s"], environment)
    assert (options.provider, options.state, options.addr) == ("flag", "env.db", ":1")
    assert options.allow_shard == ["a", "b"] and options.compat and not options.reflection
    assert options.timeout_create == 7e9 and options.pause == 0.5
    assert options.shutdown_window == 10e9


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("nonsense = 1\n", "'nonsense', which is no option"),
        ("compat = 'perhaps'\n", "compat"),
        ("= \n", "not TOML"),
    ],
)
def test_a_mistake_in_the_file_is_named(tmp_path: Path, content: str, said: str) -> None:
    file = tmp_path / "provider.toml"
    file.write_text(content)
    with pytest.raises(UsageError, match=said):
        parse(Toy, ["--config", str(file)], {})


def newer_store(folder: Path) -> list[str]:
    SqliteStore(folder / "p.db").close()
    with sqlite3.connect(folder / "p.db") as database:
        database.execute("PRAGMA user_version = 9")
    database.close()
    return ["--state", str(folder / "p.db")]


def damaged_store(folder: Path) -> list[str]:
    (folder / "p.db").write_bytes(b"this is no database, " * 500)
    return ["--state", str(folder / "p.db")]


def expired_certificate(folder: Path) -> list[str]:
    now, day = datetime.datetime.now(datetime.UTC), datetime.timedelta(days=1)
    files = CertificateAuthority().issue(issued=now - 2 * day, expiry=now - day).write(folder / "tls")
    return ["--tls-cert", str(files.cert), "--tls-key", str(files.key), "--tls-ca", str(files.ca)]


PRICED = '[{"instance_type": "a", "zone": "z", "count": 1, "price_per_hour": %s}]'


@rule("provider.P-125", "provider.P-91", "provider.P-93")
@pytest.mark.parametrize(
    ("mistake", "said"),
    [
        (lambda folder: ["--require-state"], "--require-state is given and --state is not"),
        (lambda folder: ["--restored"], "--restored"),
        (lambda folder: ["--tls-cert", "x"], "--tls-key"),
        (lambda folder: ["--offerings", "x", "--seed-count", "3"], "exclude each other"),
        (lambda folder: ["--offerings", str(folder / "none.json")], "none.json"),
        (lambda folder: ["--addr", ":0"], "--insecure"),
        (lambda folder: ["--max-concurrent", "0"], "--max-concurrent"),
        (lambda folder: ["--addr", "nonsense"], "--addr: address 'nonsense' is not usable"),
        (lambda folder: ["--metrics-addr", "nonsense"], "--metrics-addr: address 'nonsense'"),
        (lambda folder: ["--metrics-addr", "unix:/x"], "--metrics-addr: address 'unix:/x'"),
        (lambda folder: ["--rate", "nan"], "--rate is nan"),
        (lambda folder: ["--timeout-drain", "0"], "--timeout-drain is 0"),
        (lambda folder: ["--seed-count=-1"], "--seed-count is -1"),
        (lambda folder: ["--offerings", str(_offerings(folder, "[" * 100_000))], "is not JSON"),
        # What the backend itself finds in its way: a file where its folder is to be.
        (lambda folder: ["--hosts", str(_offerings(folder, "[]"))], "File exists"),
        (newer_store, "newer version"),
        (damaged_store, "is damaged or no store"),
        (lambda folder: ["--state", str(folder)], "cannot open the store"),
        (lambda folder: ["--state", str(folder / "nowhere" / "p.db")], "cannot open the store"),
        (expired_certificate, "expired"),
        (
            lambda folder: ["--offerings", str(_offerings(folder, PRICED % "-1"))],
            "offering 1 (a, z): price_per_hour is -1",
        ),
        (
            lambda folder: ["--offerings", str(_offerings(folder, PRICED % "NaN"))],
            "offering 1 (a, z): price_per_hour is nan",
        ),
        (
            lambda folder: [
                "--offerings",
                str(_offerings(folder, '[{"instance_type":"a","zone":"z","count":1}]')),
            ],
            "offering 1 (a, z): price_per_hour is unknown",
        ),
    ],
)
def test_a_users_mistake_is_one_line_and_no_traceback(tmp_path: Path, mistake: object, said: str) -> None:
    arguments = mistake(tmp_path)  # type: ignore[operator]  # one of the functions above
    ended = run(
        "--addr", "127.0.0.1:0", "--metrics-addr", "0", "--hosts", str(tmp_path / "hosts"), *arguments
    )
    assert ended.returncode == 1
    assert said in ended.stderr and "Traceback" not in ended.stderr, ended.stderr


def test_a_metrics_port_that_is_taken_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = f"127.0.0.1:{other.getsockname()[1]}"
        ended = run("--addr", "127.0.0.1:0", "--metrics-addr", address)
    assert ended.returncode == 1 and "Traceback" not in ended.stderr, ended.stderr
    assert f"cannot serve metrics on {address} (--metrics-addr)" in ended.stderr


def _offerings(folder: Path, content: str) -> Path:
    path = folder / "offerings.json"
    path.write_text(content)
    return path


def test_a_leaf_that_does_not_belong_is_refused(tmp_path: Path) -> None:
    files = CertificateAuthority().issue().write(tmp_path)
    files.key.write_bytes(CertificateAuthority().issue().key_pem)
    ended = run("--tls-cert", str(files.cert), "--tls-key", str(files.key), "--tls-ca", str(files.ca))
    assert ended.returncode == 1 and "does not belong" in ended.stderr


@rule("provider.P-126", "provider.P-125")
def test_a_term_signal_ends_the_process_cleanly_and_no_store_is_a_loud_warning(tmp_path: Path) -> None:
    with ToyProcess(tmp_path, "--state", "") as provider:
        provider.wait_open()
        provider.process.send_signal(signal.SIGTERM)
        assert provider.process.wait(30) == 0
    log = (tmp_path / "provider.log").read_text()
    assert '"level":"warn"' in log and "no --state" in log


@rule("provider.P-126")
async def test_a_backend_that_hangs_does_not_keep_the_process_from_ending(tmp_path: Path) -> None:
    hanging = "tests.component.providerkit.hanging"
    with ToyProcess(tmp_path, "--shutdown-window", "100ms", module=hanging) as provider:
        provider.wait_open()
        async with provider.channel() as channel:
            client = stub(channel)
            [machine, *_] = (await client.List(pb.ListFilter())).machines
            await client.Create(pb.CreateRequest(machine_id=machine.id))
        provider.process.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(provider.process.wait, 30) == 0
