"""The mark that ties a test to the rules of the specification it states."""

import pytest


def rule(*ids: str) -> pytest.MarkDecorator:
    """Mark a test with rule ids as ``file.id``: ``@rule("engine.S9", "ruling.R3")``.

    ``make rules`` reads the marks of every collected test, so an id may also be built in a loop over
    parameters; an id that the committed list does not know is an error there.
    """
    return pytest.mark.rule(*ids)
