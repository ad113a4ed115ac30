"""Provider processes forked from one that has everything loaded: most of what a boot takes is loading."""

import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from multiprocessing import get_context, parent_process
from types import SimpleNamespace
from typing import IO, Any, Final
from unittest import mock

from bigfleet_providerkit.conformance import managed
from tests.wrong_providers import __main__ as program

PRELOADED: Final = ["tests.wrong_providers.__main__", "tests.wrong_providers.trial"]
"""Loaded, but nothing of gRPC is running in it: that would not survive a fork."""
_CONTEXT: Final = get_context("forkserver")


@contextmanager
def forking(module: str) -> Iterator[None]:
    """The suite's commands ``… -m module ARGUMENTS`` are forks of the nursery instead of interpreters."""
    _CONTEXT.set_forkserver_preload(PRELOADED)

    def popen(words: Sequence[str], *, stdout: IO[bytes], **_: Any) -> Forked:
        return Forked(words[words.index(module) + 1 :], stdout.name)

    with mock.patch.object(managed, "subprocess", SimpleNamespace(**{**vars(subprocess), "Popen": popen})):
        yield


def end_with_parent() -> None:
    """End this process when the one that asked for it has ended, however that was."""

    def watch(parent: Any) -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=watch, args=(parent_process(),), daemon=True).start()


class Forked:
    """A provider in a process of its own, as far as the suite handles a ``subprocess.Popen``."""

    def __init__(self, argv: Sequence[str], log: str) -> None:
        self._process = _CONTEXT.Process(target=_live, args=(list(argv), log), daemon=True)
        self._process.start()
        assert self._process.pid is not None
        self.pid = self._process.pid

    def poll(self) -> int | None:
        """The exit status, once there is one."""
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        """Its exit status; TimeoutExpired if that takes too long."""
        self._process.join(timeout)
        if (status := self.poll()) is None:
            raise subprocess.TimeoutExpired("a provider", timeout or 0.0)
        return status


def _live(argv: list[str], log: str) -> None:
    # A session of its own, so that a signal to it reaches nobody else; but it does not outlive the suite.
    os.setsid()
    end_with_parent()
    output = os.open(log, os.O_WRONLY | os.O_APPEND)
    for stream in (1, 2):
        os.dup2(output, stream)
    sys.exit(program.main(argv))
