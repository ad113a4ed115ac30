"""Write the protobuf stubs of bigfleet_base.api; with --check, fail when the committed ones are stale.

The compiler and its plugins are pinned by hash in generate.lock, outside the lock of the workspace
(generate.in says why), and live in a cached environment of their own.
"""

import argparse
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
API = ROOT / "packages/base/src/bigfleet_base/api"
PROTO = API / "proto"
LOCK = ROOT / "tools/generate.lock"
GENERATED = ("*_pb2.py", "*_pb2.pyi", "*_pb2_grpc.py", "*_pb2_grpc.pyi")


def main() -> int:
    parser = argparse.ArgumentParser(description="Write the protobuf stubs of bigfleet_base.api.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 and name each stale file")
    check = parser.parse_args().check

    wanted = generate()
    present = {path.relative_to(API): path.read_bytes() for glob in GENERATED for path in API.rglob(glob)}
    stale = sorted(path for path in wanted | present if wanted.get(path) != present.get(path))
    for path in stale:
        name = (API / path).relative_to(ROOT)
        if check:
            reason = "has no .proto" if path not in wanted else "differs from what its .proto gives"
            print(f"{name}: {reason if path in present else 'is missing'}", file=sys.stderr)
        elif path in wanted:
            (API / path).write_bytes(wanted[path])
            print(f"wrote {name}")
        else:
            (API / path).unlink()
            print(f"removed {name}")
    if check and stale:
        print("generated stubs are stale: run `make generate` and commit the result", file=sys.stderr)
        return 1
    return 0


def generate() -> dict[Path, bytes]:
    """The stubs of every file in proto/, by path below api/."""
    protos = sorted(PROTO.rglob("*.proto"))
    services = [path for path in protos if re.search(rb"^service ", path.read_bytes(), re.MULTILINE)]
    compiler = _compiler()
    with tempfile.TemporaryDirectory() as scratch:
        _protoc(compiler, protos, f"--python_out={scratch}", f"--mypy_out=quiet:{scratch}")
        _protoc(compiler, services, f"--grpc_python_out={scratch}", f"--mypy_grpc_out=quiet:{scratch}")
        # protoc mirrors the source tree, whose first folder has the name of our control plane's package.
        tree = Path(scratch) / "bigfleet"
        paths = [path.relative_to(tree) for path in tree.rglob("*.py*")]
        return {path: _place(path, (tree / path).read_text(encoding="utf-8")).encode() for path in paths}


def _place(path: Path, text: str) -> str:
    """Move a stub from the import path that protoc gave it to the one it has below bigfleet_base.api.

    Only import lines and the name that becomes `__module__` change. The serialised descriptor keeps the file
    names of the contract, which reflection shows to other implementations.
    """
    package = ".".join(path.parent.parts)
    text = text.replace(f"\nfrom bigfleet.{package} import ", "\nfrom . import ")
    text = text.replace(f"'bigfleet.{package}.{path.stem}'", f"'bigfleet_base.api.{package}.{path.stem}'")
    if left := re.search(r"^(from|import) bigfleet\b.*|'bigfleet\.[\w.]+_pb2'", text, re.MULTILINE):
        raise SystemExit(f"generate: no rule says where {left[0]!r} in {path} has gone; teach _place")
    return text


def _protoc(compiler: Path, protos: list[Path], *outputs: str) -> None:
    command = [str(compiler / "bin/python"), "-m", "grpc_tools.protoc", f"--proto_path={PROTO}"]
    plugins = [
        f"--plugin={name}={compiler / 'bin' / name}" for name in ("protoc-gen-mypy", "protoc-gen-mypy_grpc")
    ]
    _run(*command, *plugins, *outputs, *(str(path.relative_to(PROTO)) for path in protos))


def _compiler() -> Path:
    """The environment with the compiler, made on first use in the user's cache."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "bigfleet" / "generate"
    key = hashlib.sha256(LOCK.read_bytes() + sys.version.encode()).hexdigest()[:16]
    ready = cache / key
    if not ready.exists():
        cache.mkdir(parents=True, exist_ok=True)
        uv = str(Path(sys.executable).with_name("uv"))
        scratch = Path(tempfile.mkdtemp(prefix=f"{key}-", dir=cache))
        try:
            _run(uv, "venv", "--quiet", "--relocatable", "--clear", "--python", sys.executable, str(scratch))
            python = str(scratch / "bin/python")
            _run(uv, "pip", "install", "--quiet", "--python", python, "--require-hashes", "-r", str(LOCK))
            _rename_unless_taken(scratch, ready)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
    return ready


def _rename_unless_taken(source: Path, target: Path) -> None:
    try:
        source.rename(target)
    except OSError:
        # Another run was faster; its environment is equal to ours.
        if not target.exists():
            raise


def _run(*command: str) -> None:
    # A clean environment has no settings that make uv trust the machine's certificates.
    environment = {**os.environ, "UV_SYSTEM_CERTS": "1", "UV_NO_CONFIG": "1"}
    try:
        subprocess.run(command, check=True, env=environment)
    except (OSError, subprocess.CalledProcessError) as error:
        raise SystemExit(f"generate: {error}") from None


if __name__ == "__main__":
    sys.exit(main())
