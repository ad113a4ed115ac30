"""``python -m bigfleet_providerkit.conformance``."""

import sys

from bigfleet_providerkit.conformance.cli import main

if __name__ == "__main__":
    sys.exit(main())
