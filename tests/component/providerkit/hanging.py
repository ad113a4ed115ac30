"""A toy provider whose create never comes back, from a thread that nobody can stop. Run as a process."""

import sys
from threading import Event

from bigfleet_providerkit import Host, Operation, run_provider
from tests.component.providerkit.toy import Toy


class Hanging(Toy):
    """Hosts that are never made."""

    def create(self, op: Operation) -> Host:  # type: ignore[override]  # plain methods are allowed
        Event().wait()
        raise AssertionError


if __name__ == "__main__":
    sys.exit(run_provider(Hanging))
