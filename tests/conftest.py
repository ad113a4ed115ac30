"""Settings shared by all tests: the two tiers and the Hypothesis profiles that go with them."""

import pytest
from hypothesis import HealthCheck, settings

import bigfleet_base  # noqa: F401  # pins TLS 1.3 before any test loads grpc

# The real parts for whoever asks: one session server, whichever folder's test is first.
pytest_plugins = ("tests.support.fixtures",)

# One set of tests in two sizes (`make test` and `make nightly`); a slow shared machine must not turn a
# property red, so there are no Hypothesis deadlines: time is bounded by pytest-timeout alone.
settings.register_profile(
    "ci", max_examples=100, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile(
    "nightly",
    max_examples=5_000,
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--full-size", action="store_true", help="run every test at the size of the nightly tier"
    )


def pytest_configure(config: pytest.Config) -> None:
    settings.load_profile("nightly" if config.getoption("--full-size") else "ci")


@pytest.fixture(scope="session")
def full_size(request: pytest.FixtureRequest) -> bool:
    """True in the nightly tier: more seeds, larger fleets, the same checks."""
    return bool(request.config.getoption("--full-size"))
