"""``python -m bigfleet_providerkit.examples.kwoknodes``: KwokNodes as a process."""

import sys

from bigfleet_providerkit import run_provider


def main() -> int:
    """The command line; returns the exit status."""
    try:
        from bigfleet_providerkit.examples.kwoknodes.backend import KwokNodes
    except ModuleNotFoundError as error:
        print(
            f"kwoknodes needs {error.name}; run: pip install 'bigfleet-providerkit[kwoknodes]'",
            file=sys.stderr,
        )
        return 1
    return run_provider(KwokNodes)


if __name__ == "__main__":
    sys.exit(main())
