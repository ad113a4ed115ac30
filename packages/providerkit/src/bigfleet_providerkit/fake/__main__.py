"""``python -m bigfleet_providerkit.fake``: the fake as a process, with the kit's options and its knobs."""

import sys
from collections.abc import Sequence

from bigfleet_providerkit import cli
from bigfleet_providerkit.fake.backend import FakeBackend
from bigfleet_providerkit.fake.server import FakeServer


def main(argv: Sequence[str] | None = None) -> int:
    """Run until SIGTERM or SIGINT; returns the exit status."""
    return cli.main(FakeBackend, argv, FakeServer)


if __name__ == "__main__":
    sys.exit(main())
