"""``python -m tests.wrong_providers NAME …``: a provider without one rule, and with all of its options."""

import os
import sys
from collections.abc import Sequence
from typing import Final

from bigfleet_providerkit import run_provider
from bigfleet_providerkit.examples.localproc.backend import LocalProc
from bigfleet_providerkit.fake.__main__ import main as serve_fake
from tests.wrong_providers.planting import planted
from tests.wrong_providers.registry import controls, load

PANICKED: Final = 70
"""The exit status of a provider that broke down over its mistake."""


def main(argv: Sequence[str]) -> int:
    """Run until SIGTERM or SIGINT; returns the exit status."""
    known = load() | controls()
    if not argv or argv[0] not in known:
        print("usage: python -m tests.wrong_providers NAME [its options …]", file=sys.stderr)
        print(*(f"  {one.name:40} {one.says}" for one in known.values()), sep="\n", file=sys.stderr)
        return 2
    chosen = known[argv[0]]
    knobs = [word for knob in chosen.knobs for word in ("--knob", knob)]
    # A check that finds nobody to talk to is no check that has noticed the mistake.
    with planted(chosen.plant, panicked=lambda error: os._exit(PANICKED)):
        if chosen.base == "localproc":
            return run_provider(LocalProc, argv[1:])
        return serve_fake([*knobs, *argv[1:]])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
