"""Places in the queue are shared between providers and clusters (shard.md E1, E4; provider.md P-139)."""

from collections import Counter
from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

from bigfleet.engine.actions import Action, ActionKind
from bigfleet.shard.core.shares import Lane, fair_share
from tests.support.rules import rule
from tests.unit.shard.core.execute_world import bootstrap, delete, provision, reclaim

lanes = st.tuples(st.sampled_from("ab"), st.sampled_from(("c1", "c2", "c3")))
kinds = st.sampled_from((bootstrap, provision, reclaim))


def shared(wanted: list[tuple[Action, Lane]], places: int, taken: list[Lane]) -> list[Action]:
    lane_of = {action.machine_id: lane for action, lane in wanted}
    return fair_share([action for action, _ in wanted], places, lambda a: lane_of[a.machine_id], taken)


def of(provider: str, cluster: str, count: int, first: int = 0) -> list[tuple[Action, Lane]]:
    numbers = range(first, first + count)
    return [(bootstrap(f"{provider}-{cluster}-{n:03}", cluster), (provider, cluster)) for n in numbers]


@rule("provider.P-139", "shard.E4")
def test_a_provider_that_finishes_nothing_takes_its_own_places_only() -> None:
    wanted = of("a", "c1", 300) + of("b", "c2", 3)
    assert len(shared(wanted, 256, [])) == 256
    assert shared(wanted, 256, [])[-3:] == [action for action, _ in wanted[-3:]]
    held = [("a", "c1")] * 200
    assert [a.machine_id for a in shared(wanted, 4, held)] == [
        "a-c1-000",
        "b-c2-000",
        "b-c2-001",
        "b-c2-002",
    ]


@rule("shard.E1")
def test_a_cluster_with_the_fewest_places_comes_first_and_its_actions_in_their_order() -> None:
    wanted = of("a", "c1", 5) + of("a", "c2", 5) + of("a", "c3", 1)
    taken = [("a", "c1")] * 2
    got = [a.machine_id for a in shared(wanted, 5, taken)]
    assert got == ["a-c1-000", "a-c2-000", "a-c2-001", "a-c2-002", "a-c3-000"]


@rule("shard.E4")
def test_the_kinds_take_turns_as_they_do_at_the_limit() -> None:
    actions = [
        *(bootstrap(f"b{n}") for n in range(4)),
        *(reclaim(f"r{n}") for n in range(4)),
        delete("d0"),
    ]
    wanted: list[tuple[Action, Lane]] = [(action, ("a", action.cluster)) for action in actions]
    assert [a.machine_id for a in shared(wanted, 4, [])] == ["b0", "b1", "r0", "d0"]
    assert [a.machine_id for a in shared(wanted, 0, [])] == []


@given(
    st.lists(st.tuples(kinds, lanes), max_size=30),
    st.integers(min_value=0, max_value=40),
    st.lists(lanes, max_size=12),
)
def test_no_place_is_wasted_and_nobody_with_more_takes_it_from_one_with_less(
    drawn: list[tuple[Callable[[str, str], Action], Lane]], places: int, taken: list[Lane]
) -> None:
    wanted = [(kind(f"m{n:02}", lane[1]), lane) for n, (kind, lane) in enumerate(drawn)]
    got = shared(wanted, places, taken)
    assert len(got) == min(places, len(wanted))
    ids = {action.machine_id for action in got}
    assert got == [action for action, _ in wanted if action.machine_id in ids]
    # Of one kind and lane those that come first; of one kind and provider the lanes are level.
    for kind in ActionKind:
        chosen: Counter[Lane] = Counter()
        left: Counter[Lane] = Counter()
        for action, lane in wanted:
            if action.kind is kind:
                assert action.machine_id not in ids or not left[lane]
                (chosen if action.machine_id in ids else left)[lane] += 1
        for lane, count in chosen.items():
            for other in left:
                if other[0] == lane[0]:
                    assert taken.count(lane) + count <= taken.count(other) + chosen[other] + 1
