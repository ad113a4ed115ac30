"""localproc for the suite to start, of which no machine is left afterwards."""

import contextlib
import os
import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from bigfleet_providerkit.examples.localproc.backend import AGENT

HOOK = """
case "$(head -c 9 blob)" in
    '#!/bin/sh') sh ./blob ;;
esac
"""
"""A bootstrap that runs blobs which are scripts."""


@contextmanager
def localproc_command(folder: Path, hook: str = HOOK) -> Iterator[str]:
    """A ``--provider-cmd``. Every process that it starts has machines of its own, all below the folder."""
    (folder / "hook").write_text(hook)
    usual, tempfile.tempdir = tempfile.tempdir, str(folder)
    try:
        yield (
            f"{sys.executable} -m bigfleet_providerkit.examples.localproc --root {{state}}-machines"
            f" --bootstrap {folder / 'hook'} --addr {{addr}} --state {{state}} --seed-count {{seed_count}}"
            " --metrics-addr 0 --log-level warn"
        )
    finally:
        tempfile.tempdir = usual
        for pid in agents(folder):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)  # with what the bootstrap has started


def agents(folder: Path) -> list[int]:
    """The agents of machines below the folder, whether or not it still exists."""
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            words = (entry / "cmdline").read_bytes().decode(errors="replace").split("\0")
            if (
                entry.name.isdecimal()
                and AGENT in words
                and words[words.index(AGENT) + 1].startswith(f"{folder}/")
            ):
                found.append(int(entry.name))
    return found
