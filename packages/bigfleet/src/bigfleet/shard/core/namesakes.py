"""Records with an id that another provider's machine has already (shard.md Q12)."""

from dataclasses import dataclass, field
from typing import Final

from bigfleet.shard.core.context import Context
from bigfleet.shard.core.effects import LogLevel
from bigfleet_base.model import Machine
from bigfleet_base.telemetry.catalogue import shard as series

MOST_REMEMBERED: Final = 10_000
"""Beyond these the oldest is forgotten, and comes to light when its record changes."""
MOST_LOGGED: Final = 10
"""Refused records of one List that are named in the log; of the rest the number."""


@dataclass(slots=True)
class NamesakesState:
    refused: dict[str, list[str]] = field(default_factory=dict)
    """By id: the providers whose record was refused. Their clients will not tell of it again."""
    logged: dict[str, int] = field(default_factory=dict)
    """By provider: how many the List under way has had."""


class Namesakes:
    """Refuses them, and knows who comes next when the holder of the id gives it up."""

    def __init__(self, ctx: Context, state: NamesakesState) -> None:
        self._ctx = ctx
        self.state = state

    def refuse(self, provider: str, holder: str, machine: Machine) -> None:
        ctx, state = self._ctx, self.state
        others = state.refused.setdefault(machine.id, [])
        if provider not in others:
            others.append(provider)
        if len(state.refused) > MOST_REMEMBERED:
            del state.refused[next(iter(state.refused))]
        ctx.count(series.MACHINES_REJECTED, "duplicate_id")
        ctx.count(series.PROVIDER_REJECTED, provider)
        state.logged[provider] = state.logged.get(provider, 0) + 1
        if state.logged[provider] <= MOST_LOGGED:
            ctx.log(
                LogLevel.WARN,
                "provider machine rejected at ingest",
                machine=machine.id,
                state=machine.state.title,
                field="id",
                err=f"provider {provider!r} lists a machine with an id that provider {holder!r} has; "
                "give one of the two another id",
            )

    def gone(self, provider: str, machine_id: str) -> None:
        """The provider has no such machine any more."""
        others = self.state.refused.get(machine_id, [])
        if provider in others:
            others.remove(provider)
            if not others:
                del self.state.refused[machine_id]

    def freed(self, machine_id: str) -> list[str]:
        """The id has no holder any more; returns the providers that may have it now, by first come."""
        return self.state.refused.pop(machine_id, [])

    def list_ended(self, provider: str) -> None:
        refused = self.state.logged.pop(provider, 0)
        if refused > MOST_LOGGED:
            self._ctx.log(
                LogLevel.WARN,
                "more bad provider records than are named in the log",
                provider=provider,
                records=refused,
            )
