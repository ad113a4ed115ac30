"""How long to leave alone what has failed."""

from typing import Final

from bigfleet.shard.core.settings import MINUTE

LONGEST: Final = 10 * MINUTE


def back_off(failures: int) -> int:
    """1, 2, 4, 8, then 10 minutes (shard.md X4)."""
    return min(MINUTE << min(failures - 1, 4), LONGEST)
