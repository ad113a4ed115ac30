"""The client in front of a provider over real gRPC: tokens, retries, breaker, validation, metrics."""

import asyncio
import math
import random
from collections import defaultdict
from collections.abc import AsyncIterator
from typing import Any

import pytest
from grpc import StatusCode

from bigfleet.shard.provider import CallFailedError, FailureKind
from bigfleet.shard.provider import retry as retry_module
from bigfleet.shard.provider.listing import RECORDS_PER_SLICE, ListSlice
from bigfleet.shard.provider.report import MAX_LOGGED
from bigfleet.shard.provider.retry import SECOND
from bigfleet_base.api.ext.v1alpha1 import providerinfo_pb2 as info_pb
from bigfleet_base.api.v1alpha1 import provider_pb2 as pb
from bigfleet_base.model import CapacityType, MachineState
from tests.support.eventually import eventually
from tests.support.rules import rule
from tests.unit.base.wire.provider_records import ASSIGNMENT, idle, message, record
from tests.unit.shard.provider.scripted import (
    SILENT,
    Bench,
    ScriptedProvider,
    ack,
    bench,
    scripted_provider,
)

CREATING = pb.Machine(id="m-1", state=pb.MACHINE_STATE_CREATING)
CONFIGURING = record(1, state=pb.MACHINE_STATE_CONFIGURING)
DRAINING = record(1, state=pb.MACHINE_STATE_DRAINING)
DELETING = idle(1, state=pb.MACHINE_STATE_DELETING)


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retry_module, "FIRST_PAUSE", SECOND // 100)


@pytest.fixture
async def provider() -> AsyncIterator[ScriptedProvider]:
    async with scripted_provider() as running:
        yield running


@pytest.fixture
async def shard(provider: ScriptedProvider) -> AsyncIterator[Bench]:
    async with bench(provider.address) as running:
        yield running


async def failure(call: Any) -> CallFailedError:
    with pytest.raises(CallFailedError) as caught:
        await call
    return caught.value


async def call_each(shard: Bench) -> dict[str, Any]:
    client = shard.client
    return {
        "Create": await client.create("m-1", {"k": "v"}),
        "Configure": await client.configure("m-1", "c1", b"blob", {"k": "v"}),
        "Drain": await client.drain("m-1", 600, {"k": "v"}),
        "Delete": await client.delete("m-1", CapacityType.SPOT),
    }


def accept_all(provider: ScriptedProvider) -> None:
    for rpc, machine in zip(
        ("Create", "Configure", "Drain", "Delete"), (CREATING, CONFIGURING, DRAINING, DELETING), strict=True
    ):
        provider.answer(rpc, ack(machine, f"op-{rpc}"))


@rule("provider.P-130", "shard.F2", "ruling.R15")
async def test_each_mutation_carries_its_arguments_and_a_token(
    provider: ScriptedProvider, shard: Bench
) -> None:
    accept_all(provider)
    acks = await call_each(shard)
    assert {rpc: given.operation_id for rpc, given in acks.items()} == {rpc: f"op-{rpc}" for rpc in acks}
    assert acks["Drain"].observed.machine.state is MachineState.DRAINING
    token: dict[str, Any] = {"shard_id": "shard-0", "shard_epoch": 3}
    assert [request for _, request in provider.calls] == [
        pb.CreateRequest(machine_id="m-1", **token, sequence_number=1, shard_metadata={"k": "v"}),
        pb.ConfigureRequest(
            machine_id="m-1",
            cluster_id="c1",
            bootstrap_blob=b"blob",
            **token,
            sequence_number=2,
            shard_metadata={"k": "v"},
        ),
        pb.DrainRequest(
            machine_id="m-1",
            grace_period_seconds=600,
            **token,
            sequence_number=3,
            shard_metadata={"k": "v"},
        ),
        pb.DeleteRequest(machine_id="m-1", **token, sequence_number=4),
    ]


@rule("provider.P-130", "provider.P-132", "shard.F2")
async def test_a_retry_has_a_new_sequence_and_gets_the_same_operation(
    provider: ScriptedProvider, shard: Bench
) -> None:
    provider.answer("Create", StatusCode.UNAVAILABLE, StatusCode.UNAVAILABLE, ack(CREATING, "op-7"))
    given = await shard.client.create("m-1", {})
    assert given.operation_id == "op-7"
    assert [request.sequence_number for request in provider.sent("Create")] == [1, 2, 3]


