"""Where metrics may be made and what telemetry may import, read from the source of every package."""

import ast
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[4]
PACKAGES = REPOSITORY / "packages"
METRICS_MODULE = Path("base/src/bigfleet_base/telemetry/metrics.py")

LIBRARY = "prometheus_client"
# Reading another process's metrics makes none.
READING = {"prometheus_client.parser"}


def sources(packages: Path) -> Iterator[Path]:
    return (path for path in sorted(packages.glob("*/src/**/*.py")))


def imported(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Modules a file imports, by statement or by name in a call."""
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                for alias in names:
                    yield node.lineno, alias.name
            case ast.ImportFrom(module=str(module), level=0):
                yield node.lineno, module
            case ast.Call(args=[ast.Constant(value=str(module)), *_], func=function) if ast.unparse(
                function
            ).endswith(("import_module", "__import__")):
                yield node.lineno, module


def metrics_made_elsewhere(packages: Path) -> list[str]:
    """Uses of the metrics library outside the one module that turns the catalogue into metrics.

    The library's name is the whole test, so that no alias, re-export or submodule gets around it.
    """
    return [
        f"{path.relative_to(packages)}:{line}: {module}"
        for path in sources(packages)
        if path.relative_to(packages) != METRICS_MODULE
        for line, module in imported(ast.parse(path.read_bytes()))
        if module.split(".")[0] == LIBRARY and module not in READING
    ]


def test_no_metric_is_made_outside_the_catalogue() -> None:
    assert (PACKAGES / METRICS_MODULE).exists()
    assert metrics_made_elsewhere(PACKAGES) == []


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    copy = tmp_path_factory.mktemp("copy") / "packages"
    shutil.copytree(PACKAGES, copy, ignore=shutil.ignore_patterns("__pycache__"))
    return copy


@pytest.mark.parametrize(
    "planted",
    [
        "from prometheus_client import Counter",
        "from prometheus_client import Gauge as Number",
        "from prometheus_client.metrics import Histogram",
        "from prometheus_client.core import GaugeMetricFamily",
        "from prometheus_client import *",
        "import prometheus_client",
        "import prometheus_client as p\nSURPRISES = p.Counter('surprises_total', 'Something new')",
        "import os, prometheus_client.registry",
        "def f():\n    from prometheus_client import Summary, Info, Enum",
        "import importlib\nlibrary = importlib.import_module('prometheus_client')",
        "library = __import__('prometheus_client')",
    ],
)
def test_a_planted_metric_is_found(planted: str, copy: Path) -> None:
    module = copy / "bigfleet/src/bigfleet/engine/planted.py"
    module.write_text(f"{planted}\n")
    [found] = metrics_made_elsewhere(copy)
    module.unlink()
    assert found.startswith("bigfleet/src/bigfleet/engine/planted.py:")


def test_a_metric_planted_in_telemetry_itself_is_found(copy: Path) -> None:
    module = copy / "base/src/bigfleet_base/telemetry/logs.py"
    text = module.read_text()
    module.write_text(f"from prometheus_client import Counter\n{text}")
    found = metrics_made_elsewhere(copy)
    module.write_text(text)
    assert found == ["base/src/bigfleet_base/telemetry/logs.py:1: prometheus_client"]


def test_reading_metrics_of_others_is_allowed(tmp_path: Path) -> None:
    module = tmp_path / "bigfleet" / "src" / "scrape.py"
    module.parent.mkdir(parents=True)
    module.write_text("from prometheus_client.parser import text_string_to_metric_families\n")
    assert metrics_made_elsewhere(tmp_path) == []


ALLOWED = {"structlog", "orjson", "prometheus_client"}
ALLOWED_OURS = ("bigfleet_base.telemetry", "bigfleet_base.model", "bigfleet_base.api")


def forbidden_imports(packages: Path) -> list[str]:
    return [
        f"{path.name}:{line}: {module}"
        for path in sorted((packages / METRICS_MODULE).parent.glob("**/*.py"))
        for line, module in imported(ast.parse(path.read_bytes()))
        if module.split(".")[0] not in ALLOWED | sys.stdlib_module_names
        and not f"{module}.".startswith(tuple(f"{ours}." for ours in ALLOWED_OURS))
    ]


def test_telemetry_imports_only_what_it_may() -> None:
    assert forbidden_imports(PACKAGES) == []


@pytest.mark.parametrize("planted", ["import grpc", "from bigfleet_base.wire import tls", "import bigfleet"])
def test_a_planted_import_is_found(planted: str, tmp_path: Path) -> None:
    module = tmp_path / METRICS_MODULE
    module.parent.mkdir(parents=True)
    module.write_text(f"import os\nimport orjson\n{planted}\n")
    assert len(forbidden_imports(tmp_path)) == 1


def test_telemetry_loads_neither_grpc_nor_numpy() -> None:
    heavy = "{'grpc', 'google', 'numpy', 'aiohttp', 'bigfleet_base.wire'} & set(sys.modules)"
    code = f"import sys, bigfleet_base.telemetry; print({heavy})"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout == "set()\n"
