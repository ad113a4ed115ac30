"""Builds the real parts that the tests run against, and links them into tools/bin (`make tools`).

Each folder beside this file that PARTS names holds a go.mod whose `tool` lines are the programs to build
and whose `require` line is the version. Finished parts are kept in the user's cache, in a folder named after
everything that decides their bytes: a second clone only links them, and needs neither the network nor a
compiler run. Only the standard library is used, because this runs before any virtual environment exists.
"""

import argparse
import contextlib
import errno
import fcntl
import hashlib
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

TOOLS = Path(__file__).resolve().parent
BIN = TOOLS / "bin"
HEARTBEAT_SECONDS = 30
LAST_LINES = 30


class BuildError(Exception):
    """The build cannot go on; the text says why and what to do."""


@dataclass(frozen=True)
class Part:
    """One go.mod folder and what becomes of it."""

    name: str
    module: str  # its required version is the version of the part
    # String variables for the linker, where the source does not carry the version itself.
    version_variables: Callable[[str], dict[str, str]] = lambda version: {}
    renamed: dict[str, str] = field(default_factory=dict)  # what Go calls a binary → what people call it
    stages: tuple[str, ...] = ()  # folders of kwok Stage objects in the module


def _kubernetes_version_variables(version: str) -> dict[str, str]:
    """What /version, --version and the clients' user agents report.

    The module proxy serves a release without its commit, which upstream's own build calls an archive.
    """
    major, minor = version.removeprefix("v").split(".")[:2]
    values = {
        "gitVersion": version,
        "gitMajor": major,
        "gitMinor": minor,
        "gitCommit": "",
        "gitTreeState": "archive",
    }
    packages = ("k8s.io/component-base/version", "k8s.io/client-go/pkg/version")
    return {f"{package}.{name}": value for package in packages for name, value in values.items()}


PARTS = (
    Part("etcd", module="go.etcd.io/etcd/server/v3", renamed={"server": "etcd"}),
    Part(
        "kwok",
        module="sigs.k8s.io/kwok",
        stages=("node/fast", "node/heartbeat-with-lease", "pod/fast"),
    ),
    Part("kubernetes", module="k8s.io/kubernetes", version_variables=_kubernetes_version_variables),
)


