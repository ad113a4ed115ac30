"""Records validated one by one, fast, and exactly as the contract's decoder would."""

import math
import random
from typing import Any

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from bigfleet_base.api.v1alpha1 import provider_pb2 as pb
from bigfleet_base.model import HostRef, InvalidMachineError
from bigfleet_base.wire import (
    ObservedMachine,
    RecordDecoder,
    Rejected,
    canonical_record,
    decode_machine,
    peek_id,
)
from bigfleet_base.wire import records as module
from bigfleet_base.wire.metadata import encode_assignment
from tests.support.rules import rule
from tests.unit.base.wire import messages
from tests.unit.base.wire.provider_records import idle, record

FIELDS: list[Any] = [field.name for field in pb.Machine.DESCRIPTOR.fields]
BAD: list[tuple[dict[str, Any], str]] = [
    ({"id": ""}, "structural"),
    ({"state": 0}, "structural"),
    ({"state": 99}, "structural"),
    ({"capacity_type": 9}, "structural"),
    ({"host": None}, "structural"),
    ({"cluster": ""}, "structural"),
    ({"state": pb.MACHINE_STATE_FAILED}, "structural"),
    ({"price_per_hour": -1.0}, "price"),
    ({"price_per_hour": math.nan}, "price"),
    ({"price_per_hour": math.inf}, "price"),
    ({"interruption_probability": 1.01}, "interruption_probability"),
    ({"interruption_probability": math.nan}, "interruption_probability"),
]


@rule("provider.P-133", "shard.Q3")
@pytest.mark.parametrize("warm", [False, True])
@pytest.mark.parametrize(("changes", "reason"), BAD)
def test_a_bad_record_is_refused_with_its_reason_and_its_id(
    changes: dict[str, Any], reason: str, warm: bool
) -> None:
    decoder = RecordDecoder()
    if warm:
        assert isinstance(decoder.decode(record(2).SerializeToString()), ObservedMachine)
    bad = record(1, **changes)
    for _ in range(2):
        seen = decoder.decode(bad.SerializeToString())
        assert isinstance(seen, Rejected)
        assert (seen.machine_id, seen.reason) == (bad.id, reason)


@rule("provider.P-133")
def test_bytes_that_are_no_record_are_undecodable_and_may_still_tell_their_id() -> None:
    seen = RecordDecoder().decode(record(7).SerializeToString() + b"\x0a\xff")
    assert isinstance(seen, Rejected) and (seen.machine_id, seen.reason) == ("m-7", "undecodable")
    seen = RecordDecoder().decode(b"\xff\xff")
    assert isinstance(seen, Rejected) and (seen.machine_id, seen.reason) == ("", "undecodable")


@given(st.lists(messages.machines, max_size=6), st.randoms(use_true_random=False))
def test_a_decoder_that_remembers_says_what_one_that_does_not_would(
    machines: list[pb.Machine], rng: random.Random
) -> None:
    decoder = RecordDecoder()
    pool = [*machines, *(record(n) for n in range(3)), *(idle(n) for n in range(3))]
    for _ in range(20):
        # Machines that share some of what they are, whichever way it was written.
        mixed, other = pb.Machine(), rng.choice(pool)
        mixed.CopyFrom(rng.choice(pool))
        for name in rng.sample(FIELDS, rng.randrange(4)):
            mixed.ClearField(name)
            donor = pb.Machine(**{name: getattr(other, name)})
            mixed.MergeFrom(donor)
        data = mixed.SerializeToString()
        if rng.random() < 0.3:
            data = other.SerializeToString() + data
        try:
            expected: ObservedMachine | None = decode_machine(pb.Machine.FromString(data))
        except (InvalidMachineError, DecodeError):
            expected = None
        seen = decoder.decode(data)
        if expected is None or math.isinf(expected.machine.price_per_hour):
            assert isinstance(seen, Rejected)
        else:
            assert seen == expected


