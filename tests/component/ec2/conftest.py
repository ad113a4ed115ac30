"""One EC2 for all tests of this folder, empty at the start of each."""

from collections.abc import Iterator

import boto3  # type: ignore[import-untyped]  # published without types
import pytest

from bigfleet_providerkit import process
from tests.component.ec2.cloud import CREDENTIALS, Cloud, running_cloud


@pytest.fixture(scope="session")
def region(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cloud]:
    with running_cloud(tmp_path_factory.mktemp("moto")) as cloud:
        yield cloud


@pytest.fixture(scope="session")
def sdk() -> boto3.Session:
    """The SDK, which takes its time to read what it knows of EC2."""
    return boto3.Session(aws_access_key_id="testing", aws_secret_access_key="testing")


@pytest.fixture
def cloud(region: Cloud, sdk: boto3.Session, monkeypatch: pytest.MonkeyPatch) -> Cloud:
    """EC2, and credentials for it."""
    for name, value in CREDENTIALS.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(boto3, "Session", lambda: sdk)
    # Nobody else watches these providers' health.
    monkeypatch.setattr(process, "_NOTICE_S", 0.0)
    region.reset()
    return region
