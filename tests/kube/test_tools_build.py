"""`make tools`: links what is built, builds what is missing once, and says what to do when it cannot.

All but the first test build with a stand-in for the Go compiler, so that it can fail in every way.
"""

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.parts import wait_until
from tests.support.parts.tools import BIN

TOOLS = BIN.parent
PROGRAMS = {
    "etcd",
    "etcdctl",
    "kube-apiserver",
    "kube-controller-manager",
    "kube-scheduler",
    "kubectl",
    "kwok",
}

FAKE_GO = """#!/bin/sh
case "$1" in
env) printf '%s\\nlinux\\namd64\\n' "${FAKE_VERSION:-go1.99.1}" ;;
list) echo "$FAKE_MODULE" ;;
build)
  echo "$(basename "$PWD")" >> "$FAKE_CALLS"
  echo "go: downloading example.com/module v1.0.0" >&2
  [ -z "$FAKE_ERROR" ] || { echo "$FAKE_ERROR" >&2; exit 1; }
  while [ -n "$FAKE_WAIT" ] && [ ! -e "$FAKE_WAIT" ]; do echo example.com/package >&2; sleep 0.05; done
  while [ "$1" != "-o" ]; do shift; done
  case "$PWD" in
  */etcd) made="server etcdctl" ;;
  */kwok) made="kwok" ;;
  *) made="kube-apiserver kube-controller-manager kube-scheduler kubectl" ;;
  esac
  for name in $made; do echo built > "$2/$name"; done ;;
esac
"""


