"""Area 11: the same promises with many machines, and for longer."""

import asyncio
import contextlib
import os
import resource
from collections.abc import Awaitable, Sequence
from pathlib import Path
from typing import Any, Final

from bigfleet_base.api.v1alpha1 import provider_pb2 as pb
from bigfleet_base.model import MachineState as S
from bigfleet_providerkit.conformance import expect
from bigfleet_providerkit.conformance.areas.fields import cost, located, shape
from bigfleet_providerkit.conformance.areas.lifecycle import clean
from bigfleet_providerkit.conformance.areas.listing import booted, complete, covered, distinct, paged, some
from bigfleet_providerkit.conformance.catalogue import BEHAVIOURS, Lane
from bigfleet_providerkit.conformance.checks import CheckFailed, SkipFixture, check
from bigfleet_providerkit.conformance.client import Client, Reply, ids, state_of
from bigfleet_providerkit.conformance.managed import Managed
from bigfleet_providerkit.conformance.trial import Trial

GET_P99_S, CREATE_P99_S, LIST_P99_S, ONE_LIST_S = 0.25, 0.25, 2.0, 3.0
CURSOR_ABOVE: Final = 10_000
"""Machines beyond which a shard cannot do without deltas (P-67)."""
_PAGE: Final = 500
_PAGES: Final = 16
"""At least so many, that paging is seen in a small fleet, too."""
_PARALLEL_IDLE_S: Final = 30.0
MANY: Final = 100_000
LISTS: Final = 100
# Ours, as the contract has no figure: 10 KiB for each machine, and lists leave next to nothing behind.
_MEMORY_MIB, _GROWTH_MIB = 1_024, 128


@check("B1101")
async def every_machine_is_in_shape(t: Trial) -> None:
    machines = (await _everything(t)).machines
    distinct(machines)
    for machine in machines:
        shape(machine)
        cost(machine)
        located(machine)
    t.note(f"{len(machines)} machines")


@check("B1102", alone=True)
async def a_delta_is_what_changed(t: Trial) -> None:
    if not t.can.cursor and t.options.scale_seed > CURSOR_ABOVE:
        raise CheckFailed(
            f"since_revision is not honoured ({t.can.evidence['cursor']}), and above {CURSOR_ABOVE} machines"
            " it must be"
        )
    t.need_cursor()
    machine_ids = await t.idle_machines(20)
    before = await t.list_machines()
    for machine_id in machine_ids:
        expect.ok(await t.provider.configure(machine_id))
    for machine_id in machine_ids:
        await t.settle(machine_id, S.CONFIGURED)
    delta = await t.list_machines(since=before.revision)
    known = {machine.id: machine for machine in before.machines}
    # A spot price that moved by itself is a change, too.
    changed = [machine for machine in delta.machines if known.get(machine.id) != machine]
    complete({*machine_ids, *ids(changed)}, delta, "the delta after 20 Configures")


