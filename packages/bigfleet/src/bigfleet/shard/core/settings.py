"""What is fixed for the life of a shard process."""

from dataclasses import dataclass, field
from typing import Final

from bigfleet.engine.options import SECOND, Options

MINUTE: Final = 60 * SECOND

CORDON_TIMEOUT: Final = 5 * SECOND
"""How long a drain waits for the operator's cordon (ruling R21)."""
SESSION_GRACE: Final = 60 * SECOND
"""How long a cluster may be without a session before its Needs are held back (shard.md X9)."""
SETTLING_LIMIT: Final = 30 * SECOND
"""How long after the first Lists a start waits for roll-ups: the operators' greatest back-off (L7)."""
FIRST_LIST_LIMIT: Final = 5 * MINUTE
"""How long a start waits for every provider to be listed once (L9)."""
HELLO_TIMEOUT: Final = 10 * SECOND
MAX_CLUSTERS: Final = 10_000
MAX_NODE_FRAMES: Final = 50_000
MAX_AVAILABLE_FRAMES: Final = 10_000
MAX_RECLAIMS: Final = 10_000
MAX_ACKS: Final = 64
CREDIT: Final = 256
"""Frames of one session that may be with the shell and not yet written; the shell gives credit back in lots
of half of it, so that a steady session costs few events and a peer that reads nothing holds few frames."""


@dataclass(frozen=True, slots=True)
class Settings:
    """The start event of a core: everything that does not change while the process lives."""

    shard_id: str
    epoch: int
    seed: bytes
    """Drawn by the shell at start; request ids are made from it."""
    providers: tuple[str, ...]
    """Their names, in the order of the flag: it decides who holds an id that two of them have (Q12)."""
    options: Options = field(default_factory=Options)
    """The engine's settings. The library's default has its rails off (R7); command lines turn them on."""
    min_cycle_spacing_ns: int = SECOND
    concurrency: int = 32
    """Provider mutations in flight, the N of E1."""
    bootstrap_timeout_ns: int = 30 * SECOND
    execute_timeout_ns: int = 30 * SECOND
    available_interval_ns: int = 5 * SECOND
    warmup_cycles: int = 0
    local_bootstrap: bool = False
    """Configure without asking an operator for a blob: tests and scale runs alone (B6)."""
    stepped: bool = False
    """Driven by ``step``: each cycle is a tick, nothing runs by itself, the gates are open (L6, L7)."""
    phase_attribution: bool = False
    domains: tuple[tuple[str, str], ...] = ()
    """The topology domains this shard is limited to; none: every machine is its own (Q10)."""

    @property
    def queue_capacity(self) -> int:
        """Operations that may be queued or waiting (E4)."""
        return max(256, 8 * self.concurrency)
