"""Which session counts (shard.md §8)."""

import pytest

from bigfleet.engine.cycle import Engine
from bigfleet.engine.options import SECOND
from bigfleet.shard.core.context import Context
from bigfleet.shard.core.effects import Count, Effect, EndSession, EndStatus, LogLevel, WriteLog
from bigfleet.shard.core.events import SessionClosed, SessionOpened
from bigfleet.shard.core.sessions import Sessions, SessionsState
from bigfleet.shard.core.settings import MAX_CLUSTERS, MINUTE, SESSION_GRACE, Settings
from tests.support.rules import rule


class Lab:
    def __init__(self) -> None:
        self.ctx = Context(Settings("shard-0", 1, b"seed", ("default",)), Engine())
        self.sessions = Sessions(self.ctx, SessionsState())
        self.count = 0

    def open(self, cluster: str, peer: str = "10.0.0.1:4000") -> int:
        self.count += 1
        assert self.sessions.opened(SessionOpened(self.count, cluster, peer, "v1"))
        return self.count

    def effects(self) -> list[Effect]:
        effects, self.ctx.effects = self.ctx.effects, []
        return effects


def lifecycle(effects: list[Effect]) -> list[str]:
    return [e.labels[0] for e in effects if isinstance(e, Count)]


def logs(effects: list[Effect], level: LogLevel) -> list[WriteLog]:
    return [e for e in effects if isinstance(e, WriteLog) and e.level is level]


def test_a_session_is_its_clusters_until_it_closes() -> None:
    lab = Lab()
    one = lab.open("a")
    (opened,) = logs(lab.effects(), LogLevel.INFO)
    assert opened == WriteLog(
        LogLevel.INFO, "operator session opened", (("cluster", "a"), ("protocol", "v1"))
    )
    assert (lab.sessions.cluster_of(one), lab.sessions.session_of("a")) == ("a", one)
    assert lab.sessions.lost_since("a") is None

    lab.ctx.now = 7 * SECOND
    assert lab.sessions.closed(SessionClosed(one)) == "a"
    effects = lab.effects()
    assert lifecycle(effects) == ["removed"]
    assert logs(effects, LogLevel.INFO)[0].msg == "operator session closed"
    assert lab.sessions.cluster_of(one) is None and lab.sessions.session_of("a") is None
    assert lab.sessions.lost_since("a") == 7 * SECOND and lab.sessions.active() == 0


def test_a_session_that_ends_in_error_is_logged_as_a_warning() -> None:
    lab = Lab()
    lab.open("a")
    lab.effects()
    lab.sessions.closed(SessionClosed(1, "connection reset"))
    (line,) = logs(lab.effects(), LogLevel.WARN)
    assert line.msg == "operator session recv error"
    assert line.fields == (("cluster", "a"), ("err", "connection reset"))


@rule("shard.S3")
def test_the_newest_session_wins_and_the_cleanup_of_the_old_one_changes_nothing() -> None:
    lab = Lab()
    old = lab.open("a")
    lab.effects()
    new = lab.open("a", "10.0.0.2:4000")
    effects = lab.effects()
    (ended,) = [e for e in effects if isinstance(e, EndSession)]
    assert (ended.session, ended.status) == (old, EndStatus.ABORTED)
    assert lifecycle(effects) == ["replaced", "installed"]
    assert lab.sessions.cluster_of(old) is None, "what the old one still brings is dropped"

    assert lab.sessions.closed(SessionClosed(old)) is None
    assert lab.effects() == []
    assert lab.sessions.session_of("a") == new and lab.sessions.active() == 1
    assert lab.sessions.lost_since("a") is None


@rule("shard.S4")
def test_operators_that_fight_over_a_cluster_are_named_once_a_minute() -> None:
    lab = Lab()
    errors = []
    for turn in range(24):
        lab.ctx.now = turn * 5 * SECOND
        newest = lab.open("a", f"10.0.0.{turn % 2}:1")
        errors.append(len(logs(effects := lab.effects(), LogLevel.ERROR)))
        if errors[-1]:
            fields = dict(logs(effects, LogLevel.ERROR)[0].fields)
            assert {fields["peer"], fields["replaced_peer"]} == {"10.0.0.0:1", "10.0.0.1:1"}
            assert fields["cluster"] == "a"
    assert [turn for turn, logged in enumerate(errors) if logged] == [6, 18]
    assert lab.sessions.session_of("a") == newest


@rule("shard.S4")
def test_five_replacements_a_minute_are_no_fight() -> None:
    lab = Lab()
    for turn in range(40):
        lab.ctx.now = turn * MINUTE // 5
        lab.open("a")
    assert logs(lab.effects(), LogLevel.ERROR) == []


@rule("shard.S10")
def test_the_cluster_beyond_the_limit_is_refused_and_known_ones_are_not() -> None:
    lab = Lab()
    for n in range(MAX_CLUSTERS):
        lab.open(f"c-{n}")
    lab.sessions.closed(SessionClosed(1))
    lab.effects()
    refused = SessionOpened(99_999, "one-more", "10.0.0.1:4000", "v1")
    assert not lab.sessions.opened(refused)
    (ended,) = lab.effects()
    assert isinstance(ended, EndSession) and "another shard" in ended.text
    assert (ended.session, ended.status) == (99_999, EndStatus.RESOURCE_EXHAUSTED)
    assert lab.sessions.cluster_of(99_999) is None and lab.sessions.session_of("one-more") is None
    assert lab.sessions.closed(SessionClosed(99_999)) is None
    lab.open("c-0")
    assert lab.sessions.active() == MAX_CLUSTERS and len(lab.sessions.state.known) == MAX_CLUSTERS


@rule("shard.X9")
@pytest.mark.parametrize(("waited", "found"), [(SESSION_GRACE - 1, set()), (SESSION_GRACE, {"a"})])
def test_a_cluster_is_without_a_session_after_the_grace(waited: int, found: set[str]) -> None:
    lab = Lab()
    first, second = lab.open("a"), lab.open("b")
    lab.open("c")
    lab.sessions.closed(SessionClosed(first))
    lab.ctx.now = SECOND
    lab.sessions.closed(SessionClosed(second))
    lab.ctx.now = waited
    assert lab.sessions.without_session() == found
    lab.open("a")
    assert lab.sessions.without_session() == frozenset()


def test_shutdown_ends_every_session_as_unavailable() -> None:
    lab = Lab()
    for cluster in ("a", "b", "a"):
        lab.open(cluster)
    lab.effects()
    lab.sessions.close_all()
    ended = [(e.session, e.status) for e in lab.effects() if isinstance(e, EndSession)]
    assert ended == [(2, EndStatus.UNAVAILABLE), (3, EndStatus.UNAVAILABLE)]


def test_sessions_go_on_from_their_state() -> None:
    lab = Lab()
    one = lab.open("a")
    restored = Sessions(lab.ctx, lab.sessions.state)
    assert restored.cluster_of(one) == "a" and restored.active() == 1
    assert restored.closed(SessionClosed(one)) == "a"
