"""The guide for provider authors, run as it is written, on ports of its own."""

import json
import os
import re
import signal
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.component.template.test_readme import commands
from tests.support.ca import CertificateAuthority
from tests.support.eventually import eventually
from tests.support.parts.process import free_port

ROOT = Path(__file__).parents[3]
GUIDE = ROOT / "docs" / "provider-author.md"
# In the small tier the suite is asked for a taste, and says itself that this is not all.
TASTE = "B101,B701"
STATUS = {"CERTIFIED": 0, "INCOMPLETE": 3}


@pytest.mark.timeout(1_200)
async def test_its_commands_lead_from_the_template_to_a_certified_provider(
    tmp_path: Path, full_size: bool
) -> None:
    (tmp_path / ".venv").symlink_to(ROOT / ".venv")
    CertificateAuthority().issue().write(tmp_path)
    port, web = free_port(), free_port()
    blocks = [block.replace(":9000", f":{port}").replace(":9090", f":{web}") for block in commands(GUIDE)]
    activate, copy, serve, judge, serve_quota, certify, serve_tls, look = blocks
    verdict = "CERTIFIED" if full_size else "INCOMPLETE"
    environment = dict(os.environ)
    if not full_size:
        environment["BIGFLEET_CONFORMANCE_SELECT"] = TASTE
        # What the suite has broken is repaired before it ends.
        environment["BIGFLEET_PROVIDER_QUARANTINE"] = "1s"
    guide = Reader(tmp_path, activate, environment)

    guide.run(copy)
    with guide.runs(serve):
        await eventually(lambda: _is_ready(web), seconds=60)
        assert f"{verdict}  mycloud" in guide.run(judge, status=STATUS[verdict])
    with guide.runs(serve_quota):
        await eventually(lambda: _is_ready(web), seconds=60)
    guide.run(certify, status=STATUS[verdict])
    report = json.loads((tmp_path / "report" / "report.json").read_text())
    assert report["verdict"] == verdict
    statuses = {row["id"]: row["status"] for row in report["behaviors"]}
    assert {statuses[behaviour] for behaviour in TASTE.split(",")} == {"passed"}
    with guide.runs(serve_tls):
        await eventually(lambda: _is_ready(web), seconds=60)
        ready, *counts = guide.run(look).splitlines()
        assert ready == "ok"
        assert any('provider="mycloud-region-1"' in line and line.endswith(" 100.0") for line in counts)


def test_its_links_lead_somewhere() -> None:
    links = re.findall(r"\]\(([^)#]+)\)", GUIDE.read_text())
    assert [link for link in links if not (GUIDE.parent / link).exists()] == []


class Reader:
    """Types the guide's commands, each in a shell with the environment activated."""

    def __init__(self, folder: Path, activate: str, environment: dict[str, str]) -> None:
        self._folder = folder
        self._activate = activate
        self._environment = environment

    def run(self, command: str, status: int = 0) -> str:
        """What the command prints, once it has ended with this status."""
        done = subprocess.run(
            ["bash", "-c", self._activate + command],
            cwd=self._folder,
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=900,
            check=False,
        )
        assert done.returncode == status, done.stdout[-4_000:] + done.stderr[-4_000:]
        return done.stdout

    @contextmanager
    def runs(self, command: str) -> Iterator[None]:
        """While the command runs in another terminal."""
        with (self._folder / "log").open("ab") as log:
            process = subprocess.Popen(
                ["bash", "-c", self._activate + command],
                cwd=self._folder,
                env=self._environment,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        try:
            yield
        finally:
            assert process.poll() is None, (self._folder / "log").read_text()[-4_000:]
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _is_ready(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=5) as page:
            return bool(page.status == 200)
    except OSError:
        return False
