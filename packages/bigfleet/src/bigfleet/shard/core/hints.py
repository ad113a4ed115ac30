"""Hints to operators: what each demanded Profile could get now (shard.md §8.3)."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from bigfleet.engine.survey import Available, Wanted
from bigfleet.shard.core.context import Context
from bigfleet.shard.core.outbox import Outboxes
from bigfleet.shard.core.sessions import Sessions
from bigfleet_base.model import EMPTY
from bigfleet_base.model.frames import AvailableCapacity, Confidence

MAX_COUNT: Final = 2**31 - 1

Value = tuple[int, Confidence, float]


@dataclass(slots=True)
class Said:
    """What a cluster was last told of a Profile."""

    value: Value
    at: int


@dataclass(slots=True)
class HintsState:
    said: dict[str, dict[str, Said]] = field(default_factory=dict)
    """By cluster and fingerprint; an entry goes with its Profile's last Need or its cluster's session."""


class Hints:
    """Tells clusters of changes, each Profile at most once in an interval."""

    def __init__(self, ctx: Context, sessions: Sessions, outboxes: Outboxes, state: HintsState) -> None:
        self._ctx = ctx
        self._sessions = sessions
        self._outboxes = outboxes
        self.state = state
        self._asked: dict[str, dict[str, Wanted]] = {}

    def wanted(self) -> tuple[Wanted, ...]:
        """What the cycle that starts now has to look at, for the clusters that can be told."""
        self._asked = {}
        for need in self._ctx.engine.needs.snapshot():
            if self._sessions.session_of(need.cluster_id) is None:
                continue
            profiles = self._asked.setdefault(need.cluster_id, {})
            fingerprint = need.profile.fingerprint
            known = profiles.get(fingerprint)
            unit = EMPTY if known is None else known.unit
            profiles[fingerprint] = Wanted(need.profile, unit.maximum(need.min_unit))
        return tuple(want for profiles in self._asked.values() for want in profiles.values())

    def tell(self, available: Mapping[Wanted, Available]) -> None:
        """Queue what has changed."""
        interval = self._ctx.settings.available_interval_ns
        for cluster, profiles in self._asked.items():
            if self._sessions.session_of(cluster) is None:
                continue
            said = self.state.said.setdefault(cluster, {})
            for gone in [fingerprint for fingerprint in said if fingerprint not in profiles]:
                del said[gone]
            for fingerprint, want in profiles.items():
                value = _value(available[want])
                known = said.get(fingerprint)
                if known is not None and (known.value == value or self._ctx.now - known.at < interval):
                    continue
                said[fingerprint] = Said(value, self._ctx.now)
                self._outboxes.available(cluster, _frame(want, value))
        for cluster in [c for c in self.state.said if c not in self._asked]:
            del self.state.said[cluster]

    def forget(self, cluster: str) -> None:
        """The cluster's session has ended: the next one is told everything anew (S7)."""
        self.state.said.pop(cluster, None)


def _value(found: Available) -> Value:
    if found.idle:
        confidence = Confidence.HIGH
    elif found.speculative:
        confidence = Confidence.MEDIUM
    else:
        confidence = Confidence.LOW if found.displaceable else Confidence.NONE
    return min(found.idle + found.speculative, MAX_COUNT), confidence, found.cheapest


def _frame(want: Wanted, value: Value) -> AvailableCapacity:
    count, confidence, cost = value
    profile = want.profile
    return AvailableCapacity(profile.fingerprint, profile.requirements, want.unit, count, confidence, cost)
