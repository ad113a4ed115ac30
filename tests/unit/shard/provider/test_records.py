"""Records validated one by one, fast, and exactly as the contract's decoder would."""

import math
import random
from typing import Any

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from bigfleet.shard.provider import records as module
from bigfleet.shard.provider.records import RecordDecoder, Rejected, canonical, peek_id
from bigfleet_base.api.v1alpha1 import provider_pb2 as pb
from bigfleet_base.model import InvalidMachineError
from bigfleet_base.wire import ObservedMachine, decode_machine
from tests.support.rules import rule
from tests.unit.base.wire import messages
from tests.unit.shard.provider.records import idle, record

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
        raw = rng.choice(pool)
        # Two machines of one kind: everything that makes a machine itself is exchanged.
        raw = pb.Machine.FromString(raw.SerializeToString())
        other = rng.choice(pool)
        for name in rng.sample(["id", "cluster", "last_error", "state"], rng.randrange(4)):
            setattr(raw, name, getattr(other, name))
        if rng.random() < 0.3:
            raw.host.CopyFrom(other.host)
        data = raw.SerializeToString()
        try:
            expected: ObservedMachine | None = decode_machine(raw)
        except (InvalidMachineError, DecodeError):
            expected = None
        seen = decoder.decode(data)
        if expected is None or math.isinf(expected.machine.price_per_hour):
            assert isinstance(seen, Rejected)
        else:
            assert seen == expected


def test_what_machines_have_in_common_is_decoded_once() -> None:
    decoder = RecordDecoder()
    one, other = (decoder.decode(record(n).SerializeToString()) for n in (3, 6))
    assert isinstance(one, ObservedMachine) and isinstance(other, ObservedMachine)
    assert one.machine.labels is other.machine.labels and one.notes is other.notes
    assert (one.machine.id, other.machine.id) == ("m-3", "m-6")
    assert one.machine.host != other.machine.host


def test_the_memory_of_a_decoder_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_TEMPLATES", 10)
    decoder = RecordDecoder()
    for n in range(100):
        seen = decoder.decode(record(n, labels={"rack": f"r{n}"}).SerializeToString())
        assert isinstance(seen, ObservedMachine) and seen.machine.labels == {"rack": f"r{n}"}
    assert len(decoder._templates) == 10


def test_ten_megabytes_of_metadata_are_read_and_not_kept() -> None:
    decoder = RecordDecoder()
    huge = record(1, shard_metadata={**record(1).shard_metadata, "foreign": "x" * 10_000_000})
    seen = decoder.decode(huge.SerializeToString())
    assert isinstance(seen, ObservedMachine) and seen.machine.assigned_priority == 1000
    assert not decoder._templates


@given(messages.machines)
def test_a_peeked_id_is_the_id_or_nothing(machine: pb.Machine) -> None:
    raw = machine.SerializeToString()
    assert peek_id(raw) in ("", machine.id)
    assert peek_id(raw[:1]) == peek_id(b"") == ""


def test_two_orders_of_a_map_have_one_canonical_form() -> None:
    one = pb.Machine(id="m", labels={"a": "1"}).SerializeToString()
    two = pb.Machine(labels={"b": "2"}).SerializeToString()
    assert one + two != two + one and canonical(one + two) == canonical(two + one)