class Clone:
    """A fresh clone's tools folder with its own cache and the stand-in for Go."""

    def __init__(self, folder: Path) -> None:
        self.tools = folder / "tools"
        self.cache = folder / "cache" / "bigfleet" / "tools"
        self._calls = folder / "calls"
        self._started: list[subprocess.Popen[str]] = []
        self._module = folder / "module"
        copy_tools(self.tools)
        for stage in ("node/fast", "node/heartbeat-with-lease", "pod/fast"):
            (self._module / "kustomize" / "stage" / stage).mkdir(parents=True)
            (self._module / "kustomize" / "stage" / stage / "stage.yaml").write_text("kind: Stage\n")
        self._path = folder / "path"
        self._path.mkdir()
        (self._path / "go").write_text(FAKE_GO)
        (self._path / "go").chmod(0o755)
        self.environment = {
            "PATH": f"{self._path}:{os.defpath}",
            "HOME": str(folder),
            "XDG_CACHE_HOME": str(folder / "cache"),
            "FAKE_CALLS": str(self._calls),
            "FAKE_MODULE": str(self._module),
        }

    def build(self, **environment: str) -> "subprocess.CompletedProcess[str]":
        return run_build(self.tools, self.environment | environment)

    def start_build(self, *arguments: str, **environment: str) -> "subprocess.Popen[str]":
        run = subprocess.Popen(
            [sys.executable, self.tools / "build.py", *arguments],
            env=self.environment | environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            # A background job has Ctrl-C ignored, and so would everything it starts.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        )
        self._started.append(run)
        return run

    def close(self) -> None:
        for run in self._started:
            run.kill()
            run.communicate()

    def compiled(self) -> list[str]:
        """The parts the compiler was called for, in order."""
        return self._calls.read_text().split() if self._calls.exists() else []

    def linked(self) -> set[str]:
        return {entry.name for entry in (self.tools / "bin").iterdir() if entry.exists()}


@pytest.fixture
def clone(tmp_path: Path) -> Iterator[Clone]:
    with contextlib.closing(Clone(tmp_path)) as made:
        yield made


def test_fresh_clone_links_what_is_built_without_the_network(tmp_path: Path) -> None:
    copy_tools(tmp_path / "tools")

    done = run_build(tmp_path / "tools", {**os.environ, "GOPROXY": "off", "GOFLAGS": "-mod=vendor"})

    assert done.returncode == 0, done.stderr
    assert "building" not in done.stdout
    linked = {entry.name: entry.resolve() for entry in (tmp_path / "tools" / "bin").iterdir()}
    assert linked == {entry.name: entry.resolve() for entry in BIN.iterdir()}
    assert linked.keys() == PROGRAMS | {"stages"}


def test_first_run_builds_every_part_and_the_second_none(clone: Clone) -> None:
    first = clone.build()
    second = clone.build()

    assert (first.returncode, second.returncode) == (0, 0), first.stderr + second.stderr
    assert clone.compiled() == ["etcd", "kwok", "kubernetes"]
    assert clone.linked() == PROGRAMS | {"stages"}
    stages = {stage.name for stage in (clone.tools / "bin" / "stages").iterdir()}
    assert stages == {"node-fast.yaml", "node-heartbeat-with-lease.yaml", "pod-fast.yaml"}


def test_another_version_is_built_beside_the_old_one(clone: Clone) -> None:
    clone.build()
    go_mod = clone.tools / "etcd" / "go.mod"
    go_mod.write_text(re.sub(r"(etcd/server/v3) v\S+", r"\1 v99.1.0", go_mod.read_text()))

    clone.build()

    assert clone.compiled() == ["etcd", "kwok", "kubernetes", "etcd"]
    assert len(list(clone.cache.glob("etcd-v*"))) == 2
    assert "etcd-v99.1.0-" in str((clone.tools / "bin" / "etcd").readlink())


def test_another_compiler_builds_anew(clone: Clone) -> None:
    clone.build()
    clone.build(FAKE_VERSION="go1.99.2")

    assert len(clone.compiled()) == 6


def test_two_runs_at_once_build_each_part_once(clone: Clone, tmp_path: Path) -> None:
    go_on = tmp_path / "go-on"
    runs = [clone.start_build(FAKE_WAIT=str(go_on)) for _ in range(2)]
    wait_until(lambda: len(clone.compiled()) == 1, 10, "the first build")

    go_on.touch()

    for run in runs:
        output, _ = run.communicate(timeout=30)
        assert run.returncode == 0, output
    assert sorted(clone.compiled()) == ["etcd", "kubernetes", "kwok"]


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_interrupted_build_leaves_nothing_half_done_and_is_taken_up_again(
    clone: Clone, tmp_path: Path, how: signal.Signals
) -> None:
    run = clone.start_build(FAKE_WAIT=str(tmp_path / "never"))
    wait_until(lambda: clone.compiled() == ["etcd"], 10, "the build to start")

    run.send_signal(how)
    output, _ = run.communicate(timeout=30)

    assert run.returncode != 0 and "Traceback" not in output
    assert list(clone.cache.glob("etcd-*")) == []
    assert clone.build().returncode == 0
    assert clone.linked() == PROGRAMS | {"stages"}
    assert list(clone.cache.glob(".building-*")) == []


def test_missing_compiler_is_reported_with_what_to_install(clone: Clone, tmp_path: Path) -> None:
    done = clone.build(PATH=str(tmp_path / "nowhere"))

    assert done.returncode == 1
    assert re.search(r"there is no `go` in PATH\. Install Go 1\.\d+\.0 or newer", done.stderr)


def test_a_cache_that_cannot_be_written_is_named_with_what_to_do(clone: Clone, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    done = clone.build(XDG_CACHE_HOME=str(tmp_path / "file"))

    assert done.returncode == 1 and clone.compiled() == []
    assert done.stderr.startswith("make tools: Not a directory: ") and "XDG_CACHE_HOME" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_who_asks_for_help_gets_no_build(clone: Clone) -> None:
    run = clone.start_build("--help")
    assert "usage: make tools" in run.communicate(timeout=60)[0]
    assert run.returncode == 0 and clone.compiled() == []


def test_old_compiler_is_reported_with_what_to_install(clone: Clone) -> None:
    done = clone.build(FAKE_VERSION="go1.21.9")

    assert done.returncode == 1
    assert re.search(r"go1\.21\.9 in PATH is too old\. Install Go 1\.\d+\.0 or newer", done.stderr)
    assert clone.compiled() == []


@pytest.mark.parametrize(
    ("words", "cause"),
    [
        ("write /tmp/go-build/b001/_pkg_.a: no space left on device", "the disk is full"),
        ("go: example.com/module@v1.0.0: dial tcp: lookup host: no such host", "could not be fetched"),
        ("go: module lookup disabled by GOPROXY=off", "could not be fetched"),
        ("verifying module: checksum mismatch", "is not the one that tools/etcd/go.sum names"),
        ("compile: signal: killed", "out of memory"),
        ("main.go:7:2: undefined: thing", "the compiler stopped"),
    ],
)
def test_failure_names_its_cause_and_quotes_the_compiler(clone: Clone, words: str, cause: str) -> None:
    done = clone.build(FAKE_ERROR=words)

    assert done.returncode == 1
    assert re.search(r"building etcd v\S+ failed: ", done.stderr)
    assert cause in done.stderr and words in done.stderr
    assert "Traceback" not in done.stderr


def copy_tools(target: Path) -> None:
    shutil.copytree(TOOLS, target, ignore=shutil.ignore_patterns("bin", "vectors", "__pycache__"))


def run_build(tools: Path, environment: dict[str, str]) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, tools / "build.py"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
