"""Machine records and the shard's notes in their metadata."""

import contextlib
import math
import random
from typing import Any

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from bigfleet_base.api.v1alpha1 import provider_pb2 as pb
from bigfleet_base.model import (
    CapacityType,
    Defect,
    HostRef,
    InvalidMachineError,
    Machine,
    MachineState,
    Preemptor,
    ResourceVector,
)
from bigfleet_base.model.lifecycle import check
from bigfleet_base.model.penalty import bound_dollars
from bigfleet_base.wire.machines import decode_machine, encode_machine
from bigfleet_base.wire.metadata import (
    decode_notes,
    encode_assignment,
    encode_drain,
    encode_target,
)
from tests.support.rules import rule
from tests.unit.base.wire import messages

BOUND = Machine(
    "m1",
    MachineState.CONFIGURED,
    host=HostRef("aws-eu-west-1", "i-1"),
    cluster="c1",
    instance_type="m6i.large",
    zone="a",
    capacity_type=CapacityType.SPOT,
    resources=ResourceVector({"cpu": 2_000, "memory": 2 * 1024**4 * 1000}),
    allocatable=ResourceVector({"cpu": 1_930, "memory": 2 * 1024**4 * 1000 - 1000}),
    labels={"topology.bigfleet/rack": "r1"},
    price_per_hour=0.1,
    interruption_probability=0.02,
    assigned_priority=-7,
    assigned_interruption_penalty=0.5,
    assigned_reclamation_penalty=math.inf,
    assigned_need_fingerprint="f" * 64,
    assigned_group="rack\x00ns\x00é",
)
ASSIGNMENT = encode_assignment(-7, 0.5, math.inf, "f" * 64, "rack\x00ns\x00é")


def record(**changes: Any) -> pb.Machine:
    good = {"id": "m1", "state": pb.MACHINE_STATE_IDLE, "host": pb.HostRef(provider="p", ref="h")}
    return pb.Machine(**{**good, **changes})


def test_a_bound_machine_survives_the_wire() -> None:
    sent = encode_machine(BOUND, ASSIGNMENT)
    assert dict(sent.shard_metadata) == ASSIGNMENT
    seen = decode_machine(pb.Machine.FromString(sent.SerializeToString()))
    assert seen.machine == BOUND
    assert seen.notes.malformed == ()


def test_offers_are_written_with_suffixes_every_reader_knows() -> None:
    sent = encode_machine(BOUND, {})
    assert dict(sent.resources.resources) == {"cpu": "2", "memory": "2048Gi"}
    assert dict(sent.allocatable.resources) == {"cpu": "1930m", "memory": "2199023255551"}
    huge = encode_machine(Machine("m", MachineState.SPECULATIVE, resources=ResourceVector(cpu=10**18)), {})
    assert dict(huge.resources.resources) == {"cpu": "1000000G"}
    assert not huge.HasField("allocatable") and not huge.HasField("host")


@rule("ruling.R24")
@pytest.mark.parametrize(
    ("changes", "defect"),
    [
        ({"id": ""}, Defect.STRUCTURAL),
        ({"state": 0}, Defect.STRUCTURAL),
        ({"state": 9}, Defect.STRUCTURAL),
        ({"state": -1}, Defect.STRUCTURAL),
        ({"capacity_type": 5}, Defect.STRUCTURAL),
        ({"price_per_hour": -0.5}, Defect.PRICE),
        ({"price_per_hour": math.nan}, Defect.PRICE),
        ({"interruption_probability": 1.5}, Defect.INTERRUPTION_PROBABILITY),
        ({"interruption_probability": math.nan}, Defect.INTERRUPTION_PROBABILITY),
        ({"host": None}, Defect.STRUCTURAL),
        ({"cluster": "c1"}, Defect.STRUCTURAL),
        ({"state": pb.MACHINE_STATE_DRAINING}, Defect.STRUCTURAL),
        ({"state": pb.MACHINE_STATE_SPECULATIVE}, Defect.STRUCTURAL),
        ({"state": pb.MACHINE_STATE_FAILED}, Defect.STRUCTURAL),
    ],
)
def test_a_bad_record_is_refused_with_the_reason_it_is_counted_under(
    changes: dict[str, Any], defect: Defect
) -> None:
    decode_machine(record())
    with pytest.raises(InvalidMachineError) as refusal:
        decode_machine(record(**changes))
    assert refusal.value.defect is defect


def test_a_host_on_a_creating_record_is_tolerated() -> None:
    assert decode_machine(record(state=pb.MACHINE_STATE_CREATING)).machine.state is MachineState.CREATING


def test_an_amount_that_does_not_parse_counts_as_none_of_that_dimension() -> None:
    offer = pb.Resources(resources={"cpu": "4", "memory": "lots", "gpu": "-1"})
    assert decode_machine(record(resources=offer)).machine.alloc == ResourceVector(cpu=4000)