@rule("provider.P-132", "shard.X4")
@pytest.mark.parametrize("code", [code for code in StatusCode if code is not StatusCode.OK])
async def test_transient_codes_get_three_attempts_and_every_other_is_returned_at_once(
    provider: ScriptedProvider, shard: Bench, code: StatusCode
) -> None:
    provider.answer("Configure", code)
    failed = await failure(shard.client.configure("m-1", "c1", b"", {}))
    transient = failed.kind is FailureKind.TRANSIENT
    assert len(provider.sent("Configure")) == (3 if transient else 1)
    assert (failed.code, failed.details) == (code.name, f"scripted {code.name}")
    assert failed.sequence == failed.attempt == (3 if transient else 1)


@rule("shard.R3", "shard.F4")
async def test_a_halted_shard_sends_no_mutation_again(provider: ScriptedProvider) -> None:
    is_halted = False

    def refused(_: Any) -> StatusCode:
        nonlocal is_halted
        is_halted = True
        return StatusCode.UNAVAILABLE

    async with bench(provider.address, is_halted=lambda: is_halted) as shard:
        provider.answer("Drain", refused)
        failed = await failure(shard.client.drain("m-1", 600, {}))
        assert failed.kind is FailureKind.TRANSIENT and failed.attempt == 1, "what the first did is not known"
        assert len(provider.sent("Drain")) == 1
        provider.answer("Get", StatusCode.UNAVAILABLE, idle(1).SerializeToString())
        seen = await shard.client.get("m-1")
        assert seen.machine.state is MachineState.IDLE, "reads go on"


@rule("shard.X5")
async def test_a_call_ends_with_its_budget(provider: ScriptedProvider, shard: Bench) -> None:
    async def never(_: Any) -> bytes:
        await asyncio.sleep(60)
        return b""

    provider.answer("Configure", never)
    loop = asyncio.get_running_loop()
    begun = loop.time()
    failed = await failure(shard.client.configure("m-1", "c1", b"", {}, budget=SECOND // 5))
    assert failed.code == "DEADLINE_EXCEEDED" and failed.kind is FailureKind.TRANSIENT
    assert loop.time() - begun < 5 and len(provider.sent("Configure")) == 1


@rule("provider.P-143", "shard.F3")
async def test_a_fenced_call_is_final_typed_and_counted(provider: ScriptedProvider, shard: Bench) -> None:
    provider.answer("Drain", StatusCode.FAILED_PRECONDITION)
    failed = await failure(shard.client.drain("m-1", 0, {}))
    assert failed.kind is FailureKind.FENCED and len(provider.sent("Drain")) == 1
    assert shard.value('bigfleet_shard_provider_fenced_total{provider="p"}') == 1


@rule("shard.F3", "shard.F4")
async def test_a_status_is_heard_however_much_is_said_with_it(
    provider: ScriptedProvider, shard: Bench
) -> None:
    provider.says = "trace " * 20_000
    provider.answer("Drain", StatusCode.FAILED_PRECONDITION)
    failed = await failure(shard.client.drain("m-1", 0, {}))
    assert failed.kind is FailureKind.FENCED and len(provider.sent("Drain")) == 1


@rule("shard.F6")
async def test_the_floor_is_raised_by_a_drain_of_a_machine_that_nobody_has(
    provider: ScriptedProvider, shard: Bench
) -> None:
    provider.answer("Drain", StatusCode.NOT_FOUND)
    await shard.client.raise_floor()
    (request,) = provider.sent("Drain")
    assert request == pb.DrainRequest(
        machine_id="bigfleet-fence-shard-0", shard_id="shard-0", shard_epoch=3, sequence_number=1
    )
    for harmless in (StatusCode.ABORTED, StatusCode.INTERNAL, ack(None)):
        provider.answer("Drain", harmless)
        await shard.client.raise_floor()
    for code, kind in (
        (StatusCode.FAILED_PRECONDITION, FailureKind.FENCED),
        (StatusCode.UNAVAILABLE, FailureKind.TRANSIENT),
    ):
        provider.answer("Drain", code)
        assert (await failure(shard.client.raise_floor())).kind is kind


@rule("shard.X4")
@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (ack(None), "structural"),
        (ack(record(2, state=pb.MACHINE_STATE_CONFIGURING)), "structural"),
        (ack(record(1, state=pb.MACHINE_STATE_CONFIGURING, cluster="other")), "structural"),
        (ack(record(1, state=pb.MACHINE_STATE_CONFIGURING, price_per_hour=-1.0)), "price"),
        (ack(record(1, state=99)), "structural"),
        (b"\xff\xff", "undecodable"),
    ],
)
async def test_an_ack_that_is_not_about_this_machine_and_cluster_is_refused_and_counted(
    provider: ScriptedProvider, shard: Bench, answer: bytes, reason: str
) -> None:
    provider.answer("Configure", answer)
    failed = await failure(shard.client.configure("m-1", "c1", b"", {}))
    assert failed.kind is FailureKind.BAD_ANSWER and len(provider.sent("Configure")) == 1
    assert shard.value(f'bigfleet_shard_machines_rejected_total{{reason="{reason}"}}') == 1
    assert shard.value('bigfleet_shard_provider_rejected_total{provider="p"}') == 1
    assert len(shard.log("provider machine rejected at ingest")) == 1


