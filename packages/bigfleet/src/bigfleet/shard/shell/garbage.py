"""How often the collector looks for garbage, in a process that holds a fleet."""

import gc
from typing import Final

_THRESHOLD: Final = (2_500, 2, 40_000)
"""A walk over the young holds the loop, so it comes often and is short; the oldest are looked at rarely."""


def look_rarely() -> None:
    """Spare the collector from walking a fleet again and again."""
    gc.set_threshold(*_THRESHOLD)


def keep_for_good() -> None:
    """All there is now, a fleet that has been loaded above all, is not searched for garbage again."""
    gc.freeze()
