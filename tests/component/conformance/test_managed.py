"""Providers that the suite starts: each is talked to alone, whoever else listens on this computer."""

import asyncio
import random
from collections.abc import Sequence

import pytest

from bigfleet_providerkit.conformance.areas import durability
from bigfleet_providerkit.conformance.managed import Managed
from bigfleet_providerkit.process import Serving
from tests.component.conformance.world import FAKE, inventory, served
from tests.support.eventually import eventually
from tests.support.rules import rule


@pytest.fixture(autouse=True)
def in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everyone tries the ports in one order, so that everyone wants the same one."""

    def sample(population: Sequence[int], count: int) -> Sequence[int]:
        return sorted(population)[:count]

    monkeypatch.setattr(random, "sample", sample)


async def test_providers_that_are_started_at_once_are_not_taken_for_each_other() -> None:
    counts = (3, 5, 7)
    providers = [Managed(FAKE, count, (), None) for count in counts]
    try:
        addresses = await asyncio.gather(*(provider.boot() for provider in providers))
        assert [len(await inventory(address)) for address in addresses] == list(counts)
    finally:
        await asyncio.gather(*(provider.stop() for provider in providers))


async def test_a_provider_that_runs_already_is_not_taken_for_the_one_that_is_started() -> None:
    wanted = Managed(FAKE, 3, (), None)
    first = await wanted.boot()
    await wanted.stop()
    async with served(seeds=5, serving=Serving(address=first, shutdown_window=0.0)) as stranger:
        provider = Managed(FAKE, 3, (), None)
        try:
            address = await provider.boot()
            assert address != stranger == first
            assert len(await inventory(address)) == 3
        finally:
            await provider.stop()


async def test_a_port_is_free_again_when_its_provider_was_stopped() -> None:
    addresses = []
    for _ in range(2):
        provider = Managed(FAKE, 3, (), None)
        try:
            addresses.append(await provider.boot())
        finally:
            await provider.stop()
    assert addresses[0] == addresses[1]


@rule("conformance.X1005")
async def test_a_provider_whose_files_cannot_be_written_can_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    async def at_once(managed: Managed, address: str) -> None:
        """It serves nothing, and nobody asks it for anything."""

    monkeypatch.setattr(Managed, "_serving", at_once)
    # Were its output such a file, the line about a store that fails would fail the call that it is about.
    provider = Managed("sh -c 'while :; do echo alive; sleep 0.02; done'", 3, (), None)
    try:
        await provider.boot()
        with durability._unwritable(provider):
            said = len(provider.output())
            await eventually(lambda: len(provider.output()) > said)
    finally:
        await provider.stop()
