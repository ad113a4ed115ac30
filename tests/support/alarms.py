"""An end for calls that block."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def within_seconds(seconds: int) -> Iterator[None]:
    """What blocks ends in an error and not in silence."""

    def late(*_: object) -> None:
        raise AssertionError("still blocked")  # an OSError might be taken for that of a file

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