@rule("shard.X4", "shard.Q3")
async def test_an_ok_without_a_message_is_a_bad_answer(provider: ScriptedProvider, shard: Bench) -> None:
    for rpc in ("Create", "Get", "List", "Drain", "Describe"):
        provider.answer(rpc, SILENT)
    client = shard.client
    for call in (client.create("m-1", {}), client.get("m-1")):
        failed = await failure(call)
        assert failed.kind is FailureKind.BAD_ANSWER and "no message" in failed.details
    assert shard.value('bigfleet_shard_machines_rejected_total{reason="undecodable"}') == 2
    assert (await failure(shard.news())).kind is FailureKind.BAD_ANSWER
    await client.raise_floor()
    assert (await client.describe()).delete is None


async def test_an_ack_whose_record_is_failed_is_the_providers_word(
    provider: ScriptedProvider, shard: Bench
) -> None:
    provider.answer(
        "Configure", ack(record(1, state=pb.MACHINE_STATE_FAILED, last_error="configure:timeout: x"))
    )
    given = await shard.client.configure("m-1", "c1", b"", {})
    assert given.observed.machine.state is MachineState.FAILED


async def test_get_reads_one_machine_and_refuses_another(provider: ScriptedProvider, shard: Bench) -> None:
    provider.answer("Get", record(1).SerializeToString(), record(2).SerializeToString(), StatusCode.NOT_FOUND)
    assert (await shard.client.get("m-1")).machine.assigned_priority == 1000
    assert (await failure(shard.client.get("m-1"))).kind is FailureKind.BAD_ANSWER
    assert (await failure(shard.client.get("m-1"))).kind is FailureKind.NOT_FOUND


