"""When a cycle starts, and which cycles are ticks (shard.md L1, L2, L9, L10)."""

from dataclasses import dataclass
from typing import Final

from bigfleet.shard.core.context import Cause, Context, Timer

REST_SHARE: Final = 10
"""After a cycle comes a rest of at least this part of what it took."""


@dataclass(slots=True)
class ClockState:
    started: int | None = None
    """When the last cycle started."""
    window: int | None = None
    """When the last cycle started that opened a window: all but those fired early."""
    early: bool = False
    """Whether a cycle has been fired inside the window."""
    cause: Cause | None = None
    """Why a cycle is wanted before the interval is over; any number of reasons is one."""
    urgent: bool = False
    """Whether it is for a new critical Need, which need not wait for the end of the window."""
    last_tick: int | None = None
    running: bool = False
    rest_until: int = 0
    """The next cycle leaves so much time to what waits for the end of the last one."""
    armed: int | None = None
    """The time that was asked for last."""
    begun: int = 0


class Clock:
    """Paces the cycles: one an interval, earlier ones a second apart, one more for what cannot wait."""

    def __init__(self, ctx: Context, state: ClockState) -> None:
        self._ctx = ctx
        self.state = state

    def start(self) -> None:
        self.state.begun = self._ctx.now

    def wake(self, cause: Cause, *, urgent: bool = False) -> None:
        """Ask for a cycle; a second request before it starts changes nothing."""
        self.state.cause = self.state.cause or cause
        self.state.urgent = self.state.urgent or urgent
        if urgent:
            self._ctx.engine.hurried = True

    def arm(self) -> None:
        """Have the core called when the next cycle is due."""
        due = self._due()
        if due is not None and due != self.state.armed and due > self._ctx.now:
            self.state.armed = due
            self._ctx.timers.at(due, Timer.CYCLE)

    def take(self) -> Cause | None:
        """Start a cycle if one is due, and say why."""
        due = self._due()
        if due is None or due > self._ctx.now:
            return None
        state, now = self.state, self._ctx.now
        cause = state.cause or Cause.TIMER
        if state.urgent and not self._window_over(now):
            state.early = True
        else:
            state.window, state.early = now, False
        # Whoever cannot wait does not wait for a comparison with a full pass either.
        self._ctx.engine.hurried = state.urgent
        state.started, state.running = now, True
        state.cause, state.urgent = None, False
        return cause

    def finished(self) -> None:
        """A cycle has ended. Lists are merged and Gets are heard between cycles, which must not follow each
        other without a pause when they take longer than they are to be apart."""
        state, now = self.state, self._ctx.now
        state.running = False
        if state.started is not None:
            state.rest_until = now + (now - state.started) // REST_SHARE

    def tick(self) -> bool:
        """Whether the cycle that starts now advances what is counted in cycles."""
        state, now = self.state, self._ctx.now
        interval = self._ctx.settings.options.cycle_interval_ns
        if self._ctx.settings.stepped or state.last_tick is None or now - state.last_tick >= interval:
            state.last_tick = now
            return True
        return False

    def _due(self) -> int | None:
        state = self.state
        if state.running or self._ctx.settings.stepped:
            return None
        return max(self._wanted(), state.rest_until)

    def _wanted(self) -> int:
        """When the next cycle may start by what asks for it."""
        state = self.state
        interval = self._ctx.settings.options.cycle_interval_ns
        regular = (state.begun if state.started is None else state.started) + interval
        if state.cause is None:
            return regular
        if state.urgent and not state.early:
            return self._ctx.now
        return min(regular, self._window_end())

    def _window_end(self) -> int:
        if self.state.window is None:
            return self._ctx.now
        return self.state.window + self._ctx.settings.min_cycle_spacing_ns

    def _window_over(self, now: int) -> bool:
        return now >= self._window_end()
