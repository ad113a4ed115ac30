"""The pytest plug-in: one test per id, told apart by their names."""

import os
import subprocess
import sys
from pathlib import Path

from tests.component.conformance.world import FAKE

TEST = "from bigfleet_providerkit.conformance.pytest_plugin import test_conformance\n"


def test_every_id_is_a_test(tmp_path: Path) -> None:
    (tmp_path / "test_mine.py").write_text(TEST)
    options = f'--conformance=--provider-cmd "{FAKE} --compat" --select B107,B211,B308'
    plugin = ("-p", "bigfleet_providerkit.conformance.pytest_plugin", "-p", "no:cacheprovider")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-v", *plugin, options, "test_mine.py"],
        cwd=tmp_path,
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1
    assert "test_conformance[B107] PASSED" in done.stdout
    assert "test_conformance[B211] FAILED" in done.stdout
    assert "B211 failed: Create with a negative token part" in done.stdout
    assert "1 failed, 2 passed" in done.stdout
