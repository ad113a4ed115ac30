import copy
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bigfleet.shard.recording.codec import Codec, DecodeError
from bigfleet.shard.recording.pieces import Path, Pieces
from bigfleet_base.model import Need, Preemptor
from tests.support.rules import rule
from tests.unit.shard.recording import values


@dataclass(slots=True)
class Box:
    """Something of a cluster's that grows."""

    frames: dict[str, Preemptor] = field(default_factory=dict)
    waiting: list[int] = field(default_factory=list)
    credit: int = 0


@dataclass(slots=True)
class State:
    now: int = 0
    boxes: dict[str, Box] = field(default_factory=dict)
    rows: dict[str, list[Need]] = field(default_factory=dict)
    queue: list[Box] = field(default_factory=list)
    names: set[tuple[str, int]] = field(default_factory=set)
    said: dict[str, dict[str, tuple[int, float]]] = field(default_factory=dict)
    inner: Box = field(default_factory=Box)
    last: tuple[str, ...] = ()
    maybe: Preemptor | None = None
    box: Box | None = None


PIECES = Pieces(State)
PIECE = Codec[tuple[Path, bytes]](tuple[Path, bytes])


@rule("shard.R8")
@given(values.of(State), st.sampled_from([1, 2, 5, 20, 4000]))
def test_a_state_comes_back_whole_however_small_the_pieces(state: State, size: int) -> None:
    joined = PIECES.join(PIECES.cut(state, size))
    assert joined == state
    # Sets apart, whose order means nothing, the order of everything is the same too.
    joined.names = state.names = set()
    assert repr(joined) == repr(state)


def busy() -> State:
    box = Box({f"m-{n}": Preemptor("a", n, "f", "") for n in range(1000)}, list(range(500)))
    return State(
        boxes={"small": Box(), "large": box, "after": Box(credit=3)},
        queue=[Box(), box],
        names={("a", n) for n in range(1000)},
        said={"a": {str(n): (n, 0.5) for n in range(1000)}},
        inner=box,
        box=Box(waiting=[1]),
    )


@rule("shard.R8")
def test_no_piece_is_much_larger_than_it_may_be() -> None:
    whole = len(Codec[State](State).encode(busy()))
    pieces = list(PIECES.cut(busy(), 100))
    assert len(pieces) > 50
    assert max(map(len, pieces)) < whole / 20
    assert PIECES.join(pieces) == busy()


def test_a_small_state_is_one_piece() -> None:
    assert len(list(PIECES.cut(State(boxes={"a": Box()}), 100))) == 1


@rule("shard.R8")
def test_a_copy_shows_the_moment_it_was_taken() -> None:
    state = busy()
    taken, before = PIECES.copy(state), copy.deepcopy(state)
    state.now = 7
    state.boxes["large"].frames["m-1"] = Preemptor("z", 0, "", "")
    state.boxes["large"].waiting.clear()
    state.boxes["new"] = Box()
    state.queue[0].credit = 9
    state.queue.append(Box())
    state.names.clear()
    state.said["a"]["0"] = (0, 0.0)
    state.inner.credit = 5
    assert state.box is not None
    state.box.waiting.append(2)
    assert taken == before


def test_a_copy_shares_what_never_changes() -> None:
    state = busy()
    assert PIECES.copy(state).inner.frames["m-1"] is state.inner.frames["m-1"]


@dataclass(slots=True)
class Hidden:
    pairs: dict[str, tuple[str, list[int]]] = field(default_factory=dict)


def test_a_state_that_hides_what_changes_in_a_tuple_is_refused() -> None:
    with pytest.raises(AssertionError, match="nobody copies"):
        Pieces(Hidden).copy(Hidden())


@pytest.mark.parametrize(
    "path", [("nowhere",), ("boxes", None), ("boxes", "credit"), ("now",), ("now", None), ("last",)]
)
def test_a_piece_that_belongs_nowhere_is_refused(path: Path) -> None:
    root = next(PIECES.cut(State(), 100))
    with pytest.raises(DecodeError, match="belongs to"):
        PIECES.join([root, PIECE.encode((path, b"\x90"))])


def test_no_pieces_are_no_state() -> None:
    with pytest.raises(DecodeError):
        PIECES.join([])
