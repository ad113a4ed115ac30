import dataclasses
import enum
import math
import pickle
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from fractions import Fraction
from types import MappingProxyType
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from bigfleet.engine.actions import Action, ActionKind, Reason
from bigfleet.engine.cells import Call
from bigfleet.shard.core.effects import Count, Effect
from bigfleet.shard.core.events import CallEnded, Event, Listed, Observed, SessionClosed
from bigfleet.shard.core.settings import Settings
from bigfleet.shard.recording.codec import Codec, DecodeError, EncodeError, schema_digest
from bigfleet.shard.recording.replay import as_json
from bigfleet_base.model import Machine, MachineState, Preemptor, ResourceVector
from bigfleet_base.telemetry.catalogue import shard as series
from tests.support.rules import rule
from tests.unit.shard.recording import values

EVENTS = Codec[Event](Event)
EFFECTS = Codec[Effect](Effect)

CONFIGURED = Machine("m-1", MachineState.CONFIGURED, cluster="a", assigned_interruption_penalty=math.inf)


def assert_survives(codec: Codec[Any], value: Any) -> None:
    """What is read is the same in every detail that ``repr`` shows: order, kinds of numbers, signs of
    zeros."""
    data = codec.encode(value)
    read = codec.decode(data)
    assert read == value
    assert repr(read) == repr(value)
    assert codec.encode(read) == data


@rule("shard.R8")
@given(values.of(Event))
def test_every_event_is_read_as_it_was_written(event: Event) -> None:
    assert_survives(EVENTS, event)


@given(values.of(Effect))
@example(Count(series.RECORDING_ERRORS, (), 1))
def test_every_effect_is_read_as_it_was_written(effect: Effect) -> None:
    assert_survives(EFFECTS, effect)


@rule("shard.R8")
def test_a_named_tuple_is_read_as_it_was_written_and_shown_with_its_names() -> None:
    victim = Preemptor("a", 1000, "f" * 64, "g")
    action = Action(ActionKind.PREEMPT, "m-1", Reason.INVERSION, "b", grace_s=30, preemptor=victim)

    assert_survives(Codec(Action), action)
    assert_survives(Codec(dict[str, Action | None]), {"one": action, "none": None})
    shown = as_json(action)
    assert (shown["type"], shown["kind"], shown["preemptor"]["cluster"]) == ("Action", "PREEMPT", "a")


@given(values.of(Settings))
def test_settings_are_read_as_they_were_written(settings: Settings) -> None:
    assert_survives(Codec(Settings), settings)


@pytest.mark.parametrize(
    ("hint", "value"),
    [
        (float, math.inf),
        (float, -math.inf),
        (float, -0.0),
        (float, 3),
        (ResourceVector, ResourceVector(memory=2**90, cpu=-(2**63), pods=-(2**63) - 1)),
        (Fraction, Fraction(10**40, 3)),
        (dict[str, int], {"b": 1, "a": 2}),
        (dict[tuple[str, str], int], {("b", "x"): 1, ("a", "y"): 2}),
        (dict[tuple[str, ResourceVector | None], int], {("a", None): 1, ("a", ResourceVector(cpu=1)): 2}),
        (dict[MachineState, int], {MachineState.IDLE: 1, MachineState.CREATING: 2}),
        (dict[str, dict[str, tuple[int, float]]], {"a": {"b": (1, 2.0)}}),
        (Call, Call.CREATE | Call.DELETE),
        (Call, Call(0)),
        (tuple[tuple[str, int | str | None], ...], (("a", 1), ("b", None), ("c", "1"))),
        (list[bool], [True, False]),
    ],
    ids=repr,
)
def test_what_is_easily_lost_is_kept(hint: Any, value: Any) -> None:
    assert_survives(Codec(hint), value)


def test_not_a_number_is_kept() -> None:
    codec = Codec[float](float)
    assert math.isnan(codec.decode(codec.encode(math.nan)))


def test_any_mapping_is_written_as_a_map() -> None:
    machine = dataclasses.replace(CONFIGURED, labels=MappingProxyType({"b": "1", "a": "2"}))
    read = EVENTS.decode(EVENTS.encode(CallEnded(1, Observed(machine))))
    assert isinstance(read, CallEnded) and read.observed is not None
    assert list(read.observed.machine.labels.items()) == [("b", "1"), ("a", "2")]


