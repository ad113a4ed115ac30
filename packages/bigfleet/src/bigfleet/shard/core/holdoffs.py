"""Calls that a machine's provider has just refused are not tried again at once (shard.md X4).

The engine is told through the inventory, so that a machine that is held off is no candidate, no victim and no
excess, and others are used meanwhile.
"""

import heapq
from dataclasses import dataclass, field

from bigfleet.engine.cells import NO_CALL, Call
from bigfleet.shard.core.backoff import back_off
from bigfleet.shard.core.context import Context


@dataclass(slots=True)
class HoldOff:
    """One call of one machine."""

    failures: int
    """In a row; they outlive the pause, so that the next one is longer."""
    until: int


@dataclass(slots=True)
class HoldOffsState:
    calls: dict[tuple[str, int], HoldOff] = field(default_factory=dict)
    """By machine and Call: at most four for each machine of the inventory, forgotten with it."""
    ends: list[tuple[int, str, int]] = field(default_factory=list)
    """A heap of (time, machine, Call); one for each pause under way, and those of machines that have gone
    since, for ten minutes at most."""


class HoldOffs:
    """Which calls wait on which machine, and until when."""

    def __init__(self, ctx: Context, state: HoldOffsState) -> None:
        self._ctx = ctx
        self.state = state

    def failed(self, machine_id: str, call: Call) -> None:
        known = self.state.calls.get((machine_id, call))
        failures = 1 if known is None else known.failures + 1
        until = self._ctx.now + back_off(failures)
        self.state.calls[machine_id, int(call)] = HoldOff(failures, until)
        heapq.heappush(self.state.ends, (until, machine_id, int(call)))
        self._tell(machine_id)

    def succeeded(self, machine_id: str, call: Call) -> None:
        if self.state.calls.pop((machine_id, int(call)), None) is not None:
            self._tell(machine_id)

    def removed(self, machine_id: str) -> None:
        for call in Call:
            self.state.calls.pop((machine_id, int(call)), None)

    def refresh(self) -> None:
        """Tell the inventory of the pauses that are over."""
        ends = self.state.ends
        while ends and ends[0][0] <= self._ctx.now:
            until, machine_id, call = heapq.heappop(ends)
            known = self.state.calls.get((machine_id, call))
            if known is not None and known.until == until:
                self._tell(machine_id)

    def _tell(self, machine_id: str) -> None:
        held = NO_CALL
        for call in Call:
            known = self.state.calls.get((machine_id, int(call)))
            if known is not None and self._ctx.now < known.until:
                held |= call
        if Call.CONFIGURE in held:
            # Who would buy it now could not use it, and would soon give it back.
            held |= Call.CREATE
        self._ctx.engine.inventory.hold_off(machine_id, held)
