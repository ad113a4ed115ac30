"""The suite as tests: one for each id.

    # tests/test_conformance.py
    from bigfleet_providerkit.conformance.pytest_plugin import test_conformance

    pytest -p bigfleet_providerkit.conformance.pytest_plugin --conformance="--target 127.0.0.1:9000"

``--conformance`` takes the options of ``bigfleet-conformance``.
"""

import os
import shlex

import pytest

from bigfleet_base.options import UsageError
from bigfleet_providerkit.conformance import certify
from bigfleet_providerkit.conformance.catalogue import BEHAVIOURS
from bigfleet_providerkit.conformance.options import Options, parse
from bigfleet_providerkit.conformance.outcome import Result, Status
from bigfleet_providerkit.conformance.report import Report, failure_lines


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--conformance", default="", help="options of bigfleet-conformance, as one word")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "conformance_result" in metafunc.fixturenames:
        options = _options(metafunc.config)
        asked = set(options.profiles)
        ids = [
            behaviour.id
            for behaviour in BEHAVIOURS.values()
            if options.selects(behaviour.id) and ("auto" in asked or not asked.isdisjoint(behaviour.profiles))
        ]
        metafunc.parametrize("conformance_result", ids, indirect=True)


@pytest.fixture(scope="session")
def conformance_report(request: pytest.FixtureRequest) -> Report:
    """The one run of which all these tests tell."""
    return certify(_options(request.config))


@pytest.fixture
def conformance_result(request: pytest.FixtureRequest, conformance_report: Report) -> Result:
    return conformance_report.result(request.param)


def test_conformance(conformance_result: Result) -> None:
    """A behaviour of the catalogue."""
    match conformance_result.status:
        case Status.PASSED | Status.VACUOUS:
            return
        case Status.FAILED | Status.ERROR:
            pytest.fail("\n".join(failure_lines(conformance_result)), pytrace=False)
        case status:
            pytest.skip(f"{status}: {conformance_result.reason}")


def _options(config: pytest.Config) -> Options:
    try:
        return parse(shlex.split(config.getoption("--conformance")), os.environ)[0]
    except UsageError as error:
        raise pytest.UsageError(f"--conformance: {error}") from error
