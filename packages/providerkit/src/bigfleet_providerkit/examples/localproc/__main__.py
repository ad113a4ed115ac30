"""``python -m bigfleet_providerkit.examples.localproc``: LocalProc as a process."""

import sys

from bigfleet_providerkit import run_provider
from bigfleet_providerkit.examples.localproc.backend import LocalProc


def main() -> int:
    """The command line; returns the exit status."""
    return run_provider(LocalProc)


if __name__ == "__main__":
    sys.exit(main())
