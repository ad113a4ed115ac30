"""The import contracts hold, and each of them fails when a forbidden import is planted."""

import ast
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = [ROOT / "packages" / name / "src" for name in ("base", "bigfleet", "providerkit")]


def lint(sources: list[Path]) -> subprocess.CompletedProcess[str]:
    """Run the contracts over these source trees instead of the installed ones."""
    return subprocess.run(
        [Path(sys.executable).with_name("lint-imports"), "--config", ROOT / ".importlinter", "--no-cache"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, sources))},
        cwd=sources[0],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.fixture
def copy(tmp_path: Path) -> list[Path]:
    copies = []
    for source in SOURCES:
        copies.append(tmp_path / source.parent.name)
        shutil.copytree(source, copies[-1], ignore=shutil.ignore_patterns("__pycache__"))
    return copies


def test_the_contracts_hold() -> None:
    result = lint(SOURCES)
    assert result.returncode == 0, result.stdout


@pytest.mark.parametrize(
    ("module", "planted", "contract"),
    [
        ("bigfleet/engine/__init__.py", "import bigfleet.cli", "The control plane looks down only"),
        ("bigfleet_base/api/__init__.py", "import bigfleet_base.wire", "In base, wire and telemetry"),
        ("bigfleet_base/wire/__init__.py", "import bigfleet_base.telemetry", "In base, wire and telemetry"),
        ("bigfleet_base/wire/__init__.py", "import numpy", "Base knows nobody above it"),
        ("bigfleet_base/telemetry/__init__.py", "import bigfleet", "Base knows nobody above it"),
        ("bigfleet_base/model/need.py", "import grpc", "Model uses the standard library only"),
        ("bigfleet/engine/__init__.py", "import bigfleet_base.wire", "The engine adds NumPy and model"),
        ("bigfleet/engine/__init__.py", "import asyncio", "The engine adds NumPy and model"),
        ("bigfleet_base/telemetry/__init__.py", "import google.protobuf", "Only wire touches protobuf"),
        ("bigfleet_providerkit/__init__.py", "import bigfleet", "A provider needs neither"),
        ("bigfleet_providerkit/core.py", "import time", "The kit's core has no I/O"),
        ("bigfleet/shard/core/core.py", "import time", "The shard's core has no I/O"),
        ("bigfleet/shard/shell/driver.py", "import bigfleet_base.api", "The shard leaves protobuf to wire"),
    ],
)
def test_a_planted_import_breaks_its_contract(
    copy: list[Path], module: str, planted: str, contract: str
) -> None:
    target = next(path for source in copy if (path := source / module).exists())
    target.write_text(target.read_text() + f"\n{planted}\n")
    result = lint(copy)
    assert result.returncode != 0, f"{planted!r} in {module} went unnoticed"
    assert [line for line in result.stdout.splitlines() if contract in line and "BROKEN" in line], (
        result.stdout
    )


def test_a_new_room_must_be_given_its_place(copy: list[Path]) -> None:
    (copy[1] / "bigfleet" / "attic").mkdir()
    (copy[1] / "bigfleet" / "attic" / "__init__.py").touch()
    result = lint(copy)
    assert result.returncode != 0 and "attic" in result.stdout


@pytest.mark.parametrize(
    ("package", "allowed"),
    [
        ("bigfleet_base/model", {"bigfleet_base.model"}),
        ("bigfleet/engine", {"bigfleet_base.model", "bigfleet.engine", "numpy"}),
    ],
)
def test_the_pure_rooms_import_nothing_beyond_their_list(package: str, allowed: set[str]) -> None:
    folder = next(path for source in SOURCES if (path := source / package).exists())
    for file in folder.rglob("*.py"):
        for name in imports_of(file):
            known = name.split(".")[0] in sys.stdlib_module_names
            assert known or any(name == a or name.startswith(a + ".") for a in allowed), (
                f"{file.name}: {name}"
            )


def imports_of(file: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}: relative import"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
