"""``python -m bigfleet_providerkit.examples.ec2``: Ec2 as a process."""

import sys

from bigfleet_providerkit import run_provider
from bigfleet_providerkit.examples.ec2.backend import Ec2


def main() -> int:
    """The command line; returns the exit status."""
    return run_provider(Ec2)


if __name__ == "__main__":
    sys.exit(main())
