"""Hints follow changes; whoever looked at every cluster each time would say the same."""

import copy
import random
from collections import defaultdict
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from bigfleet.engine.survey import Available, WantedKey
from bigfleet.shard.core import hints as module
from bigfleet.shard.core.context import Timer, Timers
from bigfleet.shard.core.hints import Hints, HintsState, Said
from bigfleet.shard.core.ingest import Accepted
from bigfleet_base.model import Need, Profile, ResourceVector
from bigfleet_base.model.frames import AvailableCapacity
from tests.support.rules import rule

CLUSTERS = ("a", "b", "c", "d")
INTERVAL = 5
UNITS = (ResourceVector(cpu=1000), ResourceVector(cpu=2000))


@dataclass
class World:
    """What Hints see of a shard: who is there, what they want and whom they tell."""

    now: int = 0
    sessions: dict[str, int] = field(default_factory=dict)
    accepted: dict[str, Accepted] = field(default_factory=dict)
    told: list[tuple[str, AvailableCapacity]] = field(default_factory=list)
    timers: Timers = field(default_factory=Timers)

    def __post_init__(self) -> None:
        self.settings = SimpleNamespace(available_interval_ns=INTERVAL)
        self.state = self

    def session_of(self, cluster: str) -> int | None:
        return self.sessions.get(cluster)

    def available(self, cluster: str, frame: AvailableCapacity) -> None:
        self.told.append((cluster, frame))

    def hints(self, state: HintsState | None = None) -> Hints:
        parts = cast("Any", self)
        return Hints(parts, parts, parts, parts, state or HintsState())


