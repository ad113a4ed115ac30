"""kwoknodes before the conformance suite, with a real API server behind it."""

import asyncio
import json
import os
import shlex
import sys
from pathlib import Path

import pytest

from tests.support.parts import KubeControlPlane
from tests.support.parts.tools import BIN

# In the small tier a taste of each lane; the suite then says itself that this is not all.
TASTE = ("B101", "X601", "B701", "B1001")
SELECTOR = "--selector=bigfleet.lucy.sh/provider=kwoknodes-conformance"


@pytest.mark.timeout(1_800)
async def test_it_is_certified_with_faults_and_restarts(
    kube_control_plane: KubeControlPlane, tmp_path: Path, full_size: bool
) -> None:
    kubeconfig = str(kube_control_plane.kubeconfig)
    provider = (
        f"{shlex.quote(sys.executable)} -m bigfleet_providerkit.examples.kwoknodes"
        f" --provider kwoknodes-conformance --kubeconfig {shlex.quote(kubeconfig)}"
        " --addr {addr} --state {state} --seed-count {seed_count} --metrics-addr 0"
        # Of what is broken on purpose nothing stays, and in the small tier that is not waited for long.
        f"{'' if full_size else ' --quarantine 1s'}"
    )
    suite = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "bigfleet_providerkit.conformance", "--provider-cmd", provider),
        *("--profile", "core,cloud,fault,durable", "--readiness-oracle", kubeconfig, "--out", str(tmp_path)),
        *(() if full_size else ("--select", ",".join(TASTE))),
        env={**os.environ, "PATH": f"{BIN}:{os.environ['PATH']}", "HOME": str(tmp_path)},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        said, _ = await suite.communicate()
        report = json.loads((tmp_path / "report.json").read_text())
        statuses = {row["id"]: row["status"] for row in report["behaviors"]}
        assert report["verdict"] == ("CERTIFIED" if full_size else "INCOMPLETE"), said.decode()
        assert {statuses[behaviour] for behaviour in TASTE} == {"passed"}, said.decode()
        assert report["slots"]["left"] == []
        nodes = await asyncio.to_thread(kube_control_plane.kubectl, "get", "nodes", SELECTOR, "--output=name")
        assert nodes == ""
    finally:
        if suite.returncode is None:
            suite.terminate()  # so that it stops the provider it has started
            await asyncio.wait_for(suite.wait(), 30)
        await asyncio.to_thread(kube_control_plane.kubectl, "delete", "nodes", SELECTOR)