@pytest.mark.parametrize(("amounts", "cpu"), [({}, 4000), ({"cpu": "0"}, 0), ({"cpu": "lots"}, 0)])
def test_only_an_allocatable_that_is_not_given_falls_back_to_the_base_shape(
    amounts: dict[str, str], cpu: int
) -> None:
    # Otherwise a machine of which nothing is usable would count in full, until it had some memory.
    offer, given = pb.Resources(resources={"cpu": "4"}), pb.Resources(resources=amounts)
    assert decode_machine(record(resources=offer, allocatable=given)).machine.alloc["cpu"] == cpu


def test_an_error_text_belongs_to_failed_machines_only() -> None:
    assert decode_machine(record(last_error="old news")).machine.last_error == ""
    failed = record(state=pb.MACHINE_STATE_FAILED, last_error="drain:timeout: 600 s")
    assert decode_machine(failed).machine.last_error == "drain:timeout: 600 s"


def test_notes_a_provider_failed_to_clear_do_not_come_back_to_life() -> None:
    idle = decode_machine(record(shard_metadata={**ASSIGNMENT, **encode_target("c9")})).machine
    assert idle.assigned_priority == 0 and idle.assigned_need_fingerprint == "" and idle.target_cluster == ""


@rule("ruling.R15")
def test_a_machine_in_creation_keeps_what_it_was_bought_for() -> None:
    creating = record(
        state=pb.MACHINE_STATE_CREATING, host=None, shard_metadata={**ASSIGNMENT, **encode_target("c9")}
    )
    machine = decode_machine(creating).machine
    assert (machine.assigned_need_fingerprint, machine.target_cluster) == ("f" * 64, "c9")
    assert machine.assigned_group == "rack\x00ns\x00é"


@rule("ruling.R15")
def test_a_draining_machine_says_whom_it_is_drained_for() -> None:
    preemptor = Preemptor("c2", 1_000_000, "e" * 64, "")
    draining = record(
        state=pb.MACHINE_STATE_DRAINING,
        cluster="c1",
        shard_metadata={**ASSIGNMENT, **encode_drain("ins-1", preemptor)},
    )
    seen = decode_machine(draining)
    assert seen.notes.preemptor == preemptor
    assert seen.notes.instruction_id == "ins-1"
    assert seen.machine.assigned_priority == -7
    assert decode_notes(encode_drain("ins-2", None)).preemptor is None


@pytest.mark.parametrize(
    ("text", "dollars"),
    [("65536", 65536.0), ("8.388608e+06", 8388608.0), ("0.5", 0.5), ("+Inf", math.inf), ("inf", math.inf)],
)
def test_dollars_are_read_in_plain_and_exponent_form(text: str, dollars: float) -> None:
    notes = decode_notes({"bigfleet.lucy.sh/assigned-reclamation-penalty-dollars": text})
    assert notes.assigned_reclamation_penalty == dollars


@pytest.mark.parametrize("bucket", range(28))
def test_every_penalty_round_trips(bucket: int) -> None:
    notes = decode_notes(encode_assignment(0, bound_dollars(bucket), bound_dollars(27 - bucket), "f", ""))
    assert notes.assigned_interruption_penalty == bound_dollars(bucket)
    assert notes.assigned_reclamation_penalty == bound_dollars(27 - bucket)


@pytest.mark.parametrize(
    "text",
    ["", "nan", "NaN", "1_000", " 5", "5 ", "0x10", "five", "1e", "٣", "-1", "-1e-9", "-inf", "-1e999"],
)
def test_a_malformed_value_is_skipped_and_reported_and_the_others_apply(text: str) -> None:
    notes = decode_notes(
        {
            "bigfleet.lucy.sh/assigned-interruption-penalty-dollars": text,
            "bigfleet.lucy.sh/assigned-priority": "12",
            "bigfleet.lucy.sh/something-new": "x",
        }
    )
    assert notes.assigned_interruption_penalty is None
    assert notes.malformed == ("bigfleet.lucy.sh/assigned-interruption-penalty-dollars",)
    assert notes.assigned_priority == 12


@pytest.mark.parametrize("text", ["", "1.0", "2147483648", "-2147483649", "1e3", "9" * 5000])
def test_a_priority_is_a_32_bit_integer(text: str) -> None:
    notes = decode_notes({"bigfleet.lucy.sh/assigned-priority": text})
    assert notes.assigned_priority is None and notes.malformed


@given(messages.machines)
def test_any_record_is_decoded_or_refused(message: pb.Machine) -> None:
    try:
        seen = decode_machine(message)
    except InvalidMachineError:
        return
    check(seen.machine)
    assert decode_machine(encode_machine(seen.machine, dict(message.shard_metadata))) == seen


@given(messages.machines, st.randoms(use_true_random=False), st.integers(1, 6))
def test_mutated_bytes_never_crash_the_decoder(message: pb.Machine, rng: random.Random, flips: int) -> None:
    data = bytearray(message.SerializeToString() + encode_machine(BOUND, ASSIGNMENT).SerializeToString())
    for _ in range(flips):
        data[rng.randrange(len(data))] = rng.randrange(256)
    with contextlib.suppress(DecodeError, InvalidMachineError):
        decode_machine(pb.Machine.FromString(bytes(data)))
