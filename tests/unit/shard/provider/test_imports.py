"""The package can be imported by a core."""

import subprocess
import sys

import pytest


@pytest.mark.parametrize("package", ["bigfleet.shard", "bigfleet.shard.provider"])
def test_importing_the_package_loads_no_grpc(package: str) -> None:
    probe = f"import sys, {package}; print([name for name in sys.modules if name.split('.')[0] == 'grpc'])"
    run = subprocess.run(
        [sys.executable, "-c", probe], capture_output=True, text=True, timeout=60, check=True
    )
    assert run.stdout.strip() == "[]"