class Plain:
    """The rule as it is written: every Profile of everybody, each time."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._asked: dict[str, dict[str, ResourceVector]] = {}
        self._said: defaultdict[str, dict[str, Said]] = defaultdict(dict)
        self.told: list[tuple[str, str, int]] = []

    def wanted(self) -> None:
        world = self._world
        self._asked = {c: _units(a.rows) for c, a in world.accepted.items() if c in world.sessions}

    def tell(self, counts: dict[WantedKey, int]) -> None:
        now = self._world.now
        for cluster, profiles in self._asked.items():
            if cluster not in self._world.sessions:
                continue
            said = self._said[cluster]
            self._said[cluster] = said = {f: known for f, known in said.items() if f in profiles}
            for fingerprint, unit in profiles.items():
                count, known = counts[fingerprint, unit], said.get(fingerprint)
                if known is None or (known.value[0] != count and now - known.at >= INTERVAL):
                    said[fingerprint] = Said((count, cast("Any", None), 0.0), now)
                    self.told.append((cluster, fingerprint, count))

    def forget(self, cluster: str) -> None:
        self._said.pop(cluster, None)


def _units(rows: tuple[Need, ...]) -> dict[str, ResourceVector]:
    units: dict[str, ResourceVector] = {}
    for row in rows:
        known = units.get(row.profile.fingerprint, row.min_unit)
        units[row.profile.fingerprint] = known.maximum(row.min_unit)
    return units


def _demand(rng: random.Random, cluster: str, before: tuple[Need, ...]) -> tuple[Need, ...]:
    if before and rng.random() < 0.5:
        # The same things, more or less of them.
        return tuple(row if rng.random() < 0.7 else _need(rng, cluster, row) for row in before)
    return tuple(_need(rng, cluster) for _ in range(rng.randrange(4)))


def _need(rng: random.Random, cluster: str, like: Need | None = None) -> Need:
    amount = ResourceVector(cpu=rng.randrange(1, 9) * 1000)
    if like is not None:
        return Need(cluster, like.profile, amount, like.min_unit)
    return Need(cluster, Profile(priority=rng.randrange(3)), amount, rng.choice(UNITS))


@rule("shard.S7")
@pytest.mark.parametrize("seed", range(40))
def test_whoever_looks_at_everything_says_the_same(seed: int) -> None:
    rng = random.Random(seed)
    world = World()
    hints, plain = world.hints(), Plain(world)
    counts: defaultdict[WantedKey, int] = defaultdict(int)

    def happen() -> None:
        cluster = rng.choice(CLUSTERS)
        match rng.randrange(4):
            case 0:
                if world.sessions.pop(cluster, None) is not None:
                    hints.forget(cluster)
                    plain.forget(cluster)
            case 1:
                world.sessions[cluster] = 1
            case 2:
                before = world.accepted.get(cluster, Accepted(b"", ())).rows
                world.accepted[cluster] = Accepted(b"", _demand(rng, cluster, before))
            case 3:
                counts[f"{Profile(priority=rng.randrange(3)).fingerprint}", rng.choice(UNITS)] += 1

    for _ in range(200):
        for _ in range(rng.randrange(4)):
            happen()
        wanted = hints.wanted()
        plain.wanted()
        assert len(wanted) == len({want.key for want in wanted})
        found = {want.key: Available(counts[want.key], 0, 0.0, displaceable=False) for want in wanted}
        seen = dict(counts)
        for _ in range(rng.randrange(3)):
            happen()
        world.now += rng.randrange(4)
        hints.tell(found)
        plain.tell(defaultdict(int, seen))
        told = [(cluster, frame.fingerprint, frame.count) for cluster, frame in world.told]
        assert sorted(told) == sorted(plain.told)
        world.told.clear()
        plain.told.clear()
        world.now += rng.randrange(4)


@rule("shard.R8")
@pytest.mark.parametrize("seed", range(40))
def test_one_that_knows_only_what_was_said_goes_on_the_same(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MOST_TOLD", 1 + seed % 3)
    rng = random.Random(seed)
    world = World()
    hints = world.hints()
    for _ in range(100):
        for cluster in CLUSTERS:
            if rng.random() < 0.2 and world.sessions.pop(cluster, None) is not None:
                hints.forget(cluster)
            elif rng.random() < 0.5:
                world.sessions[cluster] = 1
            if rng.random() < 0.3:
                before = world.accepted.get(cluster, Accepted(b"", ())).rows
                world.accepted[cluster] = Accepted(b"", _demand(rng, cluster, before))
        world.now += rng.randrange(4)
        if rng.random() < 0.5:
            hints.wait_for_a_cycle()
        world.timers = Timers()
        other = replace(world, told=[], timers=Timers())
        restored = other.hints(copy.deepcopy(hints.state))
        found = {want.key: Available(rng.randrange(2), 0, 0.0, displaceable=False) for want in hints.wanted()}
        assert {want.key for want in restored.wanted()} == found.keys()
        world.told.clear()
        hints.tell(found)
        restored.tell(found)
        for _ in range(rng.randrange(3)):
            world.now = other.now = world.now + 1
            hints.tell_more()
            restored.tell_more()
        assert (world.told, world.timers) == (other.told, other.timers)
        assert hints.state == restored.state


def test_where_many_are_to_be_told_some_wait_a_moment_and_nobody_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "MOST_TOLD", 1)
    world = World()
    rng = random.Random(1)
    for cluster in "abc":
        world.sessions[cluster] = 1
        world.accepted[cluster] = Accepted(b"", (_need(rng, cluster),))
    hints = world.hints()

    def told() -> tuple[list[str], bool]:
        clusters, due = [cluster for cluster, _ in world.told], world.timers.due(world.now + module.PAUSE)
        world.told.clear()
        return clusters, due == (Timer.HINTS, "")

    def cycle(count: int) -> tuple[list[str], bool]:
        world.now += INTERVAL
        hints.tell({want.key: Available(count, 0, 0.0, displaceable=False) for want in hints.wanted()})
        return told()

    def more() -> tuple[list[str], bool]:
        hints.tell_more()
        return told()

    # As long as some wait a time is asked for, and in a world that never rests everybody has a turn.
    assert [cycle(1), more(), more(), more()] == [(["a"], True), (["b"], True), (["c"], False), ([], False)]
    assert [cycle(n)[0] for n in range(2, 8)] == [["a"], ["b"], ["c"], ["a"], ["b"], ["c"]]

    # A cycle may have begun since, in which somebody asks for something else, or is gone.
    world.accepted["a"] = Accepted(b"", (_need(rng, "a"), Need("a", Profile(priority=9), UNITS[0], UNITS[0])))
    del world.sessions["b"], world.accepted["c"]
    hints.wanted()
    world.now += INTERVAL
    for _ in "abc":
        more()
    assert set(cycle(9)[0]) == {"a"}
