"""Which cluster has which session: one at a time, the newest (shard.md §8, S3, S4, S10)."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from bigfleet.shard.core.context import Context
from bigfleet.shard.core.effects import EndSession, EndStatus, LogLevel
from bigfleet.shard.core.events import SessionClosed, SessionOpened
from bigfleet.shard.core.settings import MAX_CLUSTERS, MINUTE, SESSION_GRACE
from bigfleet_base.telemetry.catalogue import shard as series

CALM_REPLACEMENTS: Final = 5
"""Replacements a minute that one operator's bad network explains; more are two operators with one name."""


@dataclass(slots=True)
class Known:
    """A cluster that has had a session since this process started."""

    session: int | None = None
    peer: str = ""
    replaced: list[int] = field(default_factory=list)
    """When its sessions were replaced: the last minute's, at most ``CALM_REPLACEMENTS`` and one more."""
    warned: int | None = None
    """When its operators were last said to fight."""


@dataclass(slots=True)
class SessionsState:
    known: dict[str, Known] = field(default_factory=dict)
    """At most ``MAX_CLUSTERS``."""
    lost: dict[str, int] = field(default_factory=dict)
    """When known clusters lost their session, the longest ago first."""


class Sessions:
    """The sessions that count. What comes on any other is dropped."""

    def __init__(self, ctx: Context, state: SessionsState) -> None:
        self._ctx = ctx
        self.state = state
        self._clusters = {
            known.session: cluster for cluster, known in state.known.items() if known.session is not None
        }

    def opened(self, event: SessionOpened) -> bool:
        """Install a session, ending the one it replaces; False: refused, and ended."""
        known = self.state.known.get(event.cluster)
        if known is None:
            if len(self.state.known) >= MAX_CLUSTERS:
                self._refuse(event)
                return False
            known = self.state.known[event.cluster] = Known()
        if known.session is not None:
            self._replace(event, known, known.session)
        self.state.lost.pop(event.cluster, None)
        known.session, known.peer = event.session, event.peer
        self._clusters[event.session] = event.cluster
        self._ctx.count(series.SESSION_LIFECYCLE, "installed")
        self._ctx.log(
            LogLevel.INFO, "operator session opened", cluster=event.cluster, protocol=event.protocol
        )
        return True

    def closed(self, event: SessionClosed) -> str | None:
        """The cluster that has just lost its session; None if the session was not its current one."""
        cluster = self._clusters.pop(event.session, None)
        if cluster is None:
            return None
        self.state.known[cluster].session = None
        self.state.lost[cluster] = self._ctx.now
        self._ctx.count(series.SESSION_LIFECYCLE, "removed")
        if event.error:
            self._ctx.log(LogLevel.WARN, "operator session recv error", cluster=cluster, err=event.error)
        else:
            self._ctx.log(LogLevel.INFO, "operator session closed", cluster=cluster)
        return cluster

    def cluster_of(self, session: int) -> str | None:
        """None unless it is its cluster's current session: drop what it brought."""
        return self._clusters.get(session)

    def session_of(self, cluster: str) -> int | None:
        known = self.state.known.get(cluster)
        return None if known is None else known.session

    def lost_since(self, cluster: str) -> int | None:
        """None while it has a session or has never had one."""
        return self.state.lost.get(cluster)

    def without_session(self) -> frozenset[str]:
        """The clusters that have been without one for too long (X9)."""
        found: set[str] = set()
        for cluster, since in self.state.lost.items():
            if self._ctx.now - since < SESSION_GRACE:
                break
            found.add(cluster)
        return frozenset(found)

    def close_all(self) -> None:
        """End every session: the process is about to stop."""
        for session in self._clusters:
            text = "the shard is shutting down; connect again"
            self._ctx.emit(EndSession(session, EndStatus.UNAVAILABLE, text))

    def active(self) -> int:
        return len(self._clusters)

    def peers(self) -> Iterator[tuple[str, str]]:
        """The clusters that have a session, and where it comes from."""
        return ((cluster, self.state.known[cluster].peer) for cluster in self._clusters.values())

    def _refuse(self, event: SessionOpened) -> None:
        text = (
            f"this shard knows {MAX_CLUSTERS} clusters, which is its limit; connect cluster "
            f"{event.cluster!r} to another shard, or restart this one if clusters it knows are gone"
        )
        self._ctx.emit(EndSession(event.session, EndStatus.RESOURCE_EXHAUSTED, text))

    def _replace(self, event: SessionOpened, known: Known, old: int) -> None:
        del self._clusters[old]
        text = f"replaced by a newer session of cluster {event.cluster!r} from {event.peer}"
        self._ctx.emit(EndSession(old, EndStatus.ABORTED, text))
        self._ctx.count(series.SESSION_LIFECYCLE, "replaced")
        now = self._ctx.now
        recent = [at for at in known.replaced if now - at < MINUTE]
        known.replaced = [*recent[-CALM_REPLACEMENTS:], now]
        was_warned = known.warned is not None and now - known.warned < MINUTE
        if len(known.replaced) > CALM_REPLACEMENTS and not was_warned:
            known.warned = now
            self._ctx.log(
                LogLevel.ERROR,
                "operator sessions keep replacing each other; two operators may have one cluster id",
                cluster=event.cluster,
                peer=event.peer,
                replaced_peer=known.peer,
            )
