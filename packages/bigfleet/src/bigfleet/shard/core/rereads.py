"""Machines whose record could not be used when it came, and that are therefore read one by one
(shard.md §5 steps 1 and 2)."""

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import islice
from typing import Final

from bigfleet.engine.options import SECOND
from bigfleet.shard.core.context import Context, Timer
from bigfleet.shard.core.effects import GetMachine

SPACING: Final = SECOND // 50
"""Between two re-reads of one provider: at most 50 a second."""


@dataclass(slots=True)
class RereadsState:
    """Of one provider. All are ids that it has listed, so their bound is the client's on its machines."""

    ready: dict[str, None] = field(default_factory=dict)
    """To be read as soon as the rate allows, in this order."""
    waiting: dict[str, None] = field(default_factory=dict)
    """To be read later: they have an operation, or a Get that began too early or failed."""
    asked: dict[str, int] = field(default_factory=dict)
    """When the Get was asked for that is not answered yet."""
    next_at: int = 0
    is_armed: bool = False


class Rereads:
    """The Gets that reconciling sends to one provider."""

    def __init__(
        self, ctx: Context, provider: str, is_busy: Callable[[str], bool], state: RereadsState
    ) -> None:
        self._ctx = ctx
        self._provider = provider
        self._is_busy = is_busy
        self.state = state

    def want(self, machine_id: str) -> None:
        """Read a machine as soon as it has no operation."""
        if machine_id in self.state.asked or self._is_busy(machine_id):
            self.state.waiting[machine_id] = None
        elif machine_id not in self.state.ready:
            self.state.ready[machine_id] = None
            self.pump()

    def want_later(self, machine_id: str) -> None:
        """Read a machine when the next List has ended: its provider has no good answer now."""
        self.state.waiting[machine_id] = None

    def released(self, machine_id: str) -> None:
        """The machine has no operation any more."""
        if machine_id in self.state.waiting and machine_id not in self.state.asked:
            del self.state.waiting[machine_id]
            self.state.ready[machine_id] = None
            self.pump()

    def list_ended(self) -> None:
        """The provider answers: try again what it did not answer well."""
        for machine_id in [m for m in self.state.waiting if not self._is_busy(m)]:
            self.released(machine_id)

    def ask(self, machine_id: str) -> None:
        """Read a machine now, for whoever keeps a rate of their own."""
        if machine_id not in self.state.asked:
            self.state.asked[machine_id] = self._ctx.now
            self._ctx.emit(GetMachine(self._provider, machine_id))

    def answered(self, machine_id: str) -> bool:
        """The Get has ended, one way or the other; returns whether anybody still waits for the answer."""
        is_awaited = self.state.asked.pop(machine_id, None) is not None
        if machine_id in self.state.waiting and not self._is_busy(machine_id):
            self.released(machine_id)
        return is_awaited

    def forget(self, machine_id: str) -> None:
        """The machine is no longer known: an answer that is still out tells of what was."""
        for ids in (self.state.ready, self.state.waiting, self.state.asked):
            ids.pop(machine_id, None)

    def pump(self) -> None:
        """Send what may be sent."""
        state, ctx = self.state, self._ctx
        room = len(state.ready) if ctx.settings.stepped else int(ctx.now >= state.next_at)
        for machine_id in list(islice(state.ready, room)):
            del state.ready[machine_id]
            self.ask(machine_id)
            state.next_at = ctx.now + SPACING
        if state.ready and not state.is_armed:
            state.is_armed = True
            ctx.timers.at(state.next_at, Timer.REREAD, self._provider)

    def timer(self) -> None:
        self.state.is_armed = False
        self.pump()
