"""Every scenario runs once per implementation of the judge interface."""

import pytest

from tests.engine.judge import IMPLEMENTATIONS, Judge, NewJudge
from tests.engine.lab import Lab


@pytest.fixture(scope="session", params=sorted(IMPLEMENTATIONS))
def new_judge(request: pytest.FixtureRequest) -> NewJudge:
    """Makes fresh instances, for tests that restart or compare."""
    return IMPLEMENTATIONS[request.param]


@pytest.fixture
def judge(new_judge: NewJudge) -> Judge:
    return new_judge()


@pytest.fixture
def lab(judge: Judge) -> Lab:
    return Lab(judge)
