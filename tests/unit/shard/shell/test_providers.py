"""Calls to providers: what is sent for each effect, and which event answers it."""

import asyncio
import sys
from collections.abc import AsyncIterator
from typing import Any, cast

import pytest

from bigfleet.shard.core.effects import (
    Assignment,
    ConfigureMachine,
    CreateMachine,
    DeleteMachine,
    DrainMachine,
    GetMachine,
    ListProvider,
    RaiseFloor,
)
from bigfleet.shard.core.events import (
    BreakerChanged,
    BreakerState,
    CallEnded,
    Event,
    Failure,
    FloorRaised,
    GetEnded,
    Listed,
    ListEnded,
    ListFailed,
    Observed,
)
from bigfleet.shard.provider import CallFailedError, FailureKind
from bigfleet.shard.provider.client import Ack, ProviderClient
from bigfleet.shard.provider.listing import ListEnd, ListSlice
from bigfleet.shard.shell import providers as module
from bigfleet.shard.shell.driver import Driver
from bigfleet.shard.shell.providers import LOCAL_BLOB, Providers
from bigfleet_base.model import CapacityType, Machine, MachineState, Preemptor
from bigfleet_base.wire import ObservedMachine, Rejected
from bigfleet_base.wire.metadata import PREFIX, Notes
from tests.support.eventually import eventually
from tests.support.rules import rule

FIVE = Assignment(7, 0.5, float("inf"), "fp", "g")
MACHINE = Machine("m-1", MachineState.IDLE)
SEEN = ObservedMachine(MACHINE, Notes())
PREEMPTOR = Preemptor("c2", 9, "fp2", "")


class Client:
    """A provider that answers as it is told."""

    name = "default"

    def __init__(self) -> None:
        self.sent: list[tuple[Any, ...]] = []
        self.error: CallFailedError | None = None
        self.failing: tuple[str, ...] = ()
        """The calls that end in the error; none of them: all."""
        self.held_back = self.on_trial = False
        self.slices: list[ListSlice] = []
        self.gate = asyncio.Event()
        self.gate.set()

    async def _answer(self, *call: Any) -> Any:
        self.sent.append(call)
        await self.gate.wait()
        if self.error is not None and (not self.failing or call[0] in self.failing):
            raise self.error
        return Ack("op-1", SEEN)

    async def create(self, machine_id: str, metadata: dict[str, str], *, budget: int) -> Any:
        return await self._answer("create", machine_id, metadata, budget)

    async def configure(
        self, machine_id: str, cluster: str, blob: bytes, metadata: dict[str, str], *, budget: int
    ) -> Any:
        return await self._answer("configure", machine_id, cluster, blob, metadata, budget)

    async def drain(self, machine_id: str, grace: int, metadata: dict[str, str], *, budget: int) -> Any:
        return await self._answer("drain", machine_id, grace, metadata, budget)

    async def delete(self, machine_id: str, capacity_type: CapacityType, *, budget: int) -> Any:
        return await self._answer("delete", machine_id, capacity_type, budget)

    async def get(self, machine_id: str) -> ObservedMachine:
        await self._answer("get", machine_id)
        return SEEN

    async def raise_floor(self) -> None:
        await self._answer("floor")

    async def describe(self) -> None:
        await self._answer("describe")

    async def list(self, merge: Any) -> ListEnd:
        await self._answer("list")
        for each in self.slices:
            await merge(each)
        return ListEnd(True, 3)

    def is_held_back(self) -> bool:
        return self.held_back

    def is_on_trial(self) -> bool:
        return self.on_trial

    async def close(self) -> None:
        pass