@check("B1103", alone=True)
async def a_fleet_can_be_paged(t: Trial) -> None:
    t.need_cursor()
    everything = distinct((await _everything(t)).machines)
    cap = max(1, min(_PAGE, len(everything) // _PAGES))
    seen, echoed = await paged(t, b"", cap, len(everything) // cap + 8)
    expect.that(seen <= everything, f"paging brought {some(seen - everything)}, not in List")
    covered(t, everything, seen, echoed=echoed)
    t.note(f"{len(everything)} machines in pages of {cap}")


@check("B1104")
async def churn_leaves_nothing(t: Trial) -> None:
    machine_ids = await t.idle_machines(8)
    end = asyncio.get_running_loop().time() + t.options.soak
    rounds = await asyncio.gather(*(_churn(t, machine_id, end) for machine_id in machine_ids))
    t.note(f"{sum(rounds)} rounds of {len(rounds)} machines in {t.options.soak:g} s")


@check("B1105", alone=True)
async def machines_come_and_go(t: Trial) -> None:
    fleet = (await t.list_machines()).machines
    size, created, deleted = len(fleet), _resident(fleet), 0
    # What cannot be deleted is used up, and other ids of the lane need machines after this one.
    kept = sum(behaviour.slots for behaviour in BEHAVIOURS.values() if behaviour.lane is Lane.SCALE)
    spare = max(1, await t.target.slots.count() - kept)
    end = asyncio.get_running_loop().time() + t.options.soak
    rounds = 0
    machine_id = await t.speculative()
    while True:
        expect.ok(await t.provider.create(machine_id))
        await t.settle(machine_id, S.IDLE)
        created, rounds = created + 1, rounds + 1
        await _counted(t, size, created - deleted)
        if t.can.delete:
            expect.ok(await t.provider.delete(machine_id))
            await t.settle(machine_id, S.SPECULATIVE)
            deleted += 1
            await _counted(t, size, created - deleted)
        if asyncio.get_running_loop().time() >= end or (rounds >= spare and not t.can.delete):
            break
        if not t.can.delete:
            machine_id = await t.speculative()
    t.note(f"{rounds} machines came, {deleted} went")


@check("B1106", alone=True)
async def answers_are_quick(t: Trial) -> None:
    machine_ids = await t.take(60)
    creates = [await timed(t.provider.create(machine_id)) for machine_id in machine_ids]
    for machine_id in machine_ids:
        await t.settle(machine_id, S.IDLE)
    gets = [await timed(t.provider.get(machine_id)) for machine_id in machine_ids for _ in range(2)]
    lists = [await timed(t.provider.list()) for _ in range(120)]
    within(t, "Create", creates, CREATE_P99_S)
    within(t, "Get", gets, GET_P99_S)
    within(t, "List", lists, LIST_P99_S)


@check("B1107", alone=True)
async def one_list_is_quick(t: Trial) -> None:
    await _everything(t)
    reply = await t.provider.list()
    count = len(expect.ok(reply).machines)
    expect.that(
        reply.seconds <= ONE_LIST_S,
        f"List() of {count} machines took {reply.seconds:.2f} s, expected at most {ONE_LIST_S:g} s",
    )
    t.note(f"{count} machines in {reply.seconds * 1_000:.0f} ms")


@check("B1108")
async def parallel_creates_all_succeed(t: Trial) -> None:
    machine_ids = await t.take(16)
    replies = await asyncio.gather(*map(t.provider.create, machine_ids))
    operations = {expect.operation(reply) for reply in replies}
    expect.that(
        len(operations) == len(machine_ids),
        f"{len(machine_ids)} machines got {len(operations)} operation ids",
    )
    limit = max(_PARALLEL_IDLE_S, t.options.settle["create"])
    await asyncio.gather(*(t.settle(machine_id, S.IDLE, limit) for machine_id in machine_ids))


@check("B1109")
async def machines_left_alone_stay(t: Trial) -> None:
    machine_ids = await t.idle_machines(8)
    window = min(3.0, max(0.5, t.options.soak / 4))
    await asyncio.gather(*(t.holds(machine_id, S.IDLE, window) for machine_id in machine_ids))


@check("X1101", alone=True)
async def a_hundred_thousand_machines(t: Trial) -> None:
    if not t.options.hundred_thousand:
        raise SkipFixture("needs --hundred-thousand, and a provider that may have as many machines")
    expect.that(t.can.cursor, f"above {CURSOR_ABOVE} machines since_revision must be honoured")
    if t.options.target:
        await _list_many(t, t.provider, None)
        return
    large = Managed(t.options.provider_cmd, MANY, (), t.target.connection.tls)
    try:
        async with booted(t, large) as client:
            await _list_many(t, client, large)
    finally:
        await large.stop()


async def timed(call: Awaitable[Reply[Any]]) -> float:
    """The seconds of a call that must succeed. Its answer is dropped: a hundred large Lists fill a memory."""
    reply = await call
    expect.ok(reply)
    return reply.seconds


def within(t: Trial, method: str, seconds: Sequence[float], limit: float) -> None:
    """99 of 100 calls were answered within the limit."""
    # The nearest rank: the one above is, of 60 calls, the slowest, and one may be anything.
    p99 = sorted(seconds)[round(0.99 * len(seconds)) - 1]
    said = f"p99 of {len(seconds)} {method} calls is {p99 * 1_000:.0f} ms"
    expect.that(p99 <= limit, f"{said}, expected at most {limit * 1_000:.0f} ms")
    t.note(said)


async def _everything(t: Trial) -> pb.MachineList:
    """A full List with as many machines as were asked for."""
    listed = await t.list_machines()
    _enough(t, len(listed.machines), t.options.scale_seed)
    return listed


def _enough(t: Trial, count: int, wanted: int) -> None:
    if count >= wanted:
        return
    lacking = f"List has {count} machines, expected at least {wanted}"
    if "{seed_count}" in t.options.provider_cmd:
        raise CheckFailed(f"{lacking}, the {{seed_count}} it was started with")
    raise SkipFixture(f"{lacking}: add some, write {{seed_count}} in --provider-cmd or lower --scale-seed")


async def _churn(t: Trial, machine_id: str, end: float) -> int:
    rounds = 0
    while not rounds or asyncio.get_running_loop().time() < end:
        await t.configure(machine_id, metadata={"round": str(rounds)})
        clean(await t.drain(machine_id))
        rounds += 1
    return rounds


def _resident(machines: Sequence[pb.Machine]) -> int:
    return sum(state_of(machine) is not S.SPECULATIVE for machine in machines)


async def _counted(t: Trial, size: int, resident: int) -> None:
    machines = (await t.list_machines()).machines
    expect.that(
        len(machines) == size, f"List has {len(machines)} machines, expected {size} as at the beginning"
    )
    found = _resident(machines)
    expect.that(found == resident, f"List has {found} machines that are not SPECULATIVE, expected {resident}")


async def _list_many(t: Trial, client: Client, process: Managed | None) -> None:
    count = len(expect.ok(await client.list()).machines)
    _enough(t, count, MANY)
    first = _resident_mib(process)
    within(t, "List", [await timed(client.list()) for _ in range(LISTS)], LIST_P99_S)
    last = _resident_mib(process)
    if first is None or last is None:
        t.note("memory was not measured: that takes --provider-cmd, and Linux")
        return
    expect.that(last <= _MEMORY_MIB, f"{count} machines take {last} MiB, expected at most {_MEMORY_MIB} MiB")
    expect.that(
        last - first <= _GROWTH_MIB, f"{LISTS} Lists of {count} machines left {last - first} MiB in memory"
    )
    t.note(f"{count} machines in {last} MiB")


def _resident_mib(process: Managed | None) -> int | None:
    """Memory of a provider of ours and of the processes in its group; None where that cannot be seen."""
    if process is None or not Path("/proc/self/statm").exists():
        return None
    pages = 0
    for folder in Path("/proc").glob("[0-9]*"):
        # Others may end while they are looked at.
        with contextlib.suppress(OSError):
            if os.getpgid(int(folder.name)) == process.pid:
                pages += int((folder / "statm").read_text().split()[1])
    return pages * resource.getpagesize() // 2**20
