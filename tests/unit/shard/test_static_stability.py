"""The shard works without a coordinator because it does not know one (shard.md §14)."""

import ast
import subprocess
import sys
from pathlib import Path

from tests.support.rules import rule

ROOT = Path(__file__).parents[3]
TESTS = (ROOT / "tests" / "shard", ROOT / "tests" / "unit" / "shard", ROOT / "tests" / "component" / "shard")
LOOK = """
import importlib, pkgutil, sys
import bigfleet.shard
for module in pkgutil.walk_packages(bigfleet.shard.__path__, "bigfleet.shard."):
    if not module.name.startswith("bigfleet.shard.link"):
        importlib.import_module(module.name)
print([name for name in sys.modules if name.startswith("bigfleet.coordinator")])
"""


@rule("shard.T1")
def test_no_module_of_the_shard_loads_the_coordinator() -> None:
    done = subprocess.run(
        [sys.executable, "-c", LOOK], capture_output=True, text=True, check=True, timeout=60
    )

    assert done.stdout.strip() == "[]"


@rule("shard.T1")
def test_no_test_of_the_shard_imports_the_coordinator() -> None:
    guilty = [
        path.name
        for folder in TESTS
        for path in folder.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Import | ast.ImportFrom)
        and any(name.startswith("bigfleet.coordinator") for name in _names(node))
    ]

    assert guilty == []


def test_importing_the_shard_loads_no_grpc() -> None:
    look = "import bigfleet.shard.core.core, sys; print('grpc' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", look], capture_output=True, text=True, check=True, timeout=60
    )

    assert done.stdout.strip() == "False"


def _names(node: ast.Import | ast.ImportFrom) -> list[str]:
    if isinstance(node, ast.ImportFrom):
        return [node.module or ""]
    return [alias.name for alias in node.names]
