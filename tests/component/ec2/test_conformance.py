"""ec2 before the conformance suite, with moto for a cloud."""

import json
import sys
from pathlib import Path

import pytest

from bigfleet_providerkit.conformance import run
from bigfleet_providerkit.conformance.outcome import Status, Verdict
from tests.component.ec2.cloud import PRICES, REGION, TEMPLATE, Cloud

# In the small tier a taste; the suite then says itself that this is not all.
TASTE = ("B107", "B701")


@pytest.mark.timeout(1_800)
def test_it_is_certified_with_faults_and_restarts(cloud: Cloud, tmp_path: Path, full_size: bool) -> None:
    (tmp_path / "prices.json").write_text(json.dumps(PRICES))
    provider = (
        f"{sys.executable} -m bigfleet_providerkit.examples.ec2 --provider ec2-conformance --region {REGION}"
        f" --endpoint-url {cloud.door()} --launch-template {TEMPLATE} --prices {tmp_path}/prices.json"
        " --poll 30ms --addr {addr} --state {state} --seed-count {seed_count} --metrics-addr 0"
    )
    report = run(
        # Of what is broken on purpose nothing stays, and in the small tier that is not waited for long.
        provider_cmd=provider if full_size else f"{provider} --quarantine 1s",
        profiles=("core", "cloud", "fault", "durable"),
        select=("*",) if full_size else TASTE,
    )
    assert report.verdict is (Verdict.CERTIFIED if full_size else Verdict.INCOMPLETE), report.text()
    assert {report.result(behaviour).status for behaviour in TASTE} == {Status.PASSED}, report.text()
    assert report.left == ()
    assert not cloud.instances(), "they are paid for, and nobody knows of them any more"