@rule("provider.P-141")
async def test_a_machine_never_has_two_calls_at_once_and_its_sequences_rise(
    provider: ScriptedProvider, shard: Bench, full_size: bool
) -> None:
    steps, machines, workers = (10_000 if full_size else 600), 20, 32
    running: set[str] = set()
    overlapping: list[str] = []
    sequences: dict[str, list[int]] = defaultdict(list)
    kinds: set[FailureKind] = set()
    rng = random.Random(1)

    async def serve(request: Any) -> bytes | StatusCode:
        machine_id = request.machine_id
        if machine_id in running:
            overlapping.append(machine_id)
        running.add(machine_id)
        sequences[machine_id].append(request.sequence_number)
        await asyncio.sleep(0.001)
        running.discard(machine_id)
        return StatusCode.ABORTED if rng.random() < 0.3 else ack(idle(int(machine_id[2:])))

    for rpc in ("Create", "Delete"):
        provider.answer(rpc, serve)

    async def worker() -> None:
        client = shard.client
        for _ in range(steps // workers):
            machine_id = f"m-{rng.randrange(machines)}"
            try:
                if rng.random() < 0.5:
                    await client.create(machine_id, {})
                else:
                    await client.delete(machine_id, CapacityType.SPOT)
            except CallFailedError as error:
                kinds.add(error.kind)

    await asyncio.gather(*(worker() for _ in range(workers)))
    assert overlapping == [] and kinds == {FailureKind.FAILED}
    assert sum(map(len, sequences.values())) == steps // workers * workers
    assert all(drawn == sorted(set(drawn)) for drawn in sequences.values())
    assert not shard.client._lanes._lanes, "a lane outlived its calls"


async def test_a_call_whose_turn_comes_after_its_budget_is_not_sent(
    provider: ScriptedProvider, shard: Bench
) -> None:
    release = asyncio.Event()

    async def slow(_: Any) -> bytes:
        await release.wait()
        return ack(idle(1))

    provider.answer("Create", slow)
    first = asyncio.create_task(shard.client.create("m-1", {}))
    await eventually(lambda: len(provider.sent("Create")) == 1)
    second = asyncio.create_task(shard.client.create("m-1", {}, budget=1))
    await asyncio.sleep(0.01)
    release.set()
    await first
    assert (await failure(second)).kind is FailureKind.NOT_SENT
    assert len(provider.sent("Create")) == 1


class Clock:
    """A monotonic clock that a test moves."""

    def __init__(self) -> None:
        self.now = 1_000 * SECOND

    def __call__(self) -> int:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@rule("provider.P-140", "shard.X4")
async def test_a_provider_without_answers_is_sent_trials_only_while_lists_go_on(
    provider: ScriptedProvider, clock: Clock
) -> None:
    provider.answer("Create", StatusCode.UNAVAILABLE)
    provider.answer("List", StatusCode.UNAVAILABLE)
    async with bench(provider.address, now=clock) as shard:
        # Three attempts of the first call, two of the second: the fifth failure opens, none follows it.
        kinds = [(await failure(shard.client.create(f"m-{n}", {}))).kind for n in range(3)]
        assert kinds == [FailureKind.TRANSIENT, FailureKind.TRANSIENT, FailureKind.NOT_SENT]
        assert len(provider.sent("Create")) == 5 and shard.client.is_held_back()
        assert shard.value('bigfleet_shard_provider_breaker_state{provider="p"}') == 1
        sent_at = []
        opened = clock.now
        for second in range(0, 100, 5):
            clock.now = opened + second * SECOND
            before = len(provider.sent("List")), len(provider.sent("Create"))
            assert (await failure(shard.news())).kind is FailureKind.TRANSIENT
            for n in range(3):
                await failure(shard.client.create(f"m-{n}", {}))
            assert len(provider.sent("List")) == before[0] + 1, "one attempt of a List, every time"
            sent_at += [second] * (len(provider.sent("Create")) - before[1])
        assert sent_at == [10, 30, 70]
        provider.answer("List", message())
        await shard.news()
        assert not shard.client.is_held_back()
        assert shard.value('bigfleet_shard_provider_breaker_state{provider="p"}') == 0
        assert len(shard.log("provider does not answer; mutations are held back")) == 1
        assert len(shard.log("provider answers again; calls are no longer held back")) == 1


@rule("provider.P-140", "shard.X4")
async def test_a_call_that_was_sent_once_is_never_called_not_sent(
    provider: ScriptedProvider, shard: Bench
) -> None:
    provider.answer("Create", StatusCode.UNAVAILABLE)
    # The first to fail wait for their second attempt when the fifth opens the breaker.
    failures = await asyncio.gather(*(failure(shard.client.create(f"m-{n}", {})) for n in range(20)))
    assert {failed.kind for failed in failures} == {FailureKind.TRANSIENT}
    assert 20 <= len(provider.sent("Create")) < 3 * 20, (
        "each was sent, and the breaker stopped later attempts"
    )


@rule("provider.P-140")
async def test_a_trial_that_is_cancelled_does_not_block_the_next(
    provider: ScriptedProvider, clock: Clock
) -> None:
    async def never(_: Any) -> bytes:
        await asyncio.sleep(60)
        return b""

    async with bench(provider.address, now=clock) as shard:
        provider.answer("Create", StatusCode.UNAVAILABLE)
        await failure(shard.client.create("m-1", {}))
        await failure(shard.client.create("m-1", {}))
        provider.answer("Create", never)
        clock.now += 10 * SECOND
        trial = asyncio.create_task(shard.client.create("m-1", {}))
        await eventually(lambda: len(provider.sent("Create")) == 6)
        assert (await failure(shard.client.create("m-2", {}))).kind is FailureKind.NOT_SENT
        trial.cancel()
        with pytest.raises(asyncio.CancelledError):
            await trial
        provider.answer("Create", ack(CREATING))
        assert (await shard.client.create("m-1", {})).operation_id == "op-1"


async def test_one_request_above_a_limit_does_not_open_the_breaker(
    provider: ScriptedProvider, shard: Bench
) -> None:
    for _ in range(2):
        failed = await failure(shard.client.configure("m-1", "c1", bytes(17 << 20), {}))
        assert (failed.kind, failed.code) == (FailureKind.TRANSIENT, "RESOURCE_EXHAUSTED")
    assert not shard.client.is_held_back()


@rule("provider.P-139", "ruling.R22")
async def test_a_dead_provider_costs_its_own_slice_only(provider: ScriptedProvider) -> None:
    accept_all(provider)
    provider.answer("List", message([idle(1)]))
    async with scripted_provider() as other:
        dead = other.address
    async with bench(provider.address, "alive") as alive, bench(dead, "dead") as gone:
        for _ in range(3):
            assert (await failure(gone.client.create("m-1", {}))).kind is not FailureKind.FAILED
            assert (await failure(gone.news())).kind is FailureKind.TRANSIENT
        assert gone.client.is_held_back() and not alive.client.is_held_back()
        assert (await alive.client.create("m-1", {})).observed.machine.id == "m-1"
        assert (await alive.news())[1].records == 1


async def test_a_provider_that_comes_back_is_found(clock: Clock) -> None:
    async with scripted_provider() as first:
        address = first.address
        first.answer("List", message([idle(1)]))
        async with bench(address) as shard:
            await shard.news()
    async with bench(address) as shard:
        assert (await failure(shard.news())).kind is FailureKind.TRANSIENT
        async with scripted_provider(int(address.rpartition(":")[2])) as second:
            second.answer("List", message([idle(1), idle(2)]))
            async with asyncio.timeout(30):
                while True:
                    try:
                        slices, _ = await shard.news()
                        break
                    except CallFailedError:
                        await asyncio.sleep(0.05)
            assert len(slices[0].changed) == 2


@rule("provider.P-142", "ruling.R16")
async def test_a_delete_that_is_not_supported_is_sent_once_per_capacity_type_and_said_once(
    provider: ScriptedProvider, shard: Bench
) -> None:
    provider.answer("Delete", StatusCode.UNIMPLEMENTED)
    both = [shard.client.delete(f"m-{n}", CapacityType.SPOT) for n in range(2)]
    for call in both:
        assert (await failure(call)).kind is FailureKind.NOT_SUPPORTED
    assert len(provider.sent("Delete")) == 1
    assert (await failure(shard.client.delete("m-3", CapacityType.ON_DEMAND))).code == "UNIMPLEMENTED"
    assert len(provider.sent("Delete")) == 2
    warnings = shard.log("provider cannot delete; no further Delete for this capacity type until restart")
    assert [line["capacity_type"] for line in warnings] == ["Spot", "OnDemand"]


@rule("provider.P-142")
async def test_a_provider_that_describes_itself_is_believed(provider: ScriptedProvider) -> None:
    provider.answer("Describe", info_pb.DescribeResponse(name="aws", max_blob_bytes=8).SerializeToString())
    provider.answer("List", message([idle(1)], revision=b"r1"))
    async with bench(provider.address, incremental=True) as shard:
        capabilities = await shard.client.describe()
        assert (capabilities.name, capabilities.delete, capabilities.max_blob_bytes) == ("aws", False, 8)
        assert capabilities.max_metadata_keys is None, "a cap of zero is no cap"
        assert (
            await failure(shard.client.delete("m-1", CapacityType.SPOT))
        ).kind is FailureKind.NOT_SUPPORTED
        failed = await failure(shard.client.configure("m-1", "c1", b"123456789", {}))
        assert failed.kind is FailureKind.REFUSED and "9 bytes of bootstrap blob" in failed.details
        await shard.news()
        await shard.news()
        assert [request.since_revision for request in provider.sent("List")] == [b"", b""]
        assert not provider.sent("Delete") and not provider.sent("Configure")


@rule("provider.P-142")
@pytest.mark.parametrize("answer", [StatusCode.UNIMPLEMENTED, StatusCode.INTERNAL, b"\xff\xff"])
async def test_a_provider_that_does_not_describe_itself_is_served_all_the_same(
    provider: ScriptedProvider, shard: Bench, answer: bytes | StatusCode
) -> None:
    provider.answer("Describe", answer)
    capabilities = await shard.client.describe()
    assert capabilities.cursor is None and capabilities.can_delete(CapacityType.SPOT)


async def test_a_description_that_did_not_arrive_can_be_asked_for_again(
    provider: ScriptedProvider, shard: Bench
) -> None:
    provider.answer("Describe", StatusCode.UNAVAILABLE)
    assert (await failure(shard.client.describe())).kind is FailureKind.TRANSIENT
    provider.answer("Describe", info_pb.DescribeResponse(delete=True, cursor=True).SerializeToString())
    assert (await shard.client.describe()).cursor is True


@rule("provider.P-138", "provider.P-71")
async def test_lists_follow_the_cursor_and_never_filter(provider: ScriptedProvider, clock: Clock) -> None:
    provider.answer(
        "List",
        message([idle(1), idle(2)], revision=b"r1", full=True),
        StatusCode.INTERNAL,
        message([idle(2, price_per_hour=5.0)], revision=b"r2", removed_ids=["m-1"], full=False),
        message(revision=b"r2", full=False),
        message([idle(2, price_per_hour=5.0)], revision=b"r2", full=True),
    )
    async with bench(provider.address, incremental=True, now=clock, jitter=lambda: 0.0) as shard:
        (first,), end = await shard.news()
        assert len(first.changed) == 2 and end.complete
        assert (await failure(shard.news())).kind is FailureKind.FAILED
        parts, end = await shard.news()
        assert [part.gone for part in parts] == [(), ("m-1",)] and not end.complete
        await shard.news()
        clock.now += 541 * SECOND
        assert (await shard.news())[1].complete
        assert [request.since_revision for request in provider.sent("List")] == [
            b"",
            b"r1",
            b"r1",
            b"r2",
            b"",
        ]
        assert all(not request.states and not request.max_results for request in provider.sent("List"))
        series = "bigfleet_shard_provider_list_records_count"
        assert shard.value(series + '{mode="full"}') == 2 and shard.value(series + '{mode="delta"}') == 2


async def test_a_list_that_was_not_read_to_its_end_does_not_move_the_cursor(
    provider: ScriptedProvider,
) -> None:
    provider.answer("List", message([idle(1)], revision=b"r1", full=True))
    async with bench(provider.address, incremental=True) as shard:

        async def refuse(_: ListSlice) -> None:
            raise RuntimeError("no room")

        with pytest.raises(RuntimeError, match="no room"):
            await shard.client.list(refuse)
        (news,), _ = await shard.news()
        assert len(news.changed) == 1
        assert [request.since_revision for request in provider.sent("List")] == [b"", b""]


async def test_two_lists_at_a_time_are_a_defect_of_the_caller(
    provider: ScriptedProvider, shard: Bench
) -> None:
    provider.answer("List", message([idle(1)]))

    async def list_again(_: ListSlice) -> None:
        with pytest.raises(AssertionError, match="two Lists of provider p"):
            await shard.news()

    await shard.client.list(list_again)
    await shard.news()


async def test_nothing_is_read_before_the_last_slice_was_taken(
    provider: ScriptedProvider, shard: Bench
) -> None:
    provider.answer("List", message(idle(n) for n in range(5 * RECORDS_PER_SLICE)))
    taken = 0

    async def slow(news: ListSlice) -> None:
        nonlocal taken
        for _ in range(5):
            await asyncio.sleep(0)
        taken += len(news.changed)
        assert len(shard.client._ledger) == taken

    await shard.client.list(slow)
    assert taken == 5 * RECORDS_PER_SLICE


async def test_a_list_that_is_no_message_fails_as_a_whole_and_changes_nothing(
    provider: ScriptedProvider, shard: Bench
) -> None:
    provider.answer("List", message([idle(1)]), message([idle(2)])[:-3], message([idle(1)]))
    await shard.news()
    failed = await failure(shard.news())
    assert failed.kind is FailureKind.BAD_ANSWER and "cut off" in failed.details
    slices, end = await shard.news()
    assert slices == [] and end.complete


@rule("shard.Q2")
@pytest.mark.parametrize("code", [StatusCode.NOT_FOUND, StatusCode.INTERNAL])
async def test_a_get_that_fails_makes_the_next_list_speak_again(
    provider: ScriptedProvider, shard: Bench, code: StatusCode
) -> None:
    provider.answer("List", message([idle(1), idle(2)]))
    await shard.news()
    provider.answer("Get", code)
    await failure(shard.client.get("m-1"))
    (news,), _ = await shard.news()
    assert [seen.machine.id for seen in news.changed] == ["m-1"]


@pytest.mark.parametrize("rpc", ["Get", "Create"])
async def test_a_record_that_came_another_way_makes_the_next_list_speak_again(
    provider: ScriptedProvider, shard: Bench, rpc: str
) -> None:
    provider.answer("List", message([idle(1), idle(2)]))
    await shard.news()
    assert (await shard.news())[0] == []
    if rpc == "Get":
        provider.answer("Get", record(1).SerializeToString())
        await shard.client.get("m-1")
    else:
        provider.answer("Create", StatusCode.ABORTED)
        await failure(shard.client.create("m-1", {}))
    (news,), _ = await shard.news()
    assert [seen.machine.id for seen in news.changed] == ["m-1"]


@rule("provider.P-143", "shard.Q3")
async def test_rejected_records_are_counted_each_and_named_up_to_a_bound(
    provider: ScriptedProvider, shard: Bench
) -> None:
    bad = [idle(n, price_per_hour=math.nan) for n in range(25)]
    provider.answer("List", message([*bad, idle(30, interruption_probability=2.0), idle(31)]))
    (news,), _ = await shard.news()
    assert len(news.rejected) == 26 and len(news.changed) == 1
    assert shard.value('bigfleet_shard_machines_rejected_total{reason="price"}') == 25
    assert shard.value('bigfleet_shard_machines_rejected_total{reason="interruption_probability"}') == 1
    assert shard.value('bigfleet_shard_provider_rejected_total{provider="p"}') == 26
    named = shard.log("provider machine rejected at ingest")
    assert len(named) == MAX_LOGGED and named[0]["machine"] == "m-0" and "price_per_hour" in named[0]["err"]
    assert named[0]["field"] == "price" and named[0]["state"] == "Idle"
    (rest,) = shard.log("more bad provider records than are named in the log")
    assert rest["records"] == 26


@rule("provider.P-137", "shard.Q5")
async def test_malformed_notes_are_skipped_named_and_cost_no_other_key(
    provider: ScriptedProvider, shard: Bench
) -> None:
    key = "bigfleet.lucy.sh/assigned-interruption-penalty-dollars"
    provider.answer("List", message([record(1, shard_metadata={**ASSIGNMENT, key: "lots of \x00 money"})]))
    (news,), _ = await shard.news()
    machine = news.changed[0].machine
    assert machine.assigned_priority == 1000 and machine.assigned_need_fingerprint == "f" * 64
    (line,) = shard.log("shard_metadata decode failed at ingest; protection state may be incomplete")
    assert line["machine"] == "m-1" and key in line["err"] and "lots" not in line["err"]
    assert line["field"] == key and line["state"] == "Configured"


@rule("provider.P-143")
async def test_attempts_and_the_age_of_the_last_list_are_on_the_metrics_page(
    provider: ScriptedProvider, clock: Clock
) -> None:
    provider.answer("Get", StatusCode.UNAVAILABLE, record(1).SerializeToString())
    provider.answer("List", message())
    async with bench(provider.address, "aws", now=clock) as shard:
        clock.now += 7 * SECOND
        assert shard.value('bigfleet_shard_reconcile_age_seconds{provider="aws"}') == 7
        await shard.client.get("m-1")
        count = 'bigfleet_shard_provider_rpc_seconds_count{provider="aws",rpc="Get",code="%s"}'
        assert shard.value(count % "OK") == 1 and shard.value(count % "UNAVAILABLE") == 1
        await shard.news()
        assert shard.value('bigfleet_shard_reconcile_age_seconds{provider="aws"}') == 0
        clock.now += 5 * SECOND
        assert shard.value('bigfleet_shard_reconcile_age_seconds{provider="aws"}') == 5