class Ear:
    """Hears what a driver would be told."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.clock = self

    def now(self) -> int:
        return 42

    def submit(self, event: Event) -> None:
        self.events.append(event)

    async def handled(self, event: Event) -> None:
        self.events.append(event)


class Bench:
    def __init__(self) -> None:
        self.client = Client()
        self.ear = Ear()
        self.providers = Providers({"default": cast("ProviderClient", self.client)}, cast("Driver", self.ear))

    async def answers(self, effect: Any, number: int = 1) -> list[Event]:
        self.providers.call(effect)
        await eventually(lambda: len(self.ear.events) >= number)
        return self.ear.events


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    made = Bench()
    yield made
    await made.providers.close()


def five_keys(**more: str) -> dict[str, str]:
    keys = {
        "assigned-priority": "7",
        "assigned-interruption-penalty-dollars": "0.5",
        "assigned-reclamation-penalty-dollars": "inf",
        "assigned-need-fingerprint": "fp",
        "assigned-group": "g",
        **{name.replace("_", "-"): value for name, value in more.items()},
    }
    return {PREFIX + name: value for name, value in keys.items()}


async def test_a_create_carries_the_five_keys_and_its_target(bench: Bench) -> None:
    events = await bench.answers(CreateMachine(3, "default", "m-1", FIVE, "c1", 500))
    assert bench.client.sent == [("create", "m-1", five_keys(target_cluster="c1"), 500)]
    assert events == [CallEnded(3, observed=Observed(MACHINE))]


async def test_a_configure_uses_up_the_blob_of_its_request(bench: Bench) -> None:
    assert bench.providers.keep_blob("r-1", b"blob")
    assert not bench.providers.keep_blob("r-1", b"another"), "the first answer counts"
    events = await bench.answers(ConfigureMachine(4, "default", "m-1", "c1", "r-1", FIVE, 500))
    assert bench.client.sent == [("configure", "m-1", "c1", b"blob", five_keys(), 500)]
    assert events == [CallEnded(4, observed=Observed(MACHINE))]
    assert not bench.providers._blobs


@rule("shard.B2")
async def test_a_blob_whose_call_has_begun_is_not_lost_to_what_comes_under_its_id(bench: Bench) -> None:
    bench.providers.keep_blob("r-1", b"blob")
    bench.providers.call(ConfigureMachine(4, "default", "m-1", "c1", "r-1", FIVE, 500))
    bench.providers.drop_blob("r-1")
    await eventually(lambda: bench.ear.events == [CallEnded(4, observed=Observed(MACHINE))])
    assert bench.client.sent == [("configure", "m-1", "c1", b"blob", five_keys(), 500)]


async def test_without_a_request_the_local_stub_is_sent(bench: Bench) -> None:
    await bench.answers(ConfigureMachine(4, "default", "m-1", "c1", "", FIVE, 500))
    assert bench.client.sent[0][3] == LOCAL_BLOB


async def test_a_drain_carries_its_instruction_and_who_it_is_for(bench: Bench) -> None:
    await bench.answers(DrainMachine(5, "default", "m-1", 30, "i-1", PREEMPTOR, 500))
    [(_, machine, grace, metadata, budget)] = bench.client.sent
    assert (machine, grace, budget) == ("m-1", 30, 500)
    assert metadata[PREFIX + "instruction-id"] == "i-1" and metadata[PREFIX + "preemptor-cluster"] == "c2"


async def test_a_delete_names_its_capacity_type(bench: Bench) -> None:
    await bench.answers(DeleteMachine(6, "default", "m-1", CapacityType.SPOT, 500))
    assert bench.client.sent == [("delete", "m-1", CapacityType.SPOT, 500)]


async def test_a_failure_is_told_with_its_kind_and_sequence(bench: Bench) -> None:
    bench.client.error = CallFailedError("Create", FailureKind.FENCED, "FAILED_PRECONDITION", "old", 9)
    failure = Failure("fenced", "FAILED_PRECONDITION", "old", 9)
    assert await bench.answers(CreateMachine(3, "default", "m-1", FIVE, "c1", 500)) == [
        CallEnded(3, failure=failure)
    ]
    assert (await bench.answers(GetMachine("default", "m-1"), 2))[1] == GetEnded(
        "default", "m-1", 42, failure=failure
    )
    assert (await bench.answers(RaiseFloor("default"), 3))[2] == FloorRaised("default", failure)


@rule("shard.R8")
async def test_a_records_error_is_told_cut_and_without_what_looks_like_a_secret(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = Machine("m-1", MachineState.FAILED, last_error="password=hunter2 " + "x" * 5_000)
    monkeypatch.setattr(sys.modules[__name__], "SEEN", ObservedMachine(broken, Notes()))
    [told] = await bench.answers(CreateMachine(3, "default", "m-1", FIVE, "c1", 500))
    assert isinstance(told, CallEnded) and told.observed is not None
    error = told.observed.machine.last_error
    assert len(error) == 1_024 and "hunter2" not in error


async def test_reads_are_answered(bench: Bench) -> None:
    assert await bench.answers(GetMachine("default", "m-1")) == [
        GetEnded("default", "m-1", 42, observed=Observed(MACHINE))
    ]
    assert (await bench.answers(RaiseFloor("default"), 2))[1] == FloorRaised("default")


async def test_a_list_is_told_slice_by_slice_after_the_provider_was_asked_what_it_can_do(
    bench: Bench,
) -> None:
    echoed = ObservedMachine(MACHINE, Notes(instruction_id="i-1", preemptor=PREEMPTOR))
    bench.client.slices = [
        ListSlice(
            7, (echoed,), (Rejected("m-2", "price", "Idle", "no"), Rejected("", "undecodable", "", "no"))
        ),
        ListSlice(8, gone=("m-3",)),
    ]
    events = await bench.answers(ListProvider("default"), 3)
    assert events == [
        Listed("default", 7, (Observed(MACHINE, "i-1", PREEMPTOR),), (), ("m-2",)),
        Listed("default", 8, (), ("m-3",), ()),
        ListEnded("default", 8, True),
    ]
    await bench.answers(ListProvider("default"), 6)
    assert [call[0] for call in bench.client.sent] == ["describe", "list", "list"]


async def test_a_failed_list_is_told_and_the_description_is_asked_for_again(bench: Bench) -> None:
    bench.client.error = CallFailedError("List", FailureKind.TRANSIENT, "UNAVAILABLE", "down")
    for _ in range(5):
        [failed] = await bench.answers(ListProvider("default"))
        assert isinstance(failed, ListFailed) and "UNAVAILABLE" in failed.error
        bench.ear.events.clear()
    bench.client.error = None
    await bench.answers(ListProvider("default"))
    await bench.answers(ListProvider("default"), 2)
    assert [call[0] for call in bench.client.sent] == ["describe", "list"] * 6 + ["list"]


@rule("provider.P-142")
async def test_a_provider_whose_front_has_no_answer_to_describe_is_listed_all_the_same(bench: Bench) -> None:
    bench.client.error = CallFailedError("Describe", FailureKind.TRANSIENT, "UNAVAILABLE", "no such route")
    bench.client.failing = ("describe",)
    for number in range(1, 6):
        events = await bench.answers(ListProvider("default"), number)
        assert all(isinstance(event, ListEnded) for event in events)
    assert [call[0] for call in bench.client.sent] == ["describe", "list"] * 3 + ["list"] * 2


async def test_a_provider_that_is_held_back_is_told_once_and_its_trial_and_release_too(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "BREAKER_LOOK_S", 0.01)
    bench.client.held_back = True
    events = await bench.answers(GetMachine("default", "m-1"), 2)
    assert events[0] == BreakerChanged("default", BreakerState.OPEN)
    await bench.answers(GetMachine("default", "m-2"), 3)
    bench.client.held_back, bench.client.on_trial = False, True
    await eventually(lambda: BreakerChanged("default", BreakerState.TRIAL) in events)
    bench.client.on_trial = False
    await eventually(lambda: BreakerChanged("default", BreakerState.CLOSED) in events)
    assert sum(isinstance(event, BreakerChanged) for event in events) == 3


async def test_the_end_waits_for_mutations_and_not_for_lists(bench: Bench) -> None:
    bench.client.gate.clear()
    bench.providers.call(ListProvider("default"))
    await bench.providers.finish(10)
    bench.providers.call(CreateMachine(3, "default", "m-1", FIVE, "c1", 500))
    finishing = asyncio.ensure_future(bench.providers.finish(10))
    await eventually(lambda: len(bench.client.sent) == 2)
    assert not finishing.done()
    bench.client.gate.set()
    await finishing
    assert CallEnded(3, observed=Observed(MACHINE)) in bench.ear.events


async def test_the_end_does_not_wait_for_ever(bench: Bench) -> None:
    bench.client.gate.clear()
    bench.providers.call(CreateMachine(3, "default", "m-1", FIVE, "c1", 500))
    async with asyncio.timeout(10):
        await bench.providers.finish(0.01)


async def test_a_defect_in_a_call_is_not_swallowed(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench.client, "create", None)
    bench.providers.call(CreateMachine(3, "default", "m-1", FIVE, "c1", 500))
    with pytest.raises(TypeError):
        async with asyncio.timeout(10):
            await bench.providers.crashed()


async def test_a_call_without_its_blob_is_a_defect(bench: Bench) -> None:
    with pytest.raises(KeyError):
        bench.providers.call(ConfigureMachine(4, "default", "m-1", "c1", "no-such-blob", FIVE, 500))