def main() -> int:
    argparse.ArgumentParser(
        prog="make tools", description="Build etcd, Kubernetes and kwok once, and link them into tools/bin."
    ).parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    try:
        build_all()
    except BuildError as error:
        print(f"make tools: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("make tools: interrupted; parts that were finished are kept", file=sys.stderr)
        return 130
    except OSError as error:
        reason = _disk_full() if error.errno == errno.ENOSPC else _unusable(error)
        print(f"make tools: {reason}", file=sys.stderr)
        return 1
    return 0


def build_all() -> None:
    environment = _go_environment()
    go_version = _check_go(environment)
    cache = _cache_folder()
    folders = []
    for part in PARTS:
        folder = cache / _key(part, go_version)
        if not folder.exists():
            with _lock(cache):
                if not folder.exists():
                    _build(part, folder, environment)
        _say(part, "ready")
        folders.append(folder)
    _link(folders)


def _build(part: Part, folder: Path, environment: dict[str, str]) -> None:
    started = time.monotonic()
    unfinished = folder.parent / f".building-{folder.name}"
    # The lock is ours, so whatever is unfinished was left by a run that was killed.
    for leftover in folder.parent.glob(".building-*"):
        shutil.rmtree(leftover)
    unfinished.mkdir()
    try:
        _say(part, "building")
        _compile(part, unfinished, environment)
        for go_name, name in part.renamed.items():
            (unfinished / go_name).rename(unfinished / name)
        _copy_stages(part, unfinished, environment)
        unfinished.rename(folder)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    _say(part, f"built in {_elapsed(started)}, kept in {folder}")


def _compile(part: Part, output: Path, environment: dict[str, str]) -> None:
    started = time.monotonic()
    command = ["go", "build", "-v", *_flags(part), "-o", f"{output}/", "tool"]
    # Go names every module it fetches and every package it compiles on stderr. Should this process die,
    # the broken pipe stops Go at its next line.
    go = subprocess.Popen(
        command, cwd=TOOLS / part.name, env=environment, stderr=subprocess.PIPE, text=True, errors="replace"
    )
    assert go.stderr is not None
    progress = _Progress()
    reader = threading.Thread(target=progress.read, args=(go.stderr,), daemon=True)
    reader.start()
    try:
        while True:
            try:
                go.wait(HEARTBEAT_SECONDS)
                break
            except subprocess.TimeoutExpired:
                _say(part, f"{progress.text()}, {_elapsed(started)}")
    finally:
        go.kill()
        go.wait()
        reader.join()
    if go.returncode != 0:
        raise BuildError(_explain(part, list(progress.lines)))


class _Progress:
    """What Go has said so far: counted for the heartbeat, its end kept for an error."""

    def __init__(self) -> None:
        self.lines: deque[str] = deque(maxlen=LAST_LINES)
        self._downloaded = 0
        self._compiled = 0

    def read(self, lines: Iterator[str]) -> None:
        for line in lines:
            self.lines.append(line.rstrip())
            if line.startswith("go: downloading"):
                self._downloaded += 1
            else:
                self._compiled += 1

    def text(self) -> str:
        if self._compiled:
            return f"{self._compiled} packages compiled"
        return f"{self._downloaded} modules fetched"


def _copy_stages(part: Part, output: Path, environment: dict[str, str]) -> None:
    """kwok acts on nothing until it is given Stage objects; its module carries them as plain files."""
    if not part.stages:
        return
    listed = subprocess.run(
        ["go", "list", "-m", "-f", "{{.Dir}}", part.module],
        cwd=TOOLS / part.name,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    shipped = Path(listed.stdout.strip()) / "kustomize" / "stage"
    (output / "stages").mkdir()
    for stage in part.stages:
        documents = sorted(
            path for path in (shipped / stage).glob("*.yaml") if path.name != "kustomization.yaml"
        )
        text = "---\n".join(path.read_text() for path in documents)
        (output / "stages" / f"{stage.replace('/', '-')}.yaml").write_text(text)


def _link(folders: list[Path]) -> None:
    wanted = {entry.name: entry for folder in folders for entry in sorted(folder.iterdir())}
    BIN.mkdir(exist_ok=True)
    for name, target in wanted.items():
        link = BIN / name
        if not link.is_symlink() or link.readlink() != target:
            # Replaced in one step: a test may be starting the old one, or a second run be linking too.
            temporary = BIN / f".{name}.{os.getpid()}"
            temporary.symlink_to(target)
            temporary.replace(link)
    for entry in BIN.iterdir():
        if entry.name not in wanted and not entry.name.startswith("."):
            entry.unlink(missing_ok=True)


def _flags(part: Part) -> list[str]:
    variables = part.version_variables(_version(part))
    linker = ["-s", "-w", *(f"-X '{name}={value}'" for name, value in variables.items())]
    return ["-trimpath", f"-ldflags={' '.join(linker)}"]


def _version(part: Part) -> str:
    go_mod = (TOOLS / part.name / "go.mod").read_text()
    found = re.search(rf"^\s*(?:require )?{re.escape(part.module)} (v\S+)", go_mod, re.MULTILINE)
    if not found:
        raise BuildError(f"tools/{part.name}/go.mod does not require {part.module}")
    return found[1]


def _key(part: Part, go_version: str) -> str:
    digest = hashlib.sha256()
    module = TOOLS / part.name
    for piece in (
        (module / "go.mod").read_bytes(),
        (module / "go.sum").read_bytes(),
        "\n".join([*_flags(part), *part.renamed, *part.renamed.values(), *part.stages]).encode(),
        go_version.encode(),
    ):
        digest.update(len(piece).to_bytes(8) + piece)
    return f"{part.name}-{_version(part)}-{digest.hexdigest()[:12]}"


def _go_environment() -> dict[str, str]:
    """The caller's environment without what would change the result or its place."""
    dropped = {"GOOS", "GOARCH", "GOBIN", "GOEXPERIMENT", "GO111MODULE"}
    kept = {name: value for name, value in os.environ.items() if name not in dropped}
    return kept | {
        "GOTOOLCHAIN": "local",  # never fetch another compiler behind the user's back
        "GOFLAGS": "-buildvcs=false",
        "GOWORK": "off",
        "CGO_ENABLED": "0",
    }


def _check_go(environment: dict[str, str]) -> str:
    """The version and platform of the Go found in PATH, which must be able to build every part."""
    needed = max(
        tuple(int(number) for number in found[1].split("."))
        for part in PARTS
        if (
            found := re.search(r"^go (\d+\.\d+(?:\.\d+)?)$", (TOOLS / part.name / "go.mod").read_text(), re.M)
        )
    )
    wanted = ".".join(str(number) for number in needed)
    advice = (
        f"Install Go {wanted} or newer: the archive for your platform from the Go project's download page,"
        " unpacked anywhere, with its bin folder in PATH; or your distribution's package (Debian: golang)"
        " where it is new enough. Then run `make tools` again."
    )
    if shutil.which("go", path=environment.get("PATH")) is None:
        raise BuildError(f"the Go compiler is missing: there is no `go` in PATH. {advice}")
    asked = subprocess.run(
        ["go", "env", "GOVERSION", "GOHOSTOS", "GOHOSTARCH"],
        cwd=TOOLS,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    found = re.match(r"go(\d+)\.(\d+)(?:\.(\d+))?", asked.stdout)
    if asked.returncode != 0 or found is None:
        raise BuildError(f"`go env` does not work: {asked.stderr.strip() or asked.stdout.strip()}")
    if tuple(int(number or 0) for number in found.groups()) < needed:
        raise BuildError(f"{found[0]} in PATH is too old. {advice}")
    return asked.stdout


def _cache_folder() -> Path:
    configured = os.environ.get("XDG_CACHE_HOME")
    return (Path(configured) if configured else Path.home() / ".cache") / "bigfleet" / "tools"


@contextlib.contextmanager
def _lock(cache: Path) -> Iterator[None]:
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / ".lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print("waiting for another `make tools` of this user", flush=True)
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _explain(part: Part, lines: list[str]) -> str:
    """Turn Go's last words into something the reader can act on."""
    text = "\n".join(lines)
    if "no space left on device" in text:
        cause = _disk_full()
    elif "SECURITY ERROR" in text or "checksum mismatch" in text:
        cause = f"a downloaded module is not the one that tools/{part.name}/go.sum names; do not use it."
    elif re.search(r"signal: killed|cannot allocate memory", text):
        cause = "the machine ran out of memory; linking Kubernetes takes about 2 GB."
    elif re.search(
        r"dial tcp|no such host|(i/o|handshake) timeout|connection re(fused|set)|tls: |x509: |proxyconnect"
        r"|GOPROXY|unexpected EOF|reading https?://",
        text,
    ):
        cause = (
            "the modules could not be fetched. Check the network and Go's proxy setting (`go env GOPROXY`)"
            " and run `make tools` again: it goes on where it stopped."
        )
    else:
        cause = "the compiler stopped."
    quoted = "\n".join(f"  {line}" for line in lines)
    return f"building {part.name} {_version(part)} failed: {cause}\nThe last lines of Go:\n{quoted}"


def _disk_full() -> str:
    return (
        f"the disk is full. About 6 GB are needed in all, in {_cache_folder()} and in the folders that"
        " `go env GOCACHE GOMODCACHE GOTMPDIR` names. Make room and run `make tools` again."
    )


def _unusable(error: OSError) -> str:
    return (
        f"{error.strerror}: {error.filename}. Finished parts are kept in {_cache_folder()}; let this user"
        " write there, or set XDG_CACHE_HOME to a folder where it may."
    )


def _say(part: Part, text: str) -> None:
    print(f"{part.name + ' ' + _version(part):<20} {text}", flush=True)


def _elapsed(started: float) -> str:
    minutes, seconds = divmod(round(time.monotonic() - started), 60)
    return f"{minutes}m{seconds:02}s"


if __name__ == "__main__":
    sys.exit(main())