@pytest.mark.parametrize(
    "own",
    [
        {"id": ""},
        {"host": None},
        {"host": pb.HostRef()},
        {"cluster": ""},
        {"state": pb.MACHINE_STATE_FAILED, "last_error": ""},
        {"state": pb.MACHINE_STATE_IDLE},
        {"state": pb.MACHINE_STATE_SPECULATIVE, "cluster": ""},
    ],
)
def test_a_known_shape_and_binding_excuse_nothing_of_a_machines_own(own: dict[str, Any]) -> None:
    decoder = RecordDecoder()
    failed = record(1, state=pb.MACHINE_STATE_FAILED, last_error="x")
    for good in (record(1), failed, idle(1), record(1, host=pb.HostRef(ref="r"))):
        assert isinstance(decoder.decode(good.SerializeToString()), ObservedMachine)
    assert isinstance(decoder.decode(record(1, **own).SerializeToString()), Rejected)


def test_machines_alike_in_two_places_stay_there() -> None:
    decoder = RecordDecoder()
    for host in (pb.HostRef(provider="east", ref="r"), pb.HostRef(provider="west", ref="r")):
        seen = decoder.decode(record(1, host=host).SerializeToString())
        assert isinstance(seen, ObservedMachine) and seen.machine.host == HostRef(host.provider, host.ref)


def test_the_failures_of_two_machines_are_their_own() -> None:
    decoder = RecordDecoder()
    for text in ("create:timeout: a", "create:timeout: b"):
        seen = decoder.decode(record(1, state=pb.MACHINE_STATE_FAILED, last_error=text).SerializeToString())
        assert isinstance(seen, ObservedMachine) and seen.machine.last_error == text


def test_what_machines_have_in_common_is_one_object() -> None:
    decoder = RecordDecoder()
    one, other = (decoder.decode(record(n).SerializeToString()) for n in (3, 6))
    assert isinstance(one, ObservedMachine) and isinstance(other, ObservedMachine)
    for name in ("labels", "resources", "allocatable", "zone", "cluster", "assigned_need_fingerprint"):
        assert getattr(one.machine, name) is getattr(other.machine, name)
    assert one.notes is other.notes and one.machine.host.provider is other.machine.host.provider
    assert (one.machine.id, other.machine.id) == ("m-3", "m-6")
    assert one.machine.host.ref != other.machine.host.ref


def test_shapes_and_bindings_are_remembered_apart() -> None:
    decoder = RecordDecoder()
    for n in range(100):
        bound = {"cluster": f"c{n // 10}", "shard_metadata": encode_assignment(n // 10, 8.0, 0.5, "f", "")}
        decoder.decode(record(3, labels={"rack": f"r{n % 10}"}, **bound).SerializeToString())
    assert len(decoder._shapes) == len(decoder._bindings) == 10


def test_the_memory_of_a_decoder_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_SHARED", 10)
    decoder = RecordDecoder()
    for n in range(100):
        seen = decoder.decode(record(n, labels={"rack": f"r{n}"}, cluster=f"c{n}").SerializeToString())
        assert isinstance(seen, ObservedMachine) and seen.machine.labels == {"rack": f"r{n}"}
        assert len(decoder._shapes) == len(decoder._bindings) == n % 10 + 1


def test_ten_megabytes_of_metadata_are_read_and_not_kept() -> None:
    decoder = RecordDecoder()
    huge = record(1, shard_metadata={**record(1).shard_metadata, "foreign": "x" * 10_000_000})
    seen = decoder.decode(huge.SerializeToString())
    assert isinstance(seen, ObservedMachine) and seen.machine.assigned_priority == 1000
    assert not decoder._shapes and not decoder._bindings


@given(messages.machines)
def test_a_peeked_id_is_the_id(machine: pb.Machine) -> None:
    raw = machine.SerializeToString()
    assert peek_id(raw) == machine.id
    machine.ClearField("id")
    assert peek_id(machine.SerializeToString() + pb.Machine(id="late").SerializeToString()) == "late"


def test_a_long_id_is_peeked_and_a_broken_one_is_none() -> None:
    assert peek_id(pb.Machine(id="m" * 300).SerializeToString()) == "m" * 300
    whole = pb.Machine(id="m-12").SerializeToString()
    assert peek_id(whole) == "m-12"
    for broken in (b"", whole[:1], whole[:-1], b"\x0a\x01\xff", b"\xff"):
        assert peek_id(broken) == "", "half an id would name another machine"


def test_two_orders_of_a_map_have_one_canonical_form() -> None:
    one = pb.Machine(id="m", labels={"a": "1"}).SerializeToString()
    two = pb.Machine(labels={"b": "2"}).SerializeToString()
    assert one + two != two + one and canonical_record(one + two) == canonical_record(two + one)
    assert canonical_record(b"\xff") is None
