"""The loop around the core: batches, and who waits for what."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest

from bigfleet_providerkit.driver import Driver
from bigfleet_providerkit.effects import Answer, Call, Code, Token, Write
from bigfleet_providerkit.records import Kind
from bigfleet_providerkit.store import MemoryStore
from tests.support.rules import rule
from tests.unit.providerkit.lab import Lab, offering


class CountedStore(MemoryStore):
    """Counts flushes, and holds them up while told to."""

    def __init__(self) -> None:
        super().__init__()
        self.flushes = 0
        self.may_flush = threading.Event()
        self.may_flush.set()

    def write(self, writes: Sequence[Write]) -> None:
        assert self.may_flush.wait(30)
        self.flushes += 1


@asynccontextmanager
async def driven(lab: Lab, store: CountedStore) -> AsyncIterator[Driver]:
    driver = Driver(
        lab.core,
        store,
        time.monotonic_ns,
        invoke=lambda invoke: None,
        cancel=lambda call: None,
        report=lambda report: None,
        wrote=lambda seconds, error: None,
    )
    running = asyncio.create_task(driver.run())
    try:
        yield driver
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        driver.close()


def create(driver: Driver, machine: str, sequence: int = 1) -> Call:
    return Call(driver.next_number(), Kind.CREATE, machine, Token("s", 1, sequence))


@rule("provider.P-123")
async def test_where_there_is_a_crowd_a_flush_waits_for_those_who_are_about_to_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("bigfleet_providerkit.driver._GATHER_S", 0.5)
    lab = Lab(offering(17))
    store = CountedStore()
    async with driven(lab, store) as driver:
        await driver.call(create(driver, lab.ids()[16]))
        calls: list[asyncio.Task[Answer]] = []
        for half in (lab.ids()[:8], lab.ids()[8:16]):
            calls += [asyncio.create_task(driver.call(create(driver, machine))) for machine in half]
            await asyncio.wait(calls, timeout=0.05)
        answers = await asyncio.wait_for(asyncio.gather(*calls), 30)
    assert {answer.code for answer in answers} == {Code.OK} and store.flushes == 2


@rule("provider.P-123", "provider.P-34")
async def test_no_answer_leaves_before_its_flush_and_the_next_batch_gathers_meanwhile() -> None:
    lab = Lab(offering(64))
    store = CountedStore()
    async with driven(lab, store) as driver:
        store.may_flush.clear()
        calls = [asyncio.create_task(driver.call(create(driver, machine))) for machine in lab.ids()]
        done, _ = await asyncio.wait(calls, timeout=0.1)
        assert not done and store.flushes == 0
        store.may_flush.set()
        await asyncio.wait_for(asyncio.gather(*calls), 30)
    assert store.flushes <= 2


async def test_a_lone_caller_waits_for_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bigfleet_providerkit.driver._GATHER_S", 600)
    lab = Lab(offering(20))
    store = CountedStore()
    async with driven(lab, store) as driver:
        for machine in lab.ids():
            await asyncio.wait_for(driver.call(create(driver, machine)), 30)
    assert store.flushes == 20
