"""Hints to operators: what each demanded Profile could get now (shard.md §8.3)."""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from bigfleet.engine.options import SECOND
from bigfleet.engine.survey import Available, Wanted, WantedKey
from bigfleet.shard.core.context import Context, Timer
from bigfleet.shard.core.ingest import Ingest
from bigfleet.shard.core.outbox import Outboxes
from bigfleet.shard.core.sessions import Sessions
from bigfleet_base.model import Need
from bigfleet_base.model.frames import AvailableCapacity, Confidence

MAX_COUNT: Final = 2**31 - 1
MOST_TOLD: Final = 250
"""Clusters that are told something in one go; …"""
PAUSE: Final = SECOND // 10
"""… the next come so much later."""

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
    """Tells clusters of changes, each Profile at most once in an interval.

    Thousands of clusters ask for much the same, and little of what they could get changes from cycle to
    cycle. So each thing asked for is looked at once, and only clusters that it changed for are told.
    """

    def __init__(
        self, ctx: Context, sessions: Sessions, ingest: Ingest, outboxes: Outboxes, state: HintsState
    ) -> None:
        self._ctx = ctx
        self._sessions = sessions
        self._ingest = ingest
        self._outboxes = outboxes
        self.state = state
        self._asked: dict[str, Asked] = {}
        """What each connected cluster asks for."""
        self._askers: dict[WantedKey, dict[str, Wanted]] = {}
        """The same by what is asked for."""
        self._values: dict[WantedKey, Value] = {}
        """What was last found."""
        self._due: set[str] = set()
        """Clusters that may have to be told something even if nothing changes."""
        self._waiting: deque[str] = deque()
        """Those whose turn has not come yet."""

    def wanted(self) -> list[Wanted]:
        """What the cycle that starts now has to look at, for the clusters that can be told."""
        accepted = self._ingest.state.accepted
        for cluster in list(self._asked):
            if cluster not in accepted or self._sessions.session_of(cluster) is None:
                self._ask(cluster, Asked((), {}))
                del self._asked[cluster]
        for cluster, rollup in accepted.items():
            if self._sessions.session_of(cluster) is not None:
                known = self._asked.get(cluster)
                if known is None or known.rows is not rollup.rows:
                    self._ask(cluster, _renewed(known, rollup.rows))
        return [next(iter(askers.values())) for askers in self._askers.values()]

    def tell(self, available: Mapping[WantedKey, Available]) -> None:
        """Queue what has changed."""
        found = {key: _value(each) for key, each in available.items()}
        concerned = self._due.union(self._waiting)
        for key, value in found.items():
            if self._values.get(key) != value:
                concerned.update(self._askers[key])
        self._values, self._due = found, set()
        for cluster in [c for c in self.state.said if c not in self._asked]:
            del self.state.said[cluster]
        # Who is told what depends on what was said alone: that is all that a replay knows.
        turns = sorted(concerned & self._asked.keys(), key=self._turn)
        self._waiting = deque(cluster for cluster in turns if self._news(cluster))
        self.tell_more()

    def tell_more(self) -> None:
        """Go on with those who wait, by what the last cycle found."""
        for _ in range(min(MOST_TOLD, len(self._waiting))):
            cluster = self._waiting.popleft()
            for fingerprint, value in self._news(cluster).items():
                self._tell(cluster, fingerprint, value)
        if self._waiting:
            self._ctx.timers.at(self._ctx.now + PAUSE, Timer.HINTS)

    def wait_for_a_cycle(self) -> None:
        """Let nobody be told anything before the next cycle, as after a restart."""
        self._due.update(self._waiting)
        self._waiting.clear()

    def forget(self, cluster: str) -> None:
        """The cluster's session has ended: the next one is told everything anew (S7)."""
        self.state.said.pop(cluster, None)
        self._due.add(cluster)

    def _ask(self, cluster: str, asked: "Asked") -> None:
        """A cluster asks for this from now on."""
        before = self._asked.get(cluster)
        self._asked[cluster] = asked
        if before is not None and before.profiles is asked.profiles:
            return
        self._due.add(cluster)
        for want in () if before is None else before.profiles.values():
            askers = self._askers[want.key]
            del askers[cluster]
            if not askers:
                del self._askers[want.key]
        for want in asked.profiles.values():
            self._askers.setdefault(want.key, {})[cluster] = want

    def _turn(self, cluster: str) -> tuple[int, str]:
        """Whoever has waited longest comes first."""
        said = self.state.said.get(cluster, {})
        return max((known.at for known in said.values()), default=0), cluster

    def _news(self, cluster: str) -> dict[str, Value]:
        """What a cluster may be told now, by fingerprint; what it may not be told yet stays due."""
        if cluster not in self._asked or self._sessions.session_of(cluster) is None:
            # It may be back before the next cycle looks who is there.
            self._due.add(cluster)
            return {}
        interval, now = self._ctx.settings.available_interval_ns, self._ctx.now
        profiles, said = self._asked[cluster].profiles, self.state.said.setdefault(cluster, {})
        for gone in said.keys() - profiles.keys():
            del said[gone]
        news = {}
        for fingerprint, want in profiles.items():
            value, known = self._values.get(want.key), said.get(fingerprint)
            if value is None:
                # The cycle that looks for it is under way.
                self._due.add(cluster)
            elif known is None or (known.value != value and now - known.at >= interval):
                news[fingerprint] = value
            elif known.value != value:
                self._due.add(cluster)
        return news

    def _tell(self, cluster: str, fingerprint: str, value: Value) -> None:
        self.state.said[cluster][fingerprint] = Said(value, self._ctx.now)
        self._outboxes.available(cluster, _frame(self._asked[cluster].profiles[fingerprint], value))


@dataclass(frozen=True, slots=True)
class Asked:
    """What a roll-up asks for."""

    rows: tuple[Need, ...]
    profiles: Mapping[str, Wanted]
    """By fingerprint, each with the largest unit of its rows."""


def _renewed(before: Asked | None, rows: tuple[Need, ...]) -> Asked:
    """What these rows ask for; most roll-ups want more or less of the same."""
    if (
        before is not None
        and len(before.rows) == len(rows)
        and all(
            new is old
            or (new.profile.fingerprint == old.profile.fingerprint and new.min_unit == old.min_unit)
            for new, old in zip(rows, before.rows, strict=True)
        )
    ):
        return Asked(rows, before.profiles)
    profiles: dict[str, Wanted] = {}
    for need in rows:
        fingerprint = need.profile.fingerprint
        known = profiles.get(fingerprint)
        unit = need.min_unit if known is None else known.unit.maximum(need.min_unit)
        profiles[fingerprint] = Wanted(need.profile, unit)
    return Asked(rows, profiles)


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
