"""Writing to whoever reads along: a pipe whose reader has stopped must not stop the writer."""

import errno
import os
import select
import stat
from typing import Final

PATIENCE_MS: Final = 50
"""For a reader that is busy. One that has read nothing in this time is not waited for again until it has."""


class Output:
    """A file descriptor that is written to, and by others as well perhaps: it cannot be told not to block."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._is_file = stat.S_ISREG(os.fstat(fd).st_mode)
        self._is_full = False

    def push(self, data: memoryview) -> int:
        """Write some of it; BlockingIOError if there is no room."""
        if self._is_file:
            return os.write(self._fd, data)
        ready = select.poll()
        ready.register(self._fd, select.POLLOUT)
        if not ready.poll(0 if self._is_full else PATIENCE_MS):
            self._is_full = True
            raise BlockingIOError(errno.EAGAIN, "nobody empties it")
        self._is_full = False
        # So much has room in a pipe that has any.
        return os.write(self._fd, data[: select.PIPE_BUF])
