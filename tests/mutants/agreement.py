"""``python -m tests.mutants.agreement``: engine and oracle over random fleets, up to the first difference.

The differential run shrinks what it finds and writes it to the regressions; for a planted bug the first
difference is the whole answer.
"""

import argparse
import sys
from typing import Final

from tests.engine.differential import first_difference
from tests.engine.fleets import generate

FLEETS: Final = 2000


def main() -> int:
    parser = argparse.ArgumentParser(description="Compare engine and oracle up to the first difference.")
    parser.add_argument("--fleets", type=int, default=FLEETS, help=f"how many, from seed 0 ({FLEETS})")
    for seed in range(parser.parse_args().fleets):
        difference = first_difference(generate(seed))
        if difference is not None:
            print(f"seed {seed} differs in {difference}")
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
