"""The load benchmark runs, checks its own answers and writes its figures."""

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]


def test_it_writes_figures_for_what_it_measured(full_size: bool) -> None:
    only = [] if full_size else ["--only", "storm"]
    done = subprocess.run(
        [sys.executable, "-m", "bench.shard", "--small", *only],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=900 if full_size else 120,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]

    document = json.loads((ROOT / "bench" / "out" / "shard.json").read_text())
    measured = {result["name"]: result["metrics"] for result in document["results"]}
    assert document["calibration_ms"] > 0 and document["python_ms"] > 0
    assert measured["storm-50"]["all_connected_s"] > 0
    assert len(measured) == (11 if full_size else 1)
