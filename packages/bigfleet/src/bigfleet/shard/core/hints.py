"""Hints to operators: what each demanded Profile could get now (shard.md §8.3)."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from bigfleet.engine.survey import Available, Wanted, WantedKey
from bigfleet.shard.core.context import Context
from bigfleet.shard.core.ingest import Accepted, Ingest
from bigfleet.shard.core.outbox import Outboxes
from bigfleet.shard.core.sessions import Sessions
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

    def __init__(
        self, ctx: Context, sessions: Sessions, ingest: Ingest, outboxes: Outboxes, state: HintsState
    ) -> None:
        self._ctx = ctx
        self._sessions = sessions
        self._ingest = ingest
        self._outboxes = outboxes
        self.state = state
        self._asked: dict[str, tuple[Accepted, dict[str, Wanted]]] = {}
        """What each connected cluster's last accepted roll-up asks for, by fingerprint."""

    def wanted(self) -> list[Wanted]:
        """What the cycle that starts now has to look at, for the clusters that can be told."""
        before, self._asked = self._asked, {}
        wanted: list[Wanted] = []
        for cluster, accepted in self._ingest.state.accepted.items():
            if self._sessions.session_of(cluster) is None:
                continue
            known = before.get(cluster)
            if known is None or known[0] is not accepted:
                known = (accepted, _profiles(accepted))
            self._asked[cluster] = known
            wanted.extend(known[1].values())
        return wanted

    def tell(self, available: Mapping[WantedKey, Available]) -> None:
        """Queue what has changed."""
        interval, now = self._ctx.settings.available_interval_ns, self._ctx.now
        values = {key: _value(found) for key, found in available.items()}
        for cluster, (_, profiles) in self._asked.items():
            if self._sessions.session_of(cluster) is None:
                continue
            said = self.state.said.setdefault(cluster, {})
            if said.keys() - profiles.keys():
                for gone in [fingerprint for fingerprint in said if fingerprint not in profiles]:
                    del said[gone]
            for fingerprint, want in profiles.items():
                value = values[fingerprint, want.unit]
                known = said.get(fingerprint)
                if known is not None and (known.value == value or now - known.at < interval):
                    continue
                said[fingerprint] = Said(value, now)
                self._outboxes.available(cluster, _frame(want, value))
        for cluster in [c for c in self.state.said if c not in self._asked]:
            del self.state.said[cluster]

    def forget(self, cluster: str) -> None:
        """The cluster's session has ended: the next one is told everything anew (S7)."""
        self.state.said.pop(cluster, None)


def _profiles(accepted: Accepted) -> dict[str, Wanted]:
    """The Profiles of a roll-up, each with the largest unit of its rows."""
    profiles: dict[str, Wanted] = {}
    for need in accepted.rows:
        fingerprint = need.profile.fingerprint
        known = profiles.get(fingerprint)
        unit = need.min_unit if known is None else known.unit.maximum(need.min_unit)
        profiles[fingerprint] = Wanted(need.profile, unit)
    return profiles


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
