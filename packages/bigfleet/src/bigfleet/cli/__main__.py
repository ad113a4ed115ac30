"""``python -m bigfleet.cli``: the ``bigfleet`` command."""

import sys

from bigfleet.cli.bigfleet import main

if __name__ == "__main__":
    sys.exit(main())
