"""When each provider is listed, and in which order first Lists are merged (shard.md L9, F6, Q12)."""

from dataclasses import dataclass, field
from typing import Final

from bigfleet.shard.core.context import Context, Timer
from bigfleet.shard.core.effects import ListProvider, LogLevel, RaiseFloor
from bigfleet.shard.core.events import Failure, Listed, ListEnded
from bigfleet.shard.core.settings import FIRST_LIST_LIMIT
from bigfleet.shard.provider.failures import FailureKind

FAILING_AFTER: Final = 3
"""Failed Lists in a row that make what is known of a provider too old to shrink by (L4)."""
LIMIT: Final = ""
"""Key of the timer for the end of the wait for first Lists, in place of a provider's name."""


@dataclass(slots=True)
class ListLoop:
    """The Lists of one provider."""

    has_floor: bool = False
    """Older processes of this shard are fenced there, or it has no floor."""
    is_running: bool = False
    asked: int = 0
    """When the List that runs, or the last one, was asked for."""
    due: int = 0
    """When the next one is to be asked for."""
    is_listed: bool = False
    """Whether a complete List has been merged."""
    failures: int = 0
    """In a row."""
    error: str = ""
    kept: list[Listed | ListEnded] = field(default_factory=list)
    """Answers that wait until the providers before this one have been merged. No List is asked for once a
    complete one is in here, so they are no more than the provider lists."""
    taken: int = 0
    """So many of the kept ones have been merged."""

    @property
    def has_answered(self) -> bool:
        """Whether a complete List is kept."""
        return any(isinstance(event, ListEnded) and event.complete for event in self.kept[-1:])


@dataclass(slots=True)
class ListsState:
    loops: dict[str, ListLoop] = field(default_factory=dict)
    """By provider, in the order of the flag."""
    is_limit_over: bool = False
    """Providers that have not been listed since the start are no longer waited for."""


class Lists:
    """Asks for Lists and says which of them have been merged."""

    def __init__(self, ctx: Context, state: ListsState) -> None:
        self._ctx = ctx
        self.state = state
        for provider in ctx.settings.providers:
            state.loops.setdefault(provider, ListLoop())

    def start(self) -> None:
        if self._ctx.settings.stepped:
            return
        for provider in self.state.loops:
            self.ask(provider)
        self._ctx.timers.at(self._ctx.now + FIRST_LIST_LIMIT, Timer.LIST, LIMIT)

    def ask(self, provider: str) -> None:
        """Begin a List now; the first one with the call that fences older processes, so that what it shows is
        final (F6). A shadow must not fence the shard that it watches."""
        loop = self.state.loops[provider]
        loop.is_running = True
        loop.asked = self._ctx.now
        loop.due = loop.asked + self._ctx.settings.options.cycle_interval_ns
        if loop.has_floor or self._ctx.settings.options.dry_run:
            self._ctx.emit(ListProvider(provider))
        else:
            self._ctx.emit(RaiseFloor(provider))

    def floor_raised(self, provider: str, failure: Failure | None) -> None:
        """The fence call was answered. Without an answer it is tried again in place of the next List; a
        process that is itself fenced may still look."""
        if failure is not None and failure.kind in _UNANSWERED:
            self.failed(provider, f"{failure.code}: {failure.details}")
            return
        self.state.loops[provider].has_floor = True
        self._ctx.emit(ListProvider(provider))

    def ended(self, provider: str) -> None:
        """A List has been answered to its end; it may still have to wait to be merged."""
        loop = self.state.loops[provider]
        loop.is_running, loop.failures, loop.error = False, 0, ""
        self._arm(provider)

    def failed(self, provider: str, error: str) -> None:
        loop = self.state.loops[provider]
        loop.is_running = False
        loop.failures += 1
        loop.error = error
        self._ctx.log(LogLevel.WARN, "reconcile failed", provider=provider, err=error)
        self._arm(provider)

    def ask_if_due(self, provider: str) -> None:
        loop = self.state.loops[provider]
        if self._ctx.settings.stepped:
            return
        if not loop.is_running and not loop.has_answered and self._ctx.now >= loop.due:
            self.ask(provider)

    def end_wait(self) -> None:
        """First Lists have had their time: whoever has not answered is passed over."""
        self.state.is_limit_over = True
        for provider, loop in self.state.loops.items():
            if not loop.is_listed and not loop.has_answered:
                self._ctx.log(
                    LogLevel.ERROR,
                    "provider not listed since start; acting without it",
                    provider=provider,
                    err=loop.error or "its first List has not ended",
                )

    def must_wait(self, provider: str) -> bool:
        """Whether an answer of the provider has to be kept: providers before it are to be merged first, so
        that an id which two of them have is the same one's after every start; or answers are kept already."""
        return bool(self.state.loops[provider].kept) or not self.is_its_turn(provider)

    def is_its_turn(self, provider: str) -> bool:
        """Whether the provider has been listed already, or all before it have been or are passed over."""
        for name in self.state.loops:
            if name == provider:
                return True
            if not self.is_settled(name):
                break
        return self.state.loops[provider].is_listed

    def is_settled(self, provider: str) -> bool:
        """Whether nobody waits for the provider's first List any more."""
        loop = self.state.loops[provider]
        return loop.is_listed or (self.state.is_limit_over and not loop.kept)

    def next_kept(self, provider: str) -> Listed | ListEnded:
        loop = self.state.loops[provider]
        event = loop.kept[loop.taken]
        loop.taken += 1
        if loop.taken == len(loop.kept):
            loop.kept, loop.taken = [], 0
        return event

    def is_failing(self, provider: str) -> bool:
        return self.state.loops[provider].failures >= FAILING_AFTER

    @property
    def is_any_failing(self) -> bool:
        return any(map(self.is_failing, self.state.loops))

    def oldest_running(self) -> int:
        """No List that is still to be merged, now or ever, was asked for earlier than this."""
        running = (loop.asked for loop in self.state.loops.values() if loop.is_running or loop.kept)
        return min(running, default=self._ctx.now)

    def _arm(self, provider: str) -> None:
        if not self._ctx.settings.stepped:
            due = max(self.state.loops[provider].due, self._ctx.now + 1)
            self._ctx.timers.at(due, Timer.LIST, provider)


_UNANSWERED: Final = frozenset({FailureKind.TRANSIENT.value, FailureKind.NOT_SENT.value})
