"""What a user may get wrong, and prices."""

import json
import math
import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from bigfleet_base.model import CapacityType
from bigfleet_providerkit import (
    InsufficientCapacity,
    NotFound,
    Retryable,
    Terminal,
    Unauthorized,
    run_provider,
)
from bigfleet_providerkit.backend import Offering
from bigfleet_providerkit.examples.ec2 import Ec2
from bigfleet_providerkit.examples.ec2.api import Api, translated
from bigfleet_providerkit.examples.ec2.prices import Prices, read_prices
from bigfleet_providerkit.examples.ec2.quota import Quota
from tests.component.ec2.cloud import PRICES, REGION, TEMPLATE, Cloud, client
from tests.component.ec2.world import POLL_S, in_process
from tests.support.rules import rule

BASIC = ("--region", REGION, "--launch-template", TEMPLATE, "--addr", "127.0.0.1:0", "--metrics-addr", "0")


def refusal(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """What the provider says when it refuses to start."""
    assert run_provider(Ec2, arguments) == 1
    return capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((), "--region is missing"),
        (("--region", REGION), "--launch-template is missing"),
        (BASIC, "--offerings is missing"),
        ((*BASIC, "--seed-count", "3"), "--prices"),
        (
            (*BASIC, "--seed-count", "3", "--prices", "/nowhere/p.json"),
            "cannot read /nowhere/p.json (--prices)",
        ),
        (
            (*BASIC, "--offerings", "x", "--kubeconfigs", "/nowhere"),
            "/nowhere (--kubeconfigs) is not a directory",
        ),
    ],
)
def test_a_missing_option_is_named(
    capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], says: str
) -> None:
    assert says in refusal(capsys, *arguments)


@rule("provider.P-93")
@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("{", "is not JSON"),
        ("[1]", "must be an object of instance types and USD an hour"),
        ('{"m5.large": "0.1"}', "m5.large costs '0.1'; it must be USD an hour, above 0"),
        ('{"m5.large": 0}', "m5.large costs 0;"),
        ('{"m5.large": NaN}', "m5.large costs nan;"),
        ('{"m5.large": true}', "m5.large costs True;"),
    ],
)
def test_a_price_file_that_says_nonsense_is_refused(tmp_path: Path, content: str, says: str) -> None:
    path = tmp_path / "prices.json"
    path.write_text(content)
    with pytest.raises(ValueError, match=re.escape(f"{path} (--prices)")) as refused:
        read_prices(path)
    assert says in str(refused.value)


def offer(tmp_path: Path, **values: object) -> tuple[str, ...]:
    path = tmp_path / "offerings.json"
    row = {"instance_type": "m5.large", "zone": f"{REGION}a", "count": 1, **values}
    path.write_text(json.dumps([row]))
    return ("--offerings", str(path))


@rule("provider.P-93", "conformance.X801")
@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({}, "price_per_hour"),
        ({"capacity_type": "spot"}, "price_per_hour"),
        ({"capacity_type": "bare_metal", "price_per_hour": 1}, "EC2 has no BARE_METAL"),
        ({"instance_type": "m5.gigantic", "price_per_hour": 1}, "m5.gigantic"),
    ],
)
def test_an_offering_that_cannot_be_served_is_refused(
    cloud: Cloud, capsys: pytest.CaptureFixture[str], tmp_path: Path, values: dict[str, object], says: str
) -> None:
    said = refusal(capsys, *BASIC, "--endpoint-url", cloud.url, *offer(tmp_path, **values))
    assert says in said


def test_subnets_must_cover_the_zones_and_each_one_once(
    cloud: Cloud, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    ec2 = client(cloud.moto)
    subnets = {row["AvailabilityZone"]: row for row in ec2.describe_subnets()["Subnets"]}
    there, elsewhere = subnets[f"{REGION}a"], subnets[f"{REGION}b"]
    twin = ec2.create_subnet(
        VpcId=there["VpcId"], AvailabilityZone=f"{REGION}a", CidrBlock="172.31.128.0/20"
    )["Subnet"]
    given = (*BASIC, "--endpoint-url", cloud.url, *offer(tmp_path, price_per_hour=1))
    said = refusal(capsys, *given, "--subnet", elsewhere["SubnetId"])
    assert f"m5.large in {REGION}a: no --subnet is in that zone" in said
    said = refusal(capsys, *given, "--subnet", there["SubnetId"], "--subnet", twin["SubnetId"])
    assert f"both in {REGION}a" in said
    ec2.delete_subnet(SubnetId=twin["SubnetId"])


def test_without_credentials_it_does_not_start(
    region: Cloud, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    for name in ("AWS_SHARED_CREDENTIALS_FILE", "AWS_CONFIG_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "none"))
    said = refusal(capsys, *BASIC, "--endpoint-url", region.url, *offer(tmp_path, price_per_hour=1))
    assert "Unauthorized" in said and "credentials" in said


def test_without_boto3_it_says_what_to_install(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "boto3", None)
    assert "bigfleet-providerkit[ec2]" in refusal(capsys, *BASIC, "--offerings", "any")


@rule("provider.P-95")
async def test_spot_prices_follow_the_market_and_are_a_share_of_on_demand_before_that(cloud: Cloud) -> None:
    cloud.fail("DescribeSpotPriceHistory", "UnauthorizedOperation")
    async with in_process(cloud, price_interval=POLL_S) as shard:
        spot = next(row for row in (await shard.machines()).values() if row.capacity_type == 4)
        listed = PRICES[spot.instance_type]
        assert math.isclose(spot.price_per_hour, 0.3 * listed)
        cloud.fail("DescribeSpotPriceHistory", "UnauthorizedOperation")
        cloud.set_spot_price(spot.instance_type, spot.zone, 0.5 * listed)
        await shard.shows(spot.id, lambda machine: math.isclose(machine.price_per_hour, 0.5 * listed))


@rule("provider.P-95")
async def test_the_price_file_is_read_again_and_a_broken_one_changes_nothing(
    cloud: Cloud, tmp_path: Path
) -> None:
    path = tmp_path / "prices.json"
    path.write_text('{"m5.large": 0.1}')
    api = Api(REGION, cloud.url)
    quota = Quota(api, Prices(api, path))
    row = Offering("m5.large", f"{REGION}a", CapacityType.ON_DEMAND, 1, None)
    fixed = replace(row, zone=f"{REGION}b", price_per_hour=7.0)
    assert [row.price_per_hour for row in await quota.offerings([row, fixed])] == [0.1, 7.0]
    path.write_text('{"m5.large": ')
    with pytest.raises(ValueError, match="is not JSON"):
        await quota.new_prices()
    assert quota.prices.of("m5.large", f"{REGION}a", CapacityType.ON_DEMAND) == 0.1
    path.write_text('{"m5.large": 0.2}')
    [update] = await quota.new_prices()
    assert (update.zone, update.price_per_hour) == (f"{REGION}a", 0.2)


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("InsufficientInstanceCapacity", InsufficientCapacity),
        ("VcpuLimitExceeded", InsufficientCapacity),
        ("RequestLimitExceeded", Retryable),
        ("IncorrectInstanceState", Retryable),
        ("UnauthorizedOperation", Unauthorized),
        ("InvalidInstanceID.NotFound", NotFound),
        ("InvalidParameterValue", Terminal),
    ],
)
def test_an_error_of_ec2_keeps_its_name_and_gets_the_kits_meaning(code: str, kind: type[Exception]) -> None:
    error = translated("run_instances", code, "the message")
    assert type(error) is kind and str(error) == f"run_instances: {code}: the message"
