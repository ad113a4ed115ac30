"""The committed vectors are what the pinned k8s.io/apimachinery answers today."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROGRAM = ROOT / "tools" / "vectors"
COMMITTED = ROOT / "tests" / "unit" / "base" / "model" / "vectors"

# With empty caches the modules are fetched and apimachinery is compiled first.
pytestmark = [pytest.mark.kube, pytest.mark.timeout(600)]


def test_committed_vectors_are_what_apimachinery_answers() -> None:
    checked = _vectors("-check", COMMITTED)
    assert checked.returncode == 0, (
        f"{checked.stderr}\nIf the new answers are right (see tools/vectors/README.md), write them with:\n"
        f"  cd {PROGRAM.relative_to(ROOT)} && go run . -out ../../{COMMITTED.relative_to(ROOT)}"
    )


def test_a_changed_vector_is_named_by_file_and_line(tmp_path: Path) -> None:
    for file in COMMITTED.glob("*.jsonl"):
        shutil.copy(file, tmp_path)
    changed = tmp_path / "quantity_pairs.jsonl"
    lines = changed.read_text().splitlines(keepends=True)
    lines[6] = lines[6].replace('"cmp":', '"cmp":7')
    changed.write_text("".join(lines))

    checked = _vectors("-check", tmp_path)
    assert checked.returncode != 0
    assert "quantity_pairs.jsonl:7 differs" in checked.stderr


def test_a_missing_last_vector_is_a_difference(tmp_path: Path) -> None:
    for file in COMMITTED.glob("*.jsonl"):
        shutil.copy(file, tmp_path)
    cut = tmp_path / "matching.jsonl"
    lines = cut.read_text().splitlines(keepends=True)
    cut.write_text("".join(lines[:-1]))

    checked = _vectors("-check", tmp_path)
    assert checked.returncode != 0
    assert f"matching.jsonl:{len(lines)} differs" in checked.stderr


def _vectors(mode: str, directory: Path) -> subprocess.CompletedProcess[str]:
    go = shutil.which("go")
    if go is None:
        pytest.fail(
            "Go is not on PATH, and the vectors come from a Go program. Install Go 1.26 or newer "
            "(https://go.dev/doc/install, or your system's package `golang`) and add its bin folder to PATH."
        )
    # A clean environment has none of the machine's settings: fetch no other toolchain, stamp no git version.
    environment = os.environ | {"GOTOOLCHAIN": "local", "GOFLAGS": "-buildvcs=false"}
    return subprocess.run(
        [go, "run", ".", mode, str(directory)],
        cwd=PROGRAM,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
