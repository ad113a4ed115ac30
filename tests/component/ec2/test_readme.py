"""The README of ec2, run as it is written, and the files that it hands out."""

import json
import os
import re
import textwrap
from pathlib import Path

import pytest

import bigfleet_providerkit.examples.ec2 as example
from bigfleet_base.api.v1alpha1 import provider_pb2 as pb
from tests.component.ec2.cloud import REGION, TEMPLATE, Cloud, client
from tests.component.ec2.world import in_process
from tests.component.localproc.test_readme import run, start
from tests.support.eventually import eventually

HOME = Path(next(iter(example.__path__)))


async def test_its_commands_launch_an_instance(
    cloud: Cloud, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client(cloud.moto).delete_launch_template(LaunchTemplateName=TEMPLATE)
    monkeypatch.setenv("AWS_ENDPOINT_URL", cloud.url)
    copy, make_template, serve, create, look = commands()
    run(copy, tmp_path)
    run(make_template, tmp_path)
    provider = start(serve, tmp_path)
    try:
        await eventually((tmp_path / "ec2.sock").exists, seconds=30)
        operation = run(create, tmp_path).strip()
        await eventually(lambda: len(cloud.instances("running")) == 1)
        [ref] = cloud.instances()
        assert cloud.tags(ref)["bigfleet.lucy.sh/operation"] == operation
        assert run(look, tmp_path).startswith(f"{ref} ")
    finally:
        os.killpg(provider.pid, 9)
        provider.wait()


async def test_the_policy_allows_what_the_provider_calls_and_no_more(cloud: Cloud) -> None:
    zones = {f"{REGION}a", f"{REGION}b"}
    rows = client(cloud.moto).describe_subnets()["Subnets"]
    subnets = [row["SubnetId"] for row in rows if row["AvailabilityZone"] in zones]
    async with in_process(cloud):
        pass
    async with in_process(cloud, subnets=subnets, seed_count=8) as shard:
        bound = await shard.configured(await shard.slot(pb.CAPACITY_TYPE_SPOT))
        assert cloud.instances()[bound.host.ref]["SubnetId"] in subnets
        await shard.drain(bound.id)
        await shard.shows(bound.id, lambda machine: machine.state == pb.MACHINE_STATE_IDLE)
        await shard.delete(bound.id)
        await shard.shows(bound.id, lambda machine: machine.state == pb.MACHINE_STATE_SPECULATIVE)
        await eventually(lambda: "DescribeInstanceStatus" in cloud.actions())
    policy = json.loads((HOME / "config" / "provider-policy.json").read_text())
    allowed = set()
    for statement in policy["Statement"]:
        actions = statement["Action"]
        allowed |= {actions} if isinstance(actions, str) else set(actions)
    called = {f"ec2:{action}" for action in cloud.actions()}
    assert {action for action in allowed if action.startswith("ec2:")} == called


def commands() -> list[str]:
    """What the README gives to the shell, in order."""
    blocks = re.findall(
        r"^( *)```sh\n(.*?)^ *```$", (HOME / "README.md").read_text(), re.DOTALL | re.MULTILINE
    )
    return [textwrap.dedent(block) for _, block in blocks]
