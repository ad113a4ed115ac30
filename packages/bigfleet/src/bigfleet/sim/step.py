"""A shard driven step by step: a List, one cycle, the answers to its effects (shard.md L6)."""

from collections.abc import Callable, Sequence

from bigfleet.engine.actions import Action
from bigfleet.shard.core.settings import Settings
from bigfleet.sim.provider import Provider
from bigfleet.sim.shard import SimShard
from bigfleet.sim.time import VirtualTime


class SteppedShard(SimShard):
    """One cycle a step, each of them a tick; nothing happens in between but what the driver does."""

    def __init__(
        self,
        time: VirtualTime,
        settings: Settings,
        providers: Sequence[Provider],
        *,
        decided: Callable[[list[Action]], None] | None = None,
    ) -> None:
        assert settings.stepped
        self._decided = decided
        super().__init__(time, settings, providers)

    def step(self) -> list[Action]:
        """Run one cycle at the present; returns all it decided, the rails left aside."""
        for name in self.providers:
            self._list(name, self.time.now)
        for effect in self.running.begin_step(self.time.now):
            self._perform(effect)
        self.time.run_until(self.time.now)
        decided = self.running.decided
        if self._decided is not None:
            self._decided(decided)
        return decided
