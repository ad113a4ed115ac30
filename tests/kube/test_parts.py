"""The promises of the helper that starts the parts."""

import contextlib
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests.support.parts import Etcd, MissingToolError, PartError, etcd, process, tools, wait_until
from tests.support.parts.process import HOST, Process

ROOT = Path(__file__).resolve().parents[2]


def test_killed_parent_leaves_no_process_behind(tmp_path: Path) -> None:
    script = (
        "import sys, time; from pathlib import Path; from tests.support.parts import Etcd\n"
        "with Etcd(Path(sys.argv[1])) as etcd:\n"
        "    print(etcd.pid, flush=True); time.sleep(600)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script, tmp_path], cwd=ROOT, stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout
        pid = int(parent.stdout.readline())
        assert is_running(pid)

        parent.send_signal(signal.SIGKILL)

    wait_until(lambda: not is_running(pid), 10, "etcd to follow its parent")


def test_part_outlives_the_thread_that_started_it(tmp_path: Path) -> None:
    part = Etcd(tmp_path)
    starter = threading.Thread(target=part.__enter__)
    starter.start()
    starter.join()
    with contextlib.ExitStack() as stack:
        stack.push(part)

        assert "is healthy" in part.etcdctl("endpoint", "health", "--write-out=simple")


def test_exception_in_the_test_ends_the_part(tmp_path: Path) -> None:
    part = Etcd(tmp_path)

    with pytest.raises(ZeroDivisionError), part:
        raise ZeroDivisionError

    assert not is_running(part.pid)


def test_end_of_a_part_takes_its_children_along(tmp_path: Path) -> None:
    part = Process("parent", ["/bin/sh", "-c", "sleep 600 & echo $!; wait"], tmp_path)
    wait_until(lambda: part.log.read_text().endswith("\n"), 10, "the child's pid")
    child = int(part.log.read_text())

    part.kill()

    wait_until(lambda: not is_running(child), 10, "the child to end")


def test_part_that_never_becomes_healthy_fails_with_the_end_of_its_log(tmp_path: Path) -> None:
    part = Process("silent", ["/bin/sh", "-c", "echo cannot find my disk; exec sleep 600"], tmp_path)
    wait_until(lambda: part.log.read_text() != "", 10, "the first line")

    with pytest.raises(PartError, match="in vain for silent to become healthy") as failure:
        part.wait_healthy(lambda: False, seconds=0.2)

    assert f"{tmp_path}/silent.log:\n  cannot find my disk" in str(failure.value)
    assert not part.alive


def test_part_that_ends_early_fails_at_once_with_its_status_and_log(tmp_path: Path) -> None:
    part = Process("hasty", ["/bin/sh", "-c", "echo unknown flag; exit 3"], tmp_path)

    with pytest.raises(PartError, match=r"hasty ended with status 3 (.|\n)*unknown flag"):
        part.wait_healthy(lambda: False, seconds=60)


def test_taken_port_is_replaced_by_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server((HOST, 0)) as busy:
        taken = busy.getsockname()[1]
        ports = iter([taken])
        monkeypatch.setattr(etcd, "free_port", lambda: next(ports, None) or process.free_port())

        with Etcd(tmp_path) as part:
            assert part.endpoint != f"http://{HOST}:{taken}"
            assert "address already in use" in (tmp_path / "etcd-0.log").read_text()


def test_missing_tool_is_an_error_that_names_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tools, "BIN", tmp_path / "bin")

    with pytest.raises(MissingToolError, match=r"etcd is not built .* Run: make tools$"), Etcd(tmp_path):
        pass


def is_running(pid: int) -> bool:
    """Whether a process runs; one that is dead but not yet reaped by whoever adopted it does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"