@given(st.lists(st.tuples(values.TEXT, st.none() | values.INTEGERS)))
def test_a_set_is_written_in_one_order_however_it_came_to_be(items: list[tuple[str, int | None]]) -> None:
    codec = Codec[set[tuple[str, int | None]]](set[tuple[str, int | None]])
    data = codec.encode(set(items))
    other: set[tuple[str, int | None]] = set()
    for item in reversed(items):
        other.add(item)
    assert codec.encode(other) == data
    assert codec.decode(data) == set(items)
    assert [tuple(item) for item in msgspec.msgpack.decode(data)] == sorted(
        set(items), key=msgspec.msgpack.encode
    )


@given(st.binary(max_size=60))
@example(pickle.dumps(CONFIGURED))
@example(b"\xdd\xff\xff\xff\xff")
@example(b"\x92\xa6Rollup\xdd\xff\xff\xff\xff")
def test_bytes_from_anywhere_are_read_or_refused_and_nothing_else(data: bytes) -> None:
    for codec in (EVENTS, EFFECTS, Codec[Fraction](Fraction)):
        with suppress(DecodeError):
            codec.decode(data)


@given(values.of(Event), st.data())
def test_a_damaged_event_is_read_or_refused_and_nothing_else(event: Event, data: st.DataObject) -> None:
    written = bytearray(EVENTS.encode(event))
    place = data.draw(st.integers(0, len(written) - 1))
    written[place] = data.draw(st.integers(0, 255))
    with suppress(DecodeError):
        EVENTS.decode(bytes(written))


def test_an_unknown_kind_of_event_is_refused_by_name() -> None:
    with pytest.raises(DecodeError, match="Reboot"):
        EVENTS.decode(msgspec.msgpack.encode(["Reboot"]))


def test_a_profile_that_no_roll_up_could_hold_is_refused() -> None:
    same = ["zone", "Same", []]
    other = ["rack", "Same", []]
    need = ["a", [[same, other], [], 0, 1, 1], {}, {}, "", 0, False, False]
    with pytest.raises(DecodeError, match="at most one Same"):
        EVENTS.decode(msgspec.msgpack.encode(["Rollup", 1, 2, b"", [need], [-1]]))


def test_a_field_too_many_is_refused() -> None:
    with pytest.raises(DecodeError):
        EVENTS.decode(msgspec.msgpack.encode(["Writable", 1, 2, 3]))


@pytest.mark.parametrize(
    "event",
    [
        CallEnded(2**64),
        SessionClosed(1, "\ud800"),
        CallEnded(1, "x"),  # type: ignore[arg-type]  # what is wrong is the point
    ],
)
def test_what_cannot_be_written_is_an_error_of_its_own(event: Event) -> None:
    with pytest.raises(EncodeError):
        EVENTS.encode(event)


@pytest.mark.parametrize("hint", [object, Any, Callable[[], None], complex, set, ResourceVector | Fraction])
def test_a_type_that_cannot_be_recorded_is_refused_before_anything_is_written(hint: Any) -> None:
    with pytest.raises((TypeError, AssertionError)):
        Codec(hint)


class Colour(enum.StrEnum):
    RED = "red"


class MoreColour(enum.StrEnum):
    RED = "red"
    BLUE = "blue"


MoreColour.__name__ = "Colour"


def shaped(fields: list[tuple[str, Any]]) -> str:
    shape = dataclasses.make_dataclass("Shape", fields)
    return schema_digest(Codec[Any](shape).schema)


@rule("shard.R8")
@pytest.mark.parametrize(
    "fields",
    [
        [("b", int), ("c", Colour)],
        [("a", str), ("c", Colour)],
        [("a", int)],
        [("a", int), ("c", Colour), ("d", int)],
        [("a", int), ("c", MoreColour)],
    ],
)
def test_another_shape_has_another_schema(fields: list[tuple[str, Any]]) -> None:
    base = [("a", int), ("c", Colour)]
    assert shaped(base) == shaped(base)
    assert shaped(fields) != shaped(base)


@dataclass(frozen=True, slots=True)
class Inner:
    a: int


@dataclass(frozen=True, slots=True)
class Outer:
    inner: Inner


def test_the_schema_reaches_into_what_a_type_is_made_of() -> None:
    assert Codec[list[Outer]](list[Outer]).schema == "list[Outer(inner: Inner(a: int))]"
    assert "Machine(id: str" in Codec[Listed](Listed).schema
